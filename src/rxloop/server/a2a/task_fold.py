"""A2A tasks and updates, folded from run events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, Literal, cast

from a2a.types import a2a_pb2 as pb
from google.protobuf.timestamp_pb2 import Timestamp

from rxloop.operators.views import View
from rxloop.operators.views.make_view import ViewOutput, make_view
from rxloop.protocol.events import (
    ArtifactUpdateEvent,
    ContentCompleteEvent,
    Event,
    MessageAddedEvent,
    StatusUpdateEvent,
    TaskEvent,
    ThoughtStreamEvent,
)
from rxloop.protocol.finish import explain_incomplete
from rxloop.protocol.messages import Message, PendingInput, Usage
from rxloop.protocol.run_events import State
from rxloop.protocol.visibility import PUBLIC_METADATA
from rxloop.recorded.follow import OVER
from rxloop.server.a2a.parts import data_part, piece_of, said, shown, struct_of
from rxloop.server.core.chat_changes import CallProgress, Change, StepEnded, TextDelta
from rxloop.server.core.chat_fold import ChatFold

Update = pb.Task | pb.TaskStatusUpdateEvent | pb.TaskArtifactUpdateEvent
"""Task update for a client."""

STATES: dict[State, pb.TaskState] = {
    "submitted": pb.TASK_STATE_SUBMITTED,
    "working": pb.TASK_STATE_WORKING,
    "completed": pb.TASK_STATE_COMPLETED,
    "failed": pb.TASK_STATE_FAILED,
    "canceled": pb.TASK_STATE_CANCELED,
    "input-required": pb.TASK_STATE_INPUT_REQUIRED,
    "auth-required": pb.TASK_STATE_AUTH_REQUIRED,
}


def time_of(milliseconds: int) -> Timestamp:
    """Convert a time in milliseconds to a protobuf timestamp."""
    stamp = Timestamp()
    stamp.FromMilliseconds(milliseconds)
    return stamp


class TaskFold:
    """Fold of a run's events into an A2A task.

    `pending` contains the public version of the open questions.
    """

    def __init__(self, *, thoughts: bool = False) -> None:
        self._task = pb.Task()
        self._kept: dict[str, pb.Artifact] = {}
        self._pieces: dict[str, list[pb.Part]] = {}
        """Pending artifact chunks, joined when the task is read. Appending each chunk separately would be too slow."""
        self.pending: Sequence[PendingInput] = ()
        self.seq = 0
        """Sequence number of the last folded event."""
        self.cursor = ""
        self._thoughts = thoughts
        self._changes: list[Change | Event] = []
        self._chat = ChatFold(self._changes.append)
        self._written = ""
        """Text id of the current answer. A delta with a different id replaces the answer."""
        self._incomplete: str | None = None
        """Explanation if the latest message is incomplete, otherwise None."""
        self._shown = False
        """True if clients have received text. An attempt that fails then replaces this text with an empty string."""

    @property
    def task(self) -> pb.Task:
        """Current task."""
        for artifact_id, pieces in self._pieces.items():
            _join(self._kept[artifact_id], pieces)
        self._pieces.clear()
        return self._task

    def add(self, event: Event) -> list[Update]:
        """Fold an event and return the resulting updates."""
        if event.durable:
            # Internal events also count, because tasks are listed by this timestamp.
            self._task.status.timestamp.CopyFrom(time_of(event.timestamp))
            self.seq, self.cursor = event.seq, event.cursor
        shown = event.to_public()
        if shown is not None:
            self._chat.take(shown)
        changes, self._changes[:] = [*self._changes], []
        return [update for change in changes for update in self._told(change)]

    def _told(self, change: Change | Event) -> Sequence[Update]:
        event = change if isinstance(change, Event) else change.event
        if isinstance(event, ArtifactUpdateEvent):
            return [self._artifact(event)]
        # Nested runs and branches are not part of the agent's answer.
        if event.parent_task_id is not None or event.branch is not None:
            return []
        match change:
            case TaskEvent():
                return [self._begin(change)]
            case StatusUpdateEvent(final=True) if change.state != "working":
                return self._rest(change)
            case StatusUpdateEvent():
                self.pending = ()
                return [self._status(change, change.state)]
            case TextDelta():
                append, self._written = change.id == self._written, change.id
                self._shown = True
                return [self._answer(change.delta, append=append, last=False)]
            case StepEnded(event=ContentCompleteEvent() as message, outcome="complete"):
                return self._said_whole(message)
            case CallProgress():
                return [self._status(event, "working", change.event.message)]
            case ThoughtStreamEvent() if self._thoughts:
                return [self._status(change, "working", change.content, thought=True)]
            case MessageAddedEvent():
                self._task.history.append(self._said(change, Message(role=change.role, content=change.content)))
                return []
            case _:
                return []

    def _said_whole(self, message: ContentCompleteEvent) -> list[Update]:
        """Convert a complete message to an answer or intermediate status, and convert its files to artifacts."""
        updates: list[Update] = []
        self._incomplete = explain_incomplete(message)
        if message.content:
            if message.tool_calls or message.left_out or message.finish_reason == "pause":
                updates.append(self._status(message, "working", message.content))
            else:
                self._keep(self._answer(message.content, append=False, last=False))
        for number, file in enumerate(message.files):
            name = f"{self._task.id}:{message.step}:file:{number}"
            artifact = pb.Artifact(artifact_id=name, name=getattr(file, "filename", None) or "", parts=[shown(file)])
            update = self._update(artifact, append=False, last=True)
            self._keep(update)
            updates.append(update)
        return updates

    def _begin(self, event: TaskEvent) -> pb.Task:
        task_id, context_id = event.task_id, event.context_id
        self._task.id, self._task.context_id = task_id, context_id
        self._task.status.state = pb.TASK_STATE_SUBMITTED
        for place, message in enumerate(event.messages):
            self._task.history.append(said(message, f"{task_id}:{place}", task_id, context_id))
        given = event.metadata.get(PUBLIC_METADATA)
        if isinstance(given, dict):
            self._task.metadata.CopyFrom(struct_of(cast("dict[str, Any]", given)))
        return _copied(self._task)

    def _rest(self, event: StatusUpdateEvent) -> list[Update]:
        """Convert the end of an attempt to the complete answer and the final status."""
        updates: list[Update] = []
        if event.state in OVER and (event.content or self._shown):
            whole = self._answer(event.content or "", append=False, last=True)
            self._keep(whole)
            updates.append(whole)
        self.pending, self._written = event.pending, ""
        message = None
        if event.pending:
            message = pb.Message(
                role=pb.ROLE_AGENT,
                parts=[
                    pb.Part(text="\n".join(_asked(question) for question in event.pending)),
                    data_part({"inputs": [each.model_dump(mode="json", by_alias=True) for each in event.pending]}),
                ],
            )
        elif event.error is not None:
            message = pb.Message(role=pb.ROLE_AGENT, parts=[pb.Part(text=event.error.message)])
        elif event.state == "completed" and self._incomplete is not None:
            text = f"The answer is incomplete: {self._incomplete}."
            message = pb.Message(role=pb.ROLE_AGENT, parts=[pb.Part(text=text)])
        elif event.state == "failed":
            message = pb.Message(role=pb.ROLE_AGENT, parts=[pb.Part(text=event.reason or "The run failed.")])
        updates.append(self._status(event, event.state, message, usage=event.usage))
        return updates

    def _status(
        self,
        event: Event,
        state: State,
        message: pb.Message | str | None = None,
        *,
        usage: Usage | None = None,
        thought: bool = False,
    ) -> pb.TaskStatusUpdateEvent:
        task = self._task
        status = pb.TaskStatus(state=STATES[state], timestamp=time_of(event.timestamp))
        if isinstance(message, str):
            message = self._said(event, Message(role="assistant", content=message))
        if message is not None:
            message.message_id, message.task_id = f"{task.id}:{event.seq}.{event.sub}", task.id
            message.context_id = task.context_id
            status.message.CopyFrom(message)
        if event.durable and not thought:
            # The previous status message moves to the history. Progress and thoughts are transient and not stored.
            if task.status.HasField("message"):
                task.history.append(task.status.message)
            task.status.CopyFrom(status)
        ours: dict[str, Any] = {"cursor": event.cursor, **({"thought": True} if thought else {})}
        if usage is not None:
            ours["usage"] = usage.model_dump(mode="json", by_alias=True)
        return pb.TaskStatusUpdateEvent(
            task_id=task.id, context_id=task.context_id, status=status, metadata=struct_of({"rxloop": ours})
        )

    def _said(self, event: Event, message: Message) -> pb.Message:
        return said(message, f"{self._task.id}:{event.seq}.{event.sub}", self._task.id, self._task.context_id)

    def _answer(self, text: str, *, append: bool, last: bool) -> pb.TaskArtifactUpdateEvent:
        artifact = pb.Artifact(artifact_id=f"{self._task.id}:answer", name="answer", parts=[pb.Part(text=text)])
        return self._update(artifact, append=append, last=last)

    def _artifact(self, event: ArtifactUpdateEvent) -> pb.TaskArtifactUpdateEvent:
        artifact = pb.Artifact(artifact_id=event.artifact_id, name=event.name or "", parts=[piece_of(event)])
        update = self._update(artifact, append=event.index > 0, last=event.last)
        self._keep(update)
        return update

    def _update(self, artifact: pb.Artifact, *, append: bool, last: bool) -> pb.TaskArtifactUpdateEvent:
        return pb.TaskArtifactUpdateEvent(
            task_id=self._task.id, context_id=self._task.context_id, artifact=artifact, append=append, last_chunk=last
        )

    def _keep(self, update: pb.TaskArtifactUpdateEvent) -> None:
        name = update.artifact.artifact_id
        if name not in self._kept:
            self._task.artifacts.append(update.artifact)
            self._kept[name] = self._task.artifacts[-1]
        elif update.append:
            self._pieces.setdefault(name, []).append(update.artifact.parts[0])
        else:
            self._pieces.pop(name, None)
            self._kept[name].CopyFrom(update.artifact)


def _join(kept: pb.Artifact, pieces: Iterable[pb.Part]) -> None:
    """Append chunks, merging consecutive text or bytes into a single part."""
    for kind, group in groupby(pieces, _kind):
        more = list(group)
        if not (kind and kept.parts[-1].HasField(kind)):
            kept.parts.append(more.pop(0))
        last = kept.parts[-1]
        if kind == "text":
            last.text = "".join([last.text, *(each.text for each in more)])
        elif kind == "raw":
            last.raw = b"".join([last.raw, *(each.raw for each in more)])
        else:
            kept.parts.extend(more)


def _kind(piece: pb.Part) -> Literal["text", "raw"] | None:
    return next((kind for kind in ("text", "raw") if piece.HasField(kind)), None)


def _asked(question: PendingInput) -> str:
    return question.prompt if question.url is None else f"{question.prompt} {question.url}"


def _copied(task: pb.Task) -> pb.Task:
    copy = pb.Task()
    copy.CopyFrom(task)
    return copy


def folded(events: Iterable[Event], *, thoughts: bool = False) -> TaskFold:
    """Fold a run's events from the beginning."""
    fold = TaskFold(thoughts=thoughts)
    for event in events:
        fold.add(event)
    return fold


def updates(before: Sequence[Event] = (), *, thoughts: bool = False) -> View[Event, Update]:
    """Create a view of task updates.

    ::

        source           --t--w--d--d--c--F|      t task, w working, d delta, c content-complete, F final
        updates()        --T--s--a--a-----as|     T the whole task, s its status, a a piece of the answer
        updates(before)  T----s--a--a-----as|     before: the events that the client has missed

    The first delta of each text replaces the previous answer, including text before a tool call and discarded text. At
    the end, the complete answer is sent again.

    Args:
        before: Earlier events of the run, starting with its first event. The resulting task is emitted first.
        thoughts: Whether to include thoughts as status messages.
    """

    def write(out: ViewOutput[Update]) -> Callable[[Event], None]:
        fold = folded(before, thoughts=thoughts)
        if before:
            out.emit(_copied(fold.task))

        def take(event: Event) -> None:
            for update in fold.add(event):
                out.emit(update)

        return take

    return make_view(write)
