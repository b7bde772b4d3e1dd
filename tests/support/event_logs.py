"""Faulty event logs and their writers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from rxloop import MemoryEventLog
from rxloop.protocol.events import CustomEvent, Event
from rxloop.run.log_writer import LogWriter
from rxloop.stream.back_pressure import Gate


class GatedLog(MemoryEventLog):
    """Log whose appends wait for a gate and fail on request."""

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


class LogWriterHarness:
    def __init__(self, durable_seq: int = 0) -> None:
        self.log = GatedLog()
        self.failures: list[Exception] = []
        self.writer = LogWriter(self.log, "t", durable_seq, self.failures.append)
        self.seq = durable_seq

    def add(self, count: int = 1) -> None:
        for _ in range(count):
            self.seq += 1
            self.writer.add(CustomEvent(name="x", seq=self.seq))


class ImmediateLog(GatedLog):
    """Log that supports appending without waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.appends_now = True

    def append_now(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> bool:
        if self.error is not None:
            raise self.error
        if self.appends_now:
            self.batches.append([event.seq for event in events])
            self.expected.append(expected_seq)
        return self.appends_now


class ImmediateWriterHarness(LogWriterHarness):
    def __init__(self) -> None:
        super().__init__()
        self.log: Any = ImmediateLog()
        self.writer = LogWriter(self.log, "t", 0, self.failures.append)


class FailingLog(GatedLog):
    """Log that records writers and fails until its error is removed."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error
        self.writers: list[str] = []

    async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> None:
        self.writers.append(writer)
        await super().append(task_id, events, expected_seq=expected_seq, writer=writer)


class FailingWriterHarness(LogWriterHarness):
    """Log writer whose log is unavailable."""

    def __init__(self, error: Exception | None = None, gate: Gate | None = None) -> None:
        super().__init__()
        self.log: Any = FailingLog(error or OSError("the server is starting"))
        self.writer = LogWriter(self.log, "t", 0, self.failures.append, gate)
