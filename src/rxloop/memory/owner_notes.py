"""Notes of an owner, updated incrementally from the owner's runs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import datetime

from rxloop.errors import UnknownRun
from rxloop.memory.index import NoteIndex
from rxloop.memory.notes import Note, NoteFold
from rxloop.memory.periods import find_period
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import MemoryForgottenEvent

AGENT = "memory"
"""Agent name of the runs that store notes and removals of the program."""

_PERIOD = 0.5
"""Increase of the score of notes from the time that the question mentions."""

_FIRST_PAGE, _PAGE = 10, 100
"""Number of runs read from the list of runs at once: first, and if all of them are new."""

_MAX_FAILED = 20
"""Number of the newest failed runs that are checked for new events."""


@dataclass(slots=True)
class _Run:
    fold: NoteFold = field(default_factory=NoteFold)
    seq: int = 0
    """Last event in the fold."""
    used_notes: int = 0
    """Number of notes of the fold that are in the index."""
    used_removals: int = 0


class OwnerNotes:
    """Fold of the runs of an owner."""

    def __init__(self, log: EventLog, owner: str) -> None:
        """Create an empty fold. The empty owner has the runs without an owner."""
        self.version = 0
        self.runs: dict[str, _Run] = {}
        self.own_runs: set[str] = set()
        """Runs that only contain notes of the program."""
        self._log, self._owner = log, owner
        self._lock = asyncio.Lock()
        self._open: set[str] = set()
        """Runs that may continue."""
        self._notes: dict[str, Note] = {}
        self._numbers: dict[str, int] = {}
        """Numbers in the index by note id."""
        self._ids: dict[int, str] = {}
        self._replacements: dict[str, list[Note]] = {}
        """Notes that replace a note, by its id."""
        self._removals: list[tuple[str, MemoryForgottenEvent]] = []
        self._index = NoteIndex()

    async def list_runs(self) -> list[RunRecord]:
        """Return the records of all runs of the owner."""
        return [*await read_log(self._log.list_runs, owner=self._owner)]

    async def refresh(self) -> None:
        """Add the new events of the owner's runs."""
        async with self._lock:
            for record in reversed(await self._find_new_runs()):
                await self._read(record)
            unfinished = {
                each.task_id for each in await read_log(self._log.list_runs, owner=self._owner, unfinished=True)
            }
            # Failed runs may have been resumed and completed since.
            failed = sorted(self._open - unfinished)[-_MAX_FAILED:]
            for task_id in [*sorted(self._open & unfinished), *failed]:
                try:
                    record = await read_log(self._log.get_record, task_id)
                except UnknownRun:
                    self.drop_run(task_id)
                    continue
                if record.seq > self.runs[task_id].seq:
                    await self._read(record)

    async def _find_new_runs(self) -> list[RunRecord]:
        """Return the records of unknown runs, newest first."""
        found: list[RunRecord] = []
        limit, after = _FIRST_PAGE, None
        while True:
            page = await read_log(self._log.list_runs, owner=self._owner, newest_first=True, limit=limit, after=after)
            new = [record for record in page if record.task_id not in self.runs]
            found += new
            # Older runs were added before newer ones.
            if len(page) < limit or len(new) < len(page):
                return found
            limit, after = _PAGE, page[-1].task_id

    async def _read(self, record: RunRecord) -> None:
        run = self.runs.setdefault(record.task_id, _Run())
        if record.agent_name == AGENT:
            self.own_runs.add(record.task_id)
        try:
            events = await read_log(self._log.read, record.task_id, after_seq=run.seq)
        except UnknownRun:
            self.drop_run(record.task_id)
            return
        run.fold.add(events)
        run.seq = events[-1].seq if events else run.seq
        is_over = record.state == "completed" and run.seq >= record.seq
        (self._open.discard if is_over else self._open.add)(record.task_id)
        self._apply(record.task_id, run)

    def _apply(self, task_id: str, run: _Run) -> None:
        """Add the new notes and removals of a run."""
        fold = run.fold
        for note in fold.notes[run.used_notes :]:
            self._add(note)
        for removal in fold.removals[run.used_removals :]:
            self._removals.append((task_id, removal))
            for note in self.find_removed(removal):
                self._remove(note)
        run.used_notes, run.used_removals = len(fold.notes), len(fold.removals)

    def _add(self, note: Note) -> None:
        if note.note_id in self._notes or any(_removes(removal, note) for _, removal in self._removals):
            return
        self.version += 1
        self._notes[note.note_id] = note
        number = self._index.add(note.text, conversation=note.context_id, author=note.author)
        self._numbers[note.note_id], self._ids[number] = number, note.note_id
        if note.replaces is not None:
            self._replacements.setdefault(note.replaces, []).append(note)

    def _remove(self, note: Note) -> None:
        self.version += 1
        del self._notes[note.note_id]
        number = self._numbers.pop(note.note_id)
        del self._ids[number]
        self._index.remove(number)
        if note.replaces is not None:
            self._replacements[note.replaces].remove(note)

    def drop_run(self, task_id: str) -> None:
        """Remove a deleted run with its notes. Removals in it no longer apply to notes that are added later."""
        run = self.runs.pop(task_id, None)
        self.own_runs.discard(task_id)
        self._open.discard(task_id)
        self._removals = [each for each in self._removals if each[0] != task_id]
        for note in [] if run is None else run.fold.notes:
            if self._notes.get(note.note_id) is note:
                self._remove(note)

    def get(self, note_id: str) -> Note | None:
        """Return a note, also if it is outdated, or None if it does not exist or was removed."""
        return self._notes.get(note_id)

    def find_removed(self, removal: MemoryForgottenEvent) -> list[Note]:
        """Return the notes that a removal removes."""
        return [note for note in self._notes.values() if _removes(removal, note)]

    def list_notes(self, until: int | None = None) -> list[Note]:
        """Return the notes that were current at a time in milliseconds, oldest first. None is the present."""
        notes = [note for note in self._notes.values() if self._is_current(note, until)]
        return sorted(notes, key=lambda note: note.created)

    def search(
        self, question: str, now: datetime, *, limit: int, tokens: int | None, exclude_context: str | None
    ) -> list[Note]:
        """Return the current notes that best match a question, as in `Memory.search`."""
        found: list[Note] = []
        remaining = tokens
        for note in self._rank(question, now):
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
        matches = [(self._notes[self._ids[number]], score) for number, score in self._index.search(question)]
        period = find_period(question, now)
        if period is not None:
            start, end = (round(each.timestamp() * 1000) for each in period)
            matches = [(note, score * (1 + _PERIOD * (start <= note.created < end))) for note, score in matches]
            matches.sort(key=lambda match: -match[1])
        return [note for note, _ in matches]

    def _is_current(self, note: Note, until: int | None) -> bool:
        if until is not None and note.created > until:
            return False
        return not any(
            new.may_replace(note) and (until is None or new.created <= until)
            for new in self._replacements.get(note.note_id, ())
        )


def _removes(removal: MemoryForgottenEvent, note: Note) -> bool:
    return (
        note.note_id in removal.note_ids
        or note.task_id == removal.run_id
        or (removal.before is not None and note.created < removal.before)
    )
