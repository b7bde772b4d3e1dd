"""Execution of cases and variants."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_jsonable_python

from rxloop.agents.agent import Agent
from rxloop.agents.remote_run import run_once
from rxloop.errors import AttemptError, ConfigurationError
from rxloop.evals.case import METADATA_KEY, Case, format_input
from rxloop.evals.report import Report
from rxloop.evals.scorer import Evidence, ScoreFunction, Scorer, run_scorer
from rxloop.evals.stored_reports import store_report
from rxloop.evals.trials import Measure, Trial
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.interfaces import Provider
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.requests import Strategy
from rxloop.protocol.events import Event, StatusUpdateEvent, TaskEvent
from rxloop.protocol.ids import derive_id
from rxloop.protocol.messages import Message, Prompt, to_messages
from rxloop.protocol.settings import Limits, ModelSettings
from rxloop.recorded.diff import measure_cost
from rxloop.run.handle import Run
from rxloop.run.questions.registry import OnInput
from rxloop.run.result import Result
from rxloop.strategies.catalog import StrategyName
from rxloop.stream.sources import Push
from rxloop.support.tasks import CLOCK


@dataclass(frozen=True, slots=True)
class Variant:
    """Agent with different run options. None keeps the agent's own value.

    Attributes:
        agent: Agent for the runs.
        model: Replaces the agent's model.
        strategy: Strategy, or the name of one in `rxloop.strategies`.
        settings: Override the agent's settings.
        limits: Override the agent's limits.
        prompt: Converts a case to a prompt, instead of the experiment's `prompt=`.
        on_input: Answers questions. Without it, a run that asks a question ends without an answer.
    """

    agent: Agent[Any, Any]
    model: Provider | str | None = None
    strategy: Strategy | StrategyName | None = None
    settings: ModelSettings | None = None
    limits: Limits | None = None
    prompt: Callable[[Case], Prompt] | None = None
    on_input: OnInput | None = None

    def options(self) -> dict[str, Any]:
        """Return the run options that are set by the variant."""
        names = ("model", "strategy", "settings", "limits", "on_input")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Plan:
    """Experiment definition. See `experiment`."""

    name: str
    cases: Sequence[Case]
    variants: Mapping[str, Variant]
    scorers: Sequence[Scorer]
    log: EventLog | None
    prompt: Callable[[Case], Prompt] | None
    deps: Callable[[Case], Any] | None
    repeats: int
    concurrency: int


ExistingRuns = Collection[str]
"""Ids of existing runs in the log."""


@dataclass(frozen=True, slots=True)
class _PlannedRun:
    """Run to start, or to find in the log."""

    variant: str
    case: Case
    repeat: int
    task_id: str


async def run_experiment(experiment: Plan, push: Push[Report]) -> None:
    """Run an experiment and push a report after each trial. Existing runs in the log are reused.

    Raises:
        ConfigurationError: The log contains a run for the same case with a different prompt.
    """
    plan = [*_plan_runs(experiment)]
    existing = await _find_existing(experiment, plan)
    trials: dict[int, Trial] = {}

    def report() -> Report:
        # Skip validation, which would process all trials each time.
        return Report.model_construct(
            name=experiment.name,
            created=CLOCK.get().now(),
            planned=len(plan),
            measures=[Measure(name=scorer.name, better=scorer.better) for scorer in experiment.scorers],
            variants=[*experiment.variants],
            trials=[trials[index] for index in sorted(trials)],
        )

    latest = report()
    push(latest)
    async with AsyncExitStack() as stack:
        scorers = [(each, await stack.enter_async_context(each.open(experiment.log))) for each in experiment.scorers]
        remaining = iter(enumerate(plan))

        async def work() -> None:
            nonlocal latest
            # Use a shared iterator, so that idle workers start the next run.
            for index, planned in remaining:
                trials[index] = await _run_trial(experiment, planned, existing, scorers)
                latest = report()
                push(latest)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(experiment.concurrency, len(plan))):
                group.create_task(work())
    if experiment.log is not None:
        await store_report(experiment.log, latest)


def _plan_runs(experiment: Plan) -> Iterator[_PlannedRun]:
    for variant in experiment.variants:
        for case in experiment.cases:
            for repeat in range(1, experiment.repeats + 1):
                key = (experiment.name, variant, case.id, str(repeat))
                yield _PlannedRun(variant, case, repeat, derive_id(METADATA_KEY, *key))


async def _find_existing(experiment: Plan, plan: Sequence[_PlannedRun]) -> ExistingRuns:
    """Return ids of planned runs that already exist in the log.

    Raises:
        ConfigurationError: An existing run has a different prompt.
    """
    log = experiment.log
    if log is None:
        return ()
    runs_by_id = {planned.task_id: planned for planned in plan}
    records = await read_log(log.list_runs, metadata={METADATA_KEY: experiment.name})
    existing = {record.task_id for record in records if record.task_id in runs_by_id}
    for task_id in existing:
        planned = runs_by_id[task_id]
        first = (await read_log(log.read, task_id))[0]
        if isinstance(first, TaskEvent) and not _has_same_prompt(experiment, planned, first):
            raise ConfigurationError(
                f"the log contains a run of case {planned.case.id!r} in experiment {experiment.name!r} with a "
                "different prompt; change the id of the case or the name of the experiment"
            )
    return existing


def _has_same_prompt(experiment: Plan, planned: _PlannedRun, first: TaskEvent) -> bool:
    case = planned.case
    if case.fork_of is not None:
        return (first.fork_of, first.fork_seq) == (case.fork_of, case.fork_at)
    messages = to_messages(_make_prompt(experiment, experiment.variants[planned.variant], case))
    return [_select_fields(message) for message in messages] == [_select_fields(message) for message in first.messages]


def _select_fields(message: Message) -> dict[str, Any]:
    """Return a message without fields added by a run."""
    return message.model_dump(include={"role", "content", "tool_call_id"})


def _make_prompt(experiment: Plan, variant: Variant, case: Case) -> Any:
    convert = variant.prompt or experiment.prompt
    return case.input if convert is None else convert(case)


async def _run_trial(
    experiment: Plan, planned: _PlannedRun, existing: ExistingRuns, scorers: Sequence[tuple[Scorer, ScoreFunction]]
) -> Trial:
    case = planned.case
    evidence = await _collect_evidence(experiment, planned, existing)
    cost, result = measure_cost(evidence.events), evidence.result
    scores = [(scorer.name, await run_scorer(scorer, function, evidence)) for scorer, function in scorers]
    return Trial(
        variant=planned.variant,
        case=case.id,
        repeat=planned.repeat,
        task_id=evidence.task_id,
        input=format_input(case),
        expected=to_jsonable_python(case.expected, fallback=str),
        metadata=to_jsonable_python(dict(case.metadata), fallback=str),
        state=evidence.state,
        content=result.content if result is not None else "",
        error=evidence.error,
        usage=cost.usage,
        seconds=cost.seconds,
        scores={name: score for name, score in scores if score is not None},
    )


async def _collect_evidence(experiment: Plan, planned: _PlannedRun, existing: ExistingRuns) -> Evidence:
    """Wait for a new or existing run. Errors are returned instead of being raised."""
    result: Result[Any] | None = None
    error: str | None = None
    live_events: list[Event] = []
    task_id = planned.task_id
    try:
        if experiment.log is None:
            run = _start_run(experiment, planned)
            task_id = run.task_id
            run.events.subscribe(live_events.append)
            result = await run
        elif task_id in existing:
            result = await _resume_run(experiment, planned)
        else:
            # Another process running the same experiment may be faster.
            result = await run_once(lambda: _start_run(experiment, planned), lambda: _resume_run(experiment, planned))
    except AttemptError as failure:
        result, error = failure.result, f"{failure.code}: {failure}"
    except Exception as failure:
        error = f"{type(failure).__name__}: {failure}"
    try:
        events = await _read_events(experiment.log, task_id, live_events)
    except Exception as failure:
        events, error = [], error or f"{type(failure).__name__}: {failure}"
    last = next((event for event in reversed(events) if isinstance(event, StatusUpdateEvent)), None)
    if last is not None and last.pending:
        error = f"the run is waiting for input: {', '.join(pending.prompt for pending in last.pending)}"
    return Evidence(planned.case, task_id, last.state if last is not None else "failed", events, result, error)


def _start_run(experiment: Plan, planned: _PlannedRun) -> Run[Any]:
    variant, case = experiment.variants[planned.variant], planned.case
    agent, options = _configure_agent(experiment, planned)
    prompt = _make_prompt(experiment, variant, case)
    labels = {"variant": planned.variant, "case": case.id, "repeat": planned.repeat}
    options["metadata"] = {METADATA_KEY: experiment.name} | {
        f"{METADATA_KEY}.{name}": value for name, value in labels.items()
    }
    task_id = planned.task_id if experiment.log is not None else None
    if case.fork_of is not None and case.fork_at is not None:
        return agent.fork(case.fork_of, case.fork_at, prompt=prompt, fork_id=task_id, **options)
    return agent.run(prompt, task_id=task_id, **options)


def _resume_run(experiment: Plan, planned: _PlannedRun) -> Run[Any]:
    agent, options = _configure_agent(experiment, planned)
    # The run may be active in another process, or still ending after a cancelled experiment.
    return agent.resume(planned.task_id, when_busy="wait", **options)


def _configure_agent(experiment: Plan, planned: _PlannedRun) -> tuple[Agent[Any, Any], dict[str, Any]]:
    """Return the agent and the options for a run."""
    variant = experiment.variants[planned.variant]
    options = variant.options()
    if experiment.deps is not None:
        options["deps"] = experiment.deps(planned.case)
    return variant.agent.with_log(experiment.log), options


async def _read_events(log: EventLog | None, task_id: str, live_events: Sequence[Event]) -> list[Event]:
    """Return a run's durable events, excluding events copied by a fork."""
    events = live_events if log is None else await read_log(log.read, task_id)
    first = next((event.fork_seq for event in events if isinstance(event, TaskEvent)), None)
    return [event for event in events if event.durable and event.seq > (first or 0)]
