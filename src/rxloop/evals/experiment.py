"""Definition and execution of an experiment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, Self, cast

from typing_extensions import override

from rxloop.agents.agent import Agent
from rxloop.errors import ConfigurationError, RxloopError
from rxloop.evals.case import Case, assign_ids
from rxloop.evals.report import Report
from rxloop.evals.runner import Plan, Variant, run_experiment
from rxloop.evals.scorer import Scorer, to_scorer
from rxloop.pipeline.event_log import EventLog
from rxloop.protocol.envelope import check_printable
from rxloop.protocol.messages import Prompt
from rxloop.stream.readers import merge
from rxloop.stream.sources import Push, from_task
from rxloop.stream.stream import Stream
from rxloop.support.tasks import has_running_loop

Variants = Agent[Any, Any] | Mapping[str, "Agent[Any, Any] | Variant"]


class Experiment(Plan):
    """Experiment with cases, variants and scorers. Use `experiment` to create instances."""

    @override
    def __repr__(self) -> str:
        counts = {"case": self.cases, "variant": self.variants, "scorer": self.scorers}
        summary = ", ".join(f"{len(each)} {name}{'' if len(each) == 1 else 's'}" for name, each in counts.items())
        return f"<Experiment {self.name}: {summary}>"

    def run(self) -> Stream[Report]:
        """Run the experiment. Returns a stream of reports, each with one more trial. Await it for the complete report.

        ::

            trials   --a-----b--c----|
            run()    R-R-----R--R----|

        Failed runs and scorers are reported and do not stop the experiment. Active runs are cancelled if the awaiting
        task is cancelled, or the last subscription is disposed. With a log, another call continues in any process, and
        finished runs are not repeated.

        Raises:
            ConfigurationError: Raised by the stream if the log has a run of a case with another prompt.
        """

        async def work(push: Push[Report]) -> None:
            await run_experiment(self, push)

        return merge(from_task(work, name="rxloop-experiment"))

    def run_sync(self) -> Report:
        """Run the experiment in a new event loop and close its agents. Intended for scripts."""
        if has_running_loop():
            raise RxloopError("run_sync() must not be called in a running event loop; use `await experiment.run()`")

        async def main() -> Report:
            async with self:
                return await self.run()

        return asyncio.run(main())

    async def aclose(self) -> None:
        """Close all agents used by the variants."""
        for agent in {id(variant.agent): variant.agent for variant in self.variants.values()}.values():
            await agent.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
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
    """Create an experiment. Each variant runs each case `repeats` times, and each run is scored.

    Example:
        >>> capitals = experiment(cases, {"small": small, "large": large}, [score.exact(), score.cost()])
        >>> report = await capitals.run()
        >>> assert report.of("large").mean("exact") > 0.9

    Args:
        cases: Cases, or the path of a file for `Case.read`.
        agent: An agent, or a dict of agents and `Variant`s by name.
        scorers: Functions that accept a result, or a case and a result, and scorers from `rxloop.score`.
        name: Name in reports. Required with a log, because it identifies the runs.
        log: Event log for the runs, which allows an experiment to continue after a crash. By default the runs are not
            stored, even if the agents have a log.
        prompt: Converts a case to a prompt, if its input is not text or messages.
        deps: Creates the deps for each run.
        repeats: Number of runs per variant and case.
        concurrency: Maximum number of concurrent runs, including their scoring.

    Raises:
        ConfigurationError: An argument is invalid, or two cases or scorers have the same name.
    """
    if log is not None and not name.strip():
        raise ConfigurationError("name must not be empty for an experiment with a log")
    if repeats < 1 or concurrency < 1:
        raise ConfigurationError(f"repeats and concurrency must be at least 1, got {repeats} and {concurrency}")
    loaded = Case.read(cases) if isinstance(cases, str | PathLike) else cases
    created = Experiment(
        name=check_printable(name or "experiment", "the name of an experiment"),
        cases=tuple(assign_ids([*loaded])),
        variants=_to_variants(agent),
        scorers=_to_scorers(scorers),
        log=log,
        prompt=prompt,
        deps=deps,
        repeats=repeats,
        concurrency=concurrency,
    )
    forked = next((case for case in created.cases if case.fork_of is not None), None)
    if forked is not None and log is None:
        raise ConfigurationError(f"case {forked.id!r} is a fork and requires the log of run {forked.fork_of}")
    return created


def _to_variants(agent: Variants) -> dict[str, Variant]:
    agents: Any = {agent.name: agent} if isinstance(agent, Agent) else agent
    if not isinstance(agents, Mapping) or not agents:
        raise ConfigurationError(f"agent must be an Agent or a dict of agents by name, got {agent!r}")
    return {name: _to_variant(name, value) for name, value in cast("Mapping[str, Any]", agents).items()}


def _to_variant(name: str, value: Any) -> Variant:
    check_printable(name, "the name of a variant")
    if isinstance(value, Variant):
        return value
    if isinstance(value, Agent):
        return Variant(cast("Agent[Any, Any]", value))
    raise ConfigurationError(f"variant {name!r} must be an Agent or a Variant, got {value!r}")


def _to_scorers(values: Sequence[Scorer | Callable[..., Any]]) -> tuple[Scorer, ...]:
    if isinstance(values, Scorer) or callable(values):
        raise ConfigurationError(f"scorers must be a list, got {values!r}")
    scorers = tuple(to_scorer(each) for each in values)
    if not scorers:
        raise ConfigurationError("scorers must not be empty; use score.exact() or a function of the result")
    names = [scorer.name for scorer in scorers]
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate is not None:
        raise ConfigurationError(f"scorer names must be unique, got {duplicate!r} twice; use Scorer('other', function)")
    return scorers
