"""One attempt of a run: what operators and tools see as the `Host`."""

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
from rxloop.run.ends import OpenWork
from rxloop.run.life import Canceled, Life
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
    """One attempt of a run. The tasks of the run know only this and not its handle, so that a dropped one can end it.

    `life` says where the attempt stands, `recorder` makes its stream, `lifecycle` carries it out.
    """

    # With more than 30 attributes, Python gives each instance a dict of its own, which takes 1,800 bytes.
    __slots__ = (
        "__weakref__",
        "_writes",
        "claimed_slots",
        "credentials",
        "durable",
        "durable_now",
        "earlier_events",
        "exists",
        "final",
        "first_news",
        "holds",
        "inbox",
        "info",
        "lease",
        "life",
        "made_at",
        "nested",
        "noticed",
        "open_call",
        "patience",
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
        self.patience = 1.0
        """Fraction of the normal grace period that cancelled work gets."""
        self.life = Life(spec.task_id, spec.loop)
        clock = CLOCK.get()
        self.recorder = self.make_recorder(clock)
        # Bound here so that publishing an event is a single call.
        self.publish = self.recorder.publish
        self.state = self.recorder.state
        self.durable = self.recorder.durable
        self.durable_now = self.recorder.durable_now
        self.info = self._make_info(clock, Scope(self.life.fail, self.life.time_scope), spec.metadata)
        self.use_spec(spec)
        self.earlier_events: Sequence[Event] = ()
        """Events that precede this attempt: the prefix that a fork copied, or the `task` event of a submitted run."""
        self.first_news: Iterable[Event] = ()
        """Events published right after the start: the answers of a resume, or the changes of a fork."""
        self.skipped_commands = 0
        """Number of the last command before the start that becomes no event; 0 if there is none."""
        self.inbox: Inbox | None = None
        """Inbox of the run, from loading to the end of the attempt, if the run has a log."""
        self.lease: Lease | None = None
        """Lease of the conversation, if the run has a log."""
        self.subscription = SerialDisposable()
        """That to the pipeline."""
        self.holds: set[object] = set()
        """What keeps the run going though its handle is gone."""
        self.final: Event | None = None
        """The last event of the attempt, once it is published."""
        self.refusal: Exception | None = None
        """Why the attempt never began."""
        self.noticed = False
        """Whether somebody has learnt how it ended, so that a failure is not silent."""
        self.unpublished_messages: list[Event] = []
        """Messages sent to the run before its start."""
        self.steering: DisposableBase | None = None
        """The subscription to the messages that steer the run."""
        self.open_call: ModelCall | None = None
        self.nested: tuple[Attempt, ...] = ()
        """The runs of agents that go on in its calls."""
        self.exists = False
        """Whether a run of this id, which is to be a new one, goes on in this process."""
        self.made_at: tuple[str, int] | None = None
        """The file and line in which the run was made."""
        self.credentials: dict[str, Any] = {}
        """Those that the attempt was begun with, by the id of the question: here alone, and until they are used."""
        self.questions = Questions(spec.on_input, self.credentials, Place(self.info.scope, self.life.time_scope))
        self.claimed_slots: set[Slot] = set()
        """The tool calls that this attempt handles."""
        self._writes: Writes | None = None
        if spec.cancel is not None:
            self.life.finish(Canceled(spec.cancel, code=spec.cancel_code))

    def use_spec(self, spec: RunSpec) -> None:
        """Use another specification, before anything is offered to the model."""
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
        """Create the recorder of the attempt."""
        spec, hub = self.spec, Hub()
        stamp = EventStamp(spec.task_id, spec.context_id, Numbering(clock.now))
        return Recorder(stamp, hub, DeliveryGate(hub.publish, clock), spec.loop, self.life)

    # -- what a run is, for those inside

    @property
    def task_id(self) -> str:
        return self.spec.task_id

    @property
    def context_id(self) -> str:
        return self.recorder.context_id

    @property
    def resumed(self) -> bool:
        """Whether an earlier attempt has begun the run."""
        return self.recorder.attempt > 1

    @property
    def first_attempt(self) -> int:
        """The attempt of the first event on the stream."""
        return self.earlier_events[0].attempt if self.earlier_events else self.recorder.attempt

    def artifact_writes(self) -> Writes:
        """What the writes to artifacts share: those of the agent's store, of its log, or else of this attempt alone."""
        if self._writes is None:
            # Few runs make any.
            from rxloop.pipeline.artifacts import Writes
            from rxloop.storage.memory_artifacts import MemoryArtifacts

            log = self.spec.log
            beside = log.artifacts if log is not None else None
            given = self.spec.artifacts
            self._writes = Writes(given or beside or MemoryArtifacts(), given=given is not None)
        return self._writes

    @property
    def system(self) -> tuple[Message, ...]:
        """The layers of the system prompt that the run itself has."""
        return self.requests.system

    @property
    def earlier(self) -> EarlierAttempts:
        """What earlier attempts of the run received, and have not finished."""
        return self.recorder.earlier

    def context(self) -> RunContext[Any]:
        """The context of the main line."""
        return RunContext(self.spec.deps, self)

    # -- what comes out of the loop

    def emit(self, event: Event, out: Callable[[Event], None] | None) -> None:
        """Give an event to `out`, or else to `publish`; from any thread.

        Raises:
            InvalidEvent: It is not one that may come now.
        """
        # Here as well, where it is still told to who emits it in a thread of its own.
        self.recorder.check(event)
        if event.metadata and COMMAND_ID in event.metadata and event.task_id in ("", self.task_id):
            raise InvalidEvent(f"{COMMAND_ID!r} in metadata is reserved for commands. Use another key.")
        self.life.in_loop(out or self.publish, event)

    def watch(self) -> None:
        """From now on, end the attempt when nothing is left that could do so."""
        Watchdog(self.task_id, self.info.scope, lambda: not self.life.ending, self._stuck)

    def _stuck(self) -> None:
        self.life.finish(make_stuck_error(self.state(), self.spec.loop))

    # -- steering

    @property
    def unheard(self) -> bool:
        """Whether something was said that no request has carried, and the run could go on with it."""
        state = self.recorder.states[None]
        in_loop = threading.get_ident() == self.life.thread
        return bool(state.unread_count) and not state.pending and not self.life.ending and in_loop

    def cut_off(self, step: str) -> Sequence[Event]:
        """The ends of the open message of that step, and of the thought in it, when it is interrupted."""
        hub = self.recorder.hub
        thought = hub.get_open_thought(self.task_id, step)
        text = hub.get_open_text(self.task_id, step)
        message = ContentCompleteEvent(step=step, content=text, reasoning=thought or None, finish_reason="interrupted")
        if not thought:
            return [message]
        return [ThoughtStreamEvent(step=step, content=thought, source="reasoning", incomplete=True), message]

    # -- what is left open

    @property
    def _open_work(self) -> OpenWork:
        # Not kept: with what it asks of the attempt it would be a circle, for the garbage collector to find.
        return OpenWork(self.recorder, self.tools.is_idempotent)

    def close_abandoned(self, ctx: RunContext[Any]) -> None:
        """Close the message, or the call, of a subscription that was disposed before its end."""
        if self.recorder.taking:
            for event in self._open_work.ends_of(ctx):
                self.publish(event)

    def left_open(self) -> Iterator[Event]:
        """The ends of every open message and call."""
        return self._open_work.ends()

    @property
    def at_work(self) -> bool:
        """Whether a call, here or of a nested run, is being carried out that nobody can make again."""
        return any(child.at_work for child in self.nested) or self._open_work.at_work

    # -- messages and answers

    def asked(self, messages: Sequence[Message]) -> list[Message]:
        """The messages that a run is started with: each with an id, and with its hidden calls marked."""
        return [self._named(message, place) for place, message in enumerate(messages)]

    def _named(self, message: Message, place: int) -> Message:
        changes: dict[str, Any] = {}
        if message.message_id is None:
            changes["message_id"] = f"{self.task_id}:input:{place}"
        if any(self.tools.hides(call.name) and not call.hidden for call in message.tool_calls):
            changes["tool_calls"] = tuple(mark_hidden(call, self.tools) for call in message.tool_calls)
        return message.model_copy(update=changes) if changes else message

    def parsed(self, content: str) -> tuple[Any, str | None]:
        """An answer as the output type, or what is wrong with it."""
        try:
            return self.spec.parse(content), None
        except ValueError as error:
            shown = content if len(content) <= 200 else content[:200] + "..."
            return None, f"the answer {shown!r} does not fit the output type: {error}"

    async def ask(self, ctx: RunContext[Any], question: PendingInput, read: Callable[[Any], Any]) -> Any:
        """Put a question to the person or client behind the run."""
        if ctx.asked_for is not None:
            await ctx.asked_for()
        return await self.questions.ask(ctx, question, read, self.recorder.earlier.questions)

    def build_request(
        self, ctx: RunContext[Any], iteration: int, pressure: int
    ) -> ModelRequest | Awaitable[ModelRequest]:
        """Return the request of the next model call."""
        return self.requests.build(ctx, iteration, pressure)

    # -- what earlier attempts have come to

    def recorded_outcome(self, request: ToolRequest, tool: Tool | str) -> ToolCompleteEvent | None:
        """Return the tool result that follows from an unused recorded answer, or None."""
        if not self.recorder.earlier.undecided:
            return None
        # Imported here: few runs are resumed at a question, and importing rxloop is quicker without.
        from rxloop.run.questions.recorded_answers import recorded_outcome

        return recorded_outcome(self.recorder, self.questions.read, request, tool)

    def claim(self, slot: Slot) -> bool:
        """Claim a call to execute it; False if this attempt has claimed it before, or is coming to its end."""
        if self.life.ending:
            return False
        if slot in self.claimed_slots:
            log.warning("call %s of step %s was asked for twice: it is carried out once", slot[1], slot[0])
            return False
        self.claimed_slots.add(slot)
        return True
