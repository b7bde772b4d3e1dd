"""Command delivery with an unreadable inbox."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from typing_extensions import override

from rxloop import Agent, MemoryEventLog, RunCancelled
from rxloop.pipeline.log_retry import RETRY_SECONDS
from rxloop.protocol.commands import CancelCommand
from rxloop.testing import ScriptedModel, frames, virtual_time


class UnreadableInbox(MemoryEventLog):
    """Log with temporarily unreadable commands."""

    is_readable = True

    @override
    async def read_commands(self, task_id: str, *, after: int = 0) -> Sequence[Any]:
        if not self.is_readable:
            raise OSError("the server restarts")
        return await super().read_commands(task_id, after=after)


@pytest.mark.parametrize("seconds", [RETRY_SECONDS / 2, 3 * RETRY_SECONDS])
def test_inbox_applies_a_cancel_when_the_log_can_be_read_again(seconds: float) -> None:
    log = UnreadableInbox()
    with virtual_time() as time:

        async def main() -> None:
            run = await Agent(ScriptedModel(frames("-never")), log=log).run("Go").begin()
            log.is_readable = False
            await log.send_command(run.task_id, CancelCommand(reason="enough"))
            await asyncio.sleep(seconds)
            assert (await log.get_record(run.task_id)).state == "working"
            log.is_readable = True
            with pytest.raises(RunCancelled, match="enough"):
                await run

        time.run(main())
        assert time.now < seconds + 5
