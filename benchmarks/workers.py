"""How soon workers take what is started, also of a tenant behind others: `python benchmarks/workers.py postgresql://...`.

The server gets databases of its own, which are dropped at the end. The workers are processes, and the model of their
agent needs no network: it takes as many seconds as it is asked for.
"""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from statistics import quantiles

import psycopg
from psycopg.conninfo import make_conninfo
from reactivex import Observable

from rxloop import Agent, ContentCompleteEvent, Event, PostgresEventLog, Runtime
from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.events import State
from rxloop.runtime import PostgresQueue, work
from rxloop.stream.sources import Push, from_task

WORKERS, CONCURRENCY, LIMIT = ("ab", "ab"), 32, 4
"""The agents of each worker, by their letters, and what holds for all of them."""
PICKED, RUNG, IDLE = 200, 2_000, 10.0
MANY, FEW, AT_ONCE = 5_000, 20, 50


class Sleeper:
    """A model that takes as many seconds as the question says."""

    name = "sleeper"

    def call(self, request: ModelRequest) -> Observable[Event]:
        async def answer(push: Push[Event]) -> None:
            await asyncio.sleep(float(request.messages[-1].text))
            push(ContentCompleteEvent(content="Done.", finish_reason="stop"))

        return from_task(answer, request.ctx, shielded=True)

    async def aclose(self) -> None:
        """Nothing is open."""


AGENTS = {name: Agent(Sleeper(), thoughts=False) for name in "ab"}


async def worker(address: str, names: str) -> None:
    """What the other processes do."""
    queue = PostgresQueue(address, tenant_limit=LIMIT)
    await work({name: AGENTS[name] for name in names}, queue, log=PostgresEventLog(address), concurrency=CONCURRENCY)


@contextmanager
def working(address: str, workers: Sequence[str] = WORKERS) -> Generator[list[subprocess.Popen[bytes]]]:
    """Workers, until the end of the block; then they are killed."""
    processes = [subprocess.Popen([sys.executable, __file__, address, names]) for names in workers]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


@contextmanager
def database(server: str) -> Generator[str]:
    """A database of one's own, as an address."""
    name = f"bench_{secrets.token_hex(4)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        try:
            yield make_conninfo(server, dbname=name)
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@asynccontextmanager
async def server(address: str) -> AsyncGenerator[Runtime]:
    """A process that starts runs and drives none: this one."""
    log, queue = PostgresEventLog(address), PostgresQueue(address)
    async with Runtime(AGENTS, log=log, queue=queue, max_waiting=None) as runtime:
        yield runtime
    await queue.aclose()
    await log.aclose()


async def begun(runtime: Runtime, task_id: str) -> float:
    """When a worker began with a run, in seconds of the wall clock."""
    events = await runtime.log.read(task_id)
    return next(event.timestamp for event in events if event.kind == "status-update") / 1000


async def in_state(runtime: Runtime, wanted: int, owner: str, *states: State) -> None:
    """Wait until so many runs of an owner have one of these states."""
    while await count(runtime, owner, *states) < wanted:  # noqa: ASYNC110
        await asyncio.sleep(0.1)


async def count(runtime: Runtime, owner: str, *states: State) -> int:
    """How many runs of an owner have one of these states."""
    return len([each for each in await runtime.log.list_runs(states=states) if each.owner == owner])


def told(seconds: Sequence[float]) -> str:
    """Where the middle and the end of some durations are, in milliseconds."""
    parts = quantiles(seconds, n=100)
    return f"p50 {1000 * parts[49]:.0f} ms, p99 {1000 * parts[98]:.0f} ms, max {1000 * max(seconds):.0f} ms"


async def pick_up(runtime: Runtime, what: str, agent: str = "a", runs: int = PICKED) -> None:
    """From the call of `start` to the first event of a worker, one run after the other."""
    waited = list[float]()
    for number in range(-10, runs):
        at = time.time()
        record = await runtime.start(agent, "0")
        await runtime.follow(record.task_id)
        if number >= 0:
            waited.append(await begun(runtime, record.task_id) - at)
    print(f"pick-up, {runs} runs, {what}: {told(waited)}")


async def idle(address: str, processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """What workers cost that have nothing to do."""

    async def transactions() -> int:
        async with await psycopg.AsyncConnection.connect(address, autocommit=True) as connection:
            cursor = await connection.execute(
                "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
            )
            [[found]] = await cursor.fetchall()
        return found

    # A connection that has nothing to do tells of what it has done after ten seconds.
    await asyncio.sleep(12)
    before = await transactions()
    await asyncio.sleep(IDLE)
    each_second = (await transactions() - before) / IDLE
    most = max(memory(process.pid) for process in processes)
    print(f"idle, {len(processes)} workers: {each_second:.1f} transactions a second; {most:.0f} MB each")


def memory(pid: int) -> float:
    """The memory of a process, in MB."""
    return int(Path(f"/proc/{pid}/status").read_text(encoding="utf-8").split("VmRSS:")[1].split()[0]) / 1024


async def enqueue(address: str) -> None:
    """How many bells a second one process rings."""
    queue, room = PostgresQueue(address, name="other"), asyncio.Semaphore(AT_ONCE)
    await queue.waiting()

    async def ring(number: int) -> None:
        async with room:
            await queue.enqueue(f"{number}", tenant="a")

    at = time.perf_counter()
    await asyncio.gather(*map(ring, range(RUNG)))
    print(f"rings: {RUNG / (time.perf_counter() - at):,.0f} a second")
    await queue.aclose()


async def started(runtime: Runtime, runs: int, agent: str, takes: float, owner: str) -> list[tuple[str, float]]:
    """Start many runs, and give their ids with when they were started."""
    room = asyncio.Semaphore(AT_ONCE)

    async def start() -> tuple[str, float]:
        async with room:
            record = await runtime.start(agent, str(takes), owner=owner)
            return record.task_id, time.time()

    return await asyncio.gather(*(start() for _ in range(runs)))


async def tenants(address: str, seconds: float) -> None:
    """A tenant with few runs behind one with many, each of so many seconds."""
    async with server(address) as runtime:
        await runtime.start("a", "0")
        at = time.perf_counter()
        await started(runtime, MANY, "a", seconds, "many")
        rate = MANY / (time.perf_counter() - at)
        with working(address):
            await in_state(runtime, LIMIT, "many", "working", "completed")
            few = await started(runtime, FEW, "a", 0.1, "few")
            await in_state(runtime, FEW, "few", "completed")
            waited = [await begun(runtime, task_id) - rung for task_id, rung in few]
            before = await count(runtime, "many", "completed")
            await asyncio.sleep(IDLE)
            done = await count(runtime, "many", "completed") - before
    print(
        f"{FEW} runs behind {MANY:,} of {seconds:g} s of another tenant, {LIMIT} at once of each: begun after "
        f"{told(waited)}; of the other one {done / IDLE:.1f} a second; started {rate:,.0f} a second"
    )


async def alone(address: str) -> None:
    """What needs no tenants."""
    await enqueue(address)
    with working(address) as processes:
        async with server(address) as runtime:
            await pick_up(runtime, "two workers")
        await idle(address, processes)


async def differ(address: str) -> None:
    """Runs of an agent that one worker of four has, beside as many bells as the others can see."""
    async with server(address) as runtime:
        with working(address, ["a", "a", "a", "b"]):
            await pick_up(runtime, "one worker of four has their agent", "b", FEW)
        await started(runtime, MANY, "b", 0, "many")
        with working(address, ["a", "a"]):
            await pick_up(runtime, f"behind {MANY:,} of an agent that no worker has", "a", FEW)


def main(address: str) -> None:
    """All of it."""
    with database(address) as own:
        asyncio.run(alone(own))
    with database(address) as own:
        asyncio.run(differ(own))
    for seconds in (0.1, 30):
        with database(address) as own:
            asyncio.run(tenants(own, seconds))


if __name__ == "__main__":
    if len(sys.argv) == 3:
        asyncio.run(worker(*sys.argv[1:]))
    else:
        main(sys.argv[1])
