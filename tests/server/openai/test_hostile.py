"""Requests that nobody should make, and what is not for clients: no 500, nothing is revealed."""

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


def agent(*turns: Any, **options: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(*turns or ["Hello."] * 100), thoughts=False, name="clerk", **options)


# -- what belongs to others


async def everything(client: httpx.AsyncClient, id: str, context_id: str) -> dict[str, tuple[int, Any]]:
    """What each route says of a response and a conversation."""
    yes = {"type": "mcp_approval_response", "approval_request_id": f"mcpr_{id}:1.0.1", "approve": True}
    shown = {"type": "function_call_output", "call_id": f"{id}:1:0", "output": "x"}
    asked: dict[str, Any] = {
        "previous": {"input": "And?", "previous_response_id": id},
        "conversation": {"input": "And?", "conversation": context_id},
        "approval": {"input": [yes]},
        "output": {"input": [shown]},
    }
    answers = {
        name: await client.post("/v1/responses", json={"model": "clerk", **body}) for name, body in asked.items()
    }
    for path in ("", "?stream=true", "?stream=true&starting_after=3", "/input_items"):
        answers[f"GET {path}"] = await client.get(f"/v1/responses/{id}{path}")
    answers["cancel"] = await client.post(f"/v1/responses/{id}/cancel")
    body = {"model": "clerk", "messages": [{"role": "user", "content": "x"}], "metadata": {"context_id": context_id}}
    answers["chat"] = await client.post("/v1/chat/completions", json=body)
    return {name: (answer.status_code, answer.text.replace(id, "ID")) for name, answer in answers.items()}


async def test_what_is_anothers_looks_like_what_is_not_there() -> None:
    nobody = "01a20428-d3d7-7ba9-bf44-a933530ad41f"
    async with (
        serve_openai(agent()) as served,
        make_client(served.url) as ann,
        make_client(served.url, "bob-key") as bob,
    ):
        body = {"model": "clerk", "input": "Hi", "background": True}
        hers = (await ann.post("/v1/responses", json=body)).json()
        said = await everything(bob, hers["id"], hers["conversation"]["id"])
        nothing = await everything(bob, nobody, nobody)
        # A conversation that nobody has begun may be begun; one of somebody else's is not there.
        for name in ("conversation", "chat"):
            assert (said.pop(name)[0], nothing.pop(name)[0]) == (404, 200)
        assert said == nothing
        assert {status for status, _ in said.values()} == {400, 404}
        kept = (await ann.get(f"/v1/responses/{hers['id']}")).json()
        assert kept["output"][0]["content"][0]["text"] == "Hello."


async def test_nobody_in_particular_gets_nothing_anywhere() -> None:
    async with serve_openai(agent()) as served:
        for token in ("wrong", "ann", "x"):
            async with make_client(served.url, token) as stranger:
                said = await everything(stranger, "x", "x")
                assert {status for status, _ in said.values()} == {401}
                models = await stranger.get("/v1/models")
                assert (models.status_code, models.json()["error"]["code"]) == (401, "invalid_api_key")


@pytest.mark.parametrize("odd", ["x", "%00", "%2e%2e", "a" * 5_000, "%F0%9F%98%80", "'--", "x.2", f"{'0' * 36}.1"])
async def test_an_odd_id_is_no_id(odd: str) -> None:
    async with serve_openai(agent()) as served, make_client(served.url) as ann:
        for path in ("", "/input_items", "?stream=1"):
            answer = await ann.get(f"/v1/responses/{odd}{path}")
            assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found_error")


async def test_a_response_that_does_not_come_is_not_there() -> None:
    async with serve_openai(agent()) as served, make_client(served.url) as ann:
        made = (await ann.post("/v1/responses", json={"model": "clerk", "input": "Hi"})).json()
        assert (await ann.get(f"/v1/responses/{made['id']}.2")).status_code == 404
        assert (await ann.get(f"/v1/responses/{made['id']}.1")).status_code == 404


# -- bodies


DEEP = b"[" * 100_000 + b"]" * 100_000
BODIES: dict[str, tuple[bytes, tuple[int, ...]]] = {
    "nothing": (b"", (400,)),
    "no JSON": (b"{", (400,)),
    "a list": (b"[]", (400,)),
    "deep": (b'{"model": "clerk", "input": ' + DEEP + b"}", (400,)),
    "deep where nobody looks": (b'{"model": "clerk", "input": "x", "reasoning": ' + DEEP + b"}", (200, 400)),
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
async def test_a_body_that_does_not_fit_is_refused_with_a_reason(name: str) -> None:  # L141
    body, expected = BODIES[name]
    async with serve_openai(agent()) as served, make_client(served.url) as ann:
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
    async with serve_openai(agent(), limits=ServerLimits(body=100)) as served, make_client(served.url) as ann:
        assert (await ann.put("/v1/responses", json={})).status_code == 405
        assert (await ann.delete("/v1/responses/x")).status_code == 405
        assert (await ann.get("/v1/nothing")).json()["error"]["code"] == "not_found"
        assert (await ann.post("/v1/responses", content=b"input=x")).status_code == 415
        assert (await ann.post("/v1/responses", json={"input": "x" * 100})).status_code == 413
        for query in ("starting_after=-1", "starting_after=x", "stream=perhaps"):
            assert (await ann.get(f"/v1/responses/{'0' * 36}?{query}")).status_code == 404
            made = (await ann.post("/v1/responses", json={"input": "x"})).json()
            assert (await ann.get(f"/v1/responses/{made['id']}?{query}")).status_code == 400


async def test_too_many_runs_are_refused_with_a_time_to_wait() -> None:
    async with (
        serve_openai(agent(frames("-on", 0.01)), limits=ServerLimits(runs=1)) as served,
        make_client(served.url) as ann,
    ):
        body = {"input": "x", "background": True}
        assert (await ann.post("/v1/responses", json=body)).status_code == 200
        refused = await ann.post("/v1/responses", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert refused.headers["retry-after"]


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
async def test_what_is_sent_once_more_and_refused_leaves_the_run_to_its_first_reader(path: str) -> None:
    clerk = agent(frames("-and so on", 0.05))
    async with serve_openai(clerk, limits=ServerLimits(streams=1)) as served, make_client(served.url) as ann:
        body = {"input": "Hi", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
        asking: Any = {"json": body, "headers": {"idempotency-key": "k"}}
        async with ann.stream("POST", path, **asking) as first:
            await anext(first.aiter_bytes())
            assert (await ann.post(path, **asking)).status_code == 429
            [record] = await served.runtime.log.list_runs()
            assert record.state == "working"


# -- a log that fails


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_log_that_fails_while_a_client_waits_is_said_to_be_out_of_reach(path: str, stream: bool) -> None:
    log = UnavailableLog(MARK)
    async with serve_openai(agent(call("lose"), "Hello.", tools=[log.lose]), log=log) as served:
        async with make_client(served.url) as ann:
            messages = [{"role": "user", "content": "Hi"}]
            answer = await ann.post(path, json={"input": "Hi", "messages": messages, "stream": stream})
        log.unavailable = False
    assert answer.status_code == (200 if stream else 503)
    assert "the log is out of reach" in (answer.text.splitlines()[-2] if stream else answer.text)
    assert MARK not in answer.text


# -- what is hidden


async def said_of(served: OpenAIEndpoint, *, background: bool) -> str:
    """Every byte that the door says of a run."""
    said: list[str] = []
    async with make_client(served.url) as ann:

        async def get(path: str) -> httpx.Response:
            answer = await ann.get(path)
            said.append(f"{answer.headers!r}{answer.text}")
            return answer

        async def post(path: str, **body: Any) -> httpx.Response:
            answer = await ann.post(path, json={"model": "clerk", **body})
            said.append(f"{answer.headers!r}{answer.text}")
            return answer

        first = await post("/v1/responses", input="Look", background=background, stream=True)
        made = orjson.loads(first.text.rpartition("data: ")[2])["response"]
        path = f"/v1/responses/{made['id']}"
        await get("/v1/models")
        await get(path)
        await get(f"{path}/input_items")
        await get(f"{path}?stream=true&starting_after=2")
        asked = f"mcpr_{made['id']}:1.0.1"
        wrong = {"type": "function_call_output", "call_id": asked, "output": "perhaps"}
        await post("/v1/responses", input=[wrong])
        await post("/v1/responses", input=[{**wrong, "output": "no"}], previous_response_id=made["id"])
        await get(f"{path}.2")
        await post("/v1/responses", input="And now?", tools=[{"type": "function", "name": f"peek_{MARK[:3]}"}])
    return "".join(said)


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("background", [True, False])
async def test_no_byte_has_what_is_not_for_clients(name: str, background: bool) -> None:
    log = MemoryEventLog(keep_deltas=True)
    clerk = agent(*RUNS[name], tools=[peek, ask, fail], instructions=f"{MARK}: be brief.")
    async with serve_openai(clerk, log=log) as served:
        said = await said_of(served, background=background)
        [record, *_] = await log.list_runs()
        assert MARK.encode() in b"".join(event.to_json() for event in await log.read(record.task_id))
        # And by a chat completion.
    chat = agent(*RUNS[name], tools=[peek, ask, fail], instructions=f"{MARK}: be brief.")
    async with serve_openai(chat, reasoning_content=True) as served, make_client(served.url) as ann:
        for stream in (True, False):
            body = {"messages": [{"role": "user", "content": "Look"}], "stream": stream}
            said += (await ann.post("/v1/chat/completions", json=body)).text
    assert MARK not in said, said[max(said.index(MARK) - 400, 0) : said.index(MARK) + 40]
