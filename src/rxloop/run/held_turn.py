"""The turn that an attempt holds: that of this process, and that of the log, which may be lost.

The first keeps those apart who share a log object or a file here. The second keeps processes apart, and dies with its
holder, so that others find out that nobody goes on with a run.
"""

from __future__ import annotations

import asyncio
import logging

from rxloop.coordination.locks import ConversationLock
from rxloop.errors import EventLogError, Fenced
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import ANSWERS_IN, read_log
from rxloop.run.life import Life
from rxloop.run.recorder import Recorder

log = logging.getLogger("rxloop")


class HeldTurn:
    """The turn of one attempt, from `take_turn` until it is given back."""

    def __init__(self, life: Life, recorder: Recorder, event_log: EventLog, here: ConversationLock) -> None:
        """Hold the turn of this process.

        Args:
            life: That of the attempt, which is ended where the turn of the log is lost.
            recorder: That of the attempt, which is silenced then.
            event_log: The log.
            here: The turn of this process.
        """
        self._life, self._recorder = life, recorder
        self._here: ConversationLock | None = here
        self._log = event_log
        self._task_id, self._context_id = recorder.task_id, recorder.context_id
        self._taken = False
        """Whether the log may say that it is ours."""
        self.lost: Fenced | None = None
        """Why nothing of the attempt may come into the log any more."""
        self._asking: asyncio.Task[None] | None = None

    async def take(self) -> bool:
        """Take the turn of the log; False if somebody alive has it elsewhere."""
        # Should the task be cancelled in the middle, nobody knows whether it was taken.
        self._taken = True
        self._taken = await read_log(self._log.acquire_lease, self._context_id, self._task_id, self._lost)
        if self._taken and self._log.lease_seconds is not None:
            self._recorder.beware(round(self._log.lease_seconds * 500), self._doubt)
        return self._taken

    def _lost(self) -> None:
        """End the attempt at once: its tools are cancelled, and nothing more of it comes into the log or to readers."""
        writer = self._recorder.writer
        error = self.lost = Fenced(
            f"this process has lost the turn of the conversation {self._context_id}: others may go on there"
        )
        log.warning("%s: the attempt of the run %s ends here", error, self._task_id)
        if writer is not None:
            writer.fail(error)
        else:
            self._life.finish(error)

    def _doubt(self) -> None:
        self._asking = asyncio.get_running_loop().create_task(self._ask(), name=f"rxloop-turn-{self._task_id}")

    async def _ask(self) -> None:
        """Ask the log who has the turn, after a silence in which the process may have been frozen."""
        try:
            ours = await read_log(self._log.has_lease, self._context_id, self._task_id)
        except EventLogError as error:
            if self._recorder.writer is not None:
                self._recorder.writer.fail(error)
            return
        if ours:
            self._recorder.trust()
        else:
            self._lost()

    async def certain(self) -> None:
        """Wait until it is known whose turn it is."""
        if self._asking is not None:
            await asyncio.wait([self._asking])

    def end(self) -> None:
        """Tell that the attempt writes its last event, behind which the next run of the conversation may wait."""
        if self._here is not None:
            self._here.end()

    async def give_back(self) -> None:
        """Give the turn to whoever waits for it. If the log cannot be told now, it finds out itself.

        May be called again where a closing event loop has cut it off.
        """
        here, self._here = self._here, None
        try:
            if self._asking is not None:
                self._asking.cancel()
            if self._taken:
                async with asyncio.timeout(ANSWERS_IN):
                    await self._log.release_lease(self._context_id, self._task_id)
        except Exception as error:
            log.warning("the turn of the conversation %s could not be given back: %s", self._context_id, error)
        finally:
            self._taken = False
            if here is not None:
                here.release()
