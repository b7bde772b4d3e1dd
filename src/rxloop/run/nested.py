"""A run that is nested in a tool call of another one: an attempt like any other, on the stream of that other run."""

# What a recorder keeps for its own stream is here that of the run which has the stream.
# pyright: reportIncompatibleVariableOverride=false, reportIncompatibleMethodOverride=false

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from rxloop.pipeline.requests import ModelRequest
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.events import ContentCompleteEvent, Event
from rxloop.protocol.model import EMPTY_DICT, FrozenDict, stamp
from rxloop.protocol.visibility import HIDDEN, ROOT
from rxloop.run.attempt import Attempt
from rxloop.run.ends import canceled_call, final_event
from rxloop.run.event_traits import Traits
from rxloop.run.life import CUT_OFF
from rxloop.run.recorder import Recorder
from rxloop.run.spec import RunSpec
from rxloop.state.run_state import LimitHit
from rxloop.thinking.graph.thought_graph import ThoughtGraph

if TYPE_CHECKING:
    from rxloop.pipeline.artifacts import Writes


class NestedRecorder(Recorder):
    """Records a nested run on the stream of the outermost one, which numbers, keeps and delivers its events.

    By itself the run is one like any other: its own fold knows nothing of where it is nested. What is added then, its
    place, is for the runs above, each of which folds the event in its turn.
    """

    def __init__(self, run: NestedAttempt, events: Sequence[Event]) -> None:  # pyright: ignore[reportMissingSuperCall]
        """Begin after the events that earlier attempts have recorded of the run."""
        above, spec, life = run.above.recorder, run.spec, run.life
        self._above, self._top = above, above.top
        self.task_id = spec.task_id
        self.attempt = above.attempt
        self.hub, self.clock, self.writer = above.hub, above.clock, above.writer
        self.earlier = self._top.earlier.fold_nested(events)
        self.graph = ThoughtGraph.of(events)
        self.states = {None: self.earlier.state}
        self._operator = spec.loop
        self._life = life
        self._ids = {"attempt": above.attempt, "task_id": spec.task_id, "context_id": above.context_id}
        self._started = set()
        marks: dict[str, Any] = {}
        if above is not self._top:
            marks[ROOT] = self._top.task_id
        if run.hidden:
            marks[HIDDEN] = True
        self._place: dict[str, Any] = {"parent_task_id": above.task_id, "agent_path": run.agent_path}
        self._marks = FrozenDict(marks)
        if marks:
            self._place["metadata"] = self._marks

    @property
    @override
    def top(self) -> Recorder:
        """That of the outermost run, on whose stream this one's events are."""
        return self._top

    @property
    def _seq(self) -> int:
        return self._top._seq

    @_seq.setter
    def _seq(self, seq: int) -> None:
        self._top._seq = seq

    @property
    def _sub(self) -> int:
        return self._top._sub

    @_sub.setter
    def _sub(self, sub: int) -> None:
        self._top._sub = sub

    @property
    def _now(self) -> Callable[[], int]:
        return self._top._now

    @property
    def _deliver(self) -> Callable[[Event], None]:
        return self._top._deliver

    @property
    @override
    def begun(self) -> bool:
        """Whether an earlier attempt has recorded anything of the run."""
        return self.earlier.state.seq > 0

    @override
    def _stamp(self, event: Event, traits: Traits) -> Event:
        event = super()._stamp(event, traits)
        if not event.durable:
            self._nest(event)
        return event

    @override
    def _adopt(self, event: Event) -> None:
        super()._adopt(event)
        fields = stamp(event)
        if fields["parent_task_id"] is not None:
            fields["metadata"] = FrozenDict({**fields["metadata"], **self._marks, ROOT: self._top.task_id})

    @override
    def _fold(self, event: Event) -> None:
        super()._fold(event)
        self._nest(event)
        self._above.fold_below(event)

    @override
    def fold_below(self, event: Event) -> None:
        """Fold an event of a run that is nested in this one."""
        super().fold_below(event)
        self._above.fold_below(event)

    def _nest(self, event: Event) -> None:
        """Write into an event of the run where it is nested."""
        if event.parent_task_id is not None:
            return
        fields = stamp(event)
        metadata = fields["metadata"]
        fields.update(self._place)
        if metadata is not EMPTY_DICT:
            fields["metadata"] = FrozenDict({**metadata, **self._marks})


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
        self.scope.gate = above.scope.gate
        # So that it is over before the run above gives it up.
        self.patience = above.patience * 0.8
        self.questions = above.questions.below(call, self.agent_path, self.scope, self.life.time_scope)

    @override
    def _new_recorder(self) -> Recorder:
        return NestedRecorder(self, self.above.recorder.top.earlier.take_up(self.spec.task_id))

    @property
    @override
    def writes(self) -> Writes:
        """What the writes to artifacts share: those of the run around it, since the conversation is one."""
        return self.above.writes

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
            limit, used = run.limits.tokens, run.state().usage.total_tokens
            if limit is not None and used >= limit:
                raise LimitHit("tokens", f"{used} of {limit} tokens of {run.agent_name!r} are spent (limits.tokens)")
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
    for cut_off in earlier.left(run.task_id):
        state = earlier.fold_nested(earlier.take_up(cut_off.task_id)).state
        place = {name: getattr(cut_off, name) for name in ("task_id", "parent_task_id", "agent_path")}
        place["metadata"] = {mark: cut_off.metadata[mark] for mark in (ROOT, HIDDEN) if mark in cut_off.metadata}
        ends: list[Event] = []
        if state.open_step is not None:
            ends.append(ContentCompleteEvent(step=state.open_step, content="", finish_reason="canceled"))
        if state.batch is not None:
            asking = state.batch.asking(state.pending.values())
            ends += [canceled_call(state.batch, i, state.batch.unanswered(i, asking)) for i in state.batch.open]
        for event in (*ends, final_event(state, CUT_OFF)):
            yield event.model_copy(update=place)
