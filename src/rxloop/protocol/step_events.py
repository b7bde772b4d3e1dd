"""Step events."""

from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field
from typing_extensions import override

from rxloop.protocol.envelope import Event
from rxloop.protocol.messages import Citation, ErrorInfo, Media, ResponseInfo, ToolCall, Usage, Wire
from rxloop.protocol.model import is_empty, is_missing, make_unchecked
from rxloop.protocol.parts import add_placeholders
from rxloop.protocol.visibility import hidden_indexes, public_calls, visible_id

Verbosity = Literal["brief", "normal", "detailed"]
ThoughtSource = Literal["tool", "tag", "reasoning", "sequential", "strategy"]
ThoughtType = Literal[
    "planning", "reasoning", "reflection", "decision", "observation", "critique", "strategy", "analysis", "thinking"
]
THOUGHT_TYPES: tuple[str, ...] = get_args(ThoughtType)


PartOrigin = Literal["system", "task", "summary", "history", "workspace", "memory", "note"]
"""Origin of a message in a model request.

`system`: the system prompt. `task`: the messages that started the run. `summary`: a summary of removed messages.
`history`: other messages of the conversation. `workspace`: the content of a workspace. `memory`: notes of a memory,
whose text is not recorded. `note`: another message that an operator or a strategy added to this request only.
"""


class PartTokens(Wire):
    """Estimated tokens of the parts of a request. Their sum is the estimate of the request."""

    # As in `ToolCall`.
    __slots__ = ("_normalised",)

    system: int = Field(default=0, exclude_if=is_empty)
    tools: int = Field(default=0, exclude_if=is_empty)
    task: int = Field(default=0, exclude_if=is_empty)
    """Messages that started the run."""
    summary: int = Field(default=0, exclude_if=is_empty)
    """Summary of removed messages."""
    history: int = Field(default=0, exclude_if=is_empty)
    """Other messages of the conversation."""
    workspace: int = Field(default=0, exclude_if=is_empty)
    memory: int = Field(default=0, exclude_if=is_empty)
    """Notes of a memory."""
    note: int = Field(default=0, exclude_if=is_empty)
    """Messages that operators and strategies added to this request only."""


class RecordedPart(Wire):
    """Message of a request that is not sent as it is in the history."""

    text: str
    """Digest of the message."""
    index: int | None = Field(default=None, exclude_if=is_missing)
    """Index of the history message that it replaces, if any."""
    origin: PartOrigin | None = Field(
        default=None, validation_alias="from", serialization_alias="from", exclude_if=is_missing
    )
    """Origin, unless it is the system prompt or the history."""


class RequestRecord(Wire):
    """Record of a request, from which the request can be rebuilt exactly.

    Without `base` and `messages`, the request contains the whole history.
    """

    # As in `ToolCall`.
    __slots__ = ("_normalised",)

    base: int | None = Field(default=None, exclude_if=is_missing)
    """The `seq` of an earlier `llm-call` of the same run and branch that starts with the same messages."""
    same: int = Field(default=0, exclude_if=is_empty)
    """Number of messages that are the same as in `base`."""
    messages: list[tuple[int, int] | RecordedPart] | None = Field(default=None, exclude_if=is_missing)
    """First and last indexes in the history, and changed messages. They follow the messages of `base`."""
    system: list[RecordedPart] = Field(default_factory=list[RecordedPart], exclude_if=is_empty)
    """System messages before the history."""
    tail: list[RecordedPart] = Field(default_factory=list[RecordedPart], exclude_if=is_empty)
    """Messages after the history."""
    tools: str | None = Field(default=None, exclude_if=is_missing)
    """Digest of the list of tools, which contains the digests of their definitions."""
    answer_schema: str | None = Field(default=None, exclude_if=is_missing)
    """Digest of the JSON Schema of the answer."""
    settings: dict[str, Any] = Field(default_factory=dict[str, Any], exclude_if=is_empty)
    """Settings that are not in `llm-call.settings`, without those that may contain secrets."""
    texts: dict[str, Any] = Field(default_factory=dict[str, Any], exclude_if=is_empty)
    """Messages, tools and schemas by digest that no earlier `llm-call` of the run contains."""


class LLMCallEvent(Event):
    """Event published before a request is sent to the model."""

    kind: Literal["llm-call"] = "llm-call"
    marble = "l"
    public_fields = (
        *("iteration", "model", "message_count", "tool_count", "estimated_input_tokens", "parts", "window"),
    )
    incidental_fields = ("estimated_input_tokens", "settings", "parts", "window", "request")
    iteration: int
    model: str
    message_count: int
    tool_count: int
    estimated_input_tokens: int
    problems: list[str] = Field(default_factory=list[str], exclude_if=is_empty)
    """Problems found and repaired in messages that operators created."""
    settings: dict[str, Any] | None = Field(default=None, exclude_if=is_empty)
    """Settings `temperature`, `top_p`, `max_tokens`, `seed` and `stop` of the request, if set. Not sent to clients."""

    parts: PartTokens | None = Field(default=None, exclude_if=is_missing)
    """Estimated tokens of each part of the request. Their sum is `estimated_input_tokens`."""
    window: int | None = Field(default=None, exclude_if=is_missing)
    """Context window of the model in tokens, if known."""
    request: RequestRecord | None = Field(default=None, exclude_if=is_missing)
    """Record of the request. Not sent to clients. Read requests with `GET /runs/{task_id}/requests/{seq}`."""

    @override
    def describe(self) -> str:
        return f"{self.model}, {self.message_count} messages"


class LLMFailedEvent(Event):
    """Event published when a request to the model fails, whether it is retried or not."""

    visibility = "internal"
    kind: Literal["llm-failed"] = "llm-failed"
    marble = "e"
    error: ErrorInfo
    retryable: bool
    """True if the same request may succeed later."""
    retry_in: float | None = None
    """Delay in seconds before the next try, or None if the request is not retried."""
    status: int | None = None
    """HTTP status code, if any."""
    tries: int = 1
    """Number of failed requests in this call, including this one."""
    refused: dict[str, str] = Field(default_factory=dict[str, str], exclude_if=is_empty)
    """Refused media fingerprints and reasons. Refused media should not be sent again."""

    @override
    def describe(self) -> str:
        return f"{self.error.code}: {self.error.message}"


NoticeCode = Literal["left_out", "changed", "skipped", "unread_answer", "repaired"]


class LLMNoticeEvent(Event):
    """Event published when part of a request or its answer was omitted or changed. The call continues.

    `left_out`: the vendor does not support a part of the conversation or a setting. `changed`: an image or a file was
    sent with another media type or as another kind of part. `skipped`: the vendor sent unknown data.
    `unread_answer`: the code no longer requests a recorded answer. `repaired`: the model's JSON was extracted from text
    that is not JSON.
    """

    visibility = "internal"
    kind: Literal["llm-notice"] = "llm-notice"
    marble = "N"
    incidental_fields = ("code", "message")
    # Events of earlier versions have `passed_over`.
    code: Annotated[NoticeCode, BeforeValidator(lambda code: "skipped" if code == "passed_over" else code)]
    message: str

    @override
    def describe(self) -> str:
        return f"{self.code}: {self.message}"


class ServerToolEvent(Event):
    """Event published when a tool executed by the vendor, such as web search, starts or ends."""

    kind: Literal["server-tool"] = "server-tool"
    marble = "S"
    public_fields = ("tool_call_id", "name", "phase", "arguments", "result", "success")
    incidental_fields = ("tool_call_id",)
    tool_call_id: str
    """Call id from the vendor."""
    name: str
    """Name of the tool in the vendor's API."""
    phase: Literal["start", "complete"]
    arguments: Any = None
    """Call arguments, if reported."""
    result: Any = None
    """Raw result, if reported."""
    success: bool = True

    @override
    def describe(self) -> str:
        return f"{self.name} {self.phase}"


class ContentDeltaEvent(Event):
    """Piece of the answer's text, sent while it streams."""

    durable = False
    kind: Literal["content-delta"] = "content-delta"
    marble = "d"
    public_fields = ("delta", "index")
    delta: str
    index: int = 0
    """Zero-based delta index."""


class ContentCompleteEvent(Event):
    """Complete assistant message."""

    kind: Literal["content-complete"] = "content-complete"
    marble = "c"
    public_fields = (
        *("content", "reasoning", "finish_reason", "raw_finish_reason", "max_tokens", "files", "citations"),
        *("first_token", "longest_silence"),
    )
    public_parts = {"tool_calls": public_calls, "left_out": hidden_indexes}
    incidental_fields = (
        *("provider_state", "raw_finish_reason", "left_out", "offered", "first_token", "longest_silence", "response"),
    )
    content: str = ""
    files: list[Media] = Field(default_factory=list[Media], exclude_if=is_empty)
    """Images and other files from the model. They follow the text in the history."""
    citations: list[Citation] = Field(default_factory=list[Citation], exclude_if=is_empty)
    """Citations in text order. They are not added to the history."""
    reasoning: str | None = None
    tool_calls: list[ToolCall] = Field(default_factory=list[ToolCall])
    finish_reason: str = "stop"
    """`stop`, `tool_calls`, `length`, `content_filter`, `pause` (the model continues in the next call), `canceled`,
    `interrupted` (a new message stopped it, and the partial text stays in the history), or `unknown` (missing or
    unknown). Tool calls are executed only with `stop`, `tool_calls` and `pause`."""
    raw_finish_reason: str | None = None
    """Finish reason in the vendor's API."""
    max_tokens: int | None = Field(default=None, exclude_if=lambda value: value is None)
    """Token limit that truncated the message (`length`), if the request had one."""
    provider_state: dict[str, Any] | None = None
    """Opaque provider data."""
    left_out: list[int] = Field(default_factory=list[int], exclude_if=is_empty)
    """Indexes of the hidden calls that are missing from `tool_calls`. Only set in events for clients."""
    offered: list[str] | None = Field(default=None, exclude_if=lambda value: value is None)
    """Names of the tools offered to the model. None means that all tools were offered."""
    first_token: float | None = Field(default=None, exclude_if=lambda value: value is None)
    """Seconds from the `llm-call` to the first delta, including failed requests. None if the answer had no deltas."""
    longest_silence: float | None = Field(default=None, exclude_if=lambda value: value is None)
    """Longest time between two consecutive deltas in seconds. None if the answer had no deltas."""
    response: ResponseInfo | None = Field(default=None, exclude_if=is_missing)
    """Origin of the message, if a vendor's API returned it. Not sent to clients."""

    @override
    def describe(self) -> str:
        calls = ", ".join(call.describe() for call in self.tool_calls)
        said = add_placeholders(self.content, self.files) if self.files else self.content
        return " -> ".join(part for part in (said, calls) if part) or self.finish_reason


class ToolCallDeltaEvent(Event):
    """Piece of a tool call's arguments, sent while they stream."""

    durable = False
    kind: Literal["tool-call-delta"] = "tool-call-delta"
    marble = "a"
    public_fields = ("index", "tool_call_id", "name", "fragment", "hidden")
    incidental_fields = ("tool_call_id", "hidden")
    index: int
    """Zero-based call index."""
    tool_call_id: str
    name: str
    fragment: str
    hidden: bool = Field(default=False, exclude_if=is_empty)

    @property
    def public(self) -> bool:
        return not self.hidden


class ThoughtDeltaEvent(Event):
    """Piece of the model's reasoning, sent while it streams."""

    durable = False
    kind: Literal["thought-delta"] = "thought-delta"
    marble = "o"
    public_fields = ("delta", "index")
    delta: str
    index: int = 0


class SessionLink(Wire):
    """Position of a thought in its thinking session."""

    session_id: str
    number: int
    """Author's thought number."""
    total: int
    """Expected number of thoughts."""
    next_thought_needed: bool = True
    revises: int | None = None
    """Replaced thought number."""
    revises_id: str | None = None
    """Replaced `thought_id`, if any."""
    branch_id: str | None = None
    """Branch name. If None, this is the main branch."""
    branch_from: int | None = None
    """Starting thought number, only set in the branch's first thought. Use `related_to` to get its id."""
    merges: str | None = None
    """Branch that this thought merges."""
    merges_id: str | None = None
    """Merged branch's last `thought_id`."""
    stage: str | None = None
    """Stage of the strategy."""


class ThoughtStreamEvent(Event):
    """Thought from a tool, a tag in the text, a strategy or the provider's reasoning."""

    kind: Literal["thought-stream"] = "thought-stream"
    marble = "h"
    public_fields = (
        "thought_id",
        "thought_type",
        "content",
        "index",
        "verbosity",
        "confidence",
        "alternatives",
        "source",
        "incomplete",
        "session",
    )
    public_parts = {"related_to": visible_id("related_to"), "tool_call_id": visible_id("tool_call_id")}
    incidental_fields = ("thought_id", "related_to", "tool_call_id", "hidden_calls", "index")
    thought_id: str = ""
    """Id for references from later thoughts. The run assigns one if it is empty."""
    thought_type: ThoughtType = "thinking"
    content: str
    index: int = -1
    """Zero-based index of the thought, assigned by the run."""
    verbosity: Verbosity = "normal"
    confidence: float | None = Field(default=None, ge=0, le=1)
    related_to: str | None = None
    """The thought or tool call that led to this thought."""
    alternatives: list[str] = Field(default_factory=list[str])
    source: ThoughtSource = "tool"
    tool_call_id: str | None = None
    """Originating tool call."""
    incomplete: bool = Field(default=False, exclude_if=is_empty)
    """True if the text ended inside the thought."""
    session: SessionLink | None = Field(default=None, exclude_if=is_empty)
    """Position in a thinking session."""
    hidden_calls: list[str] = Field(default_factory=list[str], exclude_if=is_empty)
    """Ids in `related_to` and `tool_call_id` whose calls are hidden from clients, set by the run."""

    @override
    def describe(self) -> str:
        return f"{self.thought_type}: {self.content}"


class UsageEvent(Event):
    """The number of tokens used by one model call, as last reported by the provider."""

    kind: Literal["usage"] = "usage"
    marble = "u"
    public_fields = ("input_tokens", "output_tokens", "cached_tokens", "cache_write_tokens", "reasoning_tokens")
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = Field(default=0, exclude_if=is_empty)
    reasoning_tokens: int = 0

    @property
    def usage(self) -> Usage:
        """Token counts."""
        return _usage(
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            cached_tokens=self.cached_tokens,
            cache_write_tokens=self.cache_write_tokens,
            reasoning_tokens=self.reasoning_tokens,
        )


_usage = make_unchecked(Usage)
