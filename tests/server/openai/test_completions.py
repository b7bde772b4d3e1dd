"""`/v1/chat/completions` with the official client over real sockets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from openai import APIError, BadRequestError, InternalServerError, RateLimitError

from rxloop import Agent, MemoryEventLog, Usage, tool
from rxloop.errors import RateLimited, ServerError
from rxloop.protocol.messages import Citation
from rxloop.testing import ScriptedModel, call, frames, turn
from support.api_server import make_client
from support.clients.openai import OpenAIEndpoint, serve_openai
from support.random_runs import InterruptedAnswer, Model
from support.vendors.openai_checks import check_chunks, check_completion

HELLO: Any = [{"role": "user", "content": "Hi"}]


@tool(approve=True)
async def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


@tool
async def weather(city: str) -> str:
    """Return the weather."""
    return f"7 C in {city}"


def make_clerk(*turns: Any, **options: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(*turns), tools=[pay, weather], thoughts=False, name="clerk", **options)


async def wait_until_idle(served: OpenAIEndpoint, task_id: str) -> str:
    async with asyncio.timeout(10):
        async for _ in served.runtime.follow(task_id):
            pass
    return (await served.runtime.get_record(task_id)).state


def make_worker() -> Agent[Any, Any]:
    first = turn("Let me see.", calls=[call("weather", city="Oslo")], reasoning="Hm.", usage=Usage(input_tokens=10))
    counted = Usage(input_tokens=20, output_tokens=4, cached_tokens=5, cache_write_tokens=9)
    return make_clerk(first, turn(frames("-It -is -7 C.|", 0.001), usage=counted))


@pytest.mark.parametrize("reasoning", [True, False])
async def test_answer_is_the_text_of_all_steps(reasoning: bool) -> None:
    async with serve_openai(make_worker(), reasoning_content=reasoning) as served, served.client() as client:
        answer = await client.chat.completions.create(model="clerk", messages=HELLO)
        check_completion(answer.to_dict())
        [choice] = answer.choices
        assert choice.message.content == "Let me see.\n\nIt is 7 C."
        assert choice.finish_reason == "stop"
        assert getattr(choice.message, "reasoning_content", None) == ("Hm." if reasoning else None)
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == 30
        assert answer.usage.completion_tokens == 4
        details = answer.usage.prompt_tokens_details
        assert details is not None
        assert details.cached_tokens == 5
        assert details.cache_write_tokens == 9


async def test_stream_has_the_same_text_and_usage_on_request() -> None:
    async with serve_openai(make_worker(), reasoning_content=True) as served, served.client() as client:
        stream = await client.chat.completions.create(
            model="clerk", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk.to_dict() async for chunk in stream]
        assert check_chunks(chunks) == "Let me see.\n\nIt is 7 C."
        *usual, last = chunks
        assert (last["choices"], last["usage"]["total_tokens"]) == ([], 34)  # pyright: ignore[reportIndexIssue]
        assert all(chunk["usage"] is None for chunk in usual)
    async with serve_openai(make_worker()) as served, served.client() as client:
        async with client.chat.completions.stream(model="clerk", messages=HELLO) as helper:
            final = await helper.get_final_completion()
        assert final.choices[0].message.content == "Let me see.\n\nIt is 7 C."
        assert final.usage is None


async def test_history_comes_from_the_client_or_from_a_named_conversation() -> None:
    seen: list[list[tuple[str, str]]] = []

    def answer(request: Any) -> str:
        seen.append([(message.role, message.text) for message in request.messages])
        return f"Answer {len(seen)}."

    history: Any = [*HELLO, {"role": "assistant", "content": "Answer 1."}, {"role": "user", "content": "And?"}]
    async with serve_openai(make_clerk(*[answer] * 4)) as served, served.client() as client:
        create = client.chat.completions.create
        await create(model="clerk", messages=history)
        assert seen[-1] == [("user", "Hi"), ("assistant", "Answer 1."), ("user", "And?")]
        await create(model="clerk", messages=HELLO, metadata={"context_id": "c-1"})
        history[1]["content"] = "Something that was never said."
        await create(model="clerk", messages=history, metadata={"context_id": "c-1"})
        assert seen[-1] == [("user", "Hi"), ("assistant", "Answer 2."), ("user", "And?")]
        with pytest.raises(BadRequestError, match="last message"):
            await create(model="clerk", messages=history[:2])


async def test_image_is_sent_to_the_model() -> None:
    seen: list[Any] = []

    def answer(request: Any) -> str:
        seen.extend(request.messages[-1].content)
        return "A dot."

    parts: Any = [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "image_url", "image_url": {"url": "https://example.org/dot.png"}},
    ]
    async with serve_openai(make_clerk(answer)) as served, served.client() as client:
        await client.chat.completions.create(model="clerk", messages=[{"role": "user", "content": parts}])
        assert [each.type for each in seen] == ["text", "image", "image"]
        assert seen[1].data == b"\x00\x00\x00"
        assert seen[1].media_type == "image/png"
        assert seen[2].url == "https://example.org/dot.png"
        parts[2]["image_url"]["url"] = "file:///etc/passwd"
        with pytest.raises(BadRequestError, match="http"):
            await client.chat.completions.create(model="clerk", messages=[{"role": "user", "content": parts}])


async def test_failure_is_an_error_before_and_during_a_stream() -> None:
    failing = [RateLimited("sk-secret"), ServerError("sk-secret"), frames("-So-#", 0.001)]
    async with serve_openai(make_clerk(*failing)) as served, served.client() as client:
        with pytest.raises(RateLimitError) as limited:
            await client.chat.completions.create(model="clerk", messages=HELLO)
        with pytest.raises(InternalServerError) as broken:
            await client.chat.completions.create(model="clerk", messages=HELLO)
        stream = aiter(await client.chat.completions.create(model="clerk", messages=HELLO, stream=True))
        pieces = [(await anext(stream)).choices[0].delta.content for _ in range(2)]
        assert pieces == ["", "So"]
        with pytest.raises(APIError) as interrupted:
            await anext(stream)
        assert limited.value.response.headers["x-should-retry"] == "false"
        for each in (limited, broken, interrupted):
            assert "sk-secret" not in str(each.value.body)


async def test_question_is_returned_as_text() -> None:
    async with serve_openai(make_clerk(call("pay", amount=5))) as served, served.client() as client:
        answer = await client.chat.completions.create(model="clerk", messages=HELLO)
        assert answer.choices[0].message.content == "Call pay with amount: 5?"


async def test_reader_that_disconnects_cancels_the_run() -> None:
    log = MemoryEventLog()
    async with serve_openai(make_clerk(frames("-on and on", 0.005)), log=log) as served, served.client() as client:
        stream = await client.chat.completions.create(model="clerk", messages=HELLO, stream=True)
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        await stream.close()
        [record] = await log.list_runs()
        assert await wait_until_idle(served, record.task_id) == "canceled"


async def test_citations_are_annotations_of_the_answer() -> None:
    cited = [
        Citation(url="https://e.org/7", title="Weather", start=6, end=9),
        Citation(url="javascript:alert(1)"),
        Citation(url="https://e.org/\r\nhttps://evil.example"),
        Citation(title="a document"),
    ]
    first = turn("Let me see.", calls=[call("weather", city="Oslo")])
    expected = [{"url": "https://e.org/7", "title": "Weather", "start_index": 19, "end_index": 22}]
    async with (
        serve_openai(make_clerk(first, turn("It is 7 C.", citations=cited))) as served,
        served.client() as client,
    ):
        answer = await client.chat.completions.create(model="clerk", messages=HELLO)
        check_completion(answer.to_dict())
        message = answer.choices[0].message
        assert [each.url_citation.to_dict() for each in message.annotations or []] == expected
        assert (message.content or "")[19:22] == "7 C"
    async with (
        serve_openai(make_clerk(first, turn("It is 7 C.", citations=cited))) as served,
        served.client() as client,
    ):
        stream = await client.chat.completions.create(model="clerk", messages=HELLO, stream=True)
        deltas = [chunk.choices[0].delta.to_dict() async for chunk in stream if chunk.choices]
        assert [each["annotations"] for each in deltas if "annotations" in each] == [
            [{"type": "url_citation", "url_citation": each} for each in expected]
        ]


async def test_annotation_offsets_in_a_stream_include_the_text_of_failed_attempts() -> None:
    cited = [Citation(url="https://e.org/7", title="Weather", start=6, end=9)]
    model = Model(lambda request: InterruptedAnswer("", "It", turn("It is 7 C.", citations=cited)))
    async with serve_openai(Agent(model, thoughts=False, name="clerk")) as served, served.client() as client:
        async with client.chat.completions.stream(model="clerk", messages=HELLO) as helper:
            streamed = (await helper.get_final_completion()).choices[0].message
        text: str = streamed.content or ""
        assert text == "It\n\nIt is 7 C."
        [annotation] = streamed.annotations or []
        assert text[annotation.url_citation.start_index : annotation.url_citation.end_index] == "7 C"


async def test_stream_ends_with_an_error_at_shutdown() -> None:
    async with serve_openai(make_clerk(frames("-on and on", 0.005))) as served, served.client() as client:
        stream = await client.chat.completions.create(model="clerk", messages=HELLO, stream=True)
        chunks = aiter(stream)
        await anext(chunks)
        draining = asyncio.create_task(served.app.drain(0.05))
        with pytest.raises(APIError, match="shutting down"):
            async for _ in chunks:
                pass
        await draining
        with pytest.raises(APIError) as refused:
            await client.chat.completions.create(model="clerk", messages=HELLO)
        assert refused.value.code == "draining"


async def test_unsupported_parameters_are_refused() -> None:
    schema: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    function: Any = {"type": "function", "function": {"name": "x", "parameters": {}}}
    unsupported: list[dict[str, Any]] = [
        {"n": 2},
        {"tools": [function]},
        {"response_format": schema},
        {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}},
    ]
    async with serve_openai(make_clerk()) as served, served.client() as client:
        for each in unsupported:
            with pytest.raises(BadRequestError) as refused:
                await client.chat.completions.create(model="clerk", messages=HELLO, **each)
            assert refused.value.code == "unsupported_parameter"


@pytest.mark.parametrize("name", ["", " a", "a2a\x1fpush", "x" * 256, "a\n", ".."])
async def test_invalid_conversation_name_is_refused(name: str) -> None:
    log = MemoryEventLog()
    async with (
        serve_openai(Agent(ScriptedModel("Yes."), name="clerk"), log=log) as served,
        make_client(served.url) as ann,
    ):
        body = {"messages": [{"role": "user", "content": "Hi"}], "metadata": {"context_id": name}}
        answer = await ann.post("/v1/chat/completions", json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "metadata.context_id"
        assert await log.list_runs() == []


@pytest.mark.parametrize(
    ("finish", "reason"), [("length", "length"), ("content_filter", "content_filter"), ("unknown", "length")]
)
async def test_finish_reason_reports_an_incomplete_answer(finish: str, reason: str) -> None:  # P9, P15
    agent = make_clerk(turn("Half of", finish_reason=finish), turn("Half of", finish_reason=finish))
    async with serve_openai(agent) as served, served.client() as client:
        answer = await client.chat.completions.create(model="clerk", messages=HELLO)
        stream = await client.chat.completions.create(model="clerk", messages=HELLO, stream=True)
        reasons = [chunk.choices[0].finish_reason async for chunk in stream if chunk.choices]
    assert answer.choices[0].finish_reason == reason
    assert reasons[-1] == reason
