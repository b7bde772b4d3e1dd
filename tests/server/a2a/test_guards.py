"""Access control and validation of A2A requests."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import orjson
import pytest
from a2a.client import ClientConfig, create_client
from a2a.server.routes import jsonrpc_dispatcher, rest_dispatcher
from a2a.types import a2a_pb2 as pb
from starlette.applications import Starlette
from starlette.routing import Mount

from rxloop import Agent, MemoryEventLog, RunContext, Runtime, tool
from rxloop.errors import ConfigurationError
from rxloop.pipeline.records import RunRecord
from rxloop.server import Principal, ServerLimits, a2a
from rxloop.testing import ScriptedModel, call, frames
from support.api_server import UnavailableLog, make_client, serve_app
from support.clients.a2a import (
    BINDINGS,
    A2AEndpoint,
    collect_responses,
    message_request,
    read_task,
    serve_a2a,
    task_states,
)
from support.hidden_tools import MARK, RUNS, ask, fail

UNKNOWN_ID = "01a20428-d3d7-7ba9-bf44-a933530ad41f"


def make_clerk(*turns: Any, **options: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(*turns), thoughts=False, name="clerk", **options)


# -- access control


def rpc_requests(task_id: str, context_id: str) -> dict[str, Any]:
    """Return the parameters of all operations with a task or conversation id."""
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "Hi"}]}
    config = {"taskId": task_id, "id": "hook", "url": "https://93.184.216.34/"}
    return {
        "GetTask": {"id": task_id},
        "CancelTask": {"id": task_id},
        "SubscribeToTask": {"id": task_id},
        "ListTasks": {"contextId": context_id},
        "SendMessage": {"message": {**message, "taskId": task_id}},
        "SendStreamingMessage": {"message": {**message, "taskId": task_id, "contextId": context_id}},
        "CreateTaskPushNotificationConfig": config,
        "GetTaskPushNotificationConfig": {"taskId": task_id, "id": "hook"},
        "ListTaskPushNotificationConfigs": {"taskId": task_id},
        "DeleteTaskPushNotificationConfig": {"taskId": task_id, "id": "hook"},
    }


def http_requests(task_id: str, context_id: str) -> list[tuple[str, str]]:
    return [
        ("GET", f"/tasks/{task_id}"),
        ("POST", f"/tasks/{task_id}:cancel"),
        ("GET", f"/tasks/{task_id}:subscribe"),
        ("POST", f"/tasks/{task_id}:subscribe"),
        ("GET", f"/tasks?contextId={context_id}"),
        ("GET", f"/tasks/{task_id}/pushNotificationConfigs"),
        ("GET", f"/tasks/{task_id}/pushNotificationConfigs/hook"),
        ("DELETE", f"/tasks/{task_id}/pushNotificationConfigs/hook"),
    ]


async def run_all_operations(served: A2AEndpoint, token: str, ids: tuple[str, str]) -> dict[str, tuple[int, str]]:
    """Return status codes and bodies of all operations."""
    answers: dict[str, tuple[int, str]] = {}
    for method, params in rpc_requests(*ids).items():
        answer = await served.rpc(method, params, token)
        answers[method] = answer.status_code, answer.text
    async with make_client(served.url, token) as client:
        for index, (method, path) in enumerate(http_requests(*ids)):
            answer = await client.request(method, path, headers={"a2a-version": "1.0"})
            answers[f"{index} {method}"] = answer.status_code, answer.text
    return answers


async def test_task_of_another_owner_looks_like_an_unknown_task() -> None:
    endless = frames("-and so on", 0.05)
    async with serve_a2a(make_clerk(endless, endless)) as served, served.client(streaming=False) as ann:
        config = pb.SendMessageConfiguration(return_immediately=True)
        task = await read_task(ann.send_message(message_request(config=config)))
        foreign = await run_all_operations(served, "bob-key", (task.id, task.context_id))
        unknown = await run_all_operations(served, "bob-key", (UNKNOWN_ID, UNKNOWN_ID))
        assert foreign == unknown
        assert task.id not in str(foreign)
        # The task is unchanged.
        assert (await ann.get_task(pb.GetTaskRequest(id=task.id))).status.state == pb.TASK_STATE_WORKING
        async with served.client(token="bob-key", streaming=False) as bob:
            assert (await bob.list_tasks(pb.ListTasksRequest())).total_size == 0
            his = await read_task(bob.send_message(message_request(context_id=task.context_id, config=config)))
            assert his.context_id == task.context_id
            assert [each.id for each in (await bob.list_tasks(pb.ListTasksRequest())).tasks] == [his.id]
            await bob.cancel_task(pb.CancelTaskRequest(id=his.id))
        async with served.client(token="root-key", streaming=False) as root:
            assert (await root.list_tasks(pb.ListTasksRequest())).total_size == 2
        await ann.cancel_task(pb.CancelTaskRequest(id=task.id))


async def test_unauthenticated_client_gets_only_the_agent_card() -> None:
    async with serve_a2a(make_clerk()) as served:
        for token in ("wrong", "ann"):
            answers = await run_all_operations(served, token, (UNKNOWN_ID, UNKNOWN_ID))
            assert {status for status, _ in answers.values()} == {401}
        async with httpx.AsyncClient(base_url=served.url) as client:
            card = (await client.get("/.well-known/agent-card.json")).json()
    assert card["securitySchemes"] == {"bearer": {"httpAuthSecurityScheme": {"scheme": "Bearer"}}}


async def test_tasks_of_another_agent_are_unknown() -> None:
    agents = [make_clerk("Yes."), Agent(ScriptedModel("No."), name="other")]
    async with serve_a2a(*agents, agent="clerk") as served, served.client(streaming=False) as client:
        record = await served.runtime.start("other", "Hi", owner="ann")
        async for _ in served.runtime.follow(record.task_id):
            pass
        answer = await served.rpc("GetTask", {"id": record.task_id})
        assert answer.json()["error"]["code"] == -32001
        assert (await client.list_tasks(pb.ListTasksRequest())).total_size == 0


# -- hidden content


@tool(name=f"peek_{MARK}", hidden=True)
async def peek(ctx: RunContext[Any], at: str = "") -> str:
    """PLANTED: look at hidden data."""
    ctx.progress(f"{MARK} half")
    draft = await ctx.artifacts.create(f"{MARK}.txt")
    await draft.append(MARK, last=True)
    return f"{MARK} result"


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("name", RUNS)
async def test_hidden_content_is_in_no_byte_of_the_answers(name: str, binding: str) -> None:
    log = MemoryEventLog()
    agent = make_clerk(*RUNS[name], tools=[peek, ask, fail], instructions=f"{MARK}: be brief.")
    async with serve_a2a(agent, log=log, skills="tools", thoughts=True) as served, served.client(binding) as client:
        updates = await collect_responses(client.send_message(message_request()))
        text = str(updates)
        task = updates[0].task
        assert MARK.encode() in b"".join(event.to_json() for event in await log.read(task.id))
        if task_states(updates)[-1] == "INPUT_REQUIRED":
            misfit = await served.rpc("SendMessage", {"message": {**_message("maybe"), "taskId": task.id}})
            assert "error" in misfit.json()
            text += misfit.text + str(
                await collect_responses(client.send_message(message_request("no", task_id=task.id)))
            )
        for method, params in rpc_requests(task.id, task.context_id).items():
            text += (await served.rpc(method, params)).text
        async with make_client(served.url) as http:
            text += (await http.get("/.well-known/agent-card.json")).text
    assert MARK not in text


def _message(text: str) -> dict[str, Any]:
    return {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]}


# -- invalid requests


BODIES: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"{",
    "a list": b"[]",
    "a number": b"7",
    "deep": b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "somewhat deep": b'{"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"data": '
    + b"[" * 60
    + b"]" * 60
    + b"}]}}",
    "half a character": b'{"message": "\\ud800"}',
    "bytes that are no text": b'{"message": "\xff\xfe"}',
    "a NaN": b'{"message": NaN}',
    "a great number": b'{"configuration": {"historyLength": ' + b"9" * 400 + b"}}",
    "a wrong type": b'{"message": {"parts": 7}}',
    "twice the same": b'{"message": {}, "message": {}}',
    "no parts": b'{"message": {"messageId": "m", "role": "ROLE_USER", "parts": []}}',
    "an empty part": b'{"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{}]}}',
    "an agent's words": b'{"message": {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "x"}]}}',
    "a file of this machine": b'{"message": {"messageId": "m", "role": "ROLE_USER", "parts": '
    b'[{"url": "file:///etc/passwd", "mediaType": "text/plain"}]}}',
    "too long": orjson.dumps({"message": _message("x" * 100_001)}),
    "too many parts": orjson.dumps({"message": {**_message("x"), "parts": [{"text": "x"}] * 65}}),
    "an odd id": orjson.dumps({"message": {**_message("x"), "messageId": "a\nb"}}),
    "a negative number": orjson.dumps({"message": _message("x"), "configuration": {"historyLength": -1}}),
    "a wrong media type": orjson.dumps(
        {"message": {**_message("x"), "parts": [{"raw": "eA==", "mediaType": "application/x-odd"}]}}
    ),
}


async def test_invalid_body_is_refused_with_an_a2a_error() -> None:
    json = {"content-type": "application/json", "a2a-version": "1.0"}
    async with serve_a2a(make_clerk("Yes.")) as served, make_client(served.url) as client:
        for name, body in BODIES.items():
            for path in ("/message:send", "/message:stream"):
                answer = await client.post(path, content=body, headers=json)
                assert (answer.status_code, answer.json()["error"]["code"]) == (400, 400), (name, answer.text)
            whole = body
            if name not in ("nothing", "no JSON", "a list", "a number"):
                whole = b'{"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": ' + body + b"}"
            answer = await client.post("/rpc", content=whole, headers=json)
            assert answer.status_code == 200, name
            assert answer.json()["error"]["code"] in (-32700, -32600, -32602, -32005), (name, answer.text)
        # Browsers send cross-site requests with this content type without a preflight request.
        plain = await client.post(
            "/message:send", content=orjson.dumps({"message": _message("Hi")}), headers={"content-type": "text/plain"}
        )
        assert plain.status_code == 415
        assert plain.json()["error"]["details"][0]["reason"] == "CONTENT_TYPE_NOT_SUPPORTED"
        assert (await served.runtime.log.list_runs()) == []


async def test_message_with_too_many_parts_is_refused_before_the_sdk_validates_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    params = {"message": {**_message("x"), "parts": [{"text": "x"}] * 2_000}}
    headers = {"a2a-version": "1.0"}
    async with serve_a2a(make_clerk()) as served, make_client(served.url) as client:
        # Parsing would fail with an internal error.
        monkeypatch.setattr(rest_dispatcher, "Parse", None)
        monkeypatch.setattr(jsonrpc_dispatcher, "ParseDict", None)
        rest = await client.post("/message:send", json=params, headers=headers)
        body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}
        rpc = await client.post("/rpc", json=body, headers=headers)
    assert rest.status_code == 400
    assert [rest.json()["error"]["message"], rpc.json()["error"]["message"]] == [
        "a message must have 1 to 64 parts, got 2000"
    ] * 2
    assert rpc.json()["error"]["code"] == -32602


async def test_body_limit_applies_while_the_body_is_received() -> None:
    async with serve_a2a(make_clerk(), limits=ServerLimits(body=10_000)) as served, make_client(served.url) as client:
        for path in ("/rpc", "/message:send"):
            answer = await client.post(path, content=b"x" * 20_000)
            assert answer.status_code == 413
            assert answer.json()["error"]["code"] == 413


async def test_malformed_id_is_unknown() -> None:
    async with serve_a2a(make_clerk()) as served, make_client(served.url) as client:
        for odd in ("x", "%00", "%2e%2e", "a" * 5_000, "%F0%9F%98%80", "'--"):
            for method, path in http_requests(odd, odd):
                answer = await client.request(method, path, headers={"a2a-version": "1.0"})
                assert answer.status_code in (200, 404, 405), (path, answer.text)
        for query in ("pageSize=x", "pageSize=0", "pageSize=101", "pageToken=x", "status=odd", "historyLength=-1"):
            answer = await client.get(f"/tasks?{query}", headers={"a2a-version": "1.0"})
            assert answer.status_code in (200, 400), (query, answer.text)


async def test_limit_on_runs_and_streams_is_checked_before_a_run_starts() -> None:
    limits = ServerLimits(runs=1, streams=1)
    async with (
        serve_a2a(make_clerk(frames("-and so on", 0.05)), limits=limits) as served,
        make_client(served.url) as client,
    ):
        json = {"a2a-version": "1.0"}
        async with client.stream("POST", "/message:stream", json={"message": _message("Go")}, headers=json) as stream:
            assert stream.status_code == 200
            for path in ("/message:send", "/message:stream"):
                answer = await client.post(path, json={"message": _message("Go")}, headers=json)
                assert (answer.status_code, answer.headers["retry-after"]) == (429, "2"), path
        assert len(await served.runtime.log.list_runs()) == 1


async def test_idempotency_key_starts_one_task() -> None:
    async with serve_a2a(make_clerk("One.", "Two.")) as served, make_client(served.url) as client:
        headers = {"a2a-version": "1.0", "idempotency-key": "k"}
        body = {"message": _message("Hi")}
        tasks = [(await client.post("/message:send", json=body, headers=headers)).json()["task"] for _ in range(2)]
        other = await client.post("/message:send", json={"message": _message("Ho")}, headers=headers)
    assert tasks[0] == tasks[1]
    assert other.status_code == 400


# -- shutdown


async def test_drain_ends_streams_and_waiting_requests_with_a_notice() -> None:
    async with serve_a2a(make_clerk(*[frames("-and so on", 0.05)] * 2)) as served, make_client(served.url) as client:
        json = {"a2a-version": "1.0"}
        draining: list[asyncio.Task[None]] = []
        waiting = asyncio.create_task(client.post("/message:send", json={"message": _message("Go")}, headers=json))
        async with client.stream("POST", "/message:stream", json={"message": _message("Go")}, headers=json) as stream:
            lines: list[str] = []
            async for line in stream.aiter_lines():
                lines.append(line)
                if "artifactUpdate" in line and not draining:
                    draining.append(asyncio.create_task(served.app.drain(0.1)))
            assert any("the server is shutting down" in line for line in lines)
            assert "\r" not in "".join(lines)
        task = (await waiting).json()["task"]
        assert task["status"]["state"] == "TASK_STATE_WORKING"
        refused = await client.post("/message:send", json={"message": _message("Go")}, headers=json)
        assert refused.status_code == 503
        await asyncio.gather(*draining)


async def test_client_that_disconnects_while_waiting_frees_its_slot() -> None:
    limits = ServerLimits(streams=1)
    turns = [frames("-and so on", 0.05)] * 2
    async with serve_a2a(make_clerk(*turns), limits=limits) as served, make_client(served.url) as client:
        json = {"a2a-version": "1.0"}
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/message:send", json={"message": _message("Go")}, headers=json, timeout=0.3)
        [record] = await served.runtime.log.list_runs()
        assert record.state == "working"
        # The slot of the disconnected client is free.
        async with asyncio.timeout(5):
            while True:
                path = f"/tasks/{record.task_id}:subscribe"
                async with client.stream("GET", path, headers=json) as stream:
                    if stream.status_code == 200:
                        break


# -- agent card


async def test_card_contains_urls_skills_and_capabilities() -> None:
    async with serve_a2a(make_clerk(tools=[fail, peek]), skills="tools", description="Pays.") as served:
        async with make_client(served.url) as client:
            answer = await client.get("/.well-known/agent-card.json")
            again = await client.get("/.well-known/agent-card.json", headers={"if-none-match": answer.headers["etag"]})
    card = answer.json()
    assert again.status_code == 304
    assert [each["url"] for each in card["supportedInterfaces"]] == [f"{served.url}/rpc/", served.url]
    assert card["capabilities"] == {"streaming": True, "pushNotifications": True, "extendedAgentCard": False}
    assert [(each["id"], each["description"]) for each in card["skills"]] == [("fail", "Fail.")]
    assert card["description"] == "Pays."


async def test_custom_card_and_extended_card_are_served() -> None:
    card = pb.AgentCard(name="Ours", version="7", description="x", default_input_modes=["text/plain"])
    options: dict[str, Any] = {"card": card, "url": "https://example.com/a2a/"}

    def extended(principal: Principal) -> pb.AgentCard:
        return pb.AgentCard(name=f"for {principal.id}")

    async with serve_a2a(make_clerk(), extended_card=extended, **options) as served, make_client(served.url) as client:
        public_card = (await client.get("/.well-known/agent-card.json")).json()
        extended_card = await client.get("/extendedAgentCard", headers={"a2a-version": "1.0"})
    assert public_card["name"] == "Ours"
    assert public_card["version"] == "7"
    assert public_card["supportedInterfaces"][0]["url"] == "https://example.com/a2a/rpc/"
    assert extended_card.json()["name"] == "for ann"


async def test_card_contains_the_mount_path() -> None:
    async with Runtime({"clerk": make_clerk("Yes.")}, log=MemoryEventLog(), grace=0) as runtime:
        site = Starlette(routes=[Mount("/agents/clerk", app := a2a(runtime, push=False))])
        async with serve_app(site) as url, httpx.AsyncClient() as http:
            config = ClientConfig(httpx_client=http)
            async with await create_client(f"{url}/agents/clerk", config) as client:
                updates = await collect_responses(client.send_message(message_request()))
            card = (await http.get(f"{url}/agents/clerk/.well-known/agent-card.json")).json()
        await app.drain(0)
    assert task_states(updates) == ["SUBMITTED", "WORKING", "COMPLETED"]
    assert card["supportedInterfaces"][1]["url"] == f"{url}/agents/clerk"


async def test_runtime_with_several_agents_requires_an_agent_name() -> None:
    runtime = Runtime({"one": make_clerk(), "two": make_clerk()}, log=MemoryEventLog())
    with pytest.raises(ConfigurationError, match=r"agent= is required .* it has one, two"):
        a2a(runtime)
    with pytest.raises(ConfigurationError, match="unknown agent 'three'"):
        a2a(runtime, agent="three")
    assert a2a(runtime, agent="two").card.name == "two"


async def test_failing_log_is_reported_as_unavailable() -> None:
    log = UnavailableLog(MARK)
    async with serve_a2a(make_clerk(call("lose"), "Hi.", tools=[log.lose]), log=log, push=False) as served:
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "Hi"}]}
        answer = await served.rpc("SendMessage", {"message": message})
        log.unavailable = False
    assert answer.status_code == 503
    assert answer.json()["error"]["message"] == "the event log is unavailable"
    assert (MARK in answer.text) is False


async def test_arguments_nested_too_deeply_for_protobuf_break_neither_task_nor_list() -> None:
    @tool(approve=True)
    async def pay(amount: Any) -> str:
        """Pay."""
        return "paid"

    for nest in (lambda inner: [inner], lambda inner: {"a": inner}):
        deep: Any = "core"
        for _ in range(60):
            deep = nest(deep)
        async with serve_a2a(make_clerk(call("pay", amount=deep), tools=[pay]), push=False) as served:
            message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "Hi"}]}
            task = (await served.rpc("SendMessage", {"message": message})).json()["result"]["task"]
            listed = (await served.rpc("ListTasks", {})).json()["result"]["tasks"]
        [question] = task["status"]["message"]["parts"][1]["data"]["inputs"]
        assert question["inputId"]
        assert "core" in orjson.dumps(question).decode()
        assert [each["id"] for each in listed] == [task["id"]]


# -- events during a request


@tool(approve=True)
async def charge(amount: int) -> str:
    """Charge an amount."""
    return f"charged {amount}"


def return_stale_record(served: A2AEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Return an outdated run record, to simulate events that arrive during the request."""
    record = served.runtime.get_record

    async def read_stale_record(task_id: str) -> RunRecord:
        return replace(await record(task_id), state="working", seq=2)

    monkeypatch.setattr(served.runtime, "get_record", read_stale_record)


async def test_answer_stream_starts_after_its_question(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve_a2a(make_clerk(call("charge", amount=5), "Paid.", tools=[charge])) as served:
        async with served.client(streaming=False) as client:
            task = await read_task(client.send_message(message_request()))
        return_stale_record(served, monkeypatch)
        async with served.client() as client:
            assert (
                task_states(await collect_responses(client.send_message(message_request("yes", task_id=task.id))))[-1]
                == "COMPLETED"
            )


async def test_subscriber_gets_no_update_twice_when_events_arrive_during_subscription(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serve_a2a(make_clerk(call("charge", amount=5), tools=[charge])) as served:
        async with served.client(streaming=False) as client:
            task = await read_task(client.send_message(message_request()))
        return_stale_record(served, monkeypatch)
        async with served.client() as client:
            updates = await collect_responses(client.subscribe(pb.SubscribeToTaskRequest(id=task.id)))
    assert task_states(updates) == ["WORKING", "INPUT_REQUIRED"]


@pytest.mark.parametrize("version", ["9" * 5_000, "9" * 5_000 + ".1", "1.0" + "x" * 200])
async def test_long_version_is_an_error_of_the_client(version: str, caplog: pytest.LogCaptureFixture) -> None:
    headers = {"a2a-version": version}
    async with serve_a2a(make_clerk()) as served, make_client(served.url) as client:
        rpc = {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": "x"}}
        answers = [await client.post("/rpc", json=rpc, headers=headers), await client.get("/tasks/x", headers=headers)]
    assert [each.status_code for each in answers] == [400, 400]
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


# -- logs

ATTACK = "x\r\nERROR forged\x1b[2J\u202e"
MALFORMED: dict[str, Any] = {
    "a list": [],
    "no object": 7,
    "an unknown field": {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {}, ATTACK: 1},
    "no method": {"jsonrpc": "2.0", "id": ATTACK},
    "a method of another type": {"jsonrpc": "2.0", "id": ATTACK, "method": ["GetTask"]},
    "an unknown method": {"jsonrpc": "2.0", "id": ATTACK, "method": ATTACK},
    "no params": {"jsonrpc": "2.0", "id": ATTACK, "method": "GetTask", "params": None},
    "params of another type": {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": [ATTACK]}},
    "a role that does not exist": {
        "jsonrpc": "2.0",
        "id": ATTACK,
        "method": "SendMessage",
        "params": {"message": {"messageId": "m", "role": ATTACK, "parts": [{"text": [ATTACK]}]}},
    },
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_malformed_request_logs_no_error_and_no_text_that_spans_lines(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    body = MALFORMED[name]
    async with serve_a2a(make_clerk()) as served, make_client(served.url) as client:
        rpc = await client.post("/rpc", json=body, headers={"a2a-version": "1.0"})
        rest = await client.post("/message:send", json=body, headers={"a2a-version": "1.0"})
    assert rpc.json()["error"]["code"] in (-32600, -32601, -32602)
    assert rest.status_code == 400
    records = [each for each in caplog.records if each.name.startswith(("a2a", "rxloop"))]
    assert {each.levelname for each in records} <= {"DEBUG", "INFO", "WARNING"}
    assert not any(each.exc_info for each in records)
    assert all(each.getMessage().isprintable() for each in records if each.levelname != "DEBUG")
    # The reason is still logged.
    assert sum("error" in each.getMessage().lower() for each in records) >= 2
