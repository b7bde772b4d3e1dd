"""Checks for conversation leases and commands."""

from __future__ import annotations

import asyncio
import time

from rxloop.errors import UnknownRun
from rxloop.pipeline.event_log import EventLog
from rxloop.protocol.commands import AnswerCommand, CancelCommand, Command, MessageCommand
from rxloop.protocol.ids import make_conversation_key
from rxloop.protocol.messages import Message
from rxloop.testing.event_log_contract.toolkit import (
    ENDS,
    SECONDS,
    Check,
    SharedCheck,
    assert_equal,
    check,
    end,
    ids,
    note,
    raises,
    shared_check,
    start_events,
    status,
    task,
)

CHECKS: list[Check] = []

SHARED: list[SharedCheck] = []


@check(CHECKS)
async def conversation_has_one_lease(log: EventLog) -> None:
    """Check that no run can acquire a held lease, including its holder."""
    assert_equal(await log.acquire_lease("c", "first", _on_lost), True)
    assert_equal([await log.acquire_lease("c", run, _on_lost) for run in ("first", "second")], [False, False])
    assert_equal(await log.acquire_lease("other", "second", _on_lost), True)
    assert_equal([await log.has_lease("c", run) for run in ("first", "second")], [True, False])

    await log.release_lease("c", "first")
    assert_equal(await log.has_lease("c", "first"), False)
    assert_equal(await log.acquire_lease("c", "second", _on_lost), True)
    await _release_leases(log, c="second", other="second")


@check(CHECKS)
async def leases_of_owners_are_separate(log: EventLog) -> None:
    """Check that runs of different owners with one conversation id hold separate leases."""
    keys = {"first": make_conversation_key("c", "ann"), "second": make_conversation_key("c", "bob"), "third": "c"}
    for name, key in keys.items():
        assert_equal(await log.acquire_lease(key, name, _on_lost), True)
    for name, owner in (("first", "ann"), ("second", "bob"), ("third", None)):
        begin = [task(task_id=name, owner=owner, context_id="c"), status(2, "working", task_id=name, context_id="c")]
        await log.append(name, begin, expected_seq=0)
        await log.append(name, [note(3, task_id=name, context_id="c")], expected_seq=2)
    assert_equal(ids(await log.list_orphaned()), [])
    for name, key in keys.items():
        await log.release_lease(key, name)
        assert_equal(ids(await log.list_orphaned()), [*keys][: [*keys].index(name) + 1])


@check(CHECKS)
async def lease_is_released_only_by_its_holder(log: EventLog) -> None:
    """Only the holder can release a lease. Releasing it twice is allowed."""
    await log.release_lease("c", "first")
    assert_equal(await log.acquire_lease("c", "first", _on_lost), True)

    await log.release_lease("c", "second")
    assert_equal(await log.acquire_lease("c", "second", _on_lost), False)

    for _ in range(2):
        await log.release_lease("c", "first")
    assert_equal(await log.acquire_lease("c", "second", _on_lost), True)
    await _release_leases(log, c="second")


@check(CHECKS)
async def append_works_with_and_without_a_lease(log: EventLog) -> None:
    """Leases only exclude other owners of the same run."""
    assert_equal(await log.acquire_lease("c", "run", _on_lost), True)
    await log.append("run", start_events("run", context_id="c"), expected_seq=0, writer="mine")
    await log.append("other", start_events("other", context_id="c"), expected_seq=0)
    await log.append("run", [note(3)], expected_seq=2, writer="mine")
    assert_equal([record.seq for record in await log.list_runs()], [3, 2])
    await _release_leases(log, c="run")


@check(CHECKS)
async def list_orphaned_returns_active_runs_without_a_lease(log: EventLog) -> None:
    """Leases held by other runs in the conversation are irrelevant, and idle runs are not orphaned."""
    for name in ("a", "b", "c"):
        await log.append(name, start_events(name, context_id=name), expected_seq=0)
    for state in ENDS:
        await log.append(state, [*start_events(state), end(3, state)], expected_seq=0)
    assert_equal(ids(await log.list_orphaned()), ["a", "b", "c"])

    for context_id, task_id in (("a", "a"), ("c", "later")):
        assert_equal(await log.acquire_lease(context_id, task_id, _on_lost), True)
    assert_equal(ids(await log.list_orphaned()), ["b", "c"])
    names = ("a", "b", "c", *ENDS, "unknown")
    assert_equal([name for name in names if await log.is_orphaned(name)], ["b", "c"])

    await log.release_lease("a", "a")
    assert_equal(ids(await log.list_orphaned()), ["a", "b", "c"])
    assert_equal(await log.is_orphaned("a"), True)
    await _release_leases(log, c="later")


@check(CHECKS)
async def waiting_run_is_orphaned_when_it_has_an_answer(log: EventLog) -> None:
    """Send a message, which has no effect, and an answer, which takes effect until it is applied."""
    await log.append("run", [*start_events("run"), end(3, "input-required")], expected_seq=0)
    await log.append("over", [*start_events("over"), end(3, "completed")], expected_seq=0)
    await log.send_command("run", MessageCommand(messages=[Message(role="user", content="Hello?")]))
    assert_equal(ids(await log.list_orphaned()), [])

    number = await log.send_command("run", AnswerCommand(inputs={"1": True}))
    await log.send_command("over", AnswerCommand(inputs={"1": True}))
    assert_equal(ids(await log.list_orphaned()), ["run"])

    inside = {"parent_task_id": "run", "task_id": "child", "metadata": {"command_id": number}}
    await log.append("run", [note(4).model_copy(update=inside), end(5, "input-required")], expected_seq=3)
    assert_equal(ids(await log.list_orphaned()), ["run"])

    applied = note(6).model_copy(update={"metadata": {"command_id": number}})
    await log.append("run", [applied, end(7, "input-required")], expected_seq=5)
    assert_equal(ids(await log.list_orphaned()), [])


@check(CHECKS)
async def submitted_run_is_orphaned_after_a_delay(log: EventLog) -> None:
    """Notified workers have priority for a short time. The submitter's clock is ignored."""
    now = round(time.time() * 1000)
    for name, hours in (("ahead", 1), ("behind", -1), ("begins", -1)):
        await log.append(name, [task(timestamp=now + hours * 3_600_000, context_id=name)], expected_seq=0)
    assert_equal(await log.acquire_lease("begins", "begins", _on_lost), True)

    assert_equal(ids(await log.list_orphaned()), [])
    assert_equal(ids(await log.list_orphaned(submitted_before=0)), ["ahead", "behind"])
    await _release_leases(log, begins="begins")


@check(CHECKS)
async def list_orphaned_limits_submitted_runs(log: EventLog) -> None:
    """Check that the limit does not apply to started runs, and that submitted runs are listed after the given run."""
    await log.append("first", start_events("first", context_id="first"), expected_seq=0)
    waiting = ["a", "b", "c"]
    for name in waiting:
        await log.append(name, [task(context_id=name)], expected_seq=0)
    await log.append("last", start_events("last", context_id="last"), expected_seq=0)

    assert_equal(ids(await log.list_orphaned(submitted_before=0, submitted_limit=0)), ["first", "last"])
    assert_equal(ids(await log.list_orphaned(submitted_before=0, submitted_limit=3)), ["first", *waiting, "last"])
    for after, listed in ((None, ["a", "b"]), ("a", ["b", "c"]), ("b", ["c"]), ("c", []), ("deleted", ["a", "b"])):
        found = await log.list_orphaned(submitted_before=0, submitted_limit=2, submitted_after=after)
        assert_equal(ids(found), ["first", *listed, "last"])


@shared_check(SHARED)
async def logs_share_leases(one: EventLog, two: EventLog) -> None:
    """Leases are exclusive across log objects, and leased runs are not orphaned."""
    assert_equal(await one.acquire_lease("c", "run", _on_lost), True)
    await one.append("run", start_events("run", context_id="c"), expected_seq=0)
    assert_equal([await two.acquire_lease("c", name, _on_lost) for name in ("run", "later")], [False, False])
    assert_equal(ids(await two.list_orphaned()), [])
    assert_equal([await one.has_lease("c", "run"), await two.has_lease("c", "run")], [True, False])

    await two.release_lease("c", "run")
    assert_equal(await two.acquire_lease("c", "later", _on_lost), False)

    await one.release_lease("c", "run")
    assert_equal(ids(await two.list_orphaned()), ["run"])
    assert_equal(await two.acquire_lease("c", "run", _on_lost), True)
    assert_equal(await one.acquire_lease("c", "run", _on_lost), False)
    await _release_leases(two, c="run")


async def _release_leases(log: EventLog, **leases: str) -> None:
    for context_id, task_id in leases.items():
        await log.release_lease(context_id, task_id)


def _on_lost() -> None:
    raise AssertionError("a lease was lost although no other log could acquire it")


COMMANDS: tuple[Command, ...] = (
    MessageCommand(messages=[Message.user("Only half of it", message_id="m1")], interrupt=True),
    AnswerCommand(inputs={"a": True, "b": {"city": "Zürich"}}),
    CancelCommand(reason="the user left"),
)


@check(CHECKS)
async def read_commands_returns_commands_in_order(log: EventLog) -> None:
    """Each run has separate commands, regardless of its state."""
    await log.append("run", start_events(), expected_seq=0)
    await log.append("other", [*start_events("other"), end(3)], expected_seq=0)
    assert_equal(list(await log.read_commands("run")), [])

    numbers = [await log.send_command("run", command) for command in COMMANDS]
    await log.send_command("other", CancelCommand())

    commands = list(zip(numbers, COMMANDS, strict=True))
    assert_equal(list(await log.read_commands("run")), commands)
    assert_equal(list(await log.read_commands("run", after=numbers[0])), commands[1:])
    assert_equal(list(await log.read_commands("run", after=numbers[2])), [])
    assert_equal([command for _, command in await log.read_commands("other")], [CancelCommand()])


@check(CHECKS)
async def command_numbers_increase(log: EventLog) -> None:
    """Command numbers are unique in the log, because forks copy events from other runs."""
    for name in ("run", "other"):
        await log.append(name, start_events(name), expected_seq=0)
    numbers = [await log.send_command(name, CancelCommand()) for name in ("run", "other", "run", "run", "other")]
    assert_equal(numbers, sorted({0, *numbers})[1:])


@check(CHECKS)
async def commands_for_an_unknown_run_are_rejected(log: EventLog) -> None:
    """Check that sending and reading commands raises `UnknownRun`."""
    with raises(UnknownRun, "nowhere"):
        await log.send_command("nowhere", CancelCommand())
    with raises(UnknownRun, "nowhere"):
        await log.read_commands("nowhere")


@check(CHECKS)
async def watchers_are_notified_of_commands(log: EventLog) -> None:
    """All active watchers of a run are notified, but watchers of other runs are not."""
    for name in ("run", "other"):
        await log.append(name, start_events(name), expected_seq=0)
    first, second, other, stopped = (_Watcher(log, name) for name in ("run", "run", "other", "run"))
    for _ in range(2):
        stopped.stop()
    await asyncio.sleep(0)
    before = other.count, stopped.count

    await log.send_command("run", CancelCommand())
    await first.wait()
    await second.wait()

    await log.send_command("other", CancelCommand())
    await other.wait()
    assert_equal(stopped.count, before[1])
    for watcher in (first, second, other):
        watcher.stop()


@shared_check(SHARED)
async def logs_share_commands(one: EventLog, two: EventLog) -> None:
    """Watchers are notified of commands sent elsewhere. Command numbers are shared."""
    watcher = _Watcher(one, "run")
    await one.append("run", start_events(), expected_seq=0)
    numbers = list[int]()
    for command in COMMANDS:
        watcher.forget()
        numbers.append(await two.send_command("run", command))
        await watcher.wait()
        assert_equal((await one.read_commands("run"))[-1], (numbers[-1], command))
    numbers.append(await one.send_command("run", CancelCommand()))
    assert_equal(numbers, sorted({*numbers}))
    watcher.stop()


class _Watcher:
    """Command watcher for a run."""

    def __init__(self, log: EventLog, task_id: str) -> None:
        self.count = 0
        self._arrived = asyncio.Event()
        self.stop = log.watch_commands(task_id, self._notify)

    def _notify(self) -> None:
        self.count += 1
        self._arrived.set()

    def forget(self) -> None:
        """Discard previous notifications."""
        self._arrived.clear()

    async def wait(self) -> None:
        """Wait for a notification."""
        try:
            async with asyncio.timeout(SECONDS):
                await self._arrived.wait()
        except TimeoutError:
            raise AssertionError("the watcher was not notified of the command") from None
