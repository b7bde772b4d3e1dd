"""Events of tool calls, memory, goals and thinking."""

from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Any, Literal, Required

from pydantic import Field, field_validator
from pydantic.json_schema import SkipJsonSchema
from typing_extensions import TypedDict, override

from rxloop.protocol.envelope import Event, Timestamp
from rxloop.protocol.messages import Media, Message, ToolCall, Usage, Wire
from rxloop.protocol.model import is_empty, is_missing


class _ToolEvent(Event):
    public_fields = ("call", "index", "hidden")
    incidental_fields = ("hidden",)
    call: ToolCall
    index: int = 0
    """Zero-based call index."""
    hidden: bool = Field(default=False, exclude_if=is_empty)
    """True if the tool is hidden from clients, as in `call`."""

    @property
    def tool_call_id(self) -> str:
        """Id of the call."""
        return self.call.id

    @property
    def name(self) -> str:
        """Name of the tool."""
        return self.call.name

    @property
    def public(self) -> bool:
        return not (self.hidden or self.call.hidden)


class ToolStartEvent(_ToolEvent):
    """A tool is about to be called."""

    kind: Literal["tool-start"] = "tool-start"
    marble = "s"
    public_fields = ("idempotency_key",)
    incidental_fields = ("idempotency_key",)
    idempotency_key: str
    """Idempotency key. It does not change when the call is repeated."""

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of the call."""
        return self.call.arguments

    @override
    def describe(self) -> str:
        return self.call.describe()


class ToolProgressEvent(_ToolEvent):
    """Progress report of a running tool."""

    durable = False
    kind: Literal["tool-progress"] = "tool-progress"
    marble = "p"
    public_fields = ("message", "fraction")
    message: str
    fraction: float | None = None

    @override
    def describe(self) -> str:
        part = "" if self.fraction is None else f" ({self.fraction:.0%})"
        return f"{self.call.id}: {self.message}{part}"


class ToolCompleteEvent(_ToolEvent):
    """Event published when a tool call ends, including refused, canceled and timed out calls."""

    kind: Literal["tool-complete"] = "tool-complete"
    marble = "x"
    public_fields = ("success", "result", "error", "code", "content", "parts", "duration", "answer")
    incidental_fields = ("duration", "code")
    success: bool
    result: Any = None
    """Return value of the tool, encoded as JSON."""
    error: str | None = None
    code: str | None = Field(default=None, exclude_if=is_empty)
    """Reason of a failure: `error`, `timeout`, `canceled`, `refused`, `unavailable` (no such tool was offered),
    `invalid_arguments`, `incomplete` (the message with the call is incomplete) or `interrupted` (an earlier attempt
    started the call, which cannot be repeated). None in events of earlier versions."""
    content: str
    """The text that the model reads."""
    parts: list[Media] = Field(default_factory=list[Media], exclude_if=is_empty)
    """Additional media, if supported by the provider."""
    duration: float = 0.0
    """Call duration in seconds."""
    answer: bool = Field(default=False, exclude_if=is_empty)
    """True if this call returns the answer of the run as `content`, even if it failed."""
    messages: list[Message] = Field(default_factory=list[Message], exclude_if=is_empty)
    """Additional system messages, added to the history after the batch's results."""

    @override
    def describe(self) -> str:
        return f"{self.name} {'=' if self.success else 'failed:'} {self.content}"


class ToolVoidedEvent(Event):
    """Event published when an early call is discarded, because the model did not request it."""

    visibility = "internal"
    kind: Literal["tool-voided"] = "tool-voided"
    marble = "V"
    call: ToolCall
    index: int = 0
    """Expected call index."""

    @override
    def describe(self) -> str:
        return self.call.describe()


NoteKind = Literal["fact", "preference", "decision", "episode"]
"""Kind of a note. An `episode` is a message of a conversation."""

NoteOrigin = Literal["user", "program", "model", "foreign"]
"""Author of a note: the user of the run, the program, the model, or the model after it read foreign text.

Foreign text is the result of a tool, an attached file, or a note that contains foreign text.
"""


class MemoryNotedEvent(Event):
    """Event published when a note is added to the memory of the owner of the run."""

    kind: Literal["memory-noted"] = "memory-noted"
    marble = "M"
    public_fields = ("note_id", "note_kind", "text", "origin", "author", "confidence", "replaces", "sources", "noted")
    note_id: str
    note_kind: NoteKind = "fact"
    text: str
    origin: NoteOrigin = "program"
    author: str = Field(default="", exclude_if=is_empty)
    """Name of the person who wrote the message, in a conversation of several people."""
    confidence: float = 1.0
    """Confidence from 0 to 1."""
    replaces: str | None = Field(default=None, exclude_if=is_empty)
    """Id of the outdated note."""
    sources: list[str] = Field(default_factory=list[str], exclude_if=is_empty)
    """Cursors of the events that the note is based on, if it is not this event."""
    noted: Timestamp | None = Field(default=None, exclude_if=is_missing)
    """Time of the message, if it was imported later."""

    @override
    def describe(self) -> str:
        return self.text


class MemoryRecalledEvent(Event):
    """Event published when notes are added to the model requests of a run, until the next user message."""

    kind: Literal["memory-recalled"] = "memory-recalled"
    marble = "H"
    public_fields = ("note_ids", "foreign", "reflection")
    note_ids: list[str]
    """Ids of the notes."""
    foreign: bool = Field(default=False, exclude_if=is_empty)
    """True if a note contains foreign text."""
    reflection: bool = Field(default=False, exclude_if=is_empty)
    """True if the run summarises the notes."""

    @override
    def describe(self) -> str:
        return f"{len(self.note_ids)} notes"


class MemoryForgottenEvent(Event):
    """Event published when notes are removed from the memory of the owner of the run."""

    kind: Literal["memory-forgotten"] = "memory-forgotten"
    marble = "R"
    public_fields = ("note_ids", "run_id", "before")
    note_ids: list[str] = Field(default_factory=list[str], exclude_if=is_empty)
    """Ids of the notes."""
    run_id: str | None = Field(default=None, exclude_if=is_empty)
    """Run whose notes are removed."""
    before: int | None = Field(default=None, exclude_if=is_empty)
    """Notes that were added earlier are removed. In milliseconds since 1970."""


GoalStatus = Literal["pending", "active", "done", "dropped"]

MAX_GOALS = 100


class Goal(Wire):
    """Goal of a run."""

    id: str = Field(min_length=1, max_length=64)
    title: str = Field(min_length=1, max_length=300)
    status: GoalStatus = "pending"
    parent: str | None = Field(default=None, exclude_if=is_empty)
    """Id of the goal that includes this goal, or None."""
    depends_on: list[str] = Field(default_factory=list[str], exclude_if=is_empty)
    """Ids of goals to achieve first."""

    @property
    def closed(self) -> bool:
        """True if the goal is done or dropped."""
        return self.status in ("done", "dropped")


_GoalId = Annotated[str, Field(coerce_numbers_to_str=True)]
_Null = SkipJsonSchema[None]
"""Models send null for omitted arguments, even if the schema does not mention it."""


class GoalChange(TypedDict, total=False):
    """New goal, or changes to the goal with this id. Omitted fields stay unchanged."""

    id: Required[Annotated[_GoalId, Field(description="Short id, such as `tests`.")]]
    title: Annotated[str | _Null, Field(description="Result to achieve. Required for a new goal.")]
    status: GoalStatus | _Null
    parent: Annotated[_GoalId | _Null, Field(description="Id of the goal that includes this goal. Empty for none.")]
    depends_on: Annotated[list[_GoalId] | _Null, Field(description="Ids of goals to achieve first.")]


def check_goals(goals: Sequence[Goal]) -> Sequence[Goal]:
    """Validate goals and return them.

    Raises:
        ValueError: An id is unknown or repeated, a goal waits for itself, or there are too many goals.
    """
    ids = {goal.id for goal in goals}
    if len(goals) > MAX_GOALS:
        raise ValueError(f"there must be at most {MAX_GOALS} goals, got {len(goals)}; reuse the ids of closed goals")
    if len(ids) < len(goals):
        raise ValueError("the ids of goals must be unique")
    # Goals wait for their dependencies and their parts.
    waits_for = {goal.id: [*goal.depends_on] for goal in goals}
    for goal in goals:
        for other in (*goal.depends_on, *([] if goal.parent is None else [goal.parent])):
            if other not in ids:
                raise ValueError(f"goal {goal.id!r} refers to the unknown goal {other!r}; add {other!r} too")
        if goal.parent is not None:
            waits_for[goal.parent].append(goal.id)
    try:
        TopologicalSorter(waits_for).prepare()
    except CycleError as error:
        path = " -> ".join(reversed(error.args[1]))
        raise ValueError(f"goals must not wait for themselves, got {path}; remove a parent or a dependency") from None
    return goals


class GoalsUpdatedEvent(Event):
    """Event published when goals of a run are added or changed."""

    kind: Literal["goals-updated"] = "goals-updated"
    marble = "G"
    public_fields = ("goals",)
    goals: list[Goal]
    """All goals of the run, including unchanged ones."""

    _check_goals = field_validator("goals")(check_goals)

    @override
    def describe(self) -> str:
        return ", ".join(f"{goal.title} ({goal.status})" for goal in self.goals if goal.parent is None)


class ThinkingNotedEvent(Event):
    """Event published when a thinking phase writes a note for the next requests."""

    kind: Literal["thinking-noted"] = "thinking-noted"
    marble = "T"
    public_fields = ("note", "position", "thinking_model", "thinking", "seconds", "published")
    incidental_fields = ("thinking", "seconds")
    note: str
    position: int = 0
    """Number of messages in the history."""
    thinking_model: str | None = Field(default=None, exclude_if=is_empty)
    """Model used to write the note."""
    thinking: Usage = Field(default_factory=Usage, exclude_if=lambda usage: not usage.total_tokens)
    """Tokens used by this model. They are not part of the run's usage."""
    seconds: float = 0.0
    """Duration in seconds."""
    published: bool = False
    """True if clients receive the event."""

    @property
    def public(self) -> bool:
        return self.published

    @override
    def describe(self) -> str:
        return self.note


class ThinkingFailedEvent(Event):
    """Event published when a compression or a thinking phase fails. The request is sent without its result."""

    kind: Literal["thinking-failed"] = "thinking-failed"
    marble = "q"
    public_fields = ("tokens_before", "thinking")
    public_parts = {"reason": lambda event: "the thinking phase failed"}
    reason: str
    tokens_before: int = 0
    thinking: bool = Field(default=False, exclude_if=is_empty)
    """True if thinking failed, and False if the compression failed."""

    @override
    def describe(self) -> str:
        return self.reason
