"""Checks for conversation leases and commands."""

from __future__ import annotations

import asyncio
import time

from rxloop.errors import UnknownRun
from rxloop.pipeline.event_log import EventLog
from rxloop.protocol.commands import AnswerCommand, CancelCommand, Command, MessageCommand
from rxloop.protocol.messages import Message
from rxloop.testing.event_log_contract.toolkit import (
    ENDS,
    SECONDS,
    Check,
    SharedCheck,
    begun,
    check,
    end,
    equal,
    ids,
    note,
    raises,
    shared,
    task,
)

CHECKS: list[Check] = []

SHARED: list[SharedCheck] = []


@check(CHECKS)
async def a_conversation_has_one_turn(log: EventLog) -> None:
    """A held lease is refused to all runs, including the current holder."""
    equal(await log.acquire_lease("c", "first", _never), True)
    equal([await log.acquire_lease("c", run, _never) for run in ("first", "second")], [False, False])
    equal(await log.acquire_lease("other", "second", _never), True)
    equal([await log.has_lease("c", run) for run in ("first", "second")], [True, False])

    await log.release_lease("c", "first")
    equal(await log.has_lease("c", "first"), False)
    equal(await log.acquire_lease("c", "second", _never), True)
    await _give_all_back(log, c="second", other="second")


@check(CHECKS)
async def a_turn_is_given_back_by_the_run_that_has_it(log: EventLog) -> None:
    """Only the holder can release a lease. Releasing it twice is allowed."""
    await log.release_lease("c", "first")
    equal(await log.acquire_lease("c", "first", _never), True)

    await log.release_lease("c", "second")
    equal(await log.acquire_lease("c", "second", _never), False)

    for _ in range(2):
        await log.release_lease("c", "first")
    equal(await log.acquire_lease("c", "second", _never), True)
    await _give_all_back(log, c="second")


@check(CHECKS)
async def the_run_that_has_the_turn_is_written_and_so_is_one_for_which_nobody_has_it(log: EventLog) -> None:
    """Leases only exclude other owners of the same run."""
    equal(await log.acquire_lease("c", "run", _never), True)
    await log.append("run", begun("run", context_id="c"), expected_seq=0, writer="mine")
    await log.append("other", begun("other", context_id="c"), expected_seq=0)
    await log.append("run", [note(3)], expected_seq=2, writer="mine")
    equal([record.seq for record in await log.list_runs()], [3, 2])
    await _give_all_back(log, c="run")


@check(CHECKS)
async def an_orphan_is_under_way_and_has_no_turn(log: EventLog) -> None:
    """Leases held by other runs in the conversation are irrelevant, and idle runs are not orphaned."""
    for name in ("a", "b", "c"):
        await log.append(name, begun(name, context_id=name), expected_seq=0)
    for state in ENDS:
        await log.append(state, [*begun(state), end(3, state)], expected_seq=0)
    equal(ids(await log.list_orphaned()), ["a", "b", "c"])

    equal([await log.acquire_lease("a", "a", _never), await log.acquire_lease("c", "later", _never)], [True, True])
    equal(ids(await log.list_orphaned()), ["b", "c"])

    await log.release_lease("a", "a")
    equal(ids(await log.list_orphaned()), ["a", "b", "c"])
    await _give_all_back(log, c="later")


@check(CHECKS)
async def a_run_that_waits_is_an_orphan_once_it_has_an_answer(log: EventLog) -> None:
    """The run is orphaned until it has applied the answer. Messages are delivered together with the answer."""
    await log.append("run", [*begun("run"), end(3, "input-required")], expected_seq=0)
    await log.append("over", [*begun("over"), end(3, "completed")], expected_seq=0)
    await log.send_command("run", MessageCommand(messages=[Message(role="user", content="Hello?")]))
    equal(ids(await log.list_orphaned()), [])

    number = await log.send_command("run", AnswerCommand(inputs={"1": True}))
    await log.send_command("over", AnswerCommand(inputs={"1": True}))
    equal(ids(await log.list_orphaned()), ["run"])

    inside = {"parent_task_id": "run", "task_id": "child", "metadata": {"mail_id": number}}
    await log.append("run", [note(4).model_copy(update=inside), end(5, "input-required")], expected_seq=3)
    equal(ids(await log.list_orphaned()), ["run"])

    taken = note(6).model_copy(update={"metadata": {"mail_id": number}})
    await log.append("run", [taken, end(7, "input-required")], expected_seq=5)
    equal(ids(await log.list_orphaned()), [])


@check(CHECKS)
async def a_submitted_run_is_an_orphan_after_a_while(log: EventLog) -> None:
    """Notified workers have priority for a short time. The submitter's clock is ignored."""
    now = round(time.time() * 1000)
    for name, hours in (("ahead", 1), ("behind", -1), ("begins", -1)):
        await log.append(name, [task(timestamp=now + hours * 3_600_000, context_id=name)], expected_seq=0)
    equal(await log.acquire_lease("begins", "begins", _never), True)

    equal(ids(await log.list_orphaned()), [])
    equal(ids(await log.list_orphaned(submitted_before=0)), ["ahead", "behind"])
    await _give_all_back(log, begins="begins")


@check(CHECKS)
async def no_more_submitted_runs_are_listed_than_are_asked_for(log: EventLog) -> None:
    """The limit does not apply to started runs. Submitted runs are listed after the given run."""
    await log.append("first", begun("first", context_id="first"), expected_seq=0)
    waiting = ["a", "b", "c"]
    for name in waiting:
        await log.append(name, [task(context_id=name)], expected_seq=0)
    await log.append("last", begun("last", context_id="last"), expected_seq=0)

    equal(ids(await log.list_orphaned(submitted_before=0, submitted_limit=0)), ["first", "last"])
    equal(ids(await log.list_orphaned(submitted_before=0, submitted_limit=3)), ["first", *waiting, "last"])
    for after, listed in ((None, ["a", "b"]), ("a", ["b", "c"]), ("b", ["c"]), ("c", []), ("deleted", ["a", "b"])):
        found = await log.list_orphaned(submitted_before=0, submitted_limit=2, submitted_after=after)
        equal(ids(found), ["first", *listed, "last"])


@shared(SHARED)
async def a_turn_is_seen_from_elsewhere(one: EventLog, two: EventLog) -> None:
    """Leases are exclusive across log objects, and leased runs are not orphaned."""
    equal(await one.acquire_lease("c", "run", _never), True)
    await one.append("run", begun("run", context_id="c"), expected_seq=0)
    equal([await two.acquire_lease("c", name, _never) for name in ("run", "later")], [False, False])
    equal(ids(await two.list_orphaned()), [])
    equal([await one.has_lease("c", "run"), await two.has_lease("c", "run")], [True, False])

    await two.release_lease("c", "run")
    equal(await two.acquire_lease("c", "later", _never), False)

    await one.release_lease("c", "run")
    equal(ids(await two.list_orphaned()), ["run"])
    equal(await two.acquire_lease("c", "run", _never), True)
    equal(await one.acquire_lease("c", "run", _never), False)
    await _give_all_back(two, c="run")


async def _give_all_back(log: EventLog, **turns: str) -> None:
    for context_id, task_id in turns.items():
        await log.release_lease(context_id, task_id)


def _never() -> None:
    raise AssertionError("a turn was lost that nobody could take")


LETTERS: tuple[Command, ...] = (
    MessageCommand(messages=[Message.user("Only half of it", message_id="m1")], interrupt=True),
    AnswerCommand(inputs={"a": True, "b": {"city": "Zürich"}}),
    CancelCommand(reason="the user left"),
)


@check(CHECKS)
async def letters_are_read_back_in_order(log: EventLog) -> None:
    """Each run has separate commands, regardless of its state."""
    await log.append("run", begun(), expected_seq=0)
    await log.append("other", [*begun("other"), end(3)], expected_seq=0)
    equal(list(await log.read_commands("run")), [])

    numbers = [await log.send_command("run", letter) for letter in LETTERS]
    await log.send_command("other", CancelCommand())

    letters = list(zip(numbers, LETTERS, strict=True))
    equal(list(await log.read_commands("run")), letters)
    equal(list(await log.read_commands("run", after=numbers[0])), letters[1:])
    equal(list(await log.read_commands("run", after=numbers[2])), [])
    equal([letter for _, letter in await log.read_commands("other")], [CancelCommand()])


@check(CHECKS)
async def the_numbers_of_letters_only_grow(log: EventLog) -> None:
    """Command numbers are unique in the log, because forks copy events from other runs."""
    for name in ("run", "other"):
        await log.append(name, begun(name), expected_seq=0)
    numbers = [await log.send_command(name, CancelCommand()) for name in ("run", "other", "run", "run", "other")]
    equal(numbers, sorted({0, *numbers})[1:])


@check(CHECKS)
async def mail_for_a_run_that_is_not_there_is_refused(log: EventLog) -> None:
    """Reading commands is also refused."""
    with raises(UnknownRun, "nowhere"):
        await log.send_command("nowhere", CancelCommand())
    with raises(UnknownRun, "nowhere"):
        await log.read_commands("nowhere")


@check(CHECKS)
async def who_watches_a_run_is_told_of_its_mail(log: EventLog) -> None:
    """All active watchers of a run are notified, but watchers of other runs are not."""
    for name in ("run", "other"):
        await log.append(name, begun(name), expected_seq=0)
    first, second, other, stopped = (_Told(log, name) for name in ("run", "run", "other", "run"))
    for _ in range(2):
        stopped.stop()
    await asyncio.sleep(0)
    before = other.times, stopped.times

    await log.send_command("run", CancelCommand())
    await first.mail()
    await second.mail()

    await log.send_command("other", CancelCommand())
    await other.mail()
    equal(stopped.times, before[1])
    for told in (first, second, other):
        told.stop()


@shared(SHARED)
async def letters_go_from_one_to_the_other(one: EventLog, two: EventLog) -> None:
    """Watchers are notified of commands sent elsewhere. Command numbers are shared."""
    told = _Told(one, "run")
    await one.append("run", begun(), expected_seq=0)
    numbers = list[int]()
    for letter in LETTERS:
        told.forget()
        numbers.append(await two.send_command("run", letter))
        await told.mail()
        equal((await one.read_commands("run"))[-1], (numbers[-1], letter))
    numbers.append(await one.send_command("run", CancelCommand()))
    equal(numbers, sorted({*numbers}))
    told.stop()


class _Told:
    """Command watcher for a run."""

    def __init__(self, log: EventLog, task_id: str) -> None:
        self.times = 0
        self._arrived = asyncio.Event()
        self.stop = log.watch_commands(task_id, self._tell)

    def _tell(self) -> None:
        self.times += 1
        self._arrived.set()

    def forget(self) -> None:
        """Discard previous notifications."""
        self._arrived.clear()

    async def mail(self) -> None:
        """Wait for a notification."""
        try:
            async with asyncio.timeout(SECONDS):
                await self._arrived.wait()
        except TimeoutError:
            raise AssertionError("who watches the run was not told of its mail") from None
