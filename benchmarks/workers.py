"""Latency of workers, including fairness between tenants: `python benchmarks/workers.py postgresql://...`.

The benchmark uses temporary databases. The workers are separate processes, and their model needs no network. It
responds after a given number of seconds.
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
"""Agents of each worker by letter, concurrent runs per worker, and concurrent runs per tenant."""
PICKED, RUNG, IDLE = 200, 2_000, 10.0
MANY, FEW, AT_ONCE = 5_000, 20, 50


class Sleeper:
    """Model that responds after the number of seconds in the question."""

    name = "sleeper"

    def call(self, request: ModelRequest) -> Observable[Event]:
        async def answer(push: Push[Event]) -> None:
            await asyncio.sleep(float(request.messages[-1].text))
            push(ContentCompleteEvent(content="Done.", finish_reason="stop"))

        return from_task(answer, request.ctx, shielded=True)

    async def aclose(self) -> None:
        """Do nothing, because there are no resources."""


AGENTS = {name: Agent(Sleeper(), thoughts=False) for name in "ab"}


async def worker(address: str, names: str) -> None:
    """Run the task of a child process."""
    queue = PostgresQueue(address, tenant_limit=LIMIT)
    await work({name: AGENTS[name] for name in names}, queue, log=PostgresEventLog(address), concurrency=CONCURRENCY)


@contextmanager
def run_workers(address: str, workers: Sequence[str] = WORKERS) -> Generator[list[subprocess.Popen[bytes]]]:
    """Run workers until the end of the block, then kill them."""
    processes = [subprocess.Popen([sys.executable, __file__, address, names]) for names in workers]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


@contextmanager
def database(server: str) -> Generator[str]:
    """Create a temporary database and yield its URL."""
    name = f"bench_{secrets.token_hex(4)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        try:
            yield make_conninfo(server, dbname=name)
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@asynccontextmanager
async def server(address: str) -> AsyncGenerator[Runtime]:
    """Create a runtime in this process that starts runs without executing them."""
    log, queue = PostgresEventLog(address), PostgresQueue(address)
    async with Runtime(AGENTS, log=log, queue=queue, max_waiting=None) as runtime:
        yield runtime
    await queue.aclose()
    await log.aclose()


async def find_start_time(runtime: Runtime, task_id: str) -> float:
    """Return the time when a worker started a run, in seconds since 1970."""
    events = await runtime.log.read(task_id)
    return next(event.timestamp for event in events if event.kind == "status-update") / 1000


async def in_state(runtime: Runtime, wanted: int, owner: str, *states: State) -> None:
    """Wait until a number of runs of an owner have one of the states."""
    while await count(runtime, owner, *states) < wanted:  # noqa: ASYNC110
        await asyncio.sleep(0.1)


async def count(runtime: Runtime, owner: str, *states: State) -> int:
    """Count the runs of an owner with one of the states."""
    return len([each for each in await runtime.log.list_runs(states=states) if each.owner == owner])


def format_durations(seconds: Sequence[float]) -> str:
    """Format the median, 99th percentile and maximum of durations in milliseconds."""
    parts = quantiles(seconds, n=100)
    return f"p50 {1000 * parts[49]:.0f} ms, p99 {1000 * parts[98]:.0f} ms, max {1000 * max(seconds):.0f} ms"


async def measure_latency(runtime: Runtime, what: str, agent: str = "a", runs: int = PICKED) -> None:
    """Measure the time from `start` to the first event of a worker, with sequential runs."""
    waited = list[float]()
    for number in range(-10, runs):
        at = time.time()
        record = await runtime.start(agent, "0")
        await runtime.follow(record.task_id)
        if number >= 0:
            waited.append(await find_start_time(runtime, record.task_id) - at)
    print(f"pick-up, {runs} runs, {what}: {format_durations(waited)}")


async def measure_idle(address: str, processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Measure idle workers."""

    async def transactions() -> int:
        async with await psycopg.AsyncConnection.connect(address, autocommit=True) as connection:
            cursor = await connection.execute(
                "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
            )
            [[found]] = await cursor.fetchall()
        return found

    # Idle connections report their statistics after ten seconds.
    await asyncio.sleep(12)
    before = await transactions()
    await asyncio.sleep(IDLE)
    each_second = (await transactions() - before) / IDLE
    most = max(memory(process.pid) for process in processes)
    print(f"idle, {len(processes)} workers: {each_second:.1f} transactions a second; {most:.0f} MB each")


def memory(pid: int) -> float:
    """Return the memory of a process in MB."""
    return int(Path(f"/proc/{pid}/status").read_text(encoding="utf-8").split("VmRSS:")[1].split()[0]) / 1024


async def measure_enqueue(address: str) -> None:
    """Measure the number of jobs enqueued per second by a process."""
    queue, room = PostgresQueue(address, name="other"), asyncio.Semaphore(AT_ONCE)
    await queue.waiting()

    async def enqueue(number: int) -> None:
        async with room:
            await queue.enqueue(f"{number}", tenant="a")

    at = time.perf_counter()
    await asyncio.gather(*map(enqueue, range(RUNG)))
    print(f"rings: {RUNG / (time.perf_counter() - at):,.0f} a second")
    await queue.aclose()


async def start_runs(runtime: Runtime, runs: int, agent: str, takes: float, owner: str) -> list[tuple[str, float]]:
    """Start runs and return their ids with their start times."""
    room = asyncio.Semaphore(AT_ONCE)

    async def start() -> tuple[str, float]:
        async with room:
            record = await runtime.start(agent, str(takes), owner=owner)
            return record.task_id, time.time()

    return await asyncio.gather(*(start() for _ in range(runs)))


async def measure_tenants(address: str, seconds: float) -> None:
    """Measure a tenant with few runs behind a tenant with many runs of the given duration."""
    async with server(address) as runtime:
        await runtime.start("a", "0")
        at = time.perf_counter()
        await start_runs(runtime, MANY, "a", seconds, "many")
        rate = MANY / (time.perf_counter() - at)
        with run_workers(address):
            await in_state(runtime, LIMIT, "many", "working", "completed")
            few = await start_runs(runtime, FEW, "a", 0.1, "few")
            await in_state(runtime, FEW, "few", "completed")
            waited = [await find_start_time(runtime, task_id) - rung for task_id, rung in few]
            before = await count(runtime, "many", "completed")
            await asyncio.sleep(IDLE)
            done = await count(runtime, "many", "completed") - before
    print(
        f"{FEW} runs behind {MANY:,} of {seconds:g} s of another tenant, {LIMIT} at once of each: begun after "
        f"{format_durations(waited)}; of the other one {done / IDLE:.1f} a second; started {rate:,.0f} a second"
    )


async def measure_basics(address: str) -> None:
    """Run the measurements without tenants."""
    await measure_enqueue(address)
    with run_workers(address) as processes:
        async with server(address) as runtime:
            await measure_latency(runtime, "two workers")
        await measure_idle(address, processes)


async def measure_hosting(address: str) -> None:
    """Measure runs of agents that are hosted by only some of the workers, or none."""
    async with server(address) as runtime:
        with run_workers(address, ["a", "a", "a", "b"]):
            await measure_latency(runtime, "one worker of four has their agent", "b", FEW)
        await start_runs(runtime, MANY, "b", 0, "many")
        with run_workers(address, ["a", "a"]):
            await measure_latency(runtime, f"behind {MANY:,} of an agent that no worker has", "a", FEW)


def main(address: str) -> None:
    """Run all measurements."""
    with database(address) as own:
        asyncio.run(measure_basics(own))
    with database(address) as own:
        asyncio.run(measure_hosting(own))
    for seconds in (0.1, 30):
        with database(address) as own:
            asyncio.run(measure_tenants(own, seconds))


if __name__ == "__main__":
    if len(sys.argv) == 3:
        asyncio.run(worker(*sys.argv[1:]))
    else:
        main(sys.argv[1])
