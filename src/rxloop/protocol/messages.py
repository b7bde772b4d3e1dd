"""Chat messages, their parts, tool calls, token usage, and questions to the person behind a run."""

from collections.abc import Iterable, Sequence
from operator import not_
from typing import Any, Literal, Self, cast

import orjson
from pydantic import Field, model_validator

from rxloop.errors import ConfigurationError, InvalidEvent
from rxloop.protocol.json_data import readable, storable
from rxloop.protocol.model import EMPTY_DICT, unchecked
from rxloop.protocol.model import Wire as Wire
from rxloop.protocol.parts import Citation as Citation
from rxloop.protocol.parts import Content as Content
from rxloop.protocol.parts import FilePart as FilePart
from rxloop.protocol.parts import ImagePart as ImagePart
from rxloop.protocol.parts import Media as Media
from rxloop.protocol.parts import Part as Part
from rxloop.protocol.parts import TextPart as TextPart
from rxloop.protocol.parts import with_placeholders

HIDDEN_QUESTION = "A decision is needed before the agent can go on."
"""What clients read in place of a question that a hidden tool asks."""

Role = Literal["system", "user", "assistant", "tool"]


class ToolCall(Wire):
    """A call that the model asked for.

    `arguments` is always a dict. Where the model wrote something else, it is empty, `error` says what was wrong
    and `raw` keeps what was written, so that the call can be answered with a useful error.
    """

    # Says that all of it is storable and frozen, which is looked at once, and not for each event of the call.
    __slots__ = ("_settled",)

    id: str
    """The vendor's id; not unique over a run (some vendors count from "0" in each message)."""
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict[str, Any])
    raw: str | None = None
    """The arguments as the model wrote them, to be sent back byte for byte."""
    error: str | None = None
    """Why the arguments could not be read, or None."""
    hidden: bool = Field(default=False, exclude_if=lambda value: not value)
    """The tool is not for clients, and so is all of this call; said by the run, and never sent to a vendor."""

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        return [("hidden", True)] if self.hidden else super().__repr_args__()

    @classmethod
    def parse(cls, id: str, name: str, raw: str | None) -> "ToolCall":
        """Read the arguments that a model wrote: nothing is `{}`, a JSON object encoded twice is decoded twice.

        The only JSON value in a text that is not JSON counts too; `raw` is then this value alone.
        """
        if raw is None or not raw.strip() or raw.strip() == "null":
            return cls(id=id, name=name)
        text = raw
        try:
            value: Any = orjson.loads(text)
            if isinstance(value, str):
                text = value
                value = orjson.loads(text) if text.strip() else {}
        except orjson.JSONDecodeError as error:
            # Imported here: most arguments are JSON, and importing rxloop is quicker without.
            from rxloop.protocol.lenient import find_json

            found = find_json(text)
            if found is None or found == raw:
                return cls(id=id, name=name, raw=raw, error=f"the arguments are not valid JSON: {error}")
            return cls.parse(id, name, found)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            found = type(value).__name__
            return cls(id=id, name=name, raw=raw, error=f"the arguments must be a JSON object, not {found}")
        try:
            arguments = storable(value, "the arguments")
        except InvalidEvent as error:
            return cls(id=id, name=name, raw=raw, error=str(error))
        return _call(id=readable(id), name=readable(name), arguments=arguments, raw=readable(raw))


_call = unchecked(ToolCall, settled=True)


class Message(Wire):
    """One message of a conversation, as it is stored and sent."""

    # The encoded form that the last provider sent, so that a message is encoded once; no part of its value.
    __slots__ = ("_wire",)

    role: Role
    content: Content = ""
    reasoning: str | None = None
    """The provider's reasoning text beside an assistant message."""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    """In a tool message: the id of the call that it answers."""
    provider_state: dict[str, Any] | None = None
    """Opaque data that the provider wants back with this message, such as signed reasoning."""
    pinned: bool = Field(default=False, exclude_if=lambda value: not value)
    """Never left out of a request, however long the history gets."""
    message_id: str | None = Field(default=None, exclude_if=lambda value: not value)
    """Names the message for programs: its author's, or made by the run; never sent to a vendor."""

    def __eq__(self, other: object) -> bool:
        # A name for the message, and no part of what it says.
        if not isinstance(other, Message):
            return NotImplemented
        return {**vars(self), "message_id": None} == {**vars(other), "message_id": None}

    def __hash__(self) -> int:
        return hash((self.role, self.text, self.tool_call_id))

    @model_validator(mode="after")
    def _fits_its_role(self) -> Self:
        if self.role == "tool" and self.tool_call_id is None:
            raise ValueError("a tool message needs the tool_call_id of the call that it answers")
        if self.role != "tool" and self.tool_call_id is not None:
            raise ValueError(f"a {self.role} message has no tool_call_id")
        if self.role != "assistant" and self.tool_calls:
            raise ValueError(f"a {self.role} message has no tool_calls")
        return self

    @classmethod
    def system(cls, content: str | Sequence[Part]) -> "Message":
        """Make a message that instructs the model."""
        return cls(role="system", content=_content(content))

    @classmethod
    def user(cls, content: str | Sequence[Part], *, pinned: bool = False, message_id: str | None = None) -> "Message":
        """Make a message of the person who asks.

        Args:
            content: A text, or parts of several kinds.
            pinned: It stays in every request.
            message_id: Names the message for programs; the run makes one where there is none.
        """
        return cls(role="user", content=_content(content), pinned=pinned, message_id=message_id)

    @classmethod
    def assistant(cls, content: str | Sequence[Part] = "", *, tool_calls: Sequence[ToolCall] = ()) -> "Message":
        """Make a message of the model."""
        return cls(role="assistant", content=_content(content), tool_calls=tuple(tool_calls))

    @classmethod
    def tool(cls, tool_call_id: str, content: str | Sequence[Part]) -> "Message":
        """Make the answer to a tool call."""
        return cls(role="tool", tool_call_id=tool_call_id, content=_content(content))

    @property
    def text(self) -> str:
        """The text of the message, parts joined, other parts left out."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content if isinstance(part, TextPart))

    @property
    def media(self) -> list[ImagePart | FilePart]:
        """The images and files of the message."""
        if isinstance(self.content, str):
            return []
        return [part for part in self.content if not isinstance(part, TextPart)]

    @property
    def text_alone(self) -> str:
        """The text, for those who take nothing else: words in brackets stand for the images and files."""
        return self.text if isinstance(self.content, str) else with_placeholders(self.text, self.media)


def _content(content: str | Sequence[Part]) -> Content:
    return content if isinstance(content, str) else list(content)


Prompt = str | Message | Sequence[Message | str]
"""What a run is asked: a text, a message, or several of both."""


def as_messages(prompt: Prompt, called: str = "the prompt") -> tuple[Message, ...]:
    """Make messages of whatever `agent.run` takes: a text is a user message.

    Args:
        prompt: A text, a message, or several.
        called: What an error calls it.

    Raises:
        ConfigurationError: It is something else, or a message of the user is empty.
    """
    given: Any = prompt
    if isinstance(given, str | Message):
        return (_message(given, called),)
    if not isinstance(given, Sequence) or isinstance(given, bytes | bytearray):
        raise ConfigurationError(f"{called} is {given!r}: give a text, a message, or a list of them")
    items = cast("Sequence[Any]", given)
    return tuple(_message(item, f"{called.removeprefix('the ')}[{place}]") for place, item in enumerate(items))


def _message(item: Any, place: str) -> Message:
    if isinstance(item, str):
        item = Message.user(item)
    if not isinstance(item, Message):
        raise ConfigurationError(
            f"{place} is {repr(item)[:200]}: give a text, or a message such as Message.user(...), "
            "which also takes a list of parts: Message.user([TextPart(text=...), FilePart(data=..., media_type=...)])"
        )
    if item.role == "user" and not item.content:
        raise ConfigurationError(f"{place} is an empty user message: give it a text")
    if isinstance(item.content, str) and readable(item.content) is not item.content:
        return item.model_copy(update={"content": readable(item.content)})
    return item


class Usage(Wire):
    """Tokens of one or several model calls, as the provider counted them.

    `input_tokens` is all of the input, whatever the vendor's own word counts: fresh, cached and written to the cache.
    """

    # As in a `ToolCall`: the sum of a run stands in many events.
    __slots__ = ("_settled",)

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """The part of `input_tokens` that came from the provider's cache."""
    cache_write_tokens: int = Field(default=0, exclude_if=lambda value: not value)
    """The part of `input_tokens` that was written into the provider's cache, where the provider counts it."""
    reasoning_tokens: int = 0
    """The part of `output_tokens` that was reasoning."""

    @property
    def total_tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: "Usage") -> "Usage":
        return _usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
        )


_usage = unchecked(Usage, settled=True)


class ErrorInfo(Wire):
    """What went wrong, for programs (`code`) and for people (`message`)."""

    code: str
    message: str
    retryable: bool = False
    """Whether the same may succeed in a moment: a run that failed so can be resumed."""


class PendingInput(Wire):
    """A question that waits for an answer."""

    input_id: str
    """The same in every attempt."""
    prompt: str
    input_kind: Literal["confirmation", "text", "selection", "data", "tool", "credential"] = "data"
    """`tool` is a call that the client carries out, `credential` one that only the person has."""
    options: list[Any] | None = None
    answer_schema: dict[str, Any] = Field(default_factory=dict[str, Any])
    """JSON Schema of the answer."""
    call: ToolCall | None = None
    """The tool call that asks, or that the client is to carry out."""
    index: int = 0
    step: str | None = None
    task_id: str | None = Field(default=None, exclude_if=not_)
    """The run that asks, where that is one of a nested agent."""
    agent_path: tuple[str, ...] = Field(default=(), exclude_if=not_)
    """The names of the nested agents down to the one that asks."""
    hidden: bool = Field(default=False, exclude_if=not_)
    """The run that asks is nested in a call that is not for clients."""
    provider: str | None = Field(default=None, exclude_if=lambda value: value is None)
    """Of a credential: where the person signs in."""
    url: str | None = Field(default=None, exclude_if=lambda value: value is None)
    """Of a credential: the page for that."""
    public_key: str | None = Field(default=None, exclude_if=lambda value: value is None)
    """Of a credential: the key that it is to be encrypted with; then the answer is the ciphertext."""

    @property
    def secret(self) -> bool:
        """Whether the answer is a credential, which is on no stream and in no log."""
        return self.input_kind == "credential"

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        shown = public_question(self)
        return super().__repr_args__() if shown is self else shown.__repr_args__()


def failure_of(answer: Any) -> str | None:
    """Return why a client could not carry a tool out: what stands in an answer `{"error": "..."}`; None otherwise."""
    if isinstance(answer, dict) and len(cast("dict[Any, Any]", answer)) == 1:
        error = cast("dict[Any, Any]", answer).get("error")
        return error if isinstance(error, str) else None
    return None


def public_question(question: PendingInput) -> PendingInput:
    """Show a question as clients may see it: of a hidden tool's, or for a credential, what it takes to answer it."""
    changes: dict[str, Any] = {}
    if question.secret:
        changes = {"call": None}
    elif question.hidden or (question.call is not None and question.call.hidden):
        changes = {"prompt": HIDDEN_QUESTION, "options": None, "answer_schema": EMPTY_DICT, "call": None}
    if question.hidden:
        changes |= {"task_id": None, "agent_path": (), "index": 0, "step": None, "hidden": False}
    if changes == {"call": question.call} or not changes:
        return question
    return question.model_copy(update=changes)
