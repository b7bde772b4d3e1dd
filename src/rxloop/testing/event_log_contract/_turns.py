"""The turns of conversations, for a log that has them."""

from __future__ import annotations

import time
from typing import Protocol

from rxloop.pipeline.logs import EventLog, Mailbox, TakesTurns
from rxloop.protocol.mail import AnswerMail, SayMail
from rxloop.protocol.messages import Message
from rxloop.testing.event_log_contract._tools import (
    ENDS,
    Check,
    SharedCheck,
    begun,
    check,
    end,
    equal,
    ids,
    note,
    shared,
    task,
)

CHECKS: list[Check] = []
SHARED: list[SharedCheck] = []


class _Log(EventLog, TakesTurns, Mailbox, Protocol):
    """A log with all of it; a check needs no more than it says."""


@check(CHECKS, TakesTurns)
async def a_conversation_has_one_turn(log: _Log) -> None:
    """Whichever run asks, and the one that has it too."""
    equal(await log.take_turn("c", "first", _never), True)
    equal([await log.take_turn("c", run, _never) for run in ("first", "second")], [False, False])
    equal(await log.take_turn("other", "second", _never), True)
    equal([await log.has_turn("c", run) for run in ("first", "second")], [True, False])

    await log.give_turn_back("c", "first")
    equal(await log.has_turn("c", "first"), False)
    equal(await log.take_turn("c", "second", _never), True)
    await _give_all_back(log, c="second", other="second")


@check(CHECKS, TakesTurns)
async def a_turn_is_given_back_by_the_run_that_has_it(log: _Log) -> None:
    """By nobody else, and as often as one likes."""
    await log.give_turn_back("c", "first")
    equal(await log.take_turn("c", "first", _never), True)

    await log.give_turn_back("c", "second")
    equal(await log.take_turn("c", "second", _never), False)

    for _ in range(2):
        await log.give_turn_back("c", "first")
    equal(await log.take_turn("c", "second", _never), True)
    await _give_all_back(log, c="second")


@check(CHECKS, TakesTurns)
async def the_run_that_has_the_turn_is_written_and_so_is_one_for_which_nobody_has_it(log: _Log) -> None:
    """A turn keeps nobody out but those who go on with its run elsewhere."""
    equal(await log.take_turn("c", "run", _never), True)
    await log.append("run", begun("run", context_id="c"), expected_seq=0, writer="mine")
    await log.append("other", begun("other", context_id="c"), expected_seq=0)
    await log.append("run", [note(3)], expected_seq=2, writer="mine")
    equal([record.seq for record in await log.runs()], [3, 2])
    await _give_all_back(log, c="run")


@check(CHECKS, TakesTurns)
async def an_orphan_is_under_way_and_has_no_turn(log: _Log) -> None:
    """The turn of another run of its conversation does not count; and what is at rest waits for nobody."""
    for name in ("a", "b", "c"):
        await log.append(name, begun(name, context_id=name), expected_seq=0)
    for state in ENDS:
        await log.append(state, [*begun(state), end(3, state)], expected_seq=0)
    equal(ids(await log.orphans()), ["a", "b", "c"])

    equal([await log.take_turn("a", "a", _never), await log.take_turn("c", "later", _never)], [True, True])
    equal(ids(await log.orphans()), ["b", "c"])

    await log.give_turn_back("a", "a")
    equal(ids(await log.orphans()), ["a", "b", "c"])
    await _give_all_back(log, c="later")


@check(CHECKS, TakesTurns, Mailbox)
async def a_run_that_waits_is_an_orphan_once_it_has_an_answer(log: _Log) -> None:
    """Until it has taken it; what is said to it waits for the answer, too."""
    await log.append("run", [*begun("run"), end(3, "input-required")], expected_seq=0)
    await log.append("over", [*begun("over"), end(3, "completed")], expected_seq=0)
    await log.send("run", SayMail(messages=[Message(role="user", content="Hello?")]))
    equal(ids(await log.orphans()), [])

    number = await log.send("run", AnswerMail(inputs={"1": True}))
    await log.send("over", AnswerMail(inputs={"1": True}))
    equal(ids(await log.orphans()), ["run"])

    inside = {"parent_task_id": "run", "task_id": "child", "metadata": {"mail_id": number}}
    await log.append("run", [note(4).model_copy(update=inside), end(5, "input-required")], expected_seq=3)
    equal(ids(await log.orphans()), ["run"])

    taken = note(6).model_copy(update={"metadata": {"mail_id": number}})
    await log.append("run", [taken, end(7, "input-required")], expected_seq=5)
    equal(ids(await log.orphans()), [])


@check(CHECKS, TakesTurns)
async def a_submitted_run_is_an_orphan_after_a_while(log: _Log) -> None:
    """Until then it is left to those who were told of it; the clock of whoever has submitted it does not count."""
    now = round(time.time() * 1000)
    for name, hours in (("ahead", 1), ("behind", -1), ("begins", -1)):
        await log.append(name, [task(timestamp=now + hours * 3_600_000, context_id=name)], expected_seq=0)
    equal(await log.take_turn("begins", "begins", _never), True)

    equal(ids(await log.orphans()), [])
    equal(ids(await log.orphans(submitted_before=0)), ["ahead", "behind"])
    await _give_all_back(log, begins="begins")


@check(CHECKS, TakesTurns)
async def no_more_submitted_runs_are_listed_than_are_asked_for(log: _Log) -> None:
    """Those that were begun are there all the same; and the others come after the last one that somebody has."""
    await log.append("first", begun("first", context_id="first"), expected_seq=0)
    waiting = ["a", "b", "c"]
    for name in waiting:
        await log.append(name, [task(context_id=name)], expected_seq=0)
    await log.append("last", begun("last", context_id="last"), expected_seq=0)

    equal(ids(await log.orphans(submitted_before=0, submitted_limit=0)), ["first", "last"])
    equal(ids(await log.orphans(submitted_before=0, submitted_limit=3)), ["first", *waiting, "last"])
    for after, listed in ((None, ["a", "b"]), ("a", ["b", "c"]), ("b", ["c"]), ("c", []), ("deleted", ["a", "b"])):
        found = await log.orphans(submitted_before=0, submitted_limit=2, submitted_after=after)
        equal(ids(found), ["first", *listed, "last"])


@shared(SHARED, TakesTurns)
async def a_turn_is_seen_from_elsewhere(one: _Log, two: _Log) -> None:
    """While it lasts, nobody gets it there, and its run is no orphan."""
    equal(await one.take_turn("c", "run", _never), True)
    await one.append("run", begun("run", context_id="c"), expected_seq=0)
    equal([await two.take_turn("c", name, _never) for name in ("run", "later")], [False, False])
    equal(ids(await two.orphans()), [])
    equal([await one.has_turn("c", "run"), await two.has_turn("c", "run")], [True, False])

    await two.give_turn_back("c", "run")
    equal(await two.take_turn("c", "later", _never), False)

    await one.give_turn_back("c", "run")
    equal(ids(await two.orphans()), ["run"])
    equal(await two.take_turn("c", "run", _never), True)
    equal(await one.take_turn("c", "run", _never), False)
    await _give_all_back(two, c="run")


async def _give_all_back(log: TakesTurns, **turns: str) -> None:
    for context_id, task_id in turns.items():
        await log.give_turn_back(context_id, task_id)


def _never() -> None:
    raise AssertionError("a turn was lost that nobody could take")
