"""Lists of pending questions with `rxloop.recorded.list_pending`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rxloop import Agent, EventLog, MemoryEventLog, RunContext, Runtime, SqliteEventLog, tool
from rxloop.errors import ConfigurationError, UnknownRun
from rxloop.recorded import list_pending, questions
from rxloop.testing import ScriptedModel, call


@tool(approve="Refund {order}?")
async def refund(order: str) -> str:
    """Refund an order."""
    return f"refunded {order}"


@pytest.fixture(params=["memory", "sqlite"])
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EventLog]:
    log = MemoryEventLog() if request.param == "memory" else SqliteEventLog(tmp_path / "runs.db")
    yield log
    await log.aclose()


def make_clerk(log: EventLog, *orders: str, name: str = "clerk") -> Agent[Any, Any]:
    calls = [call("refund", order=order) for order in orders]
    return Agent(ScriptedModel(*calls, *["Done."] * len(orders)), name=name, tools=[refund], log=log)


async def list_prompts(log: EventLog, **query: Any) -> list[list[str]]:
    return [[question.prompt for question in each.inputs] for each in await list_pending(log, **query)]


async def test_questions_of_all_conversations_are_listed_with_their_prompts(log: EventLog) -> None:
    clerk = make_clerk(log, "A1", "B2", "C3")
    await clerk.run("Refund A1.", owner="ann", context_id="one")
    await clerk.run("Refund B2.", owner="bob")
    await make_clerk(log, "C3", name="other").run("Refund C3.", owner="ann")
    await Agent(ScriptedModel("Hello."), log=log).run("Hi.", owner="ann")
    assert await list_prompts(log) == [["Refund A1?"], ["Refund B2?"], ["Refund C3?"]]
    assert await list_prompts(log, owner="ann", newest_first=True) == [["Refund C3?"], ["Refund A1?"]]
    assert await list_prompts(log, context_id="one") == [["Refund A1?"]]
    assert await list_prompts(log, agent_name="other") == [["Refund C3?"]]


async def test_answered_question_is_not_listed(log: EventLog) -> None:
    clerk = make_clerk(log, "A1")
    await clerk.run("Refund A1.")
    [pending] = await list_pending(log)
    await clerk.resume(pending.record.task_id, inputs={pending.inputs[0].input_id: True})
    assert await list_pending(log) == []


async def test_superseded_question_is_not_listed(log: EventLog) -> None:
    clerk = make_clerk(log, "A1", "B2")
    await clerk.run("Refund A1.", context_id="ann")
    await clerk.run("No, B2.", context_id="ann")
    assert await list_prompts(log) == [["Refund B2?"]]


async def test_question_dropped_by_a_later_run_is_not_listed_without_a_final_event(
    log: EventLog, tmp_path: Path
) -> None:
    waiting = await make_clerk(log, "A1").run("Refund A1.", context_id="ann")
    other = MemoryEventLog()
    later = await Agent(ScriptedModel("Hello."), log=other).run("Hi.", context_id="ann")
    await log.append(later.task_id, list(await other.read(later.task_id)), expected_seq=0)
    assert (await log.get_record(waiting.task_id)).state == "input-required"
    assert await list_pending(log) == []


async def test_question_is_listed_while_another_call_is_executed(log: EventLog) -> None:
    is_asked, is_stopped = asyncio.Event(), asyncio.Event()

    @tool
    async def work(ctx: RunContext) -> str:
        is_asked.set()
        await is_stopped.wait()
        return "worked"

    model = ScriptedModel([call("refund", order="A1"), call("work")], "Done.")
    async with Runtime({"clerk": Agent(model, tools=[refund, work])}, log=log) as runtime:
        record = await runtime.start("clerk", "Go.", owner="ann")
        await is_asked.wait()
        async for event in runtime.follow(record.task_id):
            if event.kind == "input-required":
                break
        [pending] = await runtime.list_pending(owner="ann")
        assert pending.record.state == "working"
        assert [question.prompt for question in pending.inputs] == ["Refund A1?"]
        is_stopped.set()
        await runtime.answer(record.task_id, {pending.inputs[0].input_id: True})
        await runtime.follow(record.task_id)


async def test_pages_contain_only_runs_with_questions(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "_PAGE", 2)
    orders = [f"A{number}" for number in range(5)]
    clerk = make_clerk(log, *orders)
    ids = [(await clerk.run("Refund.")).task_id for _ in orders]
    first = await list_pending(log, limit=3)
    rest = await list_pending(log, limit=3, after=first[-1].record.task_id)
    assert [each.record.task_id for each in first + rest] == ids
    assert len(await list_pending(log)) == 5


async def test_invalid_page_is_refused(log: EventLog) -> None:
    with pytest.raises(ConfigurationError, match="limit must be at least 1"):
        await list_pending(log, limit=0)
    with pytest.raises(UnknownRun):
        await list_pending(log, after="unknown")
