"""Event publication: stamping, folding, storing and delivering."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from threading import get_ident
from typing import TYPE_CHECKING

from rxloop.coordination.lease import DeliveryGate
from rxloop.errors import InvalidEvent, RxloopError
from rxloop.operators.loop.checks import find_signal_error, make_order_error
from rxloop.pipeline.requests import Operator
from rxloop.protocol.events import ContentCompleteEvent, Event, ToolProgressEvent, ToolStartEvent
from rxloop.protocol.model import mutable_fields
from rxloop.run.lifetime import Lifetime, Phase
from rxloop.run.stamp import EVENT_PROPERTIES, EventProperties, EventStamp, check_publisher, fill_references
from rxloop.state.earlier_attempts import EarlierAttempts, no_attempts
from rxloop.state.fold import fold, fold_other_branch
from rxloop.state.run_state import RunState
from rxloop.stream.hub import Hub
from rxloop.thinking.graph import ThoughtGraph

if TYPE_CHECKING:
    from rxloop.run.log_writer import LogWriter

log = logging.getLogger("rxloop")

_ACCEPTING = (Phase.OPEN, Phase.ANNOUNCING)
_STARTED_PHASES = (Phase.OPEN, Phase.CLOSED, Phase.OVER)
_NO_THOUGHTS = ThoughtGraph()
"""Initial graph, shared between runs because graphs are immutable."""


class Recorder:
    """Event stream and state of an attempt.

    Publishing happens for every token, so avoid function calls here.
    """

    def __init__(
        self, stamp: EventStamp, hub: Hub, delivery: DeliveryGate, operator: Operator, lifetime: Lifetime
    ) -> None:
        """Create an empty recorder.

        Args:
            stamp: Stamp for numbers, ids and timestamps.
            hub: Event subject of the run.
            delivery: Gate in front of the hub.
            operator: Loop of the run, for error messages.
            lifetime: Lifetime of the attempt, which is ended by invalid events.
        """
        self.task_id = stamp.task_id
        self.attempt = 1
        """Attempt number, starting from 1."""
        self.stamp = stamp
        self.hub = hub
        self.delivery = delivery
        self.writer: LogWriter | None = None
        """Event log writer, or None if the run has no log."""
        self.earlier: EarlierAttempts = no_attempts()
        self._request_texts: set[str] | None = None
        self.graph = _NO_THOUGHTS
        self.states: dict[str | None, RunState] = {None: self.earlier.state}
        """Current states, keyed by branch. None is the main branch."""
        self._operator = operator
        self._lifetime = lifetime

    def state(self, branch: str | None = None) -> RunState:
        """Return the state of a branch. New branches start from the main branch's state.

        When resuming, a branch starts from its recorded state instead, so that its strategy sees the same state again.
        """
        main = self.states[None]
        if branch is None:
            return main
        state = self.states.get(branch)
        if state is None:
            state = self.states[branch] = self.earlier.branch_states.get(branch) or main.create_branch()
        return state.with_run_values(main)

    @property
    def context_id(self) -> str:
        """Conversation id."""
        return self.stamp.ids["context_id"]

    @property
    def top(self) -> Recorder:
        """Recorder of the outermost run, which publishes all nested events."""
        return self

    @property
    def request_texts(self) -> set[str]:
        """Digests of recorded texts, shared with nested runs."""
        if self.top is not self:
            return self.top.request_texts
        if self._request_texts is None:
            self._request_texts = set(self.earlier.request_texts)
        return self._request_texts

    @property
    def is_accepting(self) -> bool:
        """True while accepting events."""
        return self._lifetime.phase in _ACCEPTING

    @property
    def has_events(self) -> bool:
        """True if any attempt has recorded an event."""
        return self.stamp.numbering.seq > 0

    def resume(self, earlier: EarlierAttempts, graph: ThoughtGraph, attempt: int) -> None:
        """Continue from earlier attempts.

        Args:
            earlier: Recorded events and state of earlier attempts.
            graph: Thought graph of earlier attempts.
            attempt: Number of the new attempt.
        """
        self.earlier = earlier
        self.attempt = self.stamp.ids["attempt"] = attempt
        self.states[None] = earlier.state
        self.graph = graph
        self.stamp.numbering.seq = earlier.state.seq

    def publish(self, event: Event) -> None:
        """Stamp, fold, buffer and deliver an event without waiting.

        Subscribers may receive the event before it is logged; use `durable` to wait. Misplaced events end the run.

        Args:
            event: Event to publish, or any object the loop emitted by mistake.

        Raises:
            InvalidEvent: The event isn't allowed now.
        """
        lifetime = self._lifetime
        if get_ident() != lifetime.thread:
            lifetime.finish_from_thread()
            return
        properties = EVENT_PROPERTIES[type(event)]
        if not properties.is_event:
            error = find_signal_error(event, self._operator)
            if error is not None:
                lifetime.finish(error)
            return
        if self.attempt > 1 and self.earlier.contains(event, self.task_id, self.attempt):
            self._repeat(event)
            return
        if lifetime.phase not in _ACCEPTING:
            log.debug("Dropping %r, because the run has ended", event)
            return
        # Avoid another function call for main branch tokens.
        fits = properties.text and event.step == self.states[None].open_step and event.branch is None
        rule = None if fits else properties.rule
        if rule is not None and (state := self.states.get(event.branch)) is not None:
            order_error = rule(state, event)
            if order_error is not None or properties.find_repetition is not None:
                order_error = self.stamp.check_own_event(order_error, state, event, properties)
                if order_error is not None:
                    self._reject(event, order_error)
                    return
                if state.failure is not None and properties.find_repetition is not None:
                    self._close_failed_call(event, state)
        if properties.durable:
            if properties.is_reserved:
                self.check(event)
            event = self._record(event, properties)
        else:
            stamped = self.stamp.apply(event, properties)
            if stamped is not event and properties.text and event.task_id == self.task_id:
                self._reject(event, f"{event.kind} of step {event.step} emitted twice")
                return
            event = stamped
            if self.writer is not None:
                self.writer.add(event)
        self.delivery.deliver(event)

    def _close_failed_call(self, event: Event, state: RunState) -> None:
        """Close the failed call of another step on this branch that no operator repeated or answered."""
        if state.open_step in (None, event.step) or isinstance(event, ToolStartEvent):
            return
        if event.parent_task_id is None and event.task_id in ("", self.task_id):
            self.delivery.deliver(self.record(self.cancel_message(event.branch)))

    def cancel_message(self, branch: str | None) -> ContentCompleteEvent:
        """Create the event that closes the open message of a branch."""
        step = self.states[branch].open_step
        text = self.hub.get_open_text(self.task_id, step)
        return ContentCompleteEvent(step=step, branch=branch, content=text, finish_reason="canceled")

    def _reject(self, event: Event, order_error: str) -> None:
        # Threads may report progress after their call has ended, so just drop such events.
        if not isinstance(event, ToolProgressEvent):
            self._lifetime.finish(make_order_error(order_error, self._operator))

    def record(self, event: Event) -> Event:
        """Stamp, fold and buffer a durable event without delivering it.

        Raises:
            InvalidEvent: Folding the event failed.
        """
        return self._record(event, EVENT_PROPERTIES[type(event)])

    def _record(self, event: Event, properties: EventProperties) -> Event:
        numbering = self.stamp.numbering
        seq, sub = numbering.seq, numbering.sub
        event = self.stamp.apply(event, properties)
        if properties.has_references:
            fill_references(event, self.states[None])  # pyright: ignore[reportArgumentType]
        try:
            self.fold(event)
        except Exception as error:
            numbering.seq, numbering.sub = seq, sub
            if isinstance(error, RxloopError):
                raise
            raise InvalidEvent(f"cannot apply the `{event.kind}` event to the run: {error}") from error
        if self.writer is not None:
            self.writer.add(event)
        if properties.in_graph:
            self.graph = self.graph.add(event)
        return event

    def check(self, event: Event) -> None:
        """Reject events reserved for the run itself. Events from nested runs are allowed.

        Raises:
            InvalidEvent: The event starts or ends this run.
        """
        if self._lifetime.phase in _STARTED_PHASES and event.task_id in ("", self.task_id):
            check_publisher(event)

    def fold(self, event: Event) -> None:
        """Fold a stamped event into the state of its branch."""
        branch = event.branch
        if branch is None or event.parent_task_id is not None:
            self.states[None] = fold(self.states[None], event)
        else:
            self.states[branch] = fold(self.state(branch), event)
            self.states[None] = fold_other_branch(self.states[None], event)

    def fold_nested(self, event: Event) -> None:
        """Fold an event from a nested run."""
        self.states[None] = fold(self.states[None], event)
        if EVENT_PROPERTIES[type(event)].in_graph:
            self.graph = self.graph.add(event)

    def add_nested_questions(self, branch: str | None, questions: Iterable[str]) -> None:
        """Add a nested run's pending questions to the branch that started it."""
        if branch is not None:
            pending = self.states[None].pending
            state = self.state(branch)
            added = {key: pending[key] for key in questions if key in pending}
            self.states[branch] = state.replace(pending={**state.pending, **added})

    def guard(self, max_silence: int, on_doubt: Callable[[], None]) -> None:
        """Hold events after any gap exceeding `max_silence` milliseconds; see `DeliveryGate.guard`."""
        self.stamp.numbering.now = self.delivery.guard(max_silence, on_doubt)

    def _repeat(self, event: Event) -> None:
        """Fold a recorded event into its branch. The main branch's state already includes it.

        Not delivered again, because subscribers read past events from the log, or through `RunHold.events`.
        """
        self.earlier.count_recreated(event, self.attempt)
        # Operators have passed the event, although it is not published again.
        mutable_fields(event)["attempt"] = event.attempt or self.attempt
        if event.branch is None:
            return
        state = self.state(event.branch)
        if isinstance(event, ContentCompleteEvent):
            # Iterations are counted by `llm-call` events, which aren't repeated.
            state = replace(state, iteration=state.iteration + 1)
        self.states[event.branch] = fold(state, event)

    def durable_now(self) -> int | None:
        """Return the last logged `seq`, or None if logging the published events requires waiting."""
        return None if self.writer is None else self.writer.flush_now()

    async def durable(self) -> int | None:
        """Wait until all published events have been logged, and return the last `seq`."""
        return None if self.writer is None else await self.writer.flush()
