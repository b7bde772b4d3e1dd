"""The kinds of the event protocol: every fact of a run as a frozen model, in one union discriminated by `kind`."""

# The models are frozen, which the type checker does not see: a `kind` may be narrower than the `str` of the base.
# pyright: reportIncompatibleVariableOverride=false

from collections.abc import Iterable
from typing import Annotated, Any, Literal, Union, cast, get_args

from pydantic import Field, TypeAdapter

from rxloop.protocol.envelope import Event, absent
from rxloop.protocol.messages import Content, ErrorInfo, Message, ToolCall, Usage, Wire
from rxloop.protocol.unchecked import unchecked
from rxloop.protocol.visibility import public_question

Verbosity = Literal["brief", "normal", "detailed"]
State = Literal["submitted", "working", "completed", "failed", "canceled", "input-required", "auth-required"]
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


class PendingInput(Wire):
    """A question that waits for an answer."""

    input_id: str
    """The same in every attempt."""
    prompt: str
    input_kind: Literal["confirmation", "text", "selection", "data"] = "data"
    options: list[Any] | None = None
    answer_schema: dict[str, Any] = Field(default_factory=dict[str, Any])
    """JSON Schema of the answer."""
    call: ToolCall | None = None
    """The tool call that asks."""
    index: int = 0
    step: str | None = None

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        shown = public_question(self)
        return super().__repr_args__() if shown is self else shown.__repr_args__()


class TaskEvent(Event):
    """The first event of a run."""

    kind: Literal["task"] = "task"
    initiator: str = "user"
    messages: list[Message]
    """What the run was started with."""
    model: str
    agent_name: str
    strategy: str | None = Field(default=None, exclude_if=absent)
    """The name of the strategy that makes the run, where it is not the usual loop."""
    fork_of: str | None = None
    """The run that this one is a fork of."""
    fork_seq: int | None = None
    """The last event that was taken over from it."""
    public_form: bool = Field(default=False, exclude_if=absent)
    """In what clients get: what is not for them is left out, so that these events are not a copy of the run."""


class StatusUpdateEvent(Event):
    """The state of a run changed; `final` on the last event of each attempt."""

    kind: Literal["status-update"] = "status-update"
    state: State
    final: bool = False
    reason: str | None = None
    """Why it ended: a limit, `error`, `canceled`, `input`; None for an answer."""
    error: ErrorInfo | None = None
    content: str | None = None
    """The final content, partial where the attempt did not complete."""
    finish_reason: str | None = None
    usage: Usage | None = None
    pending: list[PendingInput] = Field(default_factory=list[PendingInput])
    """The questions that wait for an answer."""
    resumed: bool = False
    after_seq: int | None = None
    """In the first event of a resumed attempt: the last `seq` of the one before."""


class LLMCallEvent(Event):
    """A request is about to leave for the model."""

    kind: Literal["llm-call"] = "llm-call"
    iteration: int
    model: str
    message_count: int
    tool_count: int
    estimated_input_tokens: int
    problems: list[str] = Field(default_factory=list[str], exclude_if=absent)
    """What was wrong with the messages that operators had made, and was repaired."""


class ContentDeltaEvent(Event):
    """Text of the answer, as it streams."""

    durable = False
    kind: Literal["content-delta"] = "content-delta"
    delta: str
    index: int = 0
    """Counts the deltas of a message, from 0."""


class ContentCompleteEvent(Event):
    """The whole assistant message."""

    kind: Literal["content-complete"] = "content-complete"
    content: str = ""
    reasoning: str | None = None
    tool_calls: list[ToolCall] = Field(default_factory=list[ToolCall])
    finish_reason: str = "stop"
    """`stop`, `tool_calls`, `length`, `content_filter`, or `canceled` when the message was cut off."""
    raw_finish_reason: str | None = None
    """What the vendor called it."""
    provider_state: dict[str, Any] | None = None
    """Opaque data to be sent back with the message."""
    left_out: list[int] = Field(default_factory=list[int], exclude_if=absent)
    """In what clients get: the places of the calls that are not for them, which `tool_calls` lacks."""


class ToolCallDeltaEvent(Event):
    """A piece of a tool call's arguments, as it streams."""

    durable = False
    kind: Literal["tool-call-delta"] = "tool-call-delta"
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


class _ToolEvent(Event):
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
    idempotency_key: str
    """The same for every attempt to carry out this call."""

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the call."""
        return self.call.arguments


class ToolProgressEvent(_ToolEvent):
    """What a tool says while it works."""

    durable = False
    kind: Literal["tool-progress"] = "tool-progress"
    message: str
    fraction: float | None = None


class ToolCompleteEvent(_ToolEvent):
    """A call is answered: by its tool, or by a refusal, a timeout or a cancellation."""

    kind: Literal["tool-complete"] = "tool-complete"
    success: bool
    result: Any = None
    """What the tool returned, as JSON."""
    error: str | None = None
    content: str
    """The text that the model reads."""
    duration: float = 0.0
    """Seconds from the start of the call."""
    answer: bool = Field(default=False, exclude_if=absent)
    """The call gave the answer of the run, as `content`; or was to give it, and failed."""


class UsageEvent(Event):
    """The tokens of one model call, in the provider's last word on them."""

    kind: Literal["usage"] = "usage"
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def usage(self) -> Usage:
        """The same numbers, to be added up."""
        return _usage(
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            cached_tokens=self.cached_tokens,
            reasoning_tokens=self.reasoning_tokens,
        )


_usage = unchecked(Usage)


class MessageAddedEvent(Event):
    """A message enters the history that is neither the model's nor a tool result."""

    kind: Literal["message-added"] = "message-added"
    role: Literal["user", "system"] = "user"
    content: Content
    cause: str = "steering"
    """Why: `steering`, `retry`, `tool`, `fork`, `strategy`. Those of people, `steering` and `fork`, are for clients."""
    message_id: str | None = Field(default=None, exclude_if=absent)
    """That of the message, where its author has given it one."""

    @property
    def public(self) -> bool:
        return self.role == "user" and self.cause in ("steering", "fork")


class CheckpointEvent(Event):
    """Everything up to `durable_seq` is in the log."""

    kind: Literal["checkpoint"] = "checkpoint"
    iteration: int
    message_count: int
    usage: Usage
    durable_seq: int | None
    """None without a log."""


class ContextCompressedEvent(Event):
    """The request was made smaller; the history stays as it was."""

    kind: Literal["context-compressed"] = "context-compressed"
    tokens_before: int
    """Of the messages that would have gone out without it."""
    tokens_after: int
    folded: list[int] = Field(default_factory=list[int])
    """The places in the history of the messages that are not sent as they are."""
    summary: str = ""
    """What stands for them."""
    reason: str = ""
    """`overflow`; `steps` when it was time for it; `refused` when the provider said that the request was too long."""
    dropped: int = 0
    """Messages that this time took out."""
    shortened: int = 0
    """Tool results that this time left a part of."""
    stable_tokens: int = 0
    """Tokens at the front that stayed the same, so that a provider has them in its cache."""
    budget_unmet: bool = Field(default=False, exclude_if=absent)
    """It takes more than there is room for, and nothing more can be left out."""
    problems: list[str] = Field(default_factory=list[str], exclude_if=absent)
    """What was wrong with the result of a compressor, and was repaired."""
    thinking_model: str | None = Field(default=None, exclude_if=absent)
    """The model that wrote the summary."""
    thinking: Usage = Field(default_factory=Usage, exclude_if=lambda usage: not usage.total_tokens)
    """The tokens that it took, which are no part of the run's."""
    seconds: float = 0.0
    """How long it took."""
    view: dict[str, Any] = Field(default_factory=dict[str, Any])
    """What is sent from now on, for the next requests and for a resumed run; to compressors alone."""


class ThinkingFailedEvent(Event):
    """The thinking phase failed; the request went as it was."""

    kind: Literal["thinking-failed"] = "thinking-failed"
    reason: str
    tokens_before: int = 0


class InputRequiredEvent(Event):
    """A person or client is asked."""

    kind: Literal["input-required"] = "input-required"
    input: PendingInput

    @property
    def input_id(self) -> str:
        """The id to answer under."""
        return self.input.input_id


class InputReceivedEvent(Event):
    """A question was answered."""

    kind: Literal["input-received"] = "input-received"
    input_id: str
    value: Any = None
    """The answer."""


class StageEvent(Event):
    """A strategy moves from one stage to another, or is refused to."""

    kind: Literal["stage"] = "stage"
    strategy: str
    from_stage: str | None
    to_stage: str
    accepted: bool = True
    reason: str = ""
    thought_id: str | None = Field(default=None, exclude_if=absent)
    """The thought that moves it."""
    session_id: str | None = Field(default=None, exclude_if=absent)
    """The thinking session that it belongs to."""


class LLMFailedEvent(Event):
    """A request to a model failed: one that is tried again, and one that is the end of the call."""

    visibility = "internal"
    kind: Literal["llm-failed"] = "llm-failed"
    error: ErrorInfo
    retryable: bool
    """Whether the same request may succeed later."""
    retry_in: float | None = None
    """Seconds until the next try, where there is one."""
    status: int | None = None
    """The HTTP status, where there was an answer."""
    tries: int = 1
    """How many requests of this call have failed, this one included."""


class AuthRequiredEvent(Event):
    """A credential is needed; for the person only, and never with a secret in it."""

    kind: Literal["auth-required"] = "auth-required"
    input_id: str
    provider: str
    url: str | None = None
    public_key: str | None = None


class ArtifactUpdateEvent(Event):
    """A piece of a file that the run makes."""

    kind: Literal["artifact-update"] = "artifact-update"
    artifact_id: str
    index: int
    data: Any
    name: str | None = None
    last: bool = False


class SubtaskEvent(Event):
    """A nested agent starts a run of its own."""

    kind: Literal["subtask"] = "subtask"
    subtask_id: str
    agent_name: str
    tool_call_id: str | None = None
    hidden_calls: list[str] = Field(default_factory=list[str], exclude_if=absent)
    """Has `tool_call_id` where that call is not for clients; said by the run."""


class CustomEvent(Event):
    """An event of your own."""

    kind: Literal["custom"] = "custom"
    name: str
    data: Any = None


class GapEvent(Event):
    """What a reader did not get: made for that reader alone, never in the log."""

    durable = False
    kind: Literal["gap"] = "gap"
    reason: Literal["dropped", "trimmed", "lost-attempt", "unknown-cursor"]
    count: int | None = None
    """How many events are missing, where that is known."""
    after: str | None = None
    """The cursor behind which the gap lies."""


AnyEvent = Annotated[
    Union[  # noqa: UP007
        TaskEvent,
        StatusUpdateEvent,
        LLMCallEvent,
        ContentDeltaEvent,
        ContentCompleteEvent,
        ToolCallDeltaEvent,
        ThoughtDeltaEvent,
        ThoughtStreamEvent,
        ToolStartEvent,
        ToolProgressEvent,
        ToolCompleteEvent,
        UsageEvent,
        MessageAddedEvent,
        CheckpointEvent,
        ContextCompressedEvent,
        ThinkingFailedEvent,
        InputRequiredEvent,
        InputReceivedEvent,
        StageEvent,
        LLMFailedEvent,
        AuthRequiredEvent,
        ArtifactUpdateEvent,
        SubtaskEvent,
        CustomEvent,
        GapEvent,
    ],
    Field(discriminator="kind"),
]
"""Every kind of the protocol."""

from_json = Event.from_json


def ends_attempt(event: Event) -> bool:
    """Whether an event is the last of its attempt; that of a nested agent's run ends only that run."""
    return isinstance(event, StatusUpdateEvent) and event.final and event.parent_task_id is None


def external(events: Iterable[Event]) -> list[Event]:
    """The events as clients may see them, in order."""
    return [form for event in events if (form := event.for_clients()) is not None]


def protocol_schema() -> dict[str, Any]:
    """The JSON Schema of the whole protocol, as it is on the wire; readers leave out fields that they do not know."""
    adapter: TypeAdapter[Event] = TypeAdapter(AnyEvent)
    return _plain(adapter.json_schema(mode="serialization"))


def _plain(schema: Any) -> Any:
    """A schema without the titles that pydantic makes of field names, and open to fields of later versions."""
    if isinstance(schema, list):
        return [_plain(each) for each in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _plain(value)
        for key, value in cast("dict[str, Any]", schema).items()
        if not (key == "title" and isinstance(value, str)) and not (key == "additionalProperties" and value is False)
    }
