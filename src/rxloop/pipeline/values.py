"""The values that pass through the seams: what logs and stores know, what workspaces show, what summaries are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rxloop.protocol.events import Event, State
from rxloop.protocol.messages import ErrorInfo, Message, Usage

_NOTE = "[Where you are, for you alone; the conversation above is what counts.]"


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What a log knows of a run without reading its events."""

    task_id: str
    context_id: str
    agent_name: str
    state: State
    attempt: int
    seq: int
    created: int
    """Milliseconds since 1970."""
    updated: int
    """Milliseconds since 1970."""
    model: str = ""
    """What the run was begun with."""
    owner: str | None = field(default=None, repr=False)
    """Whose run it is, such as a user or a tenant; stays on the server."""
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False, hash=False)
    """Of its `task` event; stays on the server, except for what stands under the key `public`."""
    usage: Usage | None = None
    """Of the whole run, as its last final event says; None before the first one."""
    error: ErrorInfo | None = field(default=None, repr=False)
    """What ended its last attempt, where that was an error."""

    @property
    def finished(self) -> bool:
        """Whether the run is over. One that failed by what may pass is, too, until somebody resumes it."""
        return self.state in ("completed", "failed")


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a conversation: after which runs, and how they stood."""

    runs: int
    """How many."""
    events: int
    """How many durable events they had."""
    updated: int
    """The sum of the times of the last events of each, in milliseconds: they may be others under the same numbers."""
    last: str
    """The id of the last one."""


@dataclass(frozen=True, slots=True)
class Histories:
    """What a conversation has after a mark, or all that it has."""

    events: Sequence[Event]
    """The durable events of run after run."""
    mark: Mark
    """After the last of these runs."""
    whole: bool
    """The events begin with the first run: no mark was given, or a run before it is not as it was."""


@dataclass(frozen=True, slots=True)
class KeptFold:
    """What runs of a conversation that follow one another add to it, as whoever folded them wrote it down.

    A log need not understand it.
    """

    first: str
    """The id of the first of these runs."""
    last: str
    """The id of the last one."""
    runs: int
    """How many they are."""
    events: int
    """How many durable events they have."""
    summary: bytes
    """What has to be known at once; JSON."""
    messages: bytes
    """The messages; JSON."""


@dataclass(frozen=True, slots=True)
class RunEvents:
    """A run that no kept fold covers."""

    task_id: str
    complete: bool
    """Whether its last attempt is over, and all events are here: it is as it will be, unless somebody resumes it."""
    events: Sequence[Event]
    """The durable ones."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a conversation has after a mark, or all that it has: kept folds, and the events of the other runs."""

    parts: Sequence[KeptFold | RunEvents]
    """In the order of the runs."""
    mark: Mark
    """After the last of these runs."""
    whole: bool
    """They begin with the first run: no mark was given, or a run before it is not as it was."""


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """What a store knows of a thinking session without reading its entries."""

    owner: str
    session_id: str
    version: int
    """Counts the changes, from 1."""
    length: int
    """How many entries there are."""
    created: int
    """Milliseconds since 1970."""
    used: int
    """Milliseconds since 1970."""
    state: Literal["active", "complete", "cleared", "expired"] = "active"
    """`cleared` and `expired` are what is left of a session: no entries, and the name of the one that follows it."""
    successor: str | None = None


@dataclass(frozen=True, slots=True)
class SessionChange:
    """One change of a session, for a store to make."""

    record: SessionRecord
    """The session after the change; its version is one more than that before, which is 0 for a new one."""
    entries: tuple[bytes, ...] = ()
    """The entries that come to it, as JSON."""
    call_id: str | None = None
    """The tool call that the change was made for."""


@dataclass(frozen=True, slots=True)
class ArtifactRecord:
    """What a store knows of one version of an artifact without its content."""

    artifact_id: str
    version: int
    """Counts how often the artifact was begun, from 1."""
    name: str
    """What people call it."""
    media_type: str
    created: int
    """When the first version was begun, in milliseconds since 1970."""
    updated: int
    """Milliseconds since 1970."""
    size: int = 0
    """Bytes."""
    chunks: int = 0
    """How many chunks it has: the index of the next one."""
    complete: bool = False
    """Whether the last chunk is there."""


@dataclass(frozen=True, slots=True)
class ArtifactChunk:
    """A chunk as it stands in the store."""

    record: ArtifactRecord
    """The version that it belongs to, as it is now."""
    index: int
    """Its place in that version, from 0."""
    offset: int
    """The bytes before it."""


@dataclass(frozen=True, slots=True)
class WorkspacePart:
    """A piece of a workspace."""

    text: str
    title: str = ""
    """A line above it, such as the name of a file."""
    kind: Literal["static", "live"] = "live"
    """`static` parts stand after the system prompt, where the provider's cache keeps them; `live` ones at the end."""


Until = Literal["attempt", "end"]
"""Where a follower stops: at the end of the run's attempt, or when the run is over for good."""

Rendered = str | Sequence[WorkspacePart]


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingResult:
    """What the thinking phase made of a run, before one of its model calls."""

    summary: str = ""
    """What stands for the messages that are left out."""
    current_state: str = ""
    """How far the run is, in a sentence or two."""
    insights: tuple[str, ...] = ()
    """What the model has found so far, by its own thoughts."""
    next_actions: tuple[str, ...] = ()
    """What it meant to do, by its own thoughts, and what went wrong last."""
    compressed_history: Sequence[Message] = field(default=(), repr=False)
    """The messages that are sent for the history."""
    thinking_tokens: Usage = field(default_factory=Usage)
    """What the thinking model used for it."""

    def note(self) -> str:
        """Write the note for the model, in a few lines; empty if there is nothing to say."""
        lines = [self.current_state] if self.current_state else []
        lines += [f"You found: {insight}" for insight in self.insights]
        lines += [f"To do: {action}" for action in self.next_actions]
        return "\n".join([_NOTE, *lines]) if lines else ""
