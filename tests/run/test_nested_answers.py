"""Answers to questions of nested runs, and of tasks that a tool starts, while other calls of the run are at work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import permutations
from typing import Any

import pytest

from rxloop import Agent, Limits, MemoryEventLog, ModelRequest, RunContext, Runtime, SubtaskEvent, tool
from rxloop.protocol.events import Event, StatusUpdateEvent
from rxloop.testing import ScriptedModel, call
from support.nested_agents import check, check_attempts
from support.run_checks import kinds, until
from support.runs import first_events

Answer = Callable[[Mapping[str, Any]], Awaitable[None]]
WORDS = ("red", "green", "blue")


async def gathered(ctx: RunContext[Any]) -> list[str]:
    return await asyncio.gather(*(ctx.ask(f"{word}?", str) for word in WORDS))


async def grouped(ctx: RunContext[Any]) -> list[str]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ctx.ask(f"{word}?", str)) for word in WORDS]
    return [task.result() for task in tasks]


async def in_a_task(ctx: RunContext[Any]) -> list[str]:
    return [await asyncio.create_task(ctx.ask(f"{word}?", str)) for word in WORDS[:1]]


WAYS = {"gather": gathered, "task group": grouped}


def model(*turns: Any) -> ScriptedModel:
    """A model that answers by what it has said, also in a later attempt."""

    def answer(request: ModelRequest) -> Any:
        return turns[sum(message.role == "assistant" for message in request.messages)]

    return ScriptedModel(*[answer] * len(turns))


class Office:
    """A run with a slow call, and with calls that ask: its own, and those of agents nested in it."""

    def __init__(self, depth: int = 1, *, asks: Any = None, limits: Limits | None = None, timeout: Any = None) -> None:
        self.done: list[str] = []
        self.release = asyncio.Event()
        self.log = MemoryEventLog()
        self.seen: list[Event] = []

        @tool(approve=True, idempotent=True)
        async def pay(amount: int) -> str:
            """Pay."""
            self.done.append(f"paid {amount}")
            return "paid"

        @tool(idempotent=True)
        async def choose(ctx: RunContext[Any]) -> str:
            """Ask several questions."""
            words = await asks(ctx)
            self.done.extend(words)
            return ",".join(words)

        @tool(idempotent=True)
        async def slow() -> str:
            """Work until it is released."""
            await self.release.wait()
            self.done.append("slow")
            return "slow"

        self.pay, self.choose, self.slow = pay, choose, slow
        self.depth, self.limits, self.timeout = depth, limits, timeout

    def nested(self, *calls: Any, name: str = "clerk") -> Any:
        """An agent at the depth of the office, which makes the calls."""
        tools: list[Any] = [self.pay, self.choose, self.slow]
        for level in range(self.depth):
            script = [list(calls) if level == 0 else call(f"{name}{level - 1}", prompt="x"), f"{name} is done."]
            agent: Agent[Any, Any] = Agent(model(*script), tools=tools, name=f"{name}{level}", thoughts=False)
            tools = [agent.as_tool(limits=self.limits, timeout=self.timeout)]
        return tools[0]

    def call_of(self, name: str = "clerk") -> Any:
        return call(f"{name}{self.depth - 1}", prompt="x")

    def agent(self, *calls: Any, tools: Any = ()) -> Agent[Any, Any]:
        own = [self.pay, self.choose, self.slow, *tools]
        return Agent(model(list(calls), "Done."), tools=own, log=self.log, name="boss", thoughts=False)

    def questions(self) -> dict[str, str]:
        """The questions asked so far: their ids, by prompt."""
        asked: list[Any] = [event for event in self.seen if event.kind == "input-required"]
        return {event.input.prompt: event.input.input_id for event in asked}

    def approval(self, amount: int) -> str:
        return next(value for key, value in self.questions().items() if f"{amount}" in key)

    @asynccontextmanager
    async def running(self, agent: Agent[Any, Any], way: str) -> AsyncGenerator[tuple[str, Answer]]:
        """Run the agent to its end, and answer in one of the ways."""
        if way == "agent":
            run = agent.run("Go.")
            run.events.subscribe(self.seen.append)
            yield run.task_id, lambda inputs: agent.get_run(run.task_id).answer(dict(inputs))
            self.release.set()
            assert (await run).output == "Done."
            return
        async with Runtime({"boss": agent}, log=self.log, grace=0.2) as runtime:
            record = await runtime.start("boss", "Go.")

            async def follow() -> None:
                async for event in runtime.follow(record.task_id):
                    self.seen.append(event)

            following = asyncio.ensure_future(follow())

            async def answer(inputs: Mapping[str, Any]) -> None:
                await runtime.answer(record.task_id, dict(inputs))

            yield record.task_id, answer
            self.release.set()
            await following
            assert (await runtime.get_record(record.task_id)).state == "completed"


def subtasks(events: list[Event]) -> list[str]:
    return [event.state for event in events if isinstance(event, SubtaskEvent)]


# -- nested runs


@pytest.mark.parametrize("way", ["agent", "runtime"])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("beside", ["above", "in the nested run"])
async def test_an_answered_call_of_a_nested_run_starts_at_once(way: str, depth: int, beside: str) -> None:  # P24
    office = Office(depth)
    inner = [call("pay", amount=5)] if beside == "above" else [call("pay", amount=5), call("slow")]
    outer = [office.call_of(), call("slow")] if beside == "above" else [office.call_of()]
    agent = office.agent(*outer, tools=[office.nested(*inner)])
    async with office.running(agent, way) as (task_id, answer):
        await until(office.questions)
        await answer({office.approval(5): True})
        await until(lambda: office.done)
        assert office.done == ["paid 5"]
    assert office.done == ["paid 5", "slow"]
    events = await office.log.read(task_id)
    check(events)
    check_attempts(events)
    [received] = [event for event in events if event.kind == "input-received"]
    assert (len(received.agent_path), received.metadata["mail_id"]) == (depth, 1)
    assert {event.attempt for event in events} == {1}


async def test_a_nested_run_ends_while_a_call_above_is_at_work() -> None:  # P24
    office = Office()
    agent = office.agent(office.call_of(), call("slow"), tools=[office.nested(call("pay", amount=5))])
    async with office.running(agent, "agent") as (_, answer):
        await until(office.questions)
        await answer({office.approval(5): True})
        await until(lambda: subtasks(office.seen) == ["working", "completed"])


async def test_questions_of_two_nested_runs_are_answered_in_any_order() -> None:  # P24
    for order in permutations([5, 6, 7]):
        office = Office()
        tools = [office.nested(call("pay", amount=5)), office.nested(call("pay", amount=6), name="other")]
        calls = [office.call_of(), office.call_of("other"), call("pay", amount=7), call("slow")]
        async with office.running(office.agent(*calls, tools=tools), "agent") as (_, answer):
            await until(lambda office=office: len(office.questions()) == 3)
            for place, amount in enumerate(order):
                await answer({office.approval(amount): True})
                await until(lambda office=office, place=place: len(office.done) > place)
        assert office.done == [*(f"paid {amount}" for amount in order), "slow"]


async def test_one_answer_for_a_run_and_a_nested_run_counts_at_once() -> None:  # P24
    office = Office()
    calls = [office.call_of(), call("pay", amount=7), call("slow")]
    agent = office.agent(*calls, tools=[office.nested(call("pay", amount=5))])
    async with office.running(agent, "agent") as (_, answer):
        await until(lambda: len(office.questions()) == 2)
        await answer({office.approval(5): True, office.approval(7): False})
        await until(lambda: office.done)
    assert office.done == ["paid 5", "slow"]


@pytest.mark.parametrize("depth", [1, 2])
async def test_a_run_pauses_when_only_nested_runs_wait(depth: int) -> None:  # P24
    office = Office(depth)
    agent = office.agent(office.call_of(), call("slow"), tools=[office.nested(call("pay", amount=5))])
    run = agent.run("Go.")
    run.events.subscribe(office.seen.append)
    await until(office.questions)
    office.release.set()
    result = await run
    assert (result.state, office.done) == ("input-required", ["slow"])
    ends = [event for event in office.seen if isinstance(event, StatusUpdateEvent) and event.final]
    assert [event.state for event in ends] == ["input-required"] * (depth + 1)
    check(office.seen)
    result = await agent.resume(run.task_id, inputs={office.approval(5): True})
    assert (result.output, office.done) == ("Done.", ["slow", "paid 5"])


@pytest.mark.parametrize("depth", [1, 2])
async def test_an_answer_for_a_nested_run_counts_at_once_in_a_second_attempt(depth: int) -> None:  # P24
    async def one_by_one(ctx: RunContext[Any]) -> list[str]:
        return [await ctx.ask(f"{word}?", str) for word in WORDS[:2]]

    office = Office(depth, asks=one_by_one)

    @tool(idempotent=True)
    async def slow_later(ctx: RunContext[Any]) -> str:
        """Ask first, then work until it is released."""
        await ctx.ask("later?", str)
        await office.release.wait()
        return "slow"

    agent = office.agent(office.call_of(), call("slow_later"), tools=[office.nested(call("choose")), slow_later])
    result = await agent.run("Go.")
    asked = {each.prompt: each.input_id for each in result.pending}
    run = agent.resume(result.task_id, inputs={asked["red?"]: "red", asked["later?"]: "now"})
    run.events.subscribe(office.seen.append)
    await until(lambda: "green?" in office.questions())
    await agent.get_run(run.task_id).answer({office.questions()["green?"]: "green"})
    await until(lambda: office.done)
    assert office.done == ["red", "green"]
    office.release.set()
    assert (await run).output == "Done."
    events = await office.log.read(run.task_id)
    check_attempts(events)
    assert kinds(events).count("input-received") == 3


async def test_a_run_whose_nested_run_waits_can_be_cancelled() -> None:  # P24
    office = Office(2)
    agent = office.agent(office.call_of(), call("slow"), tools=[office.nested(call("pay", amount=5))])
    run = agent.run("Go.")
    run.events.subscribe(office.seen.append)
    await until(office.questions)
    await run.aclose()
    assert office.done == []
    assert [event.state for event in office.seen if isinstance(event, StatusUpdateEvent) and event.final] == [
        "canceled"
    ] * 3


@pytest.mark.parametrize("options", [{"limits": Limits(seconds=0.2)}, {"timeout": 0.2}], ids=["limit", "timeout"])
async def test_a_nested_run_that_only_waits_does_not_run_out_of_time(options: Any) -> None:  # P24
    office = Office(2, **options)
    agent = office.agent(office.call_of(), call("slow"), tools=[office.nested(call("pay", amount=5))])
    async with office.running(agent, "agent") as (_, answer):
        await until(office.questions)
        await asyncio.sleep(0.4)
        await answer({office.approval(5): True})
        await until(lambda: office.done)
    assert office.done == ["paid 5", "slow"]


async def test_the_limit_of_a_nested_run_counts_while_a_call_of_it_is_at_work() -> None:  # P24
    office = Office(limits=Limits(seconds=0.2))
    agent = office.agent(office.call_of(), tools=[office.nested(call("pay", amount=5), call("slow"))])
    run = agent.run("Go.")
    run.events.subscribe(office.seen.append)
    assert (await run).output == "Done."
    assert subtasks(office.seen) == ["working", "failed"]


async def test_a_nested_run_that_waits_leaves_room_for_another() -> None:  # P24
    office = Office()
    nested = [office.nested(call("pay", amount=5)), office.nested(call("pay", amount=6), name="other")]

    @tool
    async def other(ctx: RunContext[Any]) -> str:
        """Call the other agent once the first one waits."""
        await until(office.questions)
        return str(await nested[1].call({"prompt": "x"}, ctx))

    agent = office.agent(office.call_of(), call("other"), call("slow"), tools=[nested[0], other])
    run = agent.run("Go.", limits=Limits(width=1))
    run.events.subscribe(office.seen.append)
    await until(lambda: len(office.questions()) == 2)
    await agent.get_run(run.task_id).answer({office.approval(5): True, office.approval(6): True})
    office.release.set()
    assert (await run).output == "Done."
    assert sorted(office.done) == ["paid 5", "paid 6", "slow"]


# -- tasks of a tool


@pytest.mark.parametrize("asks", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("depth", [0, 1, 2])
async def test_questions_of_tasks_of_a_tool_are_answered_early_in_any_order(asks: Any, depth: int) -> None:  # P24
    for order in permutations(WORDS):
        office = Office(depth, asks=asks)
        calls = [office.call_of(), call("slow")] if depth else [call("choose"), call("slow")]
        tools = [office.nested(call("choose"))] if depth else []
        async with office.running(office.agent(*calls, tools=tools), "agent") as (_, answer):
            await until(lambda office=office: len(office.questions()) == 3)
            for word in order:
                assert office.done == []
                await answer({office.questions()[f"{word}?"]: f"dark {word}"})
            await until(lambda office=office: office.done)
        assert office.done == ["dark red", "dark green", "dark blue", "slow"]


@pytest.mark.parametrize("asks", WAYS.values(), ids=WAYS)
async def test_questions_of_tasks_of_a_tool_are_answered_early_by_a_runtime(asks: Any) -> None:  # P24
    office = Office(asks=asks)
    async with office.running(office.agent(call("choose"), call("slow")), "runtime") as (_, answer):
        await until(lambda: len(office.questions()) == 3)
        await answer({input_id: prompt for prompt, input_id in office.questions().items()})
        await until(lambda: office.done)
    assert office.done == ["red?", "green?", "blue?", "slow"]


@pytest.mark.parametrize("asks", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("answered", range(3))
async def test_a_tool_some_of_whose_questions_are_answered_pauses(asks: Any, answered: int) -> None:  # P24
    office = Office(asks=asks)
    agent = office.agent(call("choose"), call("slow"))
    run = agent.run("Go.")
    run.events.subscribe(office.seen.append)
    await until(lambda: len(office.questions()) == 3)
    asked = {input_id: prompt for prompt, input_id in office.questions().items()}
    early = dict(list(asked.items())[:answered])
    if early:
        await agent.get_run(run.task_id).answer(early)
        await until(lambda: kinds(office.seen).count("input-received") == answered)
    office.release.set()
    result = await run
    assert [each.input_id for each in result.pending] == list(asked)[answered:]
    assert office.done == ["slow"]
    result = await agent.resume(run.task_id, inputs={key: asked[key] for key in list(asked)[answered:]})
    assert (result.output, office.done) == ("Done.", ["slow", "red?", "green?", "blue?"])


@pytest.mark.parametrize("asks", WAYS.values(), ids=WAYS)
async def test_questions_in_tasks_of_a_tool_pause_a_run_with_no_other_call(asks: Any) -> None:  # P24
    office = Office(asks=asks)
    agent = office.agent(call("choose"))
    result = await agent.run("Go.")
    assert [each.prompt for each in result.pending] == ["red?", "green?", "blue?"]
    answers = {each.input_id: each.prompt for each in result.pending}
    assert (await agent.resume(result.task_id, inputs=answers)).output == "Done."
    assert office.done == ["red?", "green?", "blue?"]


async def test_a_question_of_a_task_of_a_tool_is_answered_early() -> None:  # P24
    office = Office(asks=in_a_task)
    async with office.running(office.agent(call("choose"), call("slow")), "agent") as (_, answer):
        await until(office.questions)
        await answer({office.questions()["red?"]: "red"})
        await until(lambda: office.done)
    assert office.done == ["red", "slow"]


# -- after a crash


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("asks", WAYS.values(), ids=WAYS)
async def test_an_early_answer_counts_once_after_a_crash_at_any_event(depth: int, asks: Any) -> None:  # P24
    office = Office(depth, asks=asks)
    calls = [office.call_of(), call("slow")] if depth else [call("choose"), call("slow")]
    tools = [office.nested(call("choose"))] if depth else []
    async with office.running(office.agent(*calls, tools=tools), "agent") as (task_id, answer):
        await until(lambda: len(office.questions()) == 3)
        await answer({office.questions()["green?"]: "green"})
        await answer({office.questions()["red?"]: "red", office.questions()["blue?"]: "blue"})
        await until(lambda: office.done)
    events = [event for event in await office.log.read(task_id) if event.durable]
    first = kinds(events).index("input-received")
    assert first > 0
    for count in range(first + 1, len(events)):
        again = Office(depth, asks=asks)
        again.log = await first_events(office.log, task_id, count)
        again.release.set()
        agent = again.agent(*calls, tools=[again.nested(call("choose"))] if depth else [])
        asked: list[str] = []

        def on_input(question: Any, asked: list[str] = asked) -> str:
            asked.append(question.prompt)
            return str(question.prompt).removesuffix("?")

        result = await agent.resume(task_id, on_input=on_input)
        assert result.output == "Done."
        received = kinds(await again.log.read(task_id)).count("input-received")
        assert received == 3
        before = kinds(events[:count]).count("input-received")
        assert len(asked) == 3 - before
        ran = [event for event in events[:count] if event.kind == "tool-complete" and event.call.name == "choose"]  # type: ignore[attr-defined]
        assert [word for word in again.done if word != "slow"] == ([] if ran else list(WORDS))
