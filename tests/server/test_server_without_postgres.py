"""Servers and workers without Postgres, and shutdown on a signal."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from rxloop import Agent, PostgresEventLog, Runtime
from rxloop.runtime import PostgresQueue
from rxloop.server import ServerLimits, a2a, agui, api, mcp_server, openai_api, ui_stream
from rxloop.testing import ScriptedModel, frames
from support.api_server import RawConnection, serve_app
from support.postgres.server import PostgresServer
from support.processes.cluster import START_TIMEOUT, Cluster, Process, cluster

pytestmark = [pytest.mark.service("postgres"), pytest.mark.timeout(180)]

NO_SERVER = "postgresql://postgres@127.0.0.1:9/nothing"


LOG_SECONDS = 1.0
ANSWER_SECONDS = 10.0
"""Maximum response time in seconds during an outage, including a reserve for busy machines."""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as started:
        yield started


@pytest.fixture
def replicas(server: PostgresServer, tmp_path: Path) -> Iterator[Cluster]:
    with cluster(server.dsn, tmp_path, flags=("--grace", "1")) as started:
        yield started


async def wait_for_health(url: str, path: str, status: int) -> httpx.Response:
    async with asyncio.timeout(START_TIMEOUT), httpx.AsyncClient(base_url=url, timeout=10) as client:
        while True:
            answer = await client.get(path)
            if answer.status_code == status:
                return answer
            await asyncio.sleep(0.1)


async def test_server_is_not_ready_without_postgres_and_recovers_by_itself(
    server: PostgresServer, replicas: Cluster
) -> None:
    url = replicas.urls[0]
    server.stop()
    async with httpx.AsyncClient(base_url=url, timeout=START_TIMEOUT) as client:
        try:
            unready = await wait_for_health(url, "/readyz", 503)
            alive = await wait_for_health(url, "/healthz", 200)
            waiting = asyncio.create_task(client.post("/runs", json={"input": "Look"}))
            await asyncio.wait([waiting], timeout=1)
        finally:
            server.start()
        accepted = await waiting
    assert unready.json()["error"] == {"code": "log", "message": "the event log is unavailable"}
    assert unready.headers["retry-after"] == "5"
    assert alive.json() == {"status": "ok"}
    assert accepted.status_code == 202, "a request during the outage must wait"
    await wait_for_health(url, "/readyz", 200)
    async with replicas.clients() as (_, b):
        events = [event async for event in b.follow(accepted.json()["taskId"])]
        assert (await b.record(accepted.json()["taskId"])).content == "It is seen."
    assert [event.seq for event in events if event.durable] == list(range(1, events[-1].seq + 1))
    for each in (*replicas.servers, *replicas.workers):
        assert each.is_running


@asynccontextmanager
async def serve_all(dsn: str, *turns: Any, queue: PostgresQueue | None = None) -> AsyncGenerator[httpx.AsyncClient]:
    """Serve all adapters and yield a client. With a queue, runs wait for workers."""
    log = PostgresEventLog(dsn)
    clerk = Agent(ScriptedModel(*turns), thoughts=False)
    runtime = Runtime({"clerk": clerk}, log=log, queue=queue, is_worker=queue is None, grace=0.2)
    limits = ServerLimits(log_seconds=LOG_SECONDS)
    mounts = [
        Mount("/agui", agui(runtime, limits=limits)),
        Mount("/ui", ui_stream(runtime, limits=limits, path="")),
        Mount("/a2a", a2a(runtime, limits=limits)),
        Mount("/openai", openai_api(runtime, limits=limits)),
        Mount("/mcp", mcp_server(runtime, limits=limits)),
        Mount("/", api(runtime, limits=limits, heartbeat=0.2)),
    ]
    try:
        async with runtime, serve_app(Starlette(routes=mounts)) as url:
            async with httpx.AsyncClient(base_url=url, timeout=60) as client:
                yield client
    finally:
        await log.aclose()
        if queue is not None:
            await queue.aclose()
        await clerk.aclose()


def make_requests(task_id: str) -> dict[str, tuple[str, str, Any]]:
    """Return the method, path and body of requests to all adapters."""
    message = {"role": "user", "content": "Look"}
    thread = {"threadId": "t", "runId": "r", "state": {}, "tools": [], "context": [], "forwardedProps": {}}
    thread |= {"messages": [{"id": "m", **message}]}
    page = {"id": "chat", "trigger": "submit-message"}
    page |= {"messages": [{"id": "m", "role": "user", "parts": [{"type": "text", "text": "Look"}]}]}
    part = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "Look"}]}}
    return {
        "start": ("POST", "/runs", {"input": "Look"}),
        "record": ("GET", f"/runs/{task_id}", None),
        "list": ("GET", "/runs", None),
        "events": ("GET", f"/runs/{task_id}/events", None),
        "cancel": ("POST", f"/runs/{task_id}/cancel", {}),
        "answer": ("POST", f"/runs/{task_id}/resume", {"inputs": {"a": 1}}),
        "say": ("POST", f"/runs/{task_id}/say", {"input": "Hurry"}),
        "fork": ("POST", f"/runs/{task_id}/fork", {"at": 1}),
        "agui": ("POST", "/agui/", thread),
        "agui-connect": ("POST", "/agui/connect", thread),
        "ui": ("POST", "/ui/", page),
        "ui-stop": ("POST", "/ui/chat/stop", {}),
        "openai-chat": ("POST", "/openai/v1/chat/completions", {"model": "clerk", "messages": [message]}),
        "openai-stream": ("POST", "/openai/v1/responses", {"model": "clerk", "input": "Look", "stream": True}),
        "a2a-send": ("POST", "/a2a/message:send", part),
        "a2a-stream": ("POST", "/a2a/message:stream", part),
        "a2a-cancel": ("POST", f"/a2a/tasks/{task_id}:cancel", {}),
    }


async def read_until(lines: AsyncIterator[str], expected: str) -> None:
    async with asyncio.timeout(START_TIMEOUT):
        async for line in lines:
            if line == expected:
                return
    raise AssertionError(f"the stream ended without {expected!r}")


async def test_every_adapter_quickly_reports_that_the_log_is_unavailable_and_runs_continue(
    server: PostgresServer,
) -> None:
    text = "on " * 60
    async with serve_all(server.dsn, frames("".join(f"-{word} " for word in text.split()) + "|", 0.05)) as client:
        run = (await client.post("/runs", json={"input": "Tell"})).json()["taskId"]
        answers, durations = dict[str, httpx.Response](), dict[str, float]()

        async def request(name: str, method: str, path: str, body: Any) -> None:
            start_time = time.monotonic()
            answers[name] = await client.request(method, path, json=body, headers={"a2a-version": "1.0"})
            durations[name] = time.monotonic() - start_time

        async with client.stream("GET", f"/runs/{run}/events") as reader:
            lines = reader.aiter_lines()
            await read_until(lines, "event: content-delta")
            await asyncio.to_thread(server.stop)
            try:
                await asyncio.gather(*(request(name, *answer_text) for name, answer_text in make_requests(run).items()))
            finally:
                await asyncio.to_thread(server.start)
            remaining = [line async for line in lines]
    assert max(durations.values()) < ANSWER_SECONDS, durations
    for name, answer in answers.items():
        # AG-UI reports a refusal as a failed run.
        assert answer.status_code == (200 if name.startswith("agui") else 503), (name, answer.text)
        assert "the event log is unavailable" in answer.text
        assert answer.headers["retry-after"] == "5"
    last = [json.loads(line.removeprefix("data: ")) for line in remaining if line.startswith("data: ")][-1]
    assert last["state"] == "completed"
    assert last["attempt"] == 1
    assert last["content"] == text


async def test_server_with_remote_runs_keeps_its_readers_and_refuses_new_runs(
    server: PostgresServer,
) -> None:
    async with serve_all(server.dsn, queue=PostgresQueue(server.dsn)) as client:
        run = (await client.post("/runs", json={"input": "Look"})).json()["taskId"]
        async with client.stream("GET", f"/runs/{run}/events") as reader:
            lines = reader.aiter_lines()
            await read_until(lines, "event: task")
            await asyncio.to_thread(server.stop)
            start_time = time.monotonic()
            try:
                answer = await client.post("/runs", json={"input": "Look"})
                duration = time.monotonic() - start_time
                await read_until(lines, ": heartbeat")
            finally:
                await asyncio.to_thread(server.start)
            while (await client.post(f"/runs/{run}/cancel", json={})).status_code == 503:
                pass
            await read_until(lines, "event: status-update")
        while (accepted := await client.post("/runs", json={"input": "Look"})).status_code == 503:
            pass
        newest = (await client.get("/runs?limit=2")).json()["runs"]
    assert answer.status_code == 503
    assert [each["taskId"] for each in newest] == [accepted.json()["taskId"], run], (
        "the refused request must start no run"
    )
    assert duration < ANSWER_SECONDS, "checking the queue takes two more seconds"


@pytest.mark.parametrize("command", [("serve", "--queue", "--port", "0"), ("worker",)], ids=lambda each: each[0])
async def test_process_without_postgres_reports_the_error_and_ends(command: tuple[str, ...], tmp_path: Path) -> None:
    process = Process("it", tmp_path, command[0], "clustered_clerk:agents", *command[1:], "--db", NO_SERVER)
    assert await process.wait(START_TIMEOUT) == 1
    [line] = process.log_text.splitlines()
    assert "127.0.0.1" in line
    assert "Connection refused" in line


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_ends_a_server_in_order_while_clients_read(
    replicas: Cluster, signal_number: signal.Signals
) -> None:
    async with replicas.clients() as (a, _):
        run = await a.start("clerk", "Talk on")
        raw = await RawConnection.connect(replicas.urls[1])
        await raw.get(f"/runs/{run.task_id}/events", host="localhost")
        await raw.reader.readuntil(b"content-delta")
        replicas.servers[1].send(signal_number)
        assert await replicas.servers[1].wait(START_TIMEOUT) == 0
        remaining = await raw.reader.read(-1)
        await raw.close()
        assert remaining.endswith(b"reconnect with the last id\n\n\r\n0\r\n\r\n")
        assert (await a.record(run.task_id)).attempt == 1, "the run must not be restarted"
        await a.cancel(run.task_id)


async def test_signal_ends_a_worker_within_its_grace_and_its_runs_continue_elsewhere(replicas: Cluster) -> None:
    async with replicas.clients() as (a, _):
        run = await a.start("clerk", "Talk on")
        events = aiter(a.follow(run.task_id))
        async for event in events:
            if event.kind == "content-delta":
                break
        worker = await replicas.owner(run.task_id)
        worker.send(signal.SIGTERM)
        assert await worker.wait(START_TIMEOUT) == 0
        async for event in events:
            if event.kind == "content-delta" and event.attempt == 2:
                break
        await a.cancel(run.task_id)
        remaining = [event async for event in events]
    assert worker.log_text.splitlines()[-1].endswith("Stopped")
    assert "Traceback" not in worker.log_text
    assert [event.state for event in remaining if event.kind == "status-update"] == ["canceled"]
