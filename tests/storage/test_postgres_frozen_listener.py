"""Frozen listeners, which must not fill the notification queue that all processes share."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from rxloop import PostgresEventLog
from rxloop.protocol.events import ContentDeltaEvent
from rxloop.testing.event_log_contract.toolkit import end, note, start_events
from support.postgres.logs import query_rows
from support.postgres.server import PostgresServer

pytestmark = pytest.mark.service("postgres")

LISTENER = Path(__file__).with_name("listener.py")
SECONDS = 60
MAX_USAGE = 0.01
"""Maximum usage of the notification queue, as a fraction. A full queue blocks every append."""
WRITERS, PACE = 20, 0.015
"""Concurrent writers, each pausing for this many seconds between appends."""
LISTENING = "SELECT pid FROM pg_stat_activity WHERE query ~ '^DO .*LISTEN' AND application_name = 'rxloop'"
USAGE = "SELECT pg_notification_queue_usage()"


async def test_frozen_listener_is_disconnected_and_gets_all_events_when_it_continues() -> None:
    with PostgresServer() as server:
        log = PostgresEventLog(server.dsn)
        await log.append("run", start_events(), expected_seq=0)
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(LISTENER), server.dsn, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        try:
            last = 2
            async with asyncio.timeout(SECONDS):
                while not await query_rows(server.dsn, LISTENING):  # noqa: ASYNC110 (no notification exists)
                    await asyncio.sleep(0.02)
                await log.append("run", [note(3)], expected_seq=2)
                last = 3
                assert await process.stdout.readline() == b"ready\n"
            frozen = await query_rows(server.dsn, LISTENING)
            assert len(frozen) == 1
            process.send_signal(signal.SIGSTOP)

            durations, stopped = [0.0], asyncio.Event()

            async def append_repeatedly(name: str) -> None:
                """Append events with large notifications, at a rate that suits slow and fast machines."""
                loop = asyncio.get_running_loop()
                await log.append(name, start_events(name), expected_seq=0)
                seq = 2
                while not stopped.is_set():
                    start = loop.time()
                    sent = ContentDeltaEvent(seq=seq + 1, sub=1, step="1", delta=f"{seq} " * 1_500)
                    await log.append(name, [note(seq + 1), sent], expected_seq=seq)
                    durations.append(loop.time() - start)
                    seq += 1
                    await asyncio.sleep(PACE)

            async def sample_usage() -> list[float]:
                usages: list[float] = []
                async with asyncio.timeout(SECONDS):
                    while await query_rows(server.dsn, LISTENING):
                        [[usage]] = await query_rows(server.dsn, USAGE)
                        usages.append(usage)
                        await asyncio.sleep(0.1)
                return usages

            writers = [asyncio.create_task(append_repeatedly(f"w{number}")) for number in range(WRITERS)]
            usages = await sample_usage()
            stopped.set()
            await asyncio.gather(*writers)
            # The queue did fill up, but only for a short time.
            assert 0 < max(usages) < MAX_USAGE, f"{max(usages):.4f} of the queue, after {len(durations)} appends"
            assert max(durations) < 3
            [[final_usage]] = await query_rows(server.dsn, USAGE)
            assert final_usage <= max(usages)

            await log.append("run", [note(4), end(5)], expected_seq=last)
            process.send_signal(signal.SIGCONT)
            async with asyncio.timeout(SECONDS):
                assert await process.stdout.readline() == b"1 2 3 4 5\n"
                assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        await log.aclose()
