"""Agent definitions and their open resources."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar
from weakref import WeakSet

from rxloop.agents.options import AgentOptions
from rxloop.agents.validation import check_deps_type, check_model, check_operator, check_options, check_tools
from rxloop.errors import ConfigurationError, RxloopError
from rxloop.operators.loop.compose import compose
from rxloop.operators.loop.iterate import iterate
from rxloop.operators.loop.standard import standard
from rxloop.operators.loop.typed_output import typed_output
from rxloop.operators.views import View
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.interfaces import MakesModels, Provider
from rxloop.pipeline.requests import Operator, Strategy
from rxloop.protocol.settings import Limits, ModelSettings
from rxloop.run.attempt import Attempt
from rxloop.run.handle import Run
from rxloop.run.ownership import OwnedRuns, RunHold
from rxloop.run.result import Result
from rxloop.run.spec import Instructions, RunSpec
from rxloop.support.tasks import close_all, has_running_loop, wait_all
from rxloop.tools.agent_tools import AgentTools, AnyTool
from rxloop.tools.function import FunctionTool
from rxloop.tools.output import Output, make_output
from rxloop.tools.think_aloud import Thoughts, think_aloud
from rxloop.tools.toolsets import Toolsets

if TYPE_CHECKING:
    from rxloop.pipeline.artifacts import ArtifactStore

O = TypeVar("O")  # noqa: E741


class OpenResources:
    """Runs, providers and toolsets opened by an agent."""

    def __init__(self) -> None:
        self.runs: WeakSet[RunHold] = WeakSet()
        self.owned = OwnedRuns()
        """Started runs without a log."""
        self.providers: dict[str, Provider] = {}
        """Providers created from model strings."""
        self.user_providers: WeakSet[Provider] = WeakSet()
        """Providers passed by the user that can create other providers from model strings."""
        self.toolsets = Toolsets()
        self.is_closed = False

    def get_provider(self, model: Provider | str) -> Provider:
        """Return a provider, using a single instance per model string. It is closed with the agent."""
        if not isinstance(model, str):
            if isinstance(model, MakesModels):
                self.user_providers.add(model)
            return model
        if model not in self.providers:
            # Imported lazily, because importing the providers is slow.
            from rxloop.providers.factories import resolve_model

            self.providers[model] = resolve_model(model)
        return self.providers[model]


DEFAULT_NAME = "agent"
"""Name of all agents that were created without one."""


class Overrides(TypedDict, total=False):
    """Temporary model and tools, which take precedence over those of the agent and its runs."""

    model: Provider
    tools: AgentTools


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AgentDefinition:
    """Immutable configuration of an agent."""

    name: str
    model: Provider
    deps_type: type[Any] | None
    instructions: Instructions
    thoughts: Thoughts | None
    """Options of the tool for thinking aloud, or None if disabled."""
    record_requests: bool
    output: Output
    tools: AgentTools
    pipeline: Operator
    """Operator for one iteration."""
    strategy: Strategy
    limits: Limits
    settings: ModelSettings
    log: EventLog | None
    artifacts: ArtifactStore | None
    views: tuple[View[Any, Any], ...]
    """Views to subscribe to each run."""
    resources: OpenResources

    @property
    def tool_names(self) -> list[str]:
        """Names of tools visible to clients, excluding toolsets, which require a run."""
        return [*self.tool_descriptions]

    @property
    def tool_descriptions(self) -> dict[str, str]:
        """Descriptions of visible tools by name."""
        tools = self.tools
        return {name: each.definition.description for name, each in tools.plain_tools.items() if not tools.hides(name)}

    @property
    def client_tool_names(self) -> list[str]:
        """Names of tools executed by clients, excluding run-specific ones."""
        # Imported lazily to keep `import rxloop` fast.
        from rxloop.tools.client_tool import ClientTool

        return [name for name, tool in self.tools.plain_tools.items() if isinstance(tool, ClientTool)]

    @property
    def output_schema(self) -> dict[str, Any] | None:
        """JSON Schema for `output_json` values, or None if the answer is text."""
        return self.output.json_schema()

    def output_json(self, content: str) -> Any:
        """Return the answer as JSON data. Text answers are returned unchanged.

        Raises:
            ValueError: If the content does not match the `output_type`.
        """
        return self.output.as_json(content)

    @property
    def owned(self) -> OwnedRuns:
        """Runs executed by this process. They belong to the log, or to the agent if it has no log."""
        return self.resources.owned if self.log is None else self.log.local.get(OwnedRuns)

    @property
    def overrides(self) -> Overrides:
        """Overrides in the current context."""
        return _OVERRIDES.get().get(self, {})

    def get_log(self, purpose: str) -> EventLog:
        """Return the event log.

        Args:
            purpose: Infinitive phrase for the error message.

        Raises:
            ConfigurationError: If the agent has no log.
        """
        if self.log is None:
            raise ConfigurationError(f"cannot {purpose} without an event log: Agent(..., log=...)")
        return self.log

    def make_run(self, spec: RunSpec) -> Run[Any]:
        """Create a run. Must be called directly by a public method, because warnings show the line of its caller.

        Raises:
            RxloopError: If the agent is closed.
        """
        if self.resources.is_closed:
            raise RxloopError(f"agent {self.name!r} is closed")
        attempt = Attempt(spec)
        caller = sys._getframe(2)  # pyright: ignore[reportPrivateUsage] (line shown in warnings about the run)
        attempt.created_at = (caller.f_code.co_filename, caller.f_lineno)
        run: Run[Any] = Run(attempt, self.owned)
        self.resources.runs.add(run.hold)
        return run

    def run_sync(self, make_run: Callable[[], Run[O]]) -> Result[O]:
        """Execute a run in a new event loop, then close its resources. See `Agent.run_sync`."""
        if has_running_loop():
            raise RxloopError("run_sync() must not be called in a running event loop; use `await agent.run(...)`")

        async def main() -> Result[O]:
            try:
                return await make_run()
            finally:
                await self.close_resources()

        return asyncio.run(main())

    def make_tools(self, tools: Sequence[AnyTool]) -> AgentTools:
        """Return tools combined with the internal tools for answers and thoughts."""
        return _make_tools(tools, self.output, self.thoughts, self.resources)

    @contextmanager
    def override(self, model: Provider | str | None, tools: Sequence[AnyTool] | None) -> Generator[None]:
        """Replace the model or tools in the current context, implementing `Agent.override`."""
        changes = self.overrides.copy()
        if model is not None:
            check_model(model)
            changes["model"] = self.resources.get_provider(model)
        if tools is not None:
            check_tools(tools)
            changes["tools"] = self.make_tools(tools)
        token = _OVERRIDES.set({**_OVERRIDES.get(), self: changes})
        try:
            yield
        finally:
            _OVERRIDES.reset(token)

    async def close(self, release: float | None) -> None:
        """End open runs and close all resources, even if the caller is cancelled.

        Args:
            release: Grace period in seconds for releasing runs with a log. None cancels all runs.
        """
        self.resources.is_closed = True
        task = asyncio.create_task(self._close(release), name="rxloop-closing")
        await wait_all([task])
        task.result()

    async def _close(self, release: float | None) -> None:
        runs = list(self.resources.runs)
        releases = [hold.release(release) for hold in runs if hold.has_log and release is not None]
        closes = [hold.aclose("the agent was closed") for hold in runs if not hold.has_log or release is None]
        await asyncio.gather(*releases, *closes)
        await self.close_resources()

    async def close_resources(self) -> None:
        """Close model clients and tools opened by the agent."""
        providers = [provider.aclose for provider in self.resources.providers.values()]
        user_providers = [
            provider.aclose_made for provider in self.resources.user_providers if isinstance(provider, MakesModels)
        ]
        tools = [tool.aclose for tool in self.tools.plain_tools.values() if isinstance(tool, FunctionTool)]
        await close_all([self.resources.toolsets.aclose, *tools, *providers, *user_providers])


_OVERRIDES: ContextVar[Mapping[AgentDefinition, Overrides]] = ContextVar(
    "rxloop_overrides", default=MappingProxyType({})
)
"""Context-specific overrides, which do not affect other tasks."""


def make_definition(
    model: Provider | str, deps_type: type[Any] | None, output_type: type[Any], options: AgentOptions[Any]
) -> AgentDefinition:
    """Validate the arguments of an agent and return its definition.

    Raises:
        ConfigurationError: If an argument has an invalid type or value.
        TypeError: If an option is unknown.
    """
    check_model(model)
    check_options("Agent", options, AgentOptions)
    check_deps_type(deps_type)
    resources = OpenResources()
    output = make_output(output_type, options.get("output_mode", "auto"))
    thoughts = options.get("thoughts", True)
    thinking = None if thoughts is False else thoughts if isinstance(thoughts, Thoughts) else Thoughts()
    loop = options.get("loop")
    operators: list[Operator[Any]] = [*(standard() if loop is None else loop)]
    if output_type is not str:
        retries = options.get("output_retries", 2)
        operators.append(typed_output(output.parse, retries, by_tool=output.tool is not None))
    pipeline = compose(*operators)
    strategy = load_strategy(options.get("strategy"))
    if strategy is not None:
        check_operator(strategy, strategy(pipeline))
    return AgentDefinition(
        name=options.get("name", DEFAULT_NAME),
        model=resources.get_provider(model),
        deps_type=deps_type,
        instructions=options.get("instructions", ""),
        thoughts=thinking,
        record_requests=options.get("record_requests", True),
        output=output,
        tools=_make_tools(options.get("tools", ()), output, thinking, resources),
        pipeline=pipeline,
        strategy=strategy or iterate,
        limits=options.get("limits") or Limits(),
        settings=options.get("settings") or ModelSettings(),
        log=options.get("log"),
        artifacts=options.get("artifacts"),
        views=tuple(options.get("views", ())),
        resources=resources,
    )


def load_strategy(strategy: Strategy | str | None) -> Strategy | None:
    """Return a strategy, loading it if a name is given."""
    if not isinstance(strategy, str):
        return strategy
    # Imported lazily, because most runs need no strategy.
    from rxloop.strategies.catalog import load_strategy

    return load_strategy(strategy)


def _make_tools(
    tools: Sequence[AnyTool], output: Output, thoughts: Thoughts | None, resources: OpenResources
) -> AgentTools:
    internal = [tool for tool in (output.tool, think_aloud(thoughts) if thoughts is not None else None) if tool]
    return AgentTools([*tools, *internal], resources.toolsets)
