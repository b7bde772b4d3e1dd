"""Fork server for the agents of one framework.

    PYTHON benchmarks/crashes/worker.py with_langgraph

The framework is imported once. Each line of stdin is a job, which runs in a forked process with its own event loop,
HTTP client and database connection. The process is killed with SIGKILL if its time is over. Uses only the standard
library, because it runs in the environments of all frameworks.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

PROMPT = "Order A-7 arrived broken. Refund it once and write a note."


@dataclass(frozen=True, slots=True)
class Job:
    """Start or resumption of a run."""

    run: str
    folder: str
    url: str
    """URL of the services for this run."""
    resume: bool = False
    mode: str = ""
    """Variant of the program."""
    seconds: float = 30
    """Seconds between readiness and kill."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """End of a process."""

    seconds: float
    """Seconds since readiness."""
    killed: bool = False
    output: str | None = None
    error: str | None = None


class Program(Protocol):
    """Module for one framework."""

    @staticmethod
    async def run(job: Job, ready: Callable[[], None]) -> str:
        """Run or resume the agent and return its answer. Call `ready` when the agent has been created."""
        ...


async def call_bank(job: Job, tool: str, key: str | None = None) -> str:
    """Send an effect to the bank using plain sockets, which cost the same in all environments."""
    url = urlsplit(job.url)
    body = json.dumps({"key": key}).encode()
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    try:
        head = f"POST {url.path}/bank/{tool} HTTP/1.1\r\nhost: bank\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        size = next(int(line[15:]) for line in lines if line.startswith("content-length:"))
        return (await reader.readexactly(size)).decode()
    finally:
        writer.close()


def execute(program: Program, job: Job, pipe: int) -> None:
    """Run a job in the forked process and write its outcome."""
    errors = os.open(Path(job.folder) / "stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(errors, 2)
    outcome: dict[str, Any] = {}
    modules = set(sys.modules)
    try:
        outcome["output"] = asyncio.run(program.run(job, lambda: write(pipe, b"ready\n")))
    except Exception as error:
        outcome["error"] = f"{type(error).__name__}: {error}"[:500]
    outcome["modules"] = sorted(set(sys.modules) - modules)
    write(pipe, json.dumps(outcome).encode())


def preload(modules: list[str]) -> None:
    """Import modules before forking, because a run imported them lazily."""
    for name in modules:
        # Some packages store modules under names without an importable file.
        with suppress(Exception):
            import_module(name)


def write(pipe: int, data: bytes) -> None:
    while data:
        data = data[os.write(pipe, data) :]


def supervise(process: int, pipe: int, seconds: float) -> Outcome:
    """Wait for a process, and kill it after the time limit."""
    data, started = b"", None
    killed = False
    while True:
        left = None if started is None else started + seconds - time.monotonic()
        if not select.select([pipe], [], [], None if left is None else max(left, 0))[0]:
            os.kill(process, signal.SIGKILL)
            killed = True
            break
        part = os.read(pipe, 65_536)
        if not part:
            break
        data += part
        if started is None and data.startswith(b"ready\n"):
            started = time.monotonic()
    taken = 0 if started is None else time.monotonic() - started
    os.waitpid(process, 0)
    result: dict[str, Any] = {} if killed else json.loads(data.removeprefix(b"ready\n") or '{"error": "process died"}')
    preload(result.get("modules", []))
    return Outcome(taken, killed, result.get("output"), result.get("error"))


def main() -> None:
    program: Any = import_module(sys.argv[1])
    if threading.active_count() > 1:
        sys.exit(f"{sys.argv[1]} started a thread when it was imported, so it cannot be forked")
    print("imported", flush=True)
    for line in sys.stdin:
        job = Job(**json.loads(line))
        reading, writing = os.pipe()
        process = os.fork()
        if not process:
            os.close(reading)
            execute(program, job, writing)
            # Skip exit handlers, because they belong to the parent.
            os._exit(0)
        os.close(writing)
        outcome = supervise(process, reading, job.seconds)
        os.close(reading)
        print(json.dumps(asdict(outcome)), flush=True)


if __name__ == "__main__":
    # Programs import this module as `worker`.
    sys.modules["worker"] = sys.modules["__main__"]
    main()
