"""Faults in worker processes, requested by a test and applied when a worker loads an agent of `scripted_agents`.

The requests are a JSON object in the environment. The process of the test itself is not affected.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from rxloop import Event, PostgresEventLog, RunRecord, Runtime
from rxloop.protocol.events import StatusUpdateEvent
from rxloop.runtime import PostgresQueue, executor
from rxloop.runtime import postgres_queue as queues
from support.workers import faulty_queue

_VARIABLE = "RXLOOP_SABOTAGE"


def order_faults(monkeypatch: pytest.MonkeyPatch, folder: Path, **orders: Any) -> Path:
    """Request faults for new workers.

    Args:
        monkeypatch: Reverts the request.
        folder: Folder for the notes of the workers.
        **orders: `die`, one of the moments below; `lost_after`, seconds until a job counts as lost; `lie`, URL of a
        database with a faulty queue; `version`, program version; `clocks`, clock offsets in seconds; `watch`, record
        the scans for lost jobs.

    Returns:
        A file that exists once a worker has died.
    """
    request = {"spared": os.getpid(), "folder": str(folder), **orders}
    monkeypatch.setenv(_VARIABLE, json.dumps(request))
    return folder / "died"


def apply_faults() -> None:
    """Apply the requested faults."""
    orders = json.loads(os.environ.get(_VARIABLE, "{}"))
    if not orders or orders["spared"] == os.getpid():
        return
    folder = Path(orders["folder"])
    if moment := orders.get("die"):
        kind, _, which = moment.partition(" ")
        _MOMENTS[kind](which, functools.partial(_first, folder / "died"))
    if lost_after := orders.get("lost_after"):
        _shorten_timeouts(lost_after)
    if dsn := orders.get("lie"):
        faulty_queue.replace_queue(dsn, setattr)
    if version := orders.get("version"):
        defaults: Any = Runtime.__init__.__kwdefaults__
        defaults["version"] = version
    for index, seconds in enumerate(orders.get("clocks", ())):
        if _first(folder / f"clock-{index}"):
            set_clock(seconds, setattr)
            break
    if orders.get("watch"):
        _record_scans(folder / "scans")


def _first(marker: Path) -> bool:
    """Return True for the first caller."""
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _die_when_committed(kind: str, first: Callable[[], bool]) -> None:
    """Die directly after an event is committed, before this process can use it."""
    append = PostgresEventLog.append

    async def append_and_die(self: Any, task_id: str, events: Sequence[Event], **options: Any) -> None:
        index = next((index for index, event in enumerate(events) if _is(event, kind)), None)
        if index is not None and first():
            await append(self, task_id, events[: index + 1], **options)
            _die()
        await append(self, task_id, events, **options)

    PostgresEventLog.append = append_and_die


def _die_when_executed(_: str, first: Callable[[], bool]) -> None:
    """Die when a run is idle but its job is not acknowledged."""
    serve = PostgresQueue.serve

    async def serve_and_die(self: Any, execute: Callable[[str], Awaitable[None]], **options: Any) -> None:
        async def execute_and_die(task_id: str) -> None:
            await execute(task_id)
            if first():
                _die()

        await serve(self, execute_and_die, **options)

    PostgresQueue.serve = serve_and_die


def _is(event: Event, kind: str) -> bool:
    if kind == "final":
        return isinstance(event, StatusUpdateEvent) and event.final
    return event.kind == kind


_MOMENTS = {"committed": _die_when_committed, "executed": _die_when_executed}


def _shorten_timeouts(lost_after: float) -> None:
    """Shorten the time until jobs count as lost and workers as dead."""
    executor._LOST_AFTER = executor._SEARCH_INTERVAL = lost_after
    queues._STALLED_AFTER, queues._HEARTBEAT = lost_after, lost_after / 4


def _record_scans(file: Path) -> None:
    """Count scans for orphaned runs, and record the enqueued jobs."""
    scans = 0
    orphans, enqueue = PostgresEventLog.list_orphaned, PostgresQueue.enqueue

    async def list_and_count(self: Any, **options: Any) -> Sequence[RunRecord]:
        nonlocal scans
        scans += 1
        return await orphans(self, **options)

    async def enqueue_and_record(self: Any, task_id: str, **options: Any) -> None:
        with file.open("ab", buffering=0) as end:
            end.write(json.dumps({"worker": os.getpid(), "scan": scans, "task": task_id}).encode() + b"\n")
        await enqueue(self, task_id, **options)

    PostgresEventLog.list_orphaned, PostgresQueue.enqueue = list_and_count, enqueue_and_record


def set_clock(seconds: float, replace: Callable[[Any, str, Any], None]) -> None:
    """Set the clock of this process ahead. `replace` works like `setattr`."""
    now, now_ns = time.time, time.time_ns

    class Shifted(datetime):
        @classmethod
        @override
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return datetime.fromtimestamp(time.time(), tz)

    replace(time, "time", lambda: now() + seconds)
    replace(time, "time_ns", lambda: now_ns() + int(seconds * 1e9))
    replace(queues, "datetime", Shifted)
