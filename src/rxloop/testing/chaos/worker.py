"""Worker process for chaos tests, started with `python -m rxloop.testing.chaos.worker`.

Settings are read from stdin as a single line of JSON. The worker exits when stdin is closed. On Linux, it is also
killed with its parent process, even if it is frozen. Records for the checker are appended to files with a single write
each, so that they are never partially written.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from rxloop.protocol.events import AnyEvent, CheckpointEvent, StatusUpdateEvent, ends_attempt
from rxloop.runtime.postgres_queue import PostgresQueue
from rxloop.runtime.runtime import Runtime
from rxloop.storage.postgres_log import PostgresEventLog
from rxloop.testing.chaos.processes import load, load_agents
from rxloop.testing.chaos.report import Digest
from rxloop.tools.function import FunctionTool

_PR_SET_PDEATHSIG = 1


def _record_effects(file: Path) -> None:
    """Record all calls to non-idempotent function tools before they are executed."""
    call: Any = vars(FunctionTool)["call"]

    async def record_and_call(self: Any, arguments: Any, ctx: Any) -> Any:
        if not self.idempotent:
            _append_line(file, {"key": ctx.idempotency_key, "tool": self.definition.name, "context": ctx.context_id})
        return await call(self, arguments, ctx)

    FunctionTool.call = record_and_call


class _Recorder:
    """Recorder for acknowledged checkpoints, with a checksum for each, and for started attempts."""

    def __init__(self, folder: Path) -> None:
        self._acknowledged, self._attempts = folder / "acknowledged", folder / "attempts"
        self._digests: dict[str, Digest] = {}

    def record(self, event: AnyEvent) -> None:
        # Skip nested runs because they do not have a separate log.
        if not event.durable or event.parent_task_id is not None:
            return
        ids = {"task": event.task_id, "attempt": event.attempt}
        digest = self._digests.get(event.task_id)
        if isinstance(event, StatusUpdateEvent) and event.state == "working" and not event.final:
            digest = self._digests[event.task_id] = Digest()
            _append_line(self._attempts, {**ids, "pid": os.getpid()})
        if digest is None:
            return
        if isinstance(event, CheckpointEvent) and event.durable_seq is not None:
            _append_line(self._acknowledged, {**ids, "seq": event.durable_seq, "digest": digest.get(event.durable_seq)})
        digest.add(event)
        if ends_attempt(event):
            del self._digests[event.task_id]


def _append_line(file: Path, line: dict[str, Any]) -> None:
    with file.open("ab", buffering=0) as end:
        end.write(json.dumps(line).encode() + b"\n")


async def _run_worker(settings: dict[str, Any], input_fd: int, output_fd: int) -> None:
    """Run a worker until SIGTERM, or until stdin is closed.

    Args:
        settings: Worker settings.
        input_fd: File descriptor that is closed by the parent at the end of the test.
        output_fd: File descriptor for reporting that the worker is ready.
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    loop.add_reader(input_fd, os._exit, 1)
    log = PostgresEventLog(settings["dsn"], lease=settings["lease"])
    queue = PostgresQueue(settings["dsn"])
    runtime = Runtime(
        load_agents(settings["agents"]),
        log=log,
        deps=load(settings["deps"]) if settings["deps"] else None,
        queue=queue,
        is_worker=True,
        concurrency=settings["concurrency"],
        adopt_every=settings["adopt_every"],
        grace=settings["grace"],
    )
    runtime.events.subscribe(_Recorder(Path(settings["folder"])).record, lambda error: None)
    while True:
        try:
            async with runtime:
                os.write(output_fd, b"ready\n")
                await stopped.wait()
            break
        except Exception as error:
            if runtime.entered:
                raise
            # The database may not be available yet.
            sys.stderr.write(f"Not ready: {error}\n")
            await asyncio.sleep(0.5)
    await queue.aclose()
    await log.aclose()


def _die_with_parent() -> None:
    """Kill this process when its parent exits. A frozen process would not notice that stdin was closed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _duplicate_pipes() -> tuple[int, int]:
    """Duplicate the pipes to the parent. Tools then read an empty stdin and print to stderr."""
    input_fd, output_fd = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return input_fd, output_fd


if __name__ == "__main__":
    _die_with_parent()
    settings = json.loads(sys.stdin.buffer.readline())
    _record_effects(Path(settings["folder"]) / "effects")
    asyncio.run(_run_worker(settings, *_duplicate_pipes()))
    # Don't wait for tool threads that ignore cancellation.
    sys.stdout.flush()
    os._exit(0)
