"""A page with `useChat` of the AI SDK, by its official packages, over a real server."""

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


def agent(*turns: Any, **options: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(*turns), tools=[weather, refund], name="clerk", **options)


async def test_a_page_shows_text_and_tool_calls_as_one_message_whose_id_is_the_run() -> None:
    async with serve_pages(agent(call("weather", city="Oslo"), frames("-It is -7 C.|", 0.001))) as made:
        page = await made.page()
        shown = await page.send("Weather?")
        [run] = await made.runtime.log.list_runs()
    assert shown["status"] == "ready"
    assert [message["role"] for message in shown["messages"]] == ["user", "assistant"]
    message = shown["messages"][-1]
    assert message["id"] == run.task_id
    assert message["metadata"]["rxloop"]["state"] == "completed"
    assert join_text(shown) == "It is 7 C."
    [part] = select_parts(shown, "dynamic-tool")
    assert (part["toolName"], part["state"], part["input"]) == ("weather", "output-available", {"city": "Oslo"})
    assert part["output"] == {"city": "Oslo", "celsius": 7}
    assert shown["finished"] == [{"finishReason": "stop", "isError": False, "isDisconnect": False}]


BOTH = ["tools", "approvals"]
DONE = {"rxloop"}
show_map = client_tool("show_map", {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]})


def states(shown: Any) -> list[str]:
    return [part["state"] for part in select_parts(shown) if "toolCallId" in part]


def posts(shown: Any) -> int:
    return len([request for request in shown["requests"] if request["method"] == "POST"])


@pytest.mark.parametrize(("approved", "state"), [(True, "output-available"), (False, "output-denied")])
async def test_a_call_that_is_to_be_approved_waits_for_the_person(approved: bool, state: str) -> None:
    async with serve_pages(agent(call("refund", order="A1"), "As you like.")) as made:
        page = await made.page(auto=BOTH)
        shown = await page.send("Refund A1")
        [asked] = select_parts(shown, "dynamic-tool")
        assert asked["state"] == "approval-requested"
        assert asked["approval"]["descriptor"] == {"prompt": 'Call refund with order: "A1"?'}
        assert shown["messages"][-1]["metadata"]["rxloop"]["state"] == "input-required"
        shown = await page.do("approve", answers=[[asked["approval"]["id"], approved]])
        reloaded = await (await made.page("other")).do("resume")
    assert states(shown) == [state]
    assert join_text(shown) == "As you like."
    assert len(shown["messages"]) == 2
    assert (shown["errors"], posts(shown), reloaded["messages"]) == ([], 2, [])


async def test_approvals_side_by_side_are_answered_together() -> None:
    calls = [call("refund", order=order) for order in ("A1", "A2", "A3")]
    async with serve_pages(agent(calls, "Done.")) as made:
        page = await made.page(auto=BOTH)
        shown = await page.send("Refund all")
        ids = [part["approval"]["id"] for part in select_parts(shown, "dynamic-tool")]
        shown = await page.do("approve", answers=[[ids[0], True], [ids[1], False], [ids[2], True]])
    assert states(shown) == ["output-available", "output-denied", "output-available"]
    outputs = [part.get("output") for part in select_parts(shown, "dynamic-tool")]
    assert outputs == ["refunded A1", None, "refunded A3"]
    assert (posts(shown), join_text(shown), shown["errors"]) == (2, "Done.", [])


@pytest.mark.parametrize("brought", [False, True], ids=["the agent's", "the page's"])
async def test_a_tool_of_the_page_is_carried_out_there_and_its_result_goes_on_by_itself(brought: bool) -> None:
    made_of: Any = {} if brought else {"tools": [show_map]}
    clerk = Agent(ScriptedModel(call("show_map", city="Oslo"), "There it is."), name="clerk", **made_of)
    options: Any = {"body": {"tools": [show_map.as_definition()]}} if brought else {}
    async with serve_pages(clerk) as made:
        page = await made.page(auto=BOTH, answers={"show_map": {"output": {"shown": True}}})
        shown = await page.send("Map", **options)
    assert (posts(shown), join_text(shown), shown["errors"]) == (2, "There it is.", [])
    [part] = select_parts(shown, "tool-show_map")
    assert (part["state"], part["output"], part["providerExecuted"]) == ("output-available", {"shown": True}, False)
    assert [each["input"] for each in shown["calls"]] == [{"city": "Oslo"}]


async def test_a_tool_of_the_page_beside_one_that_is_to_be_approved_is_posted_once() -> None:
    calls = [call("refund", order="A1"), call("show_map", city="Oslo")]
    clerk = Agent(ScriptedModel(calls, "Done."), tools=[refund, show_map], name="clerk")
    async with serve_pages(clerk) as made:
        page = await made.page(auto=BOTH, answers={"show_map": {"output": {"shown": True}}})
        waiting = await page.send("Both")
        [asked] = [part for part in select_parts(waiting, "dynamic-tool") if part["state"] == "approval-requested"]
        shown = await page.do("approve", answers=[[asked["approval"]["id"], True]])
        async with httpx.AsyncClient(headers={"authorization": "Bearer ann-key"}) as client:
            [_, reloaded] = (await client.get(f"{made.api}/chat-1")).json()
    assert (posts(waiting), waiting["errors"], waiting["status"]) == (2, [], "ready")
    assert (posts(shown), shown["errors"], join_text(shown)) == (3, [], "Done.")
    assert sorted(states(shown)) == ["output-available", "output-available"]
    assert select_parts({"messages": [reloaded]}, "tool-show_map") == select_parts(shown, "tool-show_map")


async def test_a_tool_that_the_page_could_not_carry_out_says_why() -> None:
    clerk = Agent(ScriptedModel(call("show_map", city="Oslo"), "No map."), tools=[show_map], name="clerk")
    async with serve_pages(clerk) as made:
        page = await made.page(auto=BOTH, answers={"show_map": {"state": "output-error", "errorText": "no map here"}})
        shown = await page.send("Map")
        [run] = await made.runtime.log.list_runs()
        events = await made.runtime.log.read(run.task_id)
    assert [event.content for event in events if event.kind == "tool-complete"] == ["no map here"]  # pyright: ignore[reportAttributeAccessIssue]
    assert (states(shown), join_text(shown)) == (["output-error"], "No map.")


async def test_the_page_is_not_asked_for_a_call_that_does_not_fit() -> None:
    clerk = Agent(ScriptedModel(call("show_map"), "I see."), tools=[show_map], name="clerk")
    async with serve_pages(clerk) as made:
        page = await made.page(auto=BOTH, answers={"show_map": {"output": {"shown": True}}})
        shown = await page.send("Map")
    assert (shown["calls"], states(shown), posts(shown)) == ([], ["output-error"], 1)


@pytest.mark.parametrize("tools", [[weather], [show_map]], ids=["ours", "the page's"])
async def test_a_run_that_ends_on_a_tool_is_not_posted_again(tools: list[Any]) -> None:
    name = tools[0].definition.name
    turns = [call(name, city="Oslo"), call(name, city="Bergen"), "never"]
    clerk = Agent(ScriptedModel(*turns), tools=tools, limits=Limits(iterations=1), name="clerk")
    async with serve_pages(clerk) as made:
        page = await made.page(auto=["tools"], answers={"show_map": {"output": 1}})
        shown = await page.send("Weather?")
    assert posts(shown) == (1 if tools == [weather] else 2)
    assert shown["finished"][-1]["finishReason"] == "other"
    assert shown["messages"][-1]["metadata"]["rxloop"]["reason"] == "max_iterations"


async def test_a_question_of_a_tool_is_a_data_part_and_is_answered_by_the_body() -> None:
    @tool
    async def book(ctx: RunContext[Any]) -> str:
        """Book a room."""
        return f"booked for {await ctx.ask('How many?', int)}"

    clerk = Agent(ScriptedModel(call("book"), "Booked."), tools=[book], name="clerk")
    async with serve_pages(clerk) as made:
        page = await made.page()
        shown = await page.send("Book")
        [asked] = select_parts(shown, "data-input-required")
        assert asked["data"]["prompt"] == "How many?"
        refused = await page.send(body={"inputs": {asked["id"]: "many"}})
        shown = await page.send(body={"inputs": {asked["id"]: 2}})
    assert refused["status"] == "error"
    assert "does not answer" in refused["errors"][-1]
    [asked] = select_parts(shown, "data-input-required")
    assert asked["data"]["waits"] is False
    assert [part["output"] for part in select_parts(shown, "dynamic-tool")] == ["booked for 2"]
    assert join_text(shown) == "Booked."


async def test_stop_leaves_the_run_which_the_page_comes_back_to() -> None:
    go, wait = gate()
    turns = [turn("one two ", calls=[call("wait")]), "three"]
    async with serve_pages(Agent(ScriptedModel(*turns), tools=[wait], name="clerk")) as made:
        page = await made.page()
        await page.send("Count", wait=False)
        await page.do("until", characters=4)
        stopped = await page.do("stop")
        assert (stopped["status"], stopped["errors"]) == ("ready", [])
        await page.do("start_resume")
        await page.do("streaming")
        go.set()
        shown = await page.do("settled")
    assert join_text(shown) == "one two three"
    assert len(shown["messages"]) == 2


def gate() -> tuple[asyncio.Event, Any]:
    """A tool that waits until the test lets it go on."""
    go = asyncio.Event()

    @tool
    async def wait() -> None:
        """Wait."""
        await go.wait()

    return go, wait


async def test_a_run_can_be_cancelled_from_the_page() -> None:
    async with serve_pages(agent(frames("-one -two -three -four |", 0.05))) as made:
        page = await made.page()
        await page.send("Count", wait=False)
        await page.do("until", characters=4)
        async with httpx.AsyncClient(headers={"authorization": "Bearer ann-key"}) as client:
            assert (await client.post(f"{made.api}/chat-1/stop")).status_code == 204
        shown = await page.do("settled")
    assert shown["messages"][-1]["metadata"]["rxloop"]["state"] == "canceled"
    assert (shown["status"], shown["errors"]) == ("ready", [])
    assert {part["state"] for part in select_parts(shown, "text")} == {"done"}


async def test_leaving_cancels_where_that_is_wished() -> None:
    async with serve_pages(agent(frames("-one -two -three -four |", 0.05)), on_disconnect="cancel") as made:
        page = await made.page()
        await page.send("Count", wait=False)
        await page.do("until", characters=4)
        await page.do("stop")
        [run] = await made.runtime.log.list_runs()
        async for _ in made.runtime.log.follow(run.task_id):
            pass
        assert (await made.runtime.get_record(run.task_id)).state == "canceled"


async def test_a_run_that_fails_is_an_error_of_the_page_in_words_for_clients() -> None:
    async with serve_pages(agent(ServerError("http://10.0.0.1/key=sk-123"))) as made:
        shown = await (await made.page()).send("Hi")
    assert (shown["status"], shown["errors"]) == ("error", ["The model provider failed."])


async def test_what_is_asked_anew_takes_the_place_of_the_answer() -> None:
    model = ScriptedModel("One.", "Two.", "Three.")
    async with serve_pages(Agent(model, name="clerk")) as made:
        page = await made.page()
        await page.send("First")
        await page.send("Second")
        shown = await page.do("regenerate")
        kept = await history(made)
    texts = [message["parts"][-1]["text"] for message in shown["messages"]]
    assert texts == ["First", "One.", "Second", "Three."]
    assert [message["id"] for message in kept] == [message["id"] for message in shown["messages"]]
    sent = [message.text for message in model.requests[-1].messages if message.role != "system"]
    assert sent == ["First", "One.", "Second"]


async def test_a_message_that_is_changed_takes_the_place_of_what_came_after_it() -> None:
    model = ScriptedModel("One.", "Two.", "Three.", "Four.")
    async with serve_pages(Agent(model, name="clerk")) as made:
        page = await made.page()
        shown = await page.send("First")
        first = shown["messages"][0]["id"]
        await page.send("Second")
        await page.do("send", message={"text": "Other", "messageId": first})
        shown = await page.send("And")
        kept = await history(made)
    assert [message["parts"][-1]["text"] for message in shown["messages"]] == ["Other", "Three.", "And", "Four."]
    assert [message["id"] for message in kept] == [message["id"] for message in shown["messages"]]
    assert [message.text for message in model.requests[-1].messages if message.role != "system"] == [
        "Other",
        "Three.",
        "And",
    ]


async def history(made: Any, chat: str = "chat-1", token: str = "ann-key") -> Any:
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {token}"}) as client:
        return (await client.get(f"{made.api}/{chat}")).json()


async def test_a_page_that_is_loaded_anew_has_the_messages_as_they_were_shown() -> None:
    turns = [call("weather", city="Oslo"), "7 C.", call("refund", order="A1"), "Refunded.", "And?"]
    async with serve_pages(agent(*turns)) as made:
        page = await made.page(auto=BOTH)
        await page.send("Weather?")
        shown = await page.send("Refund A1")
        asked = select_parts(shown, "dynamic-tool")[-1]["approval"]["id"]
        shown = await page.do("approve", answers=[[asked, True]])
        kept = await history(made)
        again = await (await made.page("again", messages=kept)).send("So?")
    select_parts(shown, "dynamic-tool")[-1]["approval"].pop("approved")
    assert kept == shown["messages"]
    assert join_text(again) == "And?"


async def test_a_post_that_comes_twice_begins_one_run() -> None:
    model = ScriptedModel("One.", "Two.")
    message = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Hi"}]}
    body = {"id": "chat-1", "messages": [message], "trigger": "submit-message"}
    async with serve_pages(Agent(model, name="clerk")) as made:
        async with httpx.AsyncClient(headers={"authorization": "Bearer ann-key"}) as client:
            first, second = [await client.post(made.api, json=body) for _ in range(2)]
    assert (first.text, len(model.requests)) == (second.text, 1)


async def test_messages_that_never_arrived_are_asked_with_the_next_one() -> None:
    model = ScriptedModel("One.", "Two.")
    said = [{"id": f"m{n}", "role": "user", "parts": [{"type": "text", "text": f"T{n}"}]} for n in range(3)]
    async with serve_pages(Agent(model, name="clerk")) as made:
        async with httpx.AsyncClient(headers={"authorization": "Bearer ann-key"}) as client:
            await client.post(made.api, json={"id": "chat-1", "messages": said[:1]})
            await client.post(made.api, json={"id": "chat-1", "messages": said})
    sent = [message.text for message in model.requests[-1].messages if message.role != "system"]
    assert sent == ["T0", "One.", "T1", "T2"]


async def test_files_go_to_the_model() -> None:
    model = ScriptedModel("Nice.")
    parts = [
        {"type": "text", "text": "Look"},
        {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,iVBORw0KGgo="},
        {"type": "file", "mediaType": "application/pdf", "url": "https://example.org/a.pdf", "filename": "a.pdf"},
    ]
    async with serve_pages(Agent(model, name="clerk")) as made:
        page = await made.page()
        shown = await page.do("send", message={"parts": parts})
        kept = await history(made)
    assert join_text(shown) == "Nice."
    content: Any = model.requests[-1].messages[-1].content
    assert [part.type for part in content] == ["text", "image", "file"]
    assert content[1].data == b"\x89PNG\r\n\x1a\n"
    assert kept[0]["parts"] == parts


async def test_a_result_with_a_name_that_clients_refuse_does_not_end_the_stream() -> None:
    @tool
    async def odd() -> dict[str, Any]:
        """Odd."""
        return {"__proto__": {"a": 1}, "constructor": {"prototype": 1, "b": 2}, "prototype": 3, "text": '"__proto__"'}

    clerk = Agent(ScriptedModel(call("odd"), "Done."), tools=[odd], name="clerk")
    async with serve_pages(clerk) as made:
        shown = await (await made.page()).send("Odd?")
    [part] = select_parts(shown, "dynamic-tool")
    assert part["output"] == {"constructor": {"b": 2}, "prototype": 3, "text": '"__proto__"'}
    assert (join_text(shown), shown["errors"]) == ("Done.", [])


async def test_two_chats_at_the_same_question_do_not_get_each_others_answers() -> None:
    turns = [call("refund", order="A1"), call("refund", order="A2"), "Done."]
    async with serve_pages(agent(*turns)) as made:
        page = await made.page(auto=BOTH)
        await page.send("Refund A1")
        shown = await page.send("No, A2")
        ids = [
            part["approval"]["id"] for message in shown["messages"] for part in message["parts"] if "approval" in part
        ]
        assert len({*ids}) == 2
        shown = await page.do("approve", answers=[[ids[1], True]])
    assert [part["output"] for part in select_parts(shown, "dynamic-tool")] == ["refunded A2"]


async def test_a_page_that_comes_back_does_not_carry_out_once_more_what_it_has_carried_out() -> None:
    go, wait = gate()
    model = ScriptedModel(call("show_map", city="Oslo"), turn("There ", calls=[call("wait")]), "it is.")
    async with serve_pages(Agent(model, tools=[show_map, wait], name="clerk")) as made:
        page = await made.page(auto=BOTH)
        shown = await page.send("Map")
        slot = select_parts(shown, "tool-show_map")[0]["toolCallId"]
        await page.do("send_output", tool="show_map", toolCallId=slot, output={"shown": True})
        await page.do("until", characters=3)
        other = await made.page("other", auto=BOTH, answers={"show_map": {"output": {"shown": True}}})
        await other.do("start_resume")
        await other.do("streaming")
        go.set()
        reloaded = await other.do("settled")
        shown = await page.do("settled")
    assert (reloaded["calls"], posts(reloaded), join_text(reloaded)) == ([], 0, "There it is.")
    assert reloaded["messages"][-1] == shown["messages"][-1]


async def test_an_answer_is_made_anew_behind_a_question_that_was_dropped() -> None:
    model = ScriptedModel(call("refund", order="A1"), "Two.", "Three.")
    async with serve_pages(Agent(model, tools=[refund], name="clerk")) as made:
        page = await made.page()
        await page.send("Refund A1")
        await page.send("Never mind")
        shown = await page.do("regenerate")
    assert (join_text(shown), shown["errors"]) == ("Three.", [])
    assert [message.role for message in model.requests[-1].messages if message.role != "system"] == [
        *("user", "assistant", "tool", "user")
    ]
