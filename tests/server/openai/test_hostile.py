"""Access control, request validation and hidden content of the OpenAI adapter."""

from __future__ import annotations

from typing import Any

import httpx
import orjson
import pytest

from rxloop import Agent, MemoryEventLog
from rxloop.server import ServerLimits
from rxloop.testing import ScriptedModel, call, frames
from support.api_server import UnavailableLog, make_client
from support.clients.openai import OpenAIEndpoint, serve_openai
from support.hidden_tools import MARK, RUNS, ask, fail, peek


def make_agent(*turns: Any, **options: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(*turns or ["Hello."] * 100), thoughts=False, name="clerk", **options)


# -- access control


async def call_all_routes(client: httpx.AsyncClient, id: str, context_id: str) -> dict[str, tuple[int, Any]]:
    """Return the answer of each route for a response and a conversation."""
    yes = {"type": "mcp_approval_response", "approval_request_id": f"mcpr_{id}:1.0.1", "approve": True}
    output = {"type": "function_call_output", "call_id": f"{id}:1:0", "output": "x"}
    bodies: dict[str, Any] = {
        "previous": {"input": "And?", "previous_response_id": id},
        "conversation": {"input": "And?", "conversation": context_id},
        "approval": {"input": [yes]},
        "output": {"input": [output]},
    }
    answers = {
        name: await client.post("/v1/responses", json={"model": "clerk", **body}) for name, body in bodies.items()
    }
    for path in ("", "?stream=true", "?stream=true&starting_after=3", "/input_items"):
        answers[f"GET {path}"] = await client.get(f"/v1/responses/{id}{path}")
    answers["cancel"] = await client.post(f"/v1/responses/{id}/cancel")
    body = {"model": "clerk", "messages": [{"role": "user", "content": "x"}], "metadata": {"context_id": context_id}}
    answers["chat"] = await client.post("/v1/chat/completions", json=body)
    return {name: (answer.status_code, answer.text.replace(id, "ID")) for name, answer in answers.items()}


async def test_response_of_another_owner_looks_like_an_unknown_response() -> None:
    unknown = "01a20428-d3d7-7ba9-bf44-a933530ad41f"
    async with (
        serve_openai(make_agent()) as served,
        make_client(served.url) as ann,
        make_client(served.url, "bob-key") as bob,
    ):
        body = {"model": "clerk", "input": "Hi", "background": True}
        hers = (await ann.post("/v1/responses", json=body)).json()
        foreign = await call_all_routes(bob, hers["id"], hers["conversation"]["id"])
        missing = await call_all_routes(bob, unknown, unknown)
        for name in ("conversation", "chat"):
            assert foreign.pop(name)[0] == missing.pop(name)[0] == 200
        assert foreign == missing
        assert {status for status, _ in foreign.values()} == {400, 404}
        stored = (await ann.get(f"/v1/responses/{hers['id']}")).json()
        assert stored["output"][0]["content"][0]["text"] == "Hello."


async def test_unauthenticated_client_gets_nothing() -> None:
    async with serve_openai(make_agent()) as served:
        for token in ("wrong", "ann", "x"):
            async with make_client(served.url, token) as anonymous:
                answers = await call_all_routes(anonymous, "x", "x")
                assert {status for status, _ in answers.values()} == {401}
                models = await anonymous.get("/v1/models")
                assert models.status_code == 401
                assert models.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize("bad_id", ["x", "%00", "%2e%2e", "a" * 5_000, "%F0%9F%98%80", "'--", "x.2", f"{'0' * 36}.1"])
async def test_malformed_id_is_unknown(bad_id: str) -> None:
    async with serve_openai(make_agent()) as served, make_client(served.url) as ann:
        for path in ("", "/input_items", "?stream=1"):
            answer = await ann.get(f"/v1/responses/{bad_id}{path}")
            assert answer.status_code == 404
            assert answer.json()["error"]["type"] == "not_found_error"


async def test_future_response_of_a_run_is_unknown() -> None:
    async with serve_openai(make_agent()) as served, make_client(served.url) as ann:
        created = (await ann.post("/v1/responses", json={"model": "clerk", "input": "Hi"})).json()
        assert (await ann.get(f"/v1/responses/{created['id']}.2")).status_code == 404
        assert (await ann.get(f"/v1/responses/{created['id']}.1")).status_code == 404


# -- bodies


DEEP = b"[" * 100_000 + b"]" * 100_000
BODIES: dict[str, tuple[bytes, tuple[int, ...]]] = {
    "nothing": (b"", (400,)),
    "no JSON": (b"{", (400,)),
    "a list": (b"[]", (400,)),
    "deep": (b'{"model": "clerk", "input": ' + DEEP + b"}", (400,)),
    "deep in an ignored field": (b'{"model": "clerk", "input": "x", "reasoning": ' + DEEP + b"}", (200, 400)),
    "a wrong type": (b'{"model": "clerk", "input": 7}', (400,)),
    "an empty input": (b'{"model": "clerk", "input": ""}', (400,)),
    "no items": (b'{"model": "clerk", "input": []}', (400,)),
    "items of an unknown kind": (b'{"model": "clerk", "input": [{"type": "computer_call_output"}]}', (400,)),
    "an item that is none": (b'{"model": "clerk", "input": [7, null, "x"]}', (400,)),
    "a kind that is a list": (b'{"model": "clerk", "input": [{"type": []}]}', (400,)),
    "too many items": (
        b'{"model": "clerk", "input": [' + b",".join([b'{"role":"user","content":"x"}'] * 513) + b"]}",
        (400,),
    ),
    "an unknown role": (b'{"model": "clerk", "input": [{"role": "root", "content": "x"}]}', (400,)),
    "the agent speaks last": (b'{"model": "clerk", "input": [{"role": "assistant", "content": "x"}]}', (400,)),
    "a text that is too long": (b'{"model": "clerk", "input": "' + b"x" * 100_001 + b'"}', (400,)),
    "half a character": (b'{"model": "clerk", "input": "\\ud800"}', (400,)),
    "bytes that are no text": (b'{"model": "clerk", "input": "\xff\xfe"}', (400,)),
    "a NUL": (b'{"model": "clerk", "input": "a\\u0000b"}', (200,)),
    "an odd conversation": (b'{"model": "clerk", "input": "x", "conversation": ".."}', (400,)),
    "a file of this machine": (
        b'{"model": "clerk", "input": [{"role": "user", "content": [{"type": "input_file", "file_url": "file:///etc/passwd"}]}]}',
        (400,),
    ),
    "bad base64": (
        b'{"model":"clerk","input":[{"role":"user","content":[{"type":"input_image","image_url":"data:image/png;base64,***"}]}]}',
        (400,),
    ),
    "a tool of the platform": (b'{"model": "clerk", "input": "x", "tools": [{"type": "web_search"}]}', (400,)),
    "a tool that is no tool": (
        b'{"model": "clerk", "input": "x", "tools": [{"type": "function", "name": "a", "parameters": {"type": 7}}]}',
        (400,),
    ),
    "a tool with a number that no log keeps": (
        b'{"model":"clerk","input":"x","tools":[{"type":"function","name":"a","parameters":'
        b'{"type":"object","properties":{"a":{"maximum":1000000000000000000000000000000}}}}]}',
        (400,),
    ),
    "two tools of one name": (
        b'{"model":"clerk","input":"x","tools":[{"type":"function","name":"a"},{"type":"function","name":"a"}]}',
        (400,),
    ),
    "an approval that is no yes": (
        b'{"model":"clerk","input":[{"type":"mcp_approval_response","approval_request_id":"x","approve":"yes"}]}',
        (400,),
    ),
    "metadata that is no text": (b'{"model": "clerk", "input": "x", "metadata": {"a": 7}}', (400,)),
    "metadata of a lot": (b'{"model": "clerk", "input": "x", "metadata": {"a": "' + b"x" * 513 + b'"}}', (400,)),
    "a template": (b'{"model": "clerk", "input": "x", "prompt": {"id": "p"}}', (400,)),
    "unknown fields": (b'{"model": "clerk", "input": "x", "owner": "bob", "temperature": "hot"}', (200,)),
    "no model, where there is one": (b'{"input": "x"}', (200,)),
    "no such model": (b'{"model": "gpt-4", "input": "x"}', (404,)),
}


@pytest.mark.parametrize("name", BODIES)
async def test_invalid_body_is_refused_with_a_reason(name: str) -> None:  # L141
    body, expected = BODIES[name]
    async with serve_openai(make_agent()) as served, make_client(served.url) as ann:
        answer = await ann.post("/v1/responses", content=body, headers={"content-type": "application/json"})
        assert answer.status_code in expected, answer.text
        if answer.status_code != 200:
            error = answer.json()["error"]
            assert {*error} == {"message", "type", "param", "code"}
            assert error["message"]
            assert error["code"]
        chat = body.replace(b'"input"', b'"messages"')
        answer = await ann.post("/v1/chat/completions", content=chat, headers={"content-type": "application/json"})
        assert answer.status_code in (200, 400, 404), answer.text


async def test_other_methods_media_types_and_sizes_are_refused() -> None:
    async with serve_openai(make_agent(), limits=ServerLimits(body=100)) as served, make_client(served.url) as ann:
        assert (await ann.put("/v1/responses", json={})).status_code == 405
        assert (await ann.delete("/v1/responses/x")).status_code == 405
        assert (await ann.get("/v1/nothing")).json()["error"]["code"] == "not_found"
        assert (await ann.post("/v1/responses", content=b"input=x")).status_code == 415
        assert (await ann.post("/v1/responses", json={"input": "x" * 100})).status_code == 413
        for query in ("starting_after=-1", "starting_after=x", "stream=perhaps"):
            assert (await ann.get(f"/v1/responses/{'0' * 36}?{query}")).status_code == 404
            created = (await ann.post("/v1/responses", json={"input": "x"})).json()
            assert (await ann.get(f"/v1/responses/{created['id']}?{query}")).status_code == 400


async def test_run_above_the_limit_is_refused_with_a_retry_time() -> None:
    async with (
        serve_openai(make_agent(frames("-on", 0.01)), limits=ServerLimits(runs=1)) as served,
        make_client(served.url) as ann,
    ):
        body = {"input": "x", "background": True}
        assert (await ann.post("/v1/responses", json=body)).status_code == 200
        refused = await ann.post("/v1/responses", json=body)
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert refused.headers["retry-after"]


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
async def test_refused_duplicate_does_not_affect_the_run_of_its_first_reader(path: str) -> None:
    clerk = make_agent(frames("-and so on", 0.05))
    async with serve_openai(clerk, limits=ServerLimits(streams=1)) as served, make_client(served.url) as ann:
        body = {"input": "Hi", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
        request: Any = {"json": body, "headers": {"idempotency-key": "k"}}
        async with ann.stream("POST", path, **request) as first:
            await anext(first.aiter_bytes())
            assert (await ann.post(path, **request)).status_code == 429
            [record] = await served.runtime.log.list_runs()
            assert record.state == "working"


# -- failing logs


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [True, False])
async def test_failing_log_is_reported_as_unavailable(path: str, stream: bool) -> None:
    log = UnavailableLog(MARK)
    async with serve_openai(make_agent(call("lose"), "Hello.", tools=[log.lose]), log=log) as served:
        async with make_client(served.url) as ann:
            messages = [{"role": "user", "content": "Hi"}]
            answer = await ann.post(path, json={"input": "Hi", "messages": messages, "stream": stream})
        log.unavailable = False
    assert answer.status_code == (200 if stream else 503)
    assert "the event log is unavailable" in (answer.text.splitlines()[-2] if stream else answer.text)
    assert MARK not in answer.text


# -- hidden content


async def collect_output(served: OpenAIEndpoint, *, background: bool) -> str:
    """Return all data that the server sends about a run."""
    texts: list[str] = []
    async with make_client(served.url) as ann:

        async def get(path: str) -> httpx.Response:
            answer = await ann.get(path)
            texts.append(f"{answer.headers!r}{answer.text}")
            return answer

        async def post(path: str, **body: Any) -> httpx.Response:
            answer = await ann.post(path, json={"model": "clerk", **body})
            texts.append(f"{answer.headers!r}{answer.text}")
            return answer

        first = await post("/v1/responses", input="Look", background=background, stream=True)
        created = orjson.loads(first.text.rpartition("data: ")[2])["response"]
        path = f"/v1/responses/{created['id']}"
        await get("/v1/models")
        await get(path)
        await get(f"{path}/input_items")
        await get(f"{path}?stream=true&starting_after=2")
        question_id = f"mcpr_{created['id']}:1.0.1"
        wrong = {"type": "function_call_output", "call_id": question_id, "output": "perhaps"}
        await post("/v1/responses", input=[wrong])
        await post("/v1/responses", input=[{**wrong, "output": "no"}], previous_response_id=created["id"])
        await get(f"{path}.2")
        await post("/v1/responses", input="And now?", tools=[{"type": "function", "name": f"peek_{MARK[:3]}"}])
    return "".join(texts)


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("background", [True, False])
async def test_hidden_content_is_in_no_byte_of_the_answers(name: str, background: bool) -> None:
    log = MemoryEventLog(keep_deltas=True)
    clerk = make_agent(*RUNS[name], tools=[peek, ask, fail], instructions=f"{MARK}: be brief.")
    async with serve_openai(clerk, log=log) as served:
        output = await collect_output(served, background=background)
        [record, *_] = await log.list_runs()
        assert MARK.encode() in b"".join(event.to_json() for event in await log.read(record.task_id))
    chat = make_agent(*RUNS[name], tools=[peek, ask, fail], instructions=f"{MARK}: be brief.")
    async with serve_openai(chat, reasoning_content=True) as served, make_client(served.url) as ann:
        for stream in (True, False):
            body = {"messages": [{"role": "user", "content": "Look"}], "stream": stream}
            output += (await ann.post("/v1/chat/completions", json=body)).text
    assert MARK not in output, output[max(output.index(MARK) - 400, 0) : output.index(MARK) + 40]
