"""A failed run is reported to its readers, or by a warning in the program log if no reader sees the failure."""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import Any

import pytest
from reactivex import operators as rx

from rxloop import Agent, LimitReached, Limits, MemoryEventLog, Run, RunError, ToolError, op, tool
from rxloop.errors import Overloaded
from rxloop.testing import ScriptedModel, call, turn
from support.run_checks import wait_until
from support.runs import collect


@tool
async def again() -> str:
    """Request another round."""
    return "and again"


def make_failing_agent() -> Agent:
    return Agent(ScriptedModel(Overloaded("no room")), name="bot")


async def read_pieces(run: Run[str]) -> list[str]:
    return [piece async for piece in run.text()]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    gc.collect()
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno == logging.WARNING and "never retrieved" in record.getMessage()
    ]


async def test_text_of_failed_run_raises_its_error() -> None:
    with pytest.raises(RunError, match="no room") as caught:
        await read_pieces(make_failing_agent().run("Hi"))
    assert caught.value.code == "overloaded"
    assert await read_pieces(Agent(ScriptedModel("One piece.")).run("Hi")) == ["One piece."]


async def test_text_yields_all_pieces_before_the_error() -> None:
    agent = Agent(ScriptedModel(turn("Half an ", calls=[call("again")])), tools=[again], limits=Limits(iterations=1))
    pieces: list[str] = []
    text = agent.run("Hi").text()
    with pytest.raises(LimitReached):
        await text.pipe(rx.do_action(pieces.append))
    assert "".join(pieces) == "Half an "


async def test_text_of_canceled_run_completes_without_warning(caplog: pytest.LogCaptureFixture) -> None:
    run = Agent(ScriptedModel("One two three")).run("Hi")
    async for _ in run.text():
        run.cancel()
    del run
    assert warnings(caplog) == []


async def test_text_subscriber_receives_the_error_in_on_error() -> None:
    errors: list[Exception] = []
    run = make_failing_agent().run("Hi")
    run.text().subscribe(lambda piece: None, errors.append)
    await wait_until(lambda: errors)
    assert isinstance(errors[0], RunError)


async def test_failure_is_logged_when_only_a_view_was_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = make_failing_agent().run("Hi")
    assert [piece async for piece in run.pipe(op.text())] == []
    task_id = run.task_id
    assert warnings(caplog) == []  # awaiting is still possible
    del run
    assert warnings(caplog) == [
        f"Run {task_id} of 'bot' failed, but its result was never retrieved: [overloaded] no room. "
        "Await the run, or iterate over run.text()"
    ]


async def read_events(run: Run[str]) -> None:
    await collect(run)


async def read_thoughts_in_context(run: Run[str]) -> None:
    async with run:
        await collect(run.pipe(op.thoughts()))


async def subscribe_to_events(run: Run[str]) -> None:
    completions: list[bool] = []
    run.events.subscribe(on_completed=lambda: completions.append(True))
    await wait_until(lambda: completions)


async def read_frames(run: Run[str]) -> None:
    assert [frame async for frame in run.sse()]


@pytest.mark.parametrize("use", [read_events, read_thoughts_in_context, subscribe_to_events, read_frames])
async def test_failure_is_logged_once_when_only_events_were_read(use: Any, caplog: pytest.LogCaptureFixture) -> None:
    await use(make_failing_agent().run("Hi"))
    [warning] = warnings(caplog)
    assert "[overloaded] no room" in warning


async def await_run(run: Run[str]) -> None:
    with pytest.raises(RunError):
        await run


async def read_events_and_result(run: Run[str]) -> None:
    await collect(run)
    with pytest.raises(RunError):
        await run.result()


async def read_text(run: Run[str]) -> None:
    with pytest.raises(RunError):
        await read_pieces(run)


async def read_events_and_close(run: Run[str]) -> None:
    await collect(run)
    await run.aclose()


@pytest.mark.parametrize("use", [await_run, read_events_and_result, read_text, read_events_and_close])
async def test_failure_is_not_logged_when_the_result_was_read(use: Any, caplog: pytest.LogCaptureFixture) -> None:
    await use(make_failing_agent().run("Hi"))
    assert warnings(caplog) == []


async def test_successful_and_waiting_runs_log_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    await collect(Agent(ScriptedModel("Hi")).run("Hi"))
    paused = Agent(ScriptedModel(call("asks")), tools=[asks], log=MemoryEventLog()).run("Hi")
    await collect(paused)
    run = Agent(ScriptedModel("Hi")).run("Hi")
    async with run:
        pass
    del run, paused
    assert warnings(caplog) == []


@tool(approve=True)
async def asks() -> str:
    """Asks."""
    raise ToolError("never called")


async def test_rejected_run_raises_for_its_reader_or_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = Agent(ScriptedModel("Hi"), log=MemoryEventLog())
    with pytest.raises(LookupError):
        await collect(agent.resume("nowhere"))
    assert warnings(caplog) == []

    async with agent.resume("nowhere"):
        await asyncio.sleep(0.01)
    [warning] = warnings(caplog)
    assert "the log has no run nowhere" in warning
