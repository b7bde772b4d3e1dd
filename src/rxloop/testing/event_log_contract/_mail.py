"""Mail for runs, for a log that has it."""

from __future__ import annotations

import asyncio
from typing import Protocol

from rxloop.errors import UnknownRun
from rxloop.pipeline.logs import EventLog, Mailbox
from rxloop.protocol.mail import AnswerMail, CancelMail, Mail, SayMail
from rxloop.protocol.messages import Message
from rxloop.testing.event_log_contract._tools import (
    SECONDS,
    Check,
    SharedCheck,
    begun,
    check,
    end,
    equal,
    raises,
    shared,
)

CHECKS: list[Check] = []
SHARED: list[SharedCheck] = []


class _Log(EventLog, Mailbox, Protocol):
    """A log with all of it; a check needs no more than it says."""


LETTERS: tuple[Mail, ...] = (
    SayMail(messages=[Message.user("Only half of it", message_id="m1")], interrupt=True),
    AnswerMail(inputs={"a": True, "b": {"city": "Zürich"}}),
    CancelMail(reason="the user left"),
)


@check(CHECKS, Mailbox)
async def letters_are_read_back_in_order(log: _Log) -> None:
    """Each run has its own, in whatever state it is."""
    await log.append("run", begun(), expected_seq=0)
    await log.append("other", [*begun("other"), end(3)], expected_seq=0)
    equal(list(await log.mail("run")), [])

    numbers = [await log.send("run", letter) for letter in LETTERS]
    await log.send("other", CancelMail())

    letters = list(zip(numbers, LETTERS, strict=True))
    equal(list(await log.mail("run")), letters)
    equal(list(await log.mail("run", after=numbers[0])), letters[1:])
    equal(list(await log.mail("run", after=numbers[2])), [])
    equal([letter for _, letter in await log.mail("other")], [CancelMail()])


@check(CHECKS, Mailbox)
async def the_numbers_of_letters_only_grow(log: _Log) -> None:
    """Over all runs of the log, since a fork takes over the events of another run."""
    for name in ("run", "other"):
        await log.append(name, begun(name), expected_seq=0)
    numbers = [await log.send(name, CancelMail()) for name in ("run", "other", "run", "run", "other")]
    equal(numbers, sorted({0, *numbers})[1:])


@check(CHECKS, Mailbox)
async def mail_for_a_run_that_is_not_there_is_refused(log: _Log) -> None:
    """Reading its mail is, too."""
    with raises(UnknownRun, "nowhere"):
        await log.send("nowhere", CancelMail())
    with raises(UnknownRun, "nowhere"):
        await log.mail("nowhere")


@check(CHECKS, Mailbox)
async def who_watches_a_run_is_told_of_its_mail(log: _Log) -> None:
    """Each of them, and nobody who watches another run, or has stopped."""
    for name in ("run", "other"):
        await log.append(name, begun(name), expected_seq=0)
    first, second, other, stopped = (_Told(log, name) for name in ("run", "run", "other", "run"))
    for _ in range(2):
        stopped.stop()
    await asyncio.sleep(0)
    before = other.times, stopped.times

    await log.send("run", CancelMail())
    await first.mail()
    await second.mail()

    await log.send("other", CancelMail())
    await other.mail()
    equal(stopped.times, before[1])
    for told in (first, second, other):
        told.stop()


@shared(SHARED, Mailbox)
async def letters_go_from_one_to_the_other(one: _Log, two: _Log) -> None:
    """Who watches is told of what is sent elsewhere; the numbers are those of one log."""
    told = _Told(one, "run")
    await one.append("run", begun(), expected_seq=0)
    numbers = list[int]()
    for letter in LETTERS:
        told.forget()
        numbers.append(await two.send("run", letter))
        await told.mail()
        equal((await one.mail("run"))[-1], (numbers[-1], letter))
    numbers.append(await one.send("run", CancelMail()))
    equal(numbers, sorted({*numbers}))
    told.stop()


class _Told:
    """Watches a run."""

    def __init__(self, log: Mailbox, task_id: str) -> None:
        self.times = 0
        self._arrived = asyncio.Event()
        self.stop = log.watch(task_id, self._tell)

    def _tell(self) -> None:
        self.times += 1
        self._arrived.set()

    def forget(self) -> None:
        """Leave out of account what was told so far."""
        self._arrived.clear()

    async def mail(self) -> None:
        """Wait until there is mail."""
        try:
            async with asyncio.timeout(SECONDS):
                await self._arrived.wait()
        except TimeoutError:
            raise AssertionError("who watches the run was not told of its mail") from None
