"""Signals for uvicorn and hypercorn servers without custom shutdown code."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest

from rxloop import SqliteEventLog

PROGRAMS = Path(__file__).parents[1] / "support/server_programs"
SERVERS = {
    "uvicorn": ["-m", "uvicorn", "--port", "{port}"],
    "uvicorn-with-timeout": ["-m", "uvicorn", "--port", "{port}", "--timeout-graceful-shutdown", "5"],
    "program": ["{tests}/support/server_programs/draining.py", "{port}"],
    "hypercorn": ["-m", "hypercorn", "--bind", "127.0.0.1:{port}", "--workers", "0"],
}
LIMIT = 30.0
GRACE = 0.3
RUNS = 10
"""Number of active runs for `open_all`."""


class Server:
    """Server process. Its log output is written to a file."""

    def __init__(self, process: asyncio.subprocess.Process, http: httpx.AsyncClient, output: Path) -> None:
        self.process, self.http, self._output = process, http, output

    @property
    def output(self) -> str:
        """Log output of the server so far."""
        return self._output.read_text()

    async def stop(self, number: signal.Signals) -> tuple[int, str]:
        """Send a signal, and return the exit code and the log output."""
        self.process.send_signal(number)
        async with asyncio.timeout(LIMIT):
            return await self.process.wait(), self.output


@contextlib.asynccontextmanager
async def start_server(server: str, app: str, folder: Path, prefix: str) -> AsyncGenerator[Server]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = [each.format(port=port, tests=PROGRAMS.parents[1]) for each in SERVERS[server]]
    env = {**os.environ, "GRACE": str(GRACE), "PYTHONPATH": str(PROGRAMS)}
    output = folder / "output.txt"
    with output.open("w") as file:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, app, cwd=folder, env=env, stdout=file, stderr=file
        )
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=LIMIT, limits=limits) as http:
        try:
            async with asyncio.timeout(LIMIT):
                while True:
                    with contextlib.suppress(httpx.HTTPError):
                        if (await http.get(f"{prefix}/readyz")).status_code == 200:
                            break
                    assert process.returncode is None, output.read_text()
                    await asyncio.sleep(0.05)
            yield Server(process, http, output)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


class OpenRequest:
    """Request with a streaming or delayed response. Truncated responses raise `httpx.RemoteProtocolError`."""

    def __init__(self, http: httpx.AsyncClient, until: str | None, method: str, url: str, **options: Any) -> None:
        self.text, self._until, self._arrived = "", until, asyncio.Event()
        self.status: int | None = None
        self.task = asyncio.create_task(self._read(http, method, url, **options))

    async def _read(self, http: httpx.AsyncClient, method: str, url: str, **options: Any) -> None:
        async with http.stream(method, url, **options) as response:
            self.status = response.status_code
            async for text in response.aiter_text():
                self.text += text
                if self._until is not None and self._until in self.text:
                    self._arrived.set()

    async def wait_until_open(self) -> OpenRequest:
        """Wait for the expected text, and check that the response is incomplete."""
        if self._until is not None:
            arrived = asyncio.create_task(self._arrived.wait())
            await asyncio.wait([arrived, self.task], timeout=LIMIT, return_when=asyncio.FIRST_COMPLETED)
            arrived.cancel()
            assert self._arrived.is_set(), (self.status, self.text)
        assert not self.task.done(), (self.status, self.text)
        return self


def send_rpc(method: str, text: str) -> dict[str, Any]:
    message = {"messageId": f"m-{method}", "role": "ROLE_USER", "parts": [{"text": text}]}
    headers = {"a2a-version": "1.0"}
    return {"json": {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"message": message}}, "headers": headers}


async def open_mcp(http: httpx.AsyncClient) -> list[OpenRequest]:
    headers = {"accept": "application/json, text/event-stream"}
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    answer = await http.post("/mcp/", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    headers |= {"mcp-session-id": answer.headers["mcp-session-id"], "mcp-protocol-version": "2025-06-18"}
    await http.post("/mcp/", json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=headers)
    call = {"name": "clerk", "arguments": {"prompt": "Talk for ever"}, "_meta": {"progressToken": 1}}
    body = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}
    listening = OpenRequest(http, None, "GET", "/mcp/", headers=headers)
    return [listening, OpenRequest(http, "progress", "POST", "/mcp/", json=body, headers=headers)]


async def open_all(http: httpx.AsyncClient) -> dict[str, OpenRequest]:
    """Open a stream for each adapter, and several waiting requests."""
    endless = {"input": "Talk for ever"}
    paid = (await http.post("/api/runs?wait=20", json={"input": "Pay 5"})).json()
    assert paid["state"] == "input-required"
    talking = (await http.post("/api/runs", json=endless)).json()
    message = {"role": "user", "content": "Talk for ever"}
    agui_body = {"threadId": "agui", "runId": "r1", "messages": [{"id": "m1", **message}]}
    part = {"type": "text", "text": "Talk for ever"}
    ui_body = {"id": "ui", "messages": [{"id": "m1", "role": "user", "parts": [part]}]}
    responses, completions = "/openai/v1/responses", "/openai/v1/chat/completions"
    requests = {
        "events of a waiting run": OpenRequest(http, "input-required", "GET", paid["events"]),
        "events of an active run": OpenRequest(http, "content-delta", "GET", talking["events"]),
        "wait": OpenRequest(http, None, "GET", f"/api/runs/{talking['taskId']}?wait=60"),
        "agui": OpenRequest(http, "TEXT_MESSAGE_CONTENT", "POST", "/agui/", json=agui_body),
        "ui": OpenRequest(http, "text-delta", "POST", "/ui/api/chat", json=ui_body),
        "responses": OpenRequest(
            http, "output_text.delta", "POST", responses, json={"model": "clerk", **endless, "stream": True}
        ),
        "response": OpenRequest(http, None, "POST", responses, json={"model": "clerk", **endless}),
        "completions": OpenRequest(
            http, "on and on", "POST", completions, json={"model": "clerk", "messages": [message], "stream": True}
        ),
        "completion": OpenRequest(http, None, "POST", completions, json={"model": "clerk", "messages": [message]}),
        "a2a stream": OpenRequest(
            http, "artifact", "POST", "/a2a/rpc", **send_rpc("SendStreamingMessage", "Talk for ever")
        ),
        "a2a": OpenRequest(http, None, "POST", "/a2a/rpc", **send_rpc("SendMessage", "Talk for ever")),
    }
    requests["mcp session"], requests["mcp call"] = await open_mcp(http)
    for each in requests.values():
        await each.wait_until_open()
    # Requests without a stream have started their runs.
    while len((await http.get("/api/runs?state=working")).json()["runs"]) < RUNS:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    return requests


RECONNECT = ": the server is shutting down, reconnect with the last id\n\n"
ENDS = {
    "events of a waiting run": RECONNECT,
    "events of an active run": RECONNECT,
    "wait": '"state":"working"',
    "agui": '"code":"draining"',
    "ui": "The answer continues; please reconnect.",
    "responses": '"code":"draining"',
    "response": '"status":"in_progress"',
    "completions": '"code":"draining"',
    "completion": '"code":"draining"',
    "a2a stream": RECONNECT,
    "a2a": "TASK_STATE_WORKING",
    "mcp call": "continue_run",
}
"""Text with which each response tells its client to continue elsewhere."""


async def check_end(requests: dict[str, OpenRequest], code: int, output: str) -> None:
    """Check for complete responses and a log without errors."""
    await asyncio.wait([each.task for each in requests.values()], timeout=5)
    assert {name: each.task.exception() for name, each in requests.items() if each.task.exception() is not None} == {}
    texts = {name: each.text for name, each in requests.items()}
    assert {name: text for name, text in texts.items() if ENDS.get(name, "") not in text} == {}
    assert {name for name, each in requests.items() if each.status not in (200, 503)} == set()
    assert "Traceback" not in output
    assert "ERROR" not in output
    # Uvicorn repeats the signal after the shutdown.
    assert code in (0, -signal.SIGTERM, -signal.SIGINT)


@pytest.mark.parametrize("server", [each for each in SERVERS if each != "program"])
async def test_signal_ends_the_responses_of_all_adapters_in_an_application(server: str, tmp_path: Path) -> None:
    async with start_server(server, "mounted:app", tmp_path, "/api") as process:
        requests = await open_all(process.http)
        await check_end(requests, *await process.stop(signal.SIGTERM))
    log = SqliteEventLog(tmp_path / "runs.db")
    working = {each.task_id for each in await log.list_runs(states=("working",))}
    released = {each.task_id for each in await log.list_orphaned(submitted_before=0)}
    await log.aclose()
    assert len(working) == RUNS
    assert released == working


async def test_client_of_an_adapter_that_is_served_alone_continues_with_the_next_process(tmp_path: Path) -> None:
    async with start_server("uvicorn", "mounted:plain", tmp_path, "") as process:
        run = (await process.http.post("/runs", json={"input": "Hold"})).json()
        reader = await OpenRequest(process.http, "tool-progress", "GET", run["events"]).wait_until_open()
        await check_end({"events of an active run": reader}, *await process.stop(signal.SIGINT))
    (tmp_path / "go").touch()
    last_id = reader.text.rpartition("\nid: ")[2].partition("\n")[0]
    async with start_server("uvicorn", "mounted:plain", tmp_path, "") as process:
        headers = {"last-event-id": last_id}
        rest = (await process.http.get(run["events"], headers=headers)).text
        assert "It is held." in rest
        idle = (await process.http.get(f"/runs/{run['taskId']}?wait=10")).json()
        assert (idle["state"], idle["attempt"]) == ("completed", 2)
        await process.stop(signal.SIGTERM)


async def test_program_that_drains_its_adapters_keeps_the_streams_until_its_runs_have_ended(tmp_path: Path) -> None:
    async with start_server("program", "mounted:app", tmp_path, "/api") as process:
        run = (await process.http.post("/api/runs", json={"input": "Hold"})).json()
        reader = await OpenRequest(process.http, "tool-progress", "GET", run["events"]).wait_until_open()
        process.process.send_signal(signal.SIGTERM)
        while "drain" not in process.output:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        (tmp_path / "go").touch()
        await asyncio.wait_for(reader.task, LIMIT)
        assert "It is held." in reader.text
        async with asyncio.timeout(LIMIT):
            await process.process.wait()
    assert "Traceback" not in process.output
