"""Parts of an agent, and the resources it has opened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from rxloop.agents.options import Options, kept
from rxloop.agents.validation import check_operator
from rxloop.errors import RxloopError
from rxloop.operators.loop.iterate import iterate
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.interfaces import MakesModels, Provider
from rxloop.pipeline.requests import Operator, Strategy
from rxloop.protocol.settings import Limits, ModelSettings
from rxloop.run.attempt import Attempt
from rxloop.run.handle import Run
from rxloop.run.ownership import OwnedRuns, RunHold
from rxloop.run.spec import Instructions, RunSpec
from rxloop.support.tasks import close_all
from rxloop.tools.agent_tools import AgentTools, AnyTool
from rxloop.tools.function import FunctionTool
from rxloop.tools.output import Output
from rxloop.tools.think_aloud import Thoughts, think_aloud
from rxloop.tools.toolsets import Families

if TYPE_CHECKING:
    from rxloop.pipeline.artifacts import ArtifactStore
    from rxloop.tools.client_tool import ClientTool


class Opened:
    """What an agent has open: its runs, model clients and families of tools. The description itself never changes."""

    def __init__(self) -> None:
        self.runs: WeakSet[RunHold] = WeakSet()
        self.owned = OwnedRuns()
        """The runs without a log that were started."""
        self.providers: dict[str, Provider] = {}
        """Those that were made of model strings."""
        self.given: WeakSet[Provider] = WeakSet()
        """Those that may have made some of model strings themselves."""
        self.families = Families()
        self.closed = False

    def provider(self, model: Provider | str) -> Provider:
        """The provider that a model string stands for: one for each string, closed with the agent."""
        if not isinstance(model, str):
            if isinstance(model, MakesModels):
                self.given.add(model)
            return model
        if model not in self.providers:
            # Imported here: the providers are a good part of what importing rxloop would cost.
            from rxloop.providers.factories import resolve_model

            self.providers[model] = resolve_model(model)
        return self.providers[model]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Description:
    """What an agent is made of."""

    name: str
    model: Provider
    deps_type: type[Any] | None
    instructions: Instructions
    thoughts: Thoughts | None
    """How the model may think aloud, if it may."""
    output: Output
    tools: AgentTools
    pipeline: Operator
    """Carries out one iteration."""
    strategy: Strategy
    limits: Limits
    settings: ModelSettings
    log: EventLog | None
    artifacts: ArtifactStore | None
    opened: Opened
    strategies: Callable[[str], Strategy]
    """Gives the strategy of a name."""

    def spec(
        self,
        task_id: str,
        context_id: str,
        deps: Any,
        options: Options,
        *,
        strategy: Strategy | None,
        overrides: Mapping[str, Any],
        **fields: Any,
    ) -> RunSpec:
        """What a run is made of.

        Args:
            task_id: The run.
            context_id: The conversation.
            deps: What tools find on `ctx.deps`.
            options: What was said of this run.
            strategy: The one among the options; None for the agent's own.
            overrides: A model and tools that go before those of the agent, and of the run.
            **fields: Further fields of the `RunSpec`.
        """
        model, settings, limits = options.get("model"), options.get("settings"), options.get("limits")
        made_by = strategy or self.strategy
        tools: AgentTools = overrides.get("tools", self.tools)
        client = _client_tools(options)
        loop = made_by(self.pipeline)
        if strategy is not None:
            check_operator(strategy, loop)
        chosen = overrides.get("model") or (self.opened.provider(model) if model is not None else self.model)
        return RunSpec(
            task_id=task_id,
            context_id=context_id,
            agent_name=self.name,
            model=chosen,
            loop=loop,
            pipeline=self.pipeline,
            strategy=getattr(made_by, "__name__", None) if made_by is not iterate else None,
            tools=tools.with_client(client) if client else tools,
            instructions=self.instructions,
            limits=limits.over(self.limits) if limits is not None else self.limits,
            settings=settings.over(self.settings) if settings is not None else self.settings,
            thought_limit=(self.thoughts or Thoughts()).limit,
            deps=deps,
            log=self.log,
            artifacts=self.artifacts,
            metadata=dict(options.get("metadata") or {}),
            provider=self.opened.provider,
            on_input=options.get("on_input"),
            steering=options.get("steering"),
            when_busy=options.get("when_busy") or "refuse",
            parse=self.output.parse,
            output_prompt=self.output.prompt(chosen),
            response_schema=self.output.schema,
            begun_with=kept(options, client),
            **fields,
        )

    def run(self, spec: RunSpec, made_at: tuple[str, int]) -> Run[Any]:
        """A run that nobody has started yet.

        Args:
            spec: What it is made of.
            made_at: The file and line that asked for it.

        Raises:
            RxloopError: The agent is closed.
        """
        if self.opened.closed:
            raise RxloopError(f"the agent {self.name!r} is closed: make another one")
        attempt = Attempt(spec)
        attempt.made_at = made_at
        run: Run[Any] = Run(attempt, self.owned)
        self.opened.runs.add(run.hold)
        return run

    @property
    def owned(self) -> OwnedRuns:
        """The runs that this process executes with the agent's log, or those of the agent if it has none."""
        return self.opened.owned if self.log is None else self.log.local.get(OwnedRuns)

    def toolset(self, tools: Sequence[AnyTool]) -> AgentTools:
        """These tools, with those by which the model answers and thinks."""
        return toolset_of(tools, self.output, self.thoughts, self.opened)

    async def end(self, release: float | None) -> None:
        """End the runs that go on, and close what the agent opened itself.

        Args:
            release: Give the runs up that have a log, with so many seconds of grace; None cancels them all.
        """
        runs = list(self.opened.runs)
        kept = [hold.release(release) for hold in runs if hold.has_log and release is not None]
        ended = [hold.aclose("the agent was closed") for hold in runs if not hold.has_log or release is None]
        await asyncio.gather(*kept, *ended)
        await self.aclose()

    async def aclose(self) -> None:
        """Close what the agent opened itself."""
        made = [provider.aclose for provider in self.opened.providers.values()]
        given = [provider.aclose_made for provider in self.opened.given if isinstance(provider, MakesModels)]
        tools = [tool.aclose for tool in self.tools.plain.values() if isinstance(tool, FunctionTool)]
        await close_all([self.opened.families.aclose, *tools, *made, *given])


def _client_tools(options: Options) -> tuple[ClientTool, ...]:
    """The tools that the client of the run carries out."""
    given = options.get("client_tools")
    if not given:
        return ()
    # Imported here: few runs have any, and importing rxloop is quicker without.
    from rxloop.tools.client_tool import client_tools

    return client_tools(given)


def toolset_of(tools: Sequence[AnyTool], output: Output, thoughts: Thoughts | None, opened: Opened) -> AgentTools:
    """These tools, with those by which the model answers and thinks."""
    own = [tool for tool in (output.tool, think_aloud(thoughts) if thoughts is not None else None) if tool]
    return AgentTools([*tools, *own], opened.families)
