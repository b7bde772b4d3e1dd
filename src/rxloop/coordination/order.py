"""Order of the runs of a conversation, and the rule for idle runs."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from rxloop.coordination.answers import check_not_dropped, check_waiting
from rxloop.coordination.inbox import AppliedCommands, apply_commands
from rxloop.errors import InvalidInput, UnknownRun
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import RunRecord, Snapshot
from rxloop.protocol.commands import MessageCommand
from rxloop.protocol.events import WAITING

RETRY = 0.5
"""Seconds between two attempts to acquire a lease that another process holds."""

_PAGE = 10
"""Runs of a conversation that are listed at once."""


def is_idle(snapshot: Snapshot, *, asks: bool = False) -> bool:
    """Whether nothing is to be done for a run: it is over, was cancelled, or waits for an answer that nobody has given.

    Args:
        snapshot: The run.
        asks: Whether its questions are answered where it goes on.
    """
    state = snapshot.state
    if state.finished or state.state == "canceled":
        return True
    if state.state not in WAITING:
        return False
    taken = apply_commands(snapshot.task_id, state, snapshot.new_commands, warn=False)
    try:
        check_can_continue(snapshot, taken, asks=asks)
    except InvalidInput:
        return True
    return False


def check_can_continue(snapshot: Snapshot, taken: AppliedCommands, *, asks: bool, answered: bool = False) -> None:
    """See that a run which is not over can go on, or come to its end, now.

    Args:
        snapshot: The run.
        taken: What its next attempt takes of its mail.
        asks: Whether its questions are answered where it goes on.
        answered: Whether its next attempt brings answers of its own.

    Raises:
        InvalidInput: It waits for an answer that nobody has given, or a later run has let its question go.
    """
    if taken.cancel is not None:
        # That needs no answer, and takes nothing from what came later.
        return
    if answered or snapshot.state.state in WAITING:
        check_not_dropped(snapshot.task_id, snapshot.state, snapshot.later)
    if not (answered or asks or taken.answers):
        check_waiting(snapshot.task_id, snapshot.state)


async def find_blocking(event_log: EventLog, context_id: str, task_id: str) -> RunRecord | None:
    """The first run of the conversation before this one that is not at rest."""
    after: str | None = None
    while True:
        # The first few tell, however many wait in the conversation.
        page = await read_log(event_log.list_runs, context_id=context_id, unfinished=True, after=after, limit=_PAGE)
        for record in page:
            if record.task_id == task_id:
                return None
            if await _comes_first(event_log, record):
                return record
        if len(page) < _PAGE:
            return None
        after = page[-1].task_id


async def drop_questions(event_log: EventLog, record: RunRecord, task_id: str) -> RunRecord | None:
    """Let the questions of a run go before a later one begins, unless one of them has got its answer.

    The commands of a run have one order. So either the answer is there before the word that its question is let go, or
    whoever answers finds that word before his command, and is told that he is too late.

    Args:
        event_log: Holds them.
        record: The run that asks.
        task_id: The later run, which has the turn.

    Returns:
        The run that has got its answer, and with which nobody has gone on yet.
    """
    snapshot = await read_log(event_log.snapshot, record.task_id)
    state = snapshot.state
    found = apply_commands(record.task_id, state, snapshot.new_commands, warn=False)
    if found.cancel is None and not found.answers and found.dropped_by is None:
        number = await read_log(
            event_log.send_command, record.task_id, MessageCommand(messages=[], superseding_task_id=task_id)
        )
        snapshot = await read_log(event_log.snapshot, record.task_id, since=snapshot)
        earlier = [command for command in snapshot.commands if state.last_command < command[0] < number]
        found = apply_commands(record.task_id, state, earlier, warn=False)
    # A cancel is not void when a later run begins, and an answer may be.
    return None if not found.answers or is_idle(snapshot) else record


async def is_dropped(event_log: EventLog, record: RunRecord) -> bool:
    """Tell whether a run waits for answers that it cannot get, because a later run of its conversation dropped it.

    A later run ends such a run by an event. Logs of earlier versions lack that event, and a process may have died
    between its command and the event.
    """
    if record.state not in WAITING:
        return False
    snapshot = await read_log(event_log.snapshot, record.task_id)
    if snapshot.later is not None:
        return True
    state, left = snapshot.state, snapshot.new_commands
    if state.state not in WAITING or apply_commands(record.task_id, state, left, warn=False).dropped_by is None:
        return False
    # The event follows the command in a moment, if the process is alive.
    await wait_for_end(event_log, record.task_id, state.seq)
    return (await read_log(event_log.get_record, record.task_id)).seq == state.seq


async def _comes_first(event_log: EventLog, record: RunRecord) -> bool:
    """Whether a run has to come to rest before a later one of its conversation begins."""
    if record.state not in WAITING:
        return record.state in ("submitted", "working")
    commands = await read_log(event_log.read_commands, record.task_id)
    if all(isinstance(command, MessageCommand) for _, command in commands):
        # Most of them nobody has answered, however long ago they asked.
        return False
    return not is_idle(await read_log(event_log.snapshot, record.task_id))


async def wait_for_end(event_log: EventLog, task_id: str, after_seq: int) -> None:
    """Wait until the attempt of a run that goes on elsewhere is over, for half a second at most."""
    grown = False
    # One that is over may be removed meanwhile.
    with suppress(TimeoutError, UnknownRun):
        async with asyncio.timeout(RETRY):
            async for _ in event_log.follow(task_id, after_seq=after_seq):
                grown = True
            if not grown:
                await asyncio.sleep(RETRY)


async def wait_until_first(event_log: EventLog, context_id: str, task_id: str, seq: int) -> None:
    """Wait until no earlier run of the conversation comes first any more, or somebody has moved this one.

    Args:
        event_log: Holds them.
        context_id: The conversation.
        task_id: The run.
        seq: Its last event.

    Raises:
        EventLogError: The log cannot be read.
    """
    key = asyncio.get_running_loop(), context_id
    watches = event_log.local.get(OrderWatches)
    watch = watches.by_key.get(key) or _Watch(event_log, context_id, key, watches)
    await watch.wait(task_id, seq)


_Key = tuple[asyncio.AbstractEventLoop, str]


class OrderWatches:
    """Watches of a log object, one for each event loop and conversation in which runs wait."""

    def __init__(self) -> None:
        self.by_key: dict[_Key, _Watch] = {}


class _Watch:
    """Looks at one conversation of a log twice a second, for all who wait there in one event loop."""

    def __init__(self, event_log: EventLog, context_id: str, key: _Key, watches: OrderWatches) -> None:
        self._log, self._context_id, self._key, self._watches = event_log, context_id, key, watches.by_key
        self._waiting: dict[asyncio.Future[None], tuple[str, int]] = {}
        """Who waits, each with its run and the last event of that."""
        self._looking = key[0].create_task(self._look(), name=f"rxloop-queue-{context_id}")
        self._watches[key] = self

    async def wait(self, task_id: str, seq: int) -> None:
        place = self._key[0].create_future()
        self._waiting[place] = task_id, seq
        try:
            await place
        finally:
            del self._waiting[place]
            if not self._waiting:
                self._close()
                self._looking.cancel()

    async def _look(self) -> None:
        try:
            while True:
                first = await self._call_up()
                if first is None:
                    await asyncio.sleep(RETRY)
                else:
                    await wait_for_end(self._log, first.task_id, first.seq)
        except Exception as error:
            self._close()
            for place in self._waiting:
                if not place.done():
                    place.set_exception(error)

    async def _call_up(self) -> RunRecord | None:
        """Wake those who need not wait any more; give the run that comes first."""
        first: RunRecord | None = None
        behind: dict[str, int] = {}
        for record in await read_log(self._log.list_runs, context_id=self._context_id, unfinished=True):
            if first is not None:
                behind[record.task_id] = record.seq
            elif await _comes_first(self._log, record):
                first = record
        for place, (task_id, seq) in self._waiting.items():
            # It comes first, or is over, or somebody has begun or ended it.
            if behind.get(task_id) != seq and not place.done():
                place.set_result(None)
        return first

    def _close(self) -> None:
        """Take nobody more."""
        if self._watches.get(self._key) is self:
            del self._watches[self._key]
