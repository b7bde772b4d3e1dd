"""Run events."""

from typing import Any, Literal

from pydantic import AliasChoices, Field
from typing_extensions import override

from rxloop.protocol.envelope import Event
from rxloop.protocol.links import read_link
from rxloop.protocol.messages import Content, ErrorInfo, Message, PendingInput, ToolCall, Usage, public_question
from rxloop.protocol.model import is_empty
from rxloop.protocol.visibility import public_error, public_messages, public_questions, visible_id

State = Literal["submitted", "working", "completed", "failed", "canceled", "input-required", "auth-required"]
WAITING: tuple[State, ...] = ("input-required", "auth-required")
"""States of a run that waits for an answer."""


class TaskEvent(Event):
    """First run event."""

    kind: Literal["task"] = "task"
    marble = "t"
    public_fields = ("initiator", "model", "agent_name", "strategy", "fork_of", "fork_seq")
    public_parts = {
        "messages": public_messages,
        "public_form": lambda event: True,
    }
    incidental_fields = ("agent_name", "fork_of", "fork_seq", "owner", "options", "public_form")
    initiator: str = "user"
    messages: list[Message]
    """Messages that started the run."""
    model: str
    agent_name: str
    strategy: str | None = Field(default=None, exclude_if=is_empty)
    """Strategy name. If None, the default loop is used."""
    fork_of: str | None = None
    """Id of the run from which this run was forked."""
    fork_seq: int | None = None
    """Last copied `seq`."""
    owner: str | None = Field(default=None, exclude_if=is_empty)
    """Owner, such as a user or tenant. It is not sent to clients."""
    options: dict[str, Any] | None = Field(default=None, exclude_if=is_empty)
    """Recorded options (model, settings, limits), used to resume the run. Not sent to clients."""
    public_form: bool = Field(default=False, exclude_if=is_empty)
    """True if private data was removed, so the events cannot be used as a copy of the run. Only set for clients."""

    @override
    def describe(self) -> str:
        return self.messages[-1].text if self.messages else ""


class StatusUpdateEvent(Event):
    """Event published when a run's state changes. The last event of an attempt sets `final`."""

    kind: Literal["status-update"] = "status-update"
    marble = "w"
    public_fields = (
        *("state", "final", "reason", "content", "finish_reason", "usage", "resumed", "after_seq", "agent_name"),
    )
    public_parts = {"error": public_error, "pending": public_questions, "discarded": lambda event: event.discarded}
    incidental_fields = ("resumed", "after_seq", "usage", "pending", "discarded", "agent_name")
    state: State
    final: bool = False
    reason: str | None = None
    """Reason for ending, such as a limit, `error`, `canceled`, `superseded` or `input`. Not set if the run answered. It
    is `released` if a process stopped working on the run without ending it."""
    error: ErrorInfo | None = None
    content: str | None = None
    """Final answer. It is partial if the attempt did not complete."""
    finish_reason: str | None = None
    usage: Usage | None = None
    pending: list[PendingInput] = Field(default_factory=list[PendingInput])
    """Unanswered questions."""
    resumed: bool = False
    after_seq: int | None = None
    """Last `seq` of the previous attempt. Only set in the first event of a resumed attempt."""
    agent_name: str | None = Field(default=None, exclude_if=is_empty)
    """Agent name. Only set in the first event of a resumed attempt, whose subscribers do not receive the `task`."""
    discarded: list[str] = Field(default_factory=list[str], exclude_if=is_empty)
    """Ids of copied questions that a fork asks again. Only set in the first event after the copied events."""

    @override
    def describe(self) -> str:
        reason = f" ({self.reason})" if self.reason else ""
        return f"{self.state}{reason}{', ' + self.content if self.content else ''}"


class MessageAddedEvent(Event):
    """Event that adds a user or system message to the history."""

    kind: Literal["message-added"] = "message-added"
    marble = "m"
    public_fields = ("role", "content", "cause", "message_id")
    incidental_fields = ("message_id",)
    role: Literal["user", "system"] = "user"
    content: Content
    cause: str = "steering"
    """Origin: `steering`, `retry`, `tool`, `fork` or `strategy`. Only `steering` and `fork` are public."""
    message_id: str | None = Field(default=None, exclude_if=is_empty)
    """Message id, if set by the author."""

    @property
    def public(self) -> bool:
        return self.role == "user" and self.cause in ("steering", "fork")

    @override
    def describe(self) -> str:
        return f"{self.role}: {Message(role=self.role, content=self.content).text}"


class CheckpointEvent(Event):
    """Event published when all events up to `durable_seq` are in the log."""

    kind: Literal["checkpoint"] = "checkpoint"
    marble = "k"
    public_fields = ("iteration", "message_count", "usage", "durable_seq")
    incidental_fields = ("usage",)
    iteration: int
    message_count: int
    usage: Usage
    durable_seq: int | None
    """Not set without a log."""


class ContextCompressedEvent(Event):
    """Event published when a request is compressed. The history does not change."""

    kind: Literal["context-compressed"] = "context-compressed"
    marble = "n"
    public_fields = (
        "tokens_before",
        "tokens_after",
        "folded",
        "reason",
        "dropped",
        "shortened",
        "stable_tokens",
        "budget_unmet",
        "thinking_model",
        "thinking",
        "seconds",
    )
    incidental_fields = ("seconds", "thinking")
    tokens_before: int
    """Estimated tokens of the uncompressed messages."""
    tokens_after: int
    folded: list[int] = Field(default_factory=list[int])
    """History indexes of replaced messages."""
    summary: str = ""
    """Summary that replaces the folded messages."""
    reason: str = ""
    """Reason: `overflow`, `steps` (a regular interval), or `refused` (the provider refused the size)."""
    dropped: int = 0
    """Number of messages removed by this compression."""
    shortened: int = 0
    """Number of tool results shortened by this compression."""
    stable_tokens: int = 0
    """Number of unchanged leading tokens that can be cached."""
    budget_unmet: bool = Field(default=False, exclude_if=is_empty)
    """True if the request still exceeds its budget, although nothing more can be removed."""
    problems: list[str] = Field(default_factory=list[str], exclude_if=is_empty)
    """Repaired problems in the compressor's result."""
    thinking_model: str | None = Field(default=None, exclude_if=is_empty)
    """Model used to write the summary."""
    thinking: Usage = Field(default_factory=Usage, exclude_if=lambda usage: not usage.total_tokens)
    """Tokens used by this model. They are not part of the run's usage."""
    seconds: float = 0.0
    """Duration of the compression in seconds."""
    view: dict[str, Any] = Field(default_factory=dict[str, Any])
    """State for the next requests and for resumed runs. Only compressors read it."""

    @override
    def describe(self) -> str:
        return f"{self.tokens_before} to {self.tokens_after} tokens"


class ToolsUnavailableEvent(Event):
    """Event published when a toolset fails on entry or while listing tools. Its tools are missing until it recovers."""

    kind: Literal["tools-unavailable"] = "tools-unavailable"
    marble = "v"
    public_fields = ("toolset",)
    # Events of earlier versions have `family`.
    toolset: str = Field(validation_alias=AliasChoices("toolset", "family"))
    """Name of the toolset."""
    reason: str = ""
    """Cause of the failure. Not sent to clients."""

    @override
    def describe(self) -> str:
        return self.toolset


class InputRequiredEvent(Event):
    """Event published when a run asks a person or client."""

    kind: Literal["input-required"] = "input-required"
    marble = "i"
    public_parts = {"input": lambda event: public_question(event.input)}
    input: PendingInput

    @property
    def input_id(self) -> str:
        """Question id."""
        return self.input.input_id

    @override
    def describe(self) -> str:
        return self.input.prompt


class InputReceivedEvent(Event):
    """Event published when a question is answered."""

    kind: Literal["input-received"] = "input-received"
    marble = "r"
    public_fields = ("input_id",)
    incidental_fields = ("step",)
    input_id: str
    value: Any = None
    """Answer value. Credentials are not recorded."""

    @override
    def describe(self) -> str:
        return self.input_id if self.value is None else f"{self.input_id} = {self.value!r}"


class StageEvent(Event):
    """Event published when a strategy tries to change its stage."""

    kind: Literal["stage"] = "stage"
    marble = "g"
    public_fields = ("strategy", "from_stage", "to_stage", "accepted", "reason", "thought_id", "session_id")
    incidental_fields = ("thought_id",)
    strategy: str
    from_stage: str | None
    to_stage: str
    accepted: bool = True
    reason: str = ""
    thought_id: str | None = Field(default=None, exclude_if=is_empty)
    """Thought id that caused the change."""
    session_id: str | None = Field(default=None, exclude_if=is_empty)
    """Id of the thinking session."""

    @override
    def describe(self) -> str:
        return f"{self.strategy} to {self.to_stage}"


class AuthRequiredEvent(Event):
    """Event published when a credential from a person is required. It never contains secrets."""

    kind: Literal["auth-required"] = "auth-required"
    marble = "y"
    public_fields = ("input_id", "provider", "url", "public_key")
    input_id: str
    provider: str
    """Sign-in provider name."""
    url: str | None = None
    """Sign-in page URL."""
    public_key: str | None = None
    """Key for encrypting the credential. If set, the answer is the ciphertext."""
    call: ToolCall | None = Field(default=None, exclude_if=is_empty)
    """Related tool call."""
    index: int = Field(default=0, exclude_if=is_empty)
    """Zero-based call index."""

    @property
    def input(self) -> PendingInput:
        """The pending question."""
        return PendingInput(
            input_id=self.input_id,
            prompt=f"Sign in to {self.provider}.",
            input_kind="credential",
            call=self.call,
            index=self.index,
            step=self.step,
            provider=self.provider,
            url=self.url,
            public_key=self.public_key,
        )

    @override
    def describe(self) -> str:
        return self.provider


QuestionEvent = InputRequiredEvent | AuthRequiredEvent
"""Events used to ask questions."""


class ArtifactUpdateEvent(Event):
    """Chunk of an artifact."""

    kind: Literal["artifact-update"] = "artifact-update"
    marble = "f"
    public_fields = (
        *("artifact_id", "artifact_version", "index", "offset", "size", "data", "encoding", "name", "media_type"),
        *("last", "hidden"),
    )
    incidental_fields = ("hidden",)
    artifact_id: str
    artifact_version: int = 1
    """One-based version number. Chunk indexes restart with each version."""
    index: int
    """Zero-based index of the chunk in its version. Chunks with missing indexes are only in the artifact store."""
    offset: int = 0
    """Position of the chunk in bytes."""
    size: int = 0
    """Size of the chunk in bytes."""
    data: Any = None
    """Chunk content, or `{"url": ...}` for a link. Only the first million bytes are included; the rest is stored."""
    encoding: Literal["base64"] | None = Field(default=None, exclude_if=is_empty)
    """Encoding of binary data."""
    name: str | None = None
    """Display name of the artifact. Name and media type are only set in the first chunk."""
    media_type: str | None = Field(default=None, exclude_if=is_empty)
    last: bool = False
    """True if this is the last chunk of the version."""
    hidden: bool = Field(default=False, exclude_if=is_empty)
    """True if the artifact is written by a hidden call."""

    @property
    def url(self) -> str | None:
        """URL of an external file, or None if the chunk is not a link."""
        return read_link(self.data)

    @property
    def public(self) -> bool:
        return not self.hidden

    @override
    def describe(self) -> str:
        return f"{self.artifact_id} {self.index}"


class SubtaskEvent(Event):
    """Event published when a nested run starts, continues or ends."""

    kind: Literal["subtask"] = "subtask"
    marble = "b"
    public_fields = ("subtask_id", "agent_name", "index", "state")
    public_parts = {
        "tool_call_id": visible_id("tool_call_id"),
    }
    incidental_fields = ("subtask_id", "agent_name", "tool_call_id", "hidden_calls")
    subtask_id: str
    agent_name: str
    tool_call_id: str | None = None
    index: int = Field(default=0, exclude_if=is_empty)
    """Zero-based call index."""
    state: State = "working"
    """State of the nested run. It is `working` if the run starts or continues."""
    hidden_calls: list[str] = Field(default_factory=list[str], exclude_if=is_empty)
    """Contains `tool_call_id` if the call is hidden from clients. Set by the run."""

    @override
    def describe(self) -> str:
        return f"{self.agent_name} {self.state}"


class CustomEvent(Event):
    """User-defined event."""

    kind: Literal["custom"] = "custom"
    marble = "z"
    public_fields = ("name", "data")
    name: str
    data: Any = None

    @override
    def describe(self) -> str:
        return self.name


class GapEvent(Event):
    """Missing events of a subscription. Only sent to the affected subscriber, and never logged."""

    durable = False
    kind: Literal["gap"] = "gap"
    marble = "j"
    public_fields = ("reason", "count", "after")
    reason: Literal["dropped", "trimmed", "lost-attempt", "unknown-cursor", "log-went-back"]
    count: int | None = None
    """Number of missing events, if known."""
    after: str | None = None
    """Last cursor before the gap."""
