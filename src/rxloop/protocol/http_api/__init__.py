"""Request and response bodies of the HTTP API, shared by server and client."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, cast

from pydantic import Field, model_validator

from rxloop.protocol.envelope import Timestamp
from rxloop.protocol.ids import Id
from rxloop.protocol.media import make_part
from rxloop.protocol.messages import (
    ErrorInfo,
    FilePart,
    ImagePart,
    Message,
    Part,
    PendingInput,
    TextPart,
    ToolCall,
    Usage,
    Wire,
)
from rxloop.protocol.model import NOT_BOOL, is_empty, is_missing
from rxloop.protocol.run_events import State
from rxloop.protocol.settings import ReasoningEffort
from rxloop.protocol.tool_events import MAX_GOALS, Goal, GoalChange

Text = Annotated[str, Field(min_length=1, max_length=100_000)]

_Address = Annotated[str, Field(pattern=r"^https?://[^/][!-~]*$", max_length=2_000)]

Deltas = Literal["live", "kept", "none"]
"""Text deltas in an event stream. `live`: sent while the model writes. `kept`: read from the log, which keeps them.
`none`: only whole messages, because this process does not execute the run and the log does not keep deltas."""

MAX_NAME = 200
"""Maximum number of characters of a name."""
_Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]


class TextInput(Wire):
    """Input text part."""

    type: Literal["text"]
    text: Text


class LinkedInput(Wire):
    """Image or file that the model provider downloads."""

    type: Literal["image", "file"]
    url: _Address
    media_type: _Name | None = None


class InlineInput(Wire):
    """Image or file sent in the request."""

    type: Literal["image", "file"]
    data: Annotated[str, Field(min_length=1)]
    """Base64-encoded bytes."""
    media_type: _Name
    """MIME type of the data."""

    @model_validator(mode="after")
    def _check_data(self) -> Self:
        # Convert the part now, so that the response names this field.
        self.to_part()
        return self

    def to_part(self) -> ImagePart | FilePart:
        """Convert this input to a message part.

        Raises:
            ValueError: The data are empty or not base64.
        """
        return make_part(data=self.data, media_type=self.media_type, image=self.type == "image")


InputPart = TextInput | LinkedInput | InlineInput

Input = Text | Annotated[list[InputPart], Field(min_length=1, max_length=64)]
"""User input text or parts."""


class UserMessage(Wire):
    """User message."""

    role: Literal["user"] = "user"
    content: Input
    message_id: Id | None = None
    """Id of the message, used by programs."""


class ToolSpec(Wire):
    """Tool executed by the client. Calling it pauses the run until `resume` is called with the result."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    description: Annotated[str, Field(max_length=10_000)] = ""
    parameters: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON Schema for the arguments."""


class RunSettings(Wire):
    """Settings for model calls. The server decides which settings clients may use."""

    temperature: Annotated[float, Field(ge=0, le=2), NOT_BOOL] | None = None
    top_p: Annotated[float, Field(ge=0, le=1), NOT_BOOL] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=2**31 - 1), NOT_BOOL] | None = None
    seed: Annotated[int, Field(ge=0, le=2**53), NOT_BOOL] | None = None
    stop: Annotated[list[_Name], Field(max_length=16)] | None = None
    reasoning_effort: ReasoningEffort | None = None


class StartRun(Wire):
    """Request to start a run."""

    type: Literal["prompt"] = "prompt"
    input: Input | Annotated[list[UserMessage], Field(min_length=1, max_length=64)]
    """Prompt text, parts or messages."""
    agent: str | None = None
    """Name of the agent. It is optional if the server has a single agent."""
    context_id: Id | None = None
    """Id of the conversation to continue. By default, a new conversation starts."""
    when_busy: Literal["wait", "refuse"] = "wait"
    """Behavior if the conversation already has an active run."""
    tools: Annotated[list[ToolSpec], Field(max_length=128)] = Field(default_factory=list[ToolSpec])
    """Tools that the client executes in this run."""
    settings: RunSettings | None = None
    """Settings used to override the agent's settings."""
    metadata: Annotated[dict[str, Any], Field(max_length=64)] = Field(default_factory=dict[str, Any])
    """Metadata to return with the run and its first event."""


class ResumeRun(Wire):
    """Request to answer questions of a waiting run, or to resume an ended run."""

    type: Literal["resume"] = "resume"
    inputs: Annotated[dict[str, Any], Field(max_length=64)] = Field(default_factory=dict[str, Any])
    """Answers by `inputId`. Empty to resume a run that was canceled, or failed with a retryable error."""
    after: str | None = Field(default=None, max_length=200)
    """Cursor of the last event that the client has. If the run has continued since, it is not resumed again. Only for
    requests without answers."""

    @model_validator(mode="after")
    def _check_after(self) -> Self:
        if self.inputs and self.after is not None:
            raise ValueError("`after` cannot be combined with `inputs`")
        return self


class SendMessage(Wire):
    """Request to send a message to an active run."""

    input: Input
    interrupt: bool = False
    """True to stop the answer that is being generated."""


class UpdateGoals(Wire):
    """Request to add or change goals of a run."""

    changes: Annotated[list[GoalChange], Field(min_length=1, max_length=MAX_GOALS)]


class CancelRun(Wire):
    """Request to cancel a run."""

    reason: Annotated[str, Field(max_length=1_000)] | None = None


class ForkRun(Wire):
    """Request to create a run that starts with a copy of another run's events."""

    at: Annotated[int, Field(ge=1, le=2**53), NOT_BOOL]
    """Last `seq` to copy."""
    input: Input | None = None
    """New message after the copied events. If `at` is 1, it replaces the prompt."""
    results: Annotated[dict[str, Any], Field(max_length=64)] = Field(default_factory=dict[str, Any])
    """Tool results by call id or slot."""
    model: _Name | None = None
    """Model for the new calls, one of `models` of the agent."""
    settings: RunSettings | None = None
    """Settings used to override the agent's settings."""


class RunInfo(Wire):
    """Public run state."""

    task_id: str
    context_id: str
    agent: str
    owner: str | None = Field(default=None, exclude_if=is_empty)
    """Owner of the run. Only included for clients with the scope `others`."""
    state: State
    attempt: int
    seq: int
    deltas: Deltas
    """Text deltas currently available. The actual value is returned in the `Rxloop-Deltas` header when streaming."""
    cursor: str
    """Cursor of the newest event in the log. Use it to read later events."""
    created: Timestamp
    updated: Timestamp
    events: str
    """URL path of the run's events."""
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any], exclude_if=is_empty)
    content: str | None = Field(default=None, exclude_if=is_empty)
    """Answer of the last attempt. It is partial if the attempt did not complete."""
    reason: str | None = Field(default=None, exclude_if=is_empty)
    """Reason for the end of the last attempt. Missing if the run answered."""
    finish_reason: str | None = Field(default=None, exclude_if=is_empty)
    pending: list[PendingInput] = Field(default_factory=list[PendingInput], exclude_if=is_empty)
    """Unanswered questions."""
    usage: Usage | None = Field(default=None, exclude_if=is_empty)
    error: ErrorInfo | None = Field(default=None, exclude_if=is_empty)
    model: str | None = Field(default=None, exclude_if=is_missing)
    """Name of the model with which the run started. This field and the following ones are only included in lists with
    `details=1`."""
    title: str | None = Field(default=None, exclude_if=is_missing)
    """Beginning of the message that started the run, at most 120 characters."""
    seconds: float | None = Field(default=None, exclude_if=is_missing)
    """Time from the first to the last event, including pauses and excluding events that a fork has copied."""
    first_token: float | None = Field(default=None, exclude_if=is_missing)
    """Seconds from the first model call to its first token."""
    calls: int | None = Field(default=None, exclude_if=is_missing)
    """Number of tool calls that were started. Missing if the server had no time to read the run."""
    problems: int | None = Field(default=None, exclude_if=is_missing)
    """Number of problems. Missing if the server had no time to read the run."""
    token_rate: list[int] | None = Field(default=None, exclude_if=is_missing)
    """Input and output tokens in at most twelve equal parts of `seconds`, excluding events that a fork has copied.
    Missing if the server had no time to read the run."""
    dollars: float | None = Field(default=None, exclude_if=is_missing)
    """Cost in US dollars, including nested agents. Missing if no model of the run has a price, or if the server had no
    time to read the run."""
    fork_of: str | None = Field(default=None, exclude_if=is_missing)
    """Id of the run from which this run was forked."""

    @property
    def is_idle(self) -> bool:
        """True if the run is finished or waits for an answer."""
        return self.state not in ("submitted", "working")


class RunPage(Wire):
    """Runs, newest first."""

    runs: list[RunInfo]
    next: str | None = None
    """Value of `after` for the next page, or None on the last page."""


class ContextInfo(Wire):
    """Conversation with its first and latest run."""

    context_id: str
    owner: str | None = Field(default=None, exclude_if=is_empty)
    """Owner of the conversation. Only included for clients with the scope `others`."""
    created: Timestamp
    updated: Timestamp
    task_id: str
    """Id of the latest run."""
    agent: str
    """Agent of the latest run."""
    state: State
    """State of the latest run."""
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any], exclude_if=is_empty)
    """First run's metadata."""


class ContextPage(Wire):
    """Conversations, latest activity first."""

    contexts: list[ContextInfo]
    next: str | None = None
    """Value of `after` for the next page, or None on the last page."""


class StateInfo(Wire):
    """Recorded run state."""

    task_id: str
    seq: int
    """The `seq` of the last included event."""
    attempt: int
    state: State
    reason: str | None = Field(default=None, exclude_if=is_empty)
    error: ErrorInfo | None = Field(default=None, exclude_if=is_empty)
    iteration: int
    """Number of model calls started on the main branch."""
    messages: list[Message]
    """Run messages. Messages with unanswered calls are not included."""
    message_count: int | None = Field(default=None, exclude_if=is_missing)
    """Number of messages, including those before `messagesFrom`. Only included if the request has this parameter."""
    calls: list[ToolCall] = Field(default_factory=list[ToolCall], exclude_if=is_empty)
    """Unanswered tool calls."""
    pending: list[PendingInput] = Field(default_factory=list[PendingInput], exclude_if=is_empty)
    """Unanswered questions."""
    goals: list[Goal] = Field(default_factory=list[Goal], exclude_if=is_empty)
    """Goals, including those of earlier runs of the conversation."""
    content: str
    """Newest answer, possibly partial."""
    usage: Usage
    omitted: dict[str, int] = Field(default_factory=dict[str, int], exclude_if=is_empty)
    """Shortened values by their JSON Pointer: number of omitted characters of a text, or of omitted values of a list or
    object. Only with `maxText`."""


class MessageList(Wire):
    """Messages, oldest first."""

    messages: list[Message]


class AgentInfo(Wire):
    """Agent that clients can run."""

    name: str
    model: str
    tools: list[str]
    models: list[str] = Field(default_factory=list[str], exclude_if=is_empty)
    """Models that clients may choose for forks."""
    settings: list[str] = Field(default_factory=list[str], exclude_if=is_empty)
    """Model settings that clients may set."""


class AgentList(Wire):
    """Agents hosted by a server."""

    agents: list[AgentInfo]


class Health(Wire):
    """Response of the health check."""

    status: Literal["ok"] = "ok"


class ProblemInfo(Wire):
    """Error details."""

    code: str
    """Error code for programs."""
    message: str
    """Message for people."""
    fields: dict[str, str] | None = Field(default=None, exclude_if=is_empty)
    """Error messages by field of the request body or query."""


class Problem(Wire):
    """Body of all error responses."""

    error: ProblemInfo


def make_messages(input: str | list[InputPart] | list[UserMessage]) -> list[Message]:
    """Convert the input of a request to user messages."""
    if isinstance(input, str):
        return [Message.user(input)]
    messages = [each for each in input if isinstance(each, UserMessage)]
    if messages:
        return [Message.user(_content(each.content), message_id=each.message_id) for each in messages]
    return [Message.user(_content(cast("list[InputPart]", input)))]


def _content(content: str | list[InputPart]) -> str | list[Part]:
    return content if isinstance(content, str) else [_part(part) for part in content]


def _part(part: InputPart) -> Part:
    if isinstance(part, TextInput):
        return TextPart(text=part.text)
    if isinstance(part, InlineInput):
        return part.to_part()
    cls = ImagePart if part.type == "image" else FilePart
    return cls(url=part.url, media_type=part.media_type)
