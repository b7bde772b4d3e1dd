"""Servers and workers started by `rxloop serve --queue` and `rxloop worker` over one Postgres."""

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
from support.processes.bound_processes import start_process
from support.processes.hosts import HERE, Host
from support.processes.replicas import free_port
from support.tcp_server import serve_connections

ADAPTER_FLAGS = ("--agui", "--ui-stream", "--openai", "--a2a", "--mcp")
START_TIMEOUT = 60.0
_FOLDER = Path(__file__).parents[1] / "server_programs"
_OWNER = """
SELECT a.application_name FROM pg_locks l JOIN pg_stat_activity a USING (pid)
JOIN rxloop.leases lease ON lease.lock_key = (l.classid::bigint << 32) | l.objid::bigint
WHERE l.locktype = 'advisory' AND l.granted AND a.application_name LIKE 'worker%%' AND lease.task_id = %s
"""
"""Finds a worker by its lease, because workers may own other runs and hold other locks."""


class Process:
    """Server or worker process that can be restarted."""

    def __init__(self, name: str, folder: Path, *arguments: str, host: Host = HERE) -> None:
        """Start the process. It appends to a log file in the folder."""
        self.name, self._file = name, folder / f"{name}.log"
        self._command = (*host.command_prefix, sys.executable, "-m", "rxloop", *arguments)
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._file.open("ab") as log:
            return start_process(
                self._command,
                cwd=_FOLDER,
                env={**os.environ, "RXLOOP_DB": "", "RXLOOP_KEYS": ""},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def log_text(self) -> str:
        """Log output of all processes with this name."""
        return self._file.read_text()

    @property
    def is_running(self) -> bool:
        """True if the process has not ended."""
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill the process."""
        self.send(signal.SIGKILL)
        self._process.wait(START_TIMEOUT)

    def send(self, number: signal.Signals) -> None:
        """Send a signal if the process is running."""
        if self.is_running:
            self._process.send_signal(number)

    async def wait(self, seconds: float) -> int:
        """Wait for the process to end and return its exit code."""
        return await asyncio.to_thread(self._process.wait, seconds)

    def restart(self) -> None:
        """Restart the process if necessary."""
        if not self.is_running:
            self._process = self._start()


class Cluster:
    """Servers and workers with a shared database."""

    def __init__(
        self, dsn: str, folder: Path, flags: Sequence[str], workers: int, reference: str, hosts: Sequence[Host]
    ) -> None:
        """Start all processes. Call `wait_until_ready` before using them."""
        self.dsn = dsn
        ports = [free_port() for _ in range(2)]
        self.urls = [f"http://{host.address}:{port}" for host, port in zip(hosts, ports, strict=False)]
        self.servers = [
            Process(
                *(name, folder, "serve", reference, *self._database_option(name), "--queue", "--port", str(port)),
                *("--host", host.address, "--without-keys", *flags),
                host=host,
            )
            for name, host, port in zip(("server1", "server2"), hosts, ports, strict=False)
        ]
        self.workers = [
            Process(
                *(
                    name,
                    folder,
                    "worker",
                    reference,
                    *self._database_option(name),
                    "--adopt-every",
                    "0.5",
                    "--grace",
                    "1",
                ),
                host=host,
            )
            for name, host in zip((f"worker{number}" for number in range(1, workers + 1)), hosts[2:], strict=True)
        ]

    def _database_option(self, name: str) -> tuple[str, str]:
        return "--db", f"{self.dsn}?application_name={name}"

    @property
    def _all(self) -> Iterator[Process]:
        yield from self.servers
        yield from self.workers

    def wait_until_ready(self) -> None:
        """Restart dead processes, then wait until all servers and workers are ready."""
        min_counts = {each: each.log_text.count("Executing runs of") + (not each.is_running) for each in self.workers}
        for each in self._all:
            each.restart()
        deadline = time.monotonic() + START_TIMEOUT
        for url, server in zip(self.urls, self.servers, strict=True):
            while not _is_ready(url):
                assert time.monotonic() < deadline, server.log_text
                time.sleep(0.05)
        for worker, count in min_counts.items():
            while worker.log_text.count("Executing runs of") < max(1, count):
                assert time.monotonic() < deadline, worker.log_text
                time.sleep(0.05)

    def end(self) -> None:
        """Kill all processes."""
        for each in self._all:
            each.kill()

    async def owner(self, task_id: str) -> Process:
        """Wait for a worker to acquire a run's lease, returning the worker."""
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as connection:
            async with asyncio.timeout(START_TIMEOUT):
                while True:
                    for (name,) in await (await connection.execute(_OWNER, (task_id,))).fetchall():
                        return next(each for each in self.workers if each.name == name)
                    await asyncio.sleep(0.02)

    @contextlib.asynccontextmanager
    async def clients(self) -> AsyncGenerator[list[Client]]:
        """Connect a client to each server."""
        async with contextlib.AsyncExitStack() as stack:
            yield [await stack.enter_async_context(Client(url, retries=20)) for url in self.urls]


@contextlib.contextmanager
def cluster(
    dsn: str,
    folder: Path,
    flags: Sequence[str] = ADAPTER_FLAGS,
    *,
    workers: int = 2,
    reference: str = "clustered_clerk:agents",
    hosts: Sequence[Host] = (),
) -> Generator[Cluster]:
    """Start servers and workers, optionally on hosts. Kill them at the end."""
    started_cluster = Cluster(dsn, folder, flags, workers, reference, hosts or [HERE] * (2 + workers))
    try:
        started_cluster.wait_until_ready()
        yield started_cluster
    finally:
        started_cluster.end()


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=5).is_success
    except httpx.HTTPError:
        return False


@contextlib.asynccontextmanager
async def load_balancer(*urls: str, round_robin: bool = False) -> AsyncGenerator[str]:
    """Start a load balancer. Each connection uses the first available server."""
    ports = [int(url.rsplit(":", 1)[1]) for url in urls]
    open_: set[asyncio.StreamWriter] = set()

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(1 << 16):
                writer.write(piece)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_.add(writer)
        if round_robin:
            ports.append(ports.pop(0))
        for port in ports:
            with contextlib.suppress(OSError):
                upstream = await asyncio.open_connection("127.0.0.1", port)
                open_.add(upstream[1])
                await asyncio.gather(pipe(reader, upstream[1]), pipe(upstream[0], writer))
                return
        writer.close()

    async with serve_connections(serve) as port:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            for each in open_:
                each.transport.abort()
