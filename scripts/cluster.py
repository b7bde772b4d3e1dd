"""Demonstration of a cluster: starts servers, workers and runs on this machine, and repeatedly kills processes.

Exits with 1 if a run does not complete, if a subscriber misses an event or receives it twice, or if a process ends
without being killed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import socket
import sys
import tempfile
import time
from collections import Counter, deque
from contextlib import suppress
from pathlib import Path

import httpx
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from rxloop import AnyEvent, GapEvent, StatusUpdateEvent
from rxloop.client import Client
from rxloop.errors import RxloopError

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent / "tests"))
QUESTIONS = ["Weather in Oslo?", "Weather in Bergen?", "What is 2 + 2?"]
STUCK_AFTER = 90
"""Maximum time in seconds until all runs have ended, after the last one was started."""
OWNERS = """
SELECT a.application_name, count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE l.locktype = 'advisory' AND l.granted GROUP BY 1
"""


class Process:
    """Server or worker process that can be killed and restarted."""

    def __init__(self, name: str, log: Path, *arguments: str) -> None:
        self.name, self._log, self._arguments = name, log, arguments
        self.killed = 0
        self.since = time.monotonic()

    async def start(self) -> None:
        from support.processes.bound_processes import PREFIX

        self.since = time.monotonic()
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(*PREFIX, sys.executable, "-m", "rxloop", *self._arguments),
                cwd=FOLDER,
                stdin=asyncio.subprocess.DEVNULL,
                stderr=log,
            )

    async def restart(self) -> None:
        """Kill the process and start it again."""
        await self.kill()
        await self.start()

    @property
    def failure(self) -> str | None:
        """Exit code and last log line if the process ended without being killed."""
        code = self._process.returncode
        if code in (None, -signal.SIGKILL):
            return None
        lines = self._log.read_text().splitlines() or ["(empty log)"]
        return f"{self.name} exited unexpectedly with code {code}: {lines[-1]}"

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)
        await self._process.wait()


class Load:
    """Runs, each started on one server and followed on another one, and their results."""

    def __init__(self, urls: list[str]) -> None:
        self._urls = urls
        self.states: Counter[str] = Counter()
        self.started = 0
        self.resumed = 0
        self.errors: list[str] = []
        self.lags: deque[float] = deque(maxlen=500)
        self.tokens: deque[float] = deque(maxlen=20_000)

    async def execute_run(self, number: int) -> None:
        """Start a run, follow it until its end, and check its events."""
        start_url, follow_url = random.sample(self._urls, 2)
        task_id = await self._start(start_url, number)
        self.started += 1
        last_seq = 0
        state = "lost"
        try:
            async with Client(follow_url, retries=60) as client:
                async for event in client.follow(task_id):
                    last_seq = self._check_event(task_id, event, last_seq)
                    if isinstance(event, StatusUpdateEvent):
                        state = event.state
        except RxloopError as error:
            self.errors.append(f"run {task_id}: following failed after event {last_seq}: {error}")
        if state != "completed":
            self.errors.append(f"run {task_id}: must be completed, is {state}")
        self.states[state] += 1

    def _check_event(self, task_id: str, event: AnyEvent, last_seq: int) -> int:
        if event.kind == "content-delta":
            self.tokens.append(time.monotonic())
        if isinstance(event, GapEvent) and event.reason != "lost-attempt":
            # Gaps caused by a lost attempt only affect deltas, so they are allowed.
            self.errors.append(f"run {task_id}: gap after event {last_seq}: {event.reason}")
        if not event.durable:
            return last_seq
        self.lags.append(time.time() - event.timestamp / 1000)
        if isinstance(event, StatusUpdateEvent) and event.resumed:
            self.resumed += 1
        if event.seq != last_seq + 1:
            problem = "was repeated" if event.seq <= last_seq else f"follows event {last_seq}"
            self.errors.append(f"run {task_id}: event {event.seq} {problem}")
        return max(last_seq, event.seq)

    async def _start(self, url: str, number: int) -> str:
        """Start a run on any available server. The idempotency key prevents starting it twice."""
        key = f"{os.getpid()}-{number}"
        while True:
            with suppress(RxloopError):
                async with Client(url, retries=0) as client:
                    run = await client.start("weather", QUESTIONS[number % len(QUESTIONS)], key=key)
                    return run.task_id
            await asyncio.sleep(0.3)
            url = random.choice(self._urls)

    def table(self) -> Table:
        now = time.monotonic()
        lags = sorted(self.lags) or [0.0]
        active = self.started - self.states.total()
        table = Table(title="runs")
        for name in ("started", "active", "completed", "resumed", "lag p50", "lag p99", "tok/s", "errors"):
            table.add_column(name, justify="right")
        table.add_row(
            *(str(number) for number in (self.started, active, self.states["completed"], self.resumed)),
            f"{1000 * lags[len(lags) // 2]:.0f} ms",
            f"{1000 * lags[int(len(lags) * 0.99)]:.0f} ms",
            f"{sum(at > now - 5 for at in self.tokens) / 5:.0f}",
            f"[red]{len(self.errors)}[/]" if self.errors else "[green]0[/]",
        )
        return table


class Cluster:
    """Processes of the cluster, and the number of runs owned by each."""

    def __init__(self, dsn: str, logs: Path) -> None:
        ports = [_free_port() for _ in range(2)]
        self.dsn = dsn
        self.urls = [f"http://127.0.0.1:{port}" for port in ports]
        servers = {f"server {n}": ("serve", "--queue", "--port", str(port)) for n, port in enumerate(ports, 1)}
        workers = {f"worker {n}": ("worker", "--adopt-every", "1") for n in range(1, 4)}
        self.processes = [
            Process(name, logs / f"{name}.log", command, *self._location_options(name), *options)
            for name, (command, *options) in (servers | workers).items()
        ]
        self.owned: Counter[str] = Counter()
        self.last = "no process has been killed"

    def _location_options(self, name: str) -> tuple[str, ...]:
        return "cluster_agent:agent", "--db", f"{self.dsn}?application_name={name.replace(' ', '%20')}"

    async def start(self) -> None:
        for process in self.processes:
            await process.start()
        async with httpx.AsyncClient() as client:
            for url in self.urls:
                while True:
                    with suppress(httpx.HTTPError):
                        if (await client.get(f"{url}/readyz")).is_success:
                            break
                    if self.failures:
                        return
                    await asyncio.sleep(0.2)

    @property
    def failures(self) -> list[str]:
        """Exit codes and last log lines of processes that ended without being killed."""
        return [failure for process in self.processes if (failure := process.failure)]

    async def kill_periodically(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            process = random.choice(self.processes)
            process.killed += 1
            self.last = f"{time.strftime('%H:%M:%S')} killed {process.name} ({self.owned[process.name]} runs)"
            # Shield the restart, so that the process is also restarted if this task is cancelled.
            await asyncio.shield(process.restart())

    async def watch_leases(self) -> None:
        """Query the number of leases per process from Postgres, twice per second."""
        import psycopg

        while True:
            with suppress(psycopg.Error):
                async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as connection:
                    while True:
                        rows = await (await connection.execute(OWNERS)).fetchall()
                        self.owned = Counter({str(name): int(count) for name, count in rows})
                        await asyncio.sleep(0.5)
            await asyncio.sleep(0.5)

    def table(self) -> Table:
        table = Table(title="processes", caption=self.last)
        for name in ("process", "up", "killed", "runs"):
            table.add_column(name, justify="left" if name == "process" else "right")
        for process in self.processes:
            runs = str(self.owned[process.name]) if process.name.startswith("worker") else ""
            table.add_row(process.name, f"{time.monotonic() - process.since:.0f} s", str(process.killed), runs)
        return table


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


async def show(dsn: str, logs: Path, seconds: float, kill_every: float, every: float) -> bool:
    """Run the cluster with a live display. Return True if no error was found."""
    console, cluster = Console(), Cluster(dsn, logs)
    load = Load(cluster.urls)
    runs: set[asyncio.Task[None]] = set()

    def render() -> Group:
        return Group(cluster.table(), load.table())

    try:
        with console.status("Starting two servers and three workers"):
            await cluster.start()
        background = [
            asyncio.create_task(cluster.kill_periodically(kill_every)),
            asyncio.create_task(cluster.watch_leases()),
        ]
        ends = time.monotonic() + seconds
        with Live(render(), console=console, refresh_per_second=4) as live:
            while time.monotonic() < ends and not cluster.failures:
                runs.add(asyncio.create_task(load.execute_run(len(runs))))
                await asyncio.sleep(every)
                live.update(render())
            background[0].cancel()
            while (active := [task for task in runs if not task.done()]) and not cluster.failures:
                await asyncio.wait(active, timeout=0.5)
                live.update(render())
                if time.monotonic() > ends + STUCK_AFTER:
                    load.errors.append(f"{len(active)} runs have not ended")
                    break
        load.errors += cluster.failures
        for task in (*background, *runs):
            task.cancel()
        results = await asyncio.gather(*background, *runs, return_exceptions=True)
        load.errors += [f"unexpected error: {each!r}" for each in results if isinstance(each, Exception)]
    finally:
        for process in cluster.processes:
            await process.kill()
    return _print_results(console, cluster, load)


def _print_results(console: Console, cluster: Cluster, load: Load) -> bool:
    """Print the results. Return True if no error was found."""
    killed = sum(process.killed for process in cluster.processes)
    summary = f"{load.started} runs, {load.resumed} resumed attempts, {killed} processes killed"
    for line in load.errors[:20]:
        console.print(line, style="red", highlight=False, soft_wrap=True)
    if load.errors:
        console.print(f"{len(load.errors)} errors: {summary}", style="bold red", highlight=False)
    else:
        console.print(f"No errors: {summary}", style="green", highlight=False)
    return not load.errors


def main() -> int:
    from support.postgres.server import PostgresServer, can_start

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120, help="duration of the load in seconds")
    parser.add_argument("--kill-every", type=float, default=10, help="interval of kills in seconds")
    parser.add_argument("--every", type=float, default=0.5, help="interval of new runs in seconds")
    options = parser.parse_args()
    if not can_start():
        print("scripts/cluster requires the PostgreSQL programs (Debian: apt-get install postgresql)", file=sys.stderr)
        return 1
    with PostgresServer() as server, tempfile.TemporaryDirectory() as logs:
        succeeded = asyncio.run(show(server.dsn, Path(logs), options.seconds, options.kill_every, options.every))
    return 0 if succeeded else 1


if __name__ == "__main__":
    sys.exit(main())
