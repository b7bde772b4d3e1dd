"""Notes of an owner, updated incrementally from the owner's runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from typing_extensions import Unpack

from rxloop.errors import EventLogError, UnknownRun
from rxloop.memory.index import NoteIndex
from rxloop.memory.notes import REFLECTION, START, Note, NoteFold, removes
from rxloop.memory.periods import find_period
from rxloop.memory.tool_history import RunCalls, drop_old_calls
from rxloop.memory.vectors import NoteVectors, fuse
from rxloop.memory.words import find_stem
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import RunQuery, RunRecord
from rxloop.protocol.events import WAITING, Event, MemoryForgottenEvent, State
from rxloop.protocol.visibility import IMPORTED_RUN

if TYPE_CHECKING:
    from rxloop.context.compressors import Embedder

log = logging.getLogger("rxloop")

_PERIOD = 0.5
"""Score bonus for notes within the period mentioned by the question."""

_FIRST_PAGE, _PAGE = 10, 100
"""Number of runs read from the list of runs at once: first, and if all of them are new."""

_ACTIVE: tuple[State, ...] = ("submitted", "working", *WAITING)
"""States of runs that may publish events."""

_MAX_STOPPED = 20
"""Maximum number of failed and canceled runs checked for new events, newest first."""

_CONCURRENT_READS = 20
"""Maximum number of concurrent reads."""

_MAX_CALLS = 20_000
"""Number of tool calls that are kept in memory. Lessons from more calls would block the event loop."""

_CHECK_INTERVAL, _CHECK_SHARE = 60.0, 0.02
"""Minimum number of seconds between searches for deleted runs, and their maximum share of the time."""


@dataclass(slots=True)
class _Run:
    fold: NoteFold
    context_id: str
    seq: int = 0
    """Last event in the fold."""
    note_ids: set[str] = field(default_factory=set[str])
    """Remaining notes of the run."""
    calls: RunCalls = field(default_factory=RunCalls)


class OwnerNotes:
    """Incremental fold over all runs of an owner."""

    def __init__(self, log: EventLog, owner: str, embed: Embedder | None) -> None:
        """Create an empty fold. The empty owner has the runs without an owner."""
        self._vectors = None if embed is None else NoteVectors(embed)
        self.runs: dict[str, _Run] = {}
        self._log, self.owner = log, owner
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
        """Locks by event loop, because programs may use a memory in one event loop after another."""
        self._open: set[str] = set()
        """Ids of runs that can publish further events."""
        self._foreign: dict[str, set[str]] = {}
        """Ids of runs containing foreign text, by conversation."""
        self.notes: dict[str, Note] = {}
        """Notes by id, including outdated ones."""
        self._numbers: dict[str, int] = {}
        """Numbers in the index by note id."""
        self._ids: dict[int, str] = {}
        self._replacements: dict[str, list[Note]] = {}
        """Replacements by the id of the outdated note."""
        self.removals: list[tuple[str, MemoryForgottenEvent]] = []
        self._index = NoteIndex()
        self._derived: dict[str, Note] = {}
        """Notes with sources in other runs, by note id."""
        self._has_changed = False
        """True if the sources of these notes and the reflections must be checked again."""
        self._obsolete: set[str] = set()
        """Runs to delete, because they contain notes derived from deleted runs."""
        self._call_count = 0
        """Number of tool calls in memory."""
        self.newest = 0
        """Time of the newest event in milliseconds."""
        self._accepted: set[str] = set()
        """Ids of completed reflections whose notes count."""
        self.summarised: set[str] = set()
        """Ids of the notes that these reflections have summarised."""
        self._next_check = monotonic() + _CHECK_INTERVAL

    async def refresh(self) -> None:
        """Add the new events of the owner's runs."""
        async with self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            new = await self._find_new_runs()
            # Runs of a conversation are read in order, because foreign text in a run affects later ones.
            records = [*await self._find_continued_runs(), *reversed(new)]
            for start in range(0, len(records), _CONCURRENT_READS):
                page = records[start : start + _CONCURRENT_READS]
                parts = await asyncio.gather(*(self._read(record) for record in page))
                for record, events in zip(page, parts, strict=True):
                    self._add_events(record, events)
                if self._call_count > 1.25 * _MAX_CALLS:
                    runs = reversed(self.runs.values())
                    self._call_count = drop_old_calls((run.calls for run in runs), _MAX_CALLS)
            await self._check_sources()
        if monotonic() >= self._next_check:
            await self.drop_deleted()

    async def drop_deleted(self, task_ids: Collection[str] | None = None) -> bool:
        """Remove the notes and tool calls of deleted runs. Return True if there are any.

        Args:
            task_ids: Runs that are checked. The default is all runs of the owner.
        """
        started = monotonic()
        if task_ids is None:
            # Other tasks may add new runs during the query.
            known = [*self.runs]
            existing = {record.task_id for record in await self._list()}
            deleted = [task_id for task_id in known if task_id not in existing]
            self._next_check = monotonic() + max(_CHECK_INTERVAL, (monotonic() - started) / _CHECK_SHARE)
        else:
            exists = await asyncio.gather(*map(self._exists, task_ids))
            deleted = [task_id for task_id, each in zip(task_ids, exists, strict=True) if not each]
        for task_id in deleted:
            self.drop_run(task_id)
        await self._check_sources()
        return bool(deleted)

    async def _exists(self, task_id: str) -> bool:
        try:
            await read_log(self._log.get_record, task_id)
        except UnknownRun:
            return False
        return True

    async def _check_sources(self) -> None:
        """Remove notes derived from deleted runs, and delete the runs that contain only such notes."""
        while self._has_changed or self._obsolete:
            self._has_changed = False
            self._accept_reflections()
            for note in [each for each in self._derived.values() if not each.runs <= self.runs.keys()]:
                run = self.runs[note.task_id]
                self._remove(note)
                if run.fold.is_reflection or (run.fold.is_own and not run.note_ids):
                    self._obsolete.add(note.task_id)
            if not self._obsolete:
                return
            task_id = self._obsolete.pop()
            try:
                await self._log.delete(task_id)
            except UnknownRun:
                pass
            except EventLogError as error:
                # The next process detects the missing source again and retries.
                log.warning("Failed to delete the run %s with notes about a deleted run: %s", task_id, error)
                continue
            self.drop_run(task_id)

    async def _list(self, **query: Unpack[RunQuery]) -> list[RunRecord]:
        if self.owner or self._log.accepts_empty_owner:
            query["owner"] = self.owner
        else:
            # Other owners' runs would fill the page.
            query.pop("limit", None)
        records = await read_log(self._log.list_runs, **query)
        return [record for record in records if (record.owner or "") == self.owner]

    async def _find_new_runs(self) -> list[RunRecord]:
        """Return the records of unknown runs, newest first."""
        found: dict[str, RunRecord] = {}
        limit, after = _FIRST_PAGE, None
        while True:
            try:
                page = await self._list(newest_first=True, limit=limit, after=after)
            except UnknownRun:
                # The run was deleted between two pages.
                limit, after = _FIRST_PAGE, None
                continue
            new = [record for record in page if record.task_id not in self.runs]
            found.update((record.task_id, record) for record in new)
            # Concurrent transactions may become visible in a different order. So do not stop at the first known run.
            if not new:
                return [*found.values()]
            limit, after = _PAGE, page[-1].task_id

    async def _find_continued_runs(self) -> list[RunRecord]:
        """Return the records of known runs with new events."""
        if not self._open:
            return []
        records = {record.task_id: record for record in await self._list(states=_ACTIVE)}
        # Failed and canceled runs may have been resumed and completed since.
        stopped = self._open - records.keys()
        for task_id in [*islice((each for each in reversed(self.runs) if each in stopped), _MAX_STOPPED)]:
            try:
                records[task_id] = await read_log(self._log.get_record, task_id)
            except UnknownRun:
                self.drop_run(task_id)
        known = ((record, self.runs.get(record.task_id)) for record in records.values())
        return [record for record, run in known if run is not None and record.seq > run.seq]

    async def _read(self, record: RunRecord) -> Sequence[Event] | None:
        """Return the new events of a run, or None if it was deleted."""
        if IMPORTED_RUN in record.metadata:
            return []
        run = self.runs.get(record.task_id)
        try:
            return await read_log(self._log.read, record.task_id, after_seq=0 if run is None else run.seq)
        except UnknownRun:
            return None

    def _add_events(self, record: RunRecord, events: Sequence[Event] | None) -> None:
        task_id, context_id = record.task_id, record.context_id
        if events is None:
            self.drop_run(task_id)
            return
        run = self.runs.get(task_id)
        if events and events[0].seq > (1 if run is None else run.seq + 1):
            # The run was deleted during the read.
            return
        if run is None:
            run = self.runs[task_id] = _Run(NoteFold(has_foreign_text=context_id in self._foreign), context_id)
        if IMPORTED_RUN in record.metadata:
            run.fold.has_foreign_text, run.seq = True, record.seq
        run.fold.add(events)
        self._call_count -= len(run.calls.calls)
        run.calls.add(events)
        self._call_count += len(run.calls.calls)
        if events:
            run.seq, self.newest = events[-1].seq, max(self.newest, events[-1].timestamp)
        if run.fold.has_foreign_text:
            self._foreign.setdefault(context_id, set()).add(task_id)
        is_over = run.seq >= record.seq and record.is_over
        (self._open.discard if is_over else self._open.add)(task_id)
        if record.agent_name == REFLECTION and run.seq <= START:
            # The next event shows whether the prompt is part of a conversation.
            return
        for note in run.fold.notes:
            self._add(note)
        self._has_changed |= run.fold.is_reflection
        for removal in run.fold.removals:
            self.removals.append((task_id, removal))
            for note in self.find_removed(removal):
                self._remove(note)
        run.fold.notes.clear()
        run.fold.removals.clear()

    def _accept_reflections(self) -> None:
        """Determine the reflections whose notes count.

        Notes of unfinished reflections do not count. If processes have summarised the same messages, only the notes of
        the first completed reflection count.
        """
        reflections = [run for run in self.runs.values() if run.fold.is_reflection and run.fold.completed]
        self._accepted, self.summarised = set(), set()
        for run in sorted(reflections, key=lambda run: (run.fold.completed, run.fold.task_id)):
            if run.fold.reflected and self.summarised.isdisjoint(run.fold.reflected):
                self._accepted.add(run.fold.task_id)
                self.summarised.update(run.fold.reflected)

    def _add(self, note: Note) -> None:
        if note.note_id in self.notes or any(removes(removal, note) for _, removal in self.removals):
            return
        self.notes[note.note_id] = note
        self.runs[note.task_id].note_ids.add(note.note_id)
        number = self._index.add(note.text, conversation=note.context_id, author=note.author)
        self._numbers[note.note_id], self._ids[number] = number, note.note_id
        if note.replaces is not None:
            self._replacements.setdefault(note.replaces, []).append(note)
        if len(note.runs) > 1:
            self._derived[note.note_id], self._has_changed = note, True

    def _remove(self, note: Note) -> None:
        del self.notes[note.note_id]
        number = self._numbers.pop(note.note_id)
        del self._ids[number]
        self._index.remove(number)
        if self._vectors is not None:
            self._vectors.discard(note.note_id)
        self.runs[note.task_id].note_ids.discard(note.note_id)
        if note.replaces is not None:
            self._replacements[note.replaces].remove(note)
            if not self._replacements[note.replaces]:
                del self._replacements[note.replaces]
        self._derived.pop(note.note_id, None)

    def drop_run(self, task_id: str) -> None:
        """Remove a deleted run with its notes. Removals in it no longer apply to notes that are added later."""
        # The stem cache may contain words of deleted notes.
        find_stem.cache_clear()
        run = self.runs.get(task_id)
        if run is None:
            return
        for note_id in [*run.note_ids]:
            self._remove(self.notes[note_id])
        self._has_changed = True
        self._call_count -= len(run.calls.calls)
        self.removals = [each for each in self.removals if each[0] != task_id]
        self._open.discard(task_id)
        runs = self._foreign.get(run.context_id, set())
        runs.discard(task_id)
        if not runs:
            self._foreign.pop(run.context_id, None)
        del self.runs[task_id]

    def find_derived(self, source: str) -> list[Note]:
        """Return the notes derived from the event with this cursor."""
        return [note for note in self.notes.values() if source in note.sources]

    def find_outdated(self, note_id: str) -> list[str]:
        """Return the ids of the notes that a note replaces directly or indirectly."""
        found: list[str] = []
        note = self.notes.get(note_id)
        while note is not None and note.replaces is not None and note.replaces not in found:
            old = self.notes.get(note.replaces)
            if old is None or not self._replaces(note, old):
                break
            found.append(old.note_id)
            note = old
        return found

    @property
    def removed_before(self) -> int:
        """Time in milliseconds before which all notes were removed, or 0."""
        return max((removal.before or 0 for _, removal in self.removals), default=0)

    def removes_calls(self, removal: MemoryForgottenEvent) -> bool:
        """Return True if a removal matches tool calls, of which lessons would remain."""
        since, until = self.removed_before, removal.before or 0
        runs = (run.calls for run in self.runs.values() if run.calls.calls)
        return any(calls.task_id == removal.run_id or since <= calls.created < until for calls in runs)

    def find_removed(self, removal: MemoryForgottenEvent) -> list[Note]:
        """Return the notes matched by a removal."""
        return [note for note in self.notes.values() if removes(removal, note)]

    def list_notes(self, until: int | None = None) -> list[Note]:
        """Return the notes that are current, or were current at a time in milliseconds, oldest first."""
        notes = [note for note in self.notes.values() if self._is_current(note, until)]
        return sorted(notes, key=lambda note: note.created)

    async def search(
        self, question: str, now: datetime, *, limit: int, tokens: int | None, exclude_context: str | None
    ) -> list[Note]:
        """Return the current notes that best match a question, as in `Memory.search`."""
        found: list[Note] = []
        remaining = tokens
        similar = [] if self._vectors is None else await self._vectors.search(question, self.notes)
        ranked = self._rank(question, now)
        for note in fuse(ranked, similar) if similar else ranked:
            if note.context_id == exclude_context or not self._is_current(note, None):
                continue
            if remaining is not None:
                if note.tokens > remaining:
                    continue
                remaining -= note.tokens
            found.append(note)
            if len(found) == limit:
                break
        return found

    def _rank(self, question: str, now: datetime) -> list[Note]:
        """Return all matching notes, best first. Notes of the time that the question mentions come earlier."""
        matches = [(self.notes[self._ids[number]], score) for number, score in self._index.search(question)]
        period = find_period(question, now)
        if period is not None:
            start, end = (round(each.timestamp() * 1000) for each in period)
            matches = [(note, score * (1 + _PERIOD * (start <= note.created < end))) for note, score in matches]
            matches.sort(key=lambda match: -match[1])
        return [note for note, _ in matches]

    def _is_current(self, note: Note, until: int | None) -> bool:
        if not self._counts(note) or (until is not None and note.created > until):
            return False
        return not any(
            self._replaces(new, note) and (until is None or new.created <= until)
            for new in self._replacements.get(note.note_id, ())
        )

    def _counts(self, note: Note) -> bool:
        return note.task_id in self._accepted or not self.runs[note.task_id].fold.is_reflection

    def _replaces(self, new: Note, old: Note) -> bool:
        return new.may_replace(old) and self._counts(new)
