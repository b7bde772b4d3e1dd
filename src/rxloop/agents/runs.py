"""How an agent makes its runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast, overload

from typing_extensions import TypeVar, Unpack

from rxloop.agents.options import ForkOptions, Options, ResumeOptions, RunOptions
from rxloop.agents.runs_by_id import RunsById, check_given
from rxloop.agents.validation import check_deps, check_fork, check_history
from rxloop.errors import ConfigurationError, RxloopError
from rxloop.pipeline.run_context import D
from rxloop.protocol.ids import make_id
from rxloop.protocol.messages import Prompt, as_messages
from rxloop.run.handle import Run
from rxloop.run.result import Result

if TYPE_CHECKING:
    from rxloop.agents.batch import Items, Outcome
    from rxloop.agents.cold_run import ColdRun
    from rxloop.stream.stream import Stream

O = TypeVar("O", default=str)  # noqa: E741

T = TypeVar("T", default=str)


class MakesRuns(RunsById[D, O]):
    """Makes the runs of an agent, which nobody has started yet."""

    @overload
    def run(
        self: MakesRuns[None, O], prompt: Prompt, *, deps: None = None, **options: Unpack[RunOptions]
    ) -> Run[O]: ...
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
        self: MakesRuns[None, O], prompt: Prompt, *, deps: None = None, **options: Unpack[RunOptions]
    ) -> ColdRun[O]: ...
    @overload
    def observe(self, prompt: Prompt, *, deps: D, **options: Unpack[RunOptions]) -> ColdRun[O]: ...
    def observe(self, prompt: Prompt, *, deps: Any = None, **options: Unpack[RunOptions]) -> ColdRun[O]:
        """Make an Observable each subscription of which is a run of its own, and is disposed to cancel it.

        For Rx pipelines: `questions.pipe(rx.flat_map_latest(agent.observe))` cancels the older run. Takes what
        `run` takes, and whatever is wrong with that comes as an error of the subscription.
        """
        # Imported here: importing rxloop is quicker without.
        from rxloop.agents.cold_run import ColdRun

        return ColdRun(lambda: self.run(prompt, deps=deps, **options))

    @overload
    def map(
        self: MakesRuns[None, O],
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
        from rxloop.agents.batch import mapped

        check_given("map", options, Options)
        return mapped(self, items, prompt, key, name, concurrency, deps, cast("dict[str, Any]", options))

    @overload
    def run_sync(
        self: MakesRuns[None, O], prompt: Prompt, *, deps: None = None, **options: Unpack[RunOptions]
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
        self: MakesRuns[None, O],
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
        self: MakesRuns[None, O],
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
        new = fork_id if chosen else make_id()
        spec = self._spec(new, make_id(), deps, cast("Options", options), fork=fork, chosen_id=chosen)
        return self._start(spec if tools is None else spec._replace(tools=self._made_of.toolset(tools)))
