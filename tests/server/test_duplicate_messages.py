"""Duplicate messages that clients send concurrently to several processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from rxloop import Agent, EventLog, Runtime, TaskEvent
from rxloop.recorded.replay import history
from rxloop.server import a2a, agui, api, openai_api, ui_stream
from rxloop.testing import ScriptedModel, frames
from support.api_server import serve_app
from support.dropped_questions import LOGS, shared_logs

TEXTS = {"m1": "First.", "m2": "Second."}


class Servers:
    """Two servers for all protocols over one event log."""

    def __init__(self, log: EventLog, urls: list[str]) -> None:
        self.log = log
        self.http = [httpx.AsyncClient(base_url=url, timeout=60) for url in urls]

    async def read_texts(self) -> list[str]:
        """Return stored user messages, which must equal the inputs of the runs."""
        texts = [each.text for each in await history(self.log, "c", public=True) if each.role == "user"]
        inputs: list[str] = []
        for record in await self.log.list_runs(context_id="c"):
            first = (await self.log.read(record.task_id))[0]
            assert isinstance(first, TaskEvent)
            inputs += [each.text for each in first.messages]
        assert inputs == texts
        return texts


@pytest.fixture(params=LOGS)
async def servers(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Servers]:
    async with AsyncExitStack() as stack:
        make = await stack.enter_async_context(shared_logs(request.param, tmp_path, request))
        urls: list[str] = []
        agents: list[Agent[Any, Any]] = []
        for _ in range(2):
            agents.append(Agent(ScriptedModel(*[frames("-A-nswer.|", 0.05)] * 20), name="clerk", thoughts=False))
            runtime = await stack.enter_async_context(Runtime({"clerk": agents[-1]}, log=make(), grace=0.3))
            mounts = [
                Mount("/agui", agui(runtime)),
                Mount("/ui", ui_stream(runtime)),
                Mount("/openai", openai_api(runtime)),
                Mount("/a2a", a2a(runtime)),
                Mount("/", api(runtime)),
            ]
            urls.append(await stack.enter_async_context(serve_app(Starlette(routes=mounts))))
        servers = Servers(make(), urls)
        yield servers
        for client in servers.http:
            await client.aclose()
        for agent in agents:
            await agent.aclose()


async def _post_agui(http: httpx.AsyncClient, *ids: str) -> str:
    messages = [{"id": each, "role": "user", "content": TEXTS[each]} for each in ids]
    answer = await http.post("/agui/", json={"threadId": "c", "runId": f"r-{ids[-1]}", "messages": messages})
    assert "RUN_ERROR" not in answer.text, answer.text
    assert "RUN_FINISHED" in answer.text
    return answer.text


async def _post_ui(http: httpx.AsyncClient, *ids: str) -> str:
    messages = [{"id": each, "role": "user", "parts": [{"type": "text", "text": TEXTS[each]}]} for each in ids]
    answer = await http.post("/ui/api/chat", json={"id": "c", "messages": messages})
    assert answer.status_code == 200, answer.text
    assert "[DONE]" in answer.text
    return answer.text


async def _post_http(http: httpx.AsyncClient, *ids: str) -> str:
    messages = [{"content": TEXTS[each], "messageId": each} for each in ids]
    answer = await http.post("/runs?wait=30", json={"input": messages, "contextId": "c"})
    assert answer.status_code == 200, answer.text
    return answer.json()["taskId"]


async def _post_a2a(http: httpx.AsyncClient, *ids: str) -> str:
    message = {"messageId": ids[-1], "role": "ROLE_USER", "contextId": "c", "parts": [{"text": TEXTS[ids[-1]]}]}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
    answer = (await http.post("/a2a/rpc", json=body, headers={"a2a-version": "1.0"})).json()
    return answer["result"]["task"]["id"]


Post = Callable[..., Awaitable[str]]


# P22
@pytest.mark.parametrize("post", [_post_agui, _post_ui, _post_http])
@pytest.mark.parametrize("milliseconds", [-3, 0, 3])
async def test_first_message_is_stored_once_when_the_second_follows_immediately(
    servers: Servers, post: Post, milliseconds: int
) -> None:
    async def post_later(seconds: float, http: httpx.AsyncClient, *ids: str) -> None:
        await asyncio.sleep(max(seconds, 0))
        await post(http, *ids)

    first, second = servers.http
    task_ids = post_later(-milliseconds / 1000, first, "m1"), post_later(milliseconds / 1000, second, "m1", "m2")
    async with asyncio.timeout(60):
        await asyncio.gather(*task_ids)
    assert await servers.read_texts() == ["First.", "Second."]


# P22
@pytest.mark.parametrize("post", [_post_agui, _post_ui, _post_http])
async def test_late_request_stores_nothing_after_a_later_one_has_finished(servers: Servers, post: Post) -> None:
    first, second = servers.http
    async with asyncio.timeout(60):
        await post(second, "m1", "m2")
        await post(first, "m1")
    assert await servers.read_texts() == ["First.", "Second."]


# P22
@pytest.mark.parametrize("post", [_post_agui, _post_ui, _post_http, _post_a2a])
async def test_request_sent_concurrently_stores_its_message_once(servers: Servers, post: Post) -> None:
    async with asyncio.timeout(60):
        task_ids = await asyncio.gather(*(post(http, "m1") for http in (*servers.http, *servers.http)))
        if post in (_post_http, _post_a2a):
            assert len({*task_ids}) == 1
        repeated_id = await post(servers.http[1], "m1") if post is not _post_agui else None
    assert repeated_id is None or post is _post_ui or repeated_id == task_ids[0]
    assert await servers.read_texts() == ["First."]


# P22
async def test_repeated_messages_belong_to_the_same_run(servers: Servers) -> None:
    for http in (*servers.http, servers.http[0]):
        await _post_agui(http, "m1", "m2")
    assert await servers.read_texts() == ["First.", "Second."]


# P22
async def test_regenerated_answer_calls_the_model_again(servers: Servers) -> None:
    first, second = servers.http
    await _post_agui(first, "m1")
    body = {"threadId": "c", "runId": "again", "messages": [{"id": "m1", "role": "user", "content": "First."}]}
    assert "RUN_FINISHED" in (await second.post("/agui/", json=body)).text
    assert len(await servers.log.list_runs(context_id="c")) == 2

    message = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "First."}]}
    await _post_ui_chat(first, "d", [message])
    await _post_ui_chat(second, "d", [message], trigger="regenerate-message")
    runs = await servers.log.list_runs()
    assert len(runs) == 4
    assert len({record.context_id for record in runs}) == 3


async def _post_ui_chat(http: httpx.AsyncClient, chat: str, messages: list[Any], **more: Any) -> None:
    answer = await http.post("/ui/api/chat", json={"id": chat, "messages": messages, **more})
    assert answer.status_code == 200, answer.text


# P22
async def test_unanswered_messages_without_ids_are_stored_once(servers: Servers) -> None:
    async def complete(http: httpx.AsyncClient, *texts: str) -> None:
        messages = [{"role": "user", "content": text} for text in texts]
        body = {"model": "clerk", "messages": messages, "metadata": {"context_id": "c"}}
        answer = await http.post("/openai/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text

    first, second = servers.http
    first_request = asyncio.ensure_future(complete(first, "First."))
    while not await servers.log.list_runs(context_id="c"):  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    await asyncio.gather(first_request, complete(second, "First.", "Second."))
    assert await servers.read_texts() == ["First.", "Second."]
