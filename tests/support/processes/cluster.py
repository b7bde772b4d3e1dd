"""Servers and workers as people start them, by `rxloop serve --queue` and `rxloop worker`, over one Postgres."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from pathlib import Path

import httpx
import psycopg

from rxloop.client import Client
from support.processes.bound_processes import started
from support.processes.hosts import HERE, Host
from support.processes.replicas import free_port

DOORS = ("--agui", "--ui-stream", "--openai", "--a2a", "--mcp")
STARTS_IN = 60.0
_FOLDER = Path(__file__).parents[1] / "server_programs"
_OWNER = """
SELECT a.application_name FROM pg_locks l JOIN pg_stat_activity a USING (pid)
JOIN rxloop.turns t ON t.key = (l.classid::bigint << 32) | l.objid::bigint
WHERE l.locktype = 'advisory' AND l.granted AND a.application_name LIKE 'worker%%' AND t.task_id = %s
"""
"""By the turn: workers may have other runs, and while they start other locks."""


class Process:
    """A server or a worker, or the next one in its place."""

    def __init__(self, name: str, folder: Path, *arguments: str, host: Host = HERE) -> None:
        """Start it; it writes its log into a file of the folder."""
        self.name, self._file = name, folder / f"{name}.log"
        self._command = (*host.within, sys.executable, "-m", "rxloop", *arguments)
        self._process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        with self._file.open("ab") as log:
            return started(
                self._command,
                cwd=_FOLDER,
                env={**os.environ, "RXLOOP_DB": "", "RXLOOP_KEYS": ""},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def logged(self) -> str:
        """What it has logged, and those before it in its place."""
        return self._file.read_text()

    @property
    def runs(self) -> bool:
        """Whether it is still there."""
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill it, without a word."""
        self.send(signal.SIGKILL)
        self._process.wait(STARTS_IN)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, if it is still there."""
        if self.runs:
            self._process.send_signal(number)

    async def over(self, seconds: float) -> int:
        """Wait until it is over: its exit code."""
        return await asyncio.to_thread(self._process.wait, seconds)

    def again(self) -> None:
        """Start the next one, if this one is gone."""
        if not self.runs:
            self._process = self._started()


class Cluster:
    """Two servers and some workers over one database."""

    def __init__(
        self, dsn: str, folder: Path, flags: Sequence[str], workers: int, reference: str, hosts: Sequence[Host]
    ) -> None:
        """Start all of them; `ready` waits until they are there."""
        self.dsn = dsn
        ports = [free_port() for _ in range(2)]
        self.urls = [f"http://{host.address}:{port}" for host, port in zip(hosts, ports, strict=False)]
        self.servers = [
            Process(
                *(name, folder, "serve", reference, *self._at(name), "--queue", "--port", str(port)),
                *("--host", host.address, "--without-keys", *flags),
                host=host,
            )
            for name, host, port in zip(("server1", "server2"), hosts, ports, strict=False)
        ]
        self.workers = [
            Process(
                *(name, folder, "worker", reference, *self._at(name), "--adopt-every", "0.5", "--grace", "1"), host=host
            )
            for name, host in zip((f"worker{number}" for number in range(1, workers + 1)), hosts[2:], strict=True)
        ]

    def _at(self, name: str) -> tuple[str, str]:
        return "--db", f"{self.dsn}?application_name={name}"

    @property
    def _all(self) -> Iterator[Process]:
        yield from self.servers
        yield from self.workers

    def ready(self) -> None:
        """Start again what was killed, and wait until every server is ready and every worker works."""
        wanted = {each: each.logged.count("working on") + (not each.runs) for each in self.workers}
        for each in self._all:
            each.again()
        late = time.monotonic() + STARTS_IN
        for url, server in zip(self.urls, self.servers, strict=True):
            while not _is_ready(url):
                assert time.monotonic() < late, server.logged
                time.sleep(0.05)
        for worker, begun in wanted.items():
            while worker.logged.count("working on") < max(1, begun):
                assert time.monotonic() < late, worker.logged
                time.sleep(0.05)

    def end(self) -> None:
        """Kill all of them."""
        for each in self._all:
            each.kill()

    async def owner(self, task_id: str) -> Process:
        """The worker that has the turn of a run, once one has."""
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as connection:
            async with asyncio.timeout(STARTS_IN):
                while True:
                    for (name,) in await (await connection.execute(_OWNER, (task_id,))).fetchall():
                        return next(each for each in self.workers if each.name == name)
                    await asyncio.sleep(0.02)

    @contextlib.asynccontextmanager
    async def clients(self) -> AsyncGenerator[list[Client]]:
        """A client of each server."""
        async with contextlib.AsyncExitStack() as stack:
            yield [await stack.enter_async_context(Client(url, retries=20)) for url in self.urls]


@contextlib.contextmanager
def cluster(
    dsn: str,
    folder: Path,
    flags: Sequence[str] = DOORS,
    *,
    workers: int = 2,
    reference: str = "clustered_clerk:agents",
    hosts: Sequence[Host] = (),
) -> Generator[Cluster]:
    """Start servers and workers, each on one of the hosts if there are any; they are killed after the block."""
    made = Cluster(dsn, folder, flags, workers, reference, hosts or [HERE] * (2 + workers))
    try:
        made.ready()
        yield made
    finally:
        made.end()


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=5).is_success
    except httpx.HTTPError:
        return False


@contextlib.asynccontextmanager
async def balancing(*urls: str, in_turn: bool = False) -> AsyncGenerator[str]:
    """A balancer before servers: each connection goes to the first of them that takes it, or to the next one."""
    ports = [int(url.rsplit(":", 1)[1]) for url in urls]
    open_: set[asyncio.StreamWriter] = set()

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_.add(writer)
        with contextlib.suppress(OSError):
            while piece := await reader.read(1 << 16):
                writer.write(piece)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_.add(writer)
        if in_turn:
            ports.append(ports.pop(0))
        for port in ports:
            with contextlib.suppress(OSError):
                there = await asyncio.open_connection("127.0.0.1", port)
                await asyncio.gather(pipe(reader, there[1]), pipe(there[0], writer))
                return
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for each in open_:
            each.close()
        for each in open_:
            with contextlib.suppress(OSError):
                await each.wait_closed()
        await server.wait_closed()
