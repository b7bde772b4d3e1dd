"""Runs stored, resumed, replayed and forked with each event log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rxloop import (
    Agent,
    Event,
    MemoryEventLog,
    RunCancelled,
    RunContext,
    SqliteEventLog,
    diff,
    follow,
    op,
    replay,
    tool,
)
from rxloop.state.fold import fold_all
from rxloop.testing import ScriptedModel, call
from support.runs import is_well_formed, outcome

BuiltIn = MemoryEventLog | SqliteEventLog


@tool
async def double(n: int) -> int:
    """Double a number."""
    await asyncio.sleep(0)
    return 2 * n


@tool
async def fail() -> None:
    """Fail."""
    raise ValueError("it failed")


@tool
async def sure(ctx: RunContext[Any]) -> str:
    """Ask a question."""
    return "yes" if await ctx.ask("Sure?") else "no"


THOUGHT = call("think_aloud", thought="Both at once.", thought_type="planning", thought_id="plan")


def make_agent(log: BuiltIn, *turns: Any) -> Agent:
    return Agent(ScriptedModel(*turns), tools=[double, fail, sure], log=log)


@pytest.fixture(params=["memory", "sqlite", "sqlite with deltas"])
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BuiltIn]:
    deltas = request.param == "sqlite with deltas"
    log = MemoryEventLog() if request.param == "memory" else SqliteEventLog(tmp_path / "runs.db", keep_deltas=deltas)
    yield log
    await log.aclose()


async def test_run_can_be_paused_resumed_forked_replayed_and_compared(log: BuiltIn) -> None:
    # L95, L97, L144; programs 5 and 10
    both = [THOUGHT, call("double", "d", n=2), call("sure", "s")]
    paused = await make_agent(log, both).run("Go.", context_id="c")
    assert paused.state == "input-required"

    resumed = await make_agent(log, "Good.").resume(paused.task_id, inputs={paused.pending[0].input_id: True})
    assert resumed.output == "Good."
    again = await replay(log, paused.task_id).result()
    assert again.messages == resumed.messages
    assert again.content == "Good."
    assert again.thoughts.to_json() == resumed.thoughts.to_json()

    followed = [event.seq async for event in follow(log, paused.task_id)]
    assert followed == list(range(1, len(followed) + 1))

    fork = await make_agent(log, "Other.").fork(paused.task_id, at=followed[-1] - 3, results={"d": 5})
    assert [message.text for message in fork.messages if message.role == "tool"][1] == "5"
    assert fork.output == "Other."
    compared = await diff(log, paused.task_id, fork.task_id)
    assert "Other." in str(compared)
    assert {record.state for record in await log.list_runs()} == {"completed"}


async def test_conversation_is_the_fold_of_its_runs(log: BuiltIn) -> None:
    await make_agent(log, "One.").run("1", context_id="c")
    run = make_agent(log, [call("sure")]).run("2", context_id="c")
    await run
    third = await make_agent(log, "Three.").run("3", context_id="c")
    assert is_well_formed(third.messages)
    assert [message.text for message in third.messages if message.role == "user"] == ["1", "2", "3"]


async def test_stored_deltas_are_replayed(tmp_path: Path) -> None:
    log = SqliteEventLog(tmp_path / "runs.db", keep_deltas=True)
    run = make_agent(log, ["Hello ", "there."]).run("Hi")
    live: list[Event] = []
    run.events.subscribe(live.append)
    result = await run
    assert [event async for event in replay(log, result.task_id)] == live
    text = [piece async for piece in replay(log, result.task_id).pipe(op.text())]
    assert "".join(text) == result.output
    await log.aclose()


turns = st.one_of(
    st.sampled_from(["Done.", "", [THOUGHT], [call("fail")], [call("nothing")], [call("sure")]]),
    st.lists(st.integers(0, 3).map(lambda n: call("double", f"c{n}", n=n)), min_size=1, max_size=3),
)


@settings(max_examples=40, deadline=None)
@given(script=st.lists(turns, max_size=5), cancel=st.booleans())
def test_fold_of_the_log_equals_the_live_state(
    tmp_path_factory: pytest.TempPathFactory, script: list[Any], cancel: bool
) -> None:
    # L144
    async def scenario() -> None:
        log = SqliteEventLog(tmp_path_factory.mktemp("log") / "runs.db")
        run = make_agent(log, *script, "The end.").run("Go.")
        if cancel:
            run.pipe(op.tool_calls()).subscribe(lambda _: run.cancel())
        try:
            result = await outcome(run)
        except RunCancelled as failure:
            result = failure.result
        state = fold_all(await log.read(result.task_id))
        assert list(state.messages) == result.messages
        assert state.usage == result.usage
        assert state.state == result.state
        assert is_well_formed(result.messages)
        await log.aclose()

    asyncio.run(scenario())
