"""What happens in a step: the call of a model, its answer and thoughts, and the tools that it calls."""

# The models are frozen, which the type checker does not see: a `kind` may be narrower than the `str` of the base.
# pyright: reportIncompatibleVariableOverride=false

from typing import Any, Literal, get_args

from pydantic import Field
from typing_extensions import override

from rxloop.protocol.envelope import Event, absent
from rxloop.protocol.messages import Citation, ErrorInfo, Media, Message, ToolCall, Usage, Wire
from rxloop.protocol.parts import with_placeholders
from rxloop.protocol.unchecked import unchecked
from rxloop.protocol.visibility import hidden_places, id_unless_hidden, shown_calls

Verbosity = Literal["brief", "normal", "detailed"]
ThoughtSource = Literal["tool", "tag", "reasoning", "sequential", "strategy"]
ThoughtType = Literal[
    "planning",
    "reasoning",
    "reflection",
    "decision",
    "observation",
    "critique",
    "strategy",
    "analysis",
    "thinking",
]
THOUGHT_TYPES: tuple[str, ...] = get_args(ThoughtType)


class LLMCallEvent(Event):
    """A request is about to leave for the model."""

    kind: Literal["llm-call"] = "llm-call"
    marble = "l"
    public_fields = ("iteration", "model", "message_count", "tool_count", "estimated_input_tokens")
    incidental_fields = ("estimated_input_tokens",)
    iteration: int
    model: str
    message_count: int
    tool_count: int
    estimated_input_tokens: int
    problems: list[str] = Field(default_factory=list[str], exclude_if=absent)
    """What was wrong with the messages that operators had made, and was repaired."""

    @override
    def describe(self) -> str:
        return f"{self.model}, {self.message_count} messages"


class LLMFailedEvent(Event):
    """A request to a model failed: one that is tried again, and one that is the end of the call."""

    visibility = "internal"
    kind: Literal["llm-failed"] = "llm-failed"
    marble = "e"
    error: ErrorInfo
    retryable: bool
    """Whether the same request may succeed later."""
    retry_in: float | None = None
    """Seconds until the next try, where there is one."""
    status: int | None = None
    """The HTTP status, where there was an answer."""
    tries: int = 1
    """How many requests of this call have failed, this one included."""


NoticeCode = Literal["left_out", "passed_over"]


class LLMNoticeEvent(Event):
    """Something of a request did not reach the model, or something of its answer was not understood; the call goes on.

    `left_out`: the model's vendor does not take a part of the conversation, or a setting. `passed_over`: the vendor
    sent something that is not known here.
    """

    visibility = "internal"
    kind: Literal["llm-notice"] = "llm-notice"
    marble = "N"
    incidental_fields = ("code", "message")
    code: NoticeCode
    message: str

    @override
    def describe(self) -> str:
        return f"{self.code}: {self.message}"


class ServerToolEvent(Event):
    """A tool that the vendor carries out itself, such as its web search, is at work, or has ended."""

    kind: Literal["server-tool"] = "server-tool"
    marble = "S"
    public_fields = ("tool_call_id", "name", "phase", "arguments", "result", "success")
    incidental_fields = ("tool_call_id",)
    tool_call_id: str
    """The vendor's id."""
    name: str
    """What the vendor calls the tool."""
    phase: Literal["start", "complete"]
    arguments: Any = None
    """What the model gave it, as far as the vendor tells."""
    result: Any = None
    """What came of it, in the vendor's form, as far as the vendor tells."""
    success: bool = True

    @override
    def describe(self) -> str:
        return f"{self.name} {self.phase}"


class ContentDeltaEvent(Event):
    """Text of the answer, as it streams."""

    durable = False
    kind: Literal["content-delta"] = "content-delta"
    marble = "d"
    public_fields = ("delta", "index")
    delta: str
    index: int = 0
    """Counts the deltas of a message, from 0."""


class ContentCompleteEvent(Event):
    """The whole assistant message."""

    kind: Literal["content-complete"] = "content-complete"
    marble = "c"
    public_fields = ("content", "reasoning", "finish_reason", "raw_finish_reason", "files", "citations")
    public_parts = {
        "tool_calls": shown_calls,
        "left_out": hidden_places,
    }
    incidental_fields = ("provider_state", "raw_finish_reason", "left_out", "offered")
    content: str = ""
    files: list[Media] = Field(default_factory=list[Media], exclude_if=absent)
    """Images and other files that the model has made, which follow the text in the history."""
    citations: list[Citation] = Field(default_factory=list[Citation], exclude_if=absent)
    """What the text rests on, in the order of the text; no part of the history."""
    reasoning: str | None = None
    tool_calls: list[ToolCall] = Field(default_factory=list[ToolCall])
    finish_reason: str = "stop"
    """`stop`, `tool_calls`, `length`, `content_filter`; `pause` where the model goes on when it is asked again;
    `canceled` when the message was cut off; `interrupted` when that was done to say something more: what there was of
    it stands in the history."""
    raw_finish_reason: str | None = None
    """What the vendor called it."""
    provider_state: dict[str, Any] | None = None
    """Opaque data to be sent back with the message."""
    left_out: list[int] = Field(default_factory=list[int], exclude_if=absent)
    """In what clients get: the places of the calls that are not for them, which `tool_calls` lacks."""
    offered: list[str] | None = Field(default=None, exclude_if=lambda value: value is None)
    """The tools that the request offered, where it held some back or the model has called another one; None is all."""

    @override
    def describe(self) -> str:
        calls = ", ".join(_written(call) for call in self.tool_calls)
        said = with_placeholders(self.content, self.files) if self.files else self.content
        return " -> ".join(part for part in (said, calls) if part) or self.finish_reason


class ToolCallDeltaEvent(Event):
    """A piece of a tool call's arguments, as it streams."""

    durable = False
    kind: Literal["tool-call-delta"] = "tool-call-delta"
    marble = "a"
    public_fields = ("index", "tool_call_id", "name", "fragment", "hidden")
    incidental_fields = ("tool_call_id", "hidden")
    index: int
    """The place of the call in its message, from 0."""
    tool_call_id: str
    name: str
    fragment: str
    hidden: bool = Field(default=False, exclude_if=absent)

    @property
    def public(self) -> bool:
        return not self.hidden


class ThoughtDeltaEvent(Event):
    """Reasoning, as it streams."""

    durable = False
    kind: Literal["thought-delta"] = "thought-delta"
    marble = "o"
    public_fields = ("delta", "index")
    delta: str
    index: int = 0


class SessionLink(Wire):
    """Where a thought stands in its thinking session."""

    session_id: str
    number: int
    """Its number, as its author gave it."""
    total: int
    """How many thoughts the author expects."""
    next_thought_needed: bool = True
    revises: int | None = None
    """The number of the thought that it replaces."""
    revises_id: str | None = None
    """The `thought_id` of that thought, if there is one."""
    branch_id: str | None = None
    """The branch that it is on; None is the main line."""
    branch_from: int | None = None
    """In the first thought of a branch: the number of the thought that it leaves from; `related_to` has its id."""
    merges: str | None = None
    """The branch that ends in it."""
    merges_id: str | None = None
    """The `thought_id` of the last thought of that branch."""
    stage: str | None = None
    """The stage of the strategy that it belongs to."""


class ThoughtStreamEvent(Event):
    """A thought: from a tool, from a tag in the text, from a strategy, or the provider's reasoning as one."""

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
    public_parts = {
        "related_to": id_unless_hidden("related_to"),
        "tool_call_id": id_unless_hidden("tool_call_id"),
    }
    incidental_fields = ("thought_id", "related_to", "tool_call_id", "hidden_calls", "index")
    thought_id: str = ""
    """What later thoughts refer to; given by the run where it is left out."""
    thought_type: ThoughtType = "thinking"
    content: str
    index: int = -1
    """Counts the thoughts of a run, from 0; given by the run."""
    verbosity: Verbosity = "normal"
    confidence: float | None = Field(default=None, ge=0, le=1)
    related_to: str | None = None
    """The thought or tool call that this one follows from."""
    alternatives: list[str] = Field(default_factory=list[str])
    source: ThoughtSource = "tool"
    tool_call_id: str | None = None
    """The call that the thought came from."""
    incomplete: bool = Field(default=False, exclude_if=absent)
    """The text ended inside the thought."""
    session: SessionLink | None = Field(default=None, exclude_if=absent)
    """Its place in a thinking session."""
    hidden_calls: list[str] = Field(default_factory=list[str], exclude_if=absent)
    """Of `related_to` and `tool_call_id`, the ids of calls that are not for clients; said by the run."""

    @override
    def describe(self) -> str:
        return f"{self.thought_type}: {self.content}"


class _ToolEvent(Event):
    public_fields = ("call", "index", "hidden")
    incidental_fields = ("hidden",)
    call: ToolCall
    index: int = 0
    """The place of the call in its message, from 0."""
    hidden: bool = Field(default=False, exclude_if=absent)
    """The tool is not for clients, as in `call`."""

    @property
    def tool_call_id(self) -> str:
        """The id of the call."""
        return self.call.id

    @property
    def name(self) -> str:
        """The name of the tool."""
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
    """The same for every attempt to carry out this call."""

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the call."""
        return self.call.arguments

    @override
    def describe(self) -> str:
        return _written(self.call)


class ToolProgressEvent(_ToolEvent):
    """What a tool says while it works."""

    durable = False
    kind: Literal["tool-progress"] = "tool-progress"
    marble = "p"
    public_fields = ("message", "fraction")
    message: str
    fraction: float | None = None


class ToolCompleteEvent(_ToolEvent):
    """A call is answered: by its tool, or by a refusal, a timeout or a cancellation."""

    kind: Literal["tool-complete"] = "tool-complete"
    marble = "x"
    public_fields = ("success", "result", "error", "content", "parts", "duration", "answer")
    incidental_fields = ("duration",)
    success: bool
    result: Any = None
    """What the tool returned, as JSON."""
    error: str | None = None
    content: str
    """The text that the model reads."""
    parts: list[Media] = Field(default_factory=list[Media], exclude_if=absent)
    """Images and files that the model sees after the text, where its provider takes them."""
    duration: float = 0.0
    """Seconds from the start of the call."""
    answer: bool = Field(default=False, exclude_if=absent)
    """The call gave the answer of the run, as `content`; or was to give it, and failed."""
    messages: list[Message] = Field(default_factory=list[Message], exclude_if=absent)
    """System messages of the tool, which enter the history after the results of the whole batch."""

    @override
    def describe(self) -> str:
        return f"{self.name} {'=' if self.success else 'failed:'} {self.content}"


class ToolVoidedEvent(Event):
    """A call that was started early came to nothing: it was not asked for in the end, or not so."""

    visibility = "internal"
    kind: Literal["tool-voided"] = "tool-voided"
    marble = "V"
    call: ToolCall
    index: int = 0
    """The place that the call would have had in its message, from 0."""

    @override
    def describe(self) -> str:
        return _written(self.call)


class UsageEvent(Event):
    """The tokens of one model call, in the provider's last word on them."""

    kind: Literal["usage"] = "usage"
    marble = "u"
    public_fields = ("input_tokens", "output_tokens", "cached_tokens", "cache_write_tokens", "reasoning_tokens")
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = Field(default=0, exclude_if=absent)
    reasoning_tokens: int = 0

    @property
    def usage(self) -> Usage:
        """The same numbers, to be added up."""
        return _usage(
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            cached_tokens=self.cached_tokens,
            cache_write_tokens=self.cache_write_tokens,
            reasoning_tokens=self.reasoning_tokens,
        )


_usage = unchecked(Usage)


def _written(call: ToolCall) -> str:
    """Write a call as a program would make it."""
    return f"{call.name}({', '.join(f'{name}={value!r}' for name, value in call.arguments.items())})"
