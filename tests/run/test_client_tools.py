"""Calls that the client of a run carries out: they pause the run, or a callback is awaited."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from rxloop import (
    Agent,
    InputReceivedEvent,
    InputRequiredEvent,
    MemoryEventLog,
    RunContext,
    Runtime,
    SqliteEventLog,
    TaskEvent,
    ToolCompleteEvent,
    ToolError,
    ToolStartEvent,
    client_tool,
    op,
    tool,
)
from rxloop.errors import InvalidInput, NotAsked
from rxloop.testing import ScriptedModel, call, virtual_time
from support.bank import crashed
from support.run_checks import nothing_left
from support.runs import collect, first_events, shape, well_formed

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
SHOWN = {"type": "object", "properties": {"shown": {"type": "boolean"}}, "required": ["shown"]}
show_map = client_tool("show_map", CITY, description="Show a city on the user's map.", result=SHOWN)
LOCATE = {"name": "locate", "description": "Where the user is.", "parameters": None}
BOTH = [call("show_map", city="Oslo"), call("locate")]


@pytest.fixture
def log() -> MemoryEventLog:
    return MemoryEventLog()


def agent(log: Any, *turns: Any, **options: Any) -> Agent[Any, str]:
    return Agent(ScriptedModel(*turns), log=log, **options)


def results(messages: Any) -> list[str]:
    return [message.text for message in messages if message.role == "tool"]


async def test_a_call_waits_for_the_client(log: MemoryEventLog) -> None:  # L106
    asking = agent(log, call("show_map", "c", city="Oslo"), "There.", tools=[show_map])
    run = asking.run("Where is Oslo?")
    events = await collect(run.pipe(op.grammar()))
    result = await run

    assert (result.state, result.reason) == ("input-required", "input")
    (question,) = result.pending
    assert (question.input_id, question.input_kind, question.answer_schema) == ("1.0.1", "tool", SHOWN)
    assert question.prompt == 'Carry out show_map with city: "Oslo".'
    assert question.call is not None
    assert (question.call.name, question.call.arguments) == ("show_map", {"city": "Oslo"})
    assert [event.kind for event in events].count("tool-start") == 1
    asked = next(event for event in events if isinstance(event, InputRequiredEvent))
    assert asked.to_public() is asked, "a client gets all of it"

    again = asking.resume(run.task_id, inputs={question.input_id: {"shown": True}})
    events = await collect(again.pipe(op.grammar()))

    assert (await again).output == "There."
    kinds = [event.kind for event in events]
    assert kinds.index("input-received") < kinds.index("tool-complete")
    done = next(event for event in events if isinstance(event, ToolCompleteEvent))
    assert (done.success, done.result, done.content) == (True, {"shown": True}, '{"shown":true}')


async def test_arguments_that_do_not_fit_do_not_reach_the_client() -> None:  # L106
    asked: list[Any] = []
    turns = [call("show_map", city=5), call("show_map"), call("show_map", city="Oslo"), "There."]
    result = await agent(None, *turns, tools=[show_map]).run(
        "Where?", on_input=lambda question: asked.append(question) or {"shown": True}
    )

    assert len(asked) == 1
    assert results(result.messages) == [
        "The arguments of show_map do not fit, and it was not called: city is to be a JSON string, not 5.",
        "The arguments of show_map do not fit, and it was not called: the value lacks 'city'.",
        '{"shown":true}',
    ]


@pytest.mark.parametrize("value", [False, 0, "", None, [], {"error": 5}, {"error": "x", "more": 1}])
async def test_every_value_is_a_result(log: MemoryEventLog, value: Any) -> None:  # L75, L106
    asking = agent(log, call("locate"), "Fine.")
    waiting = await asking.run("Where am I?", client_tools=[LOCATE])
    result = await asking.resume(waiting.task_id, inputs={"1.0.1": value})

    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    assert (results(result.messages), result.output) == ([text], "Fine.")


async def test_the_client_may_have_failed(log: MemoryEventLog) -> None:  # L106
    asking = agent(log, call("show_map", city="Oslo"), "Sorry.", tools=[show_map])
    waiting = await asking.run("Where?")
    run = asking.resume(waiting.task_id, inputs={"1.0.1": {"error": "The map is closed."}})
    done = next(event for event in await collect(run) if isinstance(event, ToolCompleteEvent))

    assert (done.success, done.error, done.content) == (False, "The map is closed.", "The map is closed.")
    assert (await run).output == "Sorry."


async def test_a_callback_may_fail() -> None:  # L106
    async def closed(question: Any) -> Any:
        raise ToolError("The map is closed.")

    result = await agent(None, call("show_map", city="Oslo"), "Sorry.", tools=[show_map]).run("Where?", on_input=closed)
    assert results(result.messages) == ["The map is closed."]


async def test_a_result_that_does_not_fit_is_refused_and_the_run_still_waits(log: MemoryEventLog) -> None:  # L104
    asking = agent(log, call("show_map", city="Oslo"), "There.", tools=[show_map])
    waiting = await asking.run("Where?")
    huge = list(range(200_001))
    for value, says in (
        ("yes", "is to be a JSON object"),
        ({"shown": 1}, "shown is to be a JSON boolean"),
        ({"shown": True, "all": huge}, "more than 200,000 values"),
    ):
        with pytest.raises(InvalidInput, match=says):
            await asking.resume(waiting.task_id, inputs={"1.0.1": value})
        with pytest.raises(InvalidInput, match=says):
            await asking.get_run(waiting.task_id).answer({"1.0.1": value})
    assert (await asking.resume(waiting.task_id, inputs={"1.0.1": {"shown": False}})).output == "There."


async def test_several_calls_wait_at_once_and_are_answered_in_any_order(log: MemoryEventLog) -> None:  # L97, L98
    here: list[str] = []

    @tool
    async def think() -> str:
        here.append("thought")
        return "42"

    many = [call("show_map", city=f"C{number}") for number in range(7)]
    asking = agent(log, [*many, call("think")], "All.", tools=[show_map, think])
    waiting = await asking.run("Where?")
    assert [question.input_id for question in waiting.pending] == [f"1.{place}.1" for place in range(7)]

    for place in (6, 0, 3):
        waiting = await asking.resume(waiting.task_id, inputs={f"1.{place}.1": {"shown": place > 1}})
        assert waiting.state == "input-required"
    left = {question.input_id: {"shown": True} for question in waiting.pending}
    result = await asking.resume(waiting.task_id, inputs=left)

    assert len(left) == 4
    assert results(result.messages) == [f'{{"shown":{str(place != 0).lower()}}}' for place in range(7)] + ["42"]
    assert here == ["thought"]
    assert well_formed(result.messages)


async def test_definitions_of_a_run_are_there_where_it_is_resumed(tmp_path: Path) -> None:  # L105, L108
    path = tmp_path / "runs.db"
    async with agent(SqliteEventLog(path), BOTH) as first:
        waiting = await first.run("Where am I?", client_tools=[show_map, LOCATE])
        assert first.log is not None
        task = (await first.log.read(waiting.task_id))[0]
    assert isinstance(task, TaskEvent)
    assert [each["name"] for each in (task.options or {})["client_tools"]] == ["show_map", "locate"]
    assert b"locate" not in task.to_json(public=True)

    async with agent(SqliteEventLog(path), "Both.") as second:
        model: Any = second.model
        with pytest.raises(InvalidInput, match="lacks 'shown'"):
            await second.resume(waiting.task_id, inputs={"1.0.1": {}})
        await second.get_run(waiting.task_id).answer({"1.1.1": "Bergen"})
        record = await second.get_run(waiting.task_id).execute()
        assert record.state == "input-required"
        result = await second.resume(waiting.task_id, inputs={"1.0.1": {"shown": True}})

    assert results(result.messages) == ['{"shown":true}', "Bergen"]
    assert [each.name for each in model.requests[0].tools][-2:] == ["show_map", "locate"]


async def test_other_definitions_may_be_given_with_the_resumption(log: MemoryEventLog) -> None:
    waiting = await agent(log, call("locate")).run("Where?", client_tools=[LOCATE])
    second = agent(log, "There.")
    model: Any = second.model
    await second.resume(waiting.task_id, inputs={"1.0.1": "Oslo"}, client_tools=[LOCATE, {"name": "beep"}])
    assert [each.name for each in model.requests[0].tools][-2:] == ["locate", "beep"]


async def test_a_submitted_run_has_them(log: MemoryEventLog) -> None:  # L105
    worker = agent(log, call("locate"), "There.")
    record = await worker.submit("Where?", client_tools=[LOCATE])
    assert (await worker.get_run(record.task_id).execute()).state == "input-required"
    await worker.get_run(record.task_id).answer({"1.0.1": "Oslo"})
    assert (await worker.get_run(record.task_id).execute()).state == "completed"


async def test_a_run_of_a_runtime_has_them(log: MemoryEventLog) -> None:  # L106
    async with Runtime({"a": agent(None, call("locate"), "There.")}, log=log) as runtime:
        record = await runtime.start("a", "Where?", client_tools=[LOCATE])
        async for event in runtime.follow(record.task_id):
            if isinstance(event, InputRequiredEvent):
                await runtime.answer(record.task_id, {event.input_id: "Oslo"})
        assert (await runtime.get_record(record.task_id)).state == "completed"


@pytest.mark.parametrize("kind", [ToolStartEvent, InputRequiredEvent])
async def test_a_crash_before_the_answer_asks_once_more(log: MemoryEventLog, kind: Any) -> None:  # L89, L106
    waiting = await agent(log, call("locate")).run("Where?", client_tools=[LOCATE])
    log = await crashed(log, waiting.task_id, kind)

    again = await agent(log).resume(waiting.task_id)
    assert (again.state, [question.input_id for question in again.pending]) == ("input-required", ["1.0.1"])

    result = await agent(log, "There.").resume(waiting.task_id, inputs={"1.0.1": "Oslo"})
    assert results(result.messages) == ["Oslo"]


class Bank:
    """A family that is away at times, with a tool of the name of a client's."""

    name = "bank"
    away = False

    def __init__(self, *, approve: bool = False) -> None:
        self.paid: list[int] = []

        @tool(name="pay", approve=approve)
        async def pay(amount: int) -> str:
            """Pay."""
            self.paid.append(amount)
            return "paid"

        self._pay = pay

    async def tools(self, ctx: RunContext[Any]) -> list[Any]:
        if self.away:
            raise ConnectionError("nobody listens")
        return [self._pay]


PAY = {"name": "pay", "description": "Notes what was paid.", "parameters": None}


async def test_a_family_that_is_back_does_not_get_the_call_of_a_client(log: MemoryEventLog) -> None:  # L106
    bank = Bank()
    bank.away = True
    waiting = await agent(log, call("pay", amount=5), tools=[bank]).run("Pay", client_tools=[PAY])
    assert waiting.pending[0].input_kind == "tool"

    bank.away = False
    result = await agent(log, "No.", tools=[bank]).resume(waiting.task_id, inputs={"1.0.1": True})
    assert results(result.messages) == [
        "The tool 'pay' is another one now than when it was called, and was not called."
    ]
    assert (bank.paid, result.pending) == ([], [])


@pytest.mark.parametrize("known", [True, False])
async def test_a_client_does_not_get_the_call_of_a_family_that_is_away(log: MemoryEventLog, known: bool) -> None:
    bank = Bank(approve=True)
    one = agent(log, call("pay", amount=5), "No.", tools=[bank])
    waiting = await one.run("Pay", client_tools=[PAY])
    assert waiting.pending[0].input_kind == "confirmation"

    bank.away = True
    goes_on = one if known else agent(log, "No.", tools=[bank])
    result = await goes_on.resume(waiting.task_id, inputs={"1.0.1": True})
    [told] = results(result.messages)
    assert "not available now, like all tools of bank" in told if known else "another one now" in told
    assert (bank.paid, result.pending) == ([], [])


@pytest.mark.parametrize("again", ["x" * 1_000_000, float("nan")])
async def test_another_answer_is_refused_in_few_words(log: MemoryEventLog, again: Any) -> None:
    waiting = await agent(log, call("locate"), "There.").run("Where?", client_tools=[LOCATE])
    await agent(log, "There.").resume(waiting.task_id, inputs={"1.0.1": "y" * 1_000_000})
    with pytest.raises(NotAsked, match="has its answer already") as refusal:
        await agent(log).resume(waiting.task_id, inputs={"1.0.1": again})
    assert len(str(refusal.value)) < 1_000


async def test_an_answer_that_is_nested_too_deep_is_refused_like_any_other(log: MemoryEventLog) -> None:
    deep: Any = []
    for _ in range(5_000):
        deep = [deep]
    waiting = await agent(log, call("locate"), "There.").run("Where?", client_tools=[LOCATE])
    for _ in range(2):
        with pytest.raises(InvalidInput, match="nested"):
            await agent(log).resume(waiting.task_id, inputs={"1.0.1": deep})
        await agent(log, "There.").resume(waiting.task_id, inputs={"1.0.1": "Oslo"})


async def test_a_crash_after_the_answer_does_not_ask_again(log: MemoryEventLog) -> None:  # L89, L106
    waiting = await agent(log, call("locate")).run("Where?", client_tools=[LOCATE])
    await agent(log, "There.").resume(waiting.task_id, inputs={"1.0.1": "Oslo"})
    events = await log.read(waiting.task_id)
    answered = next(event.seq for event in events if isinstance(event, InputReceivedEvent))
    finished = next(event.seq for event in events if isinstance(event, ToolCompleteEvent))
    assert finished - answered == 2, "the answer, the start of the call, its end"

    for seq in range(answered, finished + 1):
        cut = await first_events(log, waiting.task_id, seq)
        run = agent(cut, "There.").resume(waiting.task_id)
        kinds = [event.kind for event in await collect(run.pipe(op.grammar()))]
        assert "input-required" not in kinds
        assert shape((await run).messages) == ["user: Where?", "assistant: locate", "tool: Oslo", "assistant: There."]


async def test_a_crash_while_a_callback_works_asks_it_once_more(log: MemoryEventLog) -> None:  # L106
    done = await agent(log, call("locate"), "There.").run("Where?", client_tools=[LOCATE], on_input=lambda q: "Oslo")
    log = await crashed(log, done.task_id, InputRequiredEvent)
    asked: list[str] = []

    result = await agent(log, "There.").resume(
        done.task_id, on_input=lambda question: asked.append(question.input_id) or "Bergen"
    )
    assert (asked, results(result.messages)) == (["1.0.1"], ["Bergen"])


def test_a_callback_that_takes_too_long_is_cut_off() -> None:  # L114
    slow = client_tool("slow", timeout=5)

    async def never(question: Any) -> Any:
        await asyncio.Event().wait()

    async def main() -> None:
        run = agent(None, call("slow"), "Too slow.", tools=[slow]).run("Go", on_input=never)
        assert results((await run).messages) == ["slow timed out after 5 s."]
        await nothing_left()

    with virtual_time() as time:
        time.run(main())


async def test_a_new_message_lets_the_calls_go(log: MemoryEventLog) -> None:  # L100
    asking = agent(log, BOTH, "Never mind.")
    waiting = await asking.run("Where am I?", client_tools=[show_map, LOCATE], context_id="c")
    assert len(waiting.pending) == 2
    result = await asking.run("Forget it.", context_id="c")

    assert well_formed(result.messages)
    assert results(result.messages) == ["The call was cancelled before it had a result."] * 2
    with pytest.raises(InvalidInput, match="dropped its questions"):
        await asking.resume(waiting.task_id, inputs={"1.1.1": "Oslo"})


async def test_the_answer_is_durable_before_the_tool_goes_on(log: MemoryEventLog) -> None:
    durable: list[bool] = []

    async def transfer(ctx: RunContext[Any]) -> str:
        """Asks, and pays."""
        await ctx.ask("Really?")
        durable.append(any(isinstance(event, InputReceivedEvent) for event in await log.read(ctx.task_id)))
        return "paid"

    async def yes(question: Any) -> bool:
        await asyncio.sleep(0.1)
        return True

    await agent(log, call("transfer"), "Paid.", tools=[transfer]).run("Pay", on_input=yes)
    assert durable == [True]
