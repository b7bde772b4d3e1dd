"""The inside of a run: stamps, folds, records and publishes its events. What operators and tools see as the `Host`."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from reactivex.disposable import SerialDisposable

from rxloop.errors import InvalidEvent, PipelineError, RxloopError
from rxloop.operators.loop._faults import from_thread, no_signal, stuck, unordered
from rxloop.operators.loop.compose import describe
from rxloop.pipeline.requests import ModelRequest, Request, RunRequest, Signal, ToolDefinition, ToolRequest, marked
from rxloop.pipeline.run_context import RunContext
from rxloop.pipeline.seams import Clock, EventLog, Provider, Tool
from rxloop.protocol.envelope import ROOT, check_time
from rxloop.protocol.events import (
    ContentCompleteEvent,
    Event,
    StatusUpdateEvent,
    SubtaskEvent,
    TaskEvent,
    ThoughtStreamEvent,
    ToolCompleteEvent,
    ToolProgressEvent,
    ToolStartEvent,
)
from rxloop.protocol.frozen import EMPTY_DICT, FrozenDict, FrozenList
from rxloop.protocol.messages import Message
from rxloop.protocol.settings import Limits
from rxloop.protocol.settle import settle
from rxloop.protocol.storable import readable
from rxloop.run.asking import ask
from rxloop.run.spec import Canceled, End, RunSpec
from rxloop.state.batch import Batch, Slot
from rxloop.state.earlier_attempts import Recorded
from rxloop.state.order import RULES, misplaced
from rxloop.state.run_state import RunState, fold, fold_beside
from rxloop.stream.bridges import TaskCancelled
from rxloop.stream.clock import CLOCK
from rxloop.stream.guard import as_error, leave_to_loop
from rxloop.stream.hub import Hub
from rxloop.stream.scheduler import RunScheduler
from rxloop.stream.scope import Scope
from rxloop.stream.watchdog import Watchdog
from rxloop.thoughts.graph import ThoughtGraph

if TYPE_CHECKING:
    from rxloop.stream.writer import LogWriter

log = logging.getLogger("rxloop")


class _Traits(NamedTuple):
    """What an event is by its class; to ask `isinstance` of each event would cost more than to number it."""

    by_run: bool
    """It tells where a run begins and ends."""
    refers: bool
    """It names calls."""
    drawn: bool
    """It may have a place in the graph of thoughts."""


@cache
def _traits(cls: type[Event]) -> _Traits:
    return _Traits(
        by_run=issubclass(cls, (TaskEvent, StatusUpdateEvent)),
        refers=issubclass(cls, (ThoughtStreamEvent, SubtaskEvent)),
        drawn=issubclass(cls, (ThoughtStreamEvent, ContentCompleteEvent, ToolStartEvent)),
    )


class Core:
    """One attempt of a run, behind its handle: tasks know only this, so that a dropped handle can end the run."""

    # More attributes than dicts of instances can share the keys of: without slots a run would take a kilobyte more.
    __slots__ = (
        "__dict__",  # costs nothing while it is empty, and a test may watch a method
        "__weakref__",
        "_asking",
        "_end_awaited",
        "_questions",
        "_seq",
        "_started",
        "_sub",
        "_taken",
        "_thread",
        "_tools",
        "attempt",
        "begun",
        "born",
        "clock",
        "context_id",
        "cut_short",
        "end",
        "ended",
        "final",
        "graph",
        "holders",
        "hub",
        "inputs",
        "loop",
        "made_at",
        "metadata",
        "occupies",
        "open",
        "past",
        "recorded_past",
        "refusal",
        "scheduler",
        "scope",
        "spec",
        "states",
        "subscription",
        "system",
        "told",
        "used",
        "writer",
    )

    def __init__(self, spec: RunSpec) -> None:
        self.spec = spec
        self.hub = Hub()
        self.clock: Clock = CLOCK.get()
        self.scope = Scope(self.fail)
        self.context_id = spec.context_id
        self.metadata = spec.metadata
        self.used = False
        """Whether anybody has started, or cancelled, the run."""
        self.occupies = False
        """Whether the run holds its conversation, so that no other run of it may begin."""
        self.attempt = 1
        self.past: Sequence[Event] = ()
        """What a fork has taken over of another run; of a run that nobody had begun, its `task`."""
        self.inputs: Mapping[str, Any] = {}
        """The answers that the attempt begins with."""
        self.subscription = SerialDisposable()
        self.holders: set[object] = set()
        """What keeps the run going though its handle is gone."""
        self.writer: LogWriter | None = None
        self.graph = ThoughtGraph()
        self.system: tuple[Message, ...] = ()
        self.states: dict[str | None, RunState] = {None: RunState()}
        self.born: dict[str, RunState] = {}
        """The states in which the branches of earlier attempts began."""
        self.recorded_past = Recorded()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.scheduler: RunScheduler | None = None
        self.open = False
        """Whether events are taken: from the first one to the final one."""
        self.cut_short: Callable[[], object] | None = None
        """Ends what goes on before the first request, when the attempt has to come to its end."""
        self.final: Event | None = None
        """The last event of the attempt, once it is published."""
        self.refusal: Exception | None = None
        """Why the attempt never began."""
        self.told = False
        """Whether anybody was told how it ended, so that a failure is not silent."""
        self.made_at: tuple[str, int] | None = None
        """The file and line in which the run was made."""
        self.end: End = None
        self.ended = False
        """Whether the attempt has to come to its end."""
        self._asking: asyncio.Lock | None = None
        self._end_awaited: asyncio.Future[None] | None = None
        self.begun = False
        """Whether the first events of the attempt are published: no others of their kind may follow."""
        self._thread = threading.get_ident()
        self._seq = 0
        self._sub = 0
        self._questions: dict[str, set[str]] = {}
        self._taken: set[Slot] = set()
        self._started: set[Slot] = set()
        self._tools: dict[str, Tool] = {}
        if spec.cancel is not None:
            self.finish(Canceled(spec.cancel))

    # -- what a run is, for those inside

    @property
    def task_id(self) -> str:
        return self.spec.task_id

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

    def provider(self, model: Provider | str) -> Provider:
        """The provider that a model string stands for."""
        return self.spec.provider(model)

    @property
    def loop_name(self) -> str:
        return describe(self.spec.loop)

    def context(self) -> RunContext[Any]:
        """The context of the main line."""
        return RunContext(self.spec.deps, self)

    def state(self, branch: str | None = None) -> RunState:
        """The fold of everything published so far on a branch; a new one starts where the main line stands.

        One of an earlier attempt starts where it did then, so that a strategy that runs again finds the same.
        """
        main = self.states[None]
        if branch is None:
            return main
        state = self.states.get(branch)
        if state is None:
            state = self.states[branch] = self.born.get(branch) or main.branched()
        return state.beside(main)

    # -- events

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Tie the run to the event loop that it runs in."""
        self.loop = loop
        self.scheduler = RunScheduler(loop, for_readers=True)
        self._thread = self.scheduler.thread

    def resume_at(self, seq: int) -> None:
        """Number the next durable event behind `seq`."""
        self._seq = seq

    def take_over(self, event: Event) -> None:
        """Deliver an event of the run that this one is a fork of, and record it as an event of this one."""
        settle(event)
        if self.writer is not None:
            self.writer.add(event)
        self.hub.publish(event)

    def publish(self, event: Event) -> None:
        """Stamp an event, fold it, hand it to the log's buffer, and deliver it; all at once.

        Raises:
            InvalidEvent: It is none that may come now.
        """
        if threading.get_ident() != self._thread:
            self.finish_from_thread()
            return
        if self.attempt > 1 and self._known(event):
            self._replay(event)
            return
        if not self.open:
            log.debug("%r came when the run was over", event)
            return
        if event.durable:
            if type(event) in RULES and self._misplaced(event):
                return
            if _traits(type(event)).by_run:
                self.check(event)
            event = self.record(event)
        else:
            # A look, and no call, is all that a token of an open message of the main line costs.
            if (event.branch is not None or event.step != self.states[None].open_step) and self._misplaced(event):
                return
            event = self._stamp(event)
            if self.writer is not None:
                self.writer.add(event)
        self.hub.publish(event)

    def _misplaced(self, event: Event) -> bool:
        """Whether an event cannot come now, which ends the run: what it says did not happen, or not so."""
        state = self.states.get(event.branch)
        if state is None or event.parent_task_id is not None or event.task_id not in ("", self.spec.task_id):
            return False
        what = misplaced(state, event) or self._started_twice(event)
        # A thread may still say how far it is when its call is over: that harms nobody, and nobody needs it.
        if what is not None and not isinstance(event, ToolProgressEvent):
            self.finish(unordered(what, self.spec.loop))
        return what is not None

    def _started_twice(self, event: Event) -> str | None:
        # No matter of the fold: what an earlier attempt has begun, this one may begin again.
        if type(event) is not ToolStartEvent:
            return None
        slot = (event.step or "", event.index)
        if slot in self._started:
            return f"call {event.index} of step {event.step} begins twice"
        self._started.add(slot)
        return None

    def check(self, event: Event) -> None:
        """Refuse what only the run itself may say: where it begins and ends. What a run inside it says, passes.

        Raises:
            InvalidEvent: It is that.
        """
        if not self.begun or event.task_id not in ("", self.task_id):
            return
        if isinstance(event, TaskEvent):
            raise InvalidEvent("a `task` event begins a run, and this one has begun: emit an event of another kind")
        if isinstance(event, StatusUpdateEvent) and event.final:
            raise InvalidEvent(
                "a final `status-update` is the end of a run, which only the run itself can tell: return or raise to "
                "end your part, or cancel the run by its handle"
            )

    def _known(self, event: Event) -> bool:
        """Whether the log has it from an earlier attempt: answered from there, or made once more by a strategy."""
        if event.attempt and event.attempt < self.attempt:
            return event.task_id == self.task_id
        return self.recorded_past.knows(event)

    def _replay(self, event: Event) -> None:
        """Fold such an event on a line that runs again; the main line has it already."""
        if event.branch is None:
            return
        state = self.state(event.branch)
        if isinstance(event, ContentCompleteEvent):
            # Its `llm-call` does not come again.
            state = replace(state, iteration=state.iteration + 1)
        self.states[event.branch] = fold(state, event)

    def publish_signal(self, signal: Signal) -> None:
        """Take what comes out of the loop: events alone."""
        if isinstance(signal, Event):
            self.publish(signal)
        elif isinstance(signal, RunRequest):
            self.finish(PipelineError(f"nothing answered the RunRequest: the loop is {self.loop_name}"))
        elif not isinstance(signal, Request):  # pyright: ignore[reportUnnecessaryIsInstance]
            self.finish(no_signal(signal, self.spec.loop))

    def parsed(self, content: str) -> tuple[Any, str | None]:
        """An answer as the output type, or what is wrong with it."""
        try:
            return self.spec.parse(content), None
        except ValueError as error:
            shown = content if len(content) <= 200 else content[:200] + "..."
            return None, f"the answer {shown!r} does not fit the output type: {error}"

    def record(self, event: Event) -> Event:
        """Stamp a durable event, fold it and hand it to the log's buffer, but do not deliver it yet.

        Raises:
            InvalidEvent: It cannot be folded.
        """
        place = self._seq, self._sub
        event = self._stamp(event)
        try:
            self._fold(event)
        except Exception as error:
            self._seq, self._sub = place
            if isinstance(error, RxloopError):
                raise
            raise InvalidEvent(f"a `{event.kind}` event that the run cannot take: {error}") from error
        if self.writer is not None:
            self.writer.add(event)
        if _traits(type(event)).drawn:
            self.graph = self.graph.add(event)
        return event

    def _fold(self, event: Event) -> None:
        branch = event.branch
        if branch is None or event.parent_task_id is not None:
            self.states[None] = fold(self.states[None], event)
        else:
            self.states[branch] = fold(self.state(branch), event)
            self.states[None] = fold_beside(self.states[None], event)

    def _stamp(self, event: Event) -> Event:
        if event.attempt:
            # Published before, here or in another run: its numbers are those of that time.
            event = event.model_copy()
        fields: dict[str, Any] = event.__dict__  # pyright: ignore[reportAssignmentType]
        text = None if event.durable else fields.get("delta") or fields.get("fragment")
        # Nearly every token is a delta of our own making with plain text: this is all that it costs.
        if text is None or not text.isascii() or fields["metadata"] is not EMPTY_DICT:
            settle(event)
        if fields["timestamp"]:
            check_time(fields["timestamp"])
        else:
            fields["timestamp"] = self.clock.now()
        fields["attempt"] = self.attempt
        if not fields["task_id"]:
            fields["task_id"] = self.spec.task_id
        elif fields["parent_task_id"] is None and fields["task_id"] != self.spec.task_id:
            # Another run's event that somebody passes on: it is told here, and is no part of this run.
            event.check_ids()
            fields["parent_task_id"] = self.spec.task_id
        elif fields["parent_task_id"] not in (None, self.spec.task_id):
            fields["metadata"] = FrozenDict({**fields["metadata"], ROOT: self.spec.task_id})
        if not fields["context_id"]:
            fields["context_id"] = self.context_id
        if event.durable:
            self._seq += 1
            self._sub = 0
            if _traits(type(event)).refers:
                self._refer(event)  # pyright: ignore[reportArgumentType]
        else:
            self._sub += 1
        fields["seq"] = self._seq
        fields["sub"] = self._sub
        return event

    def _refer(self, event: ThoughtStreamEvent | SubtaskEvent) -> None:
        """Number a thought; and note which of the calls that an event names are not for clients."""
        fields, main = vars(event), self.states[None]
        named = [event.tool_call_id]
        if isinstance(event, ThoughtStreamEvent):
            if not event.thought_id:
                fields["thought_id"] = main.new_thought_id()
            if event.index < 0:
                fields["index"] = main.thought_count
            named.append(event.related_to)
        hidden = [each for each in named if each is not None and each in main.calls and main.calls[each].hidden]
        if hidden:
            fields["hidden_calls"] = FrozenList(hidden)

    def emit(self, event: Event, out: Callable[[Event], None] | None) -> None:
        """Give an event to `out`, or else to `publish`; from any thread.

        Raises:
            InvalidEvent: It is none that may come now.
        """
        # Here as well, where it is still told to who emits it in a thread of its own.
        self.check(event)
        self.in_loop(out or self.publish, event)

    def in_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function in the thread of the event loop."""
        if self.loop is None or self.scheduler is None or threading.get_ident() == self.scheduler.thread:
            function(*arguments)
        else:
            with suppress(RuntimeError):  # the loop is closed, or is closed this very moment
                self.loop.call_soon_threadsafe(self._guarded, function, *arguments)

    def _guarded(self, function: Callable[..., None], *arguments: Any) -> None:
        try:
            function(*arguments)
        except BaseException as error:
            self.fail(as_error(error))
            leave_to_loop(error)

    def finish_from_thread(self, cause: Exception | None = None) -> None:
        """End the attempt because its pipeline delivers from a thread where nothing of a run may be touched."""
        self.in_loop(self.finish, from_thread(self.spec.loop, cause))

    def durable_now(self) -> int | None:
        """The last `seq` in the log, if everything that is published is there or can be written without waiting."""
        return None if self.writer is None else self.writer.flush_now()

    async def durable(self) -> int | None:
        """Wait until everything that is published is in the log."""
        return None if self.writer is None else await self.writer.flush()

    # -- ends

    def finish(self, end: End) -> None:
        """Bring the attempt to its end; the first call says how."""
        if threading.get_ident() != self._thread and self.loop is not None:
            self.finish_from_thread(end if isinstance(end, Exception) else None)
        elif not self.ended:
            self.end = Canceled(str(end)) if isinstance(end, TaskCancelled) else end
            self.ended = True
            if self._end_awaited is not None and not self._end_awaited.done():
                self._end_awaited.set_result(None)
            if self.cut_short is not None:
                self.cut_short()

    def watch(self) -> None:
        """From now on, end the attempt when nothing is left that could do so."""
        Watchdog(self.scope, self._is_open, self._stuck)

    def _is_open(self) -> bool:
        return not self.ended

    def _stuck(self) -> None:
        self.finish(stuck(self.state(), self.spec.loop))

    def fail(self, error: Exception) -> None:
        """End the attempt with an error that could not go through the pipeline."""
        if self.ended:
            log.error("something failed behind the end of the run %s", self.task_id, exc_info=error)
        else:
            self.finish(error)

    async def until_end(self) -> None:
        """Wait until the attempt has to come to its end; for one waiter."""
        if not self.ended:
            # No `asyncio.Event`, which takes ten times the memory.
            self._end_awaited = asyncio.get_running_loop().create_future()
            await self._end_awaited

    def completed(self) -> None:
        """The loop has nothing more to do."""
        self.finish(None)

    def cancel(self, reason: str | None = None) -> None:
        """Begin to cancel; from any thread."""
        self.in_loop(self.finish, Canceled(reason or "cancelled"))

    def abandon(self, ctx: RunContext[Any]) -> None:
        """Close the message, or the call, of a subscription that was disposed before its end."""
        if not self.open:
            return
        state = self.state(ctx.branch)
        if ctx.call is None:
            if state.open_step == ctx.step:
                self.publish(self._canceled_message(state, ctx.branch))
        elif state.batch is not None and state.batch.step == ctx.step and state.batch.awaits(ctx.index):
            self.publish(self._canceled_call(state.batch, ctx.index, ctx.branch))

    def close_open(self) -> None:
        """Close every open message and call."""
        for branch, state in list(self.states.items()):
            if state.open_step is not None:
                self.publish(self._canceled_message(state, branch))
            if state.batch is not None:
                for index in state.batch.open:
                    self.publish(self._canceled_call(state.batch, index, branch))

    def _canceled_message(self, state: RunState, branch: str | None) -> ContentCompleteEvent:
        text = self.hub.open_text(self.task_id, state.open_step)
        return ContentCompleteEvent(step=state.open_step, branch=branch, content=text, finish_reason="canceled")

    def _canceled_call(self, batch: Batch, index: int, branch: str | None) -> ToolCompleteEvent:
        call = batch.calls[index]
        tool = self._tools.get(call.name)
        idempotent = tool is not None and tool.idempotent
        return ToolCompleteEvent(
            call=call,
            index=index,
            hidden=call.hidden,
            step=batch.step,
            branch=branch,
            success=False,
            error="canceled",
            content=batch.unanswered(index, batch.asking(self.states[None].pending.values()), idempotent=idempotent),
        )

    # -- requests

    def request(self, ctx: RunContext[Any], iteration: int, pressure: int) -> ModelRequest | Awaitable[ModelRequest]:
        """The request of the next model call."""
        tools = self.spec.tools.resolve_now(ctx)
        if tools is not None:
            return self._request(ctx, iteration, pressure, tools)

        async def later() -> ModelRequest:
            return self._request(ctx, iteration, pressure, await self.spec.tools.resolve(ctx))

        return later()

    def _request(self, ctx: RunContext[Any], iteration: int, pressure: int, tools: dict[str, Tool]) -> ModelRequest:
        self._tools.update(tools)
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

    def tool(self, request: ToolRequest) -> Tool | str:
        """The tool that a call asks for, or the reason why it cannot be called."""
        name = request.call.name
        offered = self._tools if request.offered is None else _names(request.offered)
        tool = self._tools.get(name) or self.spec.tools.plain.get(name)
        if tool is None or name not in offered:
            return self.spec.tools.why_not(name, list(offered))
        return tool

    def hides(self, name: str) -> bool:
        """Whether the tool of that name is not for clients."""
        return self.spec.tools.hides(name)

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

    def set_tools(self, tools: dict[str, Tool]) -> None:
        """The tools that calls from before a resume may use."""
        self._tools = tools

    def recorded(self, step: str) -> Event | None:
        """The message that an earlier attempt received for that step."""
        return self.recorded_past.messages.get(step)

    def recorded_result(self, slot: Slot) -> Event | None:
        """The answer that an earlier attempt had for that slot."""
        return self.recorded_past.results.get(slot)

    def interrupted(self, slot: Slot) -> bool:
        """Whether an earlier attempt started that call and never heard of its end."""
        return slot in self.recorded_past.interrupted

    def take(self, slot: Slot) -> bool:
        """Take a call to carry it out; False if this attempt has taken it before."""
        if slot in self._taken:
            log.warning("call %s of step %s was asked for twice: it is carried out once", slot[1], slot[0])
            return False
        self._taken.add(slot)
        return True

    # -- questions

    async def ask(self, ctx: RunContext[Any], prompt: str, answer: Any, options: Sequence[Any] | None) -> Any:
        """Put a question to the person or client behind the run."""
        asker = f"{ctx.step or 'run'}.{ctx.index if ctx.call is not None else ctx.asked_by}"
        input_id = self._question_id(asker, readable(prompt))
        return await ask(ctx, input_id, prompt, answer, options, self.spec.on_input, self._turn_to_ask)

    def _turn_to_ask(self) -> asyncio.Lock:
        if self._asking is None:
            self._asking = asyncio.Lock()
        return self._asking

    def _question_id(self, asker: str, prompt: str) -> str:
        """The id of a question: that which it had in an earlier attempt, or else a new one.

        An answer is one to the words that were asked. A question that is put in other words, or that takes the place
        of one which is not put any more, is another question.
        """
        put, asked = self._questions.setdefault(asker, set()), self.recorded_past.questions
        numbers = (f"{asker}.{number}" for number in count(1))
        input_id = next(each for each in numbers if each not in put and asked.get(each, prompt) == prompt)
        put.add(input_id)
        return input_id


def _names(definitions: tuple[ToolDefinition, ...]) -> set[str]:
    return {definition.name for definition in definitions}
