"""One attempt of a run: what operators and tools see as the `Host`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

from reactivex.abc import DisposableBase
from reactivex.disposable import SerialDisposable

from rxloop.errors import InvalidEvent
from rxloop.operators.loop._faults import stuck
from rxloop.operators.loop.compose import describe
from rxloop.pipeline.logs import EventLog
from rxloop.pipeline.requests import ModelRequest, ToolDefinition, ToolRequest, marked
from rxloop.pipeline.run_context import ModelCall, RunContext
from rxloop.pipeline.seams import Clock, KeepsArtifacts, Provider, Tool
from rxloop.protocol.events import (
    ContentCompleteEvent,
    Event,
    ThoughtStreamEvent,
    ToolsUnavailableEvent,
)
from rxloop.protocol.messages import Message, ToolCall
from rxloop.protocol.questions import PendingInput
from rxloop.protocol.settings import Limits
from rxloop.run.asking import Questions
from rxloop.run.life import Canceled, Life
from rxloop.run.open_work import OpenWork
from rxloop.run.recorder import Recorder
from rxloop.run.spec import RunSpec
from rxloop.state.batch import Slot
from rxloop.state.run_state import MAIL_ID
from rxloop.stream.scope import Scope
from rxloop.stream.watchdog import Watchdog

if TYPE_CHECKING:
    from rxloop.pipeline.artifacts import Writes
    from rxloop.run.held_turn import HeldTurn
    from rxloop.run.post import Post
    from rxloop.tools._families import Missing
    from rxloop.tools.toolset import Offered

log = logging.getLogger("rxloop")


class Attempt:
    """One attempt of a run. The tasks of the run know only this and not its handle, so that a dropped one can end it.

    `life` says where the attempt stands, `recorder` makes its stream, `lifecycle` carries it out.
    """

    patience = 1.0
    """The part of the usual seconds that what is cancelled has to stop in."""

    def __init__(self, spec: RunSpec) -> None:
        self.spec = spec
        self.life = Life(spec.task_id, spec.loop)
        self.recorder = self._new_recorder()
        # Bound here: what operators call for each event goes to the recorder without a detour.
        self.publish = self.recorder.publish
        self.state = self.recorder.state
        self.durable = self.recorder.durable
        self.durable_now = self.recorder.durable_now
        self.clock: Clock = self.recorder.clock
        self.scope = Scope(self.life.fail)
        self.metadata = spec.metadata
        self.system: tuple[Message, ...] = ()
        self.past: Sequence[Event] = ()
        """What is on the stream before the first event of the attempt: what a fork takes over of another run, or the
        `task` of a run that nobody had begun."""
        self.news: Iterable[Event] = ()
        """What the attempt says as soon as it has begun: the answers that it is resumed with, the changes of a fork."""
        self.passed = 0
        """The number of the last letter that the attempt found at its beginning, and that comes to nothing."""
        self.post: Post | None = None
        """Takes its mail, while the attempt goes on and has a log with mail."""
        self.turn: HeldTurn | None = None
        """The turn in the conversation, while the attempt has it."""
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
        self.said: list[Event] = []
        """What was said to the run before it had begun."""
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
        self.questions = Questions(spec.on_input, self.credentials)
        self._taken: set[Slot] = set()
        self._tools: dict[str, Tool] = {}
        self._missing: Sequence[Missing] = ()
        """The families whose tools cannot be had now."""
        self._writes: Writes | None = None
        if spec.cancel is not None:
            self.life.finish(Canceled(spec.cancel))

    def _new_recorder(self) -> Recorder:
        return Recorder(self.spec.task_id, self.spec.context_id, self.spec.loop, self.life)

    # -- what a run is, for those inside

    @property
    def task_id(self) -> str:
        return self.spec.task_id

    @property
    def context_id(self) -> str:
        return self.recorder.context_id

    @property
    def attempt(self) -> int:
        return self.recorder.attempt

    @property
    def resumed(self) -> bool:
        """Whether an earlier attempt has begun the run."""
        return self.attempt > 1

    @property
    def first_attempt(self) -> int:
        """The attempt of the first event on the stream."""
        return self.past[0].attempt if self.past else self.attempt

    @property
    def agent_name(self) -> str:
        return self.spec.agent_name

    @property
    def model(self) -> Provider:
        return self.spec.model

    @property
    def log(self) -> EventLog | None:
        return self.spec.log

    @property
    def limits(self) -> Limits:
        return self.spec.limits

    @property
    def thought_limit(self) -> int:
        return self.spec.thought_limit

    @property
    def loop_name(self) -> str:
        return describe(self.spec.loop)

    @property
    def writes(self) -> Writes:
        """What the writes to artifacts share: those of the agent's store, of its log, or else of this attempt alone."""
        if self._writes is None:
            # Few runs make any.
            from rxloop.eventlog.memory_artifacts import MemoryArtifacts
            from rxloop.pipeline.artifacts import Writes

            log = self.spec.log
            beside = log.artifacts if isinstance(log, KeepsArtifacts) else None
            given = self.spec.artifacts
            self._writes = Writes(given or beside or MemoryArtifacts(), given=given is not None)
        return self._writes

    def provider(self, model: Provider | str) -> Provider:
        """The provider that a model string stands for."""
        return self.spec.provider(model)

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
        if event.metadata and MAIL_ID in event.metadata and event.task_id in ("", self.task_id):
            raise InvalidEvent(f"{MAIL_ID!r} in the metadata is the number of a letter to the run: choose another name")
        self.life.in_loop(out or self.publish, event)

    def watch(self) -> None:
        """From now on, end the attempt when nothing is left that could do so."""
        Watchdog(self.task_id, self.scope, lambda: not self.life.ending, self._stuck)

    def _stuck(self) -> None:
        self.life.finish(stuck(self.state(), self.spec.loop))

    # -- steering

    @property
    def unheard(self) -> bool:
        """Whether something was said that no request has carried, and the run could go on with it."""
        state = self.recorder.states[None]
        in_loop = threading.get_ident() == self.life.thread
        return bool(state.unheard) and not state.pending and not self.life.ending and in_loop

    def cut_off(self, step: str) -> Sequence[Event]:
        """The ends of the open message of that step, and of the thought in it, when it is interrupted."""
        hub = self.recorder.hub
        thought = hub.open_thought(self.task_id, step)
        text = hub.open_text(self.task_id, step)
        message = ContentCompleteEvent(step=step, content=text, reasoning=thought or None, finish_reason="interrupted")
        if not thought:
            return [message]
        return [ThoughtStreamEvent(step=step, content=thought, source="reasoning", incomplete=True), message]

    # -- what is left open

    @property
    def _open_work(self) -> OpenWork:
        # Not kept: with what it asks of the attempt it would be a circle, for the garbage collector to find.
        return OpenWork(self.recorder, self._idempotent)

    def abandon(self, ctx: RunContext[Any]) -> None:
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

    def _idempotent(self, call: ToolCall) -> bool:
        tool = self._tools.get(call.name)
        return tool is not None and tool.idempotent

    # -- messages and answers

    def asked(self, messages: Sequence[Message]) -> list[Message]:
        """The messages that a run is started with: each with an id, and with its hidden calls marked."""
        return [self._named(message, place) for place, message in enumerate(messages)]

    def _named(self, message: Message, place: int) -> Message:
        changes: dict[str, Any] = {}
        if message.message_id is None:
            changes["message_id"] = f"{self.task_id}:input:{place}"
        if any(self.hides(call.name) and not call.hidden for call in message.tool_calls):
            changes["tool_calls"] = tuple(marked(call, self) for call in message.tool_calls)
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

    # -- requests

    def request(self, ctx: RunContext[Any], iteration: int, pressure: int) -> ModelRequest | Awaitable[ModelRequest]:
        """The request of the next model call."""
        offered = self.spec.tools.resolve_now(ctx)
        if offered is not None:
            return self._request(ctx, iteration, pressure, offered)

        async def later() -> ModelRequest:
            return self._request(ctx, iteration, pressure, await self.spec.tools.resolve(ctx))

        return later()

    def _request(self, ctx: RunContext[Any], iteration: int, pressure: int, offered: Offered) -> ModelRequest:
        tools = offered.tools
        self._tools.update(tools)
        self._tell_missing(offered.missing, ctx)
        messages = self.state(ctx.branch).messages
        settings = self.spec.settings
        if self.limits.conclude and ctx.branch is None and iteration == self.limits.iterations:
            answer = next((name for name, tool in tools.items() if tool.definition.answer), "none")
            settings = settings.model_copy(update={"tool_choice": answer})
        return ModelRequest(
            system=self.system,
            messages=messages,
            history=len(messages),
            tools=self.spec.tools.definitions(tools),
            settings=settings,
            step=ctx.step or "",
            branch=ctx.branch,
            iteration=iteration,
            response_schema=self.spec.response_schema,
            pressure=pressure,
            ctx=ctx,
        )

    def use_tools(self, tools: Mapping[str, Tool], missing: Sequence[Missing] = ()) -> None:
        """Name the tools that calls from before a resume may use, and the families that cannot be had."""
        self._tools = dict(tools)
        self._tell_missing(missing, self.context())

    def _tell_missing(self, missing: Sequence[Missing], ctx: RunContext[Any]) -> None:
        """Tell once of each family whose tools cannot be had, until they can be had again."""
        if not missing and not self._missing:
            return
        known = {each.family for each in self._missing}
        self._missing = missing
        for each in missing:
            if each.family not in known:
                log.warning("the tools of %s are missing in the run %s: %s", each.family, self.task_id, each.reason)
                self.publish(
                    ToolsUnavailableEvent(family=each.family, reason=each.reason, step=ctx.step, branch=ctx.branch)
                )

    def tool(self, request: ToolRequest) -> Tool | str:
        """The tool that a call asks for, or the reason why it cannot be called."""
        name = request.call.name
        offered = self._tools if request.offered is None else (each.name for each in request.offered)
        tool = self._tools.get(name) or self.spec.tools.plain.get(name)
        if tool is None or name not in offered:
            known = self._tools if request.offered is None else [each.name for each in request.offered]
            return self.spec.tools.why_not(name, list(known), [missing.family for missing in self._missing])
        earlier = self.recorder.earlier
        asked = earlier.asked_by.get(request.slot)
        if request.slot[0] in earlier.messages and self.spec.tools.swapped(name, tool, asked):
            return f"The tool {name!r} is another one now than when it was called, and was not called."
        return tool

    def has_tools_beside(self, names: Set[str]) -> bool:
        """Whether the run has tools of other names, offered now or not."""
        return not (names >= self._tools.keys() and names >= self.spec.tools.plain.keys())

    def still_offered(
        self, step: str, tools: tuple[ToolDefinition, ...] | None = None
    ) -> tuple[ToolDefinition, ...] | None:
        """Those of the tools that the message of that step, of an earlier attempt, was offered as well."""
        earlier = self.recorder.earlier.messages.get(step)
        if earlier is None or earlier.offered is None:
            return tools
        now = [tool.definition for tool in self._tools.values()] if tools is None else tools
        return tuple(tool for tool in now if tool.name in earlier.offered)

    def offers(self, name: str) -> bool:
        """Whether the model has been offered a tool of that name."""
        return name in self._tools

    def hides(self, name: str) -> bool:
        """Whether the tool of that name is not for clients."""
        return self.spec.tools.hides(name)

    # -- what earlier attempts have come to

    def earlier_message(self, step: str) -> Event | None:
        """The message that an earlier attempt received for that step."""
        return self.recorder.earlier.messages.get(step)

    def earlier_result(self, slot: Slot) -> Event | None:
        """The answer that an earlier attempt had for that slot."""
        return self.recorder.earlier.results.get(slot)

    def interrupted(self, slot: Slot) -> bool:
        """Whether an earlier attempt started that call and never heard of its end."""
        return slot in self.recorder.earlier.interrupted

    def noted(self, slot: Slot) -> Mapping[str, Any]:
        """What the last question of that call had in its metadata, in an earlier attempt."""
        return self.recorder.earlier.notes.get(slot, {})

    @property
    def answers_now(self) -> bool:
        """Whether questions are answered while the run waits."""
        return self.spec.on_input is not None

    def take(self, slot: Slot) -> bool:
        """Take a call to carry it out; False if this attempt has taken it before, or is coming to its end."""
        if self.life.ending:
            return False
        if slot in self._taken:
            log.warning("call %s of step %s was asked for twice: it is carried out once", slot[1], slot[0])
            return False
        self._taken.add(slot)
        return True
