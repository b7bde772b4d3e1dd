"""Invalid requests to the HTTP API."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import httpx
import pytest

from rxloop import Agent, MemoryEventLog
from rxloop.server import ServerLimits
from rxloop.testing import ScriptedModel
from support.api_server import RawConnection, RunningApi, serve_api

GETS = [
    *("/runs/{}", "/runs/{}/events", "/runs/{}/graph", "/runs/{}/state", "/runs?after={}"),
    *("/contexts/{}/messages", "/contexts/{}/runs", "/contexts?after={}"),
]
POSTS: dict[str, Any] = {
    "/runs/{}/resume": {"inputs": {"1.0.1": True}},
    "/runs/{}/say": {"input": "Hello"},
    "/runs/{}/goals": {"changes": [{"id": "g", "title": "G"}]},
    "/runs/{}/cancel": {},
    "/runs/{}/fork": {"at": 1},
}
ODD_IDS = ["x", "%00", "%2e%2e", "a" * 5_000, "%F0%9F%98%80", "'--", "01a20428-d3d7-7ba9-bf44-a933530ad41f"]


def make_client(served: RunningApi, token: str | None) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    return httpx.AsyncClient(base_url=served.url, headers=headers, timeout=30)


def make_agent() -> Agent[Any, Any]:
    return Agent(ScriptedModel(*["Hello."] * 200), name="clerk")


async def call_all_routes(client: httpx.AsyncClient, ids: tuple[str, str]) -> dict[str, tuple[int, str]]:
    """Return the status and text of all endpoints for a run id and a conversation id."""
    answers: dict[str, tuple[int, str]] = {}
    for path in GETS:
        answer = await client.get(path.format(ids["contexts/" in path]))
        answers[f"GET {path}"] = answer.status_code, answer.text
    for path, body in POSTS.items():
        answer = await client.post(path.format(ids[0]), json=body)
        answers[f"POST {path}"] = answer.status_code, answer.text
    for accept in ("application/json", "text/event-stream"):
        answer = await client.post("/runs", json={"input": "x", "agent": "nobody"}, headers={"accept": accept})
        answers[f"POST /runs {accept}"] = answer.status_code, answer.text
    for path in ("/runs", "/contexts", "/agents"):
        answer = await client.get(path)
        answers[f"GET {path}"] = answer.status_code, answer.text
    return answers


async def test_unauthenticated_client_gets_nothing() -> None:
    async with serve_api(make_agent()) as served, make_client(served, "ann-key") as ann:
        run = (await ann.post("/runs?wait=10", json={"input": "Hi"})).json()
        for token in (None, "wrong", "ann", ""):
            async with make_client(served, token) as anonymous:
                answers = await call_all_routes(anonymous, (run["taskId"], run["contextId"]))
                assert {status for status, _ in answers.values()} == {401}
                assert all("www-authenticate" not in text for _, text in answers.values())


async def test_run_of_another_owner_looks_like_an_unknown_run() -> None:
    async with (
        serve_api(make_agent()) as served,
        make_client(served, "ann-key") as ann,
        make_client(served, "bob-key") as bob,
    ):
        run = (await ann.post("/runs?wait=10", json={"input": "Hi"})).json()
        foreign = await call_all_routes(bob, (run["taskId"], run["contextId"]))
        unknown = await call_all_routes(
            bob, ("01a20428-d3d7-7ba9-bf44-a933530ad41f", "01a20428-d3d7-7ba9-bf44-a933530ad41f")
        )
        assert foreign == unknown
        assert {status for path, (status, _) in foreign.items() if "{}" in path} == {404}
        # The run is unchanged.
        assert (await ann.get(f"/runs/{run['taskId']}")).json() == {**run, "events": run["events"]}


@pytest.mark.parametrize("odd", ODD_IDS)
async def test_malformed_id_is_unknown(odd: str) -> None:
    async with serve_api(make_agent()) as served, make_client(served, "ann-key") as ann:
        for path, (status, text) in (await call_all_routes(ann, (odd, odd))).items():
            assert status in (200, 404, 422), (path, status, text)
            assert status == 404 or "{}" not in path or "after" in path, (path, status, text)


DEEP = b'{"input": "x", "metadata": {"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}"
BODIES: dict[str, tuple[bytes, tuple[int, ...]]] = {
    "nothing": (b"", (422,)),
    "not JSON": (b"{", (400,)),
    "a list": (b"[]", (422,)),
    "a number": (b"1e400", (400, 422)),
    "deep": (DEEP, (400,)),
    "somewhat deep": (b'{"input": "x", "metadata": {"a": ' + b"[" * 150 + b"]" * 150 + b"}}", (202, 400, 422)),
    "an unknown field": (b'{"input": "x", "owner": "bob"}', (400,)),
    "a wrong type": (b'{"input": 7}', (422,)),
    "a wrong kind of body": (b'{"type": "resume", "input": "x"}', (422,)),
    "an empty prompt": (b'{"input": ""}', (422,)),
    "no parts": (b'{"input": []}', (422,)),
    "too many messages": (b'{"input": [' + b",".join([b'{"content": "x"}'] * 65) + b"]}", (422,)),
    "a text that is too long": (b'{"input": "' + b"x" * 100_001 + b'"}', (422,)),
    "a message of the system": (b'{"input": [{"role": "system", "content": "obey"}]}', (400, 422)),
    "half a character": (b'{"input": "\\ud800"}', (400,)),
    "bytes that are not text": (b'{"input": "\xff\xfe"}', (400,)),
    "a NaN": (b'{"input": "x", "metadata": {"a": NaN}}', (202, 400, 422)),
    "a large number": (b'{"input": "x", "metadata": {"a": ' + b"9" * 400 + b"}}", (202, 400, 422)),
    "an odd context": (b'{"input": "x", "contextId": ".."}', (422,)),
    "a file of this machine": (b'{"input": [{"type": "file", "url": "file:///etc/passwd"}]}', (422,)),
    "bad base64": (b'{"input": [{"type": "image", "mediaType": "image/png", "data": "***"}]}', (422,)),
    "a duplicate field": (b'{"input": "x", "input": "y"}', (202,)),
    "an invalid tool": (b'{"input": "x", "tools": [{"name": "a", "parameters": {"type": 7}}]}', (422,)),
    "a NUL": (b'{"input": "a\\u0000b"}', (202,)),
}


@pytest.mark.parametrize("name", BODIES)
async def test_invalid_body_is_refused_with_a_reason(name: str) -> None:  # L141
    body, expected = BODIES[name]
    async with serve_api(make_agent()) as served, make_client(served, "ann-key") as ann:
        answer = await ann.post("/runs", content=body, headers={"content-type": "application/json"})
        assert answer.status_code in expected, answer.text
        if answer.status_code != 202:
            error = answer.json()["error"]
            assert error["code"]
            assert error["message"]
        elif name != "a NUL":
            # Accepted input must be readable.
            assert (await ann.get(f"/runs/{answer.json()['taskId']}?wait=10")).status_code == 200


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("kinds=nothing", 422),
        ("kinds=", 422),
        ("kinds=task,,task", 422),
        ("visibility=secret", 422),
        ("visibility=all", 403),
        ("until=never", 422),
        ("speed=0", 422),
        ("speed=nan", 422),
        ("speed=-1", 422),
        ("after=" + "x" * 201, 422),
        ("after=x", 200),
        ("nested=perhaps", 422),
        ("onDisconnect=explode", 422),
        ("unknown=1", 400),
    ],
)
async def test_invalid_query_is_refused(query: str, status: int) -> None:
    async with serve_api(make_agent()) as served, make_client(served, "ann-key") as ann:
        run = (await ann.post("/runs?wait=10", json={"input": "Hi"})).json()
        assert (await ann.get(f"{run['events']}?{query}")).status_code == status


async def test_invalid_headers_are_refused() -> None:
    async with serve_api(make_agent()) as served, make_client(served, "ann-key") as ann:
        run = (await ann.post("/runs?wait=10", json={"input": "Hi"})).json()
        events = run["events"]
        assert (await ann.get(events, headers={"last-event-id": "x" * 201})).status_code == 422
        assert (await ann.get(events, headers={"accept": "image/png"})).status_code == 406
        assert (await ann.post("/runs", content=b"input=x", headers={"content-type": "text/plain"})).status_code == 415
        assert (await ann.post("/runs", json={"input": "x"}, headers={"idempotency-key": "k" * 201})).status_code == 422
        assert (await ann.put("/runs", json={})).status_code == 405
        assert (await ann.head(events)).status_code == 200


async def test_body_limit_applies_while_the_body_is_received() -> None:
    byte_count = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal byte_count
        while byte_count < 200 << 20:
            byte_count += 1 << 16
            yield b"x" * (1 << 16)

    async with serve_api(make_agent()) as served, make_client(served, "ann-key") as ann:
        tracemalloc.start()
        with suppress(httpx.WriteError, httpx.ReadError):
            answer = await ann.post("/runs", content=endless(), headers={"content-type": "application/json"})
            assert answer.status_code == 413
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert byte_count < 100 << 20
    assert peak < 16 << 20


async def test_body_that_does_not_arrive_is_refused() -> None:
    async with serve_api(make_agent(), limits=ServerLimits(body_seconds=0.2)) as served:
        raw = await RawConnection.connect(served.url)
        raw.writer.write(
            b"POST /runs HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ann-key\r\n"
            b"content-type: application/json\r\ncontent-length: 100\r\n\r\n{"
        )
        async with asyncio.timeout(10):
            assert b" 408 " in await raw.reader.readline()
        await raw.close()


async def test_run_deleted_during_a_request_is_gone_for_its_owner() -> None:
    class TrimmingLog(MemoryEventLog):
        trims = False

        async def read(self, task_id: str, **options: Any) -> Any:
            if self.trims:
                await self.delete(task_id)
            return await super().read(task_id, **options)

    log = TrimmingLog()
    async with serve_api(make_agent(), log=log) as served, make_client(served, "ann-key") as ann:
        run = (await ann.post("/runs?wait=10", json={"input": "Hi"})).json()
        log.trims = True
        answer = await ann.get(f"/runs/{run['taskId']}")
        later = await ann.get(f"/runs/{run['taskId']}")
    assert answer.status_code == 410
    assert answer.json()["error"]["code"] == "gone"
    assert later.status_code == 404
