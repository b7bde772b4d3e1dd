"""Healthy runs next to a run that ends its process: `python benchmarks/poison.py postgresql://...` or `... runs.db`.

Workers execute one poison run and many healthy runs, and are restarted as soon as they die. The program prints the end
of the poison run, and how long the healthy runs took. It exits with 1 if a healthy run failed.

    python benchmarks/poison.py runs.db --place deps --how kill --processes 1
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo
from reactivex import Observable

from rxloop import (
    Agent,
    ContentCompleteEvent,
    ContentDeltaEvent,
    Event,
    Limits,
    PostgresEventLog,
    RunContext,
    RunRecord,
    Runtime,
    SqliteEventLog,
    tool,
)
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.interfaces import Tool
from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.messages import ToolCall
from rxloop.runtime import PostgresQueue
from rxloop.stream.sources import Push, from_task

PLACES = ("tool", "payment", "deps", "instructions", "toolset", "stream", "start")
"""Where the poison run ends its process. `payment` is a tool that is not idempotent, so that the model calls it again
after each death. `start` is a sync tool in a thread."""
WAYS = ("exit", "kill", "segfault", "memory", "sys-exit")
HEALTHY, POISON = "healthy", "poison"
STEPS = 3
"""Number of tool calls of a healthy run."""
MEMORY_LIMIT = 600 * 2**20
"""Additional address space of a worker in bytes, if the poison run exhausts the memory."""
ADOPT_EVERY = 0.5

OPTIONS = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
OPTIONS.add_argument("address", help="Postgres server, or a SQLite file that does not exist")
OPTIONS.add_argument("--place", choices=PLACES, default="tool")
OPTIONS.add_argument("--how", choices=WAYS, default="exit")
OPTIONS.add_argument("--processes", type=int, default=3)
OPTIONS.add_argument("--runs", type=int, default=50, help="number of healthy runs")
OPTIONS.add_argument("--poison", type=int, default=1, help="number of poison runs")
OPTIONS.add_argument("--step", type=float, default=0.2, help="seconds of each model call and each tool call")
OPTIONS.add_argument("--attempts", type=int, default=5, help="limit of attempts without progress")
OPTIONS.add_argument("--seconds", type=float, default=120, help="time limit for all runs")
OPTIONS.add_argument("--worker", type=int, help=argparse.SUPPRESS)


def die(how: str) -> None:
    """End this process."""
    match how:
        case "exit":
            os._exit(1)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "sys-exit":
            sys.exit(1)
        case _:
            blocks = list[bytearray]()
            while True:
                blocks.append(bytearray(2**20))


class Patient:
    """Stateless model that calls a tool in each of the first steps, and then answers."""

    name = "patient"

    def __init__(self, step: float, place: str, how: str) -> None:
        self._step, self._place, self._how = step, place, how

    def call(self, request: ModelRequest) -> Observable[Event]:
        """Return the events of an answer."""

        async def answer(push: Push[Event]) -> None:
            is_poison = request.messages[0].text == POISON
            if is_poison and self._place == "stream":
                push(ContentDeltaEvent(delta="The answer is"))
                die(self._how)
            await asyncio.sleep(self._step)
            calls = sum(message.role == "tool" for message in request.messages)
            if not is_poison and calls == STEPS:
                push(ContentCompleteEvent(content="Done.", finish_reason="stop"))
                return
            name = {"tool": "break_down", "payment": "pay", "start": "block"}.get(self._place) if is_poison else "wait"
            call = ToolCall(id=f"c{calls}", name=name or "wait", arguments={})
            push(ContentCompleteEvent(content="", tool_calls=[call], finish_reason="tool_calls"))

        return from_task(answer, request.ctx, shielded=True)

    async def aclose(self) -> None:
        """Do nothing, because there are no resources."""


class PoisonTools:
    """Toolset that ends the process when the poison run asks for its tools."""

    def __init__(self, how: str) -> None:
        self._how = how

    async def tools(self, ctx: RunContext[str]) -> Sequence[Tool[str]]:
        """Return no tools."""
        if ctx.deps == POISON:
            die(self._how)
        return ()


def make_agent(options: argparse.Namespace) -> Agent[Any, Any]:
    """Create the agent of all runs."""
    place, how = options.place, options.how

    def instructions(ctx: RunContext[Any]) -> str:
        if place == "instructions" and ctx.deps == POISON:
            die(how)
        return "Wait."

    @tool(idempotent=True)
    async def wait() -> str:
        """Wait."""
        await asyncio.sleep(options.step)
        return "waited"

    @tool(idempotent=True)
    async def break_down() -> str:
        """End the process."""
        die(how)
        return "unreachable"

    @tool(idempotent=True)
    def block() -> str:
        """End the process from a thread."""
        die(how)
        return "unreachable"

    @tool
    async def pay() -> str:
        """End the process without being idempotent."""
        die(how)
        return "unreachable"

    tools: list[Any] = [wait, break_down, block, pay]
    if place == "toolset":
        tools.append(PoisonTools(how))
    return Agent(
        Patient(options.step, place, how),
        tools=tools,
        name="agent",
        instructions=instructions,
        deps_type=str,
        limits=Limits(attempts=options.attempts),
        thoughts=False,
    )


async def work(options: argparse.Namespace) -> None:
    """Execute runs in a child process. With SQLite, it also starts its share of the runs."""

    async def make_deps(record: RunRecord) -> str:
        kind = record.owner or ""
        if options.place == "deps" and kind == POISON:
            die(options.how)
        return kind

    log, is_postgres = open_log(options.address), is_server(options.address)
    queue = PostgresQueue(options.address) if is_postgres else None
    agents = {"agent": make_agent(options)}
    runtime = Runtime(agents, log=log, deps=make_deps, queue=queue, is_worker=True, adopt_every=ADOPT_EVERY)
    async with runtime:
        if not is_postgres:
            await start_runs(runtime, options, options.worker, options.processes)
        await asyncio.Event().wait()


def is_server(address: str) -> bool:
    """Return True if the address is that of a Postgres server."""
    return address.startswith("postgresql:") or "dbname=" in address


def open_log(address: str) -> EventLog:
    """Open the event log of all processes."""
    return PostgresEventLog(address) if is_server(address) else SqliteEventLog(address)


async def start_runs(runtime: Runtime, options: argparse.Namespace, first: int = 0, share: int = 1) -> None:
    """Start every `share`-th run, unless it exists."""
    kinds = [HEALTHY] * options.runs
    for number in range(options.poison):
        # Poison runs start in the middle of the healthy ones.
        kinds.insert(len(kinds) // 2 + number, POISON)
    for number, kind in enumerate(kinds):
        if number % share == first:
            await runtime.start("agent", kind, key=f"{number}", owner=kind)


@contextmanager
def supervise(options: argparse.Namespace, deaths: list[int]) -> Generator[None]:
    """Run workers until the end of the block, and restart each one as soon as it dies."""

    def start(number: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, __file__, *arguments, "--worker", f"{number}"])

    async def restart() -> None:
        while True:
            for number, process in enumerate(processes):
                if process.poll() is not None:
                    deaths.append(process.returncode)
                    processes[number] = start(number)
            await asyncio.sleep(0.02)

    names = ("place", "how", "processes", "runs", "poison", "step", "attempts")
    arguments = [options.address, *(f"--{name}={getattr(options, name)}" for name in names)]
    processes = [start(number) for number in range(options.processes)]
    restarting = asyncio.get_running_loop().create_task(restart())
    try:
        yield
    finally:
        restarting.cancel()
        for process in processes:
            process.kill()
            process.wait()


async def wait_for_ends(log: EventLog, count: int, seconds: float) -> Sequence[RunRecord]:
    """Wait until all runs have ended, and return their records."""
    records: Sequence[RunRecord] = ()
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while sum(record.finished for record in records) < count:
                await asyncio.sleep(0.1)
                records = await log.list_runs()
    return records


async def measure(options: argparse.Namespace) -> int:
    """Execute the runs, print what happened to them, and return the number of healthy runs that did not complete."""
    log, deaths = open_log(options.address), list[int]()
    began = time.time()
    with supervise(options, deaths):
        if is_server(options.address):
            queue = PostgresQueue(options.address)
            async with Runtime({"agent": make_agent(options)}, log=log, queue=queue) as runtime:
                await start_runs(runtime, options)
            await queue.aclose()
        records = await wait_for_ends(log, options.runs + options.poison, options.seconds)
    healthy = [record for record in records if record.owner == HEALTHY]
    seconds = sorted((record.updated - record.created) / 1000 for record in healthy if record.state == "completed")
    print(
        f"{options.place} by {options.how}, {options.processes} processes, {len(deaths)} deaths, "
        f"{time.time() - began:.1f} s"
    )
    print(f"  {len(seconds)} of {options.runs} healthy runs completed", end="")
    if seconds:
        print(
            f", after {seconds[len(seconds) // 2]:.1f} s (median) to {seconds[-1]:.1f} s, with up to "
            f"{max(record.attempt for record in healthy)} attempts",
            end="",
        )
    print()
    for record in records:
        if record.owner == POISON or record.state != "completed":
            error = record.error.message if record.error else None
            print(f"  {record.owner} run: {record.state} at attempt {record.attempt}: {error}")
    await log.aclose()
    return options.runs - len(seconds)


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


def main() -> int:
    """Run a worker, or the measurement."""
    options = OPTIONS.parse_args()
    if options.worker is not None:
        if options.how == "memory":
            used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_LIMIT, used + MEMORY_LIMIT))
        asyncio.run(work(options))
        return 0
    if not is_server(options.address):
        return asyncio.run(measure(options))
    with database(options.address) as options.address:
        return asyncio.run(measure(options))


if __name__ == "__main__":
    sys.exit(min(main(), 1))
