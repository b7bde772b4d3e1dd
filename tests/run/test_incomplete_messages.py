"""Incomplete messages: calls are neither executed nor accepted as answers.  # P1"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from pydantic import BaseModel

from rxloop import (
    Agent,
    Event,
    InputRequiredEvent,
    MemoryEventLog,
    ModelSettings,
    RunError,
    Signal,
    ToolCompleteEvent,
    ToolRequest,
    ToolStartEvent,
    client_tool,
    op,
    tool,
)
from rxloop.providers import fallback, hedge, limited, routed
from rxloop.strategies import StrategyRun, strategy
from rxloop.testing import ScriptedModel, call, turn
from support.http_server import Reply, delta, sse, start_server
from support.nested_agents import check_attempts
from support.runs import collect, copy_first_events
from support.vendors.vendor_answers import APIS, FILTER, LENGTH, NORMAL, ModelAnswer, model, reply


class WipeTool:
    """Destructive tool that records its calls."""

    def __init__(self, **options: Any) -> None:
        self.wiped: list[str] = []

        @tool(**options)
        def wipe(pattern: str = "*") -> str:
            """Delete files."""
            self.wiped.append(pattern)
            return "done"

        self.tool = wipe


def results(events: list[Event]) -> list[ToolCompleteEvent]:
    return [event for event in events if isinstance(event, ToolCompleteEvent)]


async def run_over_http(
    api: str, stream: bool, *answers: ModelAnswer, **options: Any
) -> tuple[Any, list[Event], list[Any]]:
    """Run an agent against a server and return outcome, events and request bodies."""
    async with start_server() as server:
        server.answer(*(reply(api, content, stream=stream) for content in answers))
        provider = model(api, server, stream=stream)
        async with Agent(provider, **options) as agent:
            run = agent.run("Clean up", settings=ModelSettings(max_tokens=300))
            events = await collect(run)
            try:
                outcome: Any = await run
            except RunError as error:
                outcome = error
        await provider.aclose()
        await server.all_closed.wait()
        return outcome, events, [received.raw.decode() for received in server.requests]


@pytest.mark.parametrize("arguments", ["", "{}", '{"pattern": "*.tmp"}', '{"pattern": "*.t'])
@pytest.mark.parametrize(("api", "stream"), APIS)
async def test_call_of_a_truncated_message_is_not_executed(api: str, stream: bool, arguments: str) -> None:  # P1
    wiper = WipeTool()
    truncated = ModelAnswer(calls=[("wipe", arguments)], finish=LENGTH[api])
    result, events, requests = await run_over_http(
        api, stream, truncated, ModelAnswer("Stopped.", finish=NORMAL[api]), tools=[wiper.tool]
    )

    assert result.output == "Stopped."
    assert wiper.wiped == []
    assert not any(isinstance(event, ToolStartEvent) for event in events)
    [refused] = results(events)
    assert not refused.success
    assert "truncated" in refused.content
    assert "max_tokens=300" in refused.content
    assert "wipe was not executed" in refused.content
    assert "max_tokens=300" in requests[1]
    assert "valid JSON" not in requests[1]
    check_attempts(events)


@pytest.mark.parametrize(("api", "stream"), APIS)
async def test_filtered_message_ends_the_run_and_closes_its_calls(api: str, stream: bool) -> None:  # P1
    wiper = WipeTool()
    filtered = ModelAnswer("Well,", calls=[("wipe", '{"pattern": "a"}')], finish=FILTER[api])
    result, events, requests = await run_over_http(api, stream, filtered, tools=[wiper.tool])

    assert (result.state, result.finish_reason, result.content) == ("completed", "content_filter", "Well,")
    assert wiper.wiped == []
    assert len(requests) == 1
    assert [event.success for event in results(events)] == [False]
    assert [message.role for message in result.messages] == ["user", "assistant", "tool"]
    check_attempts(events)


@pytest.mark.parametrize(
    "raw",
    ["weird", "", "MALFORMED_FUNCTION_CALL", "function_call_filter: MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL"],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_call_of_a_message_with_another_finish_reason_is_not_executed(raw: str, stream: bool) -> None:  # P1, P9
    wiper = WipeTool()
    arguments = "" if raw == "" else '{"pattern": "a"}'
    result, events, requests = await run_over_http(
        "chat",
        stream,
        ModelAnswer(calls=[("wipe", arguments)], finish=raw),
        ModelAnswer("No.", finish="stop"),
        tools=[wiper.tool],
    )

    assert result.output == "No."
    assert wiper.wiped == []
    assert raw in results(events)[0].content
    assert "was not executed" in requests[1]


@pytest.mark.parametrize(("api", "stream"), [case for case in APIS if case[0] in ("chat", "messages")])
@pytest.mark.parametrize(
    ("arguments", "is_executed"), [('{"pattern": "a"}', True), ("{}", True), ("", False), ('{"p', False)]
)
async def test_call_without_finish_reason_is_executed_only_if_its_arguments_are_complete(
    api: str, stream: bool, arguments: str, is_executed: bool
) -> None:  # P1: Snowflake never sends a finish reason, but ends its answers
    if api == "messages" and not stream:
        # This API sends arguments as an object, which cannot be truncated.
        arguments, is_executed = '{"pattern": "a"}', True
    wiper = WipeTool()
    result, events, _ = await run_over_http(
        api,
        stream,
        ModelAnswer(calls=[("wipe", arguments)]),
        ModelAnswer("Done.", finish=NORMAL[api]),
        tools=[wiper.tool],
    )

    assert result.output == "Done."
    assert bool(wiper.wiped) is is_executed
    assert results(events)[0].success is is_executed
    assert is_executed or "did not report that it was complete" in results(events)[0].content


@pytest.mark.parametrize(("api", "stream"), APIS)
@pytest.mark.parametrize("arguments", ["", "{}"])
async def test_call_without_arguments_is_executed_when_the_message_is_complete(
    api: str, stream: bool, arguments: str
) -> None:  # P1
    wiper = WipeTool()
    finish = {"chat": "tool_calls", "messages": "tool_use", "gemini": "STOP", "responses": "completed"}[api]
    result, _, _ = await run_over_http(
        api,
        stream,
        ModelAnswer(calls=[("wipe", arguments)], finish=finish),
        ModelAnswer("Ok.", finish=NORMAL[api]),
        tools=[wiper.tool],
    )

    assert result.output == "Ok."
    assert wiper.wiped == ["*"]


class Report(BaseModel):
    title: str = "nothing"
    size: int = 0


@pytest.mark.parametrize("stream", [True, False])
async def test_truncated_call_of_the_output_tool_is_not_an_answer(stream: bool) -> None:  # P1
    answers = [
        ModelAnswer(calls=[("final_answer", "")], finish="length"),
        ModelAnswer(calls=[("final_answer", '{"title": "a"}')], finish="stop"),
    ]
    result, _, requests = await run_over_http("chat", stream, *answers, output_type=Report, output_mode="tool")

    assert result.output == Report(title="a")
    assert "max_tokens=300" in requests[1]


async def test_run_fails_with_code_truncated_when_every_output_call_is_truncated() -> None:  # P1, P2
    answer = turn(calls=[call("final_answer")], finish_reason="length")
    model = ScriptedModel(*[answer] * 5)
    with pytest.raises(RunError, match="truncated") as caught:
        await Agent(model, output_type=Report, output_mode="tool").run("?", settings=ModelSettings(max_tokens=7))

    assert caught.value.code == "truncated"
    assert "max_tokens=7" in str(caught.value)
    assert len(model.requests) == 3


@pytest.mark.parametrize("finish", ["length", "weird"])
async def test_call_of_an_incomplete_message_does_not_request_approval(finish: str) -> None:  # P1
    wiper = WipeTool(approve=True)
    model = ScriptedModel(turn(calls=[call("wipe")], finish_reason=finish), "No.")
    run = Agent(model, tools=[wiper.tool]).run("?")
    events = await collect(run)

    assert (await run).output == "No."
    assert not any(isinstance(event, InputRequiredEvent) for event in events)
    assert wiper.wiped == []


async def test_call_of_an_incomplete_message_is_not_passed_to_a_client() -> None:  # P1
    locate = client_tool("locate", {"type": "object", "properties": {}}, description="Find the user.")
    model = ScriptedModel(turn(calls=[call("locate")], finish_reason="length"), "No.")
    result = await Agent(model, tools=[locate]).run("?")

    assert result.pending == []
    assert result.output == "No."


async def test_guards_do_not_see_calls_of_an_incomplete_message() -> None:  # P1
    names: list[str] = []

    @op.on(ToolRequest)
    async def guard(request: ToolRequest, ctx: Any) -> AsyncIterator[Signal]:
        names.append(request.call.name)
        yield request

    wiper = WipeTool()
    model = ScriptedModel(turn(calls=[call("wipe")], finish_reason="length"), "No.")
    await Agent(model, tools=[wiper.tool], loop=op.standard(before_tools=[guard])).run("?")

    assert names == []
    assert wiper.wiped == []


@pytest.mark.parametrize("last_kind", ["llm-call", "content-complete", "tool-complete"])
async def test_resumed_run_does_not_execute_calls_of_an_incomplete_message(last_kind: str) -> None:  # P1
    log, wiper = MemoryEventLog(), WipeTool()
    truncated = turn(calls=[call("wipe")], finish_reason="length")
    run = Agent(ScriptedModel(truncated, "No."), tools=[wiper.tool], log=log).run("?")
    events = [event for event in await collect(run) if event.durable]
    truncated_log = await copy_first_events(log, run.task_id, [event.kind for event in events].index(last_kind) + 1)
    answers = [truncated, "No."] if last_kind == "llm-call" else ["No."]
    resumed = Agent(ScriptedModel(*answers), tools=[wiper.tool], log=truncated_log).resume(run.task_id)
    result = await resumed

    assert result.output == "No."
    assert wiper.wiped == []
    assert "truncated" in result.messages[2].text


async def test_fork_does_not_execute_calls_of_an_incomplete_message() -> None:  # P1
    log, wiper = MemoryEventLog(), WipeTool()
    agent = Agent(
        ScriptedModel(turn(calls=[call("wipe")], finish_reason="length"), "No.", "No."), tools=[wiper.tool], log=log
    )
    run = agent.run("?")
    events = [event for event in await collect(run) if event.durable]
    complete = next(event for event in events if event.kind == "content-complete")
    result = await agent.fork(run.task_id, at=complete.seq)

    assert result.output == "No."
    assert wiper.wiped == []


async def test_truncated_call_on_a_branch_of_a_strategy_is_not_executed() -> None:  # P1
    @strategy
    async def ask_with_tools(run: StrategyRun) -> str:
        return (await run.ask("Think.", tools=True, branch="twice/1")).text

    wiper = WipeTool()
    model = ScriptedModel(turn(calls=[call("wipe")], finish_reason="length"), "No.")
    result = await Agent(model, tools=[wiper.tool], strategy=ask_with_tools).run("?")

    assert result.output == "No."
    assert wiper.wiped == []


async def test_nested_agent_does_not_execute_calls_of_a_truncated_message() -> None:  # P1
    wiper = WipeTool()
    inner = Agent(
        ScriptedModel(turn(calls=[call("wipe")], finish_reason="length"), "Not done."), name="inner", tools=[wiper.tool]
    )
    outer = Agent(ScriptedModel([call("inner", prompt="go")], "No."), tools=[inner.as_tool()])
    result = await outer.run("?")

    assert result.output == "No."
    assert wiper.wiped == []


@pytest.mark.parametrize("content", ["", "Some text"])
async def test_unknown_finish_reason_is_reported(content: str) -> None:  # P9
    run = Agent(ScriptedModel(turn(content, finish_reason="weird", raw_finish_reason="weird"))).run("?")
    if content:
        assert (await run).finish_reason == "weird"
    else:
        with pytest.raises(RunError, match="weird"):
            await run


@pytest.mark.parametrize(
    ("api", "settings"),
    [
        ("messages", ModelSettings()),
        ("messages", ModelSettings(max_tokens=10_000_000)),
        ("chat", ModelSettings(extra_body={"max_completion_tokens": 55})),
        ("responses", ModelSettings(max_tokens=70, extra_body={"max_output_tokens": 55})),
        ("gemini", ModelSettings(extra_body={"generationConfig": {"maxOutputTokens": 55}})),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_truncation_note_states_the_token_limit_of_the_request(
    api: str, settings: ModelSettings, stream: bool
) -> None:  # P1
    wiper = WipeTool()
    answers = ModelAnswer(calls=[("wipe", "{}")], finish=LENGTH[api]), ModelAnswer("No.", finish=NORMAL[api])
    async with start_server() as server:
        server.answer(*(reply(api, content, stream=stream) for content in answers))
        provider = model(api, server, stream=stream)
        async with Agent(provider, tools=[wiper.tool], settings=settings) as agent:
            result = await agent.run("Clean up")
        await provider.aclose()
        await server.all_closed.wait()

    limit = server.requests[0].body["max_tokens"] if api == "messages" else 55
    assert wiper.wiped == []
    assert f"of {limit} tokens (max_tokens={limit})" in result.messages[2].text


async def test_truncated_answer_without_token_limit_completes() -> None:  # P1
    result, _, _ = await run_over_http(
        "chat", True, ModelAnswer("half", finish="length"), settings=ModelSettings(temperature=0)
    )
    assert result.finish_reason == "length"


@pytest.mark.parametrize(
    "make",
    [
        fallback,
        lambda model: hedge(model, ScriptedModel("late"), after=60),
        lambda model: routed(lambda request: model),
        lambda model: limited(model, concurrent=1),
        lambda model: fallback(routed(lambda request: limited(model, concurrent=1))),
    ],
)
async def test_combined_models_keep_the_finish_reason(make: Any) -> None:  # P1
    wiper = WipeTool()
    inner = ScriptedModel(turn(calls=[call("wipe")], finish_reason="length", raw_finish_reason="max_tokens"), "No.")
    result = await Agent(make(inner), tools=[wiper.tool], settings=ModelSettings(max_tokens=7)).run("?")

    assert result.output == "No."
    assert wiper.wiped == []
    assert "max_tokens=7" in result.messages[2].text


async def test_recorded_model_keeps_the_finish_reason() -> None:  # P1
    wiper = WipeTool()
    truncated = turn(calls=[call("wipe")], finish_reason="length", raw_finish_reason="max_tokens")
    run = Agent(ScriptedModel(truncated, "No."), tools=[wiper.tool], settings=ModelSettings(max_tokens=7)).run("?")
    events = await collect(run)
    first = await run
    replayed = await Agent(ScriptedModel.from_events(events), tools=[wiper.tool]).run("?")

    assert replayed.output == "No."
    assert wiper.wiped == []
    assert replayed.messages[2].text == first.messages[2].text
    assert "max_tokens=7" in first.messages[2].text


@pytest.mark.parametrize("item_status", ["incomplete"])
@pytest.mark.parametrize("stream", [True, False])
async def test_incomplete_function_call_item_is_not_executed_when_the_response_is_completed(
    item_status: str, stream: bool
) -> None:  # P1
    wiper = WipeTool()
    item = {
        "type": "function_call",
        "id": "f0",
        "call_id": "c0",
        "name": "wipe",
        "arguments": "",
        "status": item_status,
    }
    response = {"id": "r1", "object": "response", "output": [item], "status": "completed"}
    events = [
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "status": "in_progress"}},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": response},
    ]
    body = (
        Reply(sse(*events, done=False)) if stream else Reply([orjson.dumps(response)], content_type="application/json")
    )
    async with start_server() as server:
        server.answer(body, reply("responses", ModelAnswer("No.", finish="completed"), stream=stream))
        provider = model("responses", server, stream=stream)
        result = await Agent(provider, tools=[wiper.tool]).run("?")
        await provider.aclose()
        await server.all_closed.wait()

    assert result.output == "No."
    assert wiper.wiped == []


@pytest.mark.parametrize(("api", "stream"), APIS)
async def test_no_call_of_a_truncated_message_is_executed(api: str, stream: bool) -> None:  # P1
    wiper = WipeTool(read_only=True)
    calls = [("wipe", '{"pattern": "a"}'), ("wipe", '{"pat')]
    result, events, _ = await run_over_http(
        api,
        stream,
        ModelAnswer("First,", calls=calls, finish=LENGTH[api]),
        ModelAnswer("No.", finish=NORMAL[api]),
        tools=[wiper.tool],
    )

    assert result.output == "No."
    assert wiper.wiped == []
    assert [event.success for event in results(events)] == [False, False]


@pytest.mark.parametrize("order", ["null after", "usage after", "calls after", "empty after"])
async def test_finish_reason_counts_when_chunks_follow_it(order: str) -> None:  # P1
    wiper = WipeTool()
    calls = delta(tool_calls=[{"index": 0, "id": "c", "function": {"name": "wipe", "arguments": "{}"}}])
    usage = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 300}}
    chunks = {
        "null after": [calls, delta("length"), delta()],
        "usage after": [calls, delta("length"), usage],
        "calls after": [delta("length"), calls, usage],
        "empty after": [calls, delta("length"), delta("")],
    }[order]
    async with start_server() as server:
        server.answer(Reply(sse(*chunks)), reply("chat", ModelAnswer("No.", finish="stop"), stream=True))
        provider = model("chat", server, stream=True)
        result = await Agent(provider, tools=[wiper.tool]).run("?")
        await provider.aclose()
        await server.all_closed.wait()

    assert result.output == "No."
    assert wiper.wiped == []
