"""Single attempt of a run, accessed by operators and tools using the `Host` interface."""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from reactivex.abc import DisposableBase
from reactivex.disposable import SerialDisposable

from rxloop.coordination.lease import DeliveryGate
from rxloop.errors import InvalidEvent
from rxloop.operators.exchange.model_exchange import mark_hidden
from rxloop.operators.loop.checks import make_stuck_error, make_unknown_call_error
from rxloop.operators.loop.compose import describe
from rxloop.operators.loop.work_budget import WorkBudget
from rxloop.pipeline.host import ModelCall
from rxloop.pipeline.interfaces import Tool
from rxloop.pipeline.requests import ModelRequest, ToolRequest
from rxloop.pipeline.run_context import AttemptInfo, RunContext
from rxloop.pipeline.sent.requests import SentRequests
from rxloop.protocol.envelope import RESERVED_METADATA
from rxloop.protocol.events import (
    ContentCompleteEvent,
    Event,
    ThoughtStreamEvent,
    ToolCompleteEvent,
)
from rxloop.protocol.messages import Message, PendingInput
from rxloop.protocol.model import EMPTY_DICT
from rxloop.run.final_events import OpenWork
from rxloop.run.lifetime import Canceled, Lifetime
from rxloop.run.offered_tools import AttemptTools, RequestBuilder
from rxloop.run.questions.open_questions import Position
from rxloop.run.questions.registry import Questions
from rxloop.run.recorder import Recorder
from rxloop.run.spec import RunSpec
from rxloop.run.stamp import EventStamp, Numbering
from rxloop.state.earlier_attempts import EarlierAttempts
from rxloop.state.history import Slot
from rxloop.state.run_state import RunState
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

    `lifetime` tracks its phase, `recorder` publishes its events, and `lifecycle` executes it.
    """

    # Slots, because an instance dict for over 30 attributes would take 1,800 bytes.
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
        "fork_fields",
        "grace_factor",
        "holders",
        "id_in_use",
        "inbox",
        "info",
        "initial_events",
        "is_observed",
        "lease",
        "lifetime",
        "nested",
        "open_call",
        "publish",
        "questions",
        "recorder",
        "recursive_sends",
        "refusal",
        "requests",
        "sent_requests",
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
        self.lifetime = Lifetime(spec.task_id, spec.loop)
        clock = CLOCK.get()
        self.recorder = self.make_recorder(clock)
        self.sent_requests = SentRequests(self.recorder, is_recorded=spec.record_requests)
        # Bound here to make publishing a single call.
        self.publish = self.recorder.publish
        self.state = self.recorder.state
        self.durable = self.recorder.durable
        self.durable_now = self.recorder.durable_now
        self.info = self._make_info(clock, Scope(self.lifetime.fail, self.lifetime.time_scope), spec.metadata)
        self.use_spec(spec)
        self.earlier_events: Sequence[Event] = ()
        """Events before this attempt, either copied by a fork or the `task` event of a submitted run."""
        self.initial_events: Iterable[Event] = ()
        """Events published right after starting: answers when resuming, or changes when forking."""
        self.fork_fields: Mapping[str, Any] = EMPTY_DICT
        """Fields of the first event of a fork, about its copied calls and questions."""
        self.skipped_commands = 0
        """Highest number among initial commands that produced no event, or 0."""
        self.inbox: Inbox | None = None
        """Command inbox. None for runs without a log."""
        self.lease: Lease | None = None
        """Conversation lease, or None if the run has no log."""
        self.subscription = SerialDisposable()
        """Subscription to the pipeline."""
        self.holders: set[object] = set()
        """References that keep the run alive, even if its handle is dropped."""
        self.final: Event | None = None
        """Final event, set once the attempt has ended."""
        self.refusal: Exception | None = None
        """Error that prevented the attempt from starting."""
        self.is_observed = False
        """True once the outcome has been observed. Unobserved failures are logged."""
        self.unpublished_messages: list[Event] = []
        """Messages sent before the run started."""
        self.recursive_sends = 0
        """Number of messages sent during the delivery of the messages being published."""
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
        self.questions = Questions(spec.on_input, self.credentials, Position(self.info.scope, self.lifetime.time_scope))
        self.claimed_slots: set[Slot] = set()
        """Tool calls already claimed by this attempt."""
        self._writes: Writes | None = None
        self.lifetime.only_executes = spec.only_executes
        if spec.cancel is not None:
            self.lifetime.finish(Canceled(spec.cancel, code=spec.cancel_code))

    def use_spec(self, spec: RunSpec) -> None:
        """Replace the specification, before any request is sent."""
        self.spec = spec
        self.info = self._make_info(self.info.clock, self.info.scope, self.info.metadata)
        self.tools = AttemptTools(spec.tools, self.recorder)
        self.requests = RequestBuilder(spec, self.tools, self.recorder)

    def _make_info(self, clock: Clock, scope: Scope, metadata: dict[str, Any]) -> AttemptInfo:
        spec = self.spec
        describe_loop = partial(describe, spec.loop)
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
            time_scope=self.lifetime.time_scope,
            describe_loop=describe_loop,
            answers_inline=spec.on_input is not None,
            resolve_model=spec.provider,
            budget=WorkBudget(spec.limits, self.recorder, self.lifetime, scope, describe_loop),
            owner=self.recorder.stamp.owner,
            run_in_loop=self.lifetime.run_in_loop,
        )

    def make_recorder(self, clock: Clock) -> Recorder:
        """Create the recorder for this attempt."""
        spec, hub = self.spec, Hub()
        stamp = EventStamp(spec.task_id, spec.context_id, spec.owner, Numbering(clock.now))
        return Recorder(stamp, hub, DeliveryGate(hub.publish, clock), spec.loop, self.lifetime)

    # -- run properties

    @property
    def task_id(self) -> str:
        return self.spec.task_id

    @property
    def context_id(self) -> str:
        return self.recorder.context_id

    @property
    def is_ending(self) -> bool:
        """True once the end of the attempt has been decided."""
        return self.lifetime.is_ending

    @property
    def conversation(self) -> str:
        """Key of the conversation."""
        return self.info.conversation

    def join_conversation(self, context_id: str, owner: str | None) -> None:
        """Set the conversation of a run whose record has been read from the log."""
        self.recorder.stamp.ids["context_id"] = context_id
        self.recorder.stamp.owner = self.info.owner = owner

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
            self._writes = Writes(agent_store or log_store or MemoryArtifacts(), is_configured=agent_store is not None)
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
            InvalidEvent: The event is not allowed at this point.
        """
        # Check here too, so that errors are raised in the emitting thread.
        self.recorder.check(event)
        reserved = event.metadata and RESERVED_METADATA.intersection(event.metadata)
        if reserved and event.task_id in ("", self.task_id):
            raise InvalidEvent(f"{min(reserved)!r} in metadata is reserved for commands. Use another key.")
        self.lifetime.call_in_loop(out or self.publish, event)

    def watch(self) -> None:
        """Start a watchdog to end the attempt when stuck."""
        Watchdog(self.task_id, self.info.scope, lambda: not self.lifetime.is_ending, self._end_stuck)

    def _end_stuck(self) -> None:
        self.lifetime.finish(make_stuck_error(self.state(), self.spec.loop))

    # -- steering

    @property
    def has_unread_messages(self) -> bool:
        """True if messages are waiting for a request, and the run can still continue."""
        state = self.recorder.states[None]
        call_in_loop = threading.get_ident() == self.lifetime.thread
        return bool(state.unread_count) and not self.is_waiting(state) and not self.lifetime.is_ending and call_in_loop

    def close_interrupted(self, step: str) -> Sequence[Event]:
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

    def close_open_work(self, *, keep_calls: bool = False) -> Iterator[Event]:
        """Return events closing every open message and, unless `keep_calls` is set, every open call."""
        return self._open_work.close_all(keep_calls=keep_calls)

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
            preview = content if len(content) <= 200 else content[:200] + "..."
            return None, f"the answer {preview!r} does not fit the output type: {error}"

    async def ask(self, ctx: RunContext[Any], question: PendingInput, read: Callable[[Any], Any]) -> Any:
        """Ask a question and wait for the answer."""
        if ctx.until_requested is not None:
            await ctx.until_requested()
        return await self.questions.ask(ctx, question, read, self.recorder.earlier)

    def is_waiting(self, state: RunState) -> bool:
        """Return True if a question of the branch with this state must be answered before the run can continue."""
        asked = self.questions.read
        return bool(state.pending) and any(
            question.call is not None or question.task_id is not None or input_id in asked
            for input_id, question in state.pending.items()
        )

    def build_request(
        self, ctx: RunContext[Any], iteration: int, pressure: int
    ) -> ModelRequest | Awaitable[ModelRequest]:
        """Build the next model request."""
        return self.requests.build(ctx, iteration, pressure)

    # -- results of earlier attempts

    def find_idempotency_key(self, slot: Slot) -> str:
        """Return the idempotency key of a call."""
        return self.recorder.earlier.find_idempotency_key(self.task_id, slot)

    def find_recorded_outcome(self, request: ToolRequest, tool: Tool | str) -> ToolCompleteEvent | None:
        """Return the tool result that follows from an unused recorded answer, or None."""
        if not self.recorder.earlier.undecided:
            return None
        # Only needed by runs that are resumed at a question.
        from rxloop.run.questions.recorded_answers import find_recorded_outcome

        return find_recorded_outcome(self.recorder, self.questions.read, request, tool)

    def claim(self, request: ToolRequest) -> bool:
        """Claim a call before executing it.

        Return False if it was already claimed, if no message contains it, or if the attempt is ending.
        """
        slot = request.slot
        if self.lifetime.is_ending:
            return False
        if slot in self.claimed_slots:
            log.warning("Call %s of step %s was requested twice, executing it once", slot[1], slot[0])
            return False
        state = self.recorder.states.get(request.ctx.branch)
        call = state.batch.find_open(*slot) if state is not None and state.batch is not None else None
        if (call is None or call.id != request.call.id) and not self.info.budget.has_unpublished_call(*slot):
            self.lifetime.finish(make_unknown_call_error(request))
            return False
        self.claimed_slots.add(slot)
        return True
