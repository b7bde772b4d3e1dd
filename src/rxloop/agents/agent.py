"""Agent: an immutable description that makes runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, overload

from typing_extensions import TypeVar, Unpack

from rxloop.agents.definition import Description, Opened, toolset_of
from rxloop.agents.options import AgentOptions, AgentToolOptions
from rxloop.agents.runs import MakesRuns
from rxloop.agents.runs_by_id import OVERRIDES
from rxloop.agents.validation import check_agent, check_log, check_model, check_operator, check_tools
from rxloop.operators.loop.compose import compose
from rxloop.operators.loop.iterate import iterate
from rxloop.operators.loop.standard import standard
from rxloop.operators.loop.typed_output import typed_output
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.interfaces import Provider
from rxloop.pipeline.requests import Operator, Strategy
from rxloop.pipeline.run_context import D, RunContext
from rxloop.protocol.settings import Limits, ModelSettings
from rxloop.support.tasks import wait_all
from rxloop.tools.agent_tools import AnyTool
from rxloop.tools.output import Output, OutputMode, output_of
from rxloop.tools.think_aloud import Thoughts

if TYPE_CHECKING:
    from rxloop.agents.agent_tool import AgentTool
    from rxloop.pipeline.artifacts import ArtifactStore

O = TypeVar("O", default=str)  # noqa: E741

T = TypeVar("T", default=str)

P = TypeVar("P")


class Agent(MakesRuns[D, O]):
    """An immutable description of an agent; each `run` is a run of its own, and any number may go on at once."""

    @overload
    def __init__(
        self: Agent[None, T],
        model: Provider | str,
        *,
        instructions: str | Callable[[RunContext[None]], Any] = "",
        tools: Sequence[AnyTool[None]] = (),
        output_type: type[T] = str,
        loop: Sequence[Operator[None]] | None = None,
        strategy: Strategy[None] | str | None = None,
        **options: Unpack[AgentOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        model: Provider | str,
        *,
        instructions: str | Callable[[RunContext[D]], Any] = "",
        tools: Sequence[AnyTool[D]] = (),
        deps_type: type[D],
        output_type: type[O] = str,
        loop: Sequence[Operator[D]] | None = None,
        strategy: Strategy[D] | str | None = None,
        **options: Unpack[AgentOptions],
    ) -> None: ...
    def __init__(
        self,
        model: Provider | str,
        *,
        name: str = "agent",
        instructions: str | Callable[[RunContext[Any]], Any] = "",
        tools: Sequence[AnyTool] = (),
        deps_type: type[Any] | None = None,
        output_type: type[Any] = str,
        output_mode: OutputMode = "auto",
        output_retries: int = 2,
        loop: Sequence[Operator] | None = None,
        strategy: Strategy | str | None = None,
        limits: Limits | None = None,
        thoughts: bool | Thoughts = True,
        log: EventLog | None = None,
        artifacts: ArtifactStore | None = None,
        settings: ModelSettings | None = None,
    ) -> None:
        """Describe an agent.

        Args:
            model: A provider, or a model string such as `zai:glm-4.7`.
            name: What it is called on the stream.
            instructions: The system prompt, or a function of the run's context that gives it, sync or async.
            tools: Functions, tools and families of tools.
            deps_type: The type of what `run(deps=...)` takes, and tools and operators find on `ctx.deps`; without it an
                agent has no deps. With a class, a run, resume or fork without `deps=` is refused, and one with
                something else is warned about.
            output_type: The type of the answer: text, or anything that pydantic can validate.
            output_mode: How an answer of that type is asked for: by the provider's own means (`native`), by a tool that
                takes it (`tool`), or in the system prompt (`prompted`). `auto` leaves it to the provider where that is
                known to keep to a schema in every request, and otherwise says it in the system prompt too.
            output_retries: How often an answer that does not fit is sent back.
            loop: The operators of one iteration; `op.standard()` by default.
            strategy: What makes a run of the loop: a strategy, or the name of one of `rxloop.strategies`, such as
                `rewoo`; `op.iterate` by default.
            limits: Where a run ends even without an answer.
            thoughts: Whether, and how, the model may think aloud by a tool.
            log: Keeps the events; makes conversations and resumption possible.
            artifacts: Keeps the files that runs make; by default they are where the log is, and without a log in
                memory, for as long as the run is held.
            settings: Settings of the model calls.

        Raises:
            ConfigurationError: An argument is of a wrong kind, or the model string names nothing.
        """
        check_agent(
            model=model,
            name=name,
            instructions=instructions,
            tools=tools,
            output_retries=output_retries,
            loop=loop,
            strategy=strategy,
            limits=limits,
            thoughts=thoughts,
            log=log,
            artifacts=artifacts,
            settings=settings,
        )
        opened = Opened()
        output = output_of(output_type, output_mode)
        thinking = None if thoughts is False else thoughts if isinstance(thoughts, Thoughts) else Thoughts()
        pipeline = _pipeline(standard() if loop is None else loop, output_type, output, output_retries)
        chosen = _by_name(strategy) if isinstance(strategy, str) else strategy or iterate
        if strategy is not None:
            check_operator(chosen, chosen(pipeline))
        self._made_of = Description(
            name=name,
            model=opened.provider(model),
            deps_type=deps_type,
            instructions=instructions,
            thoughts=thinking,
            output=output,
            tools=toolset_of(tools, output, thinking, opened),
            pipeline=pipeline,
            strategy=chosen,
            limits=limits or Limits(),
            settings=settings or ModelSettings(),
            log=log,
            artifacts=artifacts,
            opened=opened,
            strategies=_by_name,
        )

    def __repr__(self) -> str:
        return f"<Agent {self.name} {self.model.name} tools={self._made_of.tools!r}>"

    @property
    def limits(self) -> Limits:
        """Where its runs end even without an answer, unless a run names other limits."""
        return self._made_of.limits

    @property
    def settings(self) -> ModelSettings:
        """The settings of its model calls, unless a run names other ones."""
        return self._made_of.settings

    def with_log(self, log: EventLog | None) -> Self:
        """The same agent with another log; what one of the two has open, both have, and either closes it.

        Raises:
            ConfigurationError: It is not an event log.
        """
        if log is not None:
            check_log(log)
        other = copy(self)
        other._made_of = replace(self._made_of, log=log)
        return other

    def named(self, name: str) -> Self:
        """The same agent under another name; what one of the two has open, both have, and either closes it."""
        other = copy(self)
        other._made_of = replace(self._made_of, name=name)
        return other

    @property
    def model(self) -> Provider:
        """The model of its runs, unless a run names another one."""
        return self._made_of.model

    @property
    def tool_names(self) -> list[str]:
        """The names of its tools that clients may know of; families of tools are asked only in a run."""
        return [*self.tool_descriptions]

    @property
    def tool_descriptions(self) -> dict[str, str]:
        """What those tools are for, by their names."""
        tools = self._made_of.tools
        return {name: each.definition.description for name, each in tools.plain.items() if not tools.hides(name)}

    @property
    def output_schema(self) -> dict[str, Any] | None:
        """The JSON Schema of its answers, as `output_json` gives them; None for an agent that answers in text."""
        return self._made_of.output.json_schema()

    def output_json(self, content: str) -> Any:
        """Read the content of an answer as JSON, for programs that know nothing of its type; text stays as it is.

        Raises:
            ValueError: It is no answer of this agent's `output_type`.
        """
        return self._made_of.output.as_json(content)

    @property
    def client_tool_names(self) -> list[str]:
        """The names of its tools that the client of a run carries out, beside those that come with a run."""
        # Imported here: importing rxloop is quicker without.
        from rxloop.tools.client_tool import ClientTool

        return [name for name, tool in self._made_of.tools.plain.items() if isinstance(tool, ClientTool)]

    @overload
    def as_tool(
        self: Agent[None, O],
        name: str | None = None,
        description: str | None = None,
        *,
        deps: None = None,
        **options: Unpack[AgentToolOptions],
    ) -> AgentTool[object]: ...
    @overload
    def as_tool(
        self,
        name: str | None = None,
        description: str | None = None,
        *,
        deps: None = None,
        **options: Unpack[AgentToolOptions],
    ) -> AgentTool[D]: ...
    @overload
    def as_tool(
        self,
        name: str | None = None,
        description: str | None = None,
        *,
        deps: Callable[[RunContext[P]], D | Awaitable[D]],
        **options: Unpack[AgentToolOptions],
    ) -> AgentTool[P]: ...
    def as_tool(
        self,
        name: str | None = None,
        description: str | None = None,
        *,
        deps: Callable[[RunContext[Any]], Any] | None = None,
        **options: Unpack[AgentToolOptions],
    ) -> AgentTool[Any]:
        """Make a tool of the agent, for another agent: each call is a run that is nested in the run of the caller.

        Its events are on the stream of the caller's run, under an id of its own, with `parent_task_id` and
        `agent_path`. Its tokens count for both; what ends the caller's run ends it as well, and what it asks, the
        caller's run asks. It begins with the prompt alone, in the log of the caller, and a failure is a failed result.
        `Limits(depth=, width=)` of the caller bound how many there are.

        Args:
            name: What the model calls it; the name of the agent otherwise.
            description: What it is for; by default, that it hands a task to the agent of that name.
            deps: Makes the dependencies of the nested run, sync or async; those of the caller's run by default.
            **options: See `AgentToolOptions`.

        Raises:
            ConfigurationError: As for `tool`.
            TypeError: There is no such option.
        """
        # Imported here: most agents have no others among their tools, and importing rxloop is quicker without.
        from rxloop.agents.agent_tool import AgentTool

        return AgentTool(self._made_of, self._spec, name, description, deps, options)

    @contextmanager
    def override(
        self, *, model: Provider | str | None = None, tools: Sequence[AnyTool[D]] | None = None
    ) -> Generator[None, None, None]:
        """Put another model or other tools in place for the runs that are made inside.

        For tests of code that has an agent of its own; other tasks are not affected. The model goes before one that a
        run names.
        """
        changes: dict[str, Any] = dict(OVERRIDES.get().get(self, {}))
        if model is not None:
            check_model(model)
            changes["model"] = self._made_of.opened.provider(model)
        if tools is not None:
            check_tools(tools)
            changes["tools"] = self._made_of.toolset(tools)
        token = OVERRIDES.set({**OVERRIDES.get(), self: changes})
        try:
            yield
        finally:
            OVERRIDES.reset(token)

    async def aclose(self, *, release: float | None = None) -> None:
        """End the runs that go on, and close what the agent opened. May be called twice; later runs are refused.

        Args:
            release: Give the runs up that have a log, as `run.release` does, with so many seconds of grace: for a
                deploy, so that another process goes on with them. None cancels them all.
        """
        self._made_of.opened.closed = True
        # In a task, so that nothing stays open when whoever closes the agent is cancelled itself.
        closing = asyncio.create_task(self._made_of.end(release), name="rxloop-closing")
        await wait_all([closing])
        closing.result()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


def _by_name(name: str) -> Strategy:
    # Most runs need no strategy, so it is imported here.
    from rxloop.strategies.catalog import load_strategy

    return load_strategy(name)


def _pipeline(loop: Sequence[Operator], output_type: type[Any], output: Output, retries: int) -> Operator:
    """What carries out one iteration, answers of a type included."""
    if output_type is str:
        return compose(*loop)
    return compose(*loop, typed_output(output.parse, retries, by_tool=output.tool is not None))
