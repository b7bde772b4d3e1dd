"""Calls that wait for an answer, and the calls that may be at work meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rxloop import Agent, MemoryEventLog, RunCancelled, RunContext, client_tool, op, tool
from rxloop.testing import ScriptedModel, call
from support.run_checks import assert_no_tasks, run_ready_tasks, wait_until


class Desk:
    """Calls that ask, and calls that work until they are released; counts how many are at work at once."""

    def __init__(self, concurrency: int, *, early: bool = False) -> None:
        self.loop = [op.call_model(), op.run_tools(concurrency, early=early), op.checkpoint()]
        self.asked: dict[str, Any] = {}
        self.done: list[str] = []
        self.at_work = self.most_at_work = 0
        self.release = asyncio.Event()

        async def work(name: str) -> str:
            self.at_work += 1
            self.most_at_work = max(self.most_at_work, self.at_work)
            try:
                await self.release.wait()
            finally:
                self.at_work -= 1
            self.done.append(name)
            return name

        @tool(read_only=True)
        async def ask(ctx: RunContext[Any], name: str) -> str:
            """Ask."""
            answer = await ctx.ask(name, str)
            return await work(f"{name}: {answer}")

        @tool(read_only=True)
        async def ask_twice(ctx: RunContext[Any], name: str) -> str:
            """Ask two questions at once."""
            answers = await asyncio.gather(ctx.ask(f"{name}1", str), ctx.ask(f"{name}2", str))
            return await work(f"{name}: {' '.join(answers)}")

        @tool(read_only=True, timeout=0.2)
        async def hurry(ctx: RunContext[Any]) -> str:
            """Ask, with a time limit."""
            answer = await ctx.ask("hurry", str)
            self.done.append(answer)
            return answer

        @tool(read_only=True)
        async def busy(name: str) -> str:
            """Work."""
            return await work(name)

        @tool(read_only=True)
        async def quick(name: str) -> str:
            """Work for no time."""
            self.done.append(name)
            return name

        self.tools: list[Any] = [ask, ask_twice, hurry, busy, quick]
        for place in range(6):
            nested: Agent[Any, Any] = Agent(
                ScriptedModel(call("ask", name=f"q{place}"), "Nested."), tools=[ask], name=f"n{place}", thoughts=False
            )
            outer: Agent[Any, Any] = Agent(
                ScriptedModel(call(f"n{place}", prompt="x"), "Outer."),
                tools=[nested.as_tool()],
                name=f"o{place}",
                thoughts=False,
            )
            self.tools += [nested.as_tool(), outer.as_tool()]

    def agent(self, *calls: Any, log: Any = None) -> Agent[Any, Any]:
        return Agent(ScriptedModel(list(calls), "Done."), tools=self.tools, loop=self.loop, log=log, thoughts=False)

    async def on_input(self, question: Any) -> Any:
        """Answer once the test does."""
        answer = self.asked[question.prompt] = asyncio.get_running_loop().create_future()
        return await answer


class Asking:
    """A run of a desk, whose questions are answered inline or through the inbox."""

    def __init__(self, desk: Desk, way: str, *calls: Any) -> None:
        self.desk, self.way = desk, way
        self.ids: dict[str, str] = {}
        self.received = 0
        self.agent = desk.agent(*calls, log=MemoryEventLog())
        self.run = self.agent.run("Go.", on_input=desk.on_input if way == "on_input" else None)
        self.run.events.subscribe(self._note)

    def _note(self, event: Any) -> None:
        if event.kind == "input-required":
            self.ids[event.input.prompt] = event.input.input_id
        self.received += event.kind == "input-received"

    async def asks(self, *names: str) -> None:
        """Wait until these questions are asked."""
        asked: Any = self.desk.asked if self.way == "on_input" else self.ids
        await wait_until(lambda: set(names) <= asked.keys())

    async def answer(self, name: str, value: str = "yes") -> None:
        """Answer a question, and wait until the call has its answer and has gone as far as it can."""
        if self.way == "on_input":
            self.desk.asked[name].set_result(value)
        else:
            received = self.received
            await self.agent.get_run(self.run.task_id).answer({self.ids[name]: value})
            await wait_until(lambda: self.received > received)
        await run_ready_tasks()

    async def end(self) -> None:
        self.desk.release.set()
        assert (await self.run).output == "Done."


both_ways = pytest.mark.parametrize("way", ["on_input", "inbox"])
ASKERS: dict[str, Callable[[int], tuple[Any, list[str]]]] = {
    "a tool": lambda place: (call("ask", name=f"q{place}"), [f"q{place}"]),
    "tasks of a tool": lambda place: (call("ask_twice", name=f"q{place}"), [f"q{place}1", f"q{place}2"]),
    "a nested run": lambda place: (call(f"n{place}", prompt="x"), [f"q{place}"]),
    "a run nested twice": lambda place: (call(f"o{place}", prompt="x"), [f"q{place}"]),
}


@both_ways
@pytest.mark.parametrize("asker", ASKERS.values(), ids=ASKERS)
@pytest.mark.parametrize("early", [False, True], ids=["", "early"])
async def test_calls_that_wait_for_people_leave_room_for_others(way: str, asker: Any, early: bool) -> None:  # P24
    desk = Desk(5, early=early)
    calls = [asker(place) for place in range(5)]
    asking = Asking(desk, way, *(each for each, _ in calls), call("busy", name="b"), call("quick", name="sixth"))
    await asking.asks(*(name for _, names in calls for name in names))
    await wait_until(lambda: desk.done)
    assert desk.done == ["sixth"]
    desk.release.set()
    for _, names in calls if way == "on_input" else ():
        for name in names:
            await asking.answer(name)
    result = await asking.run
    if way == "inbox":
        assert {each.prompt for each in result.pending} == {name for _, names in calls for name in names}
    else:
        assert result.output == "Done."


@both_ways
@pytest.mark.parametrize("asker", ASKERS.values(), ids=ASKERS)
async def test_an_answered_call_goes_on_when_there_is_room(way: str, asker: Any) -> None:  # P24
    desk = Desk(1)
    first, names = asker(0)
    asking = Asking(desk, way, first, call("busy", name="b"), call("quick", name="last"))
    await asking.asks(*names)
    await wait_until(lambda: desk.at_work)
    for name in names:
        await asking.answer(name)
    assert (desk.at_work, desk.done) == (1, [])
    await asking.end()
    assert desk.most_at_work == 1
    assert desk.done == ["b", "q0: " + " ".join("yes" for _ in names), "last"]


@both_ways
async def test_a_call_has_no_permit_until_all_its_questions_are_answered(way: str) -> None:  # P24
    desk = Desk(1)
    asking = Asking(desk, way, call("ask_twice", name="q"), call("busy", name="b"), call("quick", name="last"))
    await asking.asks("q1", "q2")
    await asking.answer("q2", "two")
    await wait_until(lambda: desk.at_work)
    await asking.answer("q1", "one")
    await asking.end()
    assert desk.done == ["b", "q: one two", "last"]


@both_ways
async def test_answered_calls_go_on_in_the_order_of_their_answers(way: str) -> None:  # P24
    desk = Desk(1)
    asking = Asking(desk, way, *(call("ask", name=name) for name in "abc"), call("busy", name="b"))
    await asking.asks(*"abc")
    await wait_until(lambda: desk.at_work)
    for name in "cab":
        await asking.answer(name)
    await asking.end()
    assert desk.done == ["b", "c: yes", "a: yes", "b: yes"]
    assert desk.most_at_work == 1


@both_ways
async def test_the_time_in_which_an_answered_call_waits_for_others_does_not_count(way: str) -> None:  # P24
    desk = Desk(1)
    asking = Asking(desk, way, call("hurry"), call("busy", name="b"))
    await asking.asks("hurry")
    await wait_until(lambda: desk.at_work)
    await asking.answer("hurry")
    await asyncio.sleep(0.4)
    await asking.end()
    assert desk.done == ["b", "yes"]


@both_ways
@pytest.mark.parametrize("asker", ASKERS.values(), ids=ASKERS)
@pytest.mark.parametrize("answered", [False, True])
async def test_a_run_whose_calls_wait_can_be_cancelled(way: str, asker: Any, answered: bool) -> None:  # P24
    desk = Desk(1)
    first, names = asker(0)
    asking = Asking(desk, way, first, call("busy", name="b"))
    await asking.asks(*names)
    await wait_until(lambda: desk.at_work)
    if answered:
        for name in names:
            await asking.answer(name)
    asking.run.cancel()
    with pytest.raises(RunCancelled):
        await asyncio.wait_for(asking.run, 2)
    await asking.agent.aclose()
    assert desk.done == []
    await assert_no_tasks()


async def test_a_call_that_a_client_executes_inline_keeps_its_permit() -> None:
    running: list[str] = []

    async def execute(question: Any) -> str:
        running.append("begins")
        await asyncio.sleep(0)
        running.append("ends")
        return "ok"

    show = client_tool("show")
    loop = [op.call_model(), op.run_tools(1), op.checkpoint()]
    agent: Agent[Any, Any] = Agent(ScriptedModel([call("show"), call("show")], "Done."), tools=[show], loop=loop)
    assert (await agent.run("Go.", on_input=execute)).output == "Done."
    assert running == ["begins", "ends"] * 2


async def test_a_question_with_a_time_limit_of_its_own_gives_the_permit_back_once() -> None:  # P24
    desk = Desk(1)
    order: list[str] = []

    @tool
    async def impatient(ctx: RunContext[Any]) -> str:
        """Wait for a moment only."""
        try:
            async with asyncio.timeout(0.05):
                return await ctx.ask("Now?", str)
        except TimeoutError:
            order.append("gave up")
            await asyncio.sleep(0)
            order.append("ended")
            return "nobody"

    desk.tools.append(impatient)
    asking = Asking(desk, "on_input", call("impatient"), call("busy", name="b"), call("busy", name="c"))
    await asking.asks("Now?")
    await wait_until(lambda: order)
    await asking.end()
    assert order == ["gave up", "ended"]
    assert desk.done == ["b", "c"]
    assert desk.most_at_work == 1
