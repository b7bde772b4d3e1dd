"""Answers to questions of nested runs and of tasks of tools while other calls are running."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import permutations
from typing import Any

import pytest

from rxloop import Agent, Limits, MemoryEventLog, ModelRequest, RunContext, Runtime, SubtaskEvent, tool
from rxloop.protocol.events import Event, StatusUpdateEvent, ToolCompleteEvent
from rxloop.testing import ScriptedModel, call
from support.nested_agents import check_attempt, check_attempts
from support.run_checks import kinds, wait_until
from support.runs import copy_first_events

Answer = Callable[[Mapping[str, Any]], Awaitable[None]]
WORDS = ("red", "green", "blue")


async def ask_with_gather(ctx: RunContext[Any]) -> list[str]:
    return await asyncio.gather(*(ctx.ask(f"{word}?", str) for word in WORDS))


async def ask_in_task_group(ctx: RunContext[Any]) -> list[str]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ctx.ask(f"{word}?", str)) for word in WORDS]
    return [task.result() for task in tasks]


async def ask_in_task(ctx: RunContext[Any]) -> list[str]:
    return [await asyncio.create_task(ctx.ask(f"{word}?", str)) for word in WORDS[:1]]


PARALLEL_ASKERS = {"gather": ask_with_gather, "task group": ask_in_task_group}


def model(*turns: Any) -> ScriptedModel:
    """Create a model that answers by turn number, even after a resume."""

    def answer(request: ModelRequest) -> Any:
        return turns[sum(message.role == "assistant" for message in request.messages)]

    return ScriptedModel(*[answer] * len(turns))


class Office:
    """Run with slow and asking calls at several nesting levels."""

    def __init__(self, depth: int = 1, *, ask: Any = None, limits: Limits | None = None, timeout: Any = None) -> None:
        self.done: list[str] = []
        self.release = asyncio.Event()
        self.log = MemoryEventLog()
        self.events: list[Event] = []

        @tool(approve=True, idempotent=True)
        async def pay(amount: int) -> str:
            """Pay."""
            self.done.append(f"paid {amount}")
            return "paid"

        @tool(idempotent=True)
        async def choose(ctx: RunContext[Any]) -> str:
            """Ask several questions."""
            words = await ask(ctx)
            self.done.extend(words)
            return ",".join(words)

        @tool(idempotent=True)
        async def slow() -> str:
            """Wait for release."""
            await self.release.wait()
            self.done.append("slow")
            return "slow"

        self.pay, self.choose, self.slow = pay, choose, slow
        self.depth, self.limits, self.timeout = depth, limits, timeout

    def nested(self, *calls: Any, name: str = "clerk") -> Any:
        """Create an agent tool with the configured nesting depth."""
        tools: list[Any] = [self.pay, self.choose, self.slow]
        for level in range(self.depth):
            script = [list(calls) if level == 0 else call(f"{name}{level - 1}", prompt="x"), f"{name} is done."]
            agent: Agent[Any, Any] = Agent(model(*script), tools=tools, name=f"{name}{level}", thoughts=False)
            tools = [agent.as_tool(limits=self.limits, timeout=self.timeout)]
        return tools[0]

    def make_call(self, name: str = "clerk") -> Any:
        return call(f"{name}{self.depth - 1}", prompt="x")

    def agent(self, *calls: Any, tools: Any = ()) -> Agent[Any, Any]:
        own = [self.pay, self.choose, self.slow, *tools]
        return Agent(model(list(calls), "Done."), tools=own, log=self.log, name="boss", thoughts=False)

    def questions(self) -> dict[str, str]:
        """Return the ids of the questions so far by prompt."""
        events: list[Any] = [event for event in self.events if event.kind == "input-required"]
        return {event.input.prompt: event.input.input_id for event in events}

    def approval(self, amount: int) -> str:
        return next(value for key, value in self.questions().items() if f"{amount}" in key)

    @asynccontextmanager
    async def run_agent(self, agent: Agent[Any, Any], channel: str) -> AsyncGenerator[tuple[str, Answer]]:
        """Run an agent to completion and answer through the given channel."""
        if channel == "agent":
            run = agent.run("Go.")
            run.events.subscribe(self.events.append)
            yield run.task_id, lambda inputs: agent.get_run(run.task_id).answer(dict(inputs))
            self.release.set()
            assert (await run).output == "Done."
            return
        async with Runtime({"boss": agent}, log=self.log, grace=0.2) as runtime:
            record = await runtime.start("boss", "Go.")

            async def follow() -> None:
                async for event in runtime.follow(record.task_id):
                    self.events.append(event)

            follower = asyncio.ensure_future(follow())

            async def answer(inputs: Mapping[str, Any]) -> None:
                await runtime.answer(record.task_id, dict(inputs))

            yield record.task_id, answer
            self.release.set()
            await follower
            assert (await runtime.get_record(record.task_id)).state == "completed"


def subtasks(events: list[Event]) -> list[str]:
    return [event.state for event in events if isinstance(event, SubtaskEvent)]


# -- nested runs


@pytest.mark.parametrize("channel", ["agent", "runtime"])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("sibling", ["outer", "nested"])
async def test_answered_call_of_nested_run_starts_immediately(channel: str, depth: int, sibling: str) -> None:  # P24
    office = Office(depth)
    inner = [call("pay", amount=5)] if sibling == "outer" else [call("pay", amount=5), call("slow")]
    outer = [office.make_call(), call("slow")] if sibling == "outer" else [office.make_call()]
    agent = office.agent(*outer, tools=[office.nested(*inner)])
    async with office.run_agent(agent, channel) as (task_id, answer):
        await wait_until(office.questions)
        await answer({office.approval(5): True})
        await wait_until(lambda: office.done)
        assert office.done == ["paid 5"]
    assert office.done == ["paid 5", "slow"]
    events = await office.log.read(task_id)
    check_attempt(events)
    check_attempts(events)
    [received] = [event for event in events if event.kind == "input-received"]
    assert len(received.agent_path) == depth
    assert received.metadata["command_id"] == 1
    assert {event.attempt for event in events} == {1}


async def test_nested_run_can_end_while_an_outer_call_runs() -> None:  # P24
    office = Office()
    agent = office.agent(office.make_call(), call("slow"), tools=[office.nested(call("pay", amount=5))])
    async with office.run_agent(agent, "agent") as (_, answer):
        await wait_until(office.questions)
        await answer({office.approval(5): True})
        await wait_until(lambda: subtasks(office.events) == ["working", "completed"])


async def test_questions_of_two_nested_runs_can_be_answered_in_any_order() -> None:  # P24
    for order in permutations([5, 6, 7]):
        office = Office()
        tools = [office.nested(call("pay", amount=5)), office.nested(call("pay", amount=6), name="other")]
        calls = [office.make_call(), office.make_call("other"), call("pay", amount=7), call("slow")]
        async with office.run_agent(office.agent(*calls, tools=tools), "agent") as (_, answer):
            await wait_until(lambda office=office: len(office.questions()) == 3)
            for index, amount in enumerate(order):
                await answer({office.approval(amount): True})
                await wait_until(lambda office=office, index=index: len(office.done) > index)
        assert office.done == [*(f"paid {amount}" for amount in order), "slow"]


async def test_one_answer_command_can_answer_outer_and_nested_questions() -> None:  # P24
    office = Office()
    calls = [office.make_call(), call("pay", amount=7), call("slow")]
    agent = office.agent(*calls, tools=[office.nested(call("pay", amount=5))])
    async with office.run_agent(agent, "agent") as (_, answer):
        await wait_until(lambda: len(office.questions()) == 2)
        await answer({office.approval(5): True, office.approval(7): False})
        await wait_until(lambda: office.done)
    assert office.done == ["paid 5", "slow"]


@pytest.mark.parametrize("depth", [1, 2])
async def test_run_pauses_when_only_nested_runs_wait(depth: int) -> None:  # P24
    office = Office(depth)
    agent = office.agent(office.make_call(), call("slow"), tools=[office.nested(call("pay", amount=5))])
    run = agent.run("Go.")
    run.events.subscribe(office.events.append)
    await wait_until(office.questions)
    office.release.set()
    result = await run
    assert result.state == "input-required"
    assert office.done == ["slow"]
    ends = [event for event in office.events if isinstance(event, StatusUpdateEvent) and event.final]
    assert [event.state for event in ends] == ["input-required"] * (depth + 1)
    check_attempt(office.events)
    result = await agent.resume(run.task_id, inputs={office.approval(5): True})
    assert result.output == "Done."
    assert office.done == ["slow", "paid 5"]


@pytest.mark.parametrize("depth", [1, 2])
async def test_answer_for_nested_run_is_applied_immediately_in_a_second_attempt(depth: int) -> None:  # P24
    async def ask_sequentially(ctx: RunContext[Any]) -> list[str]:
        return [await ctx.ask(f"{word}?", str) for word in WORDS[:2]]

    office = Office(depth, ask=ask_sequentially)

    @tool(idempotent=True)
    async def slow_later(ctx: RunContext[Any]) -> str:
        """Ask first, then wait for release."""
        await ctx.ask("later?", str)
        await office.release.wait()
        return "slow"

    agent = office.agent(office.make_call(), call("slow_later"), tools=[office.nested(call("choose")), slow_later])
    result = await agent.run("Go.")
    input_ids = {question.prompt: question.input_id for question in result.pending}
    run = agent.resume(result.task_id, inputs={input_ids["red?"]: "red", input_ids["later?"]: "now"})
    run.events.subscribe(office.events.append)
    await wait_until(lambda: "green?" in office.questions())
    await agent.get_run(run.task_id).answer({office.questions()["green?"]: "green"})
    await wait_until(lambda: office.done)
    assert office.done == ["red", "green"]
    office.release.set()
    assert (await run).output == "Done."
    events = await office.log.read(run.task_id)
    check_attempts(events)
    assert kinds(events).count("input-received") == 3


async def test_run_with_a_waiting_nested_run_can_be_canceled() -> None:  # P24
    office = Office(2)
    agent = office.agent(office.make_call(), call("slow"), tools=[office.nested(call("pay", amount=5))])
    run = agent.run("Go.")
    run.events.subscribe(office.events.append)
    await wait_until(office.questions)
    await run.aclose()
    assert office.done == []
    assert [event.state for event in office.events if isinstance(event, StatusUpdateEvent) and event.final] == [
        "canceled"
    ] * 3


@pytest.mark.parametrize("options", [{"limits": Limits(seconds=0.2)}, {"timeout": 0.2}], ids=["limit", "timeout"])
async def test_time_limit_of_nested_run_excludes_waiting_for_answers(options: Any) -> None:  # P24
    office = Office(2, **options)
    agent = office.agent(office.make_call(), call("slow"), tools=[office.nested(call("pay", amount=5))])
    async with office.run_agent(agent, "agent") as (_, answer):
        await wait_until(office.questions)
        await asyncio.sleep(0.4)
        await answer({office.approval(5): True})
        await wait_until(lambda: office.done)
    assert office.done == ["paid 5", "slow"]


async def test_time_limit_of_nested_run_counts_while_its_call_runs() -> None:  # P24
    office = Office(limits=Limits(seconds=0.2))
    agent = office.agent(office.make_call(), tools=[office.nested(call("pay", amount=5), call("slow"))])
    run = agent.run("Go.")
    run.events.subscribe(office.events.append)
    assert (await run).output == "Done."
    assert subtasks(office.events) == ["working", "failed"]


async def test_waiting_nested_run_releases_its_slot() -> None:  # P24
    office = Office()
    nested = [office.nested(call("pay", amount=5)), office.nested(call("pay", amount=6), name="other")]

    @tool
    async def other(ctx: RunContext[Any]) -> str:
        """Call another agent after the first question."""
        await wait_until(office.questions)
        return str(await nested[1].call({"prompt": "x"}, ctx))

    agent = office.agent(office.make_call(), call("other"), call("slow"), tools=[nested[0], other])
    run = agent.run("Go.", limits=Limits(width=1))
    run.events.subscribe(office.events.append)
    await wait_until(lambda: len(office.questions()) == 2)
    await agent.get_run(run.task_id).answer({office.approval(5): True, office.approval(6): True})
    office.release.set()
    assert (await run).output == "Done."
    assert sorted(office.done) == ["paid 5", "paid 6", "slow"]


# -- parallel tool tasks


@pytest.mark.parametrize("ask", PARALLEL_ASKERS.values(), ids=PARALLEL_ASKERS)
@pytest.mark.parametrize("depth", [0, 1, 2])
async def test_parallel_questions_of_a_tool_can_be_answered_early_in_any_order(ask: Any, depth: int) -> None:  # P24
    for order in permutations(WORDS):
        office = Office(depth, ask=ask)
        calls = [office.make_call(), call("slow")] if depth else [call("choose"), call("slow")]
        tools = [office.nested(call("choose"))] if depth else []
        async with office.run_agent(office.agent(*calls, tools=tools), "agent") as (_, answer):
            await wait_until(lambda office=office: len(office.questions()) == 3)
            for word in order:
                assert office.done == []
                await answer({office.questions()[f"{word}?"]: f"dark {word}"})
            await wait_until(lambda office=office: office.done)
        assert office.done == ["dark red", "dark green", "dark blue", "slow"]


@pytest.mark.parametrize("ask", PARALLEL_ASKERS.values(), ids=PARALLEL_ASKERS)
async def test_parallel_questions_of_a_tool_can_be_answered_through_a_runtime(ask: Any) -> None:  # P24
    office = Office(ask=ask)
    async with office.run_agent(office.agent(call("choose"), call("slow")), "runtime") as (_, answer):
        await wait_until(lambda: len(office.questions()) == 3)
        await answer({input_id: prompt for prompt, input_id in office.questions().items()})
        await wait_until(lambda: office.done)
    assert office.done == ["red?", "green?", "blue?", "slow"]


@pytest.mark.parametrize("ask", PARALLEL_ASKERS.values(), ids=PARALLEL_ASKERS)
@pytest.mark.parametrize("answer_count", range(3))
async def test_tool_pauses_when_only_some_of_its_questions_are_answered(ask: Any, answer_count: int) -> None:  # P24
    office = Office(ask=ask)
    agent = office.agent(call("choose"), call("slow"))
    run = agent.run("Go.")
    run.events.subscribe(office.events.append)
    await wait_until(lambda: len(office.questions()) == 3)
    prompts = {input_id: prompt for prompt, input_id in office.questions().items()}
    early = dict(list(prompts.items())[:answer_count])
    if early:
        await agent.get_run(run.task_id).answer(early)
        await wait_until(lambda: kinds(office.events).count("input-received") == answer_count)
    office.release.set()
    result = await run
    assert [question.input_id for question in result.pending] == list(prompts)[answer_count:]
    assert office.done == ["slow"]
    result = await agent.resume(run.task_id, inputs={key: prompts[key] for key in list(prompts)[answer_count:]})
    assert result.output == "Done."
    assert office.done == ["slow", "red?", "green?", "blue?"]


@pytest.mark.parametrize("ask", PARALLEL_ASKERS.values(), ids=PARALLEL_ASKERS)
async def test_parallel_questions_of_a_tool_pause_the_run(ask: Any) -> None:  # P24
    office = Office(ask=ask)
    agent = office.agent(call("choose"))
    result = await agent.run("Go.")
    assert [question.prompt for question in result.pending] == ["red?", "green?", "blue?"]
    answers = {question.input_id: question.prompt for question in result.pending}
    assert (await agent.resume(result.task_id, inputs=answers)).output == "Done."
    assert office.done == ["red?", "green?", "blue?"]


async def test_question_of_a_task_can_be_answered_early() -> None:  # P24
    office = Office(ask=ask_in_task)
    async with office.run_agent(office.agent(call("choose"), call("slow")), "agent") as (_, answer):
        await wait_until(office.questions)
        await answer({office.questions()["red?"]: "red"})
        await wait_until(lambda: office.done)
    assert office.done == ["red", "slow"]


# -- after a crash


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("ask", PARALLEL_ASKERS.values(), ids=PARALLEL_ASKERS)
async def test_early_answer_is_applied_once_after_a_crash_at_any_event(depth: int, ask: Any) -> None:  # P24
    office = Office(depth, ask=ask)
    calls = [office.make_call(), call("slow")] if depth else [call("choose"), call("slow")]
    tools = [office.nested(call("choose"))] if depth else []
    async with office.run_agent(office.agent(*calls, tools=tools), "agent") as (task_id, answer):
        await wait_until(lambda: len(office.questions()) == 3)
        await answer({office.questions()["green?"]: "green"})
        await answer({office.questions()["red?"]: "red", office.questions()["blue?"]: "blue"})
        await wait_until(lambda: office.done)
    events = [event for event in await office.log.read(task_id) if event.durable]
    first = kinds(events).index("input-received")
    assert first > 0
    for count in range(first + 1, len(events)):
        resumed_office = Office(depth, ask=ask)
        resumed_office.log = await copy_first_events(office.log, task_id, count)
        resumed_office.release.set()
        agent = resumed_office.agent(*calls, tools=[resumed_office.nested(call("choose"))] if depth else [])
        prompts: list[str] = []

        def on_input(question: Any, prompts: list[str] = prompts) -> str:
            prompts.append(question.prompt)
            return str(question.prompt).removesuffix("?")

        result = await agent.resume(task_id, on_input=on_input)
        assert result.output == "Done."
        received = kinds(await resumed_office.log.read(task_id)).count("input-received")
        assert received == 3
        recorded_answers = kinds(events[:count]).count("input-received")
        assert len(prompts) == 3 - recorded_answers
        completions = [event for event in events[:count] if isinstance(event, ToolCompleteEvent)]
        completed_calls = [event for event in completions if event.call.name == "choose"]
        assert [word for word in resumed_office.done if word != "slow"] == ([] if completed_calls else list(WORDS))
