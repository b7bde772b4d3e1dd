"""Notes, and a fold that extracts them from events."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any, NamedTuple

from pydantic import ValidationError

from rxloop.errors import ConfigurationError, InvalidEvent
from rxloop.memory.tool_history import RunCalls
from rxloop.protocol.events import (
    ContentCompleteEvent,
    Event,
    LLMCallEvent,
    MemoryForgottenEvent,
    MemoryNotedEvent,
    MemoryRecalledEvent,
    MessageAddedEvent,
    ServerToolEvent,
    StatusUpdateEvent,
    TaskEvent,
    ToolCompleteEvent,
    normalise,
)
from rxloop.protocol.messages import Message
from rxloop.protocol.step_events import PartTokens
from rxloop.protocol.tool_events import NoteKind, NoteOrigin

MAX_TEXT = 4_000
"""Maximum number of characters in a note. Longer messages are truncated."""

AGENT = "memory"
"""Agent name and initiator of the runs that store notes and removals of the program."""

REFLECTION = "reflection"
"""Agent name of the runs that summarise notes."""

READ_RUNS = "read_runs"
"""Metadata key in the `memory-recalled` event of a reflection for the ids of the runs with its messages."""

START = 2
"""Last `seq` of the events at the start of a run, `task` and `status-update`."""

_OWN_RESULT = re.compile(
    r"Remembered as [0-9a-f]{12}\.|Forgotten\.|Goals: (none|\d+ [a-z]{4,7}(, \d+ [a-z]{4,7}){0,3})\."
    r"""|\{"acknowledged":true,"thoughtId":"([A-Za-z0-9_.-]{1,40})","message":"Noted as '\3'\."\}"""
)
"""Results of our own tools that contain no foreign text. MCP tools may have the same names, so compare the results."""

_TRUST: dict[NoteOrigin, int] = {"foreign": 0, "model": 1, "user": 2, "program": 2}


@dataclass(frozen=True, slots=True)
class Note:
    """Note about a user, a project or an earlier conversation.

    Attributes:
        note_id: Id of the note, unique per owner.
        kind: `fact`, `preference`, `decision`, or `episode` for a message of a conversation.
        text: Content.
        origin: Author: `user`, `program`, `model`, or `foreign` if the model wrote the note after it read foreign text.
        task_id: Run that contains the event of the note. Deleting the run deletes the note.
        sources: Cursors of the events that the note is based on. If one of their runs is deleted, the note is deleted.
        context_id: Conversation of the run.
        created: Time in milliseconds since 1970.
        confidence: Confidence from 0 to 1.
        replaces: Id of the outdated note, if any.
        author: Name of the person who wrote the message, in an imported conversation of several people.
        added: Time of the event in milliseconds. Differs from `created` if the message was imported later.
    """

    note_id: str
    kind: NoteKind
    text: str
    origin: NoteOrigin
    task_id: str
    sources: tuple[str, ...]
    context_id: str
    created: int
    confidence: float = 1.0
    replaces: str | None = None
    author: str = ""
    added: int = 0

    def may_replace(self, other: Note) -> bool:
        """Return True if the author of this note is at least as trustworthy as the author of the other one."""
        return _TRUST[self.origin] >= _TRUST[other.origin]

    @property
    def runs(self) -> set[str]:
        """Ids of the runs that contain the note or its sources."""
        return {self.task_id, *(source.rpartition("/")[0] for source in self.sources)}

    @property
    def tokens(self) -> int:
        """Estimated number of tokens of the text and its author."""
        return (len(self.text) + (len(self.author) + 2 if self.author else 0) + 3) // 4


class ImportedMessage(NamedTuple):
    """Message of a conversation from elsewhere."""

    text: str
    author: str = ""
    """Name of the person who wrote the message."""
    time: datetime | None = None


class NoteFold:
    """Fold of the events of a run that collects notes and removals.

    User messages and answers are episodes. Tool results, attached files and recalled notes are not notes. Answers and
    notes of the model that follow foreign text are foreign too, because they may repeat it. Nested agents add notes to
    the same memory, but their messages are not episodes. Copied events at the start of a fork belong to the original
    run.

    Attributes:
        task_id: Id of the run.
        notes: Notes in order.
        removals: Removals in order.
        has_foreign_text: True if the model has read foreign text in the run or in earlier runs of the conversation.
        is_own: True if a memory created the run for its notes.
        is_reflection: True if the run summarises notes.
        reflected: Ids of these notes.
        read_runs: Ids of their runs.
        completed: Time in milliseconds at which the run was completed, or 0.
    """

    def __init__(self, earlier: NoteFold | None = None) -> None:
        """Create an empty fold.

        Args:
            earlier: Fold of the previous run of the conversation, if any.
        """
        self.notes: list[Note] = []
        self.removals: list[MemoryForgottenEvent] = []
        self.has_foreign_text = earlier is not None and earlier.has_foreign_text
        self.is_own = self.is_reflection = False
        self.completed = 0
        self.reflected: list[str] = []
        self.read_runs: set[str] = set()
        self._copied = 0
        self._is_first = earlier is None
        """True until the first message or request, if no earlier run of the conversation is known."""
        self.task_id = self._agent = ""

    def add(self, events: Iterable[Event]) -> None:
        """Process the next events of the run."""
        for event in events:
            # Nested agents and other branches pass the text on.
            self.has_foreign_text = self.has_foreign_text or self._contains_foreign_text(event)
            is_main = event.branch is None and event.parent_task_id is None
            match event:
                case MemoryNotedEvent() | MemoryForgottenEvent() if event.branch is None:
                    self._add_change(event)
                # Branches are alternatives, of which only the result is part of the conversation.
                case TaskEvent() if is_main:
                    self._add_task(event)
                case MemoryRecalledEvent() if event.reflection and is_main and self._agent == REFLECTION:
                    # Other runs must not be deleted with their sources.
                    self.is_reflection = True
                    # The prompt is not part of a conversation.
                    self.notes = [note for note in self.notes if note.kind != "episode"]
                    self.reflected += event.note_ids
                    self.read_runs.update(event.metadata.get(READ_RUNS, ()))
                case StatusUpdateEvent() if is_main:
                    self.completed = event.timestamp if event.state == "completed" else 0
                # Reflections are not conversations.
                case _ if is_main and event.seq > self._copied and not self.is_reflection:
                    self._add_message(event)
                case _:
                    pass

    def _contains_foreign_text(self, event: Event) -> bool:
        match event:
            case ToolCompleteEvent():
                return bool(event.parts) or not _OWN_RESULT.fullmatch(event.content)
            case ServerToolEvent():
                return True
            case MemoryRecalledEvent():
                return event.foreign
            case ContentCompleteEvent():
                return bool(event.citations)
            case TaskEvent():
                # The runs with earlier answers, and the sources of these answers, are not known.
                return any(message.media or message.role in ("assistant", "tool") for message in event.messages)
            case MessageAddedEvent():
                self._is_first = False
                return bool(Message.user(event.content).media)
            case LLMCallEvent(parts=PartTokens() as parts):
                # The earlier runs of the conversation may have been deleted.
                is_first = self._is_first and event.parent_task_id is None
                self._is_first = self._is_first and not is_first
                return bool(parts.workspace or (is_first and (parts.history or parts.summary)))
            case _:
                return False

    def _add_task(self, event: TaskEvent) -> None:
        self.task_id, self._agent = event.task_id, event.agent_name
        self.is_own = event.agent_name == event.initiator == AGENT and not event.messages
        self._copied = event.fork_seq or 0
        # A fork from the first event replaces the messages.
        if self._copied <= 1:
            # Clients without a log send the whole conversation with each message.
            answers = [index for index, message in enumerate(event.messages) if message.role in ("assistant", "tool")]
            self._add_messages(event, event.messages, first=answers[-1] + 1 if answers else 0)

    def _add_message(self, event: Event) -> None:
        if isinstance(event, MessageAddedEvent) and event.public:
            self._add_messages(event, [Message.user(event.content)])
        elif isinstance(event, ContentCompleteEvent) and event.finish_reason != "canceled" and event.content.strip():
            self._add_episode(event, event.content, "foreign" if self.has_foreign_text else "model")

    def _add_change(self, event: MemoryNotedEvent | MemoryForgottenEvent) -> None:
        if event.seq <= self._copied:
            return
        if isinstance(event, MemoryForgottenEvent):
            self.removals.append(event)
        elif event.text.strip():
            origin = "foreign" if event.origin == "model" and self.has_foreign_text else event.origin
            fields = {name: getattr(event, name) for name in ("note_id", "text", "author", "confidence", "replaces")}
            self._append(
                event, kind=event.note_kind, origin=origin, sources=event.sources, created=event.noted, **fields
            )

    def _add_messages(self, event: Event, messages: Iterable[Message], first: int = 0) -> None:
        for index, message in enumerate(messages):
            if index >= first and message.role == "user" and message.text.strip():
                self._add_episode(event, message.text, "user", index)

    def _add_episode(self, event: Event, text: str, origin: NoteOrigin, index: int = 0) -> None:
        self._append(event, note_id=make_note_id(event.cursor, index), kind="episode", text=text, origin=origin)

    def _append(
        self, event: Event, *, text: str, sources: Iterable[str] = (), created: int | None = None, **fields: Any
    ) -> None:
        note = Note(
            text=text.strip()[:MAX_TEXT],
            task_id=self.task_id or event.task_id,
            sources=tuple(sources) or (event.cursor,),
            context_id=event.context_id,
            created=event.timestamp if created is None else created,
            added=event.timestamp,
            **fields,
        )
        self.notes.append(note)


def removes(removal: MemoryForgottenEvent, note: Note) -> bool:
    """Return True if the removal matches the note."""
    return (
        note.note_id in removal.note_ids
        or removal.run_id in note.runs
        or (removal.before is not None and note.added < removal.before)
    )


def removes_calls(removal: MemoryForgottenEvent, run: RunCalls) -> bool:
    """Return True if the removal matches the tool calls of a run."""
    return run.task_id == removal.run_id or run.created < (removal.before or 0)


def make_note_id(cursor: str, index: int = 0) -> str:
    """Return the id of the note with this index in an event. It is short, because models repeat ids."""
    return sha256(f"{cursor} {index}".encode()).hexdigest()[:12]


def make_run(task_id: str, context_id: str, owner: str | None, timestamp: int, events: Iterable[Event]) -> list[Event]:
    """Create the events of a finished run that stores notes and removals of the program."""
    task = TaskEvent(initiator=AGENT, messages=[], model="", agent_name=AGENT, owner=owner)
    end = StatusUpdateEvent(state="completed", final=True, content="")
    fields = {"task_id": task_id, "context_id": context_id, "attempt": 1, "timestamp": timestamp}
    all_events = enumerate((task, StatusUpdateEvent(state="working"), *events, end), 1)
    return [event.model_copy(update={**fields, "seq": seq}) for seq, event in all_events]


def make_event(**fields: Any) -> MemoryNotedEvent:
    """Return the event of a note, or raise `ConfigurationError` if a field is invalid."""
    event = _parse_event(**fields)
    if not event.text.strip() or len(event.text) > MAX_TEXT:
        raise ConfigurationError(f"a note must have 1 to {MAX_TEXT:,} characters, got {len(event.text):,}")
    if event.note_kind == "episode":
        raise ConfigurationError("kind must be one of fact, preference, decision, got 'episode'")
    if not 0 <= event.confidence <= 1:
        raise ConfigurationError(f"confidence must be from 0 to 1, got {event.confidence!r}")
    return event


def _parse_event(**fields: Any) -> MemoryNotedEvent:
    try:
        event = MemoryNotedEvent.model_validate(fields)
        normalise(event)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigurationError(
            f"{first['loc'][0]} of a note is invalid: {first['msg']}, got {first['input']!r}"
        ) from error
    except InvalidEvent as error:
        raise ConfigurationError(str(error)) from error
    return event


def make_episodes(task_id: str, messages: Iterable[ImportedMessage]) -> list[MemoryNotedEvent]:
    """Return the events of an imported conversation, or raise `ConfigurationError` if it is empty or invalid."""
    episodes = [
        _parse_event(
            note_id=make_note_id(task_id, index),
            note_kind="episode",
            text=message.text.strip()[:MAX_TEXT],
            origin="user",
            author=message.author,
            noted=None if message.time is None else to_milliseconds(message.time),
        )
        for index, message in enumerate(messages)
    ]
    if not episodes or not all(each.text for each in episodes):
        raise ConfigurationError("a conversation must have messages, and each message a text")
    return episodes


def to_milliseconds(moment: datetime) -> int:
    """Return a time in milliseconds since 1970, or raise `ConfigurationError` if it is out of range."""
    try:
        return round(moment.timestamp() * 1000)
    except (ValueError, OverflowError, OSError) as error:
        raise ConfigurationError(f"the time {moment!r} is out of range: {error}") from error
