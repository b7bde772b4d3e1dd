"""Throughput and latency of a Postgres log: `python benchmarks/postgres_log.py postgresql://...`.

The benchmark uses a temporary schema. On shared machines, compare the latency with that of plain psycopg, which is
measured at the same time with the same server, disk and processors.
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
"""Number of readers for memory measurements, and of buffered events per run."""
PLAIN = 0.02
"""Interval of rows written by plain psycopg, in seconds."""
TEXT = "x" * 180
"""Payload of events, which then have about 330 bytes."""


def make_first_events(task_id: str) -> list[Event]:
    """Return the first event of a run."""
    first = TaskEvent(
        seq=1, attempt=1, task_id=task_id, messages=[Message.user("Hi")], model="m", agent_name="a", context_id=task_id
    )
    return [first]


def make_event(task_id: str, seq: int) -> Event:
    """Return an event that contains its creation time."""
    return CustomEvent(
        seq=seq, attempt=1, task_id=task_id, context_id=task_id, name="n", data={"at": time.monotonic(), "text": TEXT}
    )


async def write(log: PostgresEventLog) -> None:
    """Write concurrent runs for some seconds and print the number of events."""
    names = [secrets.token_hex(8) for _ in range(RUNS)]
    for name in names:
        await log.append(name, make_first_events(name), expected_seq=0, writer=name)
    report_ready()
    stop = time.monotonic() + SECONDS
    written = 0

    async def run(name: str) -> None:
        nonlocal written
        seq = 1
        while time.monotonic() < stop:
            batch = [make_event(name, seq + 1 + at) for at in range(BATCH)]
            await log.append(name, batch, expected_seq=seq, writer=name)
            seq += BATCH
            written += BATCH

    await asyncio.gather(*map(run, names))
    print(written, flush=True)


def resident() -> int:
    """Return the memory of this process in kilobytes."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() // 1024


def get_scheduling_delay() -> float:
    """Return the time in seconds during which this process was runnable but not scheduled."""
    return int(Path("/proc/self/schedstat").read_text(encoding="ascii").split()[1]) / 1e9


def freeze_objects() -> None:
    """Exclude existing objects from garbage collection, like `rxloop serve` and `rxloop worker`."""
    gc.collect()
    gc.freeze()


async def read(log: PostgresEventLog, prefix: str, followed: int) -> None:
    """Follow the runs with many readers, one of them slow, and print the latencies of the others in milliseconds.

    Also prints the number of events, the CPU time per event in microseconds, and the time per second in milliseconds
    during which this process was waiting for a processor.
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
    freeze_objects()
    readers = [asyncio.create_task(reader(number)) for number in range(READERS)]
    await all_here.wait()
    report_ready()
    used, held, began = time.process_time(), get_scheduling_delay(), time.monotonic()
    await asyncio.to_thread(sys.stdin.readline)
    used, held, took = time.process_time() - used, get_scheduling_delay() - held, time.monotonic() - began
    for each in readers:
        each.cancel()
    parts = quantiles(waited, n=100)
    frame = used / max(len(waited), 1) * 1_000_000
    print(f"{parts[49]:.1f} {parts[98]:.1f} {len(waited)} {frame:.0f} {held / took * 1_000:.0f}", flush=True)


async def measure_plain(address: str, schema: str) -> None:
    """Measure notifications about inserted rows with plain psycopg, and print the latencies in milliseconds."""
    took: list[float] = []
    connecting = psycopg.AsyncConnection.connect
    async with (
        await connecting(address, autocommit=True) as connection,
        await connecting(address, autocommit=True) as listener,
    ):
        await connection.execute(f"CREATE TABLE {schema}.plain (number int, text text)".encode())
        await listener.execute(f"LISTEN {schema}_plain".encode())
        both = f"WITH row AS (INSERT INTO {schema}.plain VALUES (%s, %s)) SELECT pg_notify('{schema}_plain', %s)"
        report_ready()
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
    """Follow runs with one reader each, and print the memory in kilobytes, once more on demand."""
    gone_on = asyncio.Event()
    there = 0

    async def reader(number: int) -> None:
        nonlocal there
        async for _ in log.follow(f"{prefix}{number % followed}"):
            there += 1
            gone_on.set()

    async def wait_for_events(events: int) -> int:
        while there < events:
            gone_on.clear()
            await gone_on.wait()
        gc.collect()
        return resident()

    # Exclude modules that are loaded on first use.
    readers = [asyncio.create_task(reader(0))]
    before = await wait_for_events(1)
    readers += [asyncio.create_task(reader(number)) for number in range(count)]
    print(await wait_for_events(1 + count) - before)
    report_ready()
    print(await wait_for_events((1 + count) * (1 + RECENT)) - before, flush=True)
    for each in readers:
        each.cancel()


def report_ready() -> None:
    """Report readiness and wait for the start signal."""
    print("ready", flush=True)
    sys.stdin.readline()


class Child:
    """Child process that executes this program."""

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


def measure_writers(address: str, schema: str, count: int) -> None:
    """Measure events per second for several processes."""
    children = [Child(address, schema, "write") for _ in range(count)]
    for each in (*(child.says for child in children), *(child.go for child in children)):
        each()
    events = sum(int(child.says()) for child in children)
    for child in children:
        child.end()
    print(f"{count} writers x {RUNS} runs x {BATCH}: {events / SECONDS:,.0f} events a second")


async def begin(log: PostgresEventLog, count: int) -> str:
    """Start runs and return the prefix of their ids."""
    prefix = secrets.token_hex(4)
    names = [f"{prefix}{number}" for number in range(count)]
    await asyncio.gather(*(log.append(name, make_first_events(name), expected_seq=0, writer="here") for name in names))
    return prefix


async def measure_latency(address: str, schema: str, followed: int, every: float, *, frozen: bool = False) -> None:
    """Measure the latency from appends in this process to readers in another process.

    Args:
        address: Database URL.
        schema: Schema of the log.
        followed: Number of followed runs.
        every: Interval between events of a run in seconds.
        frozen: True if there is also a frozen process that follows the runs.
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
            await log.append(name, [make_event(name, seq)], expected_seq=seq - 1, writer="here")
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


async def measure_memory(address: str, schema: str) -> None:
    """Measure the memory per reader, per followed run, and for its buffered events."""
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
                *(log.append(name, [make_event(name, seq)], expected_seq=seq - 1, writer="here") for name in names)
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


async def run_child(address: str, schema: str, what: str, *which: str) -> None:
    """Run the task of a child process."""
    if what == "plain":
        await measure_plain(address, schema)
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
    """Run all measurements."""
    schema = f"bench_{secrets.token_hex(4)}"

    async def prepare() -> None:
        log = PostgresEventLog(address, schema=schema)
        await log.migrate()
        await log.aclose()

    asyncio.run(prepare())
    freeze_objects()
    try:
        for count in (1, 4):
            measure_writers(address, schema, count)
        # The kernel flushes data after 30 seconds, which delays commits but is unrelated to the readers.
        os.sync()
        asyncio.run(measure_latency(address, schema, FOLLOWED, EVERY))
        asyncio.run(measure_latency(address, schema, FOLLOWED, EVERY, frozen=True))
        asyncio.run(measure_latency(address, schema, READERS, EVERY * READERS / FOLLOWED))
        asyncio.run(measure_memory(address, schema))
    finally:
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(f"DROP SCHEMA {schema} CASCADE".encode())


if __name__ == "__main__":
    if len(sys.argv) > 2:
        asyncio.run(run_child(*sys.argv[1:]))
    else:
        main(sys.argv[1])
