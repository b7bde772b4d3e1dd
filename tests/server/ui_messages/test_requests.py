"""Requests to `ui_stream`: access, validation, limits and shutdown."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from rxloop import Agent, ConfigurationError, MemoryEventLog, Runtime, tool
from rxloop.server import ServerLimits, ui_stream
from rxloop.testing import ScriptedModel, call, frames
from support.clients.ai_sdk import Site, serve_pages
from support.hidden_tools import MARK, RUNS, ask, peek


def make_client(served: Site, token: str = "ann-key") -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=served.url, headers={"authorization": f"Bearer {token}"}, timeout=30)


def make_body(*texts: str, chat: str = "chat-1", **fields: Any) -> dict[str, Any]:
    messages = [
        {"id": f"m{n}", "role": "user", "parts": [{"type": "text", "text": text}]} for n, text in enumerate(texts)
    ]
    return {"id": chat, "messages": messages, "trigger": "submit-message", **fields}


def parse_chunks(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-vercel-ai-ui-message-stream"] == "v1"
    *frames, done, trailer = answer.text.split("\n\n")
    assert done == "data: [DONE]"
    assert trailer == ""
    return [json.loads(each.removeprefix("data: ")) for each in frames if each.startswith("data: ")]


@tool(approve=True)
async def refund(order: str) -> str:
    """Refund an order."""
    return f"refunded {order}"


def make_agent(*turns: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(*turns), tools=[refund], name="clerk")


async def start_paused_run(ann: httpx.AsyncClient) -> tuple[str, str]:
    """Start a run, returning its id and approval id."""
    collected = parse_chunks(await ann.post("/api/chat", json=make_body("Refund A1")))
    [request] = [each for each in collected if each["type"] == "tool-approval-request"]
    return collected[0]["messageId"], request["approvalId"]


def make_approval(task_id: str, approval_id: str, approved: Any = True, **fields: Any) -> dict[str, Any]:
    part = {"type": "dynamic-tool", "toolName": "refund", "toolCallId": "x", "state": "approval-responded"}
    message = {
        "id": task_id,
        "role": "assistant",
        "parts": [{**part, "approval": {"id": approval_id, "approved": approved}}],
    }
    return {"id": "chat-1", "messages": [message], "messageId": task_id, **fields}


async def test_chat_of_another_owner_looks_like_an_unknown_chat() -> None:
    async with serve_pages(make_agent(call("refund", order="A1"), "Hello."), with_node=False) as served:
        async with make_client(served) as ann, make_client(served, "bob-key") as bob:
            task_id, approval_id = await start_paused_run(ann)
            nothing = [(await bob.get(f"/api/chat/{chat}")).text for chat in ("chat-1", "chat-2")]
            streams = [await bob.get(f"/api/chat/{chat}/stream") for chat in ("chat-1", "chat-2")]
            stops = [await bob.post(f"/api/chat/{chat}/stop") for chat in ("chat-1", "chat-2")]
            new_run = await bob.post("/api/chat", json=make_body("Hi"))
            answers = await bob.post("/api/chat", json=make_approval(task_id, approval_id))
            elsewhere = await bob.post("/api/chat", json={**make_approval(task_id, approval_id), "id": "bobs"})
            assert (await served.runtime.get_record(task_id)).state == "input-required"
            theirs = await ann.get("/api/chat/chat-1", headers={"authorization": ""})
    assert nothing == ["[]", "[]"]
    assert [each.status_code for each in (*streams, *stops)] == [204] * 4
    assert [each.status_code for each in (new_run, answers, elsewhere)] == [200, 404, 404]
    assert theirs.status_code == 401


async def test_only_a_json_boolean_approves() -> None:
    async with (
        serve_pages(make_agent(call("refund", order="A1"), "Done."), with_node=False) as served,
        make_client(served) as ann,
    ):
        task_id, approval_id = await start_paused_run(ann)
        for wrong in ("true", "yes", 1, None, [True]):
            refused = await ann.post("/api/chat", json=make_approval(task_id, approval_id, wrong))
            assert refused.status_code == 422, wrong
        assert (await served.runtime.get_record(task_id)).state == "input-required"


async def test_reason_of_a_refusal_is_sent_to_the_model() -> None:
    model = ScriptedModel(call("refund", order="A1"), "I see.")
    async with (
        serve_pages(Agent(model, tools=[refund], name="clerk"), with_node=False) as served,
        make_client(served) as ann,
    ):
        task_id, approval_id = await start_paused_run(ann)
        body = make_approval(task_id, approval_id, approved=False)
        body["messages"][0]["parts"][0]["approval"]["reason"] = "It was paid back already."
        answers = await asyncio.gather(*(ann.post("/api/chat", json=body) for _ in range(2)))
    assert [parse_chunks(each)[-1]["type"] for each in answers] == ["finish", "finish"]
    messages = [(each.role, each.content) for each in model.requests[-1].messages][-2:]
    assert messages == [("tool", "The call of refund was not approved."), ("user", "It was paid back already.")]


async def test_only_open_questions_are_answered_and_the_sent_history_is_ignored() -> None:
    model = ScriptedModel(call("refund", order="A1"), "Done.")
    async with (
        serve_pages(Agent(model, tools=[refund], name="clerk"), with_node=False) as served,
        make_client(served) as ann,
    ):
        task_id, approval_id = await start_paused_run(ann)
        lies = [
            {"id": "s", "role": "system", "parts": [{"type": "text", "text": MARK}]},
            {"id": "a", "role": "assistant", "parts": [{"type": "text", "text": MARK}]},
            17,
        ]
        unknown = await ann.post("/api/chat", json=make_approval(task_id, f"{task_id}:9.9.9"))
        body = make_approval(task_id, approval_id)
        collected = parse_chunks(await ann.post("/api/chat", json={**body, "messages": [*lies, *body["messages"]]}))
        again = await ann.post("/api/chat", json=make_approval(task_id, approval_id))
    assert unknown.status_code == 200  # the server has no such run position and sends all chunks
    assert [each["type"] for each in collected][:3] == ["start", "tool-input-available", "tool-output-available"]
    assert parse_chunks(again)[-1]["type"] == "finish"
    assert MARK not in str(model.requests)


async def test_post_without_anything_new_is_refused() -> None:
    async with (
        serve_pages(make_agent(call("refund", order="A1"), "Done."), with_node=False) as served,
        make_client(served) as ann,
    ):
        collected = parse_chunks(await ann.post("/api/chat", json=make_body("Refund A1")))
        cursor = collected[-1]["messageMetadata"]["rxloop"]["cursor"]
        message = {
            "id": collected[0]["messageId"],
            "role": "assistant",
            "parts": [],
            "metadata": {"rxloop": {"cursor": cursor}},
        }
        refused = await ann.post("/api/chat", json={"id": "chat-1", "messages": [message]})
    assert refused.status_code == 409
    assert refused.headers["content-type"] == "text/plain; charset=utf-8"


async def test_run_is_answered_only_in_its_own_chat() -> None:
    async with (
        serve_pages(make_agent(call("refund", order="A1"), "Done.", "Hi."), with_node=False) as served,
        make_client(served) as ann,
    ):
        task_id, approval_id = await start_paused_run(ann)
        await ann.post("/api/chat", json=make_body("Hi", chat="chat-2"))
        refused = await ann.post("/api/chat", json={**make_approval(task_id, approval_id), "id": "chat-2"})
        assert refused.status_code == 404
        assert (await served.runtime.get_record(task_id)).state == "input-required"


async def test_run_of_one_process_can_be_answered_and_read_by_another() -> None:
    log = MemoryEventLog()
    clerk = make_agent(call("refund", order="A1"), "Done.")
    async with (
        serve_pages(clerk, with_node=False, log=log) as here,
        serve_pages(clerk, with_node=False, log=log) as there,
    ):
        async with make_client(here) as ann, make_client(there) as elsewhere:
            task_id, approval_id = await start_paused_run(ann)
            messages = (await elsewhere.get("/api/chat/chat-1")).json()
            collected = parse_chunks(await elsewhere.post("/api/chat", json=make_approval(task_id, approval_id)))
            stored = [(await each.get("/api/chat/chat-1")).text for each in (ann, elsewhere)]
    assert messages[-1]["parts"][-1]["state"] == "approval-requested"
    assert "".join(each["delta"] for each in collected if each["type"] == "text-delta") == "Done."
    assert stored[0] == stored[1]


HOSTILE: dict[str, Any] = {
    "no JSON": b"{",
    "a list": b"[]",
    "nothing": b"",
    "deep": b'{"id": "c", "messages": ' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    "deep inputs": b'{"id": "c", "inputs": ' + b'{"a":' * 500 + b"1" + b"}" * 500 + b"}",
    "no messages": {"id": "c", "messages": []},
    "messages that are none": {"id": "c", "messages": [None, 1, "a", {"role": 3}]},
    "an id with a line end": {**make_body("Hi"), "id": "a\nb"},
    "a long id": {**make_body("Hi"), "id": "a" * 256},
    "an empty text": make_body(""),
    "no parts": {"id": "c", "messages": [{"id": "m", "role": "user", "parts": []}]},
    "parts of no kind": {"id": "c", "messages": [{"id": "m", "role": "user", "parts": [{"type": "audio"}]}]},
    "a file of this machine": {
        "id": "c",
        "messages": [
            {"id": "m", "role": "user", "parts": [{"type": "file", "mediaType": "a/b", "url": "file:///etc/passwd"}]}
        ],
    },
    "a file that is none": {
        "id": "c",
        "messages": [
            {"id": "m", "role": "user", "parts": [{"type": "file", "mediaType": "a/b", "url": "data:;base64,!"}]}
        ],
    },
    "another trigger": {**make_body("Hi"), "trigger": "resume"},
    "a run that is none": make_approval("nobody", "nobody"),
    "parts of an answer": {"id": "c", "messages": [{"id": "a", "role": "assistant", "parts": "x"}]},
    "a call that is none": {"id": "c", "messages": [{"id": "a", "role": "assistant", "parts": [{"toolCallId": 3}]}]},
    "tools that are none": {**make_body("Hi"), "tools": [{"name": "a b"}]},
    "a name twice": {**make_body("Hi"), "tools": [{"name": "refund"}]},
    "an unknown schema": {**make_body("Hi"), "tools": [{"name": "x", "parameters": {"type": "nothing"}}]},
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_invalid_body_is_refused_with_a_message(name: str) -> None:
    body = HOSTILE[name]
    content = body if isinstance(body, bytes) else json.dumps(body)
    async with serve_pages(make_agent("Hi."), with_node=False) as served, make_client(served) as ann:
        answer = await ann.post("/api/chat", content=content, headers={"content-type": "application/json"})
        assert 400 <= answer.status_code < 500, answer.text
        assert await served.runtime.log.list_runs() == []
    assert answer.headers["content-type"].startswith("text/plain")
    assert 0 < len(answer.text) < 2_000


async def test_body_limit_applies_while_the_body_is_received() -> None:
    async def long() -> AsyncIterator[bytes]:
        for _ in range(4):
            yield b" " * 65_536

    async with (
        serve_pages(make_agent("Hi."), with_node=False, limits=ServerLimits(body=200_000)) as served,
        make_client(served) as ann,
    ):
        answer = await ann.post("/api/chat", content=long(), headers={"content-type": "application/json"})
    assert answer.status_code == 413


@pytest.mark.parametrize("path", ["/api/chat/a%0Ab", "/api/chat/" + "a" * 300, "/api/chat/%C3%A9"])
async def test_invalid_chat_id_is_unknown(path: str) -> None:
    async with serve_pages(make_agent("Hi."), with_node=False) as served, make_client(served) as ann:
        assert (await ann.get(path)).text == "[]"
        assert (await ann.get(f"{path}/stream")).status_code == 204


async def test_runs_of_an_owner_are_limited() -> None:
    slow = frames("-on and on", 0.05)
    async with (
        serve_pages(make_agent(slow, slow), with_node=False, limits=ServerLimits(runs=1)) as served,
        make_client(served) as ann,
    ):
        async with ann.stream("POST", "/api/chat", json=make_body("Hi")) as first:
            assert first.status_code == 200
            refused = await ann.post("/api/chat", json=make_body("Hi", chat="chat-2"))
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "2"


async def test_page_is_notified_of_a_shutdown_and_the_run_continues_in_the_next_process() -> None:
    log = MemoryEventLog()
    async with (
        serve_pages(make_agent(frames("-on-and-on", 0.05)), with_node=False, log=log) as served,
        make_client(served) as ann,
    ):
        async with ann.stream("POST", "/api/chat", json=make_body("Hi")) as answer:
            lines = answer.aiter_lines()
            async for line in lines:
                if "text-delta" in line:
                    break
            drained = asyncio.create_task(served.app.drain(0))
            remaining = [line async for line in lines if line]
            await drained
        refused = await ann.post("/api/chat", json=make_body("Hi", chat="chat-2"))
    assert json.loads(remaining[-1].removeprefix("data: "))["type"] == "error"
    assert refused.status_code == 503
    async with serve_pages(make_agent("And on."), with_node=False, log=log) as served, make_client(served) as ann:
        collected = parse_chunks(await ann.get("/api/chat/chat-1/stream"))
    assert collected[-1]["messageMetadata"]["rxloop"]["state"] == "completed"


async def test_heartbeat_is_sent_during_silence() -> None:
    model = frames("-----a|", 0.05)
    async with serve_pages(make_agent(model), with_node=False, heartbeat=0.02) as served, make_client(served) as ann:
        answer = await ann.post("/api/chat", json=make_body("Hi"))
    assert ": heartbeat\n\n" in answer.text
    assert parse_chunks(answer)[-1]["type"] == "finish"


async def test_agent_is_named_by_the_body_or_by_the_adapter() -> None:
    def make_two() -> list[Agent[Any, Any]]:
        return [Agent(ScriptedModel(f"I am {name}."), name=name) for name in ("one", "two")]

    async with serve_pages(*make_two(), with_node=False) as served, make_client(served) as ann:
        refused = await ann.post("/api/chat", json=make_body("Who?"))
        named = parse_chunks(await ann.post("/api/chat", json=make_body("Who?", agent="two")))
    async with serve_pages(*make_two(), with_node=False, agent="one") as served, make_client(served) as ann:
        fixed = parse_chunks(await ann.post("/api/chat", json=make_body("Who?", agent="two")))
    assert refused.status_code == 404
    assert [each["delta"] for each in named if each["type"] == "text-delta"] == ["I am two."]
    assert [each["delta"] for each in fixed if each["type"] == "text-delta"] == ["I am one."]


def test_invalid_option_is_refused() -> None:
    runtime = Runtime({"clerk": make_agent()}, log=MemoryEventLog())
    wrong: list[dict[str, Any]] = [{"agent": "x"}, {"path": "chat"}, {"heartbeat": 0}, {"on_disconnect": "stop"}]
    for options in wrong:
        with pytest.raises(ConfigurationError):
            ui_stream(runtime, **options)


# -- hidden content


APPROVED = ([call(f"peek_{MARK}", _id=f"x-{MARK}", at=MARK), call("refund", order="A1")], "Done.")


@pytest.mark.parametrize(("name", "turns"), {**RUNS, "a hidden call": APPROVED}.items())
async def test_hidden_content_is_in_no_byte_of_the_answers(name: str, turns: tuple[Any, ...]) -> None:
    clerk = Agent(ScriptedModel(*turns), tools=[peek, ask, refund], instructions=MARK, name="clerk")
    async with serve_pages(clerk, with_node=False) as served, make_client(served) as ann:
        first = await ann.post("/api/chat", json=make_body("Look"))
        collected = parse_chunks(first)
        answers = [first, await ann.get("/api/chat/chat-1"), await ann.get("/api/chat/chat-1/stream")]
        task_id = collected[0]["messageId"]
        for each in collected:
            if each["type"] == "data-input-required":
                for value in ("maybe", "no"):
                    body = {**make_approval(task_id, "none"), "inputs": {each["id"]: value}}
                    answers.append(await ann.post("/api/chat", json=body))
            elif each["type"] == "tool-approval-request":
                answers.append(await ann.post("/api/chat", json=make_approval(task_id, each["approvalId"])))
        answers.append(await ann.get("/api/chat/chat-1"))
        state = (await served.runtime.get_record(task_id)).state
        events = await served.runtime.log.read(task_id)
    assert MARK.encode() in b"".join(event.to_json() for event in events)
    assert state == ("failed" if name == "a vendor's words" else "completed")
    for answer in answers:
        assert MARK not in f"{answer.headers!r}{answer.text}", answer.text
