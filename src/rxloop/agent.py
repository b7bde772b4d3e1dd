"""The description of an agent: a model, tools, a loop and limits, from which runs are made."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast, overload

from typing_extensions import TypeVar, Unpack

from rxloop.errors import ConfigurationError, RxloopError
from rxloop.operators.loop.compose import compose
from rxloop.operators.loop.iterate import iterate
from rxloop.operators.loop.standard import standard
from rxloop.operators.loop.typed_output import typed_output
from rxloop.pipeline.logs import EventLog
from rxloop.pipeline.requests import Operator, Strategy
from rxloop.pipeline.run_context import D, RunContext
from rxloop.pipeline.seams import ArtifactStore, Provider
from rxloop.protocol.messages import Prompt, as_messages
from rxloop.protocol.settings import Limits, ModelSettings
from rxloop.run.arguments import (
    check_agent,
    check_deps,
    check_fork,
    check_history,
    check_log,
    check_model,
    check_operator,
    check_tools,
)
from rxloop.run.by_id import OVERRIDES, RunsById, check_given
from rxloop.run.description import Description, Opened, toolset_of
from rxloop.run.handle import Run
from rxloop.run.ids import new_id
from rxloop.run.options import AgentOptions, AgentToolOptions, ForkOptions, Options, ResumeOptions, RunOptions
from rxloop.run.result import Result
from rxloop.stream.waiting import all_over
from rxloop.tools import AnyTool, Thoughts
from rxloop.tools.output import Output, OutputMode, output_of

if TYPE_CHECKING:
    from rxloop.run.agent_tool import AgentTool
    from rxloop.run.batch import Items, Outcome
    from rxloop.run.cold import ColdRun
    from rxloop.stream.stream import Stream

O = TypeVar("O", default=str)  # noqa: E741
T = TypeVar("T", default=str)
P = TypeVar("P")


class Agent(RunsById[D, O]):
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
    def name(self) -> str:
        """What it is called on the stream."""
        return self._made_of.name

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
        tools = self._made_of.tools
        return [name for name in tools.plain if not tools.hides(name)]

    @overload
    def run(self: Agent[None, O], prompt: Prompt, *, deps: None = None, **options: Unpack[RunOptions]) -> Run[O]: ...
    @overload
    def run(self, prompt: Prompt, *, deps: D, **options: Unpack[RunOptions]) -> Run[O]: ...
    def run(self, prompt: Prompt, *, deps: Any = None, **options: Unpack[RunOptions]) -> Run[O]:
        """Make a run; its first use starts it.

        Args:
            prompt: A text, a message, or several of both, such as the history of an earlier result with a question.
            deps: What tools and instructions find on `ctx.deps`.
            **options: See `RunOptions`.

        Raises:
            ConfigurationError: `context_id` was given and the agent has no log, the prompt is empty, a tool call in it
                has no answer, or an option is of a wrong kind. The run raises `RunExists` if there is one of its
                `task_id`, and `ContextBusy` if its conversation has a run that has not ended.
            TypeError: There is no such option.
        """
        check_deps("run", self._made_of.deps_type, deps)
        return self._start(self._new("run", prompt, deps, options))

    @overload
    def observe(
        self: Agent[None, O], prompt: Prompt, *, deps: None = None, **options: Unpack[RunOptions]
    ) -> ColdRun[O]: ...
    @overload
    def observe(self, prompt: Prompt, *, deps: D, **options: Unpack[RunOptions]) -> ColdRun[O]: ...
    def observe(self, prompt: Prompt, *, deps: Any = None, **options: Unpack[RunOptions]) -> ColdRun[O]:
        """Make an Observable each subscription of which is a run of its own, and is disposed to cancel it.

        For Rx pipelines: `questions.pipe(rx.flat_map_latest(agent.observe))` cancels the older run. Takes what
        `run` takes, and whatever is wrong with that comes as an error of the subscription.
        """
        # Imported here: importing rxloop is quicker without.
        from rxloop.run.cold import ColdRun

        return ColdRun(lambda: self.run(prompt, deps=deps, **options))

    @overload
    def map(
        self: Agent[None, O],
        items: Items[T],
        *,
        prompt: Callable[[T], Prompt] | None = None,
        key: Callable[[T], str | int] | None = None,
        name: str | None = None,
        concurrency: int = 50,
        deps: None = None,
        **options: Unpack[Options],
    ) -> Stream[Outcome[T, O]]: ...
    @overload
    def map(
        self,
        items: Items[T],
        *,
        prompt: Callable[[T], Prompt] | None = None,
        key: Callable[[T], str | int] | None = None,
        name: str | None = None,
        concurrency: int = 50,
        deps: D,
        **options: Unpack[Options],
    ) -> Stream[Outcome[T, O]]: ...
    def map(
        self,
        items: Items[Any],
        *,
        prompt: Callable[[Any], Prompt] | None = None,
        key: Callable[[Any], str | int] | None = None,
        name: str | None = None,
        concurrency: int = 50,
        deps: Any = None,
        **options: Unpack[Options],
    ) -> Stream[Outcome[Any, O]]:
        """Run the agent for each item, up to `concurrency` at a time, and yield each outcome as soon as its run ends.

        How a run fails is a value, `outcome.error`, and the others go on. A reader that is slow holds the batch back,
        so that the items may be endless: there are never more runs than `concurrency`.

        A batch with a name can be run again, after a crash as well, by an agent with the same log: the agent's name,
        `name` and the key of an item make the id of its run. What is done is not asked again but comes out of the log,
        what was begun goes on, and what failed with a transient error is tried once more.

        Args:
            items: An iterable, sync or async, or an Observable.
            prompt: Turns an item into its prompt; without it the item is the prompt.
            key: Tells an item from the others, the same in every process; by default its prompt. In a batch with a
                name, items of the same key are one run.
            name: That of the batch; without one all items are asked anew. A name that is used again for other
                instructions, or another model, gives the answers that are in the log.
            concurrency: How many runs go on at once. `limited(model, per_minute=...)` limits the calls of the model.
            deps: As for `run`, the same for all.
            **options: As for `run`.

        Returns:
            A stream that runs the batch when it is iterated, subscribed or awaited, and again each time. Items that
            can be read only once, such as those of a generator, can be run only once.

        Raises:
            ConfigurationError: `items` or `concurrency` is wrong, there is a name and no log, an option is of a wrong
                kind, or an item is no prompt and there is no `prompt=`; from the stream if the items are no list.
            TypeError: There is no such option.
        """
        # Few programs have batches.
        from rxloop.run.batch import mapped

        check_given("map", options, Options)
        return mapped(self, items, prompt, key, name, concurrency, deps, cast("dict[str, Any]", options))

    @overload
    def run_sync(
        self: Agent[None, O], prompt: Prompt, *, deps: None = None, **options: Unpack[RunOptions]
    ) -> Result[O]: ...
    @overload
    def run_sync(self, prompt: Prompt, *, deps: D, **options: Unpack[RunOptions]) -> Result[O]: ...
    def run_sync(self, prompt: Prompt, *, deps: Any = None, **options: Unpack[RunOptions]) -> Result[O]:
        """Run to the end in an event loop of its own, for scripts. Takes what `run` takes."""
        check_given("run_sync", options, RunOptions)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise RxloopError("run_sync() cannot wait inside a running event loop: use `await agent.run(...)`")

        async def main() -> Result[O]:
            try:
                return await self.run(prompt, deps=deps, **options)
            finally:
                await self._made_of.aclose()

        return asyncio.run(main())

    @overload
    def resume(
        self: Agent[None, O],
        task_id: str,
        *,
        inputs: Mapping[str, Any] | None = None,
        deps: None = None,
        **options: Unpack[ResumeOptions],
    ) -> Run[O]: ...
    @overload
    def resume(
        self, task_id: str, *, inputs: Mapping[str, Any] | None = None, deps: D, **options: Unpack[ResumeOptions]
    ) -> Run[O]: ...
    def resume(
        self,
        task_id: str,
        *,
        inputs: Mapping[str, Any] | None = None,
        deps: Any = None,
        **options: Unpack[ResumeOptions],
    ) -> Run[O]:
        """Go on with a run that has not ended for good, in the same stream, as its next attempt.

        A run that has ended gives its final event once more, and calls no model.

        Args:
            task_id: The run.
            inputs: The answers to its questions, by `input_id`.
            deps: As for `run`.
            **options: See `ResumeOptions`.

        Raises:
            ConfigurationError: The agent has no log, an option is of a wrong kind, or `deps` are missing.
            TypeError: There is no such option.
        """
        return self._start(self._next("resume", task_id, inputs, deps, options))

    @overload
    def fork(
        self: Agent[None, O],
        task_id: str,
        at: int,
        *,
        prompt: Prompt | None = None,
        results: Mapping[str, Any] | None = None,
        deps: None = None,
        **options: Unpack[ForkOptions],
    ) -> Run[O]: ...
    @overload
    def fork(
        self,
        task_id: str,
        at: int,
        *,
        prompt: Prompt | None = None,
        results: Mapping[str, Any] | None = None,
        deps: D,
        **options: Unpack[ForkOptions],
    ) -> Run[O]: ...
    def fork(
        self,
        task_id: str,
        at: int,
        *,
        prompt: Prompt | None = None,
        results: Mapping[str, Any] | None = None,
        deps: Any = None,
        **options: Unpack[ForkOptions],
    ) -> Run[O]:
        """Make a new run that begins with a part of another one, and goes on in its own way.

        The new run has ids of its own, and its log holds all of it. What the part has is not asked or done again; tool
        calls that have no result in it are made, whether they were begun or not. The run it is made of stays as it is.

        Args:
            task_id: The run to begin with.
            at: The `seq` of the last event to take over.
            prompt: In the place of the user's message for `at=1`, else a new message after what is taken over; calls
                that are open there are closed as cancelled.
            results: What tools have answered, by the id of the call, or by its slot (`"2/0"`: the first call of step 2)
                where an id is not unique; a `ToolError` makes a failed result.
            deps: As for `run`.
            **options: See `ForkOptions`.

        Raises:
            ConfigurationError: The agent has no log, or an argument is of a wrong kind. The run raises it if the other
                one ends before `at` or has no such call, `UnknownRun` if the log does not have it, and `RunExists` if
                there is one of its `fork_id`.
            TypeError: There is no such option.
        """
        # Few programs fork a run.
        from rxloop.run.fork import make_fork

        tools, fork_id = options.pop("tools", None), options.pop("fork_id", None)
        check_given("fork", cast("Options", options), ForkOptions)
        check_fork(at, results, tools, fork_id)
        if self.log is None:
            raise ConfigurationError(f"to fork {task_id} the agent needs the log that holds it: Agent(..., log=...)")
        check_deps("fork", self._made_of.deps_type, deps)
        messages = check_history(as_messages(prompt) if prompt is not None else ())
        fork = make_fork(task_id, at, messages, results or {})
        chosen = fork_id is not None
        new = fork_id if chosen else new_id()
        spec = self._spec(new, new_id(), deps, cast("Options", options), fork=fork, chosen_id=chosen)
        return self._start(spec if tools is None else spec._replace(tools=self._made_of.toolset(tools)))

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
            description: What it is for.
            deps: Makes the dependencies of the nested run, sync or async; those of the caller's run by default.
            **options: See `AgentToolOptions`.

        Raises:
            ConfigurationError: As for `tool`.
            TypeError: There is no such option.
        """
        # Imported here: most agents have no others among their tools, and importing rxloop is quicker without.
        from rxloop.run.agent_tool import AgentTool

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
        await all_over([closing])
        closing.result()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


def _by_name(name: str) -> Strategy:
    # Imported here: most runs need none of them.
    from rxloop.strategies import by_name

    return by_name(name)


def _pipeline(loop: Sequence[Operator], output_type: type[Any], output: Output, retries: int) -> Operator:
    """What carries out one iteration, answers of a type included."""
    if output_type is str:
        return compose(*loop)
    return compose(*loop, typed_output(output.parse, retries, by_tool=output.tool is not None))
