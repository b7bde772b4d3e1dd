"""What a log in Postgres takes and how soon its readers have it: `python benchmarks/postgres_log.py postgresql://...`.

The database gets a schema of its own, which is dropped at the end. On a machine that others use, compare what the
readers waited with what plain psycopg waited meanwhile, which shares the server, its disk and the processors with them.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import quantiles

import psycopg

from rxloop import CustomEvent, Event, Message, PostgresEventLog, TaskEvent

RUNS, BATCH, SECONDS = 50, 3, 5.0
READERS, FOLLOWED, EVERY, SLOW = 500, 100, 0.5, 0.5
HELD, RECENT = 2_000, 256
"""Readers whose memory is measured, and events of a run that are kept for its readers."""
PLAIN = 0.02
"""Seconds between two rows that plain psycopg writes."""
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


def resident() -> int:
    """The kilobytes of memory that this process has."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() // 1024


def held_up() -> float:
    """The seconds for which this process could have gone on, and others had the processors."""
    return int(Path("/proc/self/schedstat").read_text(encoding="ascii").split()[1]) / 1e9


def spare_loaded() -> None:
    """Have the garbage collector pass over what is loaded, as `rxloop serve` and `rxloop worker` do."""
    gc.collect()
    gc.freeze()


async def read(log: PostgresEventLog, prefix: str, followed: int) -> None:
    """Follow the runs with many readers, one of them slow; say what the others waited, in milliseconds.

    And how many events that were, what each cost in microseconds of the processor, and for how many milliseconds a
    second no processor was free for this process.
    """
    waited: list[float] = []
    beginning, all_here = READERS, asyncio.Event()

    async def reader(number: int) -> None:
        nonlocal beginning
        async for event in log.follow(f"{prefix}{number % followed}"):
            if event.seq == 1:
                beginning -= 1
                if not beginning:
                    all_here.set()
            elif number == 0:
                await asyncio.sleep(SLOW)
            elif isinstance(event, CustomEvent):
                waited.append((time.monotonic() - event.data["at"]) * 1_000)

    await log.list_runs(limit=1)
    spare_loaded()
    readers = [asyncio.create_task(reader(number)) for number in range(READERS)]
    await all_here.wait()
    ready()
    used, held, began = time.process_time(), held_up(), time.monotonic()
    await asyncio.to_thread(sys.stdin.readline)
    used, held, took = time.process_time() - used, held_up() - held, time.monotonic() - began
    for each in readers:
        each.cancel()
    parts = quantiles(waited, n=100)
    frame = used / max(len(waited), 1) * 1_000_000
    print(f"{parts[49]:.1f} {parts[98]:.1f} {len(waited)} {frame:.0f} {held / took * 1_000:.0f}", flush=True)


async def plainly(address: str, schema: str) -> None:
    """Write a row and hear of it, again and again, with nothing but psycopg; say how many milliseconds that took."""
    took: list[float] = []
    connecting = psycopg.AsyncConnection.connect
    async with (
        await connecting(address, autocommit=True) as connection,
        await connecting(address, autocommit=True) as listener,
    ):
        await connection.execute(f"CREATE TABLE {schema}.plain (number int, text text)".encode())
        await listener.execute(f"LISTEN {schema}_plain".encode())
        both = f"WITH row AS (INSERT INTO {schema}.plain VALUES (%s, %s)) SELECT pg_notify('{schema}_plain', %s)"
        ready()
        stop = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
        while not stop.done():
            began = time.monotonic()
            await connection.execute(both.encode(), (len(took), TEXT, str(len(took))))
            assert [said async for said in listener.notifies(stop_after=1)]
            took.append((time.monotonic() - began) * 1_000)
            await asyncio.sleep(PLAIN)
        await connection.execute(f"DROP TABLE {schema}.plain".encode())
    parts = quantiles(took, n=100)
    print(f"{parts[49]:.1f} {parts[98]:.1f}", flush=True)


async def hold(log: PostgresEventLog, prefix: str, followed: int, count: int) -> None:
    """Follow some runs with as many readers; say how many kilobytes of memory that takes, and again when told to."""
    gone_on = asyncio.Event()
    there = 0

    async def reader(number: int) -> None:
        nonlocal there
        async for _ in log.follow(f"{prefix}{number % followed}"):
            there += 1
            gone_on.set()

    async def seen(events: int) -> int:
        while there < events:
            gone_on.clear()
            await gone_on.wait()
        gc.collect()
        return resident()

    # What is loaded at the first use is not the readers'.
    readers = [asyncio.create_task(reader(0))]
    before = await seen(1)
    readers += [asyncio.create_task(reader(number)) for number in range(count)]
    print(await seen(1 + count) - before)
    ready()
    print(await seen((1 + count) * (1 + RECENT)) - before, flush=True)
    for each in readers:
        each.cancel()


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


async def begin(log: PostgresEventLog, count: int) -> str:
    """Begin some runs; give what their names begin with."""
    prefix = secrets.token_hex(4)
    names = [f"{prefix}{number}" for number in range(count)]
    await asyncio.gather(*(log.append(name, begun(name), expected_seq=0, writer="here") for name in names))
    return prefix


async def latency(address: str, schema: str, followed: int, every: float, *, frozen: bool = False) -> None:
    """From an append in this process to the readers in another one.

    Args:
        address: The database.
        schema: That of the log.
        followed: How many runs the readers follow.
        every: Seconds between two events of a run.
        frozen: Whether another process that follows them stands still meanwhile.
    """
    log = PostgresEventLog(address, schema=schema)
    prefix = await begin(log, followed)
    named = f"{address}{'&' if '?' in address else '?'}application_name="
    replica = Child(f"{named}replica", schema, "read", prefix, str(followed))
    still = Child(f"{named}frozen", schema, "read", prefix, str(followed)) if frozen else None
    plain = Child(address, schema, "plain")
    for each in filter(None, (replica, still, plain)):
        await asyncio.to_thread(each.says)
    if still is not None:
        still.process.send_signal(signal.SIGSTOP)
    replica.go()
    plain.go()

    async def publish(number: int) -> None:
        name = f"{prefix}{number}"
        await asyncio.sleep(every * number / followed)
        for seq in range(2, 2 + round(2 * SECONDS / every)):
            await log.append(name, [note(name, seq)], expected_seq=seq - 1, writer="here")
            await asyncio.sleep(every)

    await asyncio.gather(*map(publish, range(followed)))
    connection = await psycopg.AsyncConnection.connect(address)
    async with connection:
        cursor = await connection.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'replica'")
        [[connections]] = await cursor.fetchall()
        cursor = await connection.execute("SELECT pg_notification_queue_usage()")
        [[usage]] = await cursor.fetchall()
    for each in (replica, plain):
        each.go()
    half, most, count, frame, held = (await asyncio.to_thread(replica.says)).split()
    plain_half, plain_most = (await asyncio.to_thread(plain.says)).split()
    for each in (replica, plain):
        each.end()
    if still is not None:
        still.process.kill()
        still.end()
    await log.aclose()
    print(
        f"{READERS} readers of {followed} runs x {1 / every:g}/s, one of them slow{', a replica frozen' * frozen}: p50 "
        f"{half} ms, p99 {most} ms, of {count}, {frame} us of the processor each; {connections} connections, "
        f"{usage:.2%} of the queue of notifications; plain psycopg meanwhile: p50 {plain_half} ms, p99 {plain_most} "
        f"ms; no processor for the readers: {held} ms a second"
    )


async def memory(address: str, schema: str) -> None:
    """What a process has in memory for a reader, for a run that is followed, and for the newest events of one."""
    log = PostgresEventLog(address, schema=schema)

    async def of(followed: int, readers: int, events: int = 0) -> int:
        prefix = await begin(log, followed)
        child = Child(address, schema, "hold", prefix, str(followed), str(readers))
        first = int(await asyncio.to_thread(child.says))
        await asyncio.to_thread(child.says)
        child.go()
        for seq in range(2, 2 + events):
            names = (f"{prefix}{number}" for number in range(followed))
            await asyncio.gather(
                *(log.append(name, [note(name, seq)], expected_seq=seq - 1, writer="here") for name in names)
            )
        more = int(await asyncio.to_thread(child.says)) - first if events else 0
        child.process.kill()
        child.end()
        return more or first

    reader = await of(1, HELD) / HELD
    run = await of(HELD, HELD) / HELD - reader
    events = await of(FOLLOWED, FOLLOWED, RECENT) / FOLLOWED
    await log.aclose()
    print(
        f"{reader:.1f} kB of memory a reader, {run:.1f} a run that is followed, {events:.0f} more with {RECENT} events"
    )


async def child(address: str, schema: str, what: str, *which: str) -> None:
    """What the other processes do."""
    if what == "plain":
        await plainly(address, schema)
        return
    log = PostgresEventLog(address, schema=schema)
    if what == "write":
        await write(log)
    elif what == "read":
        await read(log, which[0], int(which[1]))
    else:
        await hold(log, which[0], int(which[1]), int(which[2]))
    await log.aclose()


def main(address: str) -> None:
    """All of it."""
    schema = f"bench_{secrets.token_hex(4)}"

    async def prepare() -> None:
        log = PostgresEventLog(address, schema=schema)
        await log.migrate()
        await log.aclose()

    asyncio.run(prepare())
    spare_loaded()
    try:
        for count in (1, 4):
            writers(address, schema, count)
        # The kernel writes to the disk what is 30 seconds old, and each commit waits meanwhile: not the readers' doing.
        os.sync()
        asyncio.run(latency(address, schema, FOLLOWED, EVERY))
        asyncio.run(latency(address, schema, FOLLOWED, EVERY, frozen=True))
        asyncio.run(latency(address, schema, READERS, EVERY * READERS / FOLLOWED))
        asyncio.run(memory(address, schema))
    finally:
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(f"DROP SCHEMA {schema} CASCADE".encode())


if __name__ == "__main__":
    if len(sys.argv) > 2:
        asyncio.run(child(*sys.argv[1:]))
    else:
        main(sys.argv[1])
