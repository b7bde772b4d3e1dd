"""Permits of tool calls with questions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rxloop import Agent, MemoryEventLog, RunCancelled, RunContext, client_tool, op, tool
from rxloop.testing import ScriptedModel, call
from support.run_checks import assert_no_tasks, run_ready_tasks, wait_until


class Desk:
    """Tools that ask questions or work until released, with counts of concurrent work."""

    def __init__(self, concurrency: int, *, early: bool = False) -> None:
        self.loop = [op.call_model(), op.run_tools(concurrency, early=early), op.checkpoint()]
        self.questions: dict[str, Any] = {}
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
            """Ask with a time limit."""
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
        for index in range(6):
            nested: Agent[Any, Any] = Agent(
                ScriptedModel(call("ask", name=f"q{index}"), "Nested."), tools=[ask], name=f"n{index}", thoughts=False
            )
            outer: Agent[Any, Any] = Agent(
                ScriptedModel(call(f"n{index}", prompt="x"), "Outer."),
                tools=[nested.as_tool()],
                name=f"o{index}",
                thoughts=False,
            )
            self.tools += [nested.as_tool(), outer.as_tool()]

    def agent(self, *calls: Any, log: Any = None) -> Agent[Any, Any]:
        return Agent(ScriptedModel(list(calls), "Done."), tools=self.tools, loop=self.loop, log=log, thoughts=False)

    async def on_input(self, question: Any) -> Any:
        """Return the answer once the test provides it."""
        answer = self.questions[question.prompt] = asyncio.get_running_loop().create_future()
        return await answer


class DeskRun:
    """Run of a desk with inline or inbox answers."""

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

    async def wait_for_questions(self, *names: str) -> None:
        questions: Any = self.desk.questions if self.way == "on_input" else self.ids
        await wait_until(lambda: set(names) <= questions.keys())

    async def answer(self, name: str, value: str = "yes") -> None:
        """Answer a question, and wait until all tasks are blocked."""
        if self.way == "on_input":
            self.desk.questions[name].set_result(value)
        else:
            received = self.received
            await self.agent.get_run(self.run.task_id).answer({self.ids[name]: value})
            await wait_until(lambda: self.received > received)
        await run_ready_tasks()

    async def finish(self) -> None:
        self.desk.release.set()
        assert (await self.run).output == "Done."


both_ways = pytest.mark.parametrize("way", ["on_input", "inbox"])
ASKERS: dict[str, Callable[[int], tuple[Any, list[str]]]] = {
    "a tool": lambda index: (call("ask", name=f"q{index}"), [f"q{index}"]),
    "tasks of a tool": lambda index: (call("ask_twice", name=f"q{index}"), [f"q{index}1", f"q{index}2"]),
    "a nested run": lambda index: (call(f"n{index}", prompt="x"), [f"q{index}"]),
    "a run nested twice": lambda index: (call(f"o{index}", prompt="x"), [f"q{index}"]),
}


@both_ways
@pytest.mark.parametrize("asker", ASKERS.values(), ids=ASKERS)
@pytest.mark.parametrize("early", [False, True], ids=["", "early"])
async def test_calls_that_wait_for_people_do_not_block_other_calls(way: str, asker: Any, early: bool) -> None:  # P24
    desk = Desk(5, early=early)
    calls = [asker(index) for index in range(5)]
    desk_run = DeskRun(desk, way, *(each for each, _ in calls), call("busy", name="b"), call("quick", name="sixth"))
    await desk_run.wait_for_questions(*(name for _, names in calls for name in names))
    await wait_until(lambda: desk.done)
    assert desk.done == ["sixth"]
    desk.release.set()
    for _, names in calls if way == "on_input" else ():
        for name in names:
            await desk_run.answer(name)
    result = await desk_run.run
    if way == "inbox":
        assert {each.prompt for each in result.pending} == {name for _, names in calls for name in names}
    else:
        assert result.output == "Done."


@both_ways
@pytest.mark.parametrize("asker", ASKERS.values(), ids=ASKERS)
async def test_answered_call_continues_when_a_permit_is_free(way: str, asker: Any) -> None:  # P24
    desk = Desk(1)
    first, names = asker(0)
    desk_run = DeskRun(desk, way, first, call("busy", name="b"), call("quick", name="last"))
    await desk_run.wait_for_questions(*names)
    await wait_until(lambda: desk.at_work)
    for name in names:
        await desk_run.answer(name)
    assert desk.at_work == 1
    assert desk.done == []
    await desk_run.finish()
    assert desk.most_at_work == 1
    assert desk.done == ["b", "q0: " + " ".join("yes" for _ in names), "last"]


@both_ways
async def test_call_gets_no_permit_until_all_its_questions_are_answered(way: str) -> None:  # P24
    desk = Desk(1)
    desk_run = DeskRun(desk, way, call("ask_twice", name="q"), call("busy", name="b"), call("quick", name="last"))
    await desk_run.wait_for_questions("q1", "q2")
    await desk_run.answer("q2", "two")
    await wait_until(lambda: desk.at_work)
    await desk_run.answer("q1", "one")
    await desk_run.finish()
    assert desk.done == ["b", "q: one two", "last"]


@both_ways
async def test_answered_calls_continue_in_the_order_of_their_answers(way: str) -> None:  # P24
    desk = Desk(1)
    desk_run = DeskRun(desk, way, *(call("ask", name=name) for name in "abc"), call("busy", name="b"))
    await desk_run.wait_for_questions(*"abc")
    await wait_until(lambda: desk.at_work)
    for name in "cab":
        await desk_run.answer(name)
    await desk_run.finish()
    assert desk.done == ["b", "c: yes", "a: yes", "b: yes"]
    assert desk.most_at_work == 1


@both_ways
async def test_timeout_of_an_answered_call_does_not_count_the_wait_for_a_permit(way: str) -> None:  # P24
    desk = Desk(1)
    desk_run = DeskRun(desk, way, call("hurry"), call("busy", name="b"))
    await desk_run.wait_for_questions("hurry")
    await wait_until(lambda: desk.at_work)
    await desk_run.answer("hurry")
    await asyncio.sleep(0.4)
    await desk_run.finish()
    assert desk.done == ["b", "yes"]


@both_ways
@pytest.mark.parametrize("asker", ASKERS.values(), ids=ASKERS)
@pytest.mark.parametrize("is_answered", [False, True])
async def test_run_with_waiting_calls_can_be_cancelled(way: str, asker: Any, is_answered: bool) -> None:  # P24
    desk = Desk(1)
    first, names = asker(0)
    desk_run = DeskRun(desk, way, first, call("busy", name="b"))
    await desk_run.wait_for_questions(*names)
    await wait_until(lambda: desk.at_work)
    if is_answered:
        for name in names:
            await desk_run.answer(name)
    desk_run.run.cancel()
    with pytest.raises(RunCancelled):
        await asyncio.wait_for(desk_run.run, 2)
    await desk_run.agent.aclose()
    assert desk.done == []
    await assert_no_tasks()


async def test_call_that_a_client_executes_inline_keeps_its_permit() -> None:
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


async def test_question_with_its_own_time_limit_releases_the_permit_once() -> None:  # P24
    desk = Desk(1)
    order: list[str] = []

    @tool
    async def impatient(ctx: RunContext[Any]) -> str:
        """Wait for a short time."""
        try:
            async with asyncio.timeout(0.05):
                return await ctx.ask("Now?", str)
        except TimeoutError:
            order.append("gave up")
            await asyncio.sleep(0)
            order.append("ended")
            return "nobody"

    desk.tools.append(impatient)
    desk_run = DeskRun(desk, "on_input", call("impatient"), call("busy", name="b"), call("busy", name="c"))
    await desk_run.wait_for_questions("Now?")
    await wait_until(lambda: order)
    await desk_run.finish()
    assert order == ["gave up", "ended"]
    assert desk.done == ["b", "c"]
    assert desk.most_at_work == 1
