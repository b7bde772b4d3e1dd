"""Notes, and their extraction from the events of a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256

from rxloop.protocol.events import (
    ContentCompleteEvent,
    Event,
    MemoryForgottenEvent,
    MemoryNotedEvent,
    MessageAddedEvent,
    TaskEvent,
    ToolCompleteEvent,
)
from rxloop.protocol.messages import Message
from rxloop.protocol.tool_events import NoteKind, NoteOrigin

MAX_TEXT = 4_000
"""Maximum number of characters in a note. Longer messages are truncated."""

AGENT = "memory"
"""Agent name and initiator of the runs that store notes and removals of the program."""

WRITING_TOOLS = frozenset(("remember", "forget_note"))
"""Tools of a memory whose results contain no foreign text."""

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
        source: Cursor of the event that the note is based on.
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
    source: str
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
    def tokens(self) -> int:
        """Estimated number of tokens of the text and its author."""
        return (len(self.text) + (len(self.author) + 2 if self.author else 0) + 3) // 4


class NoteFold:
    """Fold of the events of a run that collects notes and removals.

    User messages and answers are episodes. Tool results are not notes, and answers that follow them count as foreign
    text, because they may repeat it. Copied events at the start of a fork belong to the original run.

    Attributes:
        notes: Notes in order.
        removals: Removals in order.
        has_foreign_text: True if the history of the run contains foreign text.
        is_own: True if a memory created the run for its notes.
    """

    def __init__(self, *, has_foreign_text: bool = False) -> None:
        """Create an empty fold.

        Args:
            has_foreign_text: Whether earlier runs of the conversation contain foreign text.
        """
        self.notes: list[Note] = []
        self.removals: list[MemoryForgottenEvent] = []
        self.has_foreign_text = has_foreign_text
        self.is_own = False
        self._copied = 0

    def add(self, events: Iterable[Event]) -> None:
        """Add events of the run, in order."""
        for event in events:
            if event.parent_task_id is None and event.branch is None:
                self._add(event)

    def _add(self, event: Event) -> None:
        if isinstance(event, TaskEvent):
            self._add_task(event)
        elif isinstance(event, ToolCompleteEvent) and event.call.name not in WRITING_TOOLS:
            self.has_foreign_text = True
        elif event.seq > self._copied:
            self._add_new(event)

    def _add_task(self, event: TaskEvent) -> None:
        self.is_own = event.agent_name == event.initiator == AGENT and not event.messages
        self._copied = event.fork_seq or 0
        if any(message.role == "tool" for message in event.messages):
            self.has_foreign_text = True
        # A fork from the first event replaces the messages.
        if self._copied <= 1:
            # Clients without a log send the whole conversation with each message.
            answers = [index for index, message in enumerate(event.messages) if message.role in ("assistant", "tool")]
            self._add_messages(event, event.messages, first=answers[-1] + 1 if answers else 0)

    def _add_new(self, event: Event) -> None:
        match event:
            case MessageAddedEvent(public=True):
                self._add_messages(event, [Message.user(event.content)])
            case ContentCompleteEvent() if event.finish_reason != "canceled" and event.content.strip():
                self._add_episode(event, event.content, "foreign" if self.has_foreign_text else "model", 0)
            case MemoryNotedEvent() if event.text.strip():
                self.notes.append(
                    Note(
                        note_id=event.note_id,
                        kind=event.note_kind,
                        text=event.text.strip()[:MAX_TEXT],
                        origin=event.origin,
                        task_id=event.task_id,
                        source=event.source or event.cursor,
                        context_id=event.context_id,
                        created=event.timestamp if event.noted is None else event.noted,
                        author=event.author,
                        confidence=event.confidence,
                        replaces=event.replaces,
                        added=event.timestamp,
                    )
                )
            case MemoryForgottenEvent():
                self.removals.append(event)
            case _:
                pass

    def _add_messages(self, event: Event, messages: Iterable[Message], first: int = 0) -> None:
        for index, message in enumerate(messages):
            if index >= first and message.role == "user" and message.text.strip():
                self._add_episode(event, message.text, "user", index)

    def _add_episode(self, event: Event, text: str, origin: NoteOrigin, index: int) -> None:
        self.notes.append(
            Note(
                note_id=make_note_id(event.cursor, index),
                kind="episode",
                text=text.strip()[:MAX_TEXT],
                origin=origin,
                task_id=event.task_id,
                source=event.cursor,
                context_id=event.context_id,
                created=event.timestamp,
                added=event.timestamp,
            )
        )


def make_note_id(cursor: str, index: int = 0) -> str:
    """Return the id of the note with this index in an event. It is short, because models repeat ids."""
    return sha256(f"{cursor} {index}".encode()).hexdigest()[:12]
