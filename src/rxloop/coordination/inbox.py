"""Inbox of an attempt: the commands that reach a run while it works."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from rxloop.coordination.answers import find_credentials
from rxloop.coordination.commands import is_accepted, read_answers
from rxloop.errors import EventLogError, UnknownRun
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import read_log
from rxloop.protocol.commands import AnswerCommand, CancelCommand, Command, MessageCommand
from rxloop.protocol.events import InputReceivedEvent
from rxloop.state.run_state import RunState

log = logging.getLogger("rxloop")


class Inbox:
    """Inbox of an attempt. A cancel ends the attempt, a message enters its history, and an answer waits.

    An answer to a call that waits next to other calls reaches that call at once. Any other answer waits for the next
    attempt, which repeats the call that asked. So do the messages after it: commands apply in order, and the run
    records the number of the last one.
    """

    def __init__(
        self,
        event_log: EventLog,
        task_id: str,
        *,
        state: Callable[[], RunState],
        is_ending: Callable[[], bool],
        on_cancel: Callable[[str, int], None],
        on_message: Callable[[int, MessageCommand], None],
        on_answers: Callable[[Sequence[InputReceivedEvent]], bool],
    ) -> None:
        """Start to watch the commands of a run. None is applied before `open`.

        Args:
            event_log: The log.
            task_id: The run.
            state: Returns the current state of the run.
            is_ending: Returns True if the attempt applies no more commands.
            on_cancel: Called with the reason and the number of a cancel.
            on_message: Called with the number and the command of a message.
            on_answers: Passes answers to the calls that wait for them. Returns False if no call waits for them.
        """
        self._log, self._task_id, self._state, self._is_ending = event_log, task_id, state, is_ending
        self._on_cancel, self._on_message, self._on_answers = on_cancel, on_message, on_answers
        self._is_open = False
        self._last_number = 0
        self._has_new = False
        self._has_deferred = False
        """True if a command waits for the next attempt."""
        self._reading: asyncio.Task[None] | None = None
        self._stop = event_log.watch_commands(task_id, self._notify)

    def will_read(self) -> None:
        """Note that the attempt is about to read the log, which contains all commands so far."""
        self._has_new = False

    def skip_to(self, number: int) -> None:
        """Skip the commands up to a number, because the attempt starts with them."""
        self._last_number = number

    def open(self) -> None:
        """Apply commands from now on."""
        self._is_open = True
        if self._has_new:
            self._notify()

    def _notify(self) -> None:
        self._has_new = True
        if self._is_open and not self._is_ending() and (self._reading is None or self._reading.done()):
            self._reading = asyncio.get_running_loop().create_task(self._read(), name=f"rxloop-inbox-{self._task_id}")

    async def _read(self) -> None:
        while self._has_new:
            self._has_new = False
            try:
                commands = await read_log(self._log.read_commands, self._task_id, after=self._last_number)
            except UnknownRun:
                # The notification came before the first event of the run was stored.
                return
            except EventLogError as error:
                log.warning("the mail of the run %s cannot be read: %s", self._task_id, error)
                return
            for number, command in commands:
                self._last_number = number
                if not self._is_ending():
                    self._apply(number, command)

    def _apply(self, number: int, command: Command) -> None:
        if isinstance(command, CancelCommand):
            self._on_cancel(command.reason or "cancelled", number)
        elif isinstance(command, AnswerCommand):
            state = self._state()
            answers = list(read_answers(self._task_id, state, number, command))
            is_secret = bool(find_credentials(state, command.inputs))
            if is_secret or self._has_deferred or not self._on_answers(answers):
                self._has_deferred = self._has_deferred or is_secret or bool(answers)
            elif command.messages and is_accepted(self._task_id, state, command):
                self._on_message(number, MessageCommand(messages=command.messages))
        elif not self._has_deferred:
            self._on_message(number, command)

    async def aclose(self) -> None:
        """Apply no more commands."""
        self._stop()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
