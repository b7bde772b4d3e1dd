"""Immutable agents, which create runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Generic, Self, overload

from typing_extensions import TypeVar, Unpack

from rxloop.agents.definition import AgentDefinition, make_definition
from rxloop.agents.options import AgentOptions, AgentToolOptions, ForkOptions, MapOptions, ResumeOptions, RunOptions
from rxloop.agents.specs import make_fork_spec, make_resume_spec, make_run_spec
from rxloop.agents.validation import check_change, check_deps, check_options
from rxloop.operators.views import View, check_views
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.interfaces import Provider
from rxloop.pipeline.run_context import D
from rxloop.protocol.messages import Prompt
from rxloop.protocol.settings import Limits, ModelSettings
from rxloop.run.handle import Run
from rxloop.run.result import Result
from rxloop.storage.log_urls import check_log
from rxloop.support.misuse import ExplainedAttributes
from rxloop.tools.agent_tools import AnyTool

if TYPE_CHECKING:
    from rxloop.agents.agent_tool import AgentTool, NestedDeps
    from rxloop.agents.batch import ColdRun, Items, Outcome
    from rxloop.agents.remote_run import RemoteRun
    from rxloop.pipeline.records import RunRecord
    from rxloop.stream.stream import Stream

O = TypeVar("O", default=str)  # noqa: E741
T = TypeVar("T", default=str)
I = TypeVar("I")  # noqa: E741
P = TypeVar("P")
Q = TypeVar("Q", bound=Prompt)


class Agent(ExplainedAttributes, Generic[D, O]):
    """Immutable agent configuration. Each `run` call creates a new run, and runs may be concurrent."""

    @overload
    def __init__(
        self: Agent[None, T],
        model: Provider | str,
        *,
        output_type: type[T] = str,
        **options: Unpack[AgentOptions[None]],
    ) -> None: ...
    @overload
    def __init__(
        self,
        model: Provider | str,
        *,
        deps_type: type[D],
        output_type: type[O] = str,
        **options: Unpack[AgentOptions[D]],
    ) -> None: ...
    def __init__(
        self,
        model: Provider | str,
        *,
        deps_type: type[Any] | None = None,
        output_type: type[Any] = str,
        **options: Unpack[AgentOptions[Any]],
    ) -> None:
        """Create an agent.

        Args:
            model: Provider, or a model string such as `zai:glm-4.7`.
            deps_type: Type of `run(deps=...)`, available to tools and operators as `ctx.deps`. By default, an agent has
                no dependencies. If a class is given, runs without `deps=` raise an error, and other types cause a
                warning.
            output_type: Answer type, either `str` or any type supported by pydantic.
            **options: See `AgentOptions`.

        Raises:
            ConfigurationError: If an argument has an invalid type, or the model string is unknown.
            TypeError: If an option is unknown.
        """
        self.definition: Final[AgentDefinition] = make_definition(model, deps_type, output_type, options)
        """Agent definition, for programs that display or serve agents."""

    if not TYPE_CHECKING:
        # Type checkers find unknown attributes on their own if this method is missing.

        def __setattr__(self, name: str, value: Any) -> None:
            if name != "definition" or name in vars(self):
                check_change(name, is_reserved=type(self) is Agent or hasattr(Agent, name))
            super().__setattr__(name, value)

    def __repr__(self) -> str:
        return f"<Agent {self.name} {self.model.name} tools={self.definition.tools!r}>"

    @property
    def name(self) -> str:
        """Name used in events."""
        return self.definition.name

    @property
    def model(self) -> Provider:
        """Default model."""
        return self.definition.model

    @property
    def log(self) -> EventLog | None:
        """Event log."""
        return self.definition.log

    @property
    def limits(self) -> Limits:
        """Default limits."""
        return self.definition.limits

    @property
    def settings(self) -> ModelSettings:
        """Default model settings."""
        return self.definition.settings

    @overload
    def run(self: Agent[None, O], prompt: Prompt, *, deps: None = None, **options: Unpack[RunOptions]) -> Run[O]: ...
    @overload
    def run(self, prompt: Prompt, *, deps: D, **options: Unpack[RunOptions]) -> Run[O]: ...
    def run(self, prompt: Prompt, *, deps: Any = None, **options: Unpack[RunOptions]) -> Run[O]:
        """Create a run, which starts on first use.

        Args:
            prompt: String, message or sequence of both, such as the messages of an earlier result and a new question.
            deps: Dependencies, available to tools and instructions as `ctx.deps`.
            **options: See `RunOptions`.

        Raises:
            ConfigurationError: If a `context_id` is given without a log, the prompt is empty or has a tool call without
                a result, or an option is invalid. The run itself raises `RunExists` if its `task_id` exists, and
                `ContextBusy` if another run of the conversation is unfinished.
            TypeError: If an option is unknown.
        """
        check_deps("Agent.run", self.definition.deps_type, deps)
        return self.definition.make_run(make_run_spec(self.definition, "Agent.run", prompt, deps, options))

    @overload
    def observe(
        self: Agent[None, O], prompt: Prompt, *, deps: None = None, **options: Unpack[RunOptions]
    ) -> ColdRun[O]: ...
    @overload
    def observe(self, prompt: Prompt, *, deps: D, **options: Unpack[RunOptions]) -> ColdRun[O]: ...
    def observe(self, prompt: Prompt, *, deps: Any = None, **options: Unpack[RunOptions]) -> ColdRun[O]:
        """Return an Observable that starts a new run for each subscription. Disposing a subscription cancels its run.

        Use it in Rx pipelines, such as `questions.pipe(rx.flat_map_latest(agent.observe))`, which cancels the previous
        run. Arguments are the same as for `run`. Invalid arguments are reported as subscription errors.
        """
        # Imported lazily to keep `import rxloop` fast.
        from rxloop.agents.batch import ColdRun

        return ColdRun(lambda: self.run(prompt, deps=deps, **options))

    @overload
    def run_sync(
        self: Agent[None, O], prompt: Prompt, *, deps: None = None, **options: Unpack[RunOptions]
    ) -> Result[O]: ...
    @overload
    def run_sync(self, prompt: Prompt, *, deps: D, **options: Unpack[RunOptions]) -> Result[O]: ...
    def run_sync(self, prompt: Prompt, *, deps: Any = None, **options: Unpack[RunOptions]) -> Result[O]:
        """Execute a run in a new event loop, for use in scripts. Arguments are the same as for `run`."""
        check_options("Agent.run_sync", options, RunOptions)
        return self.definition.run_sync(lambda: self.run(prompt, deps=deps, **options))

    @overload
    def map(
        self: Agent[None, O],
        items: Items[Q],
        *,
        prompt: None = None,
        deps: None = None,
        **options: Unpack[MapOptions[Q]],
    ) -> Stream[Outcome[Q, O]]: ...
    @overload
    def map(
        self: Agent[None, O],
        items: Items[I],
        *,
        prompt: Callable[[I], Prompt],
        deps: None = None,
        **options: Unpack[MapOptions[I]],
    ) -> Stream[Outcome[I, O]]: ...
    @overload
    def map(
        self, items: Items[Q], *, prompt: None = None, deps: D, **options: Unpack[MapOptions[Q]]
    ) -> Stream[Outcome[Q, O]]: ...
    @overload
    def map(
        self, items: Items[I], *, prompt: Callable[[I], Prompt], deps: D, **options: Unpack[MapOptions[I]]
    ) -> Stream[Outcome[I, O]]: ...
    def map(
        self,
        items: Items[Any],
        *,
        prompt: Callable[[Any], Prompt] | None = None,
        deps: Any = None,
        **options: Unpack[MapOptions[Any]],
    ) -> Stream[Any]:
        """Run the agent for each item, yielding outcomes in order of completion.

        A failed run does not end the batch, and its outcome contains the error. A slow reader delays the batch, so the
        items may be infinite.

        Named batches can be repeated by an agent with the same log, even after a crash. The run ID is derived from the
        agent name, the batch name and the item key. Finished runs are not repeated, interrupted runs are resumed, and
        runs that failed with a transient error are retried once.

        Args:
            items: Iterable, async iterable or Observable.
            prompt: Function that returns the prompt for an item. The default uses the item itself.
            deps: Dependencies shared by all runs, as in `run`.
            **options: See `MapOptions`.

        Returns:
            Stream that executes the batch each time it is iterated, subscribed or awaited. One-shot iterators, such as
                generators, can only be used once.

        Raises:
            ConfigurationError: If `items` or an option is invalid, a named batch has no log, or an item is not a prompt
                and `prompt` is missing. The stream raises it if the items are not a list.
            TypeError: If an option is unknown.
        """
        # Imported lazily, because few programs have batches.
        from rxloop.agents.batch import run_batch

        return run_batch(self.definition, items, prompt, deps, options)

    @overload
    def resume(
        self: Agent[None, O], task_id: str, *, deps: None = None, **options: Unpack[ResumeOptions]
    ) -> Run[O]: ...
    @overload
    def resume(self, task_id: str, *, deps: D, **options: Unpack[ResumeOptions]) -> Run[O]: ...
    def resume(self, task_id: str, *, deps: Any = None, **options: Unpack[ResumeOptions]) -> Run[O]:
        """Continue an unfinished run with a new attempt, in the same stream.

        For a finished run, the final event is published again without calling the model.

        Args:
            task_id: Run ID.
            deps: Dependencies, as in `run`.
            **options: See `ResumeOptions`.

        Raises:
            ConfigurationError: If the agent has no log, an option is invalid, or `deps` are missing.
            TypeError: If an option is unknown.
        """
        return self.definition.make_run(make_resume_spec(self.definition, "Agent.resume", task_id, deps, options))

    @overload
    def fork(
        self: Agent[None, O], task_id: str, at: int, *, deps: None = None, **options: Unpack[ForkOptions[None]]
    ) -> Run[O]: ...
    @overload
    def fork(self, task_id: str, at: int, *, deps: D, **options: Unpack[ForkOptions[D]]) -> Run[O]: ...
    def fork(self, task_id: str, at: int, *, deps: Any = None, **options: Unpack[ForkOptions[Any]]) -> Run[O]:
        """Create a new run from the first events of another run.

        The fork has new IDs and a complete log. Copied model and tool calls are not repeated. Tool calls without a
        copied result are executed, even if the original run has started them. The original run is not changed.

        Args:
            task_id: ID of the original run.
            at: `seq` of the last event to copy.
            deps: Dependencies, as in `run`.
            **options: See `ForkOptions`.

        Raises:
            ConfigurationError: If the agent has no log, or an argument is invalid. The fork itself raises it if the
                original run ends before `at` or has no such call, `UnknownRun` if the original run does not exist, and
                `RunExists` if the `fork_id` exists.
            TypeError: If an option is unknown.
        """
        return self.definition.make_run(make_fork_spec(self.definition, task_id, at, deps, options))

    async def submit(self, prompt: Prompt, **options: Unpack[RunOptions]) -> RunRecord:
        """Store a run in the log without starting it. Start it with `get_run(task_id).execute` or `resume`.

        Args:
            prompt: Prompt, as in `run`.
            **options: Options, as in `run`, except `on_input`, `when_busy` and `steering`.

        Returns:
            Durable run record.

        Raises:
            RunExists: If the `task_id` exists.
            ConfigurationError: If an argument is invalid, or the agent has no log.
            EventLogError: If storing the run fails.
        """
        # Imported lazily to keep `import rxloop` fast.
        from rxloop.agents.remote_run import submit_run

        return await submit_run(self.definition, prompt, options)

    def get_run(self, task_id: str) -> RemoteRun[D, O]:
        """Return a reference to a run, for executing, cancelling, answering or messaging it. The log is not read."""
        # Imported lazily to keep `import rxloop` fast.
        from rxloop.agents.remote_run import RemoteRun

        return RemoteRun(self.definition, task_id)

    @overload
    def as_tool(
        self: Agent[None, O], name: str | None = None, *, deps: None = None, **options: Unpack[AgentToolOptions]
    ) -> AgentTool[object]: ...
    @overload
    def as_tool(
        self, name: str | None = None, *, deps: None = None, **options: Unpack[AgentToolOptions]
    ) -> AgentTool[D]: ...
    @overload
    def as_tool(
        self, name: str | None = None, *, deps: NestedDeps[P, D], **options: Unpack[AgentToolOptions]
    ) -> AgentTool[P]: ...
    def as_tool(
        self, name: str | None = None, *, deps: Any = None, **options: Unpack[AgentToolOptions]
    ) -> AgentTool[Any]:
        """Create a tool that executes this agent as a nested run of the caller.

        Events of the nested run are published on the caller's stream, with their own ID, `parent_task_id` and
        `agent_path`. Tokens count for both runs. The nested run starts with only the prompt, uses the caller's log,
        passes its questions on, and ends with the caller's run. The `Limits(depth=, width=)` of the caller apply.

        Args:
            name: Tool name. The default is the agent name.
            deps: Sync or async function for the nested dependencies. The default is the caller's dependencies.
            **options: See `AgentToolOptions`.

        Raises:
            ConfigurationError: If an option is invalid, as in `tool`.
            TypeError: If an option is unknown.
        """
        # Imported lazily, because few agents are used as tools.
        from rxloop.agents.agent_tool import AgentTool

        return AgentTool(self.definition, name, deps, options)

    def with_log(self, log: EventLog | None) -> Self:
        """Return a copy with another log. Both agents share resources, and closing either one closes them.

        Raises:
            ConfigurationError: If `log` is not an event log.
        """
        if log is not None:
            check_log(log)
        return self._replace_definition(log=log)

    def with_name(self, name: str) -> Self:
        """Return a copy with another name. Both agents share resources, and closing either one closes them."""
        return self._replace_definition(name=name)

    def with_views(self, views: Sequence[View[Any, Any]]) -> Self:
        """Return a copy with additional views. Both agents share resources, and closing either one closes them."""
        check_views(views)
        return self._replace_definition(views=(*self.definition.views, *views))

    def _replace_definition(self, **changes: Any) -> Self:
        other = copy(self)
        vars(other)["definition"] = replace(self.definition, **changes)
        return other

    def override(
        self, *, model: Provider | str | None = None, tools: Sequence[AnyTool[D]] | None = None
    ) -> AbstractContextManager[None]:
        """Replace the model or tools for runs created within the block, for tests.

        Other tasks are not affected. The model also replaces run-specific models.
        """
        return self.definition.override(model, tools)

    async def aclose(self, *, release: float | None = None) -> None:
        """End open runs and close all resources. This method is idempotent, and later runs raise an error.

        Args:
            release: Grace period in seconds for releasing runs with a log, as in `run.release`, so that another process
                can continue them after a deployment. None cancels all runs.
        """
        await self.definition.close(release)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()
