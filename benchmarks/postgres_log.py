"""What a log in Postgres takes and how soon its readers have it: `python benchmarks/postgres_log.py postgresql://...`.

The database gets a schema of its own, which is dropped at the end.
"""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import sys
import time
from statistics import quantiles

import psycopg

from rxloop import CustomEvent, Event, Message, PostgresEventLog, TaskEvent

RUNS, BATCH, SECONDS = 50, 3, 5.0
READERS, FOLLOWED, EVERY, SLOW = 500, 100, 0.5, 0.5
TEXT = "x" * 180
"""An event has some 330 bytes with it."""


def begun(task_id: str) -> list[Event]:
    """The first event of a run."""
    first = TaskEvent(
        seq=1, attempt=1, task_id=task_id, messages=[Message.user("Hi")], model="m", agent_name="a", context_id=task_id
    )
    return [first]


def note(task_id: str, seq: int) -> Event:
    """An event that says when it was made."""
    return CustomEvent(
        seq=seq, attempt=1, task_id=task_id, context_id=task_id, name="n", data={"at": time.monotonic(), "text": TEXT}
    )


async def write(log: PostgresEventLog) -> None:
    """Write runs side by side for some seconds; say how many events that were."""
    names = [secrets.token_hex(8) for _ in range(RUNS)]
    for name in names:
        await log.append(name, begun(name), expected_seq=0, writer=name)
    ready()
    stop = time.monotonic() + SECONDS
    written = 0

    async def run(name: str) -> None:
        nonlocal written
        seq = 1
        while time.monotonic() < stop:
            batch = [note(name, seq + 1 + at) for at in range(BATCH)]
            await log.append(name, batch, expected_seq=seq, writer=name)
            seq += BATCH
            written += BATCH

    await asyncio.gather(*map(run, names))
    print(written, flush=True)


async def read(log: PostgresEventLog) -> None:
    """Follow the runs with many readers, one of them slow; say what the others waited, in milliseconds."""
    waited: list[float] = []

    async def reader(number: int) -> None:
        async for event in log.follow(f"run{number % FOLLOWED}"):
            if number == 0:
                await asyncio.sleep(SLOW)
            elif isinstance(event, CustomEvent):
                waited.append((time.monotonic() - event.data["at"]) * 1_000)

    readers = [asyncio.create_task(reader(number)) for number in range(READERS)]
    await asyncio.sleep(2)
    ready()
    await asyncio.to_thread(sys.stdin.readline)
    for each in readers:
        each.cancel()
    parts = quantiles(waited, n=100)
    print(f"{parts[49]:.1f} {parts[98]:.1f} {len(waited)}", flush=True)


def ready() -> None:
    """Say that it may begin, and wait for the word."""
    print("ready", flush=True)
    sys.stdin.readline()


class Child:
    """This program once more, in a process of its own."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.communicate(timeout=30)


def writers(address: str, schema: str, count: int) -> None:
    """Events a second, of several processes."""
    children = [Child(address, schema, "write") for _ in range(count)]
    for each in (*(child.says for child in children), *(child.go for child in children)):
        each()
    events = sum(int(child.says()) for child in children)
    for child in children:
        child.end()
    print(f"{count} writers x {RUNS} runs x {BATCH}: {events / SECONDS:,.0f} events a second")


async def latency(address: str, schema: str) -> None:
    """From an append in this process to the readers in another one."""
    log = PostgresEventLog(address, schema=schema)
    for number in range(FOLLOWED):
        await log.append(f"run{number}", begun(f"run{number}"), expected_seq=0, writer="here")
    replica = Child(f"{address}{'&' if '?' in address else '?'}application_name=replica", schema, "read")
    await asyncio.to_thread(replica.says)
    replica.go()

    async def publish(number: int) -> None:
        name = f"run{number}"
        await asyncio.sleep(EVERY * number / FOLLOWED)
        for seq in range(2, 2 + round(2 * SECONDS / EVERY)):
            await log.append(name, [note(name, seq)], expected_seq=seq - 1, writer="here")
            await asyncio.sleep(EVERY)

    await asyncio.gather(*map(publish, range(FOLLOWED)))
    connection = await psycopg.AsyncConnection.connect(address)
    async with connection:
        cursor = await connection.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'replica'")
        [[connections]] = await cursor.fetchall()
    replica.go()
    half, most, count = (await asyncio.to_thread(replica.says)).split()
    replica.end()
    await log.aclose()
    print(
        f"{READERS} readers of {FOLLOWED} runs x {1 / EVERY:g}/s, one of them slow: p50 {half} ms, p99 {most} ms, of "
        f"{count}; {connections} connections"
    )


async def child(address: str, schema: str, what: str) -> None:
    """What the other processes do."""
    log = PostgresEventLog(address, schema=schema)
    await (write if what == "write" else read)(log)
    await log.aclose()


def main(address: str) -> None:
    """All of it."""
    schema = f"bench_{secrets.token_hex(4)}"

    async def prepare() -> None:
        await PostgresEventLog(address, schema=schema).migrate()

    asyncio.run(prepare())
    try:
        for count in (1, 4):
            writers(address, schema, count)
        asyncio.run(latency(address, schema))
    finally:
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(f"DROP SCHEMA {schema} CASCADE".encode())


if __name__ == "__main__":
    if len(sys.argv) == 4:
        asyncio.run(child(*sys.argv[1:]))
    else:
        main(sys.argv[1])
