"""No failure is silent: whoever streams a run learns that it failed, or the log of the program does."""

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
from support.run_checks import until
from support.runs import collect


@tool
async def again() -> str:
    """Asks for one more round."""
    return "and again"


def failing() -> Agent:
    return Agent(ScriptedModel(Overloaded("no room")), name="bot")


async def pieces_of(run: Run[str]) -> list[str]:
    return [piece async for piece in run.text()]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    gc.collect()
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno == logging.WARNING and "nobody asked" in record.getMessage()
    ]


async def test_the_text_of_a_run_that_fails_ends_with_its_error() -> None:
    with pytest.raises(RunError, match="no room") as caught:
        await pieces_of(failing().run("Hi"))
    assert caught.value.code == "overloaded"
    assert await pieces_of(Agent(ScriptedModel("One piece.")).run("Hi")) == ["One piece."]


async def test_the_error_comes_behind_the_last_piece() -> None:
    agent = Agent(ScriptedModel(turn("Half an ", calls=[call("again")])), tools=[again], limits=Limits(iterations=1))
    pieces: list[str] = []
    text = agent.run("Hi").text()
    with pytest.raises(LimitReached):
        await text.pipe(rx.do_action(pieces.append))
    assert "".join(pieces) == "Half an "


async def test_the_text_of_a_run_that_is_cancelled_just_ends(caplog: pytest.LogCaptureFixture) -> None:
    run = Agent(ScriptedModel("One two three")).run("Hi")
    async for _ in run.text():
        run.cancel()
    del run
    assert warnings(caplog) == []


async def test_a_subscriber_of_the_text_is_told_by_on_error() -> None:
    errors: list[Exception] = []
    run = failing().run("Hi")
    run.text().subscribe(lambda piece: None, errors.append)
    await until(lambda: errors)
    assert isinstance(errors[0], RunError)


async def test_a_view_ends_as_it_did_and_the_log_of_the_program_says_that_the_run_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = failing().run("Hi")
    assert [piece async for piece in run.pipe(op.text())] == []
    task_id = run.task_id
    assert warnings(caplog) == []  # it may still be awaited
    del run
    assert warnings(caplog) == [
        f"the run {task_id} of 'bot' failed, and nobody asked how it ended: [overloaded] no room. "
        "Await it, or read run.text(), which raises"
    ]


async def events(run: Run[str]) -> None:
    await collect(run)


async def held(run: Run[str]) -> None:
    async with run:
        await collect(run.pipe(op.thoughts()))


async def subscribed(run: Run[str]) -> None:
    over: list[bool] = []
    run.events.subscribe(on_completed=lambda: over.append(True))
    await until(lambda: over)


async def framed(run: Run[str]) -> None:
    assert [frame async for frame in run.sse()]


@pytest.mark.parametrize("use", [events, held, subscribed, framed])
async def test_whoever_only_looks_at_a_run_that_fails_leaves_one_warning(
    use: Any, caplog: pytest.LogCaptureFixture
) -> None:
    await use(failing().run("Hi"))
    [warning] = warnings(caplog)
    assert "[overloaded] no room" in warning


async def awaited(run: Run[str]) -> None:
    with pytest.raises(RunError):
        await run


async def looked_at_first(run: Run[str]) -> None:
    await collect(run)
    with pytest.raises(RunError):
        await run.result()


async def read_as_text(run: Run[str]) -> None:
    with pytest.raises(RunError):
        await pieces_of(run)


async def closed(run: Run[str]) -> None:
    await collect(run)
    await run.aclose()


@pytest.mark.parametrize("use", [awaited, looked_at_first, read_as_text, closed])
async def test_whoever_asks_how_it_ended_leaves_none(use: Any, caplog: pytest.LogCaptureFixture) -> None:
    await use(failing().run("Hi"))
    assert warnings(caplog) == []


async def test_a_run_that_did_not_fail_leaves_none(caplog: pytest.LogCaptureFixture) -> None:
    await collect(Agent(ScriptedModel("Hi")).run("Hi"))
    waiting = Agent(ScriptedModel(call("asks")), tools=[asks], log=MemoryEventLog()).run("Hi")
    await collect(waiting)
    run = Agent(ScriptedModel("Hi")).run("Hi")
    async with run:
        pass
    del run, waiting
    assert warnings(caplog) == []


@tool(approve=True)
async def asks() -> str:
    """Asks."""
    raise ToolError("never called")


async def test_a_run_that_was_refused_is_told_to_those_who_read_it_or_else_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = Agent(ScriptedModel("Hi"), log=MemoryEventLog())
    with pytest.raises(LookupError):
        await collect(agent.resume("nowhere"))
    assert warnings(caplog) == []

    async with agent.resume("nowhere"):
        await asyncio.sleep(0.01)
    [warning] = warnings(caplog)
    assert "the log holds no run nowhere" in warning
