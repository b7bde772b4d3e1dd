"""Bodies of the HTTP API, for server and client."""

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
from rxloop.protocol.model import absent
from rxloop.protocol.run_events import State
from rxloop.protocol.settings import ReasoningEffort

Text = Annotated[str, Field(min_length=1, max_length=100_000)]

_Address = Annotated[str, Field(pattern=r"^https?://[^/][!-~]*$", max_length=2_000)]

Deltas = Literal["live", "kept", "none"]
"""`live`: as they are made. `kept`: out of the log, which keeps them. `none`: whole messages alone, since another
process drives the run, or nobody does, and the log does not keep them."""

_Named = Annotated[str, Field(min_length=1, max_length=200)]


class TextInput(Wire):
    """A text beside other parts."""

    type: Literal["text"]
    text: Text


class LinkedInput(Wire):
    """An image or a file that the model's provider fetches."""

    type: Literal["image", "file"]
    url: _Address
    media_type: _Named | None = None


class InlineInput(Wire):
    """An image or a file that comes with the request."""

    type: Literal["image", "file"]
    data: Annotated[str, Field(min_length=1)]
    """The bytes, in base64."""
    media_type: _Named
    """The MIME type."""

    @model_validator(mode="after")
    def _check_data(self) -> Self:
        # Here, so that the answer names the field.
        self.part()
        return self

    def part(self) -> ImagePart | FilePart:
        """Make the part of a message.

        Raises:
            ValueError: The data are empty or not base64.
        """
        return make_part(data=self.data, media_type=self.media_type, image=self.type == "image")


InputPart = TextInput | LinkedInput | InlineInput

Input = Text | Annotated[list[InputPart], Field(min_length=1, max_length=64)]
"""What somebody says: a text, or parts of several kinds."""


class UserMessage(Wire):
    """One message of the person who asks."""

    content: Input
    message_id: Id | None = None
    """Names the message for programs."""


class ToolSpec(Wire):
    """A tool that the client carries out: a call of it pauses the run, and `resume` brings the result."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    description: Annotated[str, Field(max_length=10_000)] = ""
    parameters: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON Schema of the arguments."""


class RunSettings(Wire):
    """Settings of the model calls of a run; the server says which of them a client may give."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    seed: Annotated[int, Field(ge=0, le=2**53)] | None = None
    stop: Annotated[list[_Named], Field(max_length=16)] | None = None
    reasoning_effort: ReasoningEffort | None = None


class StartRun(Wire):
    """Starts a run."""

    type: Literal["prompt"] = "prompt"
    input: Input | Annotated[list[UserMessage], Field(min_length=1, max_length=64)]
    """What is asked: a text, parts of several kinds, or several messages."""
    agent: str | None = None
    """The name of the agent; it may be left out where there is one."""
    context_id: Id | None = None
    """The conversation to go on with; a new one by default."""
    when_busy: Literal["wait", "refuse"] = "wait"
    """What to do while the conversation has a run under way."""
    tools: Annotated[list[ToolSpec], Field(max_length=128)] = Field(default_factory=list[ToolSpec])
    """What the client carries out in this run."""
    settings: RunSettings | None = None
    """What goes with the model calls, beside what the agent says."""
    metadata: Annotated[dict[str, Any], Field(max_length=64)] = Field(default_factory=dict[str, Any])
    """Comes back with the run, and on its first event."""


class ResumeRun(Wire):
    """Answers questions of a run that waits."""

    type: Literal["resume"] = "resume"
    inputs: Annotated[dict[str, Any], Field(min_length=1, max_length=64)]
    """The answers, by `inputId`."""


class SayToRun(Wire):
    """Says something to a run that goes on."""

    input: Input
    interrupt: bool = False
    """Cut off the answer that is being written."""


class CancelRun(Wire):
    """Cancels a run."""

    reason: Annotated[str, Field(max_length=1_000)] | None = None


class ForkRun(Wire):
    """Makes a new run that begins with a part of another one."""

    at: Annotated[int, Field(ge=1, le=2**53)]
    """The `seq` of the last event to take over."""
    input: Input | None = None
    """In the place of the question for `at` 1, else a new message after what is taken over."""
    results: Annotated[dict[str, Any], Field(max_length=64)] = Field(default_factory=dict[str, Any])
    """What tools have answered, by the id of the call or by its slot."""


class RunInfo(Wire):
    """Where a run stands, as clients may see it."""

    task_id: str
    context_id: str
    agent: str
    state: State
    attempt: int
    seq: int
    deltas: Deltas
    """What a stream of its events has of its deltas as things are now; the header `Rxloop-Deltas` of each says it."""
    cursor: str
    """The place of the newest event in the log: what is read after it is new."""
    created: Timestamp
    updated: Timestamp
    events: str
    """The path of its events."""
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any], exclude_if=absent)
    content: str | None = Field(default=None, exclude_if=absent)
    """The answer of the last attempt, partial where it did not complete."""
    reason: str | None = Field(default=None, exclude_if=absent)
    """Why the last attempt ended; none for an answer."""
    finish_reason: str | None = Field(default=None, exclude_if=absent)
    pending: list[PendingInput] = Field(default_factory=list[PendingInput], exclude_if=absent)
    """The questions that wait for an answer."""
    usage: Usage | None = Field(default=None, exclude_if=absent)
    error: ErrorInfo | None = Field(default=None, exclude_if=absent)

    @property
    def at_rest(self) -> bool:
        """Whether nothing goes on: the run is over, or waits for an answer."""
        return self.state not in ("submitted", "working")


class RunPage(Wire):
    """Some runs, newest first."""

    runs: list[RunInfo]
    next: str | None = None
    """What to give as `after` for the next page; none on the last one."""


class ContextInfo(Wire):
    """A conversation, by its first run and its latest one."""

    context_id: str
    created: Timestamp
    updated: Timestamp
    task_id: str
    """The latest run."""
    agent: str
    """The agent of the latest run."""
    state: State
    """The state of the latest run."""
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any], exclude_if=absent)
    """What the first run was started with, such as a title."""


class ContextPage(Wire):
    """Some conversations, those with the newest runs first."""

    contexts: list[ContextInfo]
    next: str | None = None
    """What to give as `after` for the next page; none on the last one."""


class StateInfo(Wire):
    """How a run stood after one of its events."""

    task_id: str
    seq: int
    """That of the last event which counts."""
    attempt: int
    state: State
    reason: str | None = Field(default=None, exclude_if=absent)
    error: ErrorInfo | None = Field(default=None, exclude_if=absent)
    iteration: int
    """The model calls of the main line that had begun."""
    messages: list[Message]
    """Those of the run; a message with calls comes once all of them are answered."""
    calls: list[ToolCall] = Field(default_factory=list[ToolCall], exclude_if=absent)
    """The calls that were not answered."""
    pending: list[PendingInput] = Field(default_factory=list[PendingInput], exclude_if=absent)
    """The questions that waited for an answer."""
    content: str
    """The newest answer, or what there was of one."""
    usage: Usage


class MessageList(Wire):
    """The messages of a conversation, oldest first."""

    messages: list[Message]


class AgentInfo(Wire):
    """An agent that runs can be started of."""

    name: str
    model: str
    tools: list[str]


class AgentList(Wire):
    """The agents of a server."""

    agents: list[AgentInfo]


class Health(Wire):
    """That the server is there."""

    status: Literal["ok"] = "ok"


class ProblemInfo(Wire):
    """What is wrong with a request."""

    code: str
    """For programs."""
    message: str
    """For people."""
    fields: dict[str, str] | None = Field(default=None, exclude_if=absent)
    """What is wrong with which field of the body or the query."""


class Problem(Wire):
    """The body of every answer that is an error."""

    error: ProblemInfo


def messages_of(given: str | list[InputPart] | list[UserMessage]) -> list[Message]:
    """The messages of the person who asks, out of what a client has sent."""
    messages = [each for each in given if isinstance(each, UserMessage)]
    if messages:
        return [Message.user(_content(each.content), message_id=each.message_id) for each in messages]
    return [Message.user(_content(cast("str | list[InputPart]", given)))]


def _content(content: str | list[InputPart]) -> str | list[Part]:
    return content if isinstance(content, str) else [_part(part) for part in content]


def _part(part: InputPart) -> Part:
    if isinstance(part, TextInput):
        return TextPart(text=part.text)
    if isinstance(part, InlineInput):
        return part.part()
    made = ImagePart if part.type == "image" else FilePart
    return made(url=part.url, media_type=part.media_type)
