"""Who sees what of A2A, and requests that nobody should make."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import orjson
import pytest
from a2a.client import ClientConfig, create_client
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import InvalidParamsError
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

NOBODYS = "01a20428-d3d7-7ba9-bf44-a933530ad41f"


def clerk(*turns: Any, **options: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(*turns), thoughts=False, name="clerk", **options)


# -- who sees what


def requests_of(task_id: str, context_id: str) -> dict[str, Any]:
    """Each operation that names a task or a conversation."""
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


def rests_of(task_id: str, context_id: str) -> list[tuple[str, str]]:
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


async def everything(served: A2AEndpoint, token: str, ids: tuple[str, str]) -> dict[str, tuple[int, str]]:
    """What each operation says."""
    said: dict[str, tuple[int, str]] = {}
    for method, params in requests_of(*ids).items():
        answer = await served.rpc(method, params, token)
        said[method] = answer.status_code, answer.text
    async with make_client(served.url, token) as client:
        for place, (method, path) in enumerate(rests_of(*ids)):
            answer = await client.request(method, path, headers={"a2a-version": "1.0"})
            said[f"{place} {method}"] = answer.status_code, answer.text
    return said


async def test_what_is_anothers_looks_like_what_is_not_there() -> None:
    async with serve_a2a(clerk(frames("-and so on", 0.05))) as served, served.client(streaming=False) as ann:
        config = pb.SendMessageConfiguration(return_immediately=True)
        task = await read_task(ann.send_message(message_request(config=config)))
        hers = await everything(served, "bob-key", (task.id, task.context_id))
        nobodys = await everything(served, "bob-key", (NOBODYS, NOBODYS))
        assert hers == nobodys
        assert task.id not in str(hers)
        # And nothing has happened to it.
        assert (await ann.get_task(pb.GetTaskRequest(id=task.id))).status.state == pb.TASK_STATE_WORKING
        async with served.client(token="bob-key", streaming=False) as bob:
            assert (await bob.list_tasks(pb.ListTasksRequest())).total_size == 0
            with pytest.raises(InvalidParamsError):
                await read_task(bob.send_message(message_request(context_id=task.context_id)))
        async with served.client(token="root-key", streaming=False) as root:
            assert (await root.list_tasks(pb.ListTasksRequest())).total_size == 1
        await ann.cancel_task(pb.CancelTaskRequest(id=task.id))


async def test_nobody_in_particular_gets_nothing_but_the_card() -> None:
    async with serve_a2a(clerk()) as served:
        for token in ("wrong", "ann"):
            said = await everything(served, token, (NOBODYS, NOBODYS))
            assert {status for status, _ in said.values()} == {401}
        async with httpx.AsyncClient(base_url=served.url) as client:
            card = (await client.get("/.well-known/agent-card.json")).json()
    assert card["securitySchemes"] == {"bearer": {"httpAuthSecurityScheme": {"scheme": "Bearer"}}}


async def test_the_tasks_of_another_agent_are_not_there() -> None:
    agents = [clerk("Yes."), Agent(ScriptedModel("No."), name="other")]
    async with serve_a2a(*agents, agent="clerk") as served, served.client(streaming=False) as client:
        record = await served.runtime.start("other", "Hi", owner="ann")
        async for _ in served.runtime.follow(record.task_id):
            pass
        answer = await served.rpc("GetTask", {"id": record.task_id})
        assert answer.json()["error"]["code"] == -32001
        assert (await client.list_tasks(pb.ListTasksRequest())).total_size == 0


# -- what leaks


@tool(name=f"peek_{MARK}", hidden=True)
async def peek(ctx: RunContext[Any], at: str = "") -> str:
    """PLANTED: look where nobody sees it."""
    ctx.progress(f"{MARK} half")
    draft = await ctx.artifacts.create(f"{MARK}.txt")
    await draft.append(MARK, last=True)
    return f"{MARK} result"


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("name", RUNS)
async def test_no_byte_has_what_is_not_for_clients(name: str, binding: str) -> None:
    log = MemoryEventLog()
    agent = clerk(*RUNS[name], tools=[peek, ask, fail], instructions=f"{MARK}: be brief.")
    async with serve_a2a(agent, log=log, skills="tools", thoughts=True) as served, served.client(binding) as client:
        told = await collect_responses(client.send_message(message_request()))
        said = str(told)
        task = told[0].task
        assert MARK.encode() in b"".join(event.to_json() for event in await log.read(task.id))
        if task_states(told)[-1] == "INPUT_REQUIRED":
            misfit = await served.rpc("SendMessage", {"message": {**_message("maybe"), "taskId": task.id}})
            assert "error" in misfit.json()
            said += misfit.text + str(
                await collect_responses(client.send_message(message_request("no", task_id=task.id)))
            )
        for method, params in requests_of(task.id, task.context_id).items():
            said += (await served.rpc(method, params)).text
        async with make_client(served.url) as http:
            said += (await http.get("/.well-known/agent-card.json")).text
    assert MARK not in said


def _message(text: str) -> dict[str, Any]:
    return {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]}


# -- requests that nobody should make


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


async def test_a_body_that_does_not_fit_is_refused_in_the_words_of_a2a() -> None:
    json = {"content-type": "application/json", "a2a-version": "1.0"}
    async with serve_a2a(clerk("Yes.")) as served, make_client(served.url) as client:
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
        # A page of somebody else's can make a browser send this without asking.
        plain = await client.post(
            "/message:send", content=orjson.dumps({"message": _message("Hi")}), headers={"content-type": "text/plain"}
        )
        assert (plain.status_code, plain.json()["error"]["details"][0]["reason"]) == (415, "CONTENT_TYPE_NOT_SUPPORTED")
        assert (await served.runtime.log.list_runs()) == []


async def test_a_body_that_is_too_large_is_counted_while_it_comes() -> None:
    async with serve_a2a(clerk(), limits=ServerLimits(body=10_000)) as served, make_client(served.url) as client:
        for path in ("/rpc", "/message:send"):
            answer = await client.post(path, content=b"x" * 20_000)
            assert (answer.status_code, answer.json()["error"]["code"]) == (413, 413)


async def test_an_odd_id_is_no_id() -> None:
    async with serve_a2a(clerk()) as served, make_client(served.url) as client:
        for odd in ("x", "%00", "%2e%2e", "a" * 5_000, "%F0%9F%98%80", "'--"):
            for method, path in rests_of(odd, odd):
                answer = await client.request(method, path, headers={"a2a-version": "1.0"})
                assert answer.status_code in (200, 404, 405), (path, answer.text)
        for query in ("pageSize=x", "pageSize=0", "pageSize=101", "pageToken=x", "status=odd", "historyLength=-1"):
            answer = await client.get(f"/tasks?{query}", headers={"a2a-version": "1.0"})
            assert answer.status_code in (200, 400), (query, answer.text)


async def test_too_much_at_once_is_refused_before_anything_begins() -> None:
    limits = ServerLimits(runs=1, streams=1)
    async with serve_a2a(clerk(frames("-and so on", 0.05)), limits=limits) as served, make_client(served.url) as client:
        json = {"a2a-version": "1.0"}
        async with client.stream("POST", "/message:stream", json={"message": _message("Go")}, headers=json) as stream:
            assert stream.status_code == 200
            for path in ("/message:send", "/message:stream"):
                answer = await client.post(path, json={"message": _message("Go")}, headers=json)
                assert (answer.status_code, answer.headers["retry-after"]) == (429, "2"), path
        assert len(await served.runtime.log.list_runs()) == 1


async def test_a_key_is_one_task_however_often_it_is_sent() -> None:
    async with serve_a2a(clerk("One.", "Two.")) as served, make_client(served.url) as client:
        headers = {"a2a-version": "1.0", "idempotency-key": "k"}
        body = {"message": _message("Hi")}
        tasks = [(await client.post("/message:send", json=body, headers=headers)).json()["task"] for _ in range(2)]
        other = await client.post("/message:send", json={"message": _message("Ho")}, headers=headers)
    assert tasks[0] == tasks[1]
    assert other.status_code == 400


# -- the end


async def test_a_drain_ends_streams_with_a_last_word_and_those_who_wait() -> None:
    async with serve_a2a(clerk(*[frames("-and so on", 0.05)] * 2)) as served, make_client(served.url) as client:
        json = {"a2a-version": "1.0"}
        draining: list[asyncio.Task[None]] = []
        waiting = asyncio.create_task(client.post("/message:send", json={"message": _message("Go")}, headers=json))
        async with client.stream("POST", "/message:stream", json={"message": _message("Go")}, headers=json) as stream:
            lines: list[str] = []
            async for line in stream.aiter_lines():
                lines.append(line)
                if "artifactUpdate" in line and not draining:
                    draining.append(asyncio.create_task(served.app.drain(0.1)))
            assert any("the server goes away" in line for line in lines)
            assert "\r" not in "".join(lines)
        task = (await waiting).json()["task"]
        assert task["status"]["state"] == "TASK_STATE_WORKING"
        refused = await client.post("/message:send", json={"message": _message("Go")}, headers=json)
        assert refused.status_code == 503
        await asyncio.gather(*draining)


async def test_a_client_that_leaves_while_it_waits_is_not_waited_for() -> None:
    limits = ServerLimits(streams=1)
    turns = [frames("-and so on", 0.05)] * 2
    async with serve_a2a(clerk(*turns), limits=limits) as served, make_client(served.url) as client:
        json = {"a2a-version": "1.0"}
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/message:send", json={"message": _message("Go")}, headers=json, timeout=0.3)
        [record] = await served.runtime.log.list_runs()
        assert record.state == "working"
        # And its place is free again.
        async with asyncio.timeout(5):
            while True:
                path = f"/tasks/{record.task_id}:subscribe"
                async with client.stream("GET", path, headers=json) as stream:
                    if stream.status_code == 200:
                        break


# -- the card


async def test_the_card_says_where_the_door_is_and_what_it_can_do() -> None:
    async with serve_a2a(clerk(tools=[fail, peek]), skills="tools", description="Pays.") as served:
        async with make_client(served.url) as client:
            answer = await client.get("/.well-known/agent-card.json")
            again = await client.get("/.well-known/agent-card.json", headers={"if-none-match": answer.headers["etag"]})
    card = answer.json()
    assert again.status_code == 304
    assert [each["url"] for each in card["supportedInterfaces"]] == [f"{served.url}/rpc/", served.url]
    assert card["capabilities"] == {"streaming": True, "pushNotifications": True, "extendedAgentCard": False}
    assert [(each["id"], each["description"]) for each in card["skills"]] == [("fail", "Fail.")]
    assert card["description"] == "Pays."


async def test_a_card_of_ones_own_and_one_for_those_who_are_known() -> None:
    card = pb.AgentCard(name="Ours", version="7", description="x", default_input_modes=["text/plain"])
    options: dict[str, Any] = {"card": card, "url": "https://example.com/a2a/"}

    def extended(principal: Principal) -> pb.AgentCard:
        return pb.AgentCard(name=f"for {principal.id}")

    async with serve_a2a(clerk(), extended_card=extended, **options) as served, make_client(served.url) as client:
        shown = (await client.get("/.well-known/agent-card.json")).json()
        more = await client.get("/extendedAgentCard", headers={"a2a-version": "1.0"})
    assert (shown["name"], shown["version"]) == ("Ours", "7")
    assert shown["supportedInterfaces"][0]["url"] == "https://example.com/a2a/rpc/"
    assert more.json()["name"] == "for ann"


async def test_mounted_under_a_path_the_card_says_so() -> None:
    async with Runtime({"clerk": clerk("Yes.")}, log=MemoryEventLog(), grace=0) as runtime:
        site = Starlette(routes=[Mount("/agents/clerk", door := a2a(runtime, push=False))])
        async with serve_app(site) as url, httpx.AsyncClient() as http:
            config = ClientConfig(httpx_client=http)
            async with await create_client(f"{url}/agents/clerk", config) as client:
                told = await collect_responses(client.send_message(message_request()))
            card = (await http.get(f"{url}/agents/clerk/.well-known/agent-card.json")).json()
        await door.drain(0)
    assert task_states(told) == ["SUBMITTED", "WORKING", "COMPLETED"]
    assert card["supportedInterfaces"][1]["url"] == f"{url}/agents/clerk"


async def test_several_agents_have_a_door_each() -> None:
    runtime = Runtime({"one": clerk(), "two": clerk()}, log=MemoryEventLog())
    with pytest.raises(ConfigurationError, match="the runtime has one, two: say agent="):
        a2a(runtime)
    with pytest.raises(ConfigurationError, match="there is no agent 'three'"):
        a2a(runtime, agent="three")
    assert a2a(runtime, agent="two").card.name == "two"


async def test_a_log_that_fails_while_a_client_waits_is_said_to_be_out_of_reach() -> None:
    log = UnavailableLog(MARK)
    async with serve_a2a(clerk(call("lose"), "Hi.", tools=[log.lose]), log=log, push=False) as served:
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "Hi"}]}
        answer = await served.rpc("SendMessage", {"message": message})
        log.unavailable = False
    assert answer.status_code == 503
    assert (answer.json()["error"]["message"], MARK in answer.text) == ("the log is out of reach", False)


async def test_what_is_nested_too_deep_for_protobuf_breaks_neither_its_task_nor_a_list() -> None:
    @tool(approve=True)
    async def pay(amount: Any) -> str:
        """Pay."""
        return "paid"

    for nest in (lambda inner: [inner], lambda inner: {"a": inner}):
        deep: Any = "core"
        for _ in range(60):
            deep = nest(deep)
        async with serve_a2a(clerk(call("pay", amount=deep), tools=[pay]), push=False) as served:
            message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "Hi"}]}
            task = (await served.rpc("SendMessage", {"message": message})).json()["result"]["task"]
            listed = (await served.rpc("ListTasks", {})).json()["result"]["tasks"]
        [question] = task["status"]["message"]["parts"][1]["data"]["inputs"]
        assert question["inputId"]
        assert "core" in orjson.dumps(question).decode()
        assert [each["id"] for each in listed] == [task["id"]]


# -- what comes while a request is answered


@tool(approve=True)
async def charge(amount: int) -> str:
    """Charge somebody."""
    return f"charged {amount}"


def lagging(served: A2AEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what is known of a run be from its second event, as if all others came while a request is answered."""
    record = served.runtime.get_record

    async def stale(task_id: str) -> RunRecord:
        return replace(await record(task_id), state="working", seq=2)

    monkeypatch.setattr(served.runtime, "get_record", stale)


async def test_an_answer_is_followed_from_behind_its_question(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve_a2a(clerk(call("charge", amount=5), "Paid.", tools=[charge])) as served:
        async with served.client(streaming=False) as client:
            task = await read_task(client.send_message(message_request()))
        lagging(served, monkeypatch)
        async with served.client() as client:
            assert (
                task_states(await collect_responses(client.send_message(message_request("yes", task_id=task.id))))[-1]
                == "COMPLETED"
            )


async def test_a_reader_is_told_nothing_twice_of_what_comes_while_it_subscribes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serve_a2a(clerk(call("charge", amount=5), tools=[charge])) as served:
        async with served.client(streaming=False) as client:
            task = await read_task(client.send_message(message_request()))
        lagging(served, monkeypatch)
        async with served.client() as client:
            told = await collect_responses(client.subscribe(pb.SubscribeToTaskRequest(id=task.id)))
    assert task_states(told) == ["WORKING", "INPUT_REQUIRED"]
