"""Request models of the OpenAI adapter."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from rxloop.protocol.http_api import Text
from rxloop.protocol.ids import Id
from rxloop.protocol.media import make_part
from rxloop.protocol.messages import Message, Part, TextPart
from rxloop.server.core.runs import resolve_agent
from rxloop.server.openai.call import OpenAiCall, invalid, unsupported

_URL = re.compile(r"https?://[!-~]{1,1990}", re.IGNORECASE)
_Url = Annotated[str, Field(min_length=1)]
_Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
]
_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class _Body(BaseModel):
    model_config = ConfigDict(extra="ignore")


# -- message content


class TextContent(_Body):
    """Text content."""

    type: Literal["text", "input_text", "output_text"]
    text: Annotated[str, Field(max_length=100_000)]

    def to_part(self) -> Part | None:
        """Convert to a message part."""
        return TextPart(text=self.text) if self.text else None


class ImageUrl(_Body):
    """Image URL object."""

    url: _Url


class ImageContent(_Body):
    """Image content, as a URL or data URL."""

    type: Literal["image_url", "input_image"]
    image_url: _Url | ImageUrl

    def to_part(self) -> Part:
        """Convert to a message part."""
        url = self.image_url if isinstance(self.image_url, str) else self.image_url.url
        return _read_media("image_url", url=url, image=True)


class FileData(_Body):
    """Inline file data."""

    file_data: _Url
    filename: Annotated[str, Field(max_length=200)] | None = None

    def to_part(self) -> Part:
        """Convert to a message part."""
        if self.file_data.lstrip()[:5].lower() != "data:":
            # Some clients send plain base64 with a file name that determines the type.
            return _read_media("file_data", data=self.file_data, name=self.filename)
        return _read_media("file_data", url=self.file_data, name=self.filename)


class FileContent(_Body):
    """File content, as a URL or inline data."""

    type: Literal["input_file"]
    file_url: _Url | None = None
    file_data: _Url | None = None
    filename: Annotated[str, Field(max_length=200)] | None = None

    def to_part(self) -> Part:
        """Convert to a message part."""
        if self.file_data is not None:
            return FileData(file_data=self.file_data, filename=self.filename).to_part()
        if self.file_url is None:
            raise unsupported("input_file", "file_url or file_data is required, because this server stores no files")
        return _read_media("file_url", url=self.file_url, name=self.filename)


class ChatFile(_Body):
    """File content of a chat completion."""

    type: Literal["file"]
    file: FileData

    def to_part(self) -> Part:
        """Convert to a message part."""
        return self.file.to_part()


class Refusal(_Body):
    """Refusal by the model."""

    type: Literal["refusal"]
    refusal: Annotated[str, Field(max_length=100_000)]

    def to_part(self) -> Part | None:
        """Convert to a message part."""
        return TextPart(text=self.refusal) if self.refusal else None


Content = Annotated[
    TextContent | ImageContent | FileContent | ChatFile | Refusal,
    Field(discriminator="type"),
]
Contents = Annotated[str, Field(max_length=100_000)] | Annotated[list[Content], Field(max_length=64)]


def _read_media(
    param: str, *, url: str | None = None, data: str | None = None, name: str | None = None, image: bool = False
) -> Part:
    """Convert a media parameter to a message part."""
    if url is not None and url.lstrip()[:5].lower() != "data:" and _URL.fullmatch(url) is None:
        raise invalid(param, f"{param} must be an http or https URL, or data:type;base64,...")
    try:
        return make_part(url=url, data=data, name=name, image=image)
    except ValueError as error:
        raise invalid(param, f"{param} is invalid: {error}") from None


# -- request bodies


class MessageItem(_Body):
    """A conversation message."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer", "tool", "function"]
    content: Contents | None = None

    @property
    def text(self) -> str:
        """Text content of the message."""
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        return "\n".join(each.text for each in self.content if isinstance(each, TextContent))

    def to_message(self) -> Message | None:
        """Convert to a run message, or None if the message is empty."""
        if self.role == "assistant":
            return Message.assistant(self.text) if self.text else None
        if self.content is None or isinstance(self.content, str):
            return Message.user(self.content) if self.content else None
        parts = [part for each in self.content if (part := each.to_part()) is not None]
        return Message.user(parts) if parts else None


class ApprovalItem(_Body):
    """Answer to an approval request."""

    type: Literal["mcp_approval_response"]
    approval_request_id: Annotated[str, Field(max_length=300)]
    approve: Annotated[bool, Field(strict=True)]


class OutputItem(_Body):
    """Client tool result."""

    type: Literal["function_call_output"]
    call_id: Annotated[str, Field(max_length=300)]
    output: Annotated[str, Field(max_length=1_000_000)] | Annotated[list[TextContent], Field(max_length=64)]

    @property
    def text(self) -> str:
        """Text of the tool result."""
        return self.output if isinstance(self.output, str) else "\n".join(each.text for each in self.output)


class EchoItem(_Body):
    """Output item repeated by a client. The server has stored it and ignores it."""

    type: Literal[
        "reasoning",
        "function_call",
        "mcp_call",
        "mcp_list_tools",
        "mcp_approval_request",
        "item_reference",
    ]


_ANSWERS = ("mcp_approval_response", "function_call_output")
_ECHOED_ITEMS = ("reasoning", "function_call", "mcp_call", "mcp_list_tools", "mcp_approval_request", "item_reference")


def _find_tag(value: Any) -> str:
    kind: Any = getattr(value, "type", "message")
    if isinstance(value, dict):
        kind = cast("dict[str, Any]", value).get("type", "message")
    return "echo" if kind in _ECHOED_ITEMS else kind if kind in _ANSWERS else "message"


Item = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[ApprovalItem, Tag("mcp_approval_response")]
    | Annotated[OutputItem, Tag("function_call_output")]
    | Annotated[EchoItem, Tag("echo")],
    Discriminator(_find_tag),
]


class FunctionTool(_Body):
    """Definition of a client tool."""

    type: Literal["function"]
    name: _Name
    description: Annotated[str, Field(max_length=10_000)] | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class AgentTools(_Body):
    """Reference to the agent's own tools, which responses show as tools of this MCP server.

    The Agents SDK accepts approval requests only from servers that its requests name. All other settings, such as the
    URL, are ignored, because the server does not connect to it.
    """

    type: Literal["mcp"]
    server_label: Literal["rxloop"]
    allowed_tools: None = None


Tool = Annotated[FunctionTool | AgentTools, Field(discriminator="type")]


class ConversationParam(_Body):
    """Reference to a conversation."""

    id: Id


class FormatParam(_Body):
    """Requested output format."""

    type: Literal["text", "json_object", "json_schema"] = "text"


class TextParam(_Body):
    """Text output options."""

    format: FormatParam = Field(default_factory=FormatParam)


class CreateResponse(_Body):
    """Request body of the Responses API."""

    model: Annotated[str, Field(max_length=200)] | None = None
    input: Text | Annotated[list[Item], Field(min_length=1, max_length=512)]
    instructions: Annotated[str, Field(max_length=100_000)] | None = None
    conversation: Id | ConversationParam | None = None
    previous_response_id: Annotated[str, Field(max_length=300)] | None = None
    background: bool | None = None
    stream: bool | None = None
    metadata: _Metadata | None = None
    tools: Annotated[list[Tool], Field(max_length=128)] | None = None
    tool_choice: Any = None
    text: TextParam | None = None
    prompt: Any = None

    @property
    def context_id(self) -> str | None:
        """Id of the requested conversation."""
        return self.conversation.id if isinstance(self.conversation, ConversationParam) else self.conversation

    @property
    def items(self) -> list[MessageItem | ApprovalItem | OutputItem | EchoItem]:
        """Input as a list of items."""
        return [MessageItem(role="user", content=self.input)] if isinstance(self.input, str) else self.input


class StreamOptions(_Body):
    """Streaming options."""

    include_usage: bool | None = None


class CreateCompletion(_Body):
    """Request body of the Chat Completions API."""

    model: Annotated[str, Field(max_length=200)] | None = None
    messages: Annotated[list[MessageItem], Field(min_length=1, max_length=512)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    metadata: _Metadata | None = None
    n: int | None = None
    tools: Annotated[list[Any], Field(max_length=128)] | None = None
    functions: Annotated[list[Any], Field(max_length=128)] | None = None
    response_format: FormatParam | None = None
    modalities: list[str] | None = None
    audio: Any = None


class RetrieveQuery(BaseModel):
    """Query parameters for retrieving a response."""

    model_config = ConfigDict(extra="ignore")
    stream: bool = False
    starting_after: Annotated[int, Field(ge=0, le=2**53)] | None = None


class ItemsQuery(BaseModel):
    """Query parameters for listing input items."""

    model_config = ConfigDict(extra="ignore")
    limit: Annotated[int, Field(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"
    after: str | None = None


def check_format(call: OpenAiCall[Any], model: str | None, output_format: str, param: str) -> None:
    """Check that the agent supports JSON output if requested. The schema is always the agent's own."""
    if (
        output_format != "text"
        and call.gateway.runtime.agents[resolve_agent(call.gateway, model, "model")].definition.output_schema is None
    ):
        raise unsupported(param, "the agent answers in text; JSON output requires an agent with output_type")
