"""Chat messages, tool calls, token usage, errors and pending questions."""

from collections.abc import Iterable, Sequence
from operator import not_
from typing import Any, Literal, Self, cast

import orjson
from pydantic import Field, model_validator

from rxloop.errors import ConfigurationError, InvalidEvent
from rxloop.protocol.json_data import freeze_json, replace_surrogates
from rxloop.protocol.model import EMPTY_DICT, make_unchecked
from rxloop.protocol.model import Wire as Wire
from rxloop.protocol.parts import Citation as Citation
from rxloop.protocol.parts import Content as Content
from rxloop.protocol.parts import FilePart as FilePart
from rxloop.protocol.parts import ImagePart as ImagePart
from rxloop.protocol.parts import Media as Media
from rxloop.protocol.parts import Part as Part
from rxloop.protocol.parts import TextPart as TextPart
from rxloop.protocol.parts import add_placeholders

HIDDEN_QUESTION = "A decision is needed before the agent can continue."
"""Replacement prompt for hidden tools."""

Role = Literal["system", "user", "assistant", "tool"]


MAX_ARGUMENT_VALUES = 20_000
"""Default maximum number of JSON values in the arguments of the calls of a message, which several steps copy."""


class ToolCall(Wire):
    """Tool call requested by the model.

    `arguments` is always a dict. If the model writes anything else, `arguments` is empty, `error` describes the
    problem, and `raw` keeps the original, so that the call gets a useful error.
    """

    # Mark normalised calls, because several events share them.
    __slots__ = ("_normalised",)

    id: str
    """Vendor's call id. It might not be unique, because some vendors start counting at "0" in each message."""
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict[str, Any])
    raw: str | None = None
    """Original argument string, sent back unchanged."""
    error: str | None = None
    """Validation error, if any."""
    hidden: bool = Field(default=False, exclude_if=lambda value: not value)
    """True if clients must not see the call, because the tool is hidden. Set by the run, never sent to a vendor."""

    def describe(self) -> str:
        """Return the call as Python source."""
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in self.arguments.items())})"

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        return [("hidden", True)] if self.hidden else super().__repr_args__()

    @classmethod
    def parse(cls, id: str, name: str, raw: str | None, *, limit: int = MAX_ARGUMENT_VALUES) -> "ToolCall":
        """Create a call from arguments that a model wrote.

        Missing arguments become `{}`, and an object that was encoded twice is decoded twice. If the text is not JSON
        but contains a single JSON value, this value is used, and `raw` is set to it.

        Args:
            id: Vendor's call id.
            name: Name of the tool.
            raw: Arguments as JSON.
            limit: Maximum number of values in the arguments. A call with more has an `error`.
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
            # Imported on first use, because most arguments are JSON.
            from rxloop.protocol.lenient import find_json

            json_text = find_json(text)
            if json_text is None or json_text == raw:
                return cls(id=id, name=name, raw=raw, error=f"the arguments are not valid JSON: {error}")
            return cls.parse(id, name, json_text, limit=limit)
        value = {} if value is None else value
        if not isinstance(value, dict):
            error = f"the arguments must be a JSON object, not {type(value).__name__}"
            return cls(id=id, name=name, raw=raw, error=error)
        try:
            arguments = freeze_json(value, "the arguments", limit)
        except InvalidEvent as error:
            return cls(id=id, name=name, raw=raw, error=str(error))
        return _call(
            id=replace_surrogates(id), name=replace_surrogates(name), arguments=arguments, raw=replace_surrogates(raw)
        )


_call = make_unchecked(ToolCall, normalised=True)


class Message(Wire):
    """Conversation message."""

    # The encoded form, so that each message is only encoded once per provider, the origin of a message that an operator
    # adds to a request, and the mark of `mark_private`. Not part of the value. Copies have neither origin nor mark.
    __slots__ = ("_origin", "_private", "_wire")

    role: Role
    content: Content = ""
    reasoning: str | None = None
    """Reasoning text that the provider returned with an assistant message."""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    """Id of the answered call. Only set in tool messages."""
    provider_state: dict[str, Any] | None = None
    """Opaque provider data, such as signed reasoning. It should be sent back unchanged."""
    pinned: bool = Field(default=False, exclude_if=lambda value: not value)
    """True if the message must stay in all requests, even if the history is compressed."""
    message_id: str | None = Field(default=None, exclude_if=lambda value: not value)
    """Id for programs, set by the author or the run. It is never sent to a vendor."""

    def __eq__(self, other: object) -> bool:
        # Ignore ids when comparing messages.
        if not isinstance(other, Message):
            return NotImplemented
        return {**vars(self), "message_id": None} == {**vars(other), "message_id": None}

    def __hash__(self) -> int:
        return hash((self.role, self.text, self.tool_call_id))

    @model_validator(mode="after")
    def _check_role(self) -> Self:
        if self.role == "tool" and self.tool_call_id is None:
            raise ValueError("tool_call_id must be set in a tool message")
        if self.role != "tool" and self.tool_call_id is not None:
            raise ValueError(f"tool_call_id must not be set in a {self.role} message")
        if self.role != "assistant" and self.tool_calls:
            raise ValueError(f"tool_calls must not be set in a {self.role} message")
        return self

    @classmethod
    def system(cls, content: str | Sequence[Part]) -> "Message":
        """Create a message with instructions for the model."""
        return cls(role="system", content=_content(content))

    @classmethod
    def user(cls, content: str | Sequence[Part], *, pinned: bool = False, message_id: str | None = None) -> "Message":
        """Create a user message.

        Args:
            content: Text, or a sequence of parts.
            pinned: Keep the message in all requests.
            message_id: Id for programs. By default, the run creates one.
        """
        return cls(role="user", content=_content(content), pinned=pinned, message_id=message_id)

    @classmethod
    def assistant(cls, content: str | Sequence[Part] = "", *, tool_calls: Sequence[ToolCall] = ()) -> "Message":
        """Create a message from the model."""
        return cls(role="assistant", content=_content(content), tool_calls=tuple(tool_calls))

    @classmethod
    def tool(cls, tool_call_id: str, content: str | Sequence[Part]) -> "Message":
        """Create the result message for a tool call."""
        return cls(role="tool", tool_call_id=tool_call_id, content=_content(content))

    @property
    def text(self) -> str:
        """Text of the message, without images and files. Text parts are joined."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content if isinstance(part, TextPart))

    @property
    def media(self) -> list[ImagePart | FilePart]:
        """Images and files in the message."""
        if isinstance(self.content, str):
            return []
        return [part for part in self.content if not isinstance(part, TextPart)]

    @property
    def text_with_placeholders(self) -> str:
        """Text content, including placeholders for images and files."""
        return self.text if isinstance(self.content, str) else add_placeholders(self.text, self.media)


def _content(content: str | Sequence[Part]) -> Content:
    return content if isinstance(content, str) else list(content)


def mark_private(message: Message) -> Message:
    """Mark a user message of the history that clients must not receive, such as a note of a strategy."""
    object.__setattr__(message, "_private", True)
    return message


def is_private(message: Message) -> bool:
    """Return True if a message was marked by `mark_private`."""
    return getattr(message, "_private", False)


Prompt = str | Message | Sequence[Message | str]
"""Run input."""


def to_messages(prompt: Prompt, name: str = "the prompt") -> tuple[Message, ...]:
    """Convert a prompt to messages. Strings are converted to user messages.

    Args:
        prompt: Text, a message, or a sequence of both.
        name: Name of the prompt to use in errors.

    Raises:
        ConfigurationError: The prompt has another type, or it contains an empty user message.
    """
    value: Any = prompt
    if isinstance(value, str | Message):
        return (_to_message(value, name),)
    if not isinstance(value, Sequence) or isinstance(value, bytes | bytearray):
        raise ConfigurationError(
            f"{name} must be a string, a message, or a list of them, got {repr(value)[:200]}{_explain_dict(value)}"
        )
    items = cast("Sequence[Any]", value)
    return tuple(_to_message(item, f"{name.removeprefix('the ')}[{index}]") for index, item in enumerate(items))


def _to_message(item: Any, name: str) -> Message:
    if isinstance(item, str):
        item = Message.user(item)
    if not isinstance(item, Message):
        hint = _explain_dict(item) or (
            ". Pass parts in a list: Message.user([TextPart(text=...), FilePart(data=..., media_type=...)])"
        )
        raise ConfigurationError(f"{name} must be a string or a message, got {repr(item)[:200]}{hint}")
    if item.role == "user" and not item.content:
        raise ConfigurationError(f"{name} must not be an empty user message. Add some text.")
    if isinstance(item.content, str) and replace_surrogates(item.content) is not item.content:
        return item.model_copy(update={"content": replace_surrogates(item.content)})
    return item


def _explain_dict(value: object) -> str:
    """Return a remedy for messages in the format of vendor APIs, or an empty string."""
    if isinstance(value, tuple) and value and value[0] in _MAKERS:
        return f"; write {_MAKERS[value[0]]}"
    if not isinstance(value, dict):
        return ""
    fields = cast("dict[str, Any]", value)
    if "messages" in fields:
        return "; pass the list of messages itself"
    return f"; write {_MAKERS.get(fields.get('role', 'user'), _MAKERS['user'])}"


_MAKERS = {
    "user": "Message.user('...')",
    "human": "Message.user('...')",
    "assistant": "Message.assistant('...')",
    "ai": "Message.assistant('...')",
    "system": "Message.system('...')",
    "developer": "Message.system('...')",
    "tool": "Message.tool(call_id, '...')",
}
"""Constructors of messages by the role that vendor APIs and other frameworks use."""


class ResponseInfo(Wire):
    """Origin of a model message."""

    id: str | None = None
    """The vendor's id of the response."""
    model: str | None = None
    """Model that answered, as named by the vendor. It may be more specific than the requested model."""
    server_address: str | None = None
    """Host name of the API."""
    server_port: int | None = None
    streamed: bool = False
    """True if the vendor streamed the response."""


class Usage(Wire):
    """Token usage of model calls, as reported by the provider.

    `input_tokens` is the whole input, including tokens read from the cache and written to it.
    """

    # As in `ToolCall`: several events contain a run's total usage.
    __slots__ = ("_normalised",)

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """Number of input tokens read from the provider's cache."""
    cache_write_tokens: int = Field(default=0, exclude_if=lambda value: not value)
    """Number of input tokens written to the provider's cache, if the provider reports it."""
    reasoning_tokens: int = 0
    """Number of output tokens used for reasoning."""

    @property
    def total_tokens(self) -> int:
        """Sum of input and output tokens."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: "Usage") -> "Usage":
        return _usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
        )


_usage = make_unchecked(Usage, normalised=True)


class ErrorInfo(Wire):
    """Machine-readable code and message."""

    code: str
    message: str
    retryable: bool = False
    """True if the same operation may succeed later, so that the run can be resumed."""


InputKind = Literal["confirmation", "text", "selection", "data", "tool", "credential"]


class PendingInput(Wire):
    """Pending question."""

    input_id: str
    """Question id. It does not change between attempts."""
    prompt: str
    input_kind: InputKind = "data"
    """Expected kind of answer. If `tool`, the client should execute the call. If `credential`, a person should sign
    in."""
    options: list[Any] | None = None
    answer_schema: dict[str, Any] = Field(default_factory=dict[str, Any])
    """JSON Schema for the answer."""
    call: ToolCall | None = None
    """Related tool call."""
    index: int = 0
    step: str | None = None
    task_id: str | None = Field(default=None, exclude_if=not_)
    """Nested run id, if any."""
    agent_path: tuple[str, ...] = Field(default=(), exclude_if=not_)
    """Nested agent names, starting with the outermost agent."""
    hidden: bool = Field(default=False, exclude_if=not_)
    """True if the question belongs to a run nested in a hidden call."""
    provider: str | None = Field(default=None, exclude_if=lambda value: value is None)
    """Sign-in provider name."""
    url: str | None = Field(default=None, exclude_if=lambda value: value is None)
    """Sign-in page URL."""
    public_key: str | None = Field(default=None, exclude_if=lambda value: value is None)
    """Key for encrypting a credential. If set, the answer is the ciphertext."""

    @property
    def secret(self) -> bool:
        """True if the answer is a credential. Credentials are never published or logged."""
        return self.input_kind == "credential"

    def allows(self, answer: Any) -> bool:
        """Return True if the answer is one of the options, or if there are none. In JSON, `true` is not 1."""
        return self.options is None or any(
            option == answer and isinstance(option, bool) == isinstance(answer, bool) for option in self.options
        )

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        public = public_question(self)
        return super().__repr_args__() if public is self else public.__repr_args__()


def get_tool_error(answer: Any) -> str | None:
    """Return the error from a client's answer `{"error": "..."}`, or None if the tool succeeded."""
    if isinstance(answer, dict) and len(cast("dict[Any, Any]", answer)) == 1:
        error = cast("dict[Any, Any]", answer).get("error")
        return error if isinstance(error, str) else None
    return None


def public_question(question: PendingInput) -> PendingInput:
    """Return a question without private data. Hidden tools and credentials only keep the fields needed to answer."""
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
