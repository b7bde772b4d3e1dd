"""A cluster on one machine whose processes are killed one by one, and a table of what comes of it.

Exits with 1 if anything was lost: a run that did not come to its right end, or an event that a reader missed or saw
twice; and if a process ended that nobody had killed.
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
"""Seconds after the last run was started by which all of them are over."""
OWNERS = """
SELECT a.application_name, count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE l.locktype = 'advisory' AND l.granted GROUP BY 1
"""


class Process:
    """A server or a worker, or the next one in its place."""

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

    async def again(self) -> None:
        """Kill it, and start the next one in its place."""
        await self.kill()
        await self.start()

    @property
    def ended(self) -> str | None:
        """What it said last, if it has ended by itself."""
        code = self._process.returncode
        if code in (None, -signal.SIGKILL):
            return None
        said = self._log.read_text().splitlines() or ["nothing"]
        return f"{self.name} ended by itself with {code}, and said: {said[-1]}"

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)
        await self._process.wait()


class Load:
    """Runs that are started at one server and followed at another one, and what was seen of them."""

    def __init__(self, urls: list[str]) -> None:
        self._urls = urls
        self.states: Counter[str] = Counter()
        self.started = 0
        self.take_overs = 0
        self.lost: list[str] = []
        self.lags: deque[float] = deque(maxlen=500)
        self.tokens: deque[float] = deque(maxlen=20_000)

    async def one(self, number: int) -> None:
        """Start a run, follow it to its end, and see that no event is missing."""
        starts, shows = random.sample(self._urls, 2)
        task_id = await self._start(starts, number)
        self.started += 1
        seen = 0
        state = "lost"
        try:
            async with Client(shows, retries=60) as client:
                async for event in client.follow(task_id):
                    seen = self._see(task_id, event, seen)
                    if isinstance(event, StatusUpdateEvent):
                        state = event.state
        except RxloopError as error:
            self.lost.append(f"{task_id} cannot be followed after its event {seen}: {error}")
        if state != "completed":
            self.lost.append(f"{task_id} has come to no end: it is {state}")
        self.states[state] += 1

    def _see(self, task_id: str, event: AnyEvent, seen: int) -> int:
        if event.kind == "content-delta":
            self.tokens.append(time.monotonic())
        if isinstance(event, GapEvent) and event.reason != "lost-attempt":
            # Of an attempt that is lost the reader had deltas, and nothing else.
            self.lost.append(f"{task_id} has a gap behind its event {seen}: {event.reason}")
        if not event.durable:
            return seen
        self.lags.append(time.time() - event.timestamp / 1000)
        if isinstance(event, StatusUpdateEvent) and event.resumed:
            self.take_overs += 1
        if event.seq != seen + 1:
            wrong = "is seen twice" if event.seq <= seen else f"follows on {seen}: those between are lost"
            self.lost.append(f"{task_id}: its event {event.seq} {wrong}")
        return max(seen, event.seq)

    async def _start(self, url: str, number: int) -> str:
        """Start it, once, at whatever server is there: the key makes it the same run."""
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
        under_way = self.started - self.states.total()
        found = Table(title="runs")
        for name in ("started", "going", "done", "taken over", "lag p50", "lag p99", "tok/s", "lost"):
            found.add_column(name, justify="right")
        found.add_row(
            *(str(number) for number in (self.started, under_way, self.states["completed"], self.take_overs)),
            f"{1000 * lags[len(lags) // 2]:.0f} ms",
            f"{1000 * lags[int(len(lags) * 0.99)]:.0f} ms",
            f"{sum(at > now - 5 for at in self.tokens) / 5:.0f}",
            f"[red]{len(self.lost)}[/]" if self.lost else "[green]0[/]",
        )
        return found


class Cluster:
    """The processes, and who has which runs."""

    def __init__(self, dsn: str, logs: Path) -> None:
        ports = [_free_port() for _ in range(2)]
        self.dsn = dsn
        self.urls = [f"http://127.0.0.1:{port}" for port in ports]
        servers = {f"server {n}": ("serve", "--queue", "--port", str(port)) for n, port in enumerate(ports, 1)}
        workers = {f"worker {n}": ("worker", "--adopt-every", "1") for n in range(1, 4)}
        self.processes = [
            Process(name, logs / f"{name}.log", command, *self._where(name), *options)
            for name, (command, *options) in (servers | workers).items()
        ]
        self.owned: Counter[str] = Counter()
        self.last = "nothing was killed yet"

    def _where(self, name: str) -> tuple[str, ...]:
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
                    if self.ended:
                        return
                    await asyncio.sleep(0.2)

    @property
    def ended(self) -> list[str]:
        """Those that have ended by themselves, and what they said."""
        return [said for each in self.processes if (said := each.ended)]

    async def kill_on(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            process = random.choice(self.processes)
            process.killed += 1
            self.last = f"{time.strftime('%H:%M:%S')} killed {process.name}, with {self.owned[process.name]} runs"
            # Whoever stops the killing is not to leave one dead.
            await asyncio.shield(process.again())

    async def look_on(self) -> None:
        """Ask Postgres, twice a second, who has how many turns."""
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
        found = Table(title="processes", caption=self.last)
        for name in ("process", "up", "killed", "runs"):
            found.add_column(name, justify="left" if name == "process" else "right")
        for process in self.processes:
            runs = str(self.owned[process.name]) if process.name.startswith("worker") else ""
            found.add_row(process.name, f"{time.monotonic() - process.since:.0f} s", str(process.killed), runs)
        return found


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


async def show(dsn: str, logs: Path, seconds: float, kill_every: float, every: float) -> bool:
    """Show the cluster for so long; whether nothing was lost."""
    console, cluster = Console(), Cluster(dsn, logs)
    load = Load(cluster.urls)
    runs: set[asyncio.Task[None]] = set()

    def picture() -> Group:
        return Group(cluster.table(), load.table())

    try:
        with console.status("two servers and three workers start"):
            await cluster.start()
        background = [asyncio.create_task(cluster.kill_on(kill_every)), asyncio.create_task(cluster.look_on())]
        ends = time.monotonic() + seconds
        with Live(picture(), console=console, refresh_per_second=4) as live:
            while time.monotonic() < ends and not cluster.ended:
                runs.add(asyncio.create_task(load.one(len(runs))))
                await asyncio.sleep(every)
                live.update(picture())
            background[0].cancel()
            while (under_way := [task for task in runs if not task.done()]) and not cluster.ended:
                await asyncio.wait(under_way, timeout=0.5)
                live.update(picture())
                if time.monotonic() > ends + STUCK_AFTER:
                    load.lost.append(f"{len(under_way)} runs are stuck")
                    break
        load.lost += cluster.ended
        for each in (*background, *runs):
            each.cancel()
        results = await asyncio.gather(*background, *runs, return_exceptions=True)
        load.lost += [f"the load has failed: {each!r}" for each in results if isinstance(each, Exception)]
    finally:
        for process in cluster.processes:
            await process.kill()
    return _told(console, cluster, load)


def _told(console: Console, cluster: Cluster, load: Load) -> bool:
    """Say what came of it; whether nothing was lost."""
    killed = sum(process.killed for process in cluster.processes)
    of = f"{load.started} runs, {load.take_overs} take-overs, {killed} processes killed"
    for line in load.lost[:20]:
        console.print(line, style="red", highlight=False, soft_wrap=True)
    if load.lost:
        console.print(f"LOST: {len(load.lost)} things went wrong, of {of}", style="bold red", highlight=False)
    else:
        console.print(f"nothing was lost: {of}", style="green", highlight=False)
    return not load.lost


def main() -> int:
    from support.postgres.server import PostgresServer, can_start

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120, help="how long runs are started")
    parser.add_argument("--kill-every", type=float, default=10, help="seconds between two kills")
    parser.add_argument("--every", type=float, default=0.5, help="seconds between two runs")
    given = parser.parse_args()
    if not can_start():
        print("scripts/cluster needs the programs of PostgreSQL (Debian: apt-get install postgresql)", file=sys.stderr)
        return 1
    with PostgresServer() as server, tempfile.TemporaryDirectory() as logs:
        well = asyncio.run(show(server.dsn, Path(logs), given.seconds, given.kill_every, given.every))
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
