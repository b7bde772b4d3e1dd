"""Shutdown of server processes on signals, with uvicorn and hypercorn."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import httpx
import pytest

from rxloop.client import Client
from rxloop.errors import ApiError
from support.api_server import RawConnection

PROGRAMS = Path(__file__).parents[1] / "support/server_programs"
SERVERS = {
    "uvicorn": ["-m", "rxloop", "serve", "clerk:runtime", "--grace", "{grace}", "--port", "{port}"],
    "hypercorn": [str(PROGRAMS / "clerk.py"), "{port}"],
}
KEY = "ann-has-this-key"
LIMIT = 30.0


class Process:
    def __init__(self, process: asyncio.subprocess.Process, url: str, client: Client) -> None:
        self.process, self.url, self.client = process, url, client

    async def wait_for_log(self, text: str) -> None:
        assert self.process.stderr is not None
        async with asyncio.timeout(LIMIT):
            while text not in (line := (await self.process.stderr.readline()).decode()):
                assert line, f"the process ended without logging {text!r}"

    async def wait_for_end(self) -> tuple[int, str]:
        """Wait until the process ends, then return its exit code and its remaining log output."""
        assert self.process.stderr is not None
        async with asyncio.timeout(LIMIT):
            rest = await self.process.stderr.read()
            return await self.process.wait(), rest.decode()


@contextlib.asynccontextmanager
async def start_server(server: str, folder: Path, grace: float = 0.3) -> AsyncGenerator[Process]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = [each.format(port=port, grace=grace) for each in SERVERS[server]]
    env = {
        **os.environ,
        "GRACE": str(grace),
        "CLERK_KEY": KEY,
        "RXLOOP_KEYS": f"ann={KEY}",
        "PYTHONPATH": str(PROGRAMS),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, cwd=folder, env=env, stderr=asyncio.subprocess.PIPE
    )
    url = f"http://127.0.0.1:{port}"
    async with Client(url, token=KEY) as client:
        try:
            async with asyncio.timeout(LIMIT):
                while True:
                    with contextlib.suppress(ApiError):
                        await client.agents()
                        break
                yield Process(process, url, client)
        finally:
            if process.returncode is None:
                process.kill()
            # Read the remaining output, because asyncio warns about unread data.
            await process.communicate()


async def follow_raw(url: str, path: str, until: bytes) -> RawConnection:
    reader = await RawConnection.connect(url)
    await reader.get(path, KEY)
    await reader.reader.readuntil(until)
    return reader


@pytest.mark.parametrize("server", SERVERS)
async def test_signal_ends_runs_streams_and_log_in_order_and_the_next_process_continues(
    server: str, tmp_path: Path
) -> None:  # L140
    async with start_server(server, tmp_path) as first:
        held = await first.client.start("clerk", "Hold")
        talking = await first.client.start("clerk", "Talk for ever")
        waiting = await first.client.start("clerk", "Pay 5", wait=20)
        assert waiting.state == "input-required"
        readers = [
            await follow_raw(first.url, held.events, b"tool-progress"),
            await follow_raw(first.url, talking.events, b"content-delta"),
            await follow_raw(first.url, waiting.events, b"input-required"),
        ]
        first.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(10):
            for reader in readers:
                remaining = await reader.reader.read()
                assert remaining.endswith(b"reconnect with the last id\n\n\r\n0\r\n\r\n")
                await reader.close()
            code, log = await first.wait_for_end()
    assert code == 0, log
    assert "active runs have 0.3 s to finish; a second signal exits immediately" in log
    order = re.findall(r"Shutdown step (\w+) finished", log)
    server_steps = ["connections"] if server == "uvicorn" else []
    assert order == [
        "readiness",
        "runs",
        "streams",
        *server_steps,
        "log",
        "agents",
    ]
    assert "Releasing runs that have not ended in time: 2" in log
    assert "Traceback" not in log
    (tmp_path / "go").touch()
    async with start_server(server, tmp_path) as second:
        await second.wait_for_log(f"Adopting orphaned run {held.task_id}")
        resumed_events = [event async for event in second.client.follow(held.task_id, kinds=["status-update"])]
        assert (await second.client.record(held.task_id)).content == "It is held."
        assert resumed_events[-1].attempt == 2
        await second.client.answer(waiting.task_id, {waiting.pending[0].input_id: True})
        async for _ in second.client.follow(waiting.task_id):
            pass
        assert (await second.client.record(waiting.task_id)).content == "It is paid 5."
        assert (await second.client.cancel(talking.task_id)).state == "canceled"


@pytest.mark.parametrize("server", SERVERS)
async def test_draining_process_refuses_runs_and_a_second_signal_ends_it_at_once(
    server: str, tmp_path: Path
) -> None:  # L140
    async with start_server(server, tmp_path, grace=LIMIT) as process:
        talking = await process.client.start("clerk", "Talk for ever")
        reader = await follow_raw(process.url, talking.events, b"content-delta")
        process.process.send_signal(signal.SIGTERM)
        await process.wait_for_log("readiness")
        headers = {"authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(base_url=process.url, headers=headers) as client:
            assert (await client.get("/readyz")).status_code == 503
            assert (await client.get("/healthz")).status_code == 200
            refused = await client.post("/runs", json={"input": "Pay 5"})
            assert refused.status_code == 503
            assert refused.headers["retry-after"] == "5"
            # Clients can still read active runs.
            await reader.reader.readuntil(b"content-delta")
            process.process.send_signal(signal.SIGINT)
            code, log = await process.wait_for_end()
        assert code == 130
        assert log.endswith("exited without waiting\n")
        await reader.close()
