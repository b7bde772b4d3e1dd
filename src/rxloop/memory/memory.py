"""Long-term memory over the runs in an event log."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Collection, Iterable
from contextlib import suppress
from datetime import datetime
from os import PathLike
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from typing_extensions import Unpack

from rxloop.errors import ConfigurationError, UnknownNote, UnknownRun
from rxloop.memory.notes import (
    ImportedMessage,
    Note,
    make_episodes,
    make_event,
    make_note_id,
    make_run,
    to_milliseconds,
)
from rxloop.memory.owner_notes import OwnerNotes
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import read_log
from rxloop.protocol.events import Event, MemoryForgottenEvent, MemoryNotedEvent, MemoryRecalledEvent
from rxloop.protocol.ids import make_id, validate_id
from rxloop.protocol.tool_events import NoteKind
from rxloop.storage.log_urls import open_log

if TYPE_CHECKING:
    from rxloop.agents.agent import Agent
    from rxloop.context.compressors import Embedder
    from rxloop.operators.loop.recall import RecallScope
    from rxloop.pipeline.interfaces import Provider, Tool
    from rxloop.pipeline.run_context import RunContext

_MAX_RECALLED = 100
"""Maximum number of notes in a recalled block."""


class Memory:
    """Long-term memory of the owners of runs, computed from the runs in an event log.

    Messages of earlier runs are notes of the kind `episode`. Programs, tools and reflections add facts, preferences and
    decisions. All notes are events in the log, so deleting a run also deletes its notes. Each owner has a separate
    memory, and runs without an owner share one.

    Example:
        >>> memory = Memory(log)
        >>> await memory.add("ann", "Prefers trains.", kind="preference")
        >>> [note.text for note in await memory.search("ann", "How does she travel?")]
        ['Prefers trains.']
    """

    def __init__(
        self, log: EventLog | str | PathLike[str], *, embed: Embedder | None = None, max_owners: int = 100
    ) -> None:
        """Create a memory without reading the log.

        Args:
            log: Event log of the agents, or the path of a SQLite file.
            embed: Async function that returns vectors for a list of texts. Notes are then also searched by meaning. The
                vectors are kept in the memory of the process only.
            max_owners: Maximum number of owners whose notes are cached. The first access to another owner reads each of
                its runs once.
        """
        self._embed = embed
        self._owns_log = not isinstance(log, EventLog)
        self._log = log if isinstance(log, EventLog) else open_log(log)
        self._max_owners = max_owners
        self._owners: OrderedDict[str, OwnerNotes] = OrderedDict()
        self._used: WeakValueDictionary[str, OwnerNotes] = WeakValueDictionary()
        """All notes in memory, including those that a call still uses after they were dropped from the cache."""

    def __repr__(self) -> str:
        return f"<Memory of {self._log!r}>"

    async def add(
        self,
        owner: str | None,
        text: str,
        *,
        kind: NoteKind = "fact",
        confidence: float = 1.0,
        sources: Iterable[str] = (),
        replaces: str | None = None,
    ) -> Note:
        """Add a note of the program. Tools call `ctx.emit(MemoryNotedEvent(...))` instead.

        Args:
            owner: Owner of the note, as in `agent.run(owner=...)`. None is the memory of runs without an owner.
            text: Content with at most 4,000 characters.
            kind: `fact`, `preference` or `decision`.
            confidence: Confidence from 0 to 1.
            sources: Cursors of the events that the note is based on, in runs of the owner. The note is deleted with any
                of these runs.
            replaces: Id of the outdated note.

        Raises:
            ConfigurationError: An argument is invalid.
            UnknownNote: The outdated note does not exist.
            EventLogError: The log is not writable.
        """
        task_id = make_id()
        fields = {"note_kind": kind, "text": text, "confidence": confidence, "replaces": replaces}
        noted = make_event(note_id=make_note_id(task_id), sources=[*sources], **fields)
        notes = await self.load(owner)
        await self.check(owner, noted)
        await self._store(notes, task_id, noted)
        return await self.get(owner, noted.note_id)

    async def import_conversation(
        self, owner: str | None, messages: Iterable[ImportedMessage], *, context_id: str | None = None
    ) -> list[Note]:
        """Add the messages of a conversation from elsewhere as episodes.

        Args:
            owner: Owner of the notes.
            messages: Messages in order. Longer texts than 4,000 characters are truncated.
            context_id: Id of the conversation. The default is a new id.

        Raises:
            ConfigurationError: There is no message, or a text is empty.
            EventLogError: The log is not writable.
        """
        task_id = make_id()
        noted = make_episodes(task_id, messages)
        if context_id is not None:
            validate_id(context_id, "context_id")
        notes = await self.load(owner)
        await self._store(notes, task_id, *noted, context_id=context_id)
        found = (await self.load(owner)).notes
        return [found[each.note_id] for each in noted if each.note_id in found]

    async def reads_run(self, ctx: RunContext[Any]) -> bool:
        """Return True if the run is stored in the log of this memory."""
        if ctx.log is None or ctx.log is self._log:
            return ctx.log is not None
        # Another object may have opened the same file.
        await ctx.port.durable()
        return bool(await read_log(self._log.list_runs, context_id=ctx.context_id, limit=1))

    async def check(self, owner: str | None, note: MemoryNotedEvent) -> None:
        """Validate the references of a note before publishing it.

        Raises:
            ConfigurationError: A source is not in a run of the owner.
            UnknownNote: The outdated note does not exist.
        """
        if note.replaces is not None:
            await self.get(owner, note.replaces)
        if note.sources:
            runs = (await self.load(owner)).runs
            for source in note.sources:
                if source.rpartition("/")[0] not in runs:
                    raise ConfigurationError(f"a source must be a cursor in a run of the owner, got {source!r}")

    async def get(self, owner: str | None, note_id: str) -> Note:
        """Return a note, also if it is outdated.

        Raises:
            UnknownNote: The owner has no note with this id.
        """
        notes = await self.load(owner)
        note = notes.notes.get(note_id)
        if note is None or await notes.drop_deleted(note.runs):
            raise UnknownNote(f"there is no note {note_id!r} of this owner; list the notes with `memory.notes(owner)`")
        return note

    async def notes(
        self, owner: str | None, *, at: datetime | None = None, kinds: Collection[NoteKind] | None = None
    ) -> list[Note]:
        """Return the current notes of an owner, oldest first.

        Args:
            owner: Owner of the notes.
            at: Return the notes that were current at this time. Notes that have been forgotten since are omitted.
            kinds: Kinds to return. The default is all kinds.
        """
        notes = await self.load(owner, check=True)
        until = None if at is None else to_milliseconds(at)
        return [note for note in notes.list_notes(until) if kinds is None or note.kind in kinds]

    async def search(
        self,
        owner: str | None,
        question: str,
        *,
        limit: int = 10,
        tokens: int | None = None,
        exclude_context: str | None = None,
        now: datetime | None = None,
    ) -> list[Note]:
        """Return the notes that best match a question, best first.

        Notes match by words. The result also contains notes next to a match in the same conversation.

        Args:
            owner: Owner of the notes.
            question: Question or topic.
            limit: Maximum number of notes.
            tokens: Maximum number of tokens of all notes, estimated as a quarter of their characters.
            exclude_context: Conversation whose notes are omitted.
            now: Present time of the owner, for questions such as "last week". The default is the local time.

        Raises:
            ConfigurationError: `limit` is less than one.
        """
        if limit < 1:
            raise ConfigurationError(f"limit must be at least 1, got {limit!r}")
        while True:
            notes = await self.load(owner)
            found: list[Note] = []
            remaining = math.inf if tokens is None else tokens
            for note in await notes.search(question, now or datetime.now().astimezone()):
                if note.context_id != exclude_context and note.tokens <= remaining and len(found) < limit:
                    found.append(note)
                    remaining -= note.tokens
            if not await notes.drop_deleted({task_id for note in found for task_id in note.runs}):
                return found

    async def recall(
        self, owner: str | None, question: str, *, tokens: int, **scope: Unpack[RecallScope]
    ) -> tuple[str, MemoryRecalledEvent] | None:
        """Return the notes for a user message as text for the model, and the event for the stream; see `op.recall`.

        Args:
            owner: Owner of the notes.
            question: User message.
            tokens: Maximum number of tokens.
            **scope: Run that receives the notes. Notes of its conversation are omitted.

        Returns:
            None if no note matches.
        """
        # Imported lazily, because it imports the tools.
        from rxloop.memory.tools import render_block

        excluded = scope.get("exclude_context")
        found = await self.search(owner, question, limit=_MAX_RECALLED, exclude_context=excluded)
        text, recalled = render_block(found, tokens)
        if not recalled:
            return None
        foreign = any(note.origin == "foreign" for note in recalled)
        return text, MemoryRecalledEvent(note_ids=[note.note_id for note in recalled], foreign=foreign)

    async def forget(
        self,
        owner: str | None,
        note_id: str | None = None,
        *,
        run_id: str | None = None,
        source: str | None = None,
        before: datetime | None = None,
    ) -> int:
        """Remove notes, and return their number.

        The text of notes that were added with `add` or `import_conversation` is deleted from the log, if all notes of
        the call are removed. Other notes are part of a run, and their text is deleted with the run.

        Args:
            owner: Owner of the notes. Without other arguments, all notes are removed.
            note_id: Note to remove, with the outdated notes that it replaces. Notes that are based on an episode are
                removed with it.
            run_id: Run whose notes are removed, with all notes that are based on it.
            source: Cursor of an event. Notes that are based on it are removed.
            before: Remove notes that were added before this time.

        Raises:
            ConfigurationError: There are several arguments besides the owner.
            UnknownNote: The note does not exist.
            EventLogError: The log is not writable.
        """
        if [note_id, run_id, source, before].count(None) < 3:
            raise ConfigurationError(
                "forget() accepts only one of note_id, run_id, source and before; call it several times"
            )
        notes = await self.load(owner, check=True)
        if note_id is not None:
            note = await self.get(owner, note_id)
            derived = notes.find_derived(note.sources[0]) if note.kind == "episode" else []
            # Messages of the same event are not based on each other.
            based = [each.note_id for each in derived if each.kind != "episode"]
            removals = [MemoryForgottenEvent(note_ids=[note_id, *based, *notes.find_outdated(note_id)])]
        elif run_id is not None:
            removals = [MemoryForgottenEvent(run_id=run_id)]
        elif source is not None:
            removals = [MemoryForgottenEvent(note_ids=[each.note_id for each in notes.find_derived(source)])]
        else:
            limit = math.inf if before is None else to_milliseconds(before)
            # A time in the future would also remove notes that are added later.
            until = round(min(limit, notes.newest + 1, time.time_ns() // 1_000_000 + 1))
            removals = [MemoryForgottenEvent(before=until)]
            if until < limit:
                # Some runs are from the future, because a clock was wrong.
                runs = [run.record for run in notes.runs.values() if run.record.updated >= until]
                removals += [MemoryForgottenEvent(run_id=run.task_id) for run in runs if run.created < limit]
        removed = {each.note_id: each.task_id for each in notes.find_removed(removals)}
        runs = {task_id: notes.runs[task_id] for task_id in removed.values()}
        own = [each for each, run in runs.items() if run.fold.is_own and run.numbers.keys() <= removed.keys()]
        if len(own) < len(runs) or notes.find_calls(removals):
            await self._store(notes, make_id(), *removals)
        for task_id in own:
            with suppress(UnknownRun):
                await self._log.delete(task_id)
        notes.drop_runs(own)
        await self.load(owner)
        return len(removed)

    def tools(self) -> list[Tool]:
        """Return the tools `remember`, `search_memory` and `forget_note` for the owner of each run."""
        # Imported lazily, because programs may only use `op.recall`.
        from rxloop.memory.tools import make_tools

        return make_tools(self)

    def reflection(self, model: Provider | str, *, tokens: int = 8_000) -> Agent[Any]:
        """Create an agent that extracts facts, preferences and decisions from new messages.

        Each run summarises the oldest unsummarised messages of its owner. Use `Periodic` or `reflect` to start runs.

        Args:
            model: Provider or model string.
            tokens: Token limit for messages and current notes in a request.
        """
        # Imported lazily, because most programs do not summarise.
        from rxloop.memory.reflection import make_agent

        return make_agent(self, model, self._log, tokens)

    async def reflect(self, owner: str | None, *, model: Provider | str, tokens: int = 8_000) -> list[Note]:
        """Summarise new messages with a model, which is not called if there are none. Return the resulting notes.

        Waits for reflections of the owner in all processes. The notes count when the run is completed.

        Args:
            owner: Owner of the messages.
            model: Provider or model string.
            tokens: Token limit for messages and current notes in a request.

        Raises:
            RunError: The run failed. The next call reads the same messages.
            EventLogError: The log is not readable or not writable.
        """
        from rxloop.memory.reflection import PROMPT, wait_for_reflections

        await wait_for_reflections(self._log, owner)
        new, _ = await self.list_unsummarised(owner)
        if not new:
            return []
        async with self.reflection(model, tokens=tokens) as agent:
            result = await agent.run(PROMPT, owner=owner)
        return [note for note in await self.notes(owner) if note.task_id == result.task_id]

    async def list_unsummarised(self, owner: str | None) -> tuple[list[Note], list[Note]]:
        """Return unsummarised episodes and all other current notes, oldest first."""
        current = await self.notes(owner)
        done = (await self.load(owner)).summarised
        new = [note for note in current if note.kind == "episode" and note.note_id not in done]
        return new, [note for note in current if note.kind != "episode"]

    async def aclose(self) -> None:
        """Close the log if this object opened it."""
        self._owners.clear()
        if self._owns_log:
            await self._log.aclose()

    async def load(self, owner: str | None, *, check: bool = False) -> OwnerNotes:
        """Return the notes of an owner, including new events in the log.

        Args:
            owner: Owner of the notes.
            check: Find all deleted runs now, and not only once per minute.
        """
        key = owner or ""
        while True:
            notes = self._used.get(key)
            if notes is None or notes.is_outdated:
                notes = self._used[key] = OwnerNotes(self._log, key, self._embed)
            self._owners[key] = notes
            self._owners.move_to_end(key)
            if len(self._owners) > self._max_owners:
                self._owners.popitem(last=False)
            await notes.refresh(check=check)
            if not notes.is_outdated:
                return notes

    async def _store(self, notes: OwnerNotes, task_id: str, *events: Event, context_id: str | None = None) -> None:
        """Store events in a finished run of their own."""
        if notes.owner:
            validate_id(notes.owner, "owner")
        # Notes of the present millisecond may have been removed.
        timestamp = max(time.time_ns() // 1_000_000, notes.removed_before)
        stamped = make_run(task_id, context_id or task_id, notes.owner or None, timestamp, events)
        await self._log.append(task_id, stamped, expected_seq=0, writer=task_id)
