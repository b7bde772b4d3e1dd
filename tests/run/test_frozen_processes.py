"""Attempts in processes that were frozen, so that their timers are late."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from rxloop import MemoryEventLog
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.commands import CancelCommand, Command
from rxloop.support.tasks import GRACE
from support.bank import Bank
from support.run_checks import final_events


class FreezingLog(MemoryEventLog):
    """Log whose process is frozen once, while it reads after a cancel or after the drop of a question."""

    def __init__(self, original: MemoryEventLog, reads: int) -> None:
        """Freeze after this number of reads."""
        super().__init__()
        self._runs, self._by_context = original._runs, original._by_context
        self._reads = reads
        self.is_due = False

    async def send_command(self, task_id: str, command: Command) -> int:
        self.is_due = isinstance(command, CancelCommand) or getattr(command, "superseding_task_id", None) is not None
        return await super().send_command(task_id, command)

    async def _read(self) -> None:
        """Jump to the time after the freeze. As with a socket, the answer is read some iterations later."""
        if not self.is_due:
            return
        self._reads -= 1
        if self._reads == 0:
            loop: Any = asyncio.get_running_loop()
            loop.time = lambda: time.monotonic() + 3 * GRACE
            for _ in range(10):
                await asyncio.sleep(0)

    async def get_record(self, task_id: str) -> RunRecord:
        await self._read()
        return await super().get_record(task_id)

    async def snapshot(self, task_id: str, **options: Any) -> Any:
        snapshot = await super().snapshot(task_id, **options)
        await self._read()
        return snapshot

    async def acquire_lease(self, *arguments: Any, **options: Any) -> Any:
        await self._read()
        return await super().acquire_lease(*arguments, **options)


@pytest.mark.parametrize("reads", range(1, 6))
async def test_cancel_is_logged_after_a_freeze(reads: int) -> None:
    bank = Bank()
    paused = await bank.request_payment()
    log = FreezingLog(bank.log, reads)
    await bank.agent(log=log).get_run(paused.task_id).cancel("stop")

    assert [each.state for each in final_events(await log.read(paused.task_id))] == ["input-required", "canceled"]


@pytest.mark.parametrize("reads", range(1, 6))
async def test_superseded_run_ends_although_the_later_run_was_frozen(reads: int) -> None:
    bank = Bank()
    paused = await bank.request_payment(context_id="c")
    log = FreezingLog(bank.log, reads)
    result = await bank.agent("Fine.", log=log).run("And now?", context_id="c")

    assert result.output == "Fine."
    assert (await log.get_record(paused.task_id)).state == "canceled"
