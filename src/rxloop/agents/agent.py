"""Agent: an immutable description that makes runs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Self, overload

from typing_extensions import TypeVar, Unpack

from rxloop.agents.definition import AgentDefinition, make_definition
from rxloop.agents.options import AgentOptions, AgentToolOptions, ForkOptions, MapOptions, ResumeOptions, RunOptions
from rxloop.agents.specs import make_fork_spec, make_resume_spec, make_run_spec
from rxloop.agents.validation import check_deps, check_log, check_options
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.interfaces import Provider
from rxloop.pipeline.run_context import D
from rxloop.protocol.messages import Prompt
from rxloop.protocol.settings import Limits, ModelSettings
from rxloop.run.handle import Run
from rxloop.run.result import Result
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


class Agent(Generic[D, O]):
    """Immutable description of an agent. Each `run` is a new run, and any number of runs can be open at once."""

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
        """Describe an agent.

        Args:
            model: A provider, or a model string such as `zai:glm-4.7`.
            deps_type: Type of `run(deps=...)`, which tools and operators get as `ctx.deps`. By default an agent has no
                deps. With a class, runs without `deps=` are refused, and those with another type cause a warning.
            output_type: Type of the answer: text, or any type that pydantic can validate.
            **options: See `AgentOptions`.

        Raises:
            ConfigurationError: An argument has a wrong type, or the model string is unknown.
            TypeError: An option is unknown.
        """
        self.definition: AgentDefinition = make_definition(model, deps_type, output_type, options)
        """Parts of the agent, for programs that show or serve agents."""

    def __repr__(self) -> str:
        return f"<Agent {self.name} {self.model.name} tools={self.definition.tools!r}>"

    @property
    def name(self) -> str:
        """Name on the stream."""
        return self.definition.name

    @property
    def model(self) -> Provider:
        """Default model of the runs."""
        return self.definition.model

    @property
    def log(self) -> EventLog | None:
        """Log of the events."""
        return self.definition.log

    @property
    def limits(self) -> Limits:
        """Default limits of the runs."""
        return self.definition.limits

    @property
    def settings(self) -> ModelSettings:
        """Default settings of the model calls."""
        return self.definition.settings

    @overload
    def run(self: Agent[None, O], prompt: Prompt, *, deps: None = None, **options: Unpack[RunOptions]) -> Run[O]: ...
    @overload
    def run(self, prompt: Prompt, *, deps: D, **options: Unpack[RunOptions]) -> Run[O]: ...
    def run(self, prompt: Prompt, *, deps: Any = None, **options: Unpack[RunOptions]) -> Run[O]:
        """Make a run, which starts when it is first used.

        Args:
            prompt: A text, a message, or several of both, such as the history of an earlier result with a question.
            deps: Value that tools and instructions get as `ctx.deps`.
            **options: See `RunOptions`.

        Raises:
            ConfigurationError: There is a `context_id` and the agent has no log, the prompt is empty or has a tool call
                without a result, or an option has a wrong type. The run itself raises `RunExists` if the log has its
                `task_id`, and `ContextBusy` if another run of its conversation has not ended.
            TypeError: An option is unknown.
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
        """Return an Observable that starts a new run for each subscription; disposing the subscription cancels the run.

        Use it in Rx pipelines: `questions.pipe(rx.flat_map_latest(agent.observe))` cancels the older run. It takes the
        arguments of `run`. Wrong arguments are errors of the subscription.
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
        """Run to the end in a new event loop, for scripts. Takes the arguments of `run`."""
        check_options("Agent.run_sync", options, RunOptions)
        return self.definition.run_sync(lambda: self.run(prompt, deps=deps, **options))

    @overload
    def map(
        self: Agent[None, O], items: Items[I], *, deps: None = None, **options: Unpack[MapOptions[I]]
    ) -> Stream[Outcome[I, O]]: ...
    @overload
    def map(self, items: Items[I], *, deps: D, **options: Unpack[MapOptions[I]]) -> Stream[Outcome[I, O]]: ...
    def map(self, items: Items[Any], *, deps: Any = None, **options: Unpack[MapOptions[Any]]) -> Stream[Any]:
        """Run the agent for each item, and yield each outcome as soon as its run has ended.

        A failed run does not end the batch: its outcome has the error. A slow reader holds the batch back, so the items
        may be endless.

        A batch with a name can be run again by an agent with the same log, also after a crash. The name of the agent,
        the name of the batch and the key of an item make the id of a run. Finished runs are not repeated, interrupted
        runs are resumed, and runs that failed with a transient error are tried once more.

        Args:
            items: An iterable, sync or async, or an Observable.
            deps: As for `run`, shared by all runs.
            **options: See `MapOptions`.

        Returns:
            A stream that runs the batch each time it is iterated, subscribed or awaited. Items that can be read only
            once, such as those of a generator, can be run only once.

        Raises:
            ConfigurationError: `items` or an option has a wrong type or value, there is a name and no log, or an item
                is not a prompt and `prompt` is missing. The stream raises it if the items are not a list.
            TypeError: An option is unknown.
        """
        # Imported lazily, because few programs have batches.
        from rxloop.agents.batch import run_batch

        return run_batch(self.definition, items, deps, options)

    @overload
    def resume(
        self: Agent[None, O], task_id: str, *, deps: None = None, **options: Unpack[ResumeOptions]
    ) -> Run[O]: ...
    @overload
    def resume(self, task_id: str, *, deps: D, **options: Unpack[ResumeOptions]) -> Run[O]: ...
    def resume(self, task_id: str, *, deps: Any = None, **options: Unpack[ResumeOptions]) -> Run[O]:
        """Continue an unfinished run as its next attempt, in the same stream.

        A finished run publishes its final event again, and calls no model.

        Args:
            task_id: The run.
            deps: As for `run`.
            **options: See `ResumeOptions`.

        Raises:
            ConfigurationError: The agent has no log, an option has a wrong type, or `deps` are missing.
            TypeError: An option is unknown.
        """
        return self.definition.make_run(make_resume_spec(self.definition, "Agent.resume", task_id, deps, options))

    @overload
    def fork(
        self: Agent[None, O], task_id: str, at: int, *, deps: None = None, **options: Unpack[ForkOptions[None]]
    ) -> Run[O]: ...
    @overload
    def fork(self, task_id: str, at: int, *, deps: D, **options: Unpack[ForkOptions[D]]) -> Run[O]: ...
    def fork(self, task_id: str, at: int, *, deps: Any = None, **options: Unpack[ForkOptions[Any]]) -> Run[O]:
        """Make a new run that starts with the first events of another run.

        The new run has new ids, and its log has all of its events. Copied model and tool calls are not repeated. Tool
        calls without a copied result are executed, even if the other run has started them. The other run does not
        change.

        Args:
            task_id: The run to copy from.
            at: `seq` of the last event to copy.
            deps: As for `run`.
            **options: See `ForkOptions`.

        Raises:
            ConfigurationError: The agent has no log, or an argument has a wrong type. The new run raises it if the
                other run ends before `at` or has no such call, `UnknownRun` if the log does not have the other run, and
                `RunExists` if the log has a run with this `fork_id`.
            TypeError: An option is unknown.
        """
        return self.definition.make_run(make_fork_spec(self.definition, task_id, at, deps, options))

    async def submit(self, prompt: Prompt, **options: Unpack[RunOptions]) -> RunRecord:
        """Write a run into the log without starting it. `get_run(task_id).execute` or `resume` starts it later.

        Args:
            prompt: As for `run`.
            **options: As for `run`, except `on_input`, `when_busy` and `steering`.

        Returns:
            The durable record of the run.

        Raises:
            RunExists: The log has a run of this `task_id`.
            ConfigurationError: As for `run`, or the agent has no log.
            EventLogError: It could not be written.
        """
        # Imported lazily to keep `import rxloop` fast.
        from rxloop.agents.remote_run import submit_run

        return await submit_run(self.definition, prompt, options)

    def get_run(self, task_id: str) -> RemoteRun[D, O]:
        """Address a run by its id, to execute, cancel or answer it, or to send a message. The log is not read."""
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
        """Make a tool for another agent. Each call is a run that is nested in the run of the caller.

        The events of the nested run are on the stream of the caller, with their own id, `parent_task_id` and
        `agent_path`. Its tokens count for both runs. The end of the caller's run ends it too, and its questions are
        questions of the caller's run. It starts with only the prompt and uses the log of the caller. A failed run is a
        failed result. `Limits(depth=, width=)` of the caller limit the number of nested runs.

        Args:
            name: Name of the tool. The default is the name of the agent.
            deps: Function that makes the deps of the nested run, sync or async. The default is the deps of the caller.
            **options: See `AgentToolOptions`.

        Raises:
            ConfigurationError: As for `tool`.
            TypeError: An option is unknown.
        """
        # Imported lazily, because few agents are tools of other agents.
        from rxloop.agents.agent_tool import AgentTool

        return AgentTool(self.definition, name, deps, options)

    def with_log(self, log: EventLog | None) -> Self:
        """Return this agent with another log. Both share their open resources, and either of them closes these.

        Raises:
            ConfigurationError: `log` is not an event log.
        """
        if log is not None:
            check_log(log)
        return self._with(log=log)

    def with_name(self, name: str) -> Self:
        """Return this agent with another name. Both share their open resources, and either of them closes these."""
        return self._with(name=name)

    def _with(self, **changes: Any) -> Self:
        other = copy(self)
        other.definition = replace(self.definition, **changes)
        return other

    def override(
        self, *, model: Provider | str | None = None, tools: Sequence[AnyTool[D]] | None = None
    ) -> AbstractContextManager[None]:
        """Replace the model or the tools of the runs that are made inside, for tests.

        Other tasks are not affected. The model also replaces one that a run names.
        """
        return self.definition.override(model, tools)

    async def aclose(self, *, release: float | None = None) -> None:
        """End the open runs and close what the agent has opened. May be called twice. Later runs are refused.

        Args:
            release: Seconds of grace with which runs with a log are released, as by `run.release`, so that another
                process can continue them after a deploy. None cancels all runs.
        """
        await self.definition.close(release)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()
