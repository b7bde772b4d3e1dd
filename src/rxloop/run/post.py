"""The mail of an attempt while it goes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from rxloop.errors import EventLogError, UnknownRun
from rxloop.pipeline.logs import Mailbox
from rxloop.protocol.mail import AnswerMail, CancelMail, Mail, SayMail
from rxloop.run.inputs import credentials
from rxloop.run.letters import Letters, answers_in
from rxloop.run.life import Canceled, Life, Phase
from rxloop.run.recorder import Recorder
from rxloop.state.conversation import read_log

log = logging.getLogger("rxloop")


class Post:
    """Takes letters to a run that goes on: a cancel ends it, a message enters its history, an answer waits.

    An answer is for the next attempt, which makes the call once more that has asked. So are the messages behind it, for
    letters are taken in order: the run keeps the number of the last one.
    """

    def __init__(self, life: Life, recorder: Recorder, mailbox: Mailbox, say: Callable[[int, SayMail], None]) -> None:
        """Watch the mail of an attempt from now on; nothing is taken before `open`.

        Args:
            life: That of the attempt, which a cancel ends.
            recorder: That of the attempt, which knows what is asked.
            mailbox: Its log.
            say: Brings a letter with messages into the history.
        """
        self._life, self._recorder, self._mailbox, self._say = life, recorder, mailbox, say
        self._task_id = recorder.task_id
        self._seen = 0
        self._new = False
        self._answered = False
        """Whether a letter waits for the next attempt."""
        self._reading: asyncio.Task[None] | None = None
        self._stop = mailbox.watch(self._task_id, self._arrived)

    async def letters(self, after: int) -> Letters:
        """The letters that there are at the beginning of an attempt.

        Raises:
            EventLogError: The log cannot be read.
        """
        self._new = False
        found = await read_log(self._mailbox.mail, self._task_id, after=after)
        self._seen = found[-1][0] if found else after
        return found

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
            try:
                found = await self.letters(self._seen)
            except UnknownRun:
                # It was told for nothing, and the first event is not in the log yet.
                return
            except EventLogError as error:
                log.warning("the mail of the run %s cannot be read: %s", self._task_id, error)
                return
            for number, letter in found:
                if not self._life.ending:
                    self._take(number, letter)

    def _take(self, number: int, letter: Mail) -> None:
        if isinstance(letter, CancelMail):
            self._life.finish(Canceled(letter.reason or "cancelled", number))
        elif isinstance(letter, AnswerMail):
            state = self._recorder.state()
            fits = any(answers_in(self._task_id, state, number, letter)) or bool(credentials(state, letter.inputs))
            self._answered = self._answered or fits
        elif not self._answered:
            self._say(number, letter)

    async def aclose(self) -> None:
        """Take nothing more."""
        self._stop()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
