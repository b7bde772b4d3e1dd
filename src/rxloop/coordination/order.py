"""Order of runs within a conversation, and detection of idle runs."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from rxloop.coordination.answers import check_not_dropped, check_waiting, read_snapshot
from rxloop.coordination.inbox import AppliedCommands, apply_commands
from rxloop.errors import InvalidInput, UnknownRun
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import RunRecord, Snapshot
from rxloop.protocol.commands import MessageCommand
from rxloop.protocol.events import WAITING

RETRY = 0.5
"""Seconds to wait before retrying to acquire a lease held by another process."""

_PAGE = 10
"""Number of runs per page when listing."""


def is_idle(snapshot: Snapshot, *, asks: bool = False) -> bool:
    """Return True if there is nothing to do: the run is finished, canceled, or waits for an answer that is missing.

    Args:
        snapshot: Current snapshot of the run.
        asks: Whether the caller can answer its questions.
    """
    state = snapshot.state
    if state.finished or state.state == "canceled":
        return True
    if state.state not in WAITING:
        return False
    applied = apply_commands(snapshot.task_id, state, snapshot.new_commands, warn=False)
    try:
        check_can_continue(snapshot, applied, asks=asks)
    except InvalidInput:
        return True
    return False


def check_can_continue(snapshot: Snapshot, applied: AppliedCommands, *, asks: bool, has_inputs: bool = False) -> None:
    """Check that an unfinished run can be continued or ended now.

    Args:
        snapshot: Current snapshot of the run.
        applied: Commands its next attempt will apply.
        asks: Whether the caller can answer its questions.
        has_inputs: Whether the caller is passing answers.

    Raises:
        InvalidInput: The run is waiting for an answer, or a later run has dropped its questions.
    """
    if applied.cancel is not None:
        # Cancelling needs no answer and doesn't affect later runs.
        return
    if has_inputs or snapshot.state.state in WAITING:
        check_not_dropped(snapshot.task_id, snapshot.state, snapshot.later)
    if not (has_inputs or asks or applied.has_answers):
        check_waiting(snapshot.task_id, snapshot.state)


async def find_blocking(event_log: EventLog, conversation: str, task_id: str) -> RunRecord | None:
    """Return the first earlier run in the conversation that isn't idle, or None."""
    after: str | None = None
    while True:
        # A small page is usually enough, even in long conversations.
        page = await read_log(event_log.list_conversation, conversation, unfinished=True, after=after, limit=_PAGE)
        for record in page:
            if record.task_id == task_id:
                return None
            if await _is_blocking(event_log, record):
                return record
        if len(page) < _PAGE:
            return None
        after = page[-1].task_id


async def drop_questions(event_log: EventLog, record: RunRecord, task_id: str) -> RunRecord | None:
    """Drop a waiting run's questions before starting a later run, unless one has been answered.

    Commands are ordered. Either an answer precedes the drop, or its sender finds the drop and is told that the answer
    is late.

    Args:
        event_log: Log with both runs.
        record: Run waiting for answers.
        task_id: Id of the later run, which is holding the lease.

    Returns:
        The waiting run if it has been answered but not resumed yet, otherwise None.
    """
    snapshot = await read_snapshot(event_log, record.task_id)
    state = snapshot.state
    applied = apply_commands(record.task_id, state, snapshot.new_commands, warn=False)
    if applied.cancel is None and not applied.has_answers and applied.dropped_by is None:
        number = await read_log(
            event_log.send_command, record.task_id, MessageCommand(messages=[], superseding_task_id=task_id)
        )
        snapshot = await read_snapshot(event_log, record.task_id, since=snapshot)
        earlier = [command for command in snapshot.commands if state.last_command < command[0] < number]
        applied = apply_commands(record.task_id, state, earlier, warn=False)
    # Starting a later run can invalidate an answer, but never a cancel.
    return None if not applied.has_answers or is_idle(snapshot) else record


async def is_dropped(event_log: EventLog, record: RunRecord) -> bool:
    """Return True if the run is waiting for answers that it can't get, because a later run dropped its questions.

    Later runs normally end such a run with an event. The event may be missing if it was logged by an old version, or if
    the process died after sending the command.
    """
    if record.state not in WAITING:
        return False
    snapshot = await read_snapshot(event_log, record.task_id)
    if snapshot.later is not None:
        return True
    state, commands = snapshot.state, snapshot.new_commands
    if state.state not in WAITING or apply_commands(record.task_id, state, commands, warn=False).dropped_by is None:
        return False
    # If the process is alive, the event should follow shortly.
    await wait_for_end(event_log, record.task_id, state.seq)
    return (await read_log(event_log.get_record, record.task_id)).seq == state.seq


async def _is_blocking(event_log: EventLog, record: RunRecord) -> bool:
    """Return True if the run must become idle before any later run can start."""
    if record.state not in WAITING:
        return record.state in ("submitted", "working")
    commands = await read_log(event_log.read_commands, record.task_id)
    if all(isinstance(command, MessageCommand) for _, command in commands):
        # Most of these runs have never been answered, so avoid loading their snapshots.
        return False
    return not is_idle(await read_snapshot(event_log, record.task_id))


async def wait_for_end(event_log: EventLog, task_id: str, after_seq: int) -> None:
    """Wait up to half a second for another process to end its attempt."""
    has_events = False
    # The run may be deleted while waiting.
    with suppress(TimeoutError, UnknownRun):
        async with asyncio.timeout(RETRY):
            async for _ in event_log.follow(task_id, after_seq=after_seq):
                has_events = True
            if not has_events:
                await asyncio.sleep(RETRY)


async def wait_for_order(event_log: EventLog, conversation: str, task_id: str, seq: int) -> None:
    """Wait until no earlier run is blocking this one, or until it has new events.

    Args:
        event_log: Log with the conversation.
        conversation: Key of the conversation.
        task_id: Id of the waiting run.
        seq: Its last known event.

    Raises:
        EventLogError: Reading the log failed.
    """
    key = asyncio.get_running_loop(), conversation
    watches = event_log.local.get(OrderWatches)
    watch = watches.by_key.get(key) or _OrderWatch(event_log, conversation, key, watches)
    await watch.wait(task_id, seq)


_Key = tuple[asyncio.AbstractEventLoop, str]


class OrderWatches:
    """Watchers for a log object, one per event loop and conversation."""

    def __init__(self) -> None:
        self.by_key: dict[_Key, _OrderWatch] = {}


class _OrderWatch:
    """Task polling a conversation on behalf of all runs waiting in one event loop."""

    def __init__(self, event_log: EventLog, conversation: str, key: _Key, watches: OrderWatches) -> None:
        self._log, self._conversation, self._key, self._watches = event_log, conversation, key, watches.by_key
        self._waiting: dict[asyncio.Future[None], tuple[str, int]] = {}
        """Waiting runs with their last known events."""
        self._polling = key[0].create_task(self._poll(), name=f"rxloop-queue-{conversation}")
        self._watches[key] = self

    async def wait(self, task_id: str, seq: int) -> None:
        waiter = self._key[0].create_future()
        self._waiting[waiter] = task_id, seq
        try:
            await waiter
        finally:
            del self._waiting[waiter]
            if not self._waiting:
                self._close()
                self._polling.cancel()

    async def _poll(self) -> None:
        try:
            while True:
                blocking = await self._wake_ready()
                if blocking is None:
                    await asyncio.sleep(RETRY)
                else:
                    await wait_for_end(self._log, blocking.task_id, blocking.seq)
        except Exception as error:
            self._close()
            for waiter in self._waiting:
                if not waiter.done():
                    waiter.set_exception(error)

    async def _wake_ready(self) -> RunRecord | None:
        """Wake runs that no longer need to wait, and return the run blocking the others."""
        blocking: RunRecord | None = None
        blocked: dict[str, int] = {}
        for record in await read_log(self._log.list_conversation, self._conversation, unfinished=True):
            if blocking is not None:
                blocked[record.task_id] = record.seq
            elif await _is_blocking(self._log, record):
                blocking = record
        for waiter, (task_id, seq) in self._waiting.items():
            # It is first, has ended, or has been started or ended elsewhere.
            if blocked.get(task_id) != seq and not waiter.done():
                waiter.set_result(None)
        return blocking

    def _close(self) -> None:
        """Stop accepting waiting runs."""
        if self._watches.get(self._key) is self:
            del self._watches[self._key]
