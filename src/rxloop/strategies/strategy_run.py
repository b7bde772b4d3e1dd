"""Interface of a run for strategy functions."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson

from rxloop.errors import PipelineError, StageRefused
from rxloop.operators.exchange.model_exchange import list_offered, mark_hidden
from rxloop.operators.loop.compose import describe
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
"""Error code of calls closed by cancellation."""

_NO_CAP = 10**9
"""Effectively unlimited, because strategy functions enforce separate limits."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Model reply to a single `ask` call."""

    text: str
    step: str
    """Step of the model call that returned the message."""
    branch: str
    calls: tuple[ToolCall, ...] = ()
    """Tool calls in the message."""
    results: tuple[ToolCompleteEvent, ...] = ()
    """Tool results received during this `ask`, in completion order."""
    finish_reason: str = "stop"
    """Finish reason of the message, for example `length` for truncated replies."""


class StrategyRun:
    """Run interface for strategy functions.

    Attributes:
        name: Strategy name, also the default branch name.
        ctx: Run context.
    """

    def __init__(self, name: str, ctx: RunContext[Any], sender: Sender, stages: StrategyDefinition | None) -> None:
        self.name = name
        self.ctx = ctx
        self._sender = sender
        self._flow = StageManager(stages, loop_cap=_NO_CAP) if stages is not None else None
        self._stage: str | None = None
        self._last_id: str | None = None
        self._thoughts: Counter[str] = Counter()
        self._starts: dict[str, int] = {}
        self.incomplete: dict[str, ContentCompleteEvent] = {}
        """Incomplete messages by text. Answers with identical text are also incomplete."""

    @property
    def state(self) -> RunState:
        """Main branch state, with token usage across all branches."""
        return self.ctx.state

    @property
    def question(self) -> str:
        """Text of the last initial message, or an empty string."""
        return self.state.initial_messages[-1].text if self.state.initial_messages else ""

    @property
    def calls(self) -> int:
        """Total number of model calls across all branches."""
        return self._sender.calls

    def stage(self, *names: str) -> str:
        """Enter one or more stages and publish each transition.

        Returns:
            Stage instructions for the model, or an empty string for undefined stages.

        Raises:
            StageRefused: Invalid transition from the current stage.
        """
        prompts: list[str] = []
        for name in names:
            event = StageEvent(strategy=self.name, from_stage=self._stage, to_stage=name, thought_id=self._last_id)
            if self._flow is not None and not (self._stage is None and name == self._flow.stage):
                try:
                    self._flow.enter(name)
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
        """Publish a thought.

        Args:
            content: The thought.
            type: Type of the thought.
            id: Id that is unique in the run and the same after a resume. By default thoughts are numbered per branch.
            related_to: Id of the thought or tool call that it follows from.
            reply: Message that contains the thought.
            confidence: Confidence from 0 to 1.
            alternatives: Other options that were considered.
            tool_call_id: Id of the tool call that it refers to.

        Returns:
            The id of the thought.
        """
        own = reply.branch if reply is not None else self.name
        self._thoughts[own] += 1
        thought = ThoughtStreamEvent(
            thought_id=id or f"{own}:{self._thoughts[own]}",
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
        self._last_id = thought.thought_id
        return self._last_id

    async def ask(
        self,
        prompt: str | None = None,
        *,
        branch: str | None = None,
        tools: bool = False,
        max_calls: int | None = None,
        settings: ModelSettings | None = None,
        on_message: Callable[[Reply], None] | None = None,
    ) -> Reply:
        """Call the model on a branch and return its message.

        A branch starts with the history of the run and is extended by each `ask`.

        Args:
            prompt: Message to add before the call. None continues without one.
            branch: Name of the branch. Concurrent calls need different branches. Defaults to the name of the strategy.
                Model calls are numbered: the first step of the branch `tot/1` is `tot/1/1`.
            tools: Whether the model may call the agent's tools. If so, the model is called again until its message
                contains no tool calls.
            max_calls: Maximum number of model calls if tools are allowed.
            settings: Override the settings of the run. A forced `tool_choice` applies to the first request of this
                `ask`.
            on_message: Called with each complete message, before its tools are called.

        Raises:
            ProviderError: If the model call failed. The call is closed, and the strategy may continue.
        """
        own = branch or self.name
        ctx = self.ctx.bind(branch=own)
        self._starts.setdefault(own, len(ctx.state.messages))
        results: list[ToolCompleteEvent] = []
        effective = settings
        if prompt is not None:
            self._sender.publish(MessageAddedEvent(content=prompt, cause="strategy", branch=own))

        def on_event(event: Event) -> None:
            nonlocal effective
            if isinstance(event, ToolCompleteEvent):
                results.append(event)
            elif isinstance(event, ContentCompleteEvent):
                effective = None if settings is None else settings.relax_tool_choice(())
                if on_message is not None:
                    calls = tuple(event.tool_calls)
                    on_message(Reply(event.content, event.step or "", own, calls, finish_reason=event.finish_reason))

        def transform(request: ModelRequest) -> ModelRequest:
            return request.replace(
                tools=tuple(tool for tool in request.tools if not tool.answer) if tools else (),
                settings=effective.merge_defaults(request.settings) if effective is not None else request.settings,
                response_schema=None,
            )

        await self._sender.iterate(ctx, transform, on_event, max_calls)
        state = ctx.state
        last = state.last
        assert last is not None
        if not is_complete(last):
            self.incomplete[state.content.strip()] = last
        calls = tuple(last.tool_calls)
        return Reply(state.content, last.step or "", own, calls, tuple(results), last.finish_reason)

    async def conclude(self, prompt: str, *, branch: str | None = None) -> str:
        """Let the model answer on the main branch, where its text is streamed as the answer of the run.

        The prompt is not added to the history. A conversation only keeps the question and the answer.

        Args:
            prompt: Instructions for the answer.
            branch: Branch whose messages the model sees before the prompt. Defaults to the branch of the strategy.

        Returns:
            The answer, which the strategy should return.
        """
        own = branch or self.name
        messages = self.ctx.bind(branch=own).state.messages[self._starts[own] :] if own in self._starts else ()
        tail = (*messages, Message.user(prompt))
        start = len(self.state.messages)

        def transform(request: ModelRequest) -> ModelRequest:
            request = request.replace(tail=tail, tools=tuple(tool for tool in request.tools if tool.answer))
            continuation = request.messages[start:]
            if not continuation or any(piece.role != "assistant" or piece.tool_calls for piece in continuation):
                return request
            # Continued parts must follow their original prompt.
            return request.replace(messages=request.messages[:start], tail=(*tail, *continuation))

        await self._sender.iterate(self.ctx, transform)
        return self.state.content

    async def call(self, tool: str, arguments: Mapping[str, Any], *, branch: str) -> ToolCompleteEvent:
        """Call an agent tool directly, without a model request. Guards still apply.

        Args:
            tool: Tool name.
            arguments: Call arguments.
            branch: Branch name, for example `rewoo/E1`. Also used as step and call id.
        """
        return await self._call_on(tool, arguments, self.ctx.bind(step=branch, branch=branch))

    async def _call_on(self, tool: str, arguments: Mapping[str, Any], ctx: RunContext[Any]) -> ToolCompleteEvent:
        branch = ctx.step or ""
        fields = dict(arguments)
        call = mark_hidden(
            ToolCall(id=branch, name=tool, arguments=fields, raw=orjson.dumps(fields).decode()), get_host(ctx).tools
        )
        tools = await self.tools()
        request = ToolRequest(call, ctx.bind(call=call), get_host(ctx).tools.narrow(branch, tools))
        answer = await self._send_call(request, list_offered(tools, [call], get_host(ctx).tools))
        earlier = answer.attempt and answer.attempt < ctx.attempt
        if earlier and answer.error == CANCELED and getattr(get_host(ctx).tools.find(request), "idempotent", False):
            # Idempotent calls interrupted in an earlier attempt can be retried.
            again = f"{branch}/again"
            first = ctx.first_step or branch
            return await self._call_on(tool, arguments, ctx.bind(step=again, branch=again, first_step=first))
        return answer

    async def _send_call(self, request: ToolRequest, offered: list[str] | None) -> ToolCompleteEvent:
        ctx = request.ctx.bind(call=None)
        message = ContentCompleteEvent(
            tool_calls=[request.call], finish_reason="tool_calls", offered=offered, step=ctx.step, branch=ctx.branch
        )
        results: list[ToolCompleteEvent] = []

        def on_event(event: Event) -> None:
            if isinstance(event, ToolCompleteEvent):
                results.append(event)

        pipeline = self._sender.pipeline
        await self._sender.send(pipeline, emit(message, request, IterationEnd(1, ctx)), ctx, on_event)
        if not results:
            name = request.call.name
            raise PipelineError(f"no operator answered the call of {name}; the pipeline is {describe(pipeline)}")
        return results[0]

    async def tools(self) -> tuple[ToolDefinition, ...]:
        """List agent tools, excluding answer tools and the think-aloud tool."""
        result = get_host(self.ctx).build_request(self.ctx, 0, 0)
        request = result if isinstance(result, ModelRequest) else await result
        return tuple(tool for tool in request.tools if not tool.answer and tool.name != THINK_ALOUD)

    async def gather(
        self,
        *work: Coroutine[Any, Any, T],
        max_concurrent: int | None = None,
        until: Callable[[Sequence[T]], bool] | None = None,
    ) -> list[T]:
        """Run coroutines concurrently. The first failure cancels the others.

        Args:
            *work: Coroutines, such as calls of `ask` on several branches.
            max_concurrent: Maximum number of concurrent coroutines. None for no limit.
            until: Called with the results so far, in the order of `work`, after each new result. If it returns True,
                the remaining coroutines are cancelled.

        Returns:
            The results in the order of `work`, without those of cancelled coroutines.
        """
        results: dict[int, T] = {}
        semaphore = asyncio.Semaphore(max_concurrent or max(len(work), 1))
        is_enough = False

        async def run_one(index: int, each: Coroutine[Any, Any, T]) -> None:
            nonlocal is_enough
            async with semaphore:
                if not is_enough:
                    results[index] = await each
                    is_enough = until is not None and until([results[index] for index in sorted(results)])

        name = f"rxloop-strategy-{self.name}"
        tasks = [self.ctx.info.scope.spawn(run_one(index, coroutine), name) for index, coroutine in enumerate(work)]
        pending = set(tasks)
        try:
            while pending:
                _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                # In a fixed order, so that repeated runs are recorded identically.
                for task in tasks:
                    if task.done():
                        task.result()
                if is_enough:
                    break
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for coroutine in work:
                # Suppress "coroutine was never awaited" warnings.
                coroutine.close()
        return [results[index] for index in sorted(results)]
