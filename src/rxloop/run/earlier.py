"""The earlier runs of a conversation, which come first: one watch for all runs of this process that wait for them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from math import inf

from rxloop.errors import UnknownRun
from rxloop.pipeline.logs import EventLog, Mailbox
from rxloop.pipeline.values import RunRecord
from rxloop.protocol.mail import SayMail
from rxloop.run.inputs import WAITING, lets_go
from rxloop.run.letters import Taken, take
from rxloop.run.rest import is_at_rest
from rxloop.run.taking import RETRY
from rxloop.state.conversation import read_log
from rxloop.state.fold import fold_all
from rxloop.state.run_state import RunState

_PAGE = 10
"""Runs of a conversation that are listed at once."""


async def earlier_run(event_log: EventLog, context_id: str, task_id: str) -> RunRecord | None:
    """The first run of the conversation before this one that is not at rest."""
    after: str | None = None
    while True:
        # The first few tell, however many wait in the conversation.
        page = await read_log(event_log.runs, context_id=context_id, unfinished=True, after=after, limit=_PAGE)
        for record in page:
            if record.task_id == task_id:
                return None
            if await _comes_first(event_log, record):
                return record
        if len(page) < _PAGE:
            return None
        after = page[-1].task_id


async def answered_run(event_log: EventLog, context_id: str, task_id: str, own: RunState | None) -> RunRecord | None:
    """Let the questions before a run go that is about to begin, unless one of them has got its answer.

    The letters of a run have one order. So either the answer is there before the word that its question is let go, or
    whoever answers finds that word before his letter, and is told that he is too late.

    Args:
        event_log: Holds them.
        context_id: The conversation.
        task_id: The run, which has the turn.
        own: Where the run stands; None if the log gets it only when it begins.

    Returns:
        The run that has got its answer, and with which nobody has gone on yet.
    """
    if not isinstance(event_log, Mailbox):
        return None
    record = await _last_begun(event_log, context_id, None if own is None else task_id)
    if record is None or record.state not in WAITING:
        return None
    state = fold_all(await read_log(event_log.read, record.task_id))

    async def taken(run: str, state: RunState, before: float = inf) -> Taken:
        letters = await read_log(event_log.mail, run, after=state.mail)
        return take(run, state, [letter for letter in letters if letter[0] < before], warn=False)

    found = await taken(record.task_id, state)
    if found.cancel is None and not found.answers and found.lets_go is None:
        if own is not None and (await taken(task_id, own)).cancel is not None:
            # It comes to its end, and does not begin.
            return None
        number = await read_log(event_log.send, record.task_id, SayMail(messages=[], lets_go=task_id))
        found = await taken(record.task_id, state, before=number)
    # A cancel is not void when a later run begins, and an answer may be.
    rests = not found.answers or await is_at_rest(event_log, context_id, record.task_id, state)
    return None if rests else record


async def _last_begun(event_log: EventLog, context_id: str, before: str | None) -> RunRecord | None:
    """The last run of the conversation, or before one of it, that was begun: it has let go what those before it ask."""
    # It is the newest one, as a rule, unless many wait.
    limit = 1
    while True:
        page = await read_log(event_log.runs, context_id=context_id, newest_first=True, after=before, limit=limit)
        last = next((record for record in page if lets_go(record.state, record.seq)), None)
        if last is not None or len(page) < limit:
            return last
        before, limit = page[-1].task_id, min(2 * limit, _PAGE)


async def _comes_first(event_log: EventLog, record: RunRecord) -> bool:
    """Whether a run has to come to rest before a later one of its conversation begins."""
    if record.state not in WAITING:
        return record.state in ("submitted", "working")
    letters = await read_log(event_log.mail, record.task_id) if isinstance(event_log, Mailbox) else ()
    if all(isinstance(letter, SayMail) for _, letter in letters):
        # Most of them nobody has answered, however long ago they asked.
        return False
    state = fold_all(await read_log(event_log.read, record.task_id))
    return not await is_at_rest(event_log, record.context_id, record.task_id, state)


async def over_or_later(event_log: EventLog, task_id: str, after_seq: int) -> None:
    """Wait until the attempt of a run that goes on elsewhere is over, for half a second at most."""
    grown = False
    # One that is over may be removed meanwhile.
    with suppress(TimeoutError, UnknownRun):
        async with asyncio.timeout(RETRY):
            async for _ in event_log.follow(task_id, after_seq=after_seq):
                grown = True
            if not grown:
                await asyncio.sleep(RETRY)


async def until_moved(event_log: EventLog, context_id: str, task_id: str, seq: int) -> None:
    """Wait until no earlier run of the conversation comes first any more, or somebody has moved this one.

    Args:
        event_log: Holds them.
        context_id: The conversation.
        task_id: The run.
        seq: Its last event.

    Raises:
        EventLogError: The log cannot be read.
    """
    key = asyncio.get_running_loop(), id(event_log), context_id
    watch = _WATCHES.get(key) or _Watch(event_log, context_id, key)
    await watch.wait(task_id, seq)


_Key = tuple[asyncio.AbstractEventLoop, int, str]
_WATCHES: dict[_Key, _Watch] = {}


class _Watch:
    """Looks at one conversation of a log twice a second, for all who wait there in one event loop."""

    def __init__(self, event_log: EventLog, context_id: str, key: _Key) -> None:
        self._log, self._context_id, self._key = event_log, context_id, key
        self._waiting: dict[asyncio.Future[None], tuple[str, int]] = {}
        """Who waits, each with its run and the last event of that."""
        self._looking = key[0].create_task(self._look(), name=f"rxloop-queue-{context_id}")
        _WATCHES[key] = self

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
                    await over_or_later(self._log, first.task_id, first.seq)
        except Exception as error:
            self._close()
            for place in self._waiting:
                if not place.done():
                    place.set_exception(error)

    async def _call_up(self) -> RunRecord | None:
        """Wake those who need not wait any more; give the run that comes first."""
        first: RunRecord | None = None
        behind: dict[str, int] = {}
        for record in await read_log(self._log.runs, context_id=self._context_id, unfinished=True):
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
        if _WATCHES.get(self._key) is self:
            del _WATCHES[self._key]
