"""The mail of an attempt while it goes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from rxloop.coordination.answers import find_credentials
from rxloop.coordination.commands import is_accepted, read_answers
from rxloop.errors import EventLogError, UnknownRun
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import read_log
from rxloop.protocol.commands import AnswerCommand, CancelCommand, Command, MessageCommand
from rxloop.run.life import Canceled, Life, Phase
from rxloop.run.open_questions import OpenQuestions
from rxloop.run.recorder import Recorder

log = logging.getLogger("rxloop")


class Post:
    """Takes letters to a run that goes on: a cancel ends it, a message enters its history, an answer waits.

    An answer to a call that waits beside other calls goes to it at once. Any other answer is for the next attempt,
    which makes the call once more that has asked. So are the messages behind it, for letters are taken in order: the
    run keeps the number of the last one.
    """

    def __init__(
        self,
        life: Life,
        recorder: Recorder,
        event_log: EventLog,
        say: Callable[[int, MessageCommand], None],
        questions: OpenQuestions,
    ) -> None:
        """Watch the mail of an attempt from now on; nothing is taken before `open`.

        Args:
            life: That of the attempt, which a cancel ends.
            recorder: That of the attempt, which knows what is asked.
            event_log: The log.
            say: Brings a letter with messages into the history.
            questions: The questions that an answer reaches at once.
        """
        self._life, self._recorder, self._log, self._say = life, recorder, event_log, say
        self._questions = questions
        self._task_id = recorder.task_id
        self._seen = 0
        self._new = False
        self._answered = False
        """Whether a letter waits for the next attempt."""
        self._reading: asyncio.Task[None] | None = None
        self._stop = event_log.watch_commands(self._task_id, self._arrived)

    def reads(self) -> None:
        """Tell that the log is about to be read, with all commands that have come by now."""
        self._new = False

    def has_read(self, number: int) -> None:
        """Tell the number of the last command that the attempt begins with; those after it are read from the log."""
        self._seen = number

    def open(self) -> None:
        """Take what comes, now that the attempt has begun."""
        if self._new:
            self._arrived()

    def _arrived(self) -> None:
        self._new = True
        life = self._life
        if life.phase is Phase.OPEN and not life.ending and (self._reading is None or self._reading.done()):
            self._reading = asyncio.get_running_loop().create_task(self._read(), name=f"rxloop-mail-{self._task_id}")

    async def _read(self) -> None:
        while self._new:
            self._new = False
            try:
                found = await read_log(self._log.read_commands, self._task_id, after=self._seen)
            except UnknownRun:
                # It was told for nothing, and the first event is not in the log yet.
                return
            except EventLogError as error:
                log.warning("the mail of the run %s cannot be read: %s", self._task_id, error)
                return
            for number, letter in found:
                self._seen = number
                if not self._life.ending:
                    self._take(number, letter)

    def _take(self, number: int, letter: Command) -> None:
        if isinstance(letter, CancelCommand):
            self._life.finish(Canceled(letter.reason or "cancelled", number))
        elif isinstance(letter, AnswerCommand):
            state = self._recorder.state()
            answers = list(read_answers(self._task_id, state, number, letter))
            secret = bool(find_credentials(state, letter.inputs))
            # Commands are taken in order: where one waits for the next attempt, those behind it do.
            if secret or self._answered or not self._questions.take(answers):
                self._answered = self._answered or secret or bool(answers)
            elif letter.messages and is_accepted(self._task_id, state, letter):
                self._say(number, MessageCommand(messages=letter.messages))
        elif not self._answered:
            self._say(number, letter)

    async def aclose(self) -> None:
        """Take nothing more."""
        self._stop()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
