"""`/v1/responses` by the official client, over real sockets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from openai import BadRequestError, ConflictError, NotFoundError, RateLimitError
from pydantic import BaseModel

from rxloop import Agent, Limits, MemoryEventLog, RunContext, Usage, tool
from rxloop.errors import RateLimited
from rxloop.protocol.messages import Citation
from rxloop.server import ServerLimits
from rxloop.testing import ScriptedModel, call, frames, turn
from support.clients.openai import OpenAIEndpoint, serve_openai
from support.random_runs import InterruptedAnswer, Model
from support.vendors.openai_checks import check_response, check_stream


@tool(approve=True)
async def pay(amount: int) -> str:
    """Pay somebody."""
    return f"paid {amount}"


@tool
async def weather(city: str) -> str:
    """Tell the weather."""
    return f"7 C in {city}"


@tool
async def ask(ctx: RunContext[Any]) -> str:
    """Ask where."""
    return await ctx.ask("Where?", str)


@tool
async def choose(ctx: RunContext[Any]) -> str:
    """Ask which."""
    return str(await ctx.ask("Which?", int, options=[1, 2]))


@tool
async def sure(ctx: RunContext[Any]) -> str:
    """Ask whether."""
    return "yes" if await ctx.ask("Are you sure?") else "no"


MAP: Any = {
    "type": "function",
    "name": "show_map",
    "description": "Show a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}


def clerk(*turns: Any, **options: Any) -> Agent[Any, Any]:
    tools = [pay, weather, ask, choose, sure]
    return Agent(ScriptedModel(*turns), tools=tools, thoughts=False, name="clerk", **options)


def endless(**options: Any) -> Agent[Any, Any]:
    return clerk(frames("-on and on", 0.005), **options)


async def ended(served: OpenAIEndpoint, task_id: str) -> str:
    """How a run has ended."""
    async with asyncio.timeout(10):
        async for _ in served.runtime.follow(task_id):
            pass
    return (await served.runtime.get_record(task_id)).state


async def test_an_answer_with_reasoning_a_call_and_usage() -> None:
    first = turn("Let me see.", calls=[call("weather", city="Oslo")], reasoning="Hm.", usage=Usage(input_tokens=10))
    counted = Usage(input_tokens=20, output_tokens=4, cached_tokens=8, cache_write_tokens=2)
    last = turn(frames("-It -is -7 C.|", 0.001), usage=counted)
    async with serve_openai(clerk(first, last)) as served, served.client() as client:
        response = await client.responses.create(model="clerk", input="Weather?", metadata={"ticket": "7"})
        check_response(response.to_dict())
        shown = [each.type for each in response.output]
        assert shown == ["reasoning", "message", "mcp_call", "message"]
        done: Any = response.output[2]
        assert (done.name, done.arguments, done.output, done.server_label, done.status) == (
            *("weather", '{"city":"Oslo"}', "7 C in Oslo", "rxloop"),
            "completed",
        )
        assert response.output_text == "Let me see.It is 7 C."
        assert response.usage is not None
        details = response.usage.input_tokens_details
        assert (response.usage.input_tokens, details.cached_tokens, details.cache_write_tokens) == (30, 8, 2)
        assert (response.status, response.metadata) == ("completed", {"ticket": "7"})
        again = await client.responses.retrieve(response.id)
        assert again.to_dict() == response.to_dict()
        asked = await client.responses.input_items.list(response.id)
        assert [item.to_dict()["content"] for item in asked.data] == [[{"type": "input_text", "text": "Weather?"}]]


async def test_a_stream_as_the_client_puts_it_together() -> None:
    agent = clerk(call("weather", city="Oslo"), frames("-It -is -7 C.|", 0.001))
    async with serve_openai(agent) as served, served.client() as client:
        async with client.responses.stream(model="clerk", input="Weather?") as stream:
            events = [event async for event in stream]
            final = await stream.get_final_response()
        assert [event.sequence_number for event in events] == [*range(len(events))]
        deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
        assert deltas == ["It ", "is ", "7 C."]
        assert final.output_text == "It is 7 C."
        raw = await client.responses.retrieve(final.id)
        assert raw.output_text == final.output_text


@pytest.mark.parametrize("approve", [True, False])
async def test_an_approval_goes_to_the_client_and_back(approve: bool) -> None:
    async with serve_openai(clerk(call("pay", amount=5), "Well.")) as served, served.client() as client:
        first = await client.responses.create(model="clerk", input="Pay 5")
        [asked] = first.output
        assert asked.type == "mcp_approval_request"
        assert (asked.name, asked.arguments, first.status) == ("pay", '{"amount":5}', "completed")
        answer: Any = {"type": "mcp_approval_response", "approval_request_id": asked.id, "approve": approve}
        second = await client.responses.create(model="clerk", previous_response_id=first.id, input=[answer])
        check_response(second.to_dict())
        done = second.output[0]
        assert done.type == "mcp_call"
        assert done.approval_request_id == asked.id
        assert (done.output == "paid 5") == approve
        assert second.output_text == "Well."
        assert (second.previous_response_id, second.conversation) == (first.id, first.conversation)
        # Each of the two stays as it was.
        assert (await client.responses.retrieve(first.id)).to_dict() == first.to_dict()
        assert (await client.responses.retrieve(second.id)).to_dict() == second.to_dict()
        # The same answer once more is the same response, and another one is refused.
        repeated = await client.responses.create(model="clerk", input=[answer])
        assert repeated.id == second.id
        answer["approve"] = not approve
        with pytest.raises(ConflictError, match="does not wait"):
            await client.responses.create(model="clerk", input=[answer])


async def test_a_function_goes_to_the_client_and_back() -> None:
    agent = clerk([call("show_map", city="Oslo"), call("weather", city="Oslo")], "There it is.")
    async with serve_openai(agent) as served, served.client() as client:
        async with client.responses.stream(model="clerk", input="Where is Oslo?", tools=[MAP]) as stream:
            events = [event.type async for event in stream]
            first = await stream.get_final_response()
        assert "response.function_call_arguments.delta" in events
        calls = [each for each in first.output if each.type == "function_call"]
        assert [(each.name, each.arguments) for each in calls] == [("show_map", '{"city":"Oslo"}')]
        assert [each.type for each in first.output] == ["mcp_call", "function_call"]
        output: Any = {"type": "function_call_output", "call_id": calls[0].call_id, "output": '{"shown": true}'}
        # Without previous_response_id, as clients do that keep the history themselves: the call names its run.
        history: Any = [{"role": "user", "content": "Where is Oslo?"}, calls[0].to_dict(), output]
        second = await client.responses.create(model="clerk", input=history, tools=[MAP])
        assert second.output_text == "There it is."
        assert [each.type for each in second.output] == ["message"]
        assert second.previous_response_id == first.id


@pytest.mark.parametrize(
    ("tool_name", "prompt", "said", "result"),
    [("ask", "Where?", "Oslo", "Oslo"), ("choose", "Which?\n\n- 1\n- 2", "2", "2")],
)
async def test_a_question_is_asked_and_answered_in_words(tool_name: str, prompt: str, said: str, result: str) -> None:
    async with serve_openai(clerk(call(tool_name), "Thanks.")) as served, served.client() as client:
        first = await client.responses.create(model="clerk", input="Go", conversation="trip-1")
        assert first.output_text == prompt
        second = await client.responses.create(model="clerk", conversation="trip-1", input=said)
        assert second.previous_response_id == first.id
        done: Any = second.output[0]
        assert (done.type, done.output) == ("mcp_call", result)


async def test_a_question_of_a_tool_comes_with_its_words_and_is_approved() -> None:
    async with serve_openai(clerk(call("sure"), "Thanks.")) as served, served.client() as client:
        first = await client.responses.create(model="clerk", input="Go")
        assert first.output_text == "Are you sure?"
        asked = first.output[-1]
        assert asked.type == "mcp_approval_request"
        answer: Any = {"type": "mcp_approval_response", "approval_request_id": asked.id, "approve": True}
        second = await client.responses.create(model="clerk", input=[answer])
        done: Any = second.output[0]
        assert done.output == "yes"


async def test_all_questions_have_to_be_answered_at_once() -> None:
    agent = clerk([call("pay", amount=5), call("show_map", city="Oslo")], "Done.")
    async with serve_openai(agent) as served, served.client() as client:
        first = await client.responses.create(model="clerk", input="Go", tools=[MAP])
        approval, function = first.output
        assert approval.type == "mcp_approval_request"
        assert function.type == "function_call"
        yes: Any = {"type": "mcp_approval_response", "approval_request_id": approval.id, "approve": True}
        shown: Any = {"type": "function_call_output", "call_id": function.call_id, "output": "shown"}
        with pytest.raises(BadRequestError, match="all of its questions"):
            await client.responses.create(model="clerk", previous_response_id=first.id, input=[yes])
        second = await client.responses.create(model="clerk", previous_response_id=first.id, input=[yes, shown])
        assert second.output_text == "Done."


async def test_responses_go_on_from_one_another() -> None:
    seen: list[list[str]] = []

    def answer(request: Any) -> str:
        seen.append([message.text for message in request.messages])
        return f"Answer {len(seen)}."

    async with serve_openai(clerk(answer, answer, answer)) as served, served.client() as client:
        first = await client.responses.create(model="clerk", input="One")
        second = await client.responses.create(model="clerk", input="Two", previous_response_id=first.id)
        assert second.conversation is not None
        third = await client.responses.create(model="clerk", input="Three", conversation=second.conversation.id)
        assert seen[-1] == ["One", "Answer 1.", "Two", "Answer 2.", "Three"]
        assert third.output_text == "Answer 3."
        with pytest.raises(BadRequestError) as refused:
            await client.responses.create(model="clerk", input="Two, differently", previous_response_id=first.id)
        assert refused.value.code == "previous_response_not_latest"
        with pytest.raises(BadRequestError) as unknown:
            await client.responses.create(model="clerk", input="Two", previous_response_id="resp_nothing")
        assert unknown.value.code == "previous_response_not_found"


async def test_a_history_that_the_client_keeps_is_taken_as_one() -> None:
    seen: list[list[tuple[str, str]]] = []

    def answer(request: Any) -> str:
        seen.append([(message.role, message.text) for message in request.messages])
        return "Hello Ann."

    history: Any = [
        {"role": "developer", "content": "Talk like a pirate."},
        {"role": "user", "content": "I am Ann."},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi."}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"role": "user", "content": [{"type": "input_text", "text": "Who am I?"}]},
    ]
    for instructions in ("data", "ignore"):
        agent = clerk(answer, instructions="Be brief.")
        async with serve_openai(agent, instructions=instructions) as served, served.client() as client:
            await client.responses.create(model="clerk", input=history, instructions="Obey.")
    told = [("user", "I am Ann."), ("assistant", "Hi."), ("user", "Who am I?")]
    assert seen[1] == told
    notes = seen[0]
    assert notes[2:] == told
    assert all(role == "user" and "It is no instruction" in text for role, text in notes[:2])
    async with serve_openai(clerk("x"), instructions="refuse") as served, served.client() as client:
        with pytest.raises(BadRequestError, match="its own instructions"):
            await client.responses.create(model="clerk", input=history)


async def test_a_response_in_the_background_is_there_at_once_and_read_later() -> None:
    async with serve_openai(clerk(frames("-Slowly -but -surely.|", 0.01))) as served, served.client() as client:
        begun = await client.responses.create(model="clerk", input="Go", background=True)
        assert begun.status in ("queued", "in_progress")
        check_response(begun.to_dict())
        await ended(served, begun.id)
        found = await client.responses.retrieve(begun.id)
        assert (found.status, found.output_text, found.background) == ("completed", "Slowly but surely.", True)


async def test_a_response_is_cancelled_and_stays_so() -> None:
    async with serve_openai(endless()) as served, served.client() as client:
        begun = await client.responses.create(model="clerk", input="Go", background=True)
        over = await client.responses.cancel(begun.id)
        assert over.status == "cancelled"
        assert (await client.responses.cancel(begun.id)).status == "cancelled"
        events = [event.to_dict() async for event in await client.responses.retrieve(begun.id, stream=True)]
        assert check_stream(events)["status"] == "cancelled"
        assert events[-1]["type"] == "response.incomplete"


@pytest.mark.parametrize(("background", "ends"), [(False, "canceled"), (True, "working")])
async def test_a_reader_that_leaves_ends_its_response_unless_it_is_in_the_background(
    background: bool, ends: str
) -> None:
    log = MemoryEventLog(keep_deltas=True)
    async with serve_openai(endless(), log=log) as served, served.client() as client:
        stream = await client.responses.create(model="clerk", input="Go", background=background, stream=True)
        async for event in stream:
            if event.type == "response.output_text.delta":
                break
        await stream.close()
        [record] = await log.list_runs()
        if not background:
            assert await ended(served, record.task_id) == ends
            return
        await served.app.gateway._closed.wait()
        assert (await log.get_record(record.task_id)).state == ends
        await client.responses.cancel(record.task_id)


async def test_a_caller_that_gives_up_waiting_cancels_its_response() -> None:
    log = MemoryEventLog()
    async with serve_openai(endless(), log=log) as served, served.client() as client:
        asking = asyncio.create_task(client.responses.create(model="clerk", input="Go"))
        async for event in served.runtime.events:
            if event.kind == "content-delta":
                break
        asking.cancel()
        [record] = await log.list_runs()
        assert await ended(served, record.task_id) == "canceled"


async def test_what_is_over_a_limit_is_incomplete_and_what_fails_says_why() -> None:
    cut = turn("Half of", finish_reason="length")
    failing = RateLimited("the key is sk-secret")
    async with serve_openai(clerk(cut, failing)) as served, served.client() as client:
        first = await client.responses.create(model="clerk", input="Go")
        assert first.incomplete_details is not None
        assert (first.status, first.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        second = await client.responses.create(model="clerk", input="Go")
        assert second.error is not None
        assert (second.status, second.error.code) == ("failed", "rate_limit_exceeded")
        assert "sk-secret" not in second.to_json()
    async with serve_openai(clerk(call("weather", city="x"), limits=Limits(iterations=1))) as served:
        async with served.client() as client, client.responses.stream(model="clerk", input="Go") as stream:
            events = [event.to_dict() async for event in stream]
        assert events[-1]["type"] == "response.failed"


class City(BaseModel):
    name: str


async def test_an_answer_that_has_a_type_is_parsed() -> None:
    for mode in ("prompted", "tool"):
        says = '{"name": "Oslo"}' if mode == "prompted" else call("final_answer", name="Oslo")
        agent = clerk(says, output_type=City, output_mode=mode)
        async with serve_openai(agent) as served, served.client() as client:
            response = await client.responses.parse(model="clerk", input="Where?", text_format=City)
            assert response.output_parsed == City(name="Oslo")
    async with serve_openai(clerk("Oslo")) as served, served.client() as client:
        with pytest.raises(BadRequestError, match="answers in text"):
            await client.responses.parse(model="clerk", input="Where?", text_format=City)


async def test_models_are_the_agents() -> None:
    async with serve_openai(clerk("x")) as served, served.client() as client:
        assert [model.id async for model in client.models.list()] == ["clerk"]
        assert (await client.models.retrieve("clerk")).owned_by == "rxloop"
        with pytest.raises(NotFoundError):
            await client.models.retrieve("gpt-4")
        with pytest.raises(NotFoundError) as unknown:
            await client.responses.create(model="gpt-4", input="Hi")
        assert unknown.value.code == "model_not_found"


async def test_a_key_stands_for_one_run() -> None:
    log = MemoryEventLog()
    async with serve_openai(clerk("Once.", "Twice."), log=log) as served, served.client() as client:
        headers = {"Idempotency-Key": "k-1"}
        first = await client.responses.create(model="clerk", input="Go", extra_headers=headers)
        again = await client.responses.create(model="clerk", input="Go", extra_headers=headers)
        assert (again.id, again.output_text, len(await log.list_runs())) == (first.id, "Once.", 1)
        with pytest.raises(BadRequestError, match="another request"):
            await client.responses.create(model="clerk", input="Stop", extra_headers=headers)


async def test_a_request_that_is_sent_again_does_not_answer_the_run_that_it_has_begun() -> None:
    log = MemoryEventLog()
    async with serve_openai(clerk(call("ask"), "Fine."), log=log) as served, served.client() as client:
        body: dict[str, Any] = {"model": "clerk", "input": "Book it", "conversation": "c-1"}
        first, again = [
            await client.responses.create(**body, extra_headers={"Idempotency-Key": "k-1"}) for _ in range(2)
        ]
        assert (again.id, again.output) == (first.id, first.output)
        [record] = await log.list_runs()
        assert record.state == "input-required"


async def test_a_request_that_is_sent_again_is_not_too_late_because_of_itself() -> None:
    log = MemoryEventLog()
    async with serve_openai(clerk("One.", "Two."), log=log) as served, served.client() as client:
        one = await client.responses.create(model="clerk", input="Go")
        body: dict[str, Any] = {"model": "clerk", "input": "And?", "previous_response_id": one.id}
        two, again = [await client.responses.create(**body, extra_headers={"Idempotency-Key": "k-1"}) for _ in range(2)]
    assert (again.id, again.output_text, len(await log.list_runs())) == (two.id, "Two.", 2)


async def test_what_is_asked_while_a_response_goes_on_waits_for_it() -> None:
    async with serve_openai(clerk(frames("-One-.|", 0.01), "Two.", "Three.")) as served, served.client() as client:
        first = await client.responses.create(model="clerk", input="1", background=True)
        second = await client.responses.create(model="clerk", input="2", previous_response_id=first.id)
        assert (await client.responses.retrieve(first.id)).output_text == "One."
        assert second.output_text == "Two."
        conversation = await client.conversations.create()
        third = await client.responses.create(model="clerk", input="3", conversation=conversation.id)
        assert third.conversation is not None
        assert third.conversation.id == conversation.id


async def test_a_stream_too_many_leaves_no_run_behind() -> None:
    log = MemoryEventLog()
    async with serve_openai(endless(), log=log, limits=ServerLimits(streams=1)) as served, served.client() as client:
        stream = await client.responses.create(model="clerk", input="Go", stream=True)
        with pytest.raises(RateLimitError):
            await client.responses.create(model="clerk", input="Go", stream=True)
        going, refused = await log.list_runs()
        assert (going.state, await ended(served, refused.task_id)) == ("working", "canceled")
        await stream.close()


async def test_when_the_server_goes_away_a_stream_says_so() -> None:
    for background in (True, False):
        log = MemoryEventLog(keep_deltas=True)
        async with serve_openai(endless(), log=log) as served, served.client() as client:
            stream = await client.responses.create(model="clerk", input="Go", stream=True, background=background)
            events = aiter(stream)
            await anext(events)
            draining = asyncio.create_task(served.app.drain(0.05))
            kinds = [event.type async for event in events]
            await draining
            assert (kinds[-1] == "error") != background
            # It is given up, and not cancelled: another process goes on with it.
            assert [record.state for record in await log.list_runs()] == ["working"]


async def test_what_a_nested_agent_does_is_shown_as_one_call() -> None:
    below = Agent(ScriptedModel("It is 7 C."), thoughts=False, name="weather")
    above: Agent[Any, Any] = Agent(
        ScriptedModel(call("ask_weather", prompt="Oslo?"), "7 C."),
        tools=[below.as_tool("ask_weather", description="Knows the weather.")],
        thoughts=False,
        name="clerk",
    )
    async with serve_openai(above) as served, served.client() as client:
        response = await client.responses.create(model="clerk", input="Weather?")
        assert [item.type for item in response.output] == ["mcp_call", "message"]
        assert response.output_text == "7 C."


async def test_what_is_said_once_more_is_said_once() -> None:
    model = Model(lambda request: InterruptedAnswer("Hm.", "wrong", "right"))
    async with serve_openai(Agent(model, thoughts=False, name="clerk")) as served, served.client() as client:
        async with client.responses.stream(model="clerk", input="Go") as stream:
            done: list[Any] = [event.item async for event in stream if event.type == "response.output_item.done"]
            final = await stream.get_final_response()
        texts = [(item.content[0].text, item.status) for item in done if item.type == "message"]
        assert texts == [("wrong", "incomplete"), ("right", "completed")]
        assert [item.type for item in final.output] == ["message"]
        assert final.output_text == "right"
    model = Model(lambda request: InterruptedAnswer("Hm.", "wrong", "right"))
    async with serve_openai(Agent(model, thoughts=False, name="clerk")) as served, served.client() as client:
        answer = await client.chat.completions.create(model="clerk", messages=[{"role": "user", "content": "Go"}])
        assert answer.choices[0].message.content == "right"


async def test_the_pages_that_a_text_rests_on_are_annotations_of_it() -> None:
    cited = [Citation(url="https://e.org/7", title="Weather", start=6, end=9), Citation(title="a document")]
    expected = {"type": "url_citation", "url": "https://e.org/7", "title": "Weather", "start_index": 6, "end_index": 9}
    async with serve_openai(clerk(turn("It is 7 C.", citations=cited))) as served, served.client() as client:
        stream = await client.responses.create(model="clerk", input="Hi", stream=True)
        events: list[Any] = [event.to_dict() async for event in stream]
    check_stream(events)
    added = [each["annotation"] for each in events if each["type"] == "response.output_text.annotation.added"]
    assert added == [expected]
    [message] = events[-1]["response"]["output"]
    assert message["content"][0]["annotations"] == [expected]


@pytest.mark.parametrize(
    ("finish", "reason"),
    [("length", "max_output_tokens"), ("content_filter", "content_filter"), ("unknown", "max_output_tokens")],
)
async def test_response_is_incomplete_when_its_message_is(finish: str, reason: str) -> None:  # P9, P15
    async with serve_openai(clerk(turn("Half of", finish_reason=finish))) as served, served.client() as client:
        answer = await client.responses.create(model="clerk", input="Go")
    assert answer.incomplete_details is not None
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", reason)
    assert answer.output_text == "Half of"
