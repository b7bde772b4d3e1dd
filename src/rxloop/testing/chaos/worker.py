"""One worker, there to be killed and frozen: `python -m rxloop.testing.chaos.worker ORDERS`, orders as JSON.

It writes down what the judge asks for later, each as one write at the end of a file: there in whole, or not at all.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from rxloop.eventlog.postgres import PostgresEventLog
from rxloop.protocol.events import AnyEvent, CheckpointEvent, StatusUpdateEvent
from rxloop.runtime.runtime import Runtime
from rxloop.testing.chaos._loading import load, load_agents
from rxloop.tools.function import FunctionTool
from rxloop.workers.postgres import PostgresQueue


def _note_effects(file: Path) -> None:
    """Note each call of a function tool that is not idempotent when it begins."""
    call: Any = vars(FunctionTool)["call"]

    async def noted(self: Any, arguments: Any, ctx: Any) -> Any:
        if not self.idempotent:
            _add(file, {"key": ctx.idempotency_key, "tool": self.definition.name})
        return await call(self, arguments, ctx)

    FunctionTool.call = noted


def _add(file: Path, line: dict[str, Any]) -> None:
    with file.open("ab", buffering=0) as end:
        end.write(json.dumps(line).encode() + b"\n")


async def _work(orders: dict[str, Any]) -> None:
    folder = Path(orders["folder"])
    acknowledged, begun = folder / "acknowledged", folder / "begun"

    def told(event: AnyEvent) -> None:
        about = {"task": event.task_id, "attempt": event.attempt}
        if isinstance(event, CheckpointEvent) and event.durable_seq is not None:
            _add(acknowledged, {**about, "seq": event.durable_seq})
        elif isinstance(event, StatusUpdateEvent) and event.state == "working" and not event.final:
            _add(begun, {**about, "pid": os.getpid()})

    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    log = PostgresEventLog(orders["dsn"], lease=orders["lease"])
    queue = PostgresQueue(orders["dsn"])
    runtime = Runtime(
        load_agents(orders["agents"]),
        log=log,
        deps=load(orders["deps"]) if orders["deps"] else None,
        queue=queue,
        works=True,
        concurrency=orders["concurrency"],
        adopt_every=orders["adopt_every"],
        grace=orders["grace"],
    )
    runtime.events.subscribe(told, lambda error: None)
    while True:
        try:
            async with runtime:
                os.write(1, b"ready\n")
                await stopped.wait()
            break
        except Exception as error:
            if runtime.entered:
                raise
            # The server may be away when a worker begins.
            sys.stderr.write(f"not ready: {error}\n")
            await asyncio.sleep(0.5)
    await queue.aclose()
    await log.aclose()


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    _note_effects(Path(given["folder"]) / "effects")
    asyncio.run(_work(given))
    # Threads of tools may not listen.
    sys.stdout.flush()
    os._exit(0)
