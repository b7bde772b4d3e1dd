"""What happens to a run as a whole: its start and end, questions, checkpoints, stages, nested runs."""

# The models are frozen, which the type checker does not see: a `kind` may be narrower than the `str` of the base.
# pyright: reportIncompatibleVariableOverride=false

from typing import Any, Literal

from pydantic import Field
from typing_extensions import override

from rxloop.protocol.envelope import Event
from rxloop.protocol.messages import Content, ErrorInfo, Message, PendingInput, ToolCall, Usage, public_question
from rxloop.protocol.model import absent
from rxloop.protocol.visibility import id_unless_hidden, public_error_of, public_messages, public_questions

State = Literal["submitted", "working", "completed", "failed", "canceled", "input-required", "auth-required"]


class TaskEvent(Event):
    """The first event of a run."""

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
    """What the run was started with."""
    model: str
    agent_name: str
    strategy: str | None = Field(default=None, exclude_if=absent)
    """The name of the strategy that makes the run, where it is not the usual loop."""
    fork_of: str | None = None
    """The run that this one is a fork of."""
    fork_seq: int | None = None
    """The last event that was taken over from it."""
    owner: str | None = Field(default=None, exclude_if=absent)
    """Whose run it is, such as a user or a tenant; stays on the server."""
    options: dict[str, Any] | None = Field(default=None, exclude_if=absent)
    """What the run was begun with (model, settings, limits), for whoever resumes it; stays on the server."""
    public_form: bool = Field(default=False, exclude_if=absent)
    """In what clients get: what is not for them is left out, so that these events are not a copy of the run."""

    @override
    def describe(self) -> str:
        return self.messages[-1].text if self.messages else ""


class StatusUpdateEvent(Event):
    """The state of a run changed; `final` on the last event of each attempt."""

    kind: Literal["status-update"] = "status-update"
    marble = "w"
    public_fields = ("state", "final", "reason", "content", "finish_reason", "usage", "resumed", "after_seq")
    public_parts = {
        "error": public_error_of,
        "pending": public_questions,
    }
    incidental_fields = ("resumed", "after_seq", "usage", "pending")
    state: State
    final: bool = False
    reason: str | None = None
    """Why it ended: a limit, `error`, `canceled`, `superseded`, `input`; None for an answer."""
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

    @override
    def describe(self) -> str:
        reason = f" ({self.reason})" if self.reason else ""
        return f"{self.state}{reason}{', ' + self.content if self.content else ''}"


class MessageAddedEvent(Event):
    """A message enters the history that is neither the model's nor a tool result."""

    kind: Literal["message-added"] = "message-added"
    marble = "m"
    public_fields = ("role", "content", "cause", "message_id")
    incidental_fields = ("message_id",)
    role: Literal["user", "system"] = "user"
    content: Content
    cause: str = "steering"
    """Why: `steering`, `retry`, `tool`, `fork`, `strategy`. Those of people, `steering` and `fork`, are for clients."""
    message_id: str | None = Field(default=None, exclude_if=absent)
    """That of the message, where its author has given it one."""

    @property
    def public(self) -> bool:
        return self.role == "user" and self.cause in ("steering", "fork")

    @override
    def describe(self) -> str:
        return f"{self.role}: {Message(role=self.role, content=self.content).text}"


class CheckpointEvent(Event):
    """Everything up to `durable_seq` is in the log."""

    kind: Literal["checkpoint"] = "checkpoint"
    marble = "k"
    public_fields = ("iteration", "message_count", "usage", "durable_seq")
    incidental_fields = ("usage",)
    iteration: int
    message_count: int
    usage: Usage
    durable_seq: int | None
    """None without a log."""


class ContextCompressedEvent(Event):
    """The request was made smaller; the history stays as it was."""

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
    """The tokens that it took, which are not part of the run's."""
    seconds: float = 0.0
    """How long it took."""
    view: dict[str, Any] = Field(default_factory=dict[str, Any])
    """What is sent from now on, for the next requests and for a resumed run; to compressors alone."""

    @override
    def describe(self) -> str:
        return f"{self.tokens_before} to {self.tokens_after} tokens"


class ThinkingFailedEvent(Event):
    """The thinking phase failed; the request went as it was."""

    kind: Literal["thinking-failed"] = "thinking-failed"
    marble = "q"
    public_fields = ("tokens_before",)
    public_parts = {
        "reason": lambda event: "the thinking phase failed",
    }
    reason: str
    tokens_before: int = 0


class ToolsUnavailableEvent(Event):
    """A family of tools failed, when it was entered or asked; its tools are missing until it works again."""

    kind: Literal["tools-unavailable"] = "tools-unavailable"
    marble = "v"
    public_fields = ("family",)
    family: str
    """What the family is called."""
    reason: str = ""
    """What went wrong; stays on the server."""

    @override
    def describe(self) -> str:
        return self.family


class InputRequiredEvent(Event):
    """A person or client is asked."""

    kind: Literal["input-required"] = "input-required"
    marble = "i"
    public_parts = {
        "input": lambda event: public_question(event.input),
    }
    input: PendingInput

    @property
    def input_id(self) -> str:
        """The id to answer under."""
        return self.input.input_id

    @override
    def describe(self) -> str:
        return self.input.prompt


class InputReceivedEvent(Event):
    """A question was answered."""

    kind: Literal["input-received"] = "input-received"
    marble = "r"
    public_fields = ("input_id",)
    incidental_fields = ("step",)
    input_id: str
    value: Any = None
    """The answer; None for a credential, which nobody but the tool gets."""

    @override
    def describe(self) -> str:
        return self.input_id if self.value is None else f"{self.input_id} = {self.value!r}"


class StageEvent(Event):
    """A strategy moves from one stage to another, or is refused to."""

    kind: Literal["stage"] = "stage"
    marble = "g"
    public_fields = ("strategy", "from_stage", "to_stage", "accepted", "reason", "thought_id", "session_id")
    incidental_fields = ("thought_id",)
    strategy: str
    from_stage: str | None
    to_stage: str
    accepted: bool = True
    reason: str = ""
    thought_id: str | None = Field(default=None, exclude_if=absent)
    """The thought that moves it."""
    session_id: str | None = Field(default=None, exclude_if=absent)
    """The thinking session that it belongs to."""

    @override
    def describe(self) -> str:
        return f"{self.strategy} to {self.to_stage}"


class AuthRequiredEvent(Event):
    """A credential is needed; for the person only, and never with a secret in it."""

    kind: Literal["auth-required"] = "auth-required"
    marble = "y"
    public_fields = ("input_id", "provider", "url", "public_key")
    input_id: str
    provider: str
    """Where the person signs in."""
    url: str | None = None
    """The page for that."""
    public_key: str | None = None
    """What the credential is to be encrypted with; then the answer is the ciphertext."""
    call: ToolCall | None = Field(default=None, exclude_if=absent)
    """The tool call that needs it."""
    index: int = Field(default=0, exclude_if=absent)
    """The place of the call in its message."""

    @property
    def input(self) -> PendingInput:
        """The question as it waits for its answer."""
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


AskingEvent = InputRequiredEvent | AuthRequiredEvent
"""What puts a question, and makes the run wait."""


class ArtifactUpdateEvent(Event):
    """A piece of a file that the run makes."""

    kind: Literal["artifact-update"] = "artifact-update"
    marble = "f"
    public_fields = (
        *("artifact_id", "artifact_version", "index", "offset", "size", "data", "encoding", "name", "media_type"),
        *("last", "hidden"),
    )
    incidental_fields = ("hidden",)
    artifact_id: str
    artifact_version: int = 1
    """Counts how often the artifact was begun, from 1; each version has an index of its own."""
    index: int
    """The place of the chunk in its version, from 0; an index that is missing is that of a chunk in the store alone."""
    offset: int = 0
    """The bytes before the chunk."""
    size: int = 0
    """The bytes of the chunk."""
    data: Any = None
    """The chunk; None beyond the first million bytes, which are for the store alone."""
    encoding: Literal["base64"] | None = Field(default=None, exclude_if=absent)
    """How the data is written, where the chunk is not text."""
    name: str | None = None
    """What people call the artifact; with the media type on the first chunk alone."""
    media_type: str | None = Field(default=None, exclude_if=absent)
    last: bool = False
    """The version is complete."""
    hidden: bool = Field(default=False, exclude_if=absent)
    """The call that writes it is not for clients."""

    @property
    def public(self) -> bool:
        return not self.hidden

    @override
    def describe(self) -> str:
        return f"{self.artifact_id} {self.index}"


class SubtaskEvent(Event):
    """A nested agent starts a run of its own, or goes on with it; and once more when that has come to an end."""

    kind: Literal["subtask"] = "subtask"
    marble = "b"
    public_fields = ("subtask_id", "agent_name", "index", "state")
    public_parts = {
        "tool_call_id": id_unless_hidden("tool_call_id"),
    }
    incidental_fields = ("subtask_id", "agent_name", "tool_call_id", "hidden_calls")
    subtask_id: str
    agent_name: str
    tool_call_id: str | None = None
    index: int = Field(default=0, exclude_if=absent)
    """The place of the call in its message."""
    state: State = "working"
    """What the nested run has come to; `working` where it starts or goes on."""
    hidden_calls: list[str] = Field(default_factory=list[str], exclude_if=absent)
    """Has `tool_call_id` where that call is not for clients; said by the run."""

    @override
    def describe(self) -> str:
        return f"{self.agent_name} {self.state}"


class CustomEvent(Event):
    """An event of your own."""

    kind: Literal["custom"] = "custom"
    marble = "z"
    public_fields = ("name", "data")
    name: str
    data: Any = None

    @override
    def describe(self) -> str:
        return self.name


class GapEvent(Event):
    """What a reader did not get: made for that reader alone, never in the log."""

    durable = False
    kind: Literal["gap"] = "gap"
    marble = "j"
    public_fields = ("reason", "count", "after")
    reason: Literal["dropped", "trimmed", "lost-attempt", "unknown-cursor", "log-went-back"]
    count: int | None = None
    """How many events are missing, where that is known."""
    after: str | None = None
    """The cursor after which the gap begins."""
