"""Server processes that share a log and can be killed."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

from rxloop.client import Client
from rxloop.errors import ApiError
from support.processes.bound_processes import PREFIX

_REPLICA = Path(__file__).parents[1] / "server_programs/replica.py"


class Replica:
    """Server process and client."""

    def __init__(self, process: asyncio.subprocess.Process, client: Client, url: str) -> None:
        self.process, self.client, self.url = process, client, url

    async def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()


def free_port() -> int:
    """Return an unused port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextlib.asynccontextmanager
async def replica(file: Path, port: int | None = None) -> AsyncGenerator[Replica]:
    """Serve a log in a new process."""
    port = port or free_port()
    process = await asyncio.create_subprocess_exec(*PREFIX, sys.executable, str(_REPLICA), str(file), str(port))
    url = f"http://127.0.0.1:{port}"
    async with Client(url, token="ann-key") as client:
        try:
            async with asyncio.timeout(60):
                while True:
                    with contextlib.suppress(ApiError):
                        await client.agents()
                        break
            yield Replica(process, client, url)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
