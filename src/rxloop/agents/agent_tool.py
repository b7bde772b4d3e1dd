"""Agents used as tools."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any, TypeVar, cast

from pydantic import Field
from reactivex import operators as rx
from typing_extensions import override

from rxloop.agents.definition import AgentDefinition
from rxloop.agents.options import AgentToolOptions, Options
from rxloop.agents.specs import make_spec
from rxloop.agents.validation import check_deps, check_history, check_options
from rxloop.errors import ConfigurationError, Paused, ToolError
from rxloop.pipeline.run_context import RunContext
from rxloop.pipeline.time_limits import limit_time
from rxloop.protocol.events import WAITING, Event, State, StatusUpdateEvent, SubtaskEvent
from rxloop.protocol.finish import explain_incomplete
from rxloop.protocol.ids import make_nested_id
from rxloop.protocol.messages import Prompt, to_messages
from rxloop.protocol.model import EMPTY_DICT, FrozenDict
from rxloop.protocol.visibility import HIDDEN, redact_error
from rxloop.run.attempt import Attempt
from rxloop.run.lifecycle import execute_nested_attempt
from rxloop.run.lifetime import PARENT_ENDED, Canceled, End, Released
from rxloop.run.nested import NestedAttempt, list_ancestors
from rxloop.run.spec import RunSpec
from rxloop.stream.sources import select_events, subscribe_views
from rxloop.support.threads import call_user_function
from rxloop.tools.function import CallOptions, FunctionTool
from rxloop.tools.result import ToolResult, encode_result

C = TypeVar("C", contravariant=True)

P = TypeVar("P")

R = TypeVar("R")

NestedDeps = Callable[[RunContext[P]], R | Awaitable[R]]
"""Function that creates nested run dependencies from the caller's context."""


_INVALID_CHARACTERS = re.compile(r"[^a-zA-Z0-9_-]+")


def _pass_prompt(
    prompt: Annotated[str, Field(description="The whole task: nothing else of this conversation is known to it.")],
) -> str:
    return prompt


class AgentTool(FunctionTool[C, ..., Prompt]):
    """Tool that runs an agent, created by `agent.as_tool()`.

    The tool is idempotent, regardless of the agent's own tools. Repeating an interrupted call resumes the nested run.
    """

    can_redact = False
    """The log records the events of the nested run before the call returns."""

    def __init__(
        self,
        definition: AgentDefinition,
        name: str | None,
        deps: NestedDeps[Any, Any] | None,
        options: AgentToolOptions,
    ) -> None:
        """Create a tool from an agent.

        Args:
            definition: Agent definition.
            name: Tool name.
            deps: Function that creates the dependencies of the nested run.
            options: Additional tool options.
        """
        check_options("Agent.as_tool", options, AgentToolOptions)
        prompt, limits = options.pop("prompt", None), options.pop("limits", None)
        description = options.pop("description", None)
        if prompt is None and description is None:
            description = f"Passes a task to the agent {definition.name} and returns its answer."
        super().__init__(
            prompt or _pass_prompt,
            name=name or _INVALID_CHARACTERS.sub("_", definition.name),
            description=description,
            idempotent=True,
            **cast("CallOptions", options),
        )
        self.takes_context = self.takes_context or deps is not None
        self._agent = definition
        self._deps = deps
        self._limits = limits

    @override
    async def call(self, arguments: dict[str, Any], ctx: RunContext[C]) -> Any:
        """Execute or resume the nested run, and return its answer.

        Raises:
            ToolError: If the run was not started, or ended without an answer.
            Paused: If the nested run is waiting for input.
        """
        parent = ctx.run
        if not isinstance(parent, Attempt):
            raise ToolError(f"{self.definition.name} is an agent and can only be called in a run")
        prompt = await super().call(arguments, ctx)
        deps = (
            ctx.deps
            if self._deps is None
            else await limit_time(ctx, partial(call_user_function, self._deps, ctx), f"deps= of {self!r}")
        )
        self._check_limits(parent)
        child = NestedAttempt(self._make_spec(parent, ctx, prompt, deps), ctx, parent)
        state = child.state()
        if not state.finished:
            await _execute(child, ctx)
            state = child.state()
        if state.state in WAITING:
            parent.recorder.add_nested_questions(ctx.branch, state.pending)
            raise Paused
        return _answer(child, self.definition.name)

    @override
    async def aclose(self) -> None:
        """Close resources opened by the agent, unless it is executing other runs."""
        if not any(hold.is_executing for hold in self._agent.resources.runs):
            await self._agent.close_resources()

    def _make_spec(self, parent: Attempt, ctx: RunContext[Any], prompt: Prompt, deps: Any) -> RunSpec:
        check_deps("Agent.run", self._agent.deps_type, deps)
        messages = check_history(to_messages(prompt))
        if not messages:
            raise ConfigurationError(f"the prompt of {self!r} must not be empty")
        options: Options = {"limits": self._limits, "metadata": parent.info.metadata, "on_input": parent.spec.on_input}
        task_id = make_nested_id(parent.task_id, ctx.first_step or ctx.step, ctx.index)
        spec = make_spec(self._agent, task_id, parent.context_id, deps, options, messages=messages)
        return spec._replace(log=parent.info.log, initiator=parent.info.agent_name, recorded_options=None)

    def _check_limits(self, parent: Attempt) -> None:
        """Check the limits for nested runs.

        Raises:
            ToolError: If a limit is exceeded, or the calling run is ending.
        """
        if not parent.recorder.is_accepting:
            raise ToolError(
                f"The agent {self._agent.name} was not called: the run of {parent.info.agent_name} is over."
            )
        for depth, run in enumerate([parent, *list_ancestors(parent)], 1):
            if run.info.limits.depth is not None and depth > run.info.limits.depth:
                raise ToolError(
                    f"The agent {self._agent.name} was not called: below {run.info.agent_name}, agents may be nested "
                    f"{run.info.limits.depth} deep (limits.depth). Do it without."
                )
            width = run.info.limits.width
            if width is not None and _count_active(run) >= width:
                raise ToolError(
                    f"The agent {self._agent.name} was not called: below {run.info.agent_name}, {width} agents "
                    "are at work already (limits.width). Call it again when one of them has answered."
                )


async def _execute(child: NestedAttempt, ctx: RunContext[Any]) -> None:
    """Execute a nested attempt. A cancellation is raised after the attempt has ended."""
    parent = child.parent
    parent.nested = (*parent.nested, child)
    _publish_state(child, ctx, "working")
    loop = asyncio.get_running_loop()
    child.lifetime.bind(loop)
    _subscribe_views(child)
    driver = loop.create_task(execute_nested_attempt(child), name=f"rxloop-run-{child.task_id}")
    cancellation: asyncio.CancelledError | None = None
    try:
        while not driver.done():
            try:
                await asyncio.wait([driver])
            except asyncio.CancelledError as error:
                cancellation = error
                child.lifetime.finish(_choose_end(parent))
    finally:
        parent.nested = tuple(other for other in parent.nested if other is not child)
    driver.result()
    if child.final is not None:
        _publish_state(child, ctx, cast("StatusUpdateEvent", child.final).state)
    if cancellation is not None:
        raise cancellation


def _subscribe_views(child: NestedAttempt) -> None:
    """Subscribe the views of a nested agent, except for those that already receive its events from an ancestor."""
    inherited = [view for run in list_ancestors(child) for view in run.spec.views]
    task_ids, previous = {child.task_id}, child.recorder.stamp.numbering.seq

    def is_own(event: Event) -> bool:
        if event.parent_task_id in task_ids:
            task_ids.add(event.task_id)
        return event.seq > previous and event.task_id in task_ids

    def is_not_last(event: Event) -> bool:
        return not (event.task_id == child.task_id and isinstance(event, StatusUpdateEvent) and event.final)

    for view in child.spec.views:
        if view not in inherited:
            events = select_events(child.recorder.hub.events, view)
            own = events.pipe(rx.filter(is_own), rx.take_while(is_not_last, inclusive=True))
            subscribe_views(own, [view], child.lifetime.scheduler, lambda error: False, child.task_id)


def _choose_end(parent: Attempt) -> End:
    """Return the reason for ending a nested run after its call was cancelled."""
    end = parent.lifetime.end
    if not parent.lifetime.is_ending:
        return Canceled("the tool call was cancelled")
    if isinstance(end, Canceled | Released):
        return Canceled(end.reason) if isinstance(end, Canceled) else end
    return PARENT_ENDED


def _publish_state(child: NestedAttempt, ctx: RunContext[Any], state: State) -> None:
    parent = child.parent
    # Publish directly, because `ctx.emit` discards events from cancelled calls.
    if parent.recorder.is_accepting:
        parent.publish(
            SubtaskEvent(
                subtask_id=child.task_id,
                agent_name=child.info.agent_name,
                tool_call_id=ctx.call.id if ctx.call is not None else None,
                index=ctx.index,
                state=state,
                step=ctx.step,
                branch=ctx.branch,
                metadata=FrozenDict({HIDDEN: True}) if child.hidden else EMPTY_DICT,
            )
        )


def _answer(child: NestedAttempt, name: str) -> Any:
    """Return the tool result of a nested run.

    Raises:
        ToolError: If the run ended without an answer.
    """
    state = child.state()
    if state.state == "completed":
        answer = child.try_parse(state.content)[0]
        incomplete = explain_incomplete(state.last)
        if incomplete is None:
            return ToolResult(answer, encode_result(answer)[1], parts=state.files) if state.files else answer
        # Put the note first, because a long result may be truncated.
        content = f"[{name} gave no complete answer: {incomplete}.]\n{encode_result(answer)[1]}"
        return ToolResult(answer, content, parts=state.files)
    error = state.error
    reason = redact_error(error, state.reason).message if error is not None else state.state
    written = f" It had written: {state.content}" if state.content else ""
    text = f"{name} ended without an answer ({state.reason or state.state}): {reason}{written}"
    raise ToolError(text, parts=state.files)


def _count_active(run: Attempt) -> int:
    """Return the number of active nested runs, excluding those waiting for input."""
    return sum(_count_active(child) + (not child.questions.is_idle) for child in run.nested)
