"""Isolation of owners who use the same ids, with every adapter and log."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from rxloop import Agent, EventLog, MemoryEventLog, ModelRequest, Runtime
from rxloop.providers.script import Turn
from rxloop.recorded.replay import history
from rxloop.server import Principal, a2a, agui, api, bearer, openai_api, ui_stream
from rxloop.testing import ScriptedModel
from support.api_server import TOKENS, serve_app
from support.dropped_questions import LOGS, shared_logs

ADAPTERS = ["http", "ui", "agui", "completions", "responses", "a2a"]
PRINCIPALS = {**TOKENS, "nobody-key": Principal("")}


def answer(request: ModelRequest) -> Turn:
    """Return all user messages that the model received."""
    return "|".join(message.text for message in request.messages if message.role == "user")


class Site:
    """Server of all adapters."""

    def __init__(self, url: str, runtime: Runtime) -> None:
        self.runtime, self._url = runtime, url
        self.clients: list[httpx.AsyncClient] = []

    def client(self, owner: str) -> httpx.AsyncClient:
        headers = {"authorization": f"Bearer {owner}-key"}
        self.clients.append(httpx.AsyncClient(base_url=self._url, headers=headers, timeout=30))
        return self.clients[-1]

    async def send(
        self, owner: str, adapter: str, context_id: str, text: str, message_id: str = "m1", **headers: str
    ) -> httpx.Response:
        """Send a message to a conversation."""
        http = self.client(owner)
        match adapter:
            case "http":
                body: dict[str, Any] = {"input": text, "contextId": context_id}
                return await http.post("/runs?wait=20", json=body, headers=headers)
            case "ui":
                message: dict[str, Any] = {"id": message_id, "role": "user", "parts": [{"type": "text", "text": text}]}
                return await http.post("/ui/api/chat", json={"id": context_id, "messages": [message]})
            case "agui":
                message = {"id": message_id, "role": "user", "content": text}
                return await http.post("/agui/", json={"threadId": context_id, "runId": "r", "messages": [message]})
            case "completions":
                message = {"role": "user", "content": text}
                body = {"model": "clerk", "messages": [message], "metadata": {"context_id": context_id}}
                return await http.post("/openai/v1/chat/completions", json=body, headers=headers)
            case "responses":
                body = {"model": "clerk", "input": text, "conversation": context_id}
                return await http.post("/openai/v1/responses", json=body, headers=headers)
            case _:
                message = {"messageId": message_id, "role": "ROLE_USER", "contextId": context_id}
                params = {"message": {**message, "parts": [{"text": text}]}}
                body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}
                return await http.post("/a2a/rpc", json=body, headers={"a2a-version": "1.0", **headers})

    async def read_texts(self, owner: str, context_id: str = "c") -> list[str]:
        messages = await history(self.runtime.log, context_id, owner=owner, public=True)
        return [message.text for message in messages]


async def serve(stack: AsyncExitStack, log: EventLog) -> Site:
    agent: Agent[Any, Any] = Agent(ScriptedModel(*[answer] * 100), name="clerk", thoughts=False)
    runtime = await stack.enter_async_context(Runtime({"clerk": agent}, log=log, grace=0.3))
    auth = bearer(PRINCIPALS)
    mounts = [
        Mount("/agui", agui(runtime, auth=auth)),
        Mount("/ui", ui_stream(runtime, auth=auth)),
        Mount("/openai", openai_api(runtime, auth=auth)),
        Mount("/a2a", a2a(runtime, auth=auth)),
        Mount("/", api(runtime, auth=auth)),
    ]
    site = Site(await stack.enter_async_context(serve_app(Starlette(routes=mounts))), runtime)

    async def close() -> None:
        for client in site.clients:
            await client.aclose()
        await agent.aclose()

    stack.push_async_callback(close)
    return site


@pytest.fixture(params=LOGS)
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Site]:
    async with AsyncExitStack() as stack:
        make = await stack.enter_async_context(shared_logs(request.param, tmp_path, request))
        yield await serve(stack, make())


@pytest.fixture
async def memory_site() -> AsyncGenerator[Site]:
    async with AsyncExitStack() as stack:
        yield await serve(stack, CountingLog())


def remove_values(response: httpx.Response, *ids: str) -> tuple[int, str]:
    """Return a status and a body without ids, times and lengths, which differ between runs."""
    text = response.text
    for each in ids:
        text = text.replace(f'"{each}"', '"ID"')
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "UUID", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", text)
    return response.status_code, re.sub(r"\d{9,}|\d+\.\d{3,}", "NUMBER", text)


@pytest.mark.parametrize("adapter", ADAPTERS)
async def test_conversation_of_another_owner_looks_like_a_free_id(site: Site, adapter: str) -> None:
    assert (await site.send("ann", adapter, "c", "Ann's")).status_code == 200
    foreign = await site.send("bob", adapter, "c", "Bob's")
    # The idempotency keys of adapters contain the id of the conversation.
    free = await site.send("bob", adapter, "d", "Bob's")
    assert remove_values(foreign, "c") == remove_values(free, "d")
    assert await site.read_texts("ann") == ["Ann's", "Ann's"]
    assert await site.read_texts("bob") == ["Bob's", "Bob's"]
    assert (await site.send("ann", adapter, "c", "More", "m2")).status_code == 200
    if adapter != "agui":  # The request has the run id of the first one.
        assert (await site.read_texts("ann"))[-1] == "Ann's|More"


@pytest.mark.parametrize("adapter", ["http", "completions", "responses", "a2a"])
async def test_idempotency_key_of_another_owner_has_no_effect(site: Site, adapter: str) -> None:
    key = {"idempotency-key": "k"}
    for _ in range(2):
        for owner in ("ann", "bob", "nobody"):
            answered = await site.send(owner, adapter, "c", f"{owner}'s", **key)
            assert answered.status_code == 200, answered.text
    records = await site.runtime.log.list_runs(context_id="c")
    assert [record.owner for record in records] == ["ann", "bob", None]


async def test_request_with_the_run_id_of_another_owner_starts_another_run(site: Site) -> None:
    for owner in ("ann", "bob"):
        assert f"{owner}'s" in (await site.send(owner, "agui", "c", f"{owner}'s")).text
    assert [record.owner for record in await site.runtime.log.list_runs()] == ["ann", "bob"]


async def test_principal_without_an_id_does_not_see_runs_of_owners(site: Site) -> None:
    for adapter in ADAPTERS:
        await site.send("ann", adapter, "c", "Ann's", adapter)
    http = site.client("nobody")
    assert (await http.get("/runs")).json()["runs"] == []
    assert (await http.get("/contexts")).json()["contexts"] == []
    assert (await http.get("/contexts/c/messages")).status_code == 404
    connected = await http.post("/agui/connect", json={"threadId": "c", "runId": "r", "messages": []})
    assert "Ann's" not in connected.text
    assert (await http.get("/ui/api/chat/c")).json() == []
    await site.send("nobody", "http", "c", "Mine")
    assert (await site.read_texts("")) == ["Mine", "Mine"]


# -- principals with access to runs of others


async def test_operator_who_names_the_conversation_of_an_owner_starts_its_own(site: Site) -> None:
    await site.send("ann", "http", "c", "Ann's")
    for adapter in ADAPTERS:
        await site.send("root", adapter, "c", f"by {adapter}", adapter)
    assert await site.read_texts("ann") == ["Ann's", "Ann's"]
    records = await site.runtime.log.list_runs(context_id="c", owner="root")
    assert len(records) == len(ADAPTERS)


async def test_operator_reads_the_conversation_of_the_only_owner(site: Site) -> None:
    await site.send("ann", "http", "c", "Ann's")
    root = site.client("root")
    messages = (await root.get("/contexts/c/messages")).json()["messages"]
    assert [each["content"] for each in messages] == ["Ann's", "Ann's"]
    assert [each["owner"] for each in (await root.get("/contexts/c/runs")).json()["runs"]] == ["ann"]
    assert [each["owner"] for each in (await root.get("/contexts")).json()["contexts"]] == ["ann"]


async def test_operator_names_the_owner_when_several_owners_use_an_id(site: Site) -> None:
    for owner in ("ann", "bob", "nobody"):
        await site.send(owner, "http", "c", f"{owner}'s")
    root = site.client("root")
    refused = await root.get("/contexts/c/messages")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "ambiguous")
    for owner, text in (("ann", "ann's"), ("bob", "bob's"), ("", "nobody's")):
        messages = (await root.get("/contexts/c/messages", params={"owner": owner})).json()["messages"]
        assert [each["content"] for each in messages] == [text, text]
        runs = (await root.get("/contexts/c/runs", params={"owner": owner})).json()["runs"]
        assert [each.get("owner", "") for each in runs] == [owner]
    assert (await root.get("/contexts/c/messages?owner=carl")).status_code == 404
    await site.send("root", "http", "c", "root's")
    messages = (await root.get("/contexts/c/messages")).json()["messages"]
    assert [each["content"] for each in messages] == ["root's", "root's"]


async def test_owner_parameter_reveals_nothing_to_other_owners(site: Site) -> None:
    await site.send("ann", "http", "c", "Ann's")
    bob = site.client("bob")
    for path in ("messages", "runs"):
        foreign = await bob.get(f"/contexts/c/{path}?owner=ann")
        unknown = await bob.get(f"/contexts/d/{path}?owner=ann")
        assert foreign.status_code == 404
        assert foreign.text == unknown.text
        await site.send("bob", "http", "c", "Bob's")
        assert (await bob.get(f"/contexts/c/{path}?owner=ann")).text == unknown.text
        assert (await bob.get(f"/contexts/c/{path}?owner=bob")).status_code == 200


async def test_operator_cannot_continue_the_response_of_an_owner(site: Site) -> None:
    first = (await site.send("ann", "responses", "c", "Ann's")).json()
    body = {"model": "clerk", "input": "And?", "previous_response_id": first["id"]}
    refused = await site.client("root").post("/openai/v1/responses", json=body)
    assert refused.status_code == 400
    assert "only the owner" in refused.json()["error"]["message"]
    assert (await site.client("ann").post("/openai/v1/responses", json=body)).status_code == 200


# -- reads


class CountingLog(MemoryEventLog):
    """Log that records the names of its methods as they are called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []


def _record(name: str) -> Callable[..., Any]:
    method = getattr(MemoryEventLog, name)

    def call(self: CountingLog, *args: Any, **options: Any) -> Any:
        self.calls.append(name)
        return method(self, *args, **options)

    return call


for _name in ("read", "follow", "get_record", "list_runs", "read_conversation", "snapshot", "read_commands"):
    setattr(CountingLog, _name, _record(_name))

UNKNOWN = "01a20428-d3d7-7ba9-bf44-a933530ad41f"


async def observe(site: Site, send: Callable[[], Any]) -> tuple[int, str, list[str]]:
    log = site.runtime.log
    assert isinstance(log, CountingLog)
    log.calls.clear()
    response = await send()
    return response.status_code, response.text, list(log.calls)


def list_requests(task_id: str, context_id: str) -> dict[str, tuple[str, str, Any]]:
    """Return a request for each route that names a run or a conversation."""
    paths = ["", "/events", "/events?speed=2", "/state", "/graph"]
    requests: dict[str, tuple[str, str, Any]] = {path: ("GET", f"/runs/{task_id}{path}", None) for path in paths}
    posts = {"resume": {"inputs": {"x": 1}}, "say": {"input": "Hi"}, "cancel": {}, "fork": {"at": 1}}
    requests |= {name: ("POST", f"/runs/{task_id}/{name}", body) for name, body in posts.items()}
    lists = ["runs", "pending", "contexts"]
    requests |= {f"{name} after": ("GET", f"/{name}?after={task_id}", None) for name in lists}
    requests |= {f"{name} of": ("GET", f"/{name}?contextId={context_id}", None) for name in lists[:2]}
    requests |= {name: ("GET", f"/contexts/{context_id}/{name}", None) for name in ("messages", "runs")}
    requests |= {
        f"responses{path}": ("GET", f"/openai/v1/responses/{task_id}{path}", None) for path in ("", "/input_items")
    }
    requests["cancel response"] = ("POST", f"/openai/v1/responses/{task_id}/cancel", {})
    body = {"model": "clerk", "input": "Hi", "previous_response_id": task_id}
    requests["previous response"] = ("POST", "/openai/v1/responses", body)
    chat = f"/ui/api/chat/{context_id}"
    requests |= {
        "chat": ("GET", chat, None),
        "stream": ("GET", f"{chat}/stream", None),
        "stop": ("POST", f"{chat}/stop", {}),
    }
    requests["connect"] = ("POST", "/agui/connect", {"threadId": context_id, "runId": "r", "messages": []})
    methods: dict[str, Any] = {
        "GetTask": {"id": task_id},
        "CancelTask": {"id": task_id},
        "ListTasks": {"contextId": context_id},
        "SendMessage": {
            "message": {"messageId": "m", "role": "ROLE_USER", "taskId": task_id, "parts": [{"text": "Hi"}]}
        },
        "CreateTaskPushNotificationConfig": {"taskId": task_id, "id": "h", "url": "https://example.org/"},
        "GetTaskPushNotificationConfig": {"taskId": task_id, "id": "h"},
        "ListTaskPushNotificationConfigs": {"taskId": task_id},
        "DeleteTaskPushNotificationConfig": {"taskId": task_id, "id": "h"},
    }
    for method, params in methods.items():
        rpc = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        requests[method] = ("POST", "/a2a/rpc", rpc)
    return requests


async def test_foreign_ids_cause_the_same_reads_and_responses_as_unknown_ids(memory_site: Site) -> None:
    site = memory_site
    await site.send("ann", "http", "c", "Ann's")
    [record] = await site.runtime.log.list_runs()
    bob = site.client("bob")
    foreign, unknown = list_requests(record.task_id, "c"), list_requests(UNKNOWN, "d")
    seen: dict[str, list[Any]] = {}
    for name in foreign:
        for requests in (foreign, unknown):
            method, path, body = requests[name]

            def send(method: str = method, path: str = path, body: Any = body) -> Any:
                return bob.request(method, path, json=body, headers={"a2a-version": "1.0"})

            status, text, calls = await observe(site, send)
            for each in (record.task_id, UNKNOWN):
                text = text.replace(each, "RUN")
            text = text.replace(json.dumps("c"), json.dumps("d"))
            seen.setdefault(name, []).append((status, text, calls))
    differing = {name: pair for name, pair in seen.items() if pair[0] != pair[1]}
    assert differing == {}
    assert (await site.runtime.get_record(record.task_id)).state == "completed"
