"""Tools offered to the model during an attempt, and the requests offering them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

from rxloop.errors import ConfigurationError
from rxloop.pipeline.interfaces import Tool
from rxloop.pipeline.requests import ModelRequest, ToolDefinition, ToolRequest
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.events import ToolsUnavailableEvent
from rxloop.protocol.messages import Message, ToolCall
from rxloop.run.lifetime import Lifetime
from rxloop.run.recorder import Recorder
from rxloop.run.spec import RunSpec

if TYPE_CHECKING:
    from rxloop.tools.agent_tools import AgentTools, OfferedTools
    from rxloop.tools.toolsets import MissingToolset

log = logging.getLogger("rxloop")


class AttemptTools:
    """Tools offered to the model so far."""

    __slots__ = ("_agent_tools", "_missing", "_offered", "_recorder")

    def __init__(self, agent_tools: AgentTools, recorder: Recorder) -> None:
        self._agent_tools, self._recorder = agent_tools, recorder
        self._offered: dict[str, Tool] = {}
        self._missing: Sequence[MissingToolset] = ()
        """Toolsets currently unavailable."""

    def replace(self, tools: Mapping[str, Tool], missing: Sequence[MissingToolset], ctx: RunContext[Any]) -> None:
        """Replace the offered tools when resuming, and report unavailable toolsets."""
        self._offered = dict(tools)
        self._report_missing(missing, ctx)

    def add(self, offered: OfferedTools, ctx: RunContext[Any]) -> None:
        """Add tools offered in a request, and report unavailable toolsets."""
        self._offered.update(offered.tools)
        self._report_missing(offered.missing, ctx)

    def _report_missing(self, missing: Sequence[MissingToolset], ctx: RunContext[Any]) -> None:
        """Publish an event when a toolset becomes unavailable."""
        if not missing and not self._missing:
            return
        reported = {each.name for each in self._missing}
        self._missing = missing
        for each in missing:
            if each.name not in reported:
                log.warning("Tools of %s are unavailable in run %s: %s", each.name, self._recorder.task_id, each.reason)
                self._recorder.publish(
                    ToolsUnavailableEvent(toolset=each.name, reason=each.reason, step=ctx.step, branch=ctx.branch)
                )

    def find(self, request: ToolRequest) -> Tool | str:
        """Return the requested tool, or a message explaining why it can't be called."""
        name = request.call.name
        offered = self._offered if request.offered is None else (each.name for each in request.offered)
        tool = self._offered.get(name) or self._agent_tools.plain_tools.get(name)
        if tool is None or name not in offered:
            names = self._offered if request.offered is None else [each.name for each in request.offered]
            return self._agent_tools.explain_unavailable(name, list(names), [missing.name for missing in self._missing])
        earlier, slot = self._recorder.earlier, request.slot
        if slot[0] in earlier.messages and self._agent_tools.is_swapped(name, tool, earlier.question_kinds.get(slot)):
            return f"The tool {name!r} is another one now than when it was called, and was not called."
        return tool

    def narrow(self, step: str, tools: tuple[ToolDefinition, ...] | None = None) -> tuple[ToolDefinition, ...] | None:
        """Return only tools that were also offered when an earlier attempt requested the same step.

        Args:
            step: Step of the model call.
            tools: Tools allowed now. Defaults to all offered tools.

        Returns:
            Unchanged `tools` if the earlier message has no record of its tools.
        """
        earlier = self._recorder.earlier.messages.get(step)
        if earlier is None or earlier.offered is None:
            return tools
        now = [tool.definition for tool in self._offered.values()] if tools is None else tools
        return tuple(tool for tool in now if tool.name in earlier.offered)

    def offers(self, name: str) -> bool:
        """Return True if the model has been offered a tool by that name."""
        return name in self._offered

    def hides(self, name: str) -> bool:
        """Return True if the tool's calls are hidden from clients."""
        return self._agent_tools.hides(name)

    def has_others(self, names: Set[str]) -> bool:
        """Return True if the run has any other tools, whether offered or not."""
        return not (names >= self._offered.keys() and names >= self._agent_tools.plain_tools.keys())

    def is_idempotent(self, call: ToolCall) -> bool:
        """Return True if the call's tool is offered and can be called again safely."""
        tool = self._offered.get(call.name)
        return tool is not None and tool.idempotent


class RequestBuilder:
    """Builder for the model requests of an attempt.

    Attributes:
        system: Layers of the system prompt defined by the agent.
    """

    __slots__ = ("_recorder", "_spec", "_tools", "system")

    def __init__(self, spec: RunSpec, tools: AttemptTools, recorder: Recorder) -> None:
        self._spec, self._tools, self._recorder = spec, tools, recorder
        self.system: tuple[Message, ...] = ()

    async def resolve_system(self, ctx: RunContext[Any], lifetime: Lifetime) -> None:
        """Resolve the system prompt layers, unless the attempt is ending.

        Raises:
            ConfigurationError: The instructions function did not return a string.
        """
        instructions = self._spec.instructions
        text: Any = instructions
        if not isinstance(instructions, str):
            # Speeds up `import rxloop`.
            from rxloop.pipeline.time_limits import limit_time
            from rxloop.support.threads import call_user_function

            name = f"the instructions {getattr(instructions, '__name__', 'function')}()"
            text = await lifetime.prepare(limit_time(ctx, lambda: call_user_function(instructions, ctx), name))
            if not isinstance(text, str) and not lifetime.is_ending:
                raise ConfigurationError(f"{name} must return a string, got {text!r}")
        texts = [part for part in (text, self._spec.output_prompt) if part]
        self.system = (Message.system("\n\n".join(texts)),) if texts else ()

    def build(self, ctx: RunContext[Any], iteration: int, pressure: int) -> ModelRequest | Awaitable[ModelRequest]:
        """Build the next model request. Returns an awaitable if a toolset must be asked for its tools.

        Args:
            ctx: Context with the step and branch.
            iteration: Iteration of the loop, starting from 1.
            pressure: Number of times the provider has rejected the request as too long.
        """
        offered = self._spec.tools.resolve_now(ctx)
        if offered is not None:
            return self._build(ctx, iteration, pressure, offered)

        async def resolve_and_build() -> ModelRequest:
            return self._build(ctx, iteration, pressure, await self._spec.tools.resolve(ctx))

        return resolve_and_build()

    def _build(self, ctx: RunContext[Any], iteration: int, pressure: int, offered: OfferedTools) -> ModelRequest:
        spec, tools = self._spec, offered.tools
        self._tools.add(offered, ctx)
        state = self._recorder.state(ctx.branch)
        messages, settings = state.messages, spec.settings
        if state.last is not None:
            # The model has already answered on this branch.
            settings = settings.relax_tool_choice(offered.answers)
        if spec.limits.conclude and ctx.branch is None and iteration == spec.limits.iterations:
            choice = offered.answers[0] if offered.answers else "none"
            settings = settings.model_copy(update={"tool_choice": choice})
        return ModelRequest(
            system=self.system,
            messages=messages,
            history=len(messages),
            tools=spec.tools.definitions(tools),
            settings=settings,
            step=ctx.step or "",
            branch=ctx.branch,
            iteration=iteration,
            response_schema=spec.response_schema,
            pressure=pressure,
            ctx=ctx,
        )
