"""Event log whose appends wait for the test."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rxloop import Event, MemoryEventLog


class SlowLog(MemoryEventLog):
    """Log with delayed appends."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.waiting = 0

    async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> None:
        self.waiting += 1
        await self.gate.wait()
        self.waiting -= 1
        await super().append(task_id, events, expected_seq=expected_seq, writer=writer)
