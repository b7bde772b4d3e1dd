"""The run as a strategy function sees it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson

from rxloop.errors import PipelineError, StageRefused
from rxloop.operators.loop.compose import describe
from rxloop.operators.loop.model_exchange import list_offered, mark_hidden
from rxloop.pipeline.host import get_host
from rxloop.pipeline.requests import IterationEnd, ModelRequest, ToolDefinition, ToolRequest
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.events import (
    ContentCompleteEvent,
    Event,
    MessageAddedEvent,
    StageEvent,
    ThoughtStreamEvent,
    ThoughtType,
    ToolCompleteEvent,
)
from rxloop.protocol.finish import is_complete
from rxloop.protocol.messages import Message, ToolCall
from rxloop.protocol.settings import ModelSettings
from rxloop.state.history import THINK_ALOUD
from rxloop.state.run_state import RunState
from rxloop.strategies.requests import Sender
from rxloop.stream.sources import emit
from rxloop.thinking.stages import StrategyDefinition
from rxloop.thinking.stages.stage_manager import StageManager

T = TypeVar("T")

CANCELED = "canceled"
"""The error of a call that was closed because the run was cancelled."""

_NO_CAP = 10**9
"""A strategy that runs has limits of its own, so that its loops need none."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model said to one `ask`."""

    text: str
    step: str
    """The model call that said it."""
    branch: str
    calls: tuple[ToolCall, ...] = ()
    """The tools that this message calls."""
    results: tuple[ToolCompleteEvent, ...] = ()
    """What the tools of this `ask` answered, in the order in which they ended."""
    finish_reason: str = "stop"
    """How the message ended, such as `length` where it was truncated."""


class StrategyRun:
    """The run, as a strategy sees it.

    Attributes:
        name: The name of the strategy; also that of the line on which it asks unless it says otherwise.
        ctx: The context of the run.
    """

    def __init__(self, name: str, ctx: RunContext[Any], sender: Sender, stages: StrategyDefinition | None) -> None:
        self.name = name
        self.ctx = ctx
        self._sender = sender
        self._flow = StageManager(stages, loop_cap=_NO_CAP) if stages is not None else None
        self._stage: str | None = None
        self._newest: str | None = None
        self._thoughts: Counter[str] = Counter()
        self._born: dict[str, int] = {}
        self.incomplete: dict[str, ContentCompleteEvent] = {}
        """The messages of replies that did not end normally, by their text: an answer made of one is incomplete too."""

    @property
    def state(self) -> RunState:
        """The main line as it stands: the history, and the tokens of all lines."""
        return self.ctx.state

    @property
    def question(self) -> str:
        """What the run was asked: the last message that it was started with."""
        return self.state.initial_messages[-1].text if self.state.initial_messages else ""

    @property
    def calls(self) -> int:
        """The model calls so far, of all lines."""
        return self._sender.calls

    def stage(self, *names: str) -> str:
        """Go on to the next stage, or through several, and say so on the stream.

        Returns:
            What the model is to do there, where the stages are known.

        Raises:
            StageRefused: A stage may not follow the one before it.
        """
        prompts: list[str] = []
        for name in names:
            event = StageEvent(strategy=self.name, from_stage=self._stage, to_stage=name, thought_id=self._newest)
            if self._flow is not None and not (self._stage is None and name == self._flow.stage):
                try:
                    self._flow.transition_to(name)
                except StageRefused as error:
                    self._sender.publish(event.model_copy(update={"accepted": False, "reason": str(error)}))
                    raise
            self._sender.publish(event)
            self._stage = name
            prompts += [self._flow.prompt] if self._flow is not None else []
        return "\n".join(prompts)

    def thought(
        self,
        content: str,
        *,
        type: ThoughtType = "reasoning",
        id: str | None = None,
        related_to: str | None = None,
        reply: Reply | None = None,
        confidence: float | None = None,
        alternatives: Sequence[str] = (),
        tool_call_id: str | None = None,
    ) -> str:
        """Put a thought on the stream.

        Args:
            content: The thought.
            type: Its kind.
            id: Unique in the run, and the same when the run is resumed; by default counted on the line.
            related_to: The thought or the tool call that it follows from.
            reply: The message that it was read from.
            confidence: From 0 to 1.
            alternatives: What else was thought of.
            tool_call_id: The call that it is about.

        Returns:
            Its id.
        """
        line = reply.branch if reply is not None else self.name
        self._thoughts[line] += 1
        thought = ThoughtStreamEvent(
            thought_id=id or f"{line}:{self._thoughts[line]}",
            thought_type=type,
            content=content,
            confidence=confidence,
            related_to=related_to,
            alternatives=list(alternatives),
            source="strategy",
            tool_call_id=tool_call_id,
            step=reply.step if reply is not None else None,
            branch=reply.branch if reply is not None else None,
        )
        self._sender.publish(thought)
        self._newest = thought.thought_id
        return self._newest

    async def ask(
        self,
        prompt: str | None = None,
        *,
        branch: str | None = None,
        tools: bool = False,
        times: int | None = None,
        settings: ModelSettings | None = None,
        said: Callable[[Reply], None] | None = None,
    ) -> Reply:
        """Ask the model on a line beside the main one, and wait for its message.

        A line begins with the history of the run, and each `ask` continues it.

        Args:
            prompt: What to say before; None lets the model go on.
            branch: The line; what goes on side by side needs lines of its own. By default there is one, named for the
                strategy. The model calls of a line are its steps 1, 2 and so on: those of `tot/1` are `tot/1/1` ...
            tools: Whether the model may call the agent's tools; it is then asked until it calls none any more.
            times: At most this many times, where it may call tools.
            settings: Over those of the run. A forced `tool_choice` applies to the first request of this `ask`.
            said: Called with each message when it is complete, before its tools are called.

        Raises:
            ProviderError: The model call failed. It is closed then, and the strategy may go on without it.
        """
        line = branch or self.name
        ctx = self.ctx.bind(branch=line)
        self._born.setdefault(line, len(ctx.state.messages))
        results: list[ToolCompleteEvent] = []
        own = settings
        if prompt is not None:
            self._sender.publish(MessageAddedEvent(content=prompt, cause="strategy", branch=line))

        def seen(event: Event) -> None:
            nonlocal own
            if isinstance(event, ToolCompleteEvent):
                results.append(event)
            elif isinstance(event, ContentCompleteEvent):
                own = None if settings is None else settings.relax_tool_choice(())
                if said is not None:
                    calls = tuple(event.tool_calls)
                    said(Reply(event.content, event.step or "", line, calls, finish_reason=event.finish_reason))

        def shaped(request: ModelRequest) -> ModelRequest:
            return request.replace(
                tools=tuple(tool for tool in request.tools if not tool.answer) if tools else (),
                settings=own.merge_defaults(request.settings) if own is not None else request.settings,
                response_schema=None,
            )

        await self._sender.iterate(ctx, shaped, seen, times)
        state = ctx.state
        last = state.last
        assert last is not None
        if not is_complete(last):
            self.incomplete[state.content.strip()] = last
        calls = tuple(last.tool_calls)
        return Reply(state.content, last.step or "", line, calls, tuple(results), last.finish_reason)

    async def conclude(self, prompt: str, *, branch: str | None = None) -> str:
        """Let the model answer on the main line, where its text streams as the answer of the run.

        The prompt does not enter the history: what a conversation keeps is the question and the answer.

        Args:
            prompt: Asks for the answer.
            branch: The line whose messages the model sees before the prompt; by default the one of the strategy.

        Returns:
            The answer, for the strategy to return.
        """
        line = branch or self.name
        said = self.ctx.bind(branch=line).state.messages[self._born[line] :] if line in self._born else ()
        tail = (*said, Message.user(prompt))
        begun = len(self.state.messages)

        def shaped(request: ModelRequest) -> ModelRequest:
            request = request.replace(tail=tail, tools=tuple(tool for tool in request.tools if tool.answer))
            pieces = request.messages[begun:]
            if not pieces or any(piece.role != "assistant" or piece.tool_calls for piece in pieces):
                return request
            # Pieces of the answer, with which the model goes on, stand behind what it answers.
            return request.replace(messages=request.messages[:begun], tail=(*tail, *pieces))

        await self._sender.iterate(self.ctx, shaped)
        return self.state.content

    async def call(self, tool: str, arguments: Mapping[str, Any], *, branch: str) -> ToolCompleteEvent:
        """Call a tool of the agent, with no model call; guards see it like any other call.

        Args:
            tool: Its name.
            arguments: Its arguments.
            branch: The line of this one call, such as `rewoo/E1`; also its step and the id of the call.
        """
        return await self._called(tool, arguments, self.ctx.bind(step=branch, branch=branch))

    async def _called(self, tool: str, arguments: Mapping[str, Any], ctx: RunContext[Any]) -> ToolCompleteEvent:
        branch = ctx.step or ""
        given = dict(arguments)
        call = mark_hidden(
            ToolCall(id=branch, name=tool, arguments=given, raw=orjson.dumps(given).decode()), get_host(ctx).tools
        )
        tools = await self.tools()
        request = ToolRequest(call, ctx.bind(call=call), get_host(ctx).tools.narrow(branch, tools))
        answer = await self._answered(request, list_offered(tools, [call], get_host(ctx).tools))
        earlier = answer.attempt and answer.attempt < ctx.attempt
        if earlier and answer.error == CANCELED and getattr(get_host(ctx).tools.find(request), "idempotent", False):
            # It was cut off when an earlier attempt was cancelled, and may be made once more.
            again = f"{branch}/again"
            first = ctx.first_step or branch
            return await self._called(tool, arguments, ctx.bind(step=again, branch=again, first_step=first))
        return answer

    async def _answered(self, request: ToolRequest, offered: list[str] | None) -> ToolCompleteEvent:
        ctx = request.ctx.bind(call=None)
        message = ContentCompleteEvent(
            tool_calls=[request.call],
            finish_reason="tool_calls",
            offered=offered,
            step=ctx.step,
            branch=ctx.branch,
        )
        answers: list[ToolCompleteEvent] = []

        def seen(event: Event) -> None:
            if isinstance(event, ToolCompleteEvent):
                answers.append(event)

        pipeline = self._sender.pipeline
        await self._sender.send(pipeline, emit(message, request, IterationEnd(1, ctx)), ctx, seen)
        if not answers:
            name = request.call.name
            raise PipelineError(f"nothing answered the call of {name}: the pipeline is {describe(pipeline)}")
        return answers[0]

    async def tools(self) -> tuple[ToolDefinition, ...]:
        """List the tools of the agent that are for work, and not for thinking aloud or for the answer."""
        made = get_host(self.ctx).build_request(self.ctx, 0, 0)
        request = made if isinstance(made, ModelRequest) else await made
        return tuple(tool for tool in request.tools if not tool.answer and tool.name != THINK_ALOUD)

    async def gather(
        self,
        *work: Coroutine[Any, Any, T],
        at_once: int | None = None,
        until: Callable[[Sequence[T]], bool] | None = None,
    ) -> list[T]:
        """Do several things side by side; the first failure ends them all.

        Args:
            *work: Coroutines, such as those of `ask` on several lines.
            at_once: How many may go on at the same time; None is no limit.
            until: Called with the results so far whenever there are more, in the order of `work`. What still goes on is
                closed as soon as it says so.

        Returns:
            The results in the order of `work`, without those of what was closed.
        """
        results: dict[int, T] = {}
        places = asyncio.Semaphore(at_once or max(len(work), 1))
        enough = False

        async def one(place: int, each: Coroutine[Any, Any, T]) -> None:
            nonlocal enough
            async with places:
                if not enough:
                    results[place] = await each
                    enough = until is not None and until([results[place] for place in sorted(results)])

        name = f"rxloop-strategy-{self.name}"
        tasks = [self.ctx.info.scope.spawn(one(place, coroutine), name) for place, coroutine in enumerate(work)]
        pending = set(tasks)
        try:
            while pending:
                _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                # In order, not in that of a set, so that a run is recorded in the same way each time.
                for task in tasks:
                    if task.done():
                        task.result()
                if enough:
                    break
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for coroutine in work:
                # A coroutine that was cancelled before it began would warn that nobody has awaited it.
                coroutine.close()
        return [results[place] for place in sorted(results)]
