"""Logs that wait, append at once or are away, and writers of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from rxloop import MemoryEventLog
from rxloop.protocol.events import CustomEvent, Event
from rxloop.run.log_writer import LogWriter
from rxloop.stream.back_pressure import Gate


class Log(MemoryEventLog):
    """A log whose appends take as long as the test wants, and fail when it wants."""

    def __init__(self) -> None:
        super().__init__(keep_deltas=self.keeps_deltas)
        self.batches: list[list[int]] = []
        self.expected: list[int] = []
        self.error: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.writing = 0

    async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> None:
        assert task_id == "t"
        self.writing += 1
        assert self.writing == 1, "one writer"
        try:
            await self.gate.wait()
            if self.error is not None:
                raise self.error
            self.batches.append([event.seq for event in events])
            self.expected.append(expected_seq)
        finally:
            self.writing -= 1


class Writing:
    def __init__(self, durable_seq: int = 0) -> None:
        self.log = Log()
        self.failures: list[Exception] = []
        self.writer = LogWriter(self.log, "t", durable_seq, self.failures.append)
        self.seq = durable_seq

    def add(self, count: int = 1) -> None:
        for _ in range(count):
            self.seq += 1
            self.writer.add(CustomEvent(name="x", seq=self.seq))


class QuickLog(Log):
    """A log that may append without waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.quick = True

    def append_now(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> bool:
        if self.error is not None:
            raise self.error
        if self.quick:
            self.batches.append([event.seq for event in events])
            self.expected.append(expected_seq)
        return self.quick


class QuickWriting(Writing):
    def __init__(self) -> None:
        super().__init__()
        self.log: Any = QuickLog()
        self.writer = LogWriter(self.log, "t", 0, self.failures.append)


class AwayLog(Log):
    """Fails until the test says otherwise, and remembers who asked."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error
        self.writers: list[str] = []

    async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> None:
        self.writers.append(writer)
        await super().append(task_id, events, expected_seq=expected_seq, writer=writer)


class Away(Writing):
    """A writer whose log is away."""

    def __init__(self, error: Exception | None = None, gate: Gate | None = None) -> None:
        super().__init__()
        self.log: Any = AwayLog(error or OSError("the server is starting"))
        self.writer = LogWriter(self.log, "t", 0, self.failures.append, gate)
