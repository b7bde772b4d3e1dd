"""Latency of ten honest clients while another client abuses the same server.

    python benchmarks/abuse.py [--seconds 5] [--rounds 3] [KIND ...]

Starts `rxloop serve` once per round and kind of abuse, with ten honest clients and one hostile client that has its own
key and its own process, which has the lowest priority. The baseline is the same server with a hostile client that
behaves like the others. Prints a line per kind with the medians of all rounds: the median and the 99th percentile of
the honest requests, the range of the percentile and its ratio to the baseline of the same round, the failed honest
requests, the refusals of the hostile client, and the growth of the server's memory.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import httpx

PROGRAM = """
from rxloop import Agent, tool
from rxloop.testing import ScriptedModel, call


class Model(ScriptedModel):
    def call(self, request):
        # Recorded requests would keep their runs in memory, which prolongs garbage collections.
        self.requests.clear()
        return super().call(request)


@tool(approve=True)
async def pay(amount: int) -> str:
    "Pay."
    return "paid"


def answer(request):
    return call("pay", amount=1) if "Pay" in request.messages[-1].text else "It is warm."


support = Agent(Model(*[answer] * 100), tools=[pay], name="support")
"""
KEYS = {f"user{number}": f"key-of-user-number-{number}" for number in range(11)}
ACCEPT = {"accept": "application/json, text/event-stream"}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}


class Hostile:
    """Hostile client with its key and a counter of response statuses."""

    def __init__(self, url: str) -> None:
        self.host, self.port = url.removeprefix("http://").split(":")
        self.key = KEYS["user10"]
        limits = httpx.Limits(max_connections=200)
        self.http = httpx.AsyncClient(
            base_url=url, headers={"authorization": f"Bearer {self.key}"}, timeout=30, limits=limits
        )
        self.statuses: Counter[int] = Counter()
        self.sockets: list[asyncio.StreamWriter] = []

    async def send(self, method: str, path: str, **options: Any) -> httpx.Response | None:
        with contextlib.suppress(httpx.HTTPError):
            response = await self.http.request(method, path, **options)
            self.statuses[response.status_code] += 1
            return response
        return None

    async def connect(self, data: str = "") -> asyncio.StreamWriter:
        _, writer = await asyncio.open_connection(self.host, int(self.port), limit=1024)
        writer.write(data.replace("\n", "\r\n").format(key=self.key).encode())
        self.sockets.append(writer)
        cast("asyncio.ReadTransport", writer.transport).pause_reading()
        return writer

    async def start(self, text: str) -> str:
        response = await self.send("POST", "/runs?wait=5", json={"input": text})
        return response.json().get("taskId", "none") if response is not None else "none"


Abuse = Callable[[Hostile], Awaitable[Any]]
HEAD = "{method} {path} HTTP/1.1\nhost: localhost\nauthorization: Bearer {{key}}\ncontent-type: application/json\n"


def _head(method: str, path: str) -> str:
    return HEAD.format(method=method, path=path)


async def _many(count: int, make: Callable[[int], Awaitable[Any]]) -> None:
    await asyncio.gather(*(make(number) for number in range(count)), return_exceptions=True)


def post(path: str, count: int = 50, **options: Any) -> Abuse:
    return lambda client: _many(count, lambda _: client.send("POST", path, **options))


async def waiting_run_messages(client: Hostile) -> None:
    task = await client.start("Pay")
    await _many(100, lambda _: client.send("POST", f"/runs/{task}/say", json={"input": "x" * 90_000}))


async def slow_readers(client: Hostile) -> None:
    task = await client.start("Hi " + "x" * 90_000)
    await _many(100, lambda _: client.connect(_head("GET", f"/runs/{task}/events") + "accept: text/event-stream\n\n"))


async def many_streams(client: Hostile) -> None:
    task = await client.start("Pay")
    await _many(100, lambda _: client.connect(_head("GET", f"/runs/{task}/events?until=end") + "\n"))


async def graph_requests(client: Hostile) -> None:
    task = await client.start("Hi")
    await _many(100, lambda _: client.send("GET", f"/runs/{task}/graph?form=html"))


async def forks(client: Hostile) -> None:
    task = await client.start("Pay")
    await _many(50, lambda _: client.send("POST", f"/runs/{task}/fork", json={"at": 1, "input": "Hi"}))


async def long_polls(client: Hostile) -> None:
    task = await client.start("Pay")
    await _many(100, lambda _: client.connect(_head("GET", f"/runs/{task}?wait=60") + "\n"))


async def cancelled_requests(client: Hostile) -> None:
    for _ in range(50):
        writer = await client.connect(_head("POST", "/runs?wait=60") + 'content-length: 14\n\n{{"input":"Hi"}}')
        writer.transport.abort()


async def reconnect_storm(client: Hostile) -> None:
    for _ in range(300):
        (await client.connect("GET / HTTP/1.1\n")).transport.abort()


WIDE = b'{"input":[' + b"1," * 400_000 + b"1]}"
JSON = {"content-type": "application/json"}
TOOLS = [{"name": f"tool{n}", "description": "x" * 500, "parameters": {"type": "object"}} for n in range(120)]
HOSTILE_SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(a+)+$"}}}
BASELINE = "behaving"
KINDS: dict[str, Abuse] = {
    BASELINE: lambda client: client.start("Hi"),
    "idle connections": lambda client: _many(300, lambda _: client.connect()),
    "slow heads": lambda client: _many(300, lambda _: client.connect("GET / HTTP/1.1\nhost: x\n")),
    "slow bodies": lambda client: _many(
        100, lambda _: client.connect(_head("POST", "/runs") + "content-length: 99\n\n{{")
    ),
    "endless bodies": post("/runs", 20, content=b"x" * 3_000_000, headers=JSON),
    "slow readers": slow_readers,
    "many streams": many_streams,
    "long polls": long_polls,
    "many sessions": post("/mcp", 300, json=INITIALIZE, headers=ACCEPT),
    "many runs": post("/runs", 100, json={"input": "Hi"}),
    "many messages": waiting_run_messages,
    "squatting on ids": lambda client: _many(
        100, lambda n: client.send("POST", "/runs", json={"input": "Hi", "contextId": f"context{n}"})
    ),
    "wide JSON": post("/runs", 20, content=WIDE, headers=JSON),
    "deep JSON": post("/runs", 20, content=b"[" * 500_000, headers=JSON),
    "huge tool lists": post("/runs", 20, json={"input": "Hi", "tools": TOOLS}),
    "hostile schemas": post(
        "/runs", 20, json={"input": "Hi", "tools": [{"name": "t", "description": "t", "parameters": HOSTILE_SCHEMA}]}
    ),
    "graph requests": graph_requests,
    "forking": forks,
    "cancelled requests": cancelled_requests,
    "reconnect storm": reconnect_storm,
    "invalid keys": post("/runs", 200, json={"input": "Hi"}, headers={"authorization": "Bearer wrong"}),
}


@contextlib.asynccontextmanager
async def serve(folder: Path) -> AsyncGenerator[tuple[str, int]]:
    """Start a server, yielding its URL and process id."""
    (folder / "program.py").write_text(PROGRAM, encoding="utf-8")
    env = {**os.environ, "RXLOOP_KEYS": ",".join(f"{name}={key}" for name, key in KEYS.items())}
    command = ["rxloop", "serve", "program:support", "--port", "0", "--json", "--mcp", "--grace", "0"]
    command += ["--db", str(folder / "runs.db")]
    executable = Path(sys.executable).with_name(command[0])
    process = await asyncio.create_subprocess_exec(
        executable, *command[1:], cwd=folder, env=env, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    url = json.loads(await process.stderr.readline())["url"]
    logs = asyncio.create_task(process.stderr.read())
    try:
        yield url, process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        await asyncio.wait([logs], timeout=30)
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def read_memory(pid: int) -> float:
    """Return the resident memory of a process in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1000


async def behave(url: str, key: str, seconds: float) -> tuple[list[float], int]:
    """Start runs like an honest client, returning the latencies in milliseconds and the number of failures."""
    latencies: list[float] = []
    failures = 0
    end = time.perf_counter() + seconds
    headers = {"authorization": f"Bearer {key}"}
    # Loading certificates would delay the measured responses of the other clients.
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=30, verify=False) as client:
        while time.perf_counter() < end:
            started = time.perf_counter()
            try:
                response = await client.post("/runs?wait=10", json={"input": "Hi"})
                failures += response.status_code != 200
            except httpx.HTTPError:
                failures += 1
            latencies.append(1000 * (time.perf_counter() - started))
            await asyncio.sleep(0.05)
    return latencies, failures


async def abuse(url: str, kind: str) -> None:
    """Abuse the server until the standard input is closed, and print the number of refusals."""
    os.nice(19)
    hostile = Hostile(url)

    async def repeat() -> None:
        while True:
            await KINDS[kind](hostile)
            await asyncio.sleep(0.05)

    task = asyncio.create_task(repeat())
    await asyncio.to_thread(sys.stdin.read)
    task.cancel()
    await asyncio.wait([task])
    print(hostile.statuses[429])


@contextlib.asynccontextmanager
async def start_hostile(url: str, kind: str) -> AsyncGenerator[list[int]]:
    """Abuse the server from another process, yielding a list for the number of refusals."""
    command = [sys.executable, __file__, "--hostile", url, kind]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    refused: list[int] = []
    try:
        yield refused
    finally:
        output, _ = await process.communicate(b"")
        refused.append(int(output or 0))


async def measure(kind: str, seconds: float) -> dict[str, Any]:
    """Measure the honest clients during one kind of abuse."""
    with tempfile.TemporaryDirectory() as folder:
        async with serve(Path(folder)) as (url, pid):
            await behave(url, KEYS["user0"], 1)
            before = peak = read_memory(pid)
            async with start_hostile(url, kind) as refused:
                honest = [asyncio.create_task(behave(url, KEYS[f"user{number}"], seconds)) for number in range(10)]
                while not all(each.done() for each in honest):
                    await asyncio.wait(honest, timeout=0.25)
                    peak = max(peak, read_memory(pid))
            results = [each.result() for each in honest]
    latencies = sorted(each for values, _ in results for each in values)
    return {
        "kind": kind,
        "median": statistics.median(latencies),
        "p99": latencies[int(len(latencies) * 0.99)],
        "failures": sum(each for _, each in results),
        "refused": refused[0],
        "memory": peak - before,
    }


async def main(seconds: float, rounds: int, kinds: list[str]) -> None:
    """Measure each kind in several rounds and print a table."""
    results: dict[str, list[dict[str, Any]]] = {kind: [] for kind in [BASELINE, *kinds]}
    for number in range(rounds):
        for kind, rows in results.items():
            rows.append(await measure(kind, seconds))
            print(f"round {number + 1}: {rows[-1]}", file=sys.stderr, flush=True)
    baseline = [row["p99"] for row in results[BASELINE]]
    print("| kind | median ms | p99 ms | range | ratio | failed | 429 | memory MB |\n|---|---|---|---|---|---|---|---|")
    for kind, rows in results.items():
        p99 = [row["p99"] for row in rows]
        ratio = statistics.median(value / base for value, base in zip(p99, baseline, strict=True))
        median, refused, memory = (
            statistics.median(row[name] for row in rows) for name in ("median", "refused", "memory")
        )
        failures = sum(row["failures"] for row in rows)
        print(
            f"| {kind} | {median:.0f} | {statistics.median(p99):.0f} | {min(p99):.0f}-{max(p99):.0f} | {ratio:.2f} | "
            f"{failures} | {refused:.0f} | {memory:.0f} |"
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--hostile"]:
        asyncio.run(abuse(*sys.argv[2:]))
        sys.exit()
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("kinds", nargs="*", metavar="KIND")
    options = parser.parse_args()
    asyncio.run(main(options.seconds, options.rounds, options.kinds or [kind for kind in KINDS if kind != BASELINE]))
