"""Random pipelines end within their limits, whatever their operators do."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
import reactivex as rx
from reactivex import operators as ops

from rxloop import Agent, Event, MemoryEventLog, PendingInput, StatusUpdateEvent, op
from rxloop.agents.options import RunOptions
from rxloop.errors import AttemptError, ConfigurationError, UnknownRun
from rxloop.run.handle import Run
from rxloop.state.fold import fold_all
from rxloop.testing import virtual_time
from support.random_features import PROMPT
from support.random_pipelines import Ledger, RandomPipeline
from support.random_runs import silence_logs
from support.run_checks import Recorder, final_events, other_tasks, run_ready_tasks

PIPELINES = int(os.environ.get("RXLOOP_PIPELINES", "250"))
"""Number of random pipelines. 5,000 take some minutes."""
FIRST = int(os.environ.get("RXLOOP_FIRST", "0"))
"""First seed."""
LIMITS = {"max_iterations", "tool_failures", "tokens", "timeout", "attempts"}
GRACE = 5.0
"""Seconds in which cancelled tools may stop."""


@pytest.mark.timeout(60 + PIPELINES)
@pytest.mark.parametrize("part", range(4))
def test_random_pipeline_ends_once_and_within_its_limits(part: int) -> None:
    reports: list[str] = []
    with silence_logs():
        for seed in range(FIRST + part, FIRST + PIPELINES, 4):
            check_seed(seed, reports)
        gc.collect()
    assert reports == []


def check_seed(seed: int, reports: list[str]) -> None:
    """Check a pipeline, and add what the event loop reports, such as exceptions that no code has retrieved."""
    pipeline = RandomPipeline(seed)

    def report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        reports.append(f"seed {seed}: {context}")

    async def check() -> None:
        asyncio.get_running_loop().set_exception_handler(report)
        await check_pipeline(pipeline)

    try:
        with virtual_time(real_timeout=60) as time:
            time.run(check())
    except BaseException as error:
        error.add_note(f"seed {seed}: {pipeline}")
        raise


async def check_pipeline(pipeline: RandomPipeline) -> None:
    """Execute a run, its resumes, forks, forks of forks, later runs, and a run that continues after a crash."""
    features = pipeline.features
    async with features.serve() as servers:
        agent = pipeline.agent(servers)
        await features.prepare(pipeline.log, agent.name)
        await check_runs(pipeline, agent, servers)
        await agent.aclose()
    await run_ready_tasks(20)
    assert other_tasks() == set()
    if features.spans is not None:
        features.spans.check()


async def check_runs(pipeline: RandomPipeline, agent: Agent[Any, str], servers: Sequence[Any]) -> None:
    random, log = pipeline.random, pipeline.log
    run = start(pipeline, agent)
    await check_run(pipeline, agent, run)
    if log is None:
        return
    for _ in range(random.choice((0, 0, 1, 2))):
        if not await is_logged(pipeline, run):
            return
        run = agent.fork(
            run.task_id, at=random.randint(1, len(await log.read(run.task_id))), **pipeline.features.fork()
        )
        await check_run(pipeline, agent, run)
    if pipeline.features.crashes and await is_logged(pipeline, run):
        await check_crash(pipeline, run, servers)


def start(pipeline: RandomPipeline, agent: Agent[Any, str]) -> Run[str]:
    """Create a run, without client tools if their schemas are refused."""
    options: RunOptions = {"on_input": pipeline.features.on_input}
    with suppress(ConfigurationError):
        return agent.run(PROMPT, **{**options, "client_tools": pipeline.features.client_tools})
    return agent.run(PROMPT, **options)


async def check_crash(pipeline: RandomPipeline, run: Run[str], servers: Sequence[Any]) -> None:
    """Continue a run in a new process, with a log that ends before the last event."""
    assert pipeline.log is not None
    events = await pipeline.log.read(run.task_id)
    kept = events[: pipeline.random.randint(1, len(events))]
    if isinstance(kept[-1], StatusUpdateEvent) and kept[-1].state in ("completed", "failed"):
        return
    pipeline.log = MemoryEventLog()
    await pipeline.log.append(run.task_id, [*kept], expected_seq=0)
    del pipeline.model.ledgers[run.task_id]
    async with pipeline.agent(servers) as agent:
        await check_run(pipeline, agent, agent.resume(run.task_id))


async def check_run(pipeline: RandomPipeline, agent: Agent[Any, str], run: Run[str]) -> None:
    """Execute the attempts of a run."""
    for attempt in range(1, 4):
        final = await check_attempt(pipeline, run, attempt)
        is_over = pipeline.log is None or final.state in ("completed", "failed")
        if is_over or attempt == 3 or not await is_logged(pipeline, run):
            return
        inputs = {each.input_id: answer(pipeline, each) for each in final.pending}
        run = agent.resume(run.task_id, inputs=inputs) if inputs else agent.resume(run.task_id)


def answer(pipeline: RandomPipeline, question: PendingInput) -> Any:
    is_error = question.input_kind == "tool" and (pipeline.declines or question.answer_schema)
    return {"error": "no"} if is_error else not pipeline.declines


async def check_attempt(pipeline: RandomPipeline, run: Run[str], attempt: int) -> StatusUpdateEvent:
    """Execute an attempt, and return its final event."""
    loop = asyncio.get_running_loop()
    start, recorder = loop.time(), Recorder(run.events)
    if pipeline.sends:
        run.events.subscribe(lambda _: run.send("More."), lambda _: None)
    result = asyncio.create_task(run.result())
    if pipeline.features.cancel_at is not None and attempt == 1:
        run.events.pipe(ops.skip(pipeline.features.cancel_at), ops.take(1)).subscribe(
            lambda _: run.cancel(), lambda _: None
        )
    if pipeline.cancel_after is not None and attempt == 1:
        loop.call_later(pipeline.cancel_after, run.cancel)
    if pipeline.release_after is not None and pipeline.log is not None and attempt == 1:
        await asyncio.wait([result], timeout=pipeline.release_after)
        await run.release()
    with suppress(AttemptError):
        await result
    await run_ready_tasks(20)
    final = check_end(pipeline, recorder)
    seconds = pipeline.limits.seconds
    assert loop.time() - start <= (1_000 if seconds is None else seconds + GRACE)
    if not pipeline.features.servers:
        # Connections to MCP servers stay open until the agent is closed.
        assert other_tasks() == set()
    await check_log(pipeline, run, recorder.events)
    # The first attempt of a fork continues the copied attempts.
    check_ledger(pipeline, pipeline.model.ledger(run.task_id), final.attempt, is_new=attempt == 1)
    return final


def check_end(pipeline: RandomPipeline, recorder: Recorder) -> StatusUpdateEvent:
    """Check that there is one final event of a documented kind."""
    assert recorder.completed
    last = recorder.events[-1]
    finals = final_events(recorder.events)
    # A fork also publishes the copied events of earlier attempts.
    [final] = [event for event in finals if event.parent_task_id is None and event.attempt == last.attempt]
    assert final is last
    match final.state:
        case "completed":
            assert final.finish_reason is not None
        case "failed":
            assert final.reason in LIMITS or (final.reason == "error" and final.error is not None)
        case "working":
            assert final.error is not None
            assert final.error.code == "released"
        case state:
            assert state in ("canceled", "input-required")
    # A released run may have asked before.
    assert final.state == "working" or bool(final.pending) == (final.state == "input-required")
    errors: list[Exception] = []
    rx.from_iterable(recorder.events).pipe(op.grammar()).subscribe(on_error=errors.append)
    assert errors == []
    return final


async def check_log(pipeline: RandomPipeline, run: Run[str], events: list[Event]) -> None:
    """Check that the log has the published events, and that its fold is the state of the run."""
    if pipeline.log is None:
        return
    if not await is_logged(pipeline, run):
        # Canceled or released before it started.
        assert len(events) == 1
        return
    stored = await pipeline.log.read(run.task_id)
    published = [event for event in events if event.durable and event.seq]
    if isinstance(events[-1], StatusUpdateEvent) and events[-1].state == "working":
        # The end of a released attempt is not stored.
        published.pop()
    assert list(stored[len(stored) - len(published) :]) == published
    state = run._attempt.state()
    if published and published[-1] is events[-1]:
        assert fold_all(stored) == state


async def is_logged(pipeline: RandomPipeline, run: Run[str]) -> bool:
    try:
        return pipeline.log is not None and bool(await pipeline.log.read(run.task_id))
    except UnknownRun:
        return False


def check_ledger(pipeline: RandomPipeline, ledger: Ledger, attempt: int, *, is_new: bool) -> None:
    """Check the work that the model and the tools have received."""
    limits = pipeline.limits
    assert ledger.open == 0
    if limits.iterations is not None:
        # The next attempt repeats interrupted requests. Operators may hold the last message of an attempt.
        assert ledger.requests <= limits.iterations + attempt - 1 + ledger.interrupted
        assert ledger.too_long <= 5 * (limits.iterations + attempt)
    assert ledger.executed <= (ledger.calls + 3) * attempt
    if is_new:
        assert ledger.late == 0
