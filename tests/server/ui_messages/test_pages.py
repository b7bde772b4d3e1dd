"""Pages based on `useChat`, with the official AI SDK packages."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from rxloop import Agent, Limits, RunContext, client_tool, tool
from rxloop.errors import ServerError
from rxloop.testing import ScriptedModel, call, frames, turn
from support.clients.ai_sdk import join_text, select_parts, serve_pages

pytestmark = pytest.mark.service("node-clients")


@tool
async def weather(city: str) -> dict[str, Any]:
    """Current weather."""
    return {"city": city, "celsius": 7}


@tool(approve=True)
async def refund(order: str) -> str:
    """Refund an order."""
    return f"refunded {order}"


def make_agent(*turns: Any, **options: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(*turns), tools=[weather, refund], name="clerk", **options)


async def test_page_shows_text_and_calls_as_one_message_with_the_id_of_the_run() -> None:
    async with serve_pages(make_agent(call("weather", city="Oslo"), frames("-It is -7 C.|", 0.001))) as served:
        page = await served.page()
        screen = await page.send("Weather?")
        [run] = await served.runtime.log.list_runs()
    assert screen["status"] == "ready"
    assert [message["role"] for message in screen["messages"]] == ["user", "assistant"]
    message = screen["messages"][-1]
    assert message["id"] == run.task_id
    assert message["metadata"]["rxloop"]["state"] == "completed"
    assert join_text(screen) == "It is 7 C."
    [part] = select_parts(screen, "dynamic-tool")
    assert part["toolName"] == "weather"
    assert part["state"] == "output-available"
    assert part["input"] == {"city": "Oslo"}
    assert part["output"] == {"city": "Oslo", "celsius": 7}
    assert screen["finished"] == [{"finishReason": "stop", "isError": False, "isDisconnect": False}]


BOTH = ["tools", "approvals"]
DONE = {"rxloop"}
show_map = client_tool("show_map", {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]})


def call_states(screen: Any) -> list[str]:
    return [part["state"] for part in select_parts(screen) if "toolCallId" in part]


def count_posts(screen: Any) -> int:
    return len([request for request in screen["requests"] if request["method"] == "POST"])


@pytest.mark.parametrize(("approved", "state"), [(True, "output-available"), (False, "output-denied")])
async def test_call_that_needs_approval_waits_for_the_person(approved: bool, state: str) -> None:
    async with serve_pages(make_agent(call("refund", order="A1"), "As you like.")) as served:
        page = await served.page(auto=BOTH)
        screen = await page.send("Refund A1")
        [part] = select_parts(screen, "dynamic-tool")
        assert part["state"] == "approval-requested"
        assert part["approval"]["descriptor"] == {"prompt": 'Call refund with order: "A1"?'}
        assert screen["messages"][-1]["metadata"]["rxloop"]["state"] == "input-required"
        screen = await page.do("approve", answers=[[part["approval"]["id"], approved]])
        reloaded = await (await served.page("other")).do("resume")
    assert call_states(screen) == [state]
    assert join_text(screen) == "As you like."
    assert len(screen["messages"]) == 2
    assert screen["errors"] == []
    assert count_posts(screen) == 2
    assert reloaded["messages"] == []


async def test_several_approvals_are_answered_together() -> None:
    calls = [call("refund", order=order) for order in ("A1", "A2", "A3")]
    async with serve_pages(make_agent(calls, "Done.")) as served:
        page = await served.page(auto=BOTH)
        screen = await page.send("Refund all")
        ids = [part["approval"]["id"] for part in select_parts(screen, "dynamic-tool")]
        screen = await page.do("approve", answers=[[ids[0], True], [ids[1], False], [ids[2], True]])
    assert call_states(screen) == ["output-available", "output-denied", "output-available"]
    outputs = [part.get("output") for part in select_parts(screen, "dynamic-tool")]
    assert outputs == ["refunded A1", None, "refunded A3"]
    assert count_posts(screen) == 2
    assert join_text(screen) == "Done."
    assert screen["errors"] == []


@pytest.mark.parametrize("is_passed", [False, True], ids=["agent definition", "page definition"])
async def test_page_executes_its_tool_and_posts_the_result_automatically(is_passed: bool) -> None:
    agent_options: Any = {} if is_passed else {"tools": [show_map]}
    clerk = Agent(ScriptedModel(call("show_map", city="Oslo"), "There it is."), name="clerk", **agent_options)
    options: Any = {"body": {"tools": [show_map.to_definition()]}} if is_passed else {}
    async with serve_pages(clerk) as served:
        page = await served.page(auto=BOTH, answers={"show_map": {"output": {"shown": True}}})
        screen = await page.send("Map", **options)
    assert count_posts(screen) == 2
    assert join_text(screen) == "There it is."
    assert screen["errors"] == []
    [part] = select_parts(screen, "tool-show_map")
    assert part["state"] == "output-available"
    assert part["output"] == {"shown": True}
    assert part["providerExecuted"] is False
    assert [each["input"] for each in screen["calls"]] == [{"city": "Oslo"}]


async def test_result_of_a_page_tool_and_an_approval_are_posted_once() -> None:
    calls = [call("refund", order="A1"), call("show_map", city="Oslo")]
    clerk = Agent(ScriptedModel(calls, "Done."), tools=[refund, show_map], name="clerk")
    async with serve_pages(clerk) as served:
        page = await served.page(auto=BOTH, answers={"show_map": {"output": {"shown": True}}})
        waiting = await page.send("Both")
        [approval] = [part for part in select_parts(waiting, "dynamic-tool") if part["state"] == "approval-requested"]
        screen = await page.do("approve", answers=[[approval["approval"]["id"], True]])
        async with httpx.AsyncClient(headers={"authorization": "Bearer ann-key"}) as client:
            [_, reloaded] = (await client.get(f"{served.api}/chat-1")).json()
    assert count_posts(waiting) == 2
    assert waiting["errors"] == []
    assert waiting["status"] == "ready"
    assert count_posts(screen) == 3
    assert screen["errors"] == []
    assert join_text(screen) == "Done."
    assert sorted(call_states(screen)) == ["output-available", "output-available"]
    assert select_parts({"messages": [reloaded]}, "tool-show_map") == select_parts(screen, "tool-show_map")


async def test_failed_page_tool_reports_its_error() -> None:
    clerk = Agent(ScriptedModel(call("show_map", city="Oslo"), "No map."), tools=[show_map], name="clerk")
    async with serve_pages(clerk) as served:
        page = await served.page(auto=BOTH, answers={"show_map": {"state": "output-error", "errorText": "no map here"}})
        screen = await page.send("Map")
        [run] = await served.runtime.log.list_runs()
        events = await served.runtime.log.read(run.task_id)
    assert [event.content for event in events if event.kind == "tool-complete"] == ["no map here"]  # pyright: ignore[reportAttributeAccessIssue]
    assert call_states(screen) == ["output-error"]
    assert join_text(screen) == "No map."


async def test_invalid_call_of_a_client_tool_is_not_executed() -> None:
    clerk = Agent(ScriptedModel(call("show_map"), "I see."), tools=[show_map], name="clerk")
    async with serve_pages(clerk) as served:
        page = await served.page(auto=BOTH, answers={"show_map": {"output": {"shown": True}}})
        screen = await page.send("Map")
    assert screen["calls"] == []
    assert call_states(screen) == ["output-error"]
    assert count_posts(screen) == 1


@pytest.mark.parametrize("tools", [[weather], [show_map]], ids=["agent tool", "page tool"])
async def test_run_that_ends_with_a_tool_call_is_not_posted_again(tools: list[Any]) -> None:
    name = tools[0].definition.name
    turns = [call(name, city="Oslo"), call(name, city="Bergen"), "never"]
    clerk = Agent(ScriptedModel(*turns), tools=tools, limits=Limits(iterations=1), name="clerk")
    async with serve_pages(clerk) as served:
        page = await served.page(auto=["tools"], answers={"show_map": {"output": 1}})
        screen = await page.send("Weather?")
    assert count_posts(screen) == (1 if tools == [weather] else 2)
    assert screen["finished"][-1]["finishReason"] == "other"
    assert screen["messages"][-1]["metadata"]["rxloop"]["reason"] == "max_iterations"


async def test_question_of_a_tool_is_a_data_part_answered_by_the_body() -> None:
    @tool
    async def book(ctx: RunContext[Any]) -> str:
        """Book a room."""
        return f"booked for {await ctx.ask('How many?', int)}"

    clerk = Agent(ScriptedModel(call("book"), "Booked."), tools=[book], name="clerk")
    async with serve_pages(clerk) as served:
        page = await served.page()
        screen = await page.send("Book")
        [question] = select_parts(screen, "data-input-required")
        assert question["data"]["prompt"] == "How many?"
        refused = await page.send(body={"inputs": {question["id"]: "many"}})
        screen = await page.send(body={"inputs": {question["id"]: 2}})
    assert refused["status"] == "error"
    assert "does not answer" in refused["errors"][-1]
    [question] = select_parts(screen, "data-input-required")
    assert question["data"]["waits"] is False
    assert [part["output"] for part in select_parts(screen, "dynamic-tool")] == ["booked for 2"]
    assert join_text(screen) == "Booked."


async def test_stopped_page_leaves_the_run_and_can_reconnect() -> None:
    go, wait = make_gate()
    turns = [turn("one two ", calls=[call("wait")]), "three"]
    async with serve_pages(Agent(ScriptedModel(*turns), tools=[wait], name="clerk")) as served:
        page = await served.page()
        await page.send("Count", wait=False)
        await page.do("until", characters=4)
        stopped = await page.do("stop")
        assert stopped["status"] == "ready"
        assert stopped["errors"] == []
        await page.do("start_resume")
        await page.do("streaming")
        go.set()
        screen = await page.do("settled")
    assert join_text(screen) == "one two three"
    assert len(screen["messages"]) == 2


def make_gate() -> tuple[asyncio.Event, Any]:
    """Create a tool that waits for an event."""
    go = asyncio.Event()

    @tool
    async def wait() -> None:
        """Wait."""
        await go.wait()

    return go, wait


async def test_run_can_be_cancelled_from_the_page() -> None:
    async with serve_pages(make_agent(frames("-one -two -three -four |", 0.05))) as served:
        page = await served.page()
        await page.send("Count", wait=False)
        await page.do("until", characters=4)
        async with httpx.AsyncClient(headers={"authorization": "Bearer ann-key"}) as client:
            assert (await client.post(f"{served.api}/chat-1/stop")).status_code == 204
        screen = await page.do("settled")
    assert screen["messages"][-1]["metadata"]["rxloop"]["state"] == "canceled"
    assert screen["status"] == "ready"
    assert screen["errors"] == []
    assert {part["state"] for part in select_parts(screen, "text")} == {"done"}


async def test_disconnect_cancels_the_run_if_configured() -> None:
    async with serve_pages(make_agent(frames("-one -two -three -four |", 0.05)), on_disconnect="cancel") as served:
        page = await served.page()
        await page.send("Count", wait=False)
        await page.do("until", characters=4)
        await page.do("stop")
        [run] = await served.runtime.log.list_runs()
        async for _ in served.runtime.log.follow(run.task_id):
            pass
        assert (await served.runtime.get_record(run.task_id)).state == "canceled"


async def test_failed_run_is_an_error_of_the_page_with_a_public_message() -> None:
    async with serve_pages(make_agent(ServerError("http://10.0.0.1/key=sk-123"))) as served:
        screen = await (await served.page()).send("Hi")
    assert screen["status"] == "error"
    assert screen["errors"] == ["The model provider failed."]


async def test_regenerated_answer_replaces_the_previous_one() -> None:
    model = ScriptedModel("One.", "Two.", "Three.")
    async with serve_pages(Agent(model, name="clerk")) as served:
        page = await served.page()
        await page.send("First")
        await page.send("Second")
        screen = await page.do("regenerate")
        stored = await read_history(served)
    texts = [message["parts"][-1]["text"] for message in screen["messages"]]
    assert texts == ["First", "One.", "Second", "Three."]
    assert [message["id"] for message in stored] == [message["id"] for message in screen["messages"]]
    prompts = [message.text for message in model.requests[-1].messages if message.role != "system"]
    assert prompts == ["First", "One.", "Second"]


async def test_edited_message_replaces_everything_after_it() -> None:
    model = ScriptedModel("One.", "Two.", "Three.", "Four.")
    async with serve_pages(Agent(model, name="clerk")) as served:
        page = await served.page()
        screen = await page.send("First")
        first = screen["messages"][0]["id"]
        await page.send("Second")
        await page.do("send", message={"text": "Other", "messageId": first})
        screen = await page.send("And")
        stored = await read_history(served)
    assert [message["parts"][-1]["text"] for message in screen["messages"]] == ["Other", "Three.", "And", "Four."]
    assert [message["id"] for message in stored] == [message["id"] for message in screen["messages"]]
    assert [message.text for message in model.requests[-1].messages if message.role != "system"] == [
        "Other",
        "Three.",
        "And",
    ]


async def read_history(served: Any, chat: str = "chat-1", token: str = "ann-key") -> Any:
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {token}"}) as client:
        return (await client.get(f"{served.api}/{chat}")).json()


async def test_reloaded_page_has_the_same_messages() -> None:
    turns = [call("weather", city="Oslo"), "7 C.", call("refund", order="A1"), "Refunded.", "And?"]
    async with serve_pages(make_agent(*turns)) as served:
        page = await served.page(auto=BOTH)
        await page.send("Weather?")
        screen = await page.send("Refund A1")
        approval_id = select_parts(screen, "dynamic-tool")[-1]["approval"]["id"]
        screen = await page.do("approve", answers=[[approval_id, True]])
        stored = await read_history(served)
        again = await (await served.page("again", messages=stored)).send("So?")
    select_parts(screen, "dynamic-tool")[-1]["approval"].pop("approved")
    assert stored == screen["messages"]
    assert join_text(again) == "And?"


async def test_repeated_post_starts_one_run() -> None:
    model = ScriptedModel("One.", "Two.")
    message = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Hi"}]}
    body = {"id": "chat-1", "messages": [message], "trigger": "submit-message"}
    async with serve_pages(Agent(model, name="clerk")) as served:
        async with httpx.AsyncClient(headers={"authorization": "Bearer ann-key"}) as client:
            first, second = [await client.post(served.api, json=body) for _ in range(2)]
    assert first.text == second.text
    assert len(model.requests) == 1


async def test_lost_messages_are_sent_with_the_next_one() -> None:
    model = ScriptedModel("One.", "Two.")
    messages = [{"id": f"m{n}", "role": "user", "parts": [{"type": "text", "text": f"T{n}"}]} for n in range(3)]
    async with serve_pages(Agent(model, name="clerk")) as served:
        async with httpx.AsyncClient(headers={"authorization": "Bearer ann-key"}) as client:
            await client.post(served.api, json={"id": "chat-1", "messages": messages[:1]})
            await client.post(served.api, json={"id": "chat-1", "messages": messages})
    texts = [message.text for message in model.requests[-1].messages if message.role != "system"]
    assert texts == ["T0", "One.", "T1", "T2"]


async def test_files_are_sent_to_the_model() -> None:
    model = ScriptedModel("Nice.")
    parts = [
        {"type": "text", "text": "Look"},
        {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,iVBORw0KGgo="},
        {"type": "file", "mediaType": "application/pdf", "url": "https://example.org/a.pdf", "filename": "a.pdf"},
    ]
    async with serve_pages(Agent(model, name="clerk")) as served:
        page = await served.page()
        screen = await page.do("send", message={"parts": parts})
        stored = await read_history(served)
    assert join_text(screen) == "Nice."
    content: Any = model.requests[-1].messages[-1].content
    assert [part.type for part in content] == ["text", "image", "file"]
    assert content[1].data == b"\x89PNG\r\n\x1a\n"
    assert stored[0]["parts"] == parts


async def test_result_with_a_dangerous_key_does_not_end_the_stream() -> None:
    @tool
    async def odd() -> dict[str, Any]:
        """Odd."""
        return {"__proto__": {"a": 1}, "constructor": {"prototype": 1, "b": 2}, "prototype": 3, "text": '"__proto__"'}

    clerk = Agent(ScriptedModel(call("odd"), "Done."), tools=[odd], name="clerk")
    async with serve_pages(clerk) as served:
        screen = await (await served.page()).send("Odd?")
    [part] = select_parts(screen, "dynamic-tool")
    assert part["output"] == {"constructor": {"b": 2}, "prototype": 3, "text": '"__proto__"'}
    assert join_text(screen) == "Done."
    assert screen["errors"] == []


async def test_two_questions_for_the_same_tool_have_separate_answers() -> None:
    turns = [call("refund", order="A1"), call("refund", order="A2"), "Done."]
    async with serve_pages(make_agent(*turns)) as served:
        page = await served.page(auto=BOTH)
        await page.send("Refund A1")
        screen = await page.send("No, A2")
        ids = [
            part["approval"]["id"] for message in screen["messages"] for part in message["parts"] if "approval" in part
        ]
        assert len({*ids}) == 2
        screen = await page.do("approve", answers=[[ids[1], True]])
    assert [part["output"] for part in select_parts(screen, "dynamic-tool")] == ["refunded A2"]


async def test_reloaded_page_does_not_execute_its_tool_again() -> None:
    go, wait = make_gate()
    model = ScriptedModel(call("show_map", city="Oslo"), turn("There ", calls=[call("wait")]), "it is.")
    async with serve_pages(Agent(model, tools=[show_map, wait], name="clerk")) as served:
        page = await served.page(auto=BOTH)
        screen = await page.send("Map")
        slot = select_parts(screen, "tool-show_map")[0]["toolCallId"]
        await page.do("send_output", tool="show_map", toolCallId=slot, output={"shown": True})
        await page.do("until", characters=3)
        other = await served.page("other", auto=BOTH, answers={"show_map": {"output": {"shown": True}}})
        await other.do("start_resume")
        await other.do("streaming")
        go.set()
        reloaded = await other.do("settled")
        screen = await page.do("settled")
    assert reloaded["calls"] == []
    assert count_posts(reloaded) == 0
    assert join_text(reloaded) == "There it is."
    assert reloaded["messages"][-1] == screen["messages"][-1]


async def test_answer_can_be_regenerated_after_a_dropped_question() -> None:
    model = ScriptedModel(call("refund", order="A1"), "Two.", "Three.")
    async with serve_pages(Agent(model, tools=[refund], name="clerk")) as served:
        page = await served.page()
        await page.send("Refund A1")
        await page.send("Never mind")
        screen = await page.do("regenerate")
    assert join_text(screen) == "Three."
    assert screen["errors"] == []
    assert [message.role for message in model.requests[-1].messages if message.role != "system"] == [
        *("user", "assistant", "tool", "user")
    ]
