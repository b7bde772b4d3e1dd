"""Attempt of a run, which operators and tools use through the `Host` interface."""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from reactivex.abc import DisposableBase
from reactivex.disposable import SerialDisposable

from rxloop.coordination.lease import DeliveryGate
from rxloop.errors import InvalidEvent
from rxloop.operators.loop.checks import make_stuck_error
from rxloop.operators.loop.compose import describe
from rxloop.operators.loop.model_exchange import mark_hidden
from rxloop.pipeline.host import ModelCall
from rxloop.pipeline.interfaces import Tool
from rxloop.pipeline.requests import ModelRequest, ToolRequest
from rxloop.pipeline.run_context import AttemptInfo, RunContext
from rxloop.protocol.events import (
    ContentCompleteEvent,
    Event,
    ThoughtStreamEvent,
    ToolCompleteEvent,
)
from rxloop.protocol.messages import Message, PendingInput
from rxloop.run.final_events import OpenWork
from rxloop.run.lifetime import Canceled, Lifetime
from rxloop.run.offered_tools import AttemptTools, RequestBuilder
from rxloop.run.questions.asking import Questions
from rxloop.run.questions.open_questions import Place
from rxloop.run.recorder import Recorder
from rxloop.run.spec import RunSpec
from rxloop.run.stamp import EventStamp, Numbering
from rxloop.state.earlier_attempts import EarlierAttempts
from rxloop.state.history import Slot
from rxloop.state.run_state import COMMAND_ID
from rxloop.stream.hub import Hub
from rxloop.stream.scope import Scope
from rxloop.stream.watchdog import Watchdog
from rxloop.support.tasks import CLOCK, Clock

if TYPE_CHECKING:
    from rxloop.coordination.inbox import Inbox
    from rxloop.coordination.lease import Lease
    from rxloop.pipeline.artifacts import Writes

log = logging.getLogger("rxloop")


class Attempt:
    """Single attempt of a run. Tasks only refer to the attempt, so that dropping the run's handle can end it.

    `life` tracks its phase, `recorder` publishes its events, and `lifecycle` executes it.
    """

    # With over 30 attributes, Python would give each instance its own 1,800 byte dict.
    __slots__ = (
        "__weakref__",
        "_writes",
        "claimed_slots",
        "created_at",
        "credentials",
        "durable",
        "durable_now",
        "earlier_events",
        "final",
        "grace_factor",
        "holders",
        "id_in_use",
        "inbox",
        "info",
        "initial_events",
        "is_observed",
        "lease",
        "life",
        "nested",
        "open_call",
        "publish",
        "questions",
        "recorder",
        "refusal",
        "requests",
        "skipped_commands",
        "spec",
        "state",
        "steering",
        "subscription",
        "tools",
        "unpublished_messages",
    )

    def __init__(self, spec: RunSpec) -> None:
        self.spec = spec
        self.grace_factor = 1.0
        """Fraction of the normal grace period for cancelled work."""
        self.life = Lifetime(spec.task_id, spec.loop)
        clock = CLOCK.get()
        self.recorder = self.make_recorder(clock)
        # Bound here to make publishing a single call.
        self.publish = self.recorder.publish
        self.state = self.recorder.state
        self.durable = self.recorder.durable
        self.durable_now = self.recorder.durable_now
        self.info = self._make_info(clock, Scope(self.life.fail, self.life.time_scope), spec.metadata)
        self.use_spec(spec)
        self.earlier_events: Sequence[Event] = ()
        """Events preceding this attempt: those copied by a fork, or the `task` event of a submitted run."""
        self.initial_events: Iterable[Event] = ()
        """Events published right after starting: answers when resuming, or changes when forking."""
        self.skipped_commands = 0
        """Highest number among initial commands that produced no event, or 0."""
        self.inbox: Inbox | None = None
        """Inbox for commands, or None if the run has no log."""
        self.lease: Lease | None = None
        """Conversation lease, or None if the run has no log."""
        self.subscription = SerialDisposable()
        """Subscription to the pipeline."""
        self.holders: set[object] = set()
        """Objects keeping the run alive without its handle."""
        self.final: Event | None = None
        """Final event, set once the attempt has ended."""
        self.refusal: Exception | None = None
        """Error that prevented the attempt from starting."""
        self.is_observed = False
        """True once the outcome has been observed. Unobserved failures are logged."""
        self.unpublished_messages: list[Event] = []
        """Messages sent before the run started."""
        self.steering: DisposableBase | None = None
        """Subscription to the steering messages."""
        self.open_call: ModelCall | None = None
        self.nested: tuple[Attempt, ...] = ()
        """Nested runs started by tool calls."""
        self.id_in_use = False
        """True if this process is already running another run under the same id."""
        self.created_at: tuple[str, int] | None = None
        """File name and line number where the run was created."""
        self.credentials: dict[str, Any] = {}
        """Credentials passed when starting, keyed by question id. They are kept in memory until used."""
        self.questions = Questions(spec.on_input, self.credentials, Place(self.info.scope, self.life.time_scope))
        self.claimed_slots: set[Slot] = set()
        """Tool calls already claimed by this attempt."""
        self._writes: Writes | None = None
        if spec.cancel is not None:
            self.life.finish(Canceled(spec.cancel, code=spec.cancel_code))

    def use_spec(self, spec: RunSpec) -> None:
        """Replace the specification, before any request is sent."""
        self.spec = spec
        self.info = self._make_info(self.info.clock, self.info.scope, self.info.metadata)
        self.tools = AttemptTools(spec.tools, self.recorder)
        self.requests = RequestBuilder(spec, self.tools, self.recorder)

    def _make_info(self, clock: Clock, scope: Scope, metadata: dict[str, Any]) -> AttemptInfo:
        spec = self.spec
        return AttemptInfo(
            ids=self.recorder.stamp.ids,
            agent_name=spec.agent_name,
            model=spec.model,
            log=spec.log,
            limits=spec.limits,
            thought_limit=spec.thought_limit,
            metadata=metadata,
            clock=clock,
            scope=scope,
            time_scope=self.life.time_scope,
            describe_loop=partial(describe, spec.loop),
            answers_inline=spec.on_input is not None,
            resolve_model=spec.provider,
        )

    def make_recorder(self, clock: Clock) -> Recorder:
        """Create the recorder for this attempt."""
        spec, hub = self.spec, Hub()
        stamp = EventStamp(spec.task_id, spec.context_id, Numbering(clock.now))
        return Recorder(stamp, hub, DeliveryGate(hub.publish, clock), spec.loop, self.life)

    # -- properties of the run

    @property
    def task_id(self) -> str:
        return self.spec.task_id

    @property
    def context_id(self) -> str:
        return self.recorder.context_id

    @property
    def resumed(self) -> bool:
        """True if the run was started by an earlier attempt."""
        return self.recorder.attempt > 1

    @property
    def first_attempt(self) -> int:
        """Attempt number of the first event in the stream."""
        return self.earlier_events[0].attempt if self.earlier_events else self.recorder.attempt

    def artifact_writes(self) -> Writes:
        """Return the shared artifact writes, backed by the agent's store, the log's store, or memory."""
        if self._writes is None:
            # Imported here because few runs write artifacts.
            from rxloop.pipeline.artifacts import Writes
            from rxloop.storage.memory_artifacts import MemoryArtifacts

            log = self.spec.log
            log_store = log.artifacts if log is not None else None
            agent_store = self.spec.artifacts
            self._writes = Writes(agent_store or log_store or MemoryArtifacts(), given=agent_store is not None)
        return self._writes

    @property
    def system(self) -> tuple[Message, ...]:
        """Layers of the system prompt defined by the agent."""
        return self.requests.system

    @property
    def earlier(self) -> EarlierAttempts:
        """Unfinished work left by earlier attempts."""
        return self.recorder.earlier

    def context(self) -> RunContext[Any]:
        """Return the context for the main branch."""
        return RunContext(self.spec.deps, self)

    # -- events from the loop

    def emit(self, event: Event, out: Callable[[Event], None] | None) -> None:
        """Pass an event to `out`, or publish it if None. Can be called from any thread.

        Raises:
            InvalidEvent: The event isn't allowed now.
        """
        # Check here too, so that errors are raised in the emitting thread.
        self.recorder.check(event)
        if event.metadata and COMMAND_ID in event.metadata and event.task_id in ("", self.task_id):
            raise InvalidEvent(f"{COMMAND_ID!r} in metadata is reserved for commands. Use another key.")
        self.life.call_in_loop(out or self.publish, event)

    def watch(self) -> None:
        """Start a watchdog to end the attempt when stuck."""
        Watchdog(self.task_id, self.info.scope, lambda: not self.life.is_ending, self._stuck)

    def _stuck(self) -> None:
        self.life.finish(make_stuck_error(self.state(), self.spec.loop))

    # -- steering

    @property
    def unheard(self) -> bool:
        """True if messages are waiting for a request, and the run can still continue."""
        state = self.recorder.states[None]
        call_in_loop = threading.get_ident() == self.life.thread
        return bool(state.unread_count) and not state.pending and not self.life.is_ending and call_in_loop

    def cut_off(self, step: str) -> Sequence[Event]:
        """Return events closing the interrupted message, and any thought inside it."""
        hub = self.recorder.hub
        thought = hub.get_open_thought(self.task_id, step)
        text = hub.get_open_text(self.task_id, step)
        message = ContentCompleteEvent(step=step, content=text, reasoning=thought or None, finish_reason="interrupted")
        if not thought:
            return [message]
        return [ThoughtStreamEvent(step=step, content=thought, source="reasoning", incomplete=True), message]

    # -- open work

    @property
    def _open_work(self) -> OpenWork:
        # Created on demand, because caching it would form a reference cycle.
        return OpenWork(self.recorder, self.tools.is_idempotent)

    def close_abandoned(self, ctx: RunContext[Any]) -> None:
        """Close the open message or call after its subscription was disposed early."""
        if self.recorder.is_accepting:
            for event in self._open_work.close_context(ctx):
                self.publish(event)

    def close_open_work(self) -> Iterator[Event]:
        """Return events closing every open message and call."""
        return self._open_work.ends()

    @property
    def has_unrepeatable_call(self) -> bool:
        """True while executing a call that can't be repeated, including calls in nested runs."""
        return any(child.has_unrepeatable_call for child in self.nested) or self._open_work.has_unrepeatable_call

    # -- messages and answers

    def prepare_messages(self, messages: Sequence[Message]) -> list[Message]:
        """Prepare the initial messages: assign missing ids, and mark hidden calls."""
        return [self._prepare_message(message, index) for index, message in enumerate(messages)]

    def _prepare_message(self, message: Message, index: int) -> Message:
        changes: dict[str, Any] = {}
        if message.message_id is None:
            changes["message_id"] = f"{self.task_id}:input:{index}"
        if any(self.tools.hides(call.name) and not call.hidden for call in message.tool_calls):
            changes["tool_calls"] = tuple(mark_hidden(call, self.tools) for call in message.tool_calls)
        return message.model_copy(update=changes) if changes else message

    def try_parse(self, content: str) -> tuple[Any, str | None]:
        """Parse an answer as the output type. Return the value, and an error message if that fails."""
        try:
            return self.spec.parse(content), None
        except ValueError as error:
            shown = content if len(content) <= 200 else content[:200] + "..."
            return None, f"the answer {shown!r} does not fit the output type: {error}"

    async def ask(self, ctx: RunContext[Any], question: PendingInput, read: Callable[[Any], Any]) -> Any:
        """Ask the user or client."""
        if ctx.asked_for is not None:
            await ctx.asked_for()
        return await self.questions.ask(ctx, question, read, self.recorder.earlier.questions)

    def build_request(
        self, ctx: RunContext[Any], iteration: int, pressure: int
    ) -> ModelRequest | Awaitable[ModelRequest]:
        """Build the next model request."""
        return self.requests.build(ctx, iteration, pressure)

    # -- results of earlier attempts

    def recorded_outcome(self, request: ToolRequest, tool: Tool | str) -> ToolCompleteEvent | None:
        """Return the tool result that follows from an unused recorded answer, or None."""
        if not self.recorder.earlier.undecided:
            return None
        # Imported here because few runs are resumed at a question.
        from rxloop.run.questions.recorded_answers import recorded_outcome

        return recorded_outcome(self.recorder, self.questions.read, request, tool)

    def claim(self, slot: Slot) -> bool:
        """Claim a call before executing it. Return False if already claimed, or if the attempt is ending."""
        if self.life.is_ending:
            return False
        if slot in self.claimed_slots:
            log.warning("Call %s of step %s was requested twice, executing it once", slot[1], slot[0])
            return False
        self.claimed_slots.add(slot)
        return True
