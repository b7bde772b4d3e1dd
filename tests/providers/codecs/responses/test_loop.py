"""Agents with OpenAI Responses over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from rxloop import Agent, MemoryEventLog, tool
from rxloop.errors import RunError
from rxloop.protocol.events import ContentDeltaEvent, LLMNoticeEvent, ToolCallDeltaEvent
from rxloop.protocol.messages import Message
from rxloop.protocol.visibility import select_public_messages
from rxloop.providers import Retry, fallback, openai_responses, resolve_model
from rxloop.testing import ScriptedModel, turn
from support.http_server import Reply, Server, sse
from support.vendors.responses import call, completed_event, item_added, item_delta, item_done, reasoning, text

pytestmark = pytest.mark.usefixtures("transport")
HM, LOOK, BYE = reasoning("Hm."), call("look", '{"at":"it"}'), text("Bye", phase="final_answer")
USAGE = {"input_tokens": 7, "output_tokens": 3}


@tool
async def look(at: str) -> str:
    """Look at something."""
    return f"{at} is a cat"


def first(**fields: Any) -> Reply:
    pieces = [item_delta("function_call_arguments", each, LOOK, 1) for each in ('{"at"', ':"it"}')]
    events = [
        item_added(HM),
        item_done(HM),
        item_added(LOOK, 1),
        *pieces,
        item_done(LOOK, 1),
        completed_event(HM, LOOK, usage=USAGE, **fields),
    ]
    return Reply(sse(*events))


def second() -> Reply:
    return Reply(
        sse(item_added(BYE), item_delta("output_text", "Bye", BYE), item_done(BYE), completed_event(BYE, usage=USAGE))
    )


def bodies(server: Server) -> list[Any]:
    return [request.body for request in server.requests]


async def test_reasoning_is_sent_back_with_the_result_but_not_published(server: Server) -> None:
    server.answer(first(), second())
    model = openai_responses("gpt-5", base_url=server.base_url, api_key="k", preset="openai_responses")
    log = MemoryEventLog()
    async with Agent(model, tools=[look], thoughts=False, log=log).run("What is it?") as run:
        events = [event async for event in run.events]
        result = await run
        assert result.output == "Bye"
    await model.aclose()
    output = {"type": "function_call_output", "call_id": "call_1", "output": "it is a cat"}
    assert bodies(server)[1]["input"] == [{"role": "user", "content": "What is it?"}, HM, LOOK, output]
    assert [event.fragment for event in events if isinstance(event, ToolCallDeltaEvent)][-2:] == ['{"at"', ':"it"}']
    assert "".join(event.delta for event in events if isinstance(event, ContentDeltaEvent)) == "Bye"
    assert "secret" in str(result.messages)
    assert "secret" not in str(select_public_messages(result.messages))


async def test_conversation_continues_from_another_vendor_and_back(server: Server) -> None:
    server.answer(second())
    model = openai_responses("gpt-5", base_url=server.base_url, api_key="k")
    elsewhere = Message(
        role="assistant", content="Hi.", reasoning="Hm.", provider_state={"anthropic_messages": [{"raw": {"x": 1}}]}
    )
    async with Agent(model, thoughts=False).run(["hi", elsewhere, "and now?"]) as run:
        events = [event async for event in run.events]
        result = await run
    await model.aclose()
    assert [event.code for event in events if isinstance(event, LLMNoticeEvent)] == ["left_out"]
    assert [item["content"] for item in bodies(server)[0]["input"]] == ["hi", "Hi.", "and now?"]
    other = ScriptedModel(turn("Again."))
    assert (await Agent(other).run([*result.messages, "again"])).output == "Again."


async def test_chain_restarts_when_the_previous_response_is_unknown(server: Server) -> None:
    refused = b'{"error":{"code":"previous_response_not_found","message":"Previous response not found."}}'
    server.answer(first(store=True), Reply([refused], status=400), second())
    model = openai_responses("gpt-5", base_url=server.base_url, api_key="k", chain=True, retry=Retry(attempts=2))
    result = await Agent(model, tools=[look], thoughts=False).run("What is it?")
    await model.aclose()
    assert result.output == "Bye"
    asked = bodies(server)
    assert [body.get("previous_response_id") for body in asked] == [None, "resp_1", None]
    assert [len(body["input"]) for body in asked] == [1, 1, 4]


async def test_failure_before_the_first_text_uses_the_fallback(server: Server) -> None:
    overloaded = {"type": "error", "code": "server_error", "message": "Oh."}
    server.answer(Reply(sse(item_added(BYE), overloaded)))
    model = openai_responses("gpt-5", base_url=server.base_url, api_key="k", retry=Retry(attempts=1))
    result = await Agent(fallback(model, ScriptedModel(turn("Me."))), thoughts=False).run("hi")
    await model.aclose()
    assert result.output == "Me."


@pytest.mark.parametrize("status", [404, 405])
async def test_error_of_a_gateway_without_responses_names_the_chat_provider(
    server: Server, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    server.answer(Reply([b"<html>no such page</html>"], status=status))
    monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
    model = resolve_model("openai:gpt-5", api_key="k")
    with pytest.raises(RunError, match="openai_chat:gpt-5"):
        await Agent(model).run("Hi")
    await model.aclose()
