"""Nested runs, started by tool calls and published to their parent's stream."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from rxloop.pipeline.requests import ModelRequest
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.events import ContentCompleteEvent, Event
from rxloop.protocol.model import EMPTY_DICT, FrozenDict, mutable_fields
from rxloop.protocol.visibility import HIDDEN, ROOT
from rxloop.run.attempt import Attempt
from rxloop.run.final_events import make_canceled_call, make_final_event
from rxloop.run.lifetime import PARENT_ENDED
from rxloop.run.recorder import Recorder
from rxloop.run.spec import RunSpec
from rxloop.run.stamp import EventProperties, EventStamp
from rxloop.state.run_state import LimitHit
from rxloop.thinking.graph import ThoughtGraph

if TYPE_CHECKING:
    from rxloop.pipeline.artifacts import Writes
    from rxloop.support.tasks import Clock


class NestedStamp(EventStamp):
    """Stamp for a nested run. It uses the outermost run's numbers, and adds nesting fields to each event.

    The run folds its own events without these fields, like any other run. `nest` then adds them for its ancestors.
    """

    __slots__ = ("_marks", "_nesting", "_top_id")

    def __init__(self, task_id: str, parent: Recorder, agent_path: tuple[str, ...], *, hidden: bool) -> None:
        """Create the stamp for a nested run.

        Args:
            task_id: Id of the nested run.
            parent: Recorder of its parent run.
            agent_path: Names of nested agents, down to this run.
            hidden: Whether to hide its events from clients.
        """
        super().__init__(task_id, parent.context_id, parent.stamp.owner, parent.stamp.numbering)
        self.ids["attempt"] = parent.attempt
        self._top_id = parent.top.task_id
        marks: dict[str, Any] = {}
        if parent is not parent.top:
            marks[ROOT] = self._top_id
        if hidden:
            marks[HIDDEN] = True
        self._nesting: dict[str, Any] = {"parent_task_id": parent.task_id, "agent_path": agent_path}
        self._marks = FrozenDict(marks)
        if marks:
            self._nesting["metadata"] = self._marks

    @override
    def apply(self, event: Event, properties: EventProperties) -> Event:
        if event.attempt and event.task_id == self.task_id:
            # Operators may repeat an event. The run folds it as its own event again.
            event = event.model_copy(update={"parent_task_id": None, "agent_path": ()})
        event = super().apply(event, properties)
        if not event.durable:
            self.nest(event)
        return event

    @override
    def adopt(self, event: Event) -> None:
        super().adopt(event)
        fields = mutable_fields(event)
        if fields["parent_task_id"] is not None:
            fields["metadata"] = FrozenDict({**fields["metadata"], **self._marks, ROOT: self._top_id})

    def nest(self, event: Event) -> None:
        """Add nesting fields to an event, unless it was published by a run nested deeper."""
        fields = mutable_fields(event)
        if fields["parent_task_id"] is not None:
            return
        metadata = fields["metadata"]
        fields.update(self._nesting)
        if metadata is not EMPTY_DICT:
            fields["metadata"] = FrozenDict({**metadata, **self._marks})


class NestedRecorder(Recorder):
    """Recorder for a nested run, publishing to the outermost run's stream."""

    def __init__(self, run: NestedAttempt, events: Sequence[Event]) -> None:
        """Create a recorder continuing after events recorded by earlier attempts."""
        parent = run.parent.recorder
        stamp = NestedStamp(run.spec.task_id, parent, run.agent_path, hidden=run.hidden)
        super().__init__(stamp, parent.hub, parent.delivery, run.spec.loop, run.lifetime)
        self._parent, self._outermost, self._nest = parent, parent.top, stamp.nest
        self.attempt = parent.attempt
        self.writer = parent.writer
        self.earlier = self._outermost.earlier.fold_nested(events)
        self.graph = ThoughtGraph.of(events)
        self.states = {None: self.earlier.state}

    @property
    @override
    def top(self) -> Recorder:
        """Outermost recorder."""
        return self._outermost

    @property
    @override
    def has_events(self) -> bool:
        """True if an earlier attempt has recorded any of the run's events."""
        return self.earlier.state.seq > 0

    @override
    def fold(self, event: Event) -> None:
        super().fold(event)
        self._nest(event)
        self._parent.fold_nested(event)

    @override
    def fold_nested(self, event: Event) -> None:
        super().fold_nested(event)
        self._parent.fold_nested(event)


class NestedAttempt(Attempt):
    """Attempt of a nested run."""

    __slots__ = ("agent_path", "hidden", "parent")

    def __init__(self, spec: RunSpec, call: RunContext[Any], parent: Attempt) -> None:
        """Create an attempt continuing the nested run, or starting it.

        Args:
            spec: Specification of the nested run.
            call: Context of the tool call that started it.
            parent: Attempt making the call.
        """
        self.parent = parent
        self.agent_path: tuple[str, ...] = (*get_agent_path(parent), spec.agent_name)
        self.hidden = call.hidden or (isinstance(parent, NestedAttempt) and parent.hidden)
        """True if its events are hidden from clients."""
        super().__init__(spec)
        self.info.clock = parent.info.clock
        self.info.scope.gate = parent.info.scope.gate
        # Stop within the parent's grace period.
        self.grace_factor = parent.grace_factor * 0.8
        self.questions = parent.questions.nest(call, self.agent_path, self.info.scope, self.lifetime.time_scope)

    @override
    def make_recorder(self, clock: Clock) -> Recorder:
        return NestedRecorder(self, self.parent.recorder.top.earlier.resume_nested(self.spec.task_id))

    @override
    def artifact_writes(self) -> Writes:
        """Return the artifact writes shared with the parent, which uses the same conversation."""
        return self.parent.artifact_writes()

    @property
    @override
    def resumed(self) -> bool:
        """True if the run was started by an earlier attempt."""
        return self.recorder.has_events

    @override
    def build_request(
        self, ctx: RunContext[Any], iteration: int, pressure: int
    ) -> ModelRequest | Awaitable[ModelRequest]:
        """Build the next model request.

        Raises:
            LimitHit: An ancestor has used up its token limit.
        """
        for run in list_ancestors(self):
            limit, used = run.info.limits.tokens, run.state().usage.total_tokens
            if limit is not None and used >= limit:
                raise LimitHit(
                    "tokens", f"{used} of {limit} tokens of {run.info.agent_name!r} are spent (limits.tokens)"
                )
        return super().build_request(ctx, iteration, pressure)


def list_ancestors(run: Attempt) -> list[Attempt]:
    """Return the ancestors of a run, starting with its parent."""
    ancestors: list[Attempt] = []
    while isinstance(run, NestedAttempt):
        run = run.parent
        ancestors.append(run)
    return ancestors


def get_agent_path(run: Attempt) -> tuple[str, ...]:
    """Return the names of nested agents down to a run. Empty for the outermost run."""
    return run.agent_path if isinstance(run, NestedAttempt) else ()


def close_interrupted_runs(run: Attempt, *, keep_waiting: bool) -> Iterator[Event]:
    """Yield final events for nested runs that were interrupted by a crash and not resumed since."""
    earlier = run.recorder.top.earlier
    for subtask in earlier.list_unfinished(run.task_id, keep_waiting=keep_waiting):
        state = earlier.fold_nested(earlier.resume_nested(subtask.task_id)).state
        envelope = {name: getattr(subtask, name) for name in ("task_id", "parent_task_id", "agent_path")}
        envelope["metadata"] = {mark: subtask.metadata[mark] for mark in (ROOT, HIDDEN) if mark in subtask.metadata}
        ends: list[Event] = []
        if state.open_step is not None:
            ends.append(ContentCompleteEvent(step=state.open_step, content="", finish_reason="canceled"))
        if state.batch is not None:
            asking = state.batch.find_waiting_calls(state.pending.values())
            ends += [
                make_canceled_call(state.batch, i, state.batch.explain_missing(i, asking)) for i in state.batch.open
            ]
        for event in (*ends, make_final_event(state, PARENT_ENDED)):
            yield event.model_copy(update=envelope)
