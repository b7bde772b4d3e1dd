"""Notes of an owner, updated incrementally from the owner's runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from typing_extensions import Unpack

from rxloop.errors import EventLogError, UnknownRun
from rxloop.memory.index import NoteIndex
from rxloop.memory.notes import REFLECTION, START, Note, NoteFold, removes, removes_calls
from rxloop.memory.periods import find_period
from rxloop.memory.tool_history import RunCalls, drop_old_calls, share
from rxloop.memory.vectors import NoteVectors, fuse
from rxloop.memory.words import find_stem
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import RunQuery, RunRecord
from rxloop.protocol.events import WAITING, Event, MemoryForgottenEvent, State
from rxloop.protocol.visibility import IMPORTED_RUN
from rxloop.storage.conversation import ConversationCache

if TYPE_CHECKING:
    from rxloop.context.compressors import Embedder

log = logging.getLogger("rxloop")

_PERIOD = 0.5
"""Score bonus for notes within the period mentioned by the question."""

_PAGE = 20
"""Number of the newest runs that are listed. If all of them are new, all runs are listed."""

_ACTIVE: tuple[State, ...] = ("submitted", "working", *WAITING)
"""States of runs that may publish events."""

_MAX_STOPPED = 20
"""Maximum number of failed and canceled runs checked for new events, newest first."""

_CONCURRENT_READS = 20
"""Maximum number of concurrent reads."""

_MAX_CALLS = 20_000
"""Number of tool calls that are kept in memory. Lessons from more calls would block the event loop."""

_CHECK_INTERVAL, _CHECK_SHARE = 60.0, 0.02
"""Minimum number of seconds between listings of all runs, and their maximum share of the time."""


@dataclass(slots=True)
class _Run:
    record: RunRecord
    fold: NoteFold
    seq: int = 0
    """Last event in the fold."""
    numbers: dict[str, int] = field(default_factory=dict[str, int])
    """Numbers of the remaining notes in the index, by note id."""
    calls: RunCalls = field(default_factory=RunCalls)


class OwnerNotes:
    """Incremental fold over all runs of an owner.

    Attributes:
        owner: Owner. The empty owner has the runs without an owner.
        runs: Runs by id.
        notes: Notes by id, including outdated ones.
        removals: Removals in all runs.
        summarised: Ids of the notes that accepted reflections have summarised.
        is_outdated: True if the fold cannot be updated and must be created again.
    """

    def __init__(self, log: EventLog, owner: str, embed: Embedder | None) -> None:
        """Create an empty fold."""
        self._log, self.owner = log, owner
        self._vectors = None if embed is None else NoteVectors(embed)
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
        """Locks by event loop, because programs may use a memory in one event loop after another."""
        self.runs: dict[str, _Run] = {}
        self._open: set[str] = set()
        """Ids of runs that can publish further events."""
        self._latest: dict[str, _Run] = {}
        """Last run of each conversation."""
        self.notes: dict[str, Note] = {}
        self._linked: dict[str, Note] = {}
        """Notes that replace others or have sources in other runs, by note id."""
        self._index = NoteIndex()
        self._by_number: dict[int, Note] = {}
        """Notes by their number in the index."""
        self.removals: list[MemoryForgottenEvent] = []
        self._accepted: set[str] = set()
        """Ids of completed reflections whose notes count."""
        self.summarised: set[str] = set()
        self._has_changed = False
        """True if sources and reflections must be checked again."""
        self.is_outdated = False
        self._new_events = 0
        """Number of events since old tool calls were dropped."""
        self._next_check = 0.0
        """Time of the next listing of all runs."""

    async def refresh(self, *, check: bool = False) -> None:
        """Add the new events of the owner's runs.

        Args:
            check: Find all deleted runs. Otherwise, they are found once per minute.
        """
        async with self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            records = None if check or monotonic() >= self._next_check else await self._list_changed()
            if records is None:
                records = await self._list_all()
            known = ((record, self.runs.get(record.task_id)) for record in records)
            records = [record for record, run in known if run is None or record.seq > run.seq]
            for start in range(0, len(records), _CONCURRENT_READS):
                page = records[start : start + _CONCURRENT_READS]
                parts = await asyncio.gather(*(self._read(record) for record in page))
                for record, events in zip(page, parts, strict=True):
                    if events is not None:
                        self._add_events(record, events)
                if self._new_events > _MAX_CALLS / 4:
                    drop_old_calls((run.calls for run in reversed(self.runs.values())), _MAX_CALLS)
                    self._new_events = 0
            await self._check_sources()

    async def _list_all(self) -> list[RunRecord]:
        """Return the records of all runs, and drop deleted runs."""
        started = monotonic()
        records = await self._list()
        existing = {record.task_id: record for record in records}
        self.drop_runs([task_id for task_id, run in self.runs.items() if not _is_same(run, existing.get(task_id))])
        self._next_check = monotonic() + max(_CHECK_INTERVAL, (monotonic() - started) / _CHECK_SHARE)
        return records

    async def _list_changed(self) -> list[RunRecord] | None:
        """Return the records of runs that may have new events, oldest first. None if there are many new runs."""
        newest = await self._list(newest_first=True, limit=_PAGE)
        # Concurrent transactions may become visible in a different order. So do not stop at the first known run.
        if len(newest) >= _PAGE and not any(record.task_id in self.runs for record in newest):
            return None
        found = {record.task_id: record for record in reversed(newest)}
        if self._open - found.keys():
            found = {record.task_id: record for record in await self._list(states=_ACTIVE)} | found
        # Failed and canceled runs may have been resumed and completed since.
        unknown = self._open - found.keys()
        stopped = islice((each for each in reversed(self.runs) if each in unknown), _MAX_STOPPED if unknown else 0)
        records = await asyncio.gather(*map(self._find, stopped))
        return [*filter(None, records), *found.values()]

    async def _list(self, **query: Unpack[RunQuery]) -> list[RunRecord]:
        if self.owner or self._log.accepts_empty_owner:
            query["owner"] = self.owner
        else:
            # Other owners' runs would fill the page.
            query.pop("limit", None)
        records = await read_log(self._log.list_runs, **query)
        return [record for record in records if (record.owner or "") == self.owner]

    async def _find(self, task_id: str) -> RunRecord | None:
        """Return the record of a run of the owner, or None if it was deleted."""
        try:
            record = await read_log(self._log.get_record, task_id)
        except UnknownRun:
            return None
        return record if (record.owner or "") == self.owner else None

    async def drop_deleted(self, task_ids: Iterable[str]) -> bool:
        """Drop the runs that were deleted. Return True if there are any."""
        deleted = await self._find_deleted(task_ids)
        self.drop_runs(deleted)
        await self._check_sources()
        return bool(deleted)

    async def _find_deleted(self, task_ids: Iterable[str]) -> list[str]:
        task_ids = [*task_ids]
        records = await asyncio.gather(*map(self._find, task_ids))
        known = zip(task_ids, records, strict=True)
        return [task_id for task_id, record in known if not _is_same(self.runs.get(task_id), record)]

    async def _check_sources(self) -> None:
        """Remove notes derived from deleted runs, and delete the runs that contain only such notes."""
        while self._has_changed:
            self._has_changed = False
            self._accept_reflections()
            sources = {task_id for note in self._linked.values() for task_id in self._find_sources(note)}
            # Runs that have not been added yet exist.
            deleted = {*(await self._find_deleted(sources - self.runs.keys()))}
            obsolete: set[str] = set()
            for note in [each for each in self._linked.values() if not deleted.isdisjoint(self._find_sources(each))]:
                run = self.runs[note.task_id]
                self._remove(note)
                if run.fold.is_reflection or (run.fold.is_own and not run.numbers):
                    obsolete.add(note.task_id)
            for task_id in obsolete:
                try:
                    await self._log.delete(task_id)
                except UnknownRun:
                    pass
                except EventLogError as error:
                    # The next process detects the missing source again and retries.
                    log.warning("Failed to delete the run %s with notes about a deleted run: %s", task_id, error)
                    continue
                self.drop_runs([task_id])

    def _find_sources(self, note: Note) -> set[str]:
        """Return the ids of the runs that a note depends on. The model may have named only some of its sources."""
        return note.runs | self.runs[note.task_id].fold.read_runs

    async def _read(self, record: RunRecord) -> Sequence[Event] | None:
        """Return the new events of a run, or None if it was deleted."""
        if IMPORTED_RUN in record.metadata:
            return []
        run = self.runs.get(record.task_id)
        with suppress(UnknownRun):
            return await read_log(self._log.read, record.task_id, after_seq=0 if run is None else run.seq)
        return None

    def _add_events(self, record: RunRecord, events: Sequence[Event]) -> None:
        task_id, context_id = record.task_id, record.context_id
        run = self.runs.get(task_id)
        if events and events[0].seq > (1 if run is None else run.seq + 1):
            # The run was deleted during the read.
            return
        earlier, is_new = self._latest.get(context_id), run is None
        if run is None:
            run = self.runs[task_id] = _Run(record, NoteFold(None if earlier is None else earlier.fold))
        had_foreign_text, removal_count = run.fold.has_foreign_text, len(run.fold.removals)
        if IMPORTED_RUN in record.metadata:
            run.fold.has_foreign_text, run.seq = True, record.seq
        run.record = record
        run.fold.add(events)
        run.calls.add(events)
        if any(removes_calls(removal, run.calls) for removal in self.removals):
            run.calls.calls.clear()
        self._new_events += len(events)
        if events:
            run.seq = events[-1].seq
        (self._open.discard if run.seq >= record.seq and record.is_over else self._open.add)(task_id)
        if is_new and not run.fold.is_own:
            self._latest[context_id] = run
        # Answers of later runs may repeat the text.
        self.is_outdated |= not is_new and run is not earlier and run.fold.has_foreign_text and not had_foreign_text
        if record.agent_name == REFLECTION and run.seq <= START:
            # The next event shows whether the prompt is part of a conversation.
            return
        for note in run.fold.notes:
            self._add(note)
        run.fold.notes.clear()
        self._has_changed |= run.fold.is_reflection
        # Do not compare each new run with all notes.
        if removals := run.fold.removals[removal_count:]:
            self.removals += removals
            for note in self.find_removed(removals):
                self._remove(note)
            for calls in self.find_calls(removals):
                calls.calls.clear()

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
        if note.note_id in self.notes or any(removes(removal, note) for removal in self.removals):
            return
        self.notes[note.note_id] = note
        number = self._index.add(note.text, conversation=note.context_id, author=note.author)
        self.runs[note.task_id].numbers[note.note_id], self._by_number[number] = number, note
        is_derived = len(note.runs) > 1
        self._has_changed |= is_derived
        if is_derived or note.replaces is not None:
            self._linked[note.note_id] = note

    def _remove(self, note: Note) -> None:
        del self.notes[note.note_id]
        self._linked.pop(note.note_id, None)
        number = self.runs[note.task_id].numbers.pop(note.note_id)
        del self._by_number[number]
        self._index.remove(number)
        if self._vectors is not None:
            self._vectors.discard(note.note_id)

    def drop_runs(self, task_ids: Collection[str]) -> None:
        """Drop deleted runs with their notes and tool calls."""
        dropped = [run for task_id in task_ids if (run := self.runs.get(task_id)) is not None]
        if not dropped:
            return
        # These caches may contain texts of the runs.
        find_stem.cache_clear()
        share.cache_clear()
        conversations = self._log.local.get(ConversationCache)
        for run in dropped:
            for note_id in [*run.numbers]:
                self._remove(self.notes[note_id])
            del self.runs[run.record.task_id]
            self._open.discard(run.record.task_id)
            self._latest.pop(run.record.context_id, None)
            conversations.pop(run.record.conversation, None)
        remaining = {run.record.context_id for run in self.runs.values()}
        # Deleting a removal restores its notes. The origin of an answer depends on the earlier runs.
        self.is_outdated |= any(run.fold.removals or run.record.context_id in remaining for run in dropped)
        self._has_changed = True

    def find_derived(self, source: str) -> list[Note]:
        """Return the notes derived from the event with this cursor."""
        return [note for note in self.notes.values() if source in note.sources]

    def find_outdated(self, note_id: str) -> list[str]:
        """Return the ids of the notes that a note replaces directly or indirectly."""
        replaced = self._find_replaced()
        found: list[str] = []
        note = self.notes.get(note_id)
        while note is not None and note.replaces in replaced and note.replaces not in found:
            found.append(note.replaces)
            note = self.notes[note.replaces]
        return found

    @property
    def newest(self) -> int:
        """Time of the newest event in milliseconds, or 0."""
        return max((run.record.updated for run in self.runs.values()), default=0)

    @property
    def removed_before(self) -> int:
        """Time in milliseconds before which all notes were removed, or 0."""
        return max((removal.before or 0 for removal in self.removals), default=0)

    def find_removed(self, removals: Collection[MemoryForgottenEvent]) -> list[Note]:
        """Return the notes that removals match."""
        return [note for note in self.notes.values() if any(removes(removal, note) for removal in removals)]

    def find_calls(self, removals: Collection[MemoryForgottenEvent]) -> list[RunCalls]:
        """Return the runs with tool calls that removals match. Otherwise, lessons from them would remain."""
        runs = (run.calls for run in self.runs.values() if run.calls.calls)
        return [run for run in runs if any(removes_calls(removal, run) for removal in removals)]

    def list_notes(self, until: int | None = None) -> list[Note]:
        """Return the notes that are current, or were current at a time in milliseconds, oldest first."""
        return sorted(self._select_current(self.notes.values(), until), key=lambda note: note.created)

    async def search(self, question: str, now: datetime) -> list[Note]:
        """Return the current notes that match a question, best first. Notes of a period that it mentions come first."""
        similar = [] if self._vectors is None else await self._vectors.search(question, self.notes)
        matches = [(self._by_number[number], score) for number, score in self._index.search(question)]
        period = find_period(question, now)
        if period is not None:
            start, end = (round(each.timestamp() * 1000) for each in period)
            matches = [(note, score * (1 + _PERIOD * (start <= note.created < end))) for note, score in matches]
            matches.sort(key=lambda match: -match[1])
        ranked = [note for note, _ in matches]
        return self._select_current(fuse(ranked, similar) if similar else ranked)

    def _select_current(self, notes: Iterable[Note], until: int | None = None) -> list[Note]:
        replaced = self._find_replaced(until)
        return [note for note in notes if note.note_id not in replaced and self._counts(note, until)]

    def _find_replaced(self, until: int | None = None) -> set[str]:
        """Return the ids of outdated notes."""
        found: set[str] = set()
        for new in self._linked.values():
            old = self.notes.get(new.replaces or "")
            if old is not None and new.may_replace(old) and self._counts(new, until):
                found.add(old.note_id)
        return found

    def _counts(self, note: Note, until: int | None) -> bool:
        """Return True if a note exists at a time. Notes of a reflection exist when it is completed."""
        if until is not None and note.created > until:
            return False
        fold = self.runs[note.task_id].fold
        if not fold.is_reflection:
            return True
        return note.task_id in self._accepted and (until is None or fold.completed <= until)


def _is_same(run: _Run | None, record: RunRecord | None) -> bool:
    """Return True if a run exists. After a deletion, an imported run may have its id."""
    if run is None or record is None:
        return record is not None
    is_imported = [IMPORTED_RUN in each.metadata for each in (run.record, record)]
    return run.record.created == record.created and run.seq <= record.seq and is_imported[0] == is_imported[1]
