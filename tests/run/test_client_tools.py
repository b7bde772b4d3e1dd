"""Client tools."""

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
from support.bank import log_after_crash
from support.run_checks import assert_no_tasks
from support.runs import collect, copy_first_events, is_well_formed, shape

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


async def test_client_tool_call_pauses_the_run_until_the_client_answers(log: MemoryEventLog) -> None:  # L106
    asking_agent = agent(log, call("show_map", "c", city="Oslo"), "There.", tools=[show_map])
    run = asking_agent.run("Where is Oslo?")
    events = await collect(run.pipe(op.grammar()))
    result = await run

    assert result.state == "input-required"
    assert result.reason == "input"
    (question,) = result.pending
    assert (question.input_id, question.input_kind, question.answer_schema) == ("1.0.1", "tool", SHOWN)
    assert question.prompt == 'Carry out show_map with city: "Oslo".'
    assert question.call is not None
    assert (question.call.name, question.call.arguments) == ("show_map", {"city": "Oslo"})
    assert [event.kind for event in events].count("tool-start") == 1
    required = next(event for event in events if isinstance(event, InputRequiredEvent))
    assert required.to_public() is required, "the event has no private fields"

    resumed = asking_agent.resume(run.task_id, inputs={question.input_id: {"shown": True}})
    events = await collect(resumed.pipe(op.grammar()))

    assert (await resumed).output == "There."
    kinds = [event.kind for event in events]
    assert kinds.index("input-received") < kinds.index("tool-complete")
    completion = next(event for event in events if isinstance(event, ToolCompleteEvent))
    assert completion.success
    assert (completion.result, completion.content) == ({"shown": True}, '{"shown":true}')


async def test_invalid_arguments_do_not_reach_the_client() -> None:  # L106
    required: list[Any] = []
    turns = [call("show_map", city=5), call("show_map"), call("show_map", city="Oslo"), "There."]
    result = await agent(None, *turns, tools=[show_map]).run(
        "Where?", on_input=lambda question: required.append(question) or {"shown": True}
    )

    assert len(required) == 1
    assert results(result.messages) == [
        "The arguments of show_map do not fit, and it was not called: city must be a JSON string, got 5.",
        "The arguments of show_map do not fit, and it was not called: the value must have 'city'.",
        '{"shown":true}',
    ]


@pytest.mark.parametrize("value", [False, 0, "", None, [], {"error": 5}, {"error": "x", "more": 1}])
async def test_any_json_value_is_a_valid_client_result(log: MemoryEventLog, value: Any) -> None:  # L75, L106
    asking_agent = agent(log, call("locate"), "Fine.")
    paused = await asking_agent.run("Where am I?", client_tools=[LOCATE])
    result = await asking_agent.resume(paused.task_id, inputs={"1.0.1": value})

    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    assert results(result.messages) == [text]
    assert result.output == "Fine."


async def test_client_error_becomes_failed_tool_result(log: MemoryEventLog) -> None:  # L106
    asking_agent = agent(log, call("show_map", city="Oslo"), "Sorry.", tools=[show_map])
    paused = await asking_agent.run("Where?")
    run = asking_agent.resume(paused.task_id, inputs={"1.0.1": {"error": "The map is closed."}})
    completion = next(event for event in await collect(run) if isinstance(event, ToolCompleteEvent))

    assert (completion.success, completion.error, completion.content) == (
        False,
        "The map is closed.",
        "The map is closed.",
    )
    assert (await run).output == "Sorry."


async def test_tool_error_of_callback_becomes_tool_result() -> None:  # L106
    async def fail_to_show(question: Any) -> Any:
        raise ToolError("The map is closed.")

    result = await agent(None, call("show_map", city="Oslo"), "Sorry.", tools=[show_map]).run(
        "Where?", on_input=fail_to_show
    )
    assert results(result.messages) == ["The map is closed."]


async def test_invalid_client_result_is_rejected_and_the_run_still_waits(log: MemoryEventLog) -> None:  # L104
    asking_agent = agent(log, call("show_map", city="Oslo"), "There.", tools=[show_map])
    paused = await asking_agent.run("Where?")
    oversized = list(range(50_001))
    for value, message in (
        ("yes", "must be a JSON object"),
        ({"shown": 1}, "shown must be a JSON boolean"),
        ({"shown": True, "all": oversized}, "more than 50,000 values"),
    ):
        with pytest.raises(InvalidInput, match=message):
            await asking_agent.resume(paused.task_id, inputs={"1.0.1": value})
        with pytest.raises(InvalidInput, match=message):
            await asking_agent.get_run(paused.task_id).answer({"1.0.1": value})
    assert (await asking_agent.resume(paused.task_id, inputs={"1.0.1": {"shown": False}})).output == "There."


async def test_parallel_client_calls_can_be_answered_in_any_order(log: MemoryEventLog) -> None:  # L97, L98
    local_calls: list[str] = []

    @tool
    async def think() -> str:
        local_calls.append("thought")
        return "42"

    many = [call("show_map", city=f"C{number}") for number in range(7)]
    asking_agent = agent(log, [*many, call("think")], "All.", tools=[show_map, think])
    paused = await asking_agent.run("Where?")
    assert [question.input_id for question in paused.pending] == [f"1.{index}.1" for index in range(7)]

    for index in (6, 0, 3):
        paused = await asking_agent.resume(paused.task_id, inputs={f"1.{index}.1": {"shown": index > 1}})
        assert paused.state == "input-required"
    remaining = {question.input_id: {"shown": True} for question in paused.pending}
    result = await asking_agent.resume(paused.task_id, inputs=remaining)

    assert len(remaining) == 4
    assert results(result.messages) == [f'{{"shown":{str(index != 0).lower()}}}' for index in range(7)] + ["42"]
    assert local_calls == ["thought"]
    assert is_well_formed(result.messages)


async def test_client_tools_of_a_run_are_recorded_for_its_resumption(tmp_path: Path) -> None:  # L105, L108
    path = tmp_path / "runs.db"
    async with agent(SqliteEventLog(path), BOTH) as first:
        paused = await first.run("Where am I?", client_tools=[show_map, LOCATE])
        assert first.log is not None
        task = (await first.log.read(paused.task_id))[0]
    assert isinstance(task, TaskEvent)
    assert [definition["name"] for definition in (task.options or {})["client_tools"]] == ["show_map", "locate"]
    assert b"locate" not in task.to_json(public=True)

    async with agent(SqliteEventLog(path), "Both.") as second:
        model: Any = second.model
        with pytest.raises(InvalidInput, match="must have 'shown'"):
            await second.resume(paused.task_id, inputs={"1.0.1": {}})
        await second.get_run(paused.task_id).answer({"1.1.1": "Bergen"})
        record = await second.get_run(paused.task_id).execute()
        assert record.state == "input-required"
        result = await second.resume(paused.task_id, inputs={"1.0.1": {"shown": True}})

    assert results(result.messages) == ['{"shown":true}', "Bergen"]
    assert [definition.name for definition in model.requests[0].tools][-2:] == ["show_map", "locate"]


async def test_resume_accepts_other_client_tools(log: MemoryEventLog) -> None:
    paused = await agent(log, call("locate")).run("Where?", client_tools=[LOCATE])
    second = agent(log, "There.")
    model: Any = second.model
    await second.resume(paused.task_id, inputs={"1.0.1": "Oslo"}, client_tools=[LOCATE, {"name": "beep"}])
    assert [definition.name for definition in model.requests[0].tools][-2:] == ["locate", "beep"]


async def test_submitted_run_keeps_its_client_tools(log: MemoryEventLog) -> None:  # L105
    worker = agent(log, call("locate"), "There.")
    record = await worker.submit("Where?", client_tools=[LOCATE])
    assert (await worker.get_run(record.task_id).execute()).state == "input-required"
    await worker.get_run(record.task_id).answer({"1.0.1": "Oslo"})
    assert (await worker.get_run(record.task_id).execute()).state == "completed"


async def test_runtime_passes_client_tools_to_its_run(log: MemoryEventLog) -> None:  # L106
    async with Runtime({"a": agent(None, call("locate"), "There.")}, log=log) as runtime:
        record = await runtime.start("a", "Where?", client_tools=[LOCATE])
        async for event in runtime.follow(record.task_id):
            if isinstance(event, InputRequiredEvent):
                await runtime.answer(record.task_id, {event.input_id: "Oslo"})
        assert (await runtime.get_record(record.task_id)).state == "completed"


@pytest.mark.parametrize("kind", [ToolStartEvent, InputRequiredEvent])
async def test_client_call_is_asked_again_after_a_crash_before_the_answer(
    log: MemoryEventLog, kind: Any
) -> None:  # L89, L106
    paused = await agent(log, call("locate")).run("Where?", client_tools=[LOCATE])
    log = await log_after_crash(log, paused.task_id, kind)

    resumed = await agent(log).resume(paused.task_id)
    assert resumed.state == "input-required"
    assert [question.input_id for question in resumed.pending] == ["1.0.1"]

    result = await agent(log, "There.").resume(paused.task_id, inputs={"1.0.1": "Oslo"})
    assert results(result.messages) == ["Oslo"]


class UnreliableBank:
    """Toolset with outages and a tool name that collides with a client tool."""

    name = "bank"
    unavailable = False

    def __init__(self, *, approve: bool = False) -> None:
        self.paid: list[int] = []

        @tool(name="pay", approve=approve)
        async def pay(amount: int) -> str:
            """Pay."""
            self.paid.append(amount)
            return "paid"

        self._pay = pay

    async def tools(self, ctx: RunContext[Any]) -> list[Any]:
        if self.unavailable:
            raise ConnectionError("no listener")
        return [self._pay]


PAY = {"name": "pay", "description": "Notes what was paid.", "parameters": None}


async def test_returning_toolset_does_not_execute_a_call_of_a_client_tool(log: MemoryEventLog) -> None:  # L106
    bank = UnreliableBank()
    bank.unavailable = True
    paused = await agent(log, call("pay", amount=5), tools=[bank]).run("Pay", client_tools=[PAY])
    assert paused.pending[0].input_kind == "tool"

    bank.unavailable = False
    result = await agent(log, "No.", tools=[bank]).resume(paused.task_id, inputs={"1.0.1": True})
    assert results(result.messages) == [
        "The tool 'pay' is another one now than when it was called, and was not called."
    ]
    assert bank.paid == []
    assert result.pending == []


@pytest.mark.parametrize("same_agent", [True, False])
async def test_client_does_not_get_a_call_of_an_unavailable_toolset(log: MemoryEventLog, same_agent: bool) -> None:
    bank = UnreliableBank(approve=True)
    first_agent = agent(log, call("pay", amount=5), "No.", tools=[bank])
    paused = await first_agent.run("Pay", client_tools=[PAY])
    assert paused.pending[0].input_kind == "confirmation"

    bank.unavailable = True
    resuming_agent = first_agent if same_agent else agent(log, "No.", tools=[bank])
    result = await resuming_agent.resume(paused.task_id, inputs={"1.0.1": True})
    [text] = results(result.messages)
    assert "not available now, like all tools of bank" in text if same_agent else "another one now" in text
    assert bank.paid == []
    assert result.pending == []


@pytest.mark.parametrize("resumed", ["x" * 1_000_000, float("nan")])
async def test_error_for_a_second_answer_is_short(log: MemoryEventLog, resumed: Any) -> None:
    paused = await agent(log, call("locate"), "There.").run("Where?", client_tools=[LOCATE])
    await agent(log, "There.").resume(paused.task_id, inputs={"1.0.1": "y" * 1_000_000})
    with pytest.raises(NotAsked, match="was already answered") as refusal:
        await agent(log).resume(paused.task_id, inputs={"1.0.1": resumed})
    assert len(str(refusal.value)) < 1_000


async def test_deeply_nested_answer_is_rejected(log: MemoryEventLog) -> None:
    nested: Any = []
    for _ in range(5_000):
        nested = [nested]
    paused = await agent(log, call("locate"), "There.").run("Where?", client_tools=[LOCATE])
    for _ in range(2):
        with pytest.raises(InvalidInput, match="nested"):
            await agent(log).resume(paused.task_id, inputs={"1.0.1": nested})
        await agent(log, "There.").resume(paused.task_id, inputs={"1.0.1": "Oslo"})


async def test_client_call_is_not_asked_again_after_a_crash_after_the_answer(log: MemoryEventLog) -> None:  # L89, L106
    paused = await agent(log, call("locate")).run("Where?", client_tools=[LOCATE])
    await agent(log, "There.").resume(paused.task_id, inputs={"1.0.1": "Oslo"})
    events = await log.read(paused.task_id)
    answered = next(event.seq for event in events if isinstance(event, InputReceivedEvent))
    finished = next(event.seq for event in events if isinstance(event, ToolCompleteEvent))
    assert finished - answered == 2, "the answer, the start of the call, its end"

    for seq in range(answered, finished + 1):
        truncated_log = await copy_first_events(log, paused.task_id, seq)
        run = agent(truncated_log, "There.").resume(paused.task_id)
        kinds = [event.kind for event in await collect(run.pipe(op.grammar()))]
        assert "input-required" not in kinds
        assert shape((await run).messages) == ["user: Where?", "assistant: locate", "tool: Oslo", "assistant: There."]


async def test_callback_is_called_again_after_a_crash_during_the_callback(log: MemoryEventLog) -> None:  # L106
    completion = await agent(log, call("locate"), "There.").run(
        "Where?", client_tools=[LOCATE], on_input=lambda q: "Oslo"
    )
    log = await log_after_crash(log, completion.task_id, InputRequiredEvent)
    required: list[str] = []

    result = await agent(log, "There.").resume(
        completion.task_id, on_input=lambda question: required.append(question.input_id) or "Bergen"
    )
    assert required == ["1.0.1"]
    assert results(result.messages) == ["Bergen"]


def test_client_tool_callback_has_a_timeout() -> None:  # L114
    slow = client_tool("slow", timeout=5)

    async def never_answer(question: Any) -> Any:
        await asyncio.Event().wait()

    async def main() -> None:
        run = agent(None, call("slow"), "Too slow.", tools=[slow]).run("Go", on_input=never_answer)
        assert results((await run).messages) == ["slow timed out after 5 s."]
        await assert_no_tasks()

    with virtual_time() as time:
        time.run(main())


async def test_new_message_drops_pending_client_calls(log: MemoryEventLog) -> None:  # L100
    asking_agent = agent(log, BOTH, "Never mind.")
    paused = await asking_agent.run("Where am I?", client_tools=[show_map, LOCATE], context_id="c")
    assert len(paused.pending) == 2
    result = await asking_agent.run("Forget it.", context_id="c")

    assert is_well_formed(result.messages)
    assert results(result.messages) == ["The call was cancelled before it had a result."] * 2
    with pytest.raises(InvalidInput, match="dropped its questions"):
        await asking_agent.resume(paused.task_id, inputs={"1.1.1": "Oslo"})


async def test_answer_is_durable_before_the_tool_continues(log: MemoryEventLog) -> None:
    durable: list[bool] = []

    async def transfer(ctx: RunContext[Any]) -> str:
        """Asks, and pays."""
        await ctx.ask("Really?")
        durable.append(any(isinstance(event, InputReceivedEvent) for event in await log.read(ctx.task_id)))
        return "paid"

    async def confirm(question: Any) -> bool:
        await asyncio.sleep(0.1)
        return True

    await agent(log, call("transfer"), "Paid.", tools=[transfer]).run("Pay", on_input=confirm)
    assert durable == [True]
