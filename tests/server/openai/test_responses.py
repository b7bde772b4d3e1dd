"""`/v1/responses` with the official client over real sockets."""

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
    """Pay an amount."""
    return f"paid {amount}"


@tool
async def weather(city: str) -> str:
    """Return the weather."""
    return f"7 C in {city}"


@tool
async def ask(ctx: RunContext[Any]) -> str:
    """Ask for a place."""
    return await ctx.ask("Where?", str)


@tool
async def choose(ctx: RunContext[Any]) -> str:
    """Ask for a choice."""
    return str(await ctx.ask("Which?", int, options=[1, 2]))


@tool
async def sure(ctx: RunContext[Any]) -> str:
    """Ask for a confirmation."""
    return "yes" if await ctx.ask("Are you sure?") else "no"


MAP: Any = {
    "type": "function",
    "name": "show_map",
    "description": "Show a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}


def make_clerk(*turns: Any, **options: Any) -> Agent[Any, Any]:
    tools = [pay, weather, ask, choose, sure]
    return Agent(ScriptedModel(*turns), tools=tools, thoughts=False, name="clerk", **options)


def make_endless(**options: Any) -> Agent[Any, Any]:
    return make_clerk(frames("-on and on", 0.005), **options)


async def wait_until_idle(served: OpenAIEndpoint, task_id: str) -> str:
    """Return the final state of a run."""
    async with asyncio.timeout(10):
        async for _ in served.runtime.follow(task_id):
            pass
    return (await served.runtime.get_record(task_id)).state


async def test_response_has_reasoning_calls_text_and_usage() -> None:
    first = turn("Let me see.", calls=[call("weather", city="Oslo")], reasoning="Hm.", usage=Usage(input_tokens=10))
    counted = Usage(input_tokens=20, output_tokens=4, cached_tokens=8, cache_write_tokens=2)
    last = turn(frames("-It -is -7 C.|", 0.001), usage=counted)
    async with serve_openai(make_clerk(first, last)) as served, served.client() as client:
        response = await client.responses.create(model="clerk", input="Weather?", metadata={"ticket": "7"})
        check_response(response.to_dict())
        types = [each.type for each in response.output]
        assert types == ["reasoning", "message", "mcp_call", "message"]
        done: Any = response.output[2]
        assert (done.name, done.arguments, done.output, done.server_label, done.status) == (
            *("weather", '{"city":"Oslo"}', "7 C in Oslo", "rxloop"),
            "completed",
        )
        assert response.output_text == "Let me see.It is 7 C."
        assert response.usage is not None
        details = response.usage.input_tokens_details
        assert response.usage.input_tokens == 30
        assert details.cached_tokens == 8
        assert details.cache_write_tokens == 2
        assert response.status == "completed"
        assert response.metadata == {"ticket": "7"}
        again = await client.responses.retrieve(response.id)
        assert again.to_dict() == response.to_dict()
        asked = await client.responses.input_items.list(response.id)
        assert [item.to_dict()["content"] for item in asked.data] == [[{"type": "input_text", "text": "Weather?"}]]


async def test_stream_is_assembled_by_the_client() -> None:
    agent = make_clerk(call("weather", city="Oslo"), frames("-It -is -7 C.|", 0.001))
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
async def test_approval_is_requested_and_answered(approve: bool) -> None:
    async with serve_openai(make_clerk(call("pay", amount=5), "Well.")) as served, served.client() as client:
        first = await client.responses.create(model="clerk", input="Pay 5")
        [approval] = first.output
        assert approval.type == "mcp_approval_request"
        assert approval.name == "pay"
        assert approval.arguments == '{"amount":5}'
        assert first.status == "completed"
        answer: Any = {"type": "mcp_approval_response", "approval_request_id": approval.id, "approve": approve}
        second = await client.responses.create(model="clerk", previous_response_id=first.id, input=[answer])
        check_response(second.to_dict())
        done = second.output[0]
        assert done.type == "mcp_call"
        assert done.approval_request_id == approval.id
        assert (done.output == "paid 5") == approve
        assert second.output_text == "Well."
        assert second.previous_response_id == first.id
        assert second.conversation == first.conversation
        # Both responses are unchanged.
        assert (await client.responses.retrieve(first.id)).to_dict() == first.to_dict()
        assert (await client.responses.retrieve(second.id)).to_dict() == second.to_dict()
        # Repeating an answer is allowed, but changing it is not.
        repeated = await client.responses.create(model="clerk", input=[answer])
        assert repeated.id == second.id
        answer["approve"] = not approve
        with pytest.raises(ConflictError, match="not waiting"):
            await client.responses.create(model="clerk", input=[answer])


async def test_function_call_is_requested_and_answered() -> None:
    agent = make_clerk([call("show_map", city="Oslo"), call("weather", city="Oslo")], "There it is.")
    async with serve_openai(agent) as served, served.client() as client:
        async with client.responses.stream(model="clerk", input="Where is Oslo?", tools=[MAP]) as stream:
            events = [event.type async for event in stream]
            first = await stream.get_final_response()
        assert "response.function_call_arguments.delta" in events
        calls = [each for each in first.output if each.type == "function_call"]
        assert [(each.name, each.arguments) for each in calls] == [("show_map", '{"city":"Oslo"}')]
        assert [each.type for each in first.output] == ["mcp_call", "function_call"]
        output: Any = {"type": "function_call_output", "call_id": calls[0].call_id, "output": '{"shown": true}'}
        # Clients that keep the history send no previous_response_id. The call id identifies the run.
        history: Any = [{"role": "user", "content": "Where is Oslo?"}, calls[0].to_dict(), output]
        second = await client.responses.create(model="clerk", input=history, tools=[MAP])
        assert second.output_text == "There it is."
        assert [each.type for each in second.output] == ["message"]
        assert second.previous_response_id == first.id


@pytest.mark.parametrize(
    ("tool_name", "prompt", "reply", "result"),
    [("ask", "Where?", "Oslo", "Oslo"), ("choose", "Which?\n\n- 1\n- 2", "2", "2")],
)
async def test_question_is_asked_and_answered_as_text(tool_name: str, prompt: str, reply: str, result: str) -> None:
    async with serve_openai(make_clerk(call(tool_name), "Thanks.")) as served, served.client() as client:
        first = await client.responses.create(model="clerk", input="Go", conversation="trip-1")
        assert first.output_text == prompt
        second = await client.responses.create(model="clerk", conversation="trip-1", input=reply)
        assert second.previous_response_id == first.id
        done: Any = second.output[0]
        assert done.type == "mcp_call"
        assert done.output == result


async def test_question_of_a_tool_has_a_text_and_an_approval_request() -> None:
    async with serve_openai(make_clerk(call("sure"), "Thanks.")) as served, served.client() as client:
        first = await client.responses.create(model="clerk", input="Go")
        assert first.output_text == "Are you sure?"
        approval = first.output[-1]
        assert approval.type == "mcp_approval_request"
        answer: Any = {"type": "mcp_approval_response", "approval_request_id": approval.id, "approve": True}
        second = await client.responses.create(model="clerk", input=[answer])
        done: Any = second.output[0]
        assert done.output == "yes"


async def test_all_questions_must_be_answered_together() -> None:
    agent = make_clerk([call("pay", amount=5), call("show_map", city="Oslo")], "Done.")
    async with serve_openai(agent) as served, served.client() as client:
        first = await client.responses.create(model="clerk", input="Go", tools=[MAP])
        approval, function = first.output
        assert approval.type == "mcp_approval_request"
        assert function.type == "function_call"
        yes: Any = {"type": "mcp_approval_response", "approval_request_id": approval.id, "approve": True}
        output: Any = {"type": "function_call_output", "call_id": function.call_id, "output": "shown"}
        with pytest.raises(BadRequestError, match="all questions"):
            await client.responses.create(model="clerk", previous_response_id=first.id, input=[yes])
        second = await client.responses.create(model="clerk", previous_response_id=first.id, input=[yes, output])
        assert second.output_text == "Done."


async def test_response_continues_its_previous_response() -> None:
    seen: list[list[str]] = []

    def answer(request: Any) -> str:
        seen.append([message.text for message in request.messages])
        return f"Answer {len(seen)}."

    async with serve_openai(make_clerk(answer, answer, answer)) as served, served.client() as client:
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


async def test_history_of_the_client_becomes_the_history_of_the_run() -> None:
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
        agent = make_clerk(answer, instructions="Be brief.")
        async with serve_openai(agent, instructions=instructions) as served, served.client() as client:
            await client.responses.create(model="clerk", input=history, instructions="Obey.")
    expected = [("user", "I am Ann."), ("assistant", "Hi."), ("user", "Who am I?")]
    assert seen[1] == expected
    notes = seen[0]
    assert notes[2:] == expected
    assert all(role == "user" and "It is no instruction" in text for role, text in notes[:2])
    async with serve_openai(make_clerk("x"), instructions="refuse") as served, served.client() as client:
        with pytest.raises(BadRequestError, match="its own instructions"):
            await client.responses.create(model="clerk", input=history)


async def test_background_response_is_returned_at_once_and_can_be_read_later() -> None:
    async with serve_openai(make_clerk(frames("-Slowly -but -surely.|", 0.01))) as served, served.client() as client:
        created = await client.responses.create(model="clerk", input="Go", background=True)
        assert created.status in ("queued", "in_progress")
        check_response(created.to_dict())
        await wait_until_idle(served, created.id)
        stored = await client.responses.retrieve(created.id)
        assert stored.status == "completed"
        assert stored.output_text == "Slowly but surely."
        assert stored.background is True


async def test_cancelled_response_stays_cancelled() -> None:
    async with serve_openai(make_endless()) as served, served.client() as client:
        created = await client.responses.create(model="clerk", input="Go", background=True)
        canceled = await client.responses.cancel(created.id)
        assert canceled.status == "cancelled"
        assert (await client.responses.cancel(created.id)).status == "cancelled"
        events = [event.to_dict() async for event in await client.responses.retrieve(created.id, stream=True)]
        assert check_stream(events)["status"] == "cancelled"
        assert events[-1]["type"] == "response.incomplete"


@pytest.mark.parametrize(("background", "ends"), [(False, "canceled"), (True, "working")])
async def test_disconnected_reader_cancels_its_response_unless_it_is_in_the_background(
    background: bool, ends: str
) -> None:
    log = MemoryEventLog(keep_deltas=True)
    async with serve_openai(make_endless(), log=log) as served, served.client() as client:
        stream = await client.responses.create(model="clerk", input="Go", background=background, stream=True)
        async for event in stream:
            if event.type == "response.output_text.delta":
                break
        await stream.close()
        [record] = await log.list_runs()
        if not background:
            assert await wait_until_idle(served, record.task_id) == ends
            return
        await served.app.gateway._closed.wait()
        assert (await log.get_record(record.task_id)).state == ends
        await client.responses.cancel(record.task_id)


async def test_caller_that_stops_waiting_cancels_its_response() -> None:
    log = MemoryEventLog()
    async with serve_openai(make_endless(), log=log) as served, served.client() as client:
        asking = asyncio.create_task(client.responses.create(model="clerk", input="Go"))
        async for event in served.runtime.events:
            if event.kind == "content-delta":
                break
        asking.cancel()
        [record] = await log.list_runs()
        assert await wait_until_idle(served, record.task_id) == "canceled"


async def test_truncated_response_is_incomplete_and_failed_response_has_its_error() -> None:
    truncated = turn("Half of", finish_reason="length")
    failing = RateLimited("the key is sk-secret")
    async with serve_openai(make_clerk(truncated, failing)) as served, served.client() as client:
        first = await client.responses.create(model="clerk", input="Go")
        assert first.incomplete_details is not None
        assert first.status == "incomplete"
        assert first.incomplete_details.reason == "max_output_tokens"
        second = await client.responses.create(model="clerk", input="Go")
        assert second.error is not None
        assert second.status == "failed"
        assert second.error.code == "rate_limit_exceeded"
        assert "sk-secret" not in second.to_json()
    async with serve_openai(make_clerk(call("weather", city="x"), limits=Limits(iterations=1))) as served:
        async with served.client() as client, client.responses.stream(model="clerk", input="Go") as stream:
            events = [event.to_dict() async for event in stream]
        assert events[-1]["type"] == "response.failed"


class City(BaseModel):
    name: str


async def test_typed_answer_is_parsed_by_the_client() -> None:
    for mode in ("prompted", "tool"):
        answer_turn = '{"name": "Oslo"}' if mode == "prompted" else call("final_answer", name="Oslo")
        agent = make_clerk(answer_turn, output_type=City, output_mode=mode)
        async with serve_openai(agent) as served, served.client() as client:
            response = await client.responses.parse(model="clerk", input="Where?", text_format=City)
            assert response.output_parsed == City(name="Oslo")
    async with serve_openai(make_clerk("Oslo")) as served, served.client() as client:
        with pytest.raises(BadRequestError, match="answers in text"):
            await client.responses.parse(model="clerk", input="Where?", text_format=City)


async def test_models_are_the_agents() -> None:
    async with serve_openai(make_clerk("x")) as served, served.client() as client:
        assert [model.id async for model in client.models.list()] == ["clerk"]
        assert (await client.models.retrieve("clerk")).owned_by == "rxloop"
        with pytest.raises(NotFoundError):
            await client.models.retrieve("gpt-4")
        with pytest.raises(NotFoundError) as unknown:
            await client.responses.create(model="gpt-4", input="Hi")
        assert unknown.value.code == "model_not_found"


async def test_idempotency_key_starts_one_run() -> None:
    log = MemoryEventLog()
    async with serve_openai(make_clerk("Once.", "Twice."), log=log) as served, served.client() as client:
        headers = {"Idempotency-Key": "k-1"}
        first = await client.responses.create(model="clerk", input="Go", extra_headers=headers)
        again = await client.responses.create(model="clerk", input="Go", extra_headers=headers)
        assert again.id == first.id
        assert again.output_text == "Once."
        assert len(await log.list_runs()) == 1
        with pytest.raises(BadRequestError, match="a different request"):
            await client.responses.create(model="clerk", input="Stop", extra_headers=headers)


async def test_repeated_request_does_not_answer_its_own_run() -> None:
    log = MemoryEventLog()
    async with serve_openai(make_clerk(call("ask"), "Fine."), log=log) as served, served.client() as client:
        body: dict[str, Any] = {"model": "clerk", "input": "Book it", "conversation": "c-1"}
        first, again = [
            await client.responses.create(**body, extra_headers={"Idempotency-Key": "k-1"}) for _ in range(2)
        ]
        assert again.id == first.id
        assert again.output == first.output
        [record] = await log.list_runs()
        assert record.state == "input-required"


async def test_repeated_request_is_not_rejected_because_of_its_own_run() -> None:
    log = MemoryEventLog()
    async with serve_openai(make_clerk("One.", "Two."), log=log) as served, served.client() as client:
        one = await client.responses.create(model="clerk", input="Go")
        body: dict[str, Any] = {"model": "clerk", "input": "And?", "previous_response_id": one.id}
        two, again = [await client.responses.create(**body, extra_headers={"Idempotency-Key": "k-1"}) for _ in range(2)]
    assert again.id == two.id
    assert again.output_text == "Two."
    assert len(await log.list_runs()) == 2


async def test_request_during_a_response_waits_for_it() -> None:
    async with serve_openai(make_clerk(frames("-One-.|", 0.01), "Two.", "Three.")) as served, served.client() as client:
        first = await client.responses.create(model="clerk", input="1", background=True)
        second = await client.responses.create(model="clerk", input="2", previous_response_id=first.id)
        assert (await client.responses.retrieve(first.id)).output_text == "One."
        assert second.output_text == "Two."
        conversation = await client.conversations.create()
        third = await client.responses.create(model="clerk", input="3", conversation=conversation.id)
        assert third.conversation is not None
        assert third.conversation.id == conversation.id


async def test_run_is_canceled_when_its_stream_is_above_the_limit() -> None:
    log = MemoryEventLog()
    async with (
        serve_openai(make_endless(), log=log, limits=ServerLimits(streams=1)) as served,
        served.client() as client,
    ):
        stream = await client.responses.create(model="clerk", input="Go", stream=True)
        with pytest.raises(RateLimitError):
            await client.responses.create(model="clerk", input="Go", stream=True)
        active, refused = await log.list_runs()
        assert active.state == "working"
        assert await wait_until_idle(served, refused.task_id) == "canceled"
        await stream.close()


async def test_stream_ends_with_an_error_at_shutdown() -> None:
    for background in (True, False):
        log = MemoryEventLog(keep_deltas=True)
        async with serve_openai(make_endless(), log=log) as served, served.client() as client:
            stream = await client.responses.create(model="clerk", input="Go", stream=True, background=background)
            events = aiter(stream)
            await anext(events)
            draining = asyncio.create_task(served.app.drain(0.05))
            kinds = [event.type async for event in events]
            await draining
            assert (kinds[-1] == "error") != background
            # Another process can continue the run.
            assert [record.state for record in await log.list_runs()] == ["working"]


async def test_nested_agent_is_shown_as_one_call() -> None:
    child = Agent(ScriptedModel("It is 7 C."), thoughts=False, name="weather")
    parent: Agent[Any, Any] = Agent(
        ScriptedModel(call("ask_weather", prompt="Oslo?"), "7 C."),
        tools=[child.as_tool("ask_weather", description="Knows the weather.")],
        thoughts=False,
        name="clerk",
    )
    async with serve_openai(parent) as served, served.client() as client:
        response = await client.responses.create(model="clerk", input="Weather?")
        assert [item.type for item in response.output] == ["mcp_call", "message"]
        assert response.output_text == "7 C."


async def test_text_of_a_failed_attempt_is_incomplete_in_the_stream_and_omitted_in_the_result() -> None:
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


async def test_citations_are_annotations_of_the_text() -> None:
    cited = [Citation(url="https://e.org/7", title="Weather", start=6, end=9), Citation(title="a document")]
    expected = {"type": "url_citation", "url": "https://e.org/7", "title": "Weather", "start_index": 6, "end_index": 9}
    async with serve_openai(make_clerk(turn("It is 7 C.", citations=cited))) as served, served.client() as client:
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
async def test_response_is_incomplete_when_its_message_is_incomplete(finish: str, reason: str) -> None:  # P9, P15
    async with serve_openai(make_clerk(turn("Half of", finish_reason=finish))) as served, served.client() as client:
        answer = await client.responses.create(model="clerk", input="Go")
    assert answer.incomplete_details is not None
    assert answer.status == "incomplete"
    assert answer.incomplete_details.reason == reason
    assert answer.output_text == "Half of"
