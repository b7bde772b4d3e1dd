"""What makes the stream of an attempt: stamps, folds, records and delivers each event."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from threading import get_ident
from typing import TYPE_CHECKING, Any

from rxloop.errors import InvalidEvent, PipelineError, RxloopError
from rxloop.operators.loop._faults import no_signal, unordered
from rxloop.operators.loop.compose import describe
from rxloop.pipeline.requests import Operator, Request, RunRequest
from rxloop.pipeline.seams import Clock
from rxloop.protocol.envelope import ROOT, check_time
from rxloop.protocol.events import (
    ContentCompleteEvent,
    Event,
    StatusUpdateEvent,
    SubtaskEvent,
    TaskEvent,
    ThoughtStreamEvent,
    ToolProgressEvent,
    ToolStartEvent,
)
from rxloop.protocol.frozen import EMPTY_DICT, FrozenDict, FrozenList
from rxloop.protocol.settle import settle
from rxloop.protocol.unchecked import stamp
from rxloop.run.life import Life, Phase
from rxloop.run.traits import TRAITS, Traits
from rxloop.state.batch import Slot
from rxloop.state.earlier_attempts import EarlierAttempts, no_attempts
from rxloop.state.fold import fold, fold_beside
from rxloop.state.run_state import RunState
from rxloop.stream.clock import CLOCK
from rxloop.stream.hub import Hub

if TYPE_CHECKING:
    from rxloop.stream.writer import LogWriter

log = logging.getLogger("rxloop")

_TAKING = (Phase.OPEN, Phase.ANNOUNCING)
_BEGUN = (Phase.OPEN, Phase.CLOSED, Phase.OVER)


def _drop(event: Event) -> None:
    log.debug("%r came when the run was somebody else's", event)


class Recorder:
    """The stream of one attempt, and the fold of it.

    Every token passes `publish`, which therefore calls as little as it can.
    """

    def __init__(self, task_id: str, context_id: str, operator: Operator, life: Life) -> None:
        """Begin with nothing recorded.

        Args:
            task_id: The run.
            context_id: The conversation.
            operator: The loop of the run, which errors name.
            life: Whether events are taken; it is ended by one that cannot come when it comes.
        """
        self.task_id = task_id
        self.attempt = 1
        """The number of the attempt."""
        self.hub = Hub()
        self.clock: Clock = CLOCK.get()
        self.writer: LogWriter | None = None
        """Carries the events into the log, where there is one."""
        self.earlier: EarlierAttempts = no_attempts()
        self.graph = self.earlier.graph
        self.states: dict[str | None, RunState] = {None: self.earlier.state}
        """The fold of the main line, and of each branch."""
        self._operator = operator
        self._life = life
        self._ids: dict[str, Any] = {"attempt": 1, "task_id": task_id, "context_id": context_id}
        """What nearly every event is given."""
        self._seq = 0
        self._sub = 0
        self._started: set[Slot] = set()
        self._deliver: Callable[[Event], None] = self.hub.publish
        self._now = self.clock.now
        self._last = self._silence = 0
        self._doubt: Callable[[], None] | None = None
        # No deque: an empty one takes 600 bytes in each run.
        self._held: list[Event] = []

    def state(self, branch: str | None = None) -> RunState:
        """The fold of everything published so far on a branch; a new one starts where the main line stands.

        One of an earlier attempt starts where it did then, so that a strategy that runs again finds the same.
        """
        main = self.states[None]
        if branch is None:
            return main
        state = self.states.get(branch)
        if state is None:
            state = self.states[branch] = self.earlier.born.get(branch) or main.branched()
        return state.beside(main)

    @property
    def context_id(self) -> str:
        """The conversation."""
        return self._ids["context_id"]

    @context_id.setter
    def context_id(self, context_id: str) -> None:
        self._ids["context_id"] = context_id

    @property
    def top(self) -> Recorder:
        """That of the outermost run, on whose stream this one's events are."""
        return self

    @property
    def taking(self) -> bool:
        """Whether events are taken."""
        return self._life.phase in _TAKING

    @property
    def begun(self) -> bool:
        """Whether anything of the run is recorded, by this attempt or an earlier one."""
        return self._seq > 0

    def go_on(self, earlier: EarlierAttempts, attempt: int) -> None:
        """Go on as the given attempt of a run, after what the earlier ones have recorded."""
        self.earlier = earlier
        self.attempt = self._ids["attempt"] = attempt
        self.states[None] = earlier.state
        self.graph = earlier.graph
        self._seq = earlier.state.seq

    # -- publishing

    def publish(self, event: Event) -> None:
        """Stamp an event, fold it, hand it to the log's buffer, and deliver it; all at once.

        Args:
            event: Or what else comes out of the loop, where nothing but events should.

        Raises:
            InvalidEvent: It is not one that may come now.
        """
        life = self._life
        if get_ident() != life.thread:
            life.finish_from_thread()
            return
        traits = TRAITS[type(event)]
        if not traits.is_event:
            self._take_other(event)
            return
        if self.attempt > 1 and self._is_recorded(event):
            self._repeat(event)
            return
        if life.phase not in _TAKING:
            log.debug("%r came when the run was over", event)
            return
        if event.durable:
            if traits.rule is not None and self._is_misplaced(event, traits):
                return
            if traits.by_run:
                self.check(event)
            event = self._record(event, traits)
        else:
            # A look, and no call, is all that a token of an open message of the main line costs.
            fits = traits.text and event.step == self.states[None].open_step and event.branch is None
            if not fits and self._is_misplaced(event, traits):
                return
            event = self._stamp(event, traits)
            if self.writer is not None:
                self.writer.add(event)
        self._deliver(event)

    def _take_other(self, signal: object) -> None:
        """Take what has come out of the loop and is no event."""
        if isinstance(signal, RunRequest):
            loop = describe(self._operator)
            self._life.finish(PipelineError(f"nothing answered the RunRequest: the loop is {loop}"))
        elif not isinstance(signal, Request):
            self._life.finish(no_signal(signal, self._operator))

    def record(self, event: Event) -> Event:
        """Stamp a durable event, fold it and hand it to the log's buffer, but do not deliver it yet.

        Raises:
            InvalidEvent: It cannot be folded.
        """
        return self._record(event, TRAITS[type(event)])

    def _record(self, event: Event, traits: Traits) -> Event:
        place = self._seq, self._sub
        event = self._stamp(event, traits)
        try:
            self._fold(event)
        except Exception as error:
            self._seq, self._sub = place
            if isinstance(error, RxloopError):
                raise
            raise InvalidEvent(f"a `{event.kind}` event that the run cannot take: {error}") from error
        if self.writer is not None:
            self.writer.add(event)
        if traits.drawn:
            self.graph = self.graph.add(event)
        return event

    def check(self, event: Event) -> None:
        """Refuse what only the run itself may say: where it begins and ends. What a run inside it says, passes.

        Raises:
            InvalidEvent: It is that.
        """
        if self._life.phase not in _BEGUN or event.task_id not in ("", self.task_id):
            return
        if isinstance(event, TaskEvent):
            raise InvalidEvent("a `task` event begins a run, and this one has begun: emit an event of another kind")
        if isinstance(event, StatusUpdateEvent) and event.final:
            raise InvalidEvent(
                "a final `status-update` is the end of a run, which only the run itself can tell: return or raise to "
                "end your part, or cancel the run by its handle"
            )

    def _fold(self, event: Event) -> None:
        branch = event.branch
        if branch is None or event.parent_task_id is not None:
            self.states[None] = fold(self.states[None], event)
        else:
            self.states[branch] = fold(self.state(branch), event)
            self.states[None] = fold_beside(self.states[None], event)

    def fold_below(self, event: Event) -> None:
        """Fold an event of a run that is nested in this one."""
        self.states[None] = fold(self.states[None], event)
        if TRAITS[type(event)].drawn:
            self.graph = self.graph.add(event)

    def waits_below(self, branch: str | None, questions: Iterable[str]) -> None:
        """Let the line that has made a call know of the questions of the run that is nested in it."""
        if branch is not None:
            asked = self.states[None].pending
            state = self.state(branch)
            known = {key: asked[key] for key in questions if key in asked}
            self.states[branch] = state.changed(pending={**state.pending, **known})

    def deliver(self, event: Event) -> None:
        """Deliver an event that is recorded."""
        self._deliver(event)

    # -- stamps

    def _stamp(self, event: Event, traits: Traits) -> Event:
        """Write into an event what only its run knows: its numbers, its time, its ids."""
        if event.attempt:
            # Published before, here or in another run: its numbers are those of that time.
            event = event.model_copy()
        fields = stamp(event)
        # Nearly every token is a delta of our own making with plain text: this is all that it costs.
        text = fields.get(traits.text)
        if text is None or not text.isascii() or fields["metadata"] is not EMPTY_DICT:
            settle(event)
        if fields["timestamp"]:
            check_time(fields["timestamp"])
        else:
            fields["timestamp"] = self._now()
        if fields["task_id"] or fields["context_id"]:
            self._adopt(event)
        else:
            fields.update(self._ids)
        if event.durable:
            self._seq += 1
            self._sub = 0
            if traits.refers:
                self._refer(event)  # pyright: ignore[reportArgumentType]
        else:
            self._sub += 1
        fields["seq"] = self._seq
        fields["sub"] = self._sub
        return event

    def _adopt(self, event: Event) -> None:
        """Give an event its ids that has some: that of a nested agent's run, or of another run."""
        fields = stamp(event)
        if fields["task_id"] and fields["task_id"] != self.task_id and fields["parent_task_id"] is None:
            # Another run's event that somebody passes on: it is told here, and is not a part of this run.
            event.check_ids()
            fields["parent_task_id"] = self.task_id
        elif fields["task_id"] and fields["parent_task_id"] not in (None, self.task_id):
            fields["metadata"] = FrozenDict({**fields["metadata"], ROOT: self.task_id})
        own = {name: fields[name] for name in ("task_id", "context_id") if fields[name]}
        fields.update(self._ids | own)

    def _refer(self, event: ThoughtStreamEvent | SubtaskEvent) -> None:
        """Number a thought; and note which of the calls that an event names are not for clients."""
        fields, main = stamp(event), self.states[None]
        named = [event.tool_call_id]
        if isinstance(event, ThoughtStreamEvent):
            if not event.thought_id:
                fields["thought_id"] = main.new_thought_id()
            if event.index < 0:
                fields["index"] = main.thought_count
            named.append(event.related_to)
        hidden = [call for call in named if call is not None and call in main.calls and main.calls[call].hidden]
        if hidden:
            fields["hidden_calls"] = FrozenList(hidden)

    # -- doubt: a process that was frozen does not know that somebody else goes on with its run

    def beware(self, silence: int, doubt: Callable[[], None]) -> None:
        """Deliver nothing after a silence until somebody says that the run is still this process's own.

        A frozen process finds out by its clock: between the last event before the freeze and the first one after it
        there is a gap. The stamp of each event has the time anyway, so that this costs little. A tool that is silent
        for so long is doubted in vain, and its next event comes when the log has answered.

        Args:
            silence: The longest time between two events that raises no doubt, in milliseconds.
            doubt: Called when it was longer; `trust` or `mute` has to follow.
        """
        self._last, self._silence, self._doubt = self.clock.now(), silence, doubt
        self._now = self._wary_now

    def _wary_now(self) -> int:
        now = self.clock.now()
        if now - self._last > self._silence:
            self._hold()
        self._last = now
        return now

    def _hold(self) -> None:
        if self._deliver == self.hub.publish and self._doubt is not None:
            self._deliver = self._held.append
            self._doubt()

    def trust(self) -> None:
        """Deliver what was held, and what comes."""
        if self._deliver == self._held.append:
            while self._held:
                self.hub.publish(self._held.pop(0))
            self._deliver = self.hub.publish

    def mute(self) -> None:
        """Deliver nothing more: the run is somebody else's, or nobody can know how it goes on."""
        self._held.clear()
        self._deliver = _drop

    # -- order

    def _is_misplaced(self, event: Event, traits: Traits) -> bool:
        """Whether an event cannot come now, which ends the run: what it says did not happen, or not so."""
        state = self.states.get(event.branch)
        if state is None or traits.rule is None:
            return False
        wrong = traits.rule(state, event)
        if wrong is None and not traits.begins:
            return False
        if event.parent_task_id is not None or event.task_id not in ("", self.task_id):
            return False
        if wrong is None and isinstance(event, ToolStartEvent):
            # Not in the fold: what an earlier attempt has begun, this one may begin again.
            slot = (event.step or "", event.index)
            if slot in self._started:
                wrong = f"call {event.index} of step {event.step} begins twice"
            self._started.add(slot)
        # A thread may still say how far it is when its call is over: that harms nobody, and nobody needs it.
        if wrong is not None and not isinstance(event, ToolProgressEvent):
            self._life.finish(unordered(wrong, self._operator))
        return wrong is not None

    # -- earlier attempts

    def _is_recorded(self, event: Event) -> bool:
        """Whether the log has it from an earlier attempt: answered from there, or made once more by a strategy."""
        if event.attempt and event.attempt < self.attempt:
            return event.task_id == self.task_id
        return self.earlier.has(event)

    def _repeat(self, event: Event) -> None:
        """Fold a recorded event on a line that runs again; the main line has it already."""
        if not 0 < event.attempt < self.attempt:
            self.earlier.take(event)
        if event.branch is None:
            return
        state = self.state(event.branch)
        if isinstance(event, ContentCompleteEvent):
            # Its `llm-call` does not come again.
            state = replace(state, iteration=state.iteration + 1)
        self.states[event.branch] = fold(state, event)

    # -- the log

    def durable_now(self) -> int | None:
        """The last `seq` in the log, if everything that is published is there or can be written without waiting."""
        return None if self.writer is None else self.writer.flush_now()

    async def durable(self) -> int | None:
        """Wait until everything that is published is in the log."""
        return None if self.writer is None else await self.writer.flush()
