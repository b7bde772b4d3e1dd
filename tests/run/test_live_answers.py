"""Answers received while sibling calls are running."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rxloop import Agent, MemoryEventLog, RunContext, Runtime, tool
from rxloop.protocol.events import Event
from rxloop.testing import ScriptedModel, call, turn, virtual_time
from support.run_checks import kinds, wait_until


class Shop:
    """Shop with two asking tools and one slow tool."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.release = asyncio.Event()
        self.log = MemoryEventLog()

        @tool(approve=True)
        async def pay(amount: int) -> str:
            """Pay."""
            self.done.append(f"paid {amount}")
            return "paid"

        @tool(timeout=0.2)
        async def choose(ctx: RunContext) -> str:
            """Ask in the middle."""
            colour = await ctx.ask("Which colour?", str)
            self.done.append(colour)
            return colour

        @tool
        async def slow() -> str:
            """Wait for release."""
            await self.release.wait()
            self.done.append("slow")
            return "slow"

        self.tools = [pay, choose, slow]

    def agent(self, *calls: Any) -> Agent:
        return Agent(ScriptedModel(turn("", calls=calls), "Done."), tools=self.tools, log=self.log)


def question_ids(events: list[Event]) -> list[str]:
    return [event.input.input_id for event in events if event.kind == "input-required"]  # type: ignore[attr-defined]


Calls = Callable[[], list[Any]]
ORDERS: dict[str, Calls] = {
    "asks first": lambda: [call("pay", amount=5), call("slow")],
    "asks last": lambda: [call("slow"), call("pay", amount=5)],
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
async def test_approved_call_starts_while_its_sibling_runs(order: Calls) -> None:  # P24
    shop = Shop()
    agent = shop.agent(*order())
    run = agent.run("Go.")
    events: list[Event] = []
    run.events.subscribe(events.append)
    await wait_until(lambda: question_ids(events))
    await agent.get_run(run.task_id).answer({question_ids(events)[0]: True})
    await wait_until(lambda: shop.done)
    assert shop.done == ["paid 5"]
    shop.release.set()
    assert (await run).output == "Done."
    assert shop.done == ["paid 5", "slow"]
    assert kinds(events).count("input-received") == 1
    [received] = [event for event in await shop.log.read(run.task_id) if event.kind == "input-received"]
    assert received.metadata == {"command_id": 1}


async def test_refused_call_ends_while_its_sibling_runs() -> None:  # P24
    shop = Shop()
    agent = shop.agent(call("pay", amount=5), call("slow"))
    run = agent.run("Go.")
    events: list[Event] = []
    run.events.subscribe(events.append)
    await wait_until(lambda: question_ids(events))
    await agent.get_run(run.task_id).answer({question_ids(events)[0]: False})
    await wait_until(lambda: "tool-complete" in kinds(events))
    shop.release.set()
    assert (await run).output == "Done."
    assert shop.done == ["slow"]


def test_question_of_a_tool_pauses_the_timeout_of_the_tool() -> None:  # P24
    shop = Shop()
    agent = shop.agent(call("choose"), call("slow"))

    async def main() -> None:
        run = agent.run("Go.")
        events: list[Event] = []
        run.events.subscribe(events.append)
        await wait_until(lambda: question_ids(events))
        await asyncio.sleep(0.3)
        await agent.get_run(run.task_id).answer({question_ids(events)[0]: "red"})
        await wait_until(lambda: shop.done)
        assert shop.done == ["red"]
        shop.release.set()
        assert (await run).output == "Done."

    with virtual_time() as time:
        time.run(main())


async def test_run_pauses_when_its_other_calls_have_ended() -> None:  # P24
    shop = Shop()
    agent = shop.agent(call("pay", amount=5), call("slow"), call("pay", amount=6))
    run = agent.run("Go.")
    events: list[Event] = []
    run.events.subscribe(events.append)
    await wait_until(lambda: len(question_ids(events)) == 2)
    first, second = question_ids(events)
    shop.release.set()
    result = await run
    assert result.state == "input-required"
    assert [question.input_id for question in result.pending] == [first, second]
    assert shop.done == ["slow"]
    resuming_agent = shop.agent(call("none"))
    resuming_agent = Agent(ScriptedModel("Done."), tools=shop.tools, log=shop.log)
    assert (await resuming_agent.resume(run.task_id, inputs={first: True, second: True})).output == "Done."
    assert sorted(shop.done) == ["paid 5", "paid 6", "slow"]


async def test_unanswered_second_question_pauses_the_run() -> None:  # P24
    shop = Shop()
    agent = shop.agent(call("pay", amount=5), call("slow"), call("pay", amount=6))
    run = agent.run("Go.")
    events: list[Event] = []
    run.events.subscribe(events.append)
    await wait_until(lambda: len(question_ids(events)) == 2)
    first, second = question_ids(events)
    await agent.get_run(run.task_id).answer({second: True})
    await wait_until(lambda: shop.done)
    assert shop.done == ["paid 6"]
    shop.release.set()
    result = await run
    assert [question.input_id for question in result.pending] == [first]


async def test_run_with_pending_question_and_running_call_can_be_canceled() -> None:  # P24
    shop = Shop()
    run = shop.agent(call("pay", amount=5), call("slow")).run("Go.")
    events: list[Event] = []
    run.events.subscribe(events.append)
    await wait_until(lambda: question_ids(events))
    await run.aclose()
    assert shop.done == []
    assert kinds(events)[-1] == "status-update"


async def test_answer_through_runtime_starts_the_call_immediately() -> None:  # P24
    shop = Shop()
    async with Runtime({"a": shop.agent(call("pay", amount=5), call("slow"))}, log=shop.log, grace=0.2) as runtime:
        record = await runtime.start("a", "Go.")
        async for event in runtime.follow(record.task_id):
            if event.kind == "input-required":
                await runtime.answer(record.task_id, {event.input.input_id: True})
                break
        await wait_until(lambda: shop.done)
        assert shop.done == ["paid 5"]
        shop.release.set()
        kinds_ = [event.kind async for event in runtime.follow(record.task_id)]
        assert kinds_[-1] == "status-update"
        assert (await runtime.get_record(record.task_id)).state == "completed"
    assert shop.done == ["paid 5", "slow"]
