"""Stamp, fold, record and deliver the events of an attempt."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from threading import get_ident
from typing import TYPE_CHECKING, Any

from rxloop.errors import InvalidEvent, PipelineError, RxloopError
from rxloop.operators.loop.checks import no_signal, unordered
from rxloop.operators.loop.compose import describe
from rxloop.pipeline.requests import Operator, Request, RunRequest
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
    normalise,
)
from rxloop.protocol.model import EMPTY_DICT, FrozenDict, FrozenList, stamp
from rxloop.run.event_traits import TRAITS, Traits
from rxloop.run.life import Life, Phase
from rxloop.state.earlier_attempts import EarlierAttempts, no_attempts
from rxloop.state.fold import fold, fold_beside
from rxloop.state.history import Slot
from rxloop.state.run_state import RunState
from rxloop.stream.hub import Hub
from rxloop.support.tasks import CLOCK, Clock
from rxloop.thinking.graph.thought_graph import ThoughtGraph

if TYPE_CHECKING:
    from rxloop.run.log_writer import LogWriter

log = logging.getLogger("rxloop")

_TAKING = (Phase.OPEN, Phase.ANNOUNCING)
_BEGUN = (Phase.OPEN, Phase.CLOSED, Phase.OVER)
_NO_THOUGHTS = ThoughtGraph()
"""Initial graph of every run. Graphs are immutable."""


def _drop(event: Event) -> None:
    log.debug("%r came when the run was somebody else's", event)


class Recorder:
    """Event stream and state of one attempt.

    `publish` is called for every token, so it makes as few calls as possible.
    """

    def __init__(self, task_id: str, context_id: str, operator: Operator, life: Life) -> None:
        """Create a recorder without events.

        Args:
            task_id: Id of the run.
            context_id: Id of the conversation.
            operator: Loop of the run, for error messages.
            life: Life cycle of the attempt. An invalid event from the loop ends it.
        """
        self.task_id = task_id
        self.attempt = 1
        """Number of the current attempt, starting from 1."""
        self.hub = Hub()
        self.clock: Clock = CLOCK.get()
        self.writer: LogWriter | None = None
        """Writer of the event log, or None if the run has no log."""
        self.earlier: EarlierAttempts = no_attempts()
        self.graph = _NO_THOUGHTS
        self.states: dict[str | None, RunState] = {None: self.earlier.state}
        """State of the main branch (None) and of each other branch."""
        self._operator = operator
        self._life = life
        self._ids: dict[str, Any] = {"attempt": 1, "task_id": task_id, "context_id": context_id}
        """Ids that are written into most events."""
        self._seq = 0
        self._sub = 0
        self._started: set[Slot] = set()
        self._deliver: Callable[[Event], None] = self.hub.publish
        self._now = self.clock.now
        self._last = self._silence = 0
        self._doubt: Callable[[], None] | None = None
        # An empty deque would take 600 bytes per run, so use a list.
        self._held: list[Event] = []

    def state(self, branch: str | None = None) -> RunState:
        """Return the state of a branch. A new branch starts from the state of the main branch.

        A branch of an earlier attempt starts from its recorded state, so that the strategy sees the same state again.
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
        """Id of the conversation."""
        return self._ids["context_id"]

    @context_id.setter
    def context_id(self, context_id: str) -> None:
        self._ids["context_id"] = context_id

    @property
    def top(self) -> Recorder:
        """Recorder of the outermost run, which publishes the events of nested runs."""
        return self

    @property
    def taking(self) -> bool:
        """True if the recorder accepts events."""
        return self._life.phase in _TAKING

    @property
    def begun(self) -> bool:
        """True if this attempt or an earlier one has recorded an event."""
        return self._seq > 0

    def go_on(self, earlier: EarlierAttempts, graph: ThoughtGraph, attempt: int) -> None:
        """Continue a run as the given attempt.

        Args:
            earlier: Events and state of the earlier attempts.
            graph: Thought graph of the earlier attempts.
            attempt: Number of this attempt.
        """
        self.earlier = earlier
        self.attempt = self._ids["attempt"] = attempt
        self.states[None] = earlier.state
        self.graph = graph
        self._seq = earlier.state.seq

    def publish(self, event: Event) -> None:
        """Stamp an event, fold it, add it to the log's buffer and deliver it, without waiting.

        Args:
            event: Event to publish, or another object that the loop emitted by mistake.

        Raises:
            InvalidEvent: The event is not allowed now.
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
            # Avoid a function call for each token of the main branch.
            fits = traits.text and event.step == self.states[None].open_step and event.branch is None
            if not fits and self._is_misplaced(event, traits):
                return
            event = self._stamp(event, traits)
            if self.writer is not None:
                self.writer.add(event)
        self._deliver(event)

    def _take_other(self, signal: object) -> None:
        """End the attempt if the loop emitted an unanswered or unknown signal."""
        if isinstance(signal, RunRequest):
            loop = describe(self._operator)
            self._life.finish(PipelineError(f"nothing answered the RunRequest: the loop is {loop}"))
        elif not isinstance(signal, Request):
            self._life.finish(no_signal(signal, self._operator))

    def record(self, event: Event) -> Event:
        """Stamp a durable event, fold it and add it to the log's buffer without delivering it.

        Raises:
            InvalidEvent: The event cannot be folded.
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
        """Reject events that only the run itself may publish. Events of nested runs are accepted.

        Raises:
            InvalidEvent: The event starts or ends this run.
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
        """Fold an event of a nested run."""
        self.states[None] = fold(self.states[None], event)
        if TRAITS[type(event)].drawn:
            self.graph = self.graph.add(event)

    def waits_below(self, branch: str | None, questions: Iterable[str]) -> None:
        """Add the pending questions of a nested run to the branch that started it."""
        if branch is not None:
            asked = self.states[None].pending
            state = self.state(branch)
            known = {key: asked[key] for key in questions if key in asked}
            self.states[branch] = state.changed(pending={**state.pending, **known})

    def deliver(self, event: Event) -> None:
        """Deliver a recorded event."""
        self._deliver(event)

    # -- stamps

    def _stamp(self, event: Event, traits: Traits) -> Event:
        """Write the sequence numbers, timestamp and ids into an event."""
        if event.attempt:
            # The event was published before, so change only a copy.
            event = event.model_copy()
        fields = stamp(event)
        # Most tokens are deltas in ASCII without metadata, which need no normalisation.
        text = fields.get(traits.text)
        if text is None or not text.isascii() or fields["metadata"] is not EMPTY_DICT:
            normalise(event)
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
        """Set the ids of an event that already has some, because a nested or foreign run published it."""
        fields = stamp(event)
        if fields["task_id"] and fields["task_id"] != self.task_id and fields["parent_task_id"] is None:
            # A forwarded event of another run: publish it as the event of a nested run.
            event.check_ids()
            fields["parent_task_id"] = self.task_id
        elif fields["task_id"] and fields["parent_task_id"] not in (None, self.task_id):
            fields["metadata"] = FrozenDict({**fields["metadata"], ROOT: self.task_id})
        own = {name: fields[name] for name in ("task_id", "context_id") if fields[name]}
        fields.update(self._ids | own)

    def _refer(self, event: ThoughtStreamEvent | SubtaskEvent) -> None:
        """Set the id and index of a thought and list the hidden calls that an event refers to."""
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

    # -- doubt: while a process is frozen, another process can take over its run

    def beware(self, silence: int, doubt: Callable[[], None]) -> None:
        """After a long silence, hold events until the lease of this process is confirmed.

        A gap between the timestamps of two events shows that the process may have been frozen. A slow tool causes the
        same gap, and its next event is delivered as soon as the log confirms the lease.

        Args:
            silence: Longest accepted gap between two events, in milliseconds.
            doubt: Called after a longer gap. The callee must call `trust` or `mute` later.
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
        """Deliver the held events and all later ones."""
        if self._deliver == self._held.append:
            while self._held:
                self.hub.publish(self._held.pop(0))
            self._deliver = self.hub.publish

    def mute(self) -> None:
        """Drop the held events and all later ones, because this process no longer owns the run or cannot record it."""
        self._held.clear()
        self._deliver = _drop

    def _is_misplaced(self, event: Event, traits: Traits) -> bool:
        """Return True if an event is out of order, and end the attempt unless it is a progress report."""
        state = self.states.get(event.branch)
        if state is None or traits.rule is None:
            return False
        wrong = traits.rule(state, event)
        if wrong is None and not traits.begins:
            return False
        if event.parent_task_id is not None or event.task_id not in ("", self.task_id):
            return False
        if wrong is None and isinstance(event, ToolStartEvent):
            # The state cannot detect this, because an attempt may restart calls of earlier attempts.
            slot = (event.step or "", event.index)
            if slot in self._started:
                wrong = f"call {event.index} of step {event.step} begins twice"
            self._started.add(slot)
        # A thread can still report progress after its call has ended, so only drop such an event.
        if wrong is not None and not isinstance(event, ToolProgressEvent):
            self._life.finish(unordered(wrong, self._operator))
        return wrong is not None

    def _is_recorded(self, event: Event) -> bool:
        """True if an earlier attempt recorded this event, which is now replayed or created again by a strategy."""
        if event.attempt and event.attempt < self.attempt:
            return event.task_id == self.task_id
        return self.earlier.has(event)

    def _repeat(self, event: Event) -> None:
        """Fold a recorded event into its branch. The state of the main branch already contains it."""
        if not 0 < event.attempt < self.attempt:
            self.earlier.take(event)
        if event.branch is None:
            return
        state = self.state(event.branch)
        if isinstance(event, ContentCompleteEvent):
            # The `llm-call` event, which counts the iterations, is not repeated.
            state = replace(state, iteration=state.iteration + 1)
        self.states[event.branch] = fold(state, event)

    def durable_now(self) -> int | None:
        """Return the last `seq` in the log, or None if writing all published events requires waiting."""
        return None if self.writer is None else self.writer.flush_now()

    async def durable(self) -> int | None:
        """Wait until all published events are in the log, and return its last `seq`."""
        return None if self.writer is None else await self.writer.flush()
