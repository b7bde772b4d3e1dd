"""Definition and execution of an experiment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Self, cast

from typing_extensions import override

from rxloop.agents.agent import Agent
from rxloop.errors import ConfigurationError, RxloopError
from rxloop.evals.case import Case, numbered
from rxloop.evals.report import Report
from rxloop.evals.runner import Plan, Variant, carry_out
from rxloop.evals.scorer import Scorer, as_scorer
from rxloop.pipeline.event_log import EventLog
from rxloop.protocol.envelope import check_printable
from rxloop.protocol.messages import Prompt
from rxloop.stream.readers import merge
from rxloop.stream.sources import Push, from_task
from rxloop.stream.stream import Stream

Variants = Agent[Any, Any] | Mapping[str, "Agent[Any, Any] | Variant"]


class Experiment(Plan):
    """Cases, variants and scorers, as created by `experiment`."""

    @override
    def __repr__(self) -> str:
        counts = {"case": self.cases, "variant": self.variants, "scorer": self.scorers}
        said = ", ".join(f"{len(each)} {name}{'' if len(each) == 1 else 's'}" for name, each in counts.items())
        return f"<Experiment {self.name}: {said}>"

    def run(self) -> Stream[Report]:
        """Carry it out: a stream of reports, each with one trial more. Awaiting it gives the last, complete one.

        ::

            trials   --a-----b--c----|
            run()    R-R-----R--R----|

        A run that fails and a scorer that fails are values in the report, and stop nothing. Cancelling the task
        that awaits it, or letting go of the last subscription, cancels the runs that are under way. With a log, another
        call goes on where that one ended, in this process or another: what is done is not asked again.

        Raises:
            ConfigurationError: From the stream: the log has a run of a case that was asked something else.
        """

        async def work(push: Push[Report]) -> None:
            await carry_out(self, push)

        return merge(from_task(work, name="rxloop-experiment"))

    def run_sync(self) -> Report:
        """Carry it out in an event loop of its own, for scripts, and close its agents."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise RxloopError("run_sync() cannot wait inside a running event loop: use `await experiment.run()`")

        async def main() -> Report:
            async with self:
                return await self.run()

        return asyncio.run(main())

    async def aclose(self) -> None:
        """Close the agents of all variants."""
        for agent in {id(variant.agent): variant.agent for variant in self.variants.values()}.values():
            await agent.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


def experiment(
    cases: Iterable[Case] | str | PathLike[str],
    agent: Variants,
    scorers: Sequence[Scorer | Callable[..., Any]],
    *,
    name: str = "",
    log: EventLog | None = None,
    prompt: Callable[[Case], Prompt] | None = None,
    deps: Callable[[Case], Any] | None = None,
    repeats: int = 1,
    concurrency: int = 10,
) -> Experiment:
    """Describe an experiment: each variant is asked each case, `repeats` times, and each run is scored.

    Example:
        >>> capitals = experiment(cases, {"small": small, "large": large}, [score.exact(), score.cost()])
        >>> report = await capitals.run()
        >>> assert report.of("large").mean("exact") > 0.9

    Args:
        cases: What is asked; a path names a file that `Case.read` reads.
        agent: What is asked: an agent, or agents and `Variant`s by their names.
        scorers: Functions of a result, or of a case and a result, and those of `rxloop.score`.
        name: What it is called in reports. With a log it is needed: the runs are found by it.
        log: Keeps the runs, so that the experiment can be carried on after a crash. None keeps them nowhere, whatever
            log the agents have themselves.
        prompt: Turns a case into what is asked, where its input is not a text or messages.
        deps: Makes the deps of each run.
        repeats: How many times each variant is asked each case.
        concurrency: How many runs go on at once, with their scoring.

    Raises:
        ConfigurationError: An argument is of a wrong kind, or two cases or scorers have the same name.
    """
    if log is not None and not name.strip():
        raise ConfigurationError("an experiment with a log needs a name, by which its runs are found: name='capitals'")
    if repeats < 1 or concurrency < 1:
        raise ConfigurationError(f"repeats and concurrency must be at least 1, got {repeats} and {concurrency}")
    asked = Case.read(cases) if isinstance(cases, str | PathLike) else cases
    made = Experiment(
        name=check_printable(name or "experiment", "the name of an experiment"),
        cases=tuple(numbered([*asked])),
        variants=_variants(agent),
        scorers=_scorers(scorers),
        log=log,
        prompt=prompt,
        deps=deps,
        repeats=repeats,
        concurrency=concurrency,
    )
    forked = next((case for case in made.cases if case.fork_of is not None), None)
    if forked is not None and log is None:
        raise ConfigurationError(f"the case {forked.id!r} is a fork: give the log that holds the run {forked.fork_of}")
    return made


def _variants(given: Variants) -> dict[str, Variant]:
    named: Any = {given.name: given} if isinstance(given, Agent) else given
    if not isinstance(named, Mapping) or not named:
        raise ConfigurationError(f"{given!r} is neither an agent nor a dict of agents by name")
    return {name: _variant(name, value) for name, value in cast("Mapping[str, Any]", named).items()}


def _variant(name: str, given: Any) -> Variant:
    check_printable(name, "the name of a variant")
    if isinstance(given, Variant):
        return given
    if isinstance(given, Agent):
        return Variant(cast("Agent[Any, Any]", given))
    raise ConfigurationError(f"the variant {name!r} is {given!r}: give an Agent, or Variant(agent, ...)")


def _scorers(given: Sequence[Scorer | Callable[..., Any]]) -> tuple[Scorer, ...]:
    if isinstance(given, Scorer) or callable(given):
        raise ConfigurationError(f"scorers must be a list, got {given!r}")
    scorers = tuple(as_scorer(each) for each in given)
    if not scorers:
        raise ConfigurationError("an experiment needs a scorer: score.exact(), or a function of the result")
    names = [scorer.name for scorer in scorers]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigurationError(
            f"two scorers are called {twice!r}: give one another name, as Scorer('other', function)"
        )
    return scorers
