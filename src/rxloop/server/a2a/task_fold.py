"""A2A tasks and updates, folded from run events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from math import inf
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
from rxloop.recorded.follow import FINAL_STATES
from rxloop.server.a2a.parts import to_a2a_message, to_a2a_part, to_artifact_part, to_data_part, to_struct
from rxloop.server.core.chat_changes import CallProgress, Change, StepEnded, TextDelta
from rxloop.server.core.chat_fold import ChatFold

Update = pb.Task | pb.TaskStatusUpdateEvent | pb.TaskArtifactUpdateEvent
"""Task update for a client."""

MAX_HISTORY = 500
"""Maximum number of messages in the history of a task. The SDK encodes them on the event loop."""

STATES: dict[State, pb.TaskState] = {
    "submitted": pb.TASK_STATE_SUBMITTED,
    "working": pb.TASK_STATE_WORKING,
    "completed": pb.TASK_STATE_COMPLETED,
    "failed": pb.TASK_STATE_FAILED,
    "canceled": pb.TASK_STATE_CANCELED,
    "input-required": pb.TASK_STATE_INPUT_REQUIRED,
    "auth-required": pb.TASK_STATE_AUTH_REQUIRED,
}


def to_timestamp(milliseconds: int) -> Timestamp:
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
        self._artifacts: dict[str, pb.Artifact] = {}
        self._chunks: dict[str, list[pb.Part]] = {}
        """Pending artifact chunks, joined when the task is read. Appending each chunk separately would be too slow."""
        self.pending: Sequence[PendingInput] = ()
        self.last: Event | None = None
        """Last durable event."""
        self._thoughts = thoughts
        self._changes: list[Change | Event] = []
        self._chat = ChatFold(self._changes.append)
        self._text_id = ""
        """Text id of the current answer. A delta with a different id replaces the answer."""
        self._incomplete: str | None = None
        """Explanation if the latest message is incomplete, otherwise None."""
        self._has_text = False
        """True if clients have received text. An attempt that fails then replaces this text with an empty string."""

    @property
    def task(self) -> pb.Task:
        """Current task."""
        for artifact_id, chunks in self._chunks.items():
            _join(self._artifacts[artifact_id], chunks)
        self._chunks.clear()
        return self._task

    def add(self, event: Event) -> list[Update]:
        """Fold an event and return the resulting updates."""
        if event.durable:
            # Internal events also count, because tasks are listed by this timestamp.
            self._task.status.timestamp.CopyFrom(to_timestamp(event.timestamp))
            self.last = event
        self._chat.take_public(event)
        changes, self._changes[:] = [*self._changes], []
        return [update for change in changes for update in self._convert_change(change)]

    def _convert_change(self, change: Change | Event) -> Sequence[Update]:
        event = change if isinstance(change, Event) else change.event
        if isinstance(event, ArtifactUpdateEvent):
            return [self._update_artifact(event)]
        # Nested runs and branches are not part of the agent's answer.
        if event.parent_task_id is not None or event.branch is not None:
            return []
        match change:
            case TaskEvent():
                return [self._start(change)]
            case StatusUpdateEvent(final=True) if change.state != "working":
                return self._end_attempt(change)
            case StatusUpdateEvent():
                self.pending = ()
                return [self._status(change, change.state)]
            case TextDelta():
                append, self._text_id = change.id == self._text_id, change.id
                self._has_text = True
                return [self._answer(change.delta, append=append, last=False)]
            case StepEnded(event=ContentCompleteEvent() as message, outcome="complete"):
                return self._add_message(message)
            case CallProgress():
                return [self._status(event, "working", change.event.message)]
            case ThoughtStreamEvent() if self._thoughts:
                return [self._status(change, "working", change.content, thought=True)]
            case MessageAddedEvent():
                self._add_to_history(self._make_message(change, Message(role=change.role, content=change.content)))
                return []
            case _:
                return []

    def _add_message(self, message: ContentCompleteEvent) -> list[Update]:
        """Convert a complete message to an answer or intermediate status, and convert its files to artifacts."""
        updates: list[Update] = []
        self._incomplete = explain_incomplete(message)
        if message.content:
            if message.tool_calls or message.left_out or message.finish_reason == "pause":
                updates.append(self._status(message, "working", message.content))
            else:
                self._store_artifact(self._answer(message.content, append=False, last=False))
        for number, file in enumerate(message.files):
            name = f"{self._task.id}:{message.step}:file:{number}"
            filename = getattr(file, "filename", None) or ""
            artifact = pb.Artifact(artifact_id=name, name=filename, parts=[to_a2a_part(file)])
            update = self._update(artifact, append=False, last=True)
            self._store_artifact(update)
            updates.append(update)
        return updates

    def _start(self, event: TaskEvent) -> pb.Task:
        task_id, context_id = event.task_id, event.context_id
        self._task.id, self._task.context_id = task_id, context_id
        self._task.status.state = pb.TASK_STATE_SUBMITTED
        first = max(0, len(event.messages) - MAX_HISTORY)
        for index, message in enumerate(event.messages[first:], first):
            self._add_to_history(to_a2a_message(message, f"{task_id}:{index}", task_id, context_id))
        public = event.metadata.get(PUBLIC_METADATA)
        if isinstance(public, dict):
            self._task.metadata.CopyFrom(to_struct(cast("dict[str, Any]", public)))
        return _copy(self._task)

    def _add_to_history(self, message: pb.Message) -> None:
        self._task.history.append(message)
        del self._task.history[:-MAX_HISTORY]

    def _end_attempt(self, event: StatusUpdateEvent) -> list[Update]:
        """Convert the end of an attempt to the complete answer and the final status."""
        updates: list[Update] = []
        if event.state in FINAL_STATES and (event.content or self._has_text):
            answer = self._answer(event.content or "", append=False, last=True)
            self._store_artifact(answer)
            updates.append(answer)
        self.pending, self._text_id = event.pending, ""
        message = None
        if event.pending:
            message = pb.Message(
                role=pb.ROLE_AGENT,
                parts=[
                    pb.Part(text="\n".join(_format_question(question) for question in event.pending)),
                    to_data_part({"inputs": [each.model_dump(mode="json", by_alias=True) for each in event.pending]}),
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
        status = pb.TaskStatus(state=STATES[state], timestamp=to_timestamp(event.timestamp))
        if isinstance(message, str):
            message = self._make_message(event, Message(role="assistant", content=message))
        if message is not None:
            message.message_id, message.task_id = f"{task.id}:{event.seq}.{event.sub}", task.id
            message.context_id = task.context_id
            status.message.CopyFrom(message)
        if event.durable and not thought:
            # The previous status message moves to the history. Progress and thoughts are transient and not stored.
            if task.status.HasField("message"):
                self._add_to_history(task.status.message)
            task.status.CopyFrom(status)
        metadata: dict[str, Any] = {"cursor": event.cursor, **({"thought": True} if thought else {})}
        if usage is not None:
            metadata["usage"] = usage.model_dump(mode="json", by_alias=True)
        return pb.TaskStatusUpdateEvent(
            task_id=task.id, context_id=task.context_id, status=status, metadata=to_struct({"rxloop": metadata})
        )

    def _make_message(self, event: Event, message: Message) -> pb.Message:
        return to_a2a_message(message, f"{self._task.id}:{event.seq}.{event.sub}", self._task.id, self._task.context_id)

    def _answer(self, text: str, *, append: bool, last: bool) -> pb.TaskArtifactUpdateEvent:
        artifact = pb.Artifact(artifact_id=f"{self._task.id}:answer", name="answer", parts=[pb.Part(text=text)])
        return self._update(artifact, append=append, last=last)

    def _update_artifact(self, event: ArtifactUpdateEvent) -> pb.TaskArtifactUpdateEvent:
        artifact = pb.Artifact(artifact_id=event.artifact_id, name=event.name or "", parts=[to_artifact_part(event)])
        update = self._update(artifact, append=event.index > 0, last=event.last)
        self._store_artifact(update)
        return update

    def _update(self, artifact: pb.Artifact, *, append: bool, last: bool) -> pb.TaskArtifactUpdateEvent:
        return pb.TaskArtifactUpdateEvent(
            task_id=self._task.id, context_id=self._task.context_id, artifact=artifact, append=append, last_chunk=last
        )

    def _store_artifact(self, update: pb.TaskArtifactUpdateEvent) -> None:
        name = update.artifact.artifact_id
        if name not in self._artifacts:
            self._task.artifacts.append(update.artifact)
            self._artifacts[name] = self._task.artifacts[-1]
        elif update.append:
            self._chunks.setdefault(name, []).append(update.artifact.parts[0])
        else:
            self._chunks.pop(name, None)
            self._artifacts[name].CopyFrom(update.artifact)


def _join(artifact: pb.Artifact, chunks: Iterable[pb.Part]) -> None:
    """Append chunks, merging consecutive text or bytes into a single part."""
    for kind, group in groupby(chunks, _get_kind):
        rest = list(group)
        if not (kind and artifact.parts[-1].HasField(kind)):
            artifact.parts.append(rest.pop(0))
        last = artifact.parts[-1]
        if kind == "text":
            last.text = "".join([last.text, *(each.text for each in rest)])
        elif kind == "raw":
            last.raw = b"".join([last.raw, *(each.raw for each in rest)])
        else:
            artifact.parts.extend(rest)


def _get_kind(chunk: pb.Part) -> Literal["text", "raw"] | None:
    return next((kind for kind in ("text", "raw") if chunk.HasField(kind)), None)


def _format_question(question: PendingInput) -> str:
    return question.prompt if question.url is None else f"{question.prompt} {question.url}"


def _copy(task: pb.Task) -> pb.Task:
    copy = pb.Task()
    copy.CopyFrom(task)
    return copy


def fold_task(events: Iterable[Event], *, last_seq: float = inf, thoughts: bool = False) -> TaskFold:
    """Fold a run's events from the beginning to an event."""
    fold = TaskFold(thoughts=thoughts)
    for event in events:
        if event.seq <= last_seq:
            fold.add(event)
    return fold


def updates(earlier: TaskFold | None = None, *, thoughts: bool = False) -> View[Event, Update]:
    """Create a view of task updates.

    ::

        source           --t--w--d--d--c--F|      t task, w working, d delta, c content-complete, F final
        updates()        --T--s--a--a-----as|     T the whole task, s its status, a a piece of the answer
        updates(earlier) T----s--a--a-----as|     earlier: the events that the client has missed

    The first delta of each text replaces the previous answer, including text before a tool call and discarded text. At
    the end, the complete answer is sent again.

    Args:
        earlier: Fold of the earlier events of the run. Its task is emitted first. The view can be used once.
        thoughts: Whether to include thoughts as status messages.
    """

    def write(out: ViewOutput[Update]) -> Callable[[Event], None]:
        fold = earlier or TaskFold(thoughts=thoughts)
        if fold.last is not None:
            out.emit(_copy(fold.task))

        def take(event: Event) -> None:
            for update in fold.add(event):
                out.emit(update)

        return take

    return make_view(write)
