"""A run that is nested in a tool call of another one: an attempt like any other, on the stream of that other run."""

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
from rxloop.run.ends import canceled_call, final_event
from rxloop.run.life import CUT_OFF
from rxloop.run.recorder import Recorder
from rxloop.run.spec import RunSpec
from rxloop.run.stamp import EventStamp, EventTraits
from rxloop.state.run_state import LimitHit
from rxloop.thinking.graph import ThoughtGraph

if TYPE_CHECKING:
    from rxloop.pipeline.artifacts import Writes
    from rxloop.support.tasks import Clock


class NestedStamp(EventStamp):
    """Stamp of a nested run: numbers of the outermost run, and the nesting in each event.

    The run folds its own events without the nesting, like any other run. `nest` then adds it for the runs above.
    """

    __slots__ = ("_marks", "_nesting", "_top_id")

    def __init__(self, task_id: str, above: Recorder, agent_path: tuple[str, ...], *, hidden: bool) -> None:
        """Create the stamp of a run.

        Args:
            task_id: Id of the nested run.
            above: Recorder of the run that called it.
            agent_path: Names of the nested agents down to this run.
            hidden: True if clients do not get the events of the run.
        """
        super().__init__(task_id, above.context_id, above.stamp.numbering)
        self.ids["attempt"] = above.attempt
        self._top_id = above.top.task_id
        marks: dict[str, Any] = {}
        if above is not above.top:
            marks[ROOT] = self._top_id
        if hidden:
            marks[HIDDEN] = True
        self._nesting: dict[str, Any] = {"parent_task_id": above.task_id, "agent_path": agent_path}
        self._marks = FrozenDict(marks)
        if marks:
            self._nesting["metadata"] = self._marks

    @override
    def apply(self, event: Event, traits: EventTraits) -> Event:
        event = super().apply(event, traits)
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
        """Write the nesting into an event of the run, unless it is an event of a run nested in this one."""
        fields = mutable_fields(event)
        if fields["parent_task_id"] is not None:
            return
        metadata = fields["metadata"]
        fields.update(self._nesting)
        if metadata is not EMPTY_DICT:
            fields["metadata"] = FrozenDict({**metadata, **self._marks})


class NestedRecorder(Recorder):
    """Recorder of a nested run, which publishes on the stream of the outermost run."""

    def __init__(self, run: NestedAttempt, events: Sequence[Event]) -> None:
        """Continue after the events that earlier attempts recorded of the run."""
        above = run.above.recorder
        stamp = NestedStamp(run.spec.task_id, above, run.agent_path, hidden=run.hidden)
        super().__init__(stamp, above.hub, above.delivery, run.spec.loop, run.life)
        self._above, self._top, self._nest = above, above.top, stamp.nest
        self.attempt = above.attempt
        self.writer = above.writer
        self.earlier = self._top.earlier.fold_nested(events)
        self.graph = ThoughtGraph.of(events)
        self.states = {None: self.earlier.state}

    @property
    @override
    def top(self) -> Recorder:
        """Recorder of the outermost run."""
        return self._top

    @property
    @override
    def begun(self) -> bool:
        """True if an earlier attempt has recorded an event of the run."""
        return self.earlier.state.seq > 0

    @override
    def fold(self, event: Event) -> None:
        super().fold(event)
        self._nest(event)
        self._above.fold_nested(event)

    @override
    def fold_nested(self, event: Event) -> None:
        super().fold_nested(event)
        self._above.fold_nested(event)


class NestedAttempt(Attempt):
    """One attempt of a nested run."""

    __slots__ = ("above", "agent_path", "hidden")

    def __init__(self, spec: RunSpec, call: RunContext[Any], above: Attempt) -> None:
        """Go on with the run, or begin with it, if nothing is known of it.

        Args:
            spec: What it is made of.
            call: The call that it is nested in.
            above: The run that has made the call.
        """
        self.above = above
        self.agent_path: tuple[str, ...] = (*path_of(above), spec.agent_name)
        self.hidden = call.hidden or (isinstance(above, NestedAttempt) and above.hidden)
        """Whether nothing of it is for clients."""
        super().__init__(spec)
        self.info.clock = above.info.clock
        self.info.scope.gate = above.info.scope.gate
        # So that it is over before the run above gives it up.
        self.patience = above.patience * 0.8
        self.questions = above.questions.below(call, self.agent_path, self.info.scope, self.life.time_scope)

    @override
    def make_recorder(self, clock: Clock) -> Recorder:
        return NestedRecorder(self, self.above.recorder.top.earlier.resume_nested(self.spec.task_id))

    @override
    def artifact_writes(self) -> Writes:
        """What the writes to artifacts share: those of the run around it, since the conversation is one."""
        return self.above.artifact_writes()

    @property
    @override
    def resumed(self) -> bool:
        """Whether an earlier attempt has begun the run."""
        return self.recorder.begun

    @override
    def build_request(
        self, ctx: RunContext[Any], iteration: int, pressure: int
    ) -> ModelRequest | Awaitable[ModelRequest]:
        """Return the request of the next model call.

        Raises:
            LimitHit: A run that this one is nested in may use no more tokens.
        """
        for run in runs_above(self):
            limit, used = run.info.limits.tokens, run.state().usage.total_tokens
            if limit is not None and used >= limit:
                raise LimitHit(
                    "tokens", f"{used} of {limit} tokens of {run.info.agent_name!r} are spent (limits.tokens)"
                )
        return super().build_request(ctx, iteration, pressure)


def runs_above(run: Attempt) -> list[Attempt]:
    """The runs that a run is nested in, the nearest first."""
    found: list[Attempt] = []
    while isinstance(run, NestedAttempt):
        run = run.above
        found.append(run)
    return found


def path_of(run: Attempt) -> tuple[str, ...]:
    """The names of the nested agents down to a run; none for the outermost."""
    return run.agent_path if isinstance(run, NestedAttempt) else ()


def ends_below(run: Attempt) -> Iterator[Event]:
    """The ends of the runs that a crash has cut off below a run, and that nobody has taken up before its own end."""
    earlier = run.recorder.top.earlier
    for cut_off in earlier.list_unfinished(run.task_id):
        state = earlier.fold_nested(earlier.resume_nested(cut_off.task_id)).state
        place = {name: getattr(cut_off, name) for name in ("task_id", "parent_task_id", "agent_path")}
        place["metadata"] = {mark: cut_off.metadata[mark] for mark in (ROOT, HIDDEN) if mark in cut_off.metadata}
        ends: list[Event] = []
        if state.open_step is not None:
            ends.append(ContentCompleteEvent(step=state.open_step, content="", finish_reason="canceled"))
        if state.batch is not None:
            asking = state.batch.find_asking(state.pending.values())
            ends += [canceled_call(state.batch, i, state.batch.explain_missing(i, asking)) for i in state.batch.open]
        for event in (*ends, final_event(state, CUT_OFF)):
            yield event.model_copy(update=place)
