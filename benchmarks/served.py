"""CPU time per token between the model and clients of a server: `python benchmarks/served.py`.

Concurrent clients start separate runs, and the model endpoint sends tokens at a fixed interval. The result is the CPU
time of the server process per token and client, including uvicorn. The columns alternate in each round, and ratios
refer to a minimal program (`served_by.py`) in the same round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from uuid import uuid4

from endpoint import HERE, server
from environments import CannotInstall, default_folder, environment
from tables import table

QUESTION = "Tell me a story."
OWN = ("relay", "rxloop")
"""Columns that use our API. The others use AG-UI."""


@dataclass(frozen=True, slots=True)
class Column:
    """Measured program."""

    name: str
    app: str
    environment: dict[str, str] = field(default_factory=dict[str, str])
    python: str = sys.executable


COLUMNS = [
    Column("by hand, httpx", "relay"),
    Column("rxloop, httpx", "rxloop", {"RXLOOP_TRANSPORT": "httpx"}),
    Column("rxloop, aiohttp", "rxloop", {"RXLOOP_TRANSPORT": "aiohttp"}),
    Column("rxloop, AG-UI, httpx", "agui", {"RXLOOP_TRANSPORT": "httpx"}),
    Column("rxloop, AG-UI, aiohttp", "agui", {"RXLOOP_TRANSPORT": "aiohttp"}),
]


class Process:
    """Server process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._in, self._out = process.stdin, process.stdout
        self.port = int(self._out.readline())

    def cpu(self) -> float:
        """Return the CPU time in seconds."""
        self._in.write("\n")
        self._in.flush()
        return float(self._out.readline())

    def close(self) -> None:
        """Stop the process."""
        self._in.close()


@contextmanager
def start_server(column: Column, upstream: str) -> Generator[Process]:
    """Start the server of a column."""
    command = [column.python, str(HERE / "served_by.py"), column.app, upstream]
    env = {**os.environ, **column.environment}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as process:
        served = Process(process)
        try:
            yield served
        finally:
            served.close()


def make_request(app: str) -> tuple[str, bytes]:
    """Return the path and the body of a request."""
    if app in OWN:
        return "/runs", json.dumps({"input": QUESTION}).encode()
    message = {"id": "m1", "role": "user", "content": QUESTION}
    rest = {"state": {}, "tools": [], "context": [], "forwardedProps": {}}
    return "/", json.dumps({"threadId": str(uuid4()), "runId": str(uuid4()), "messages": [message], **rest}).encode()


async def client(port: int, app: str, tokens: int) -> None:
    """Run a client that reads a complete answer."""
    path, body = make_request(app)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    headers = "\r\n".join(
        (
            f"POST {path} HTTP/1.1",
            "host: x",
            "connection: close",
            "content-type: application/json",
            "accept: text/event-stream",
            f"content-length: {len(body)}",
        )
    )
    writer.write(f"{headers}\r\n\r\n".encode() + body)
    count = 0
    async for line in reader:
        # Slow servers may combine several tokens in a frame.
        count += line.count(b"word ") if b'"delta":' in line else 0
    writer.close()
    assert count == tokens, f"{count} tokens of {tokens}"


async def clients(port: int, app: str, count: int, tokens: int) -> None:
    """Run concurrent clients."""
    await asyncio.gather(*(client(port, app, tokens) for _ in range(count)))


def measure(column: Column, base: str, count: int, tokens: int, every: int) -> float:
    """Return the CPU time per token and client in microseconds."""
    with start_server(column, f"{base}/drip/{tokens}/{every}" if every else f"{base}/stream/{tokens}/1") as process:
        # Warm up without measuring.
        asyncio.run(clients(process.port, column.app, count, tokens))
        before = process.cpu()
        asyncio.run(clients(process.port, column.app, count, tokens))
        return (process.cpu() - before) * 1e6 / (count * tokens)


def find_contender() -> list[Column]:
    """Return the AG-UI adapter of pydantic-ai if it can be installed."""
    try:
        found = environment("pydantic-ai-agui", default_folder(), "pydantic-ai-slim[ag-ui,openai] uvicorn")
    except CannotInstall as error:
        print(f"Skipping pydantic-ai, installation failed: {error}", file=sys.stderr)
        return []
    return [Column(f"pydantic-ai {found.packages['pydantic-ai-slim']}, AG-UI", "pydantic-ai", python=str(found.python))]


def main() -> None:
    """Run the measurements and print the table."""
    parser = argparse.ArgumentParser(prog="benchmarks/served.py", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument(
        "--every", type=int, default=60, metavar="MS", help="interval of tokens in milliseconds, 0 for a burst"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--only", nargs="+", choices=[column.name for column in COLUMNS], help="only measure these columns"
    )
    parser.add_argument(
        "--with-pydantic-ai",
        dest="contender",
        action="store_true",
        help="also measure the AG-UI adapter of pydantic-ai",
    )
    options = parser.parse_args()
    columns = [column for column in COLUMNS if options.only is None or column.name in options.only]
    if options.contender:
        columns += find_contender()
    costs: dict[str, list[float]] = {column.name: [] for column in columns}
    with server() as base:
        for number in range(1, options.rounds + 1):
            for column in columns:
                cost = measure(column, base, options.clients, options.tokens, options.every)
                costs[column.name].append(cost)
                print(f"round {number}: {column.name} {cost:.0f} us", file=sys.stderr)
    hand = costs[columns[0].name]
    rows = [["a token to a client", "CPU", "ratio to the baseline"]]
    for name, values in costs.items():
        ratios = [value / unit for value, unit in zip(values, hand, strict=True)]
        rows.append([name, f"{median(values):.0f} µs", f"{median(ratios):.2f} ({min(ratios):.2f} - {max(ratios):.2f})"])
    print(table(rows))


if __name__ == "__main__":
    main()
