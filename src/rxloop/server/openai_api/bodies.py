"""The bodies of requests, as far as they are read: what is not named here is ignored."""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as BadBase64
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from rxloop.protocol.http import Id, Text
from rxloop.protocol.messages import FilePart, ImagePart, Message, Part, TextPart
from rxloop.server.openai_api.errors import invalid, unsupported

_DATA = re.compile(r"data:([!-+\--~]{1,100}?)(?:;base64),", re.ASCII)
_Address = Annotated[str, Field(min_length=1)]
_Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
]
_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class _Body(BaseModel):
    model_config = ConfigDict(extra="ignore")


# -- what stands in a message


class TextContent(_Body):
    """A text."""

    type: Literal["text", "input_text", "output_text"]
    text: Annotated[str, Field(max_length=100_000)]

    def part(self) -> Part | None:
        """The part of a message that it is."""
        return TextPart(text=self.text) if self.text else None


class ImageAddress(_Body):
    """Where an image is."""

    url: _Address


class ImageContent(_Body):
    """An image, by its address or with its bytes in it."""

    type: Literal["image_url", "input_image"]
    image_url: _Address | ImageAddress

    def part(self) -> Part:
        """The part of a message that it is."""
        url = self.image_url if isinstance(self.image_url, str) else self.image_url.url
        media_type, data = _read_address(url, "image_url")
        return ImagePart(url=url) if data is None else ImagePart(data=data, media_type=media_type)


class FileData(_Body):
    """A file with its bytes in it."""

    file_data: _Address
    filename: Annotated[str, Field(max_length=200)] | None = None

    def part(self) -> Part:
        """The part of a message that it is."""
        media_type, data = _read_address(self.file_data, "file_data")
        if data is None:
            raise invalid("file_data", "give the bytes as data:type;base64,...")
        return FilePart(data=data, media_type=media_type, filename=self.filename)


class FileContent(_Body):
    """A file, by its address or with its bytes in it."""

    type: Literal["input_file"]
    file_url: _Address | None = None
    file_data: _Address | None = None
    filename: Annotated[str, Field(max_length=200)] | None = None

    def part(self) -> Part:
        """The part of a message that it is."""
        if self.file_data is not None:
            return FileData(file_data=self.file_data, filename=self.filename).part()
        if self.file_url is None:
            raise unsupported("input_file", "a file comes by file_url or file_data: there is no store of files")
        _read_address(self.file_url, "file_url")
        return FilePart(url=self.file_url, filename=self.filename)


class ChatFile(_Body):
    """A file in a chat completion."""

    type: Literal["file"]
    file: FileData

    def part(self) -> Part:
        """The part of a message that it is."""
        return self.file.part()


class Refusal(_Body):
    """What the model would not say."""

    type: Literal["refusal"]
    refusal: Annotated[str, Field(max_length=100_000)]

    def part(self) -> Part | None:
        """The part of a message that it is."""
        return TextPart(text=self.refusal) if self.refusal else None


Content = Annotated[
    TextContent | ImageContent | FileContent | ChatFile | Refusal,
    Field(discriminator="type"),
]
Contents = Annotated[str, Field(max_length=100_000)] | Annotated[list[Content], Field(max_length=64)]


def _read_address(url: str, param: str) -> tuple[str, bytes | None]:
    """Read an address: the bytes that stand in it with their type, or none where they are elsewhere."""
    found = _DATA.match(url)
    if found is None:
        if len(url) > 2_000 or re.fullmatch(r"https?://[!-~]+", url) is None:
            raise invalid(param, "give an address with http:// or https://, or data:type;base64,...")
        return "", None
    try:
        return found[1], b64decode(url[found.end() :], validate=True)
    except (BadBase64, ValueError):
        raise invalid(param, "the bytes are not in base64") from None


# -- what a request consists of


class MessageItem(_Body):
    """A message of a conversation."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer", "tool", "function"]
    content: Contents | None = None

    @property
    def text(self) -> str:
        """What it says."""
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        return "\n".join(each.text for each in self.content if isinstance(each, TextContent))

    def message(self) -> Message | None:
        """As a message of ours; None of one that says nothing."""
        if self.role == "assistant":
            return Message.assistant(self.text) if self.text else None
        if self.content is None or isinstance(self.content, str):
            return Message.user(self.content) if self.content else None
        parts = [part for each in self.content if (part := each.part()) is not None]
        return Message.user(parts) if parts else None


class ApprovalItem(_Body):
    """The answer to a question that has a yes and a no."""

    type: Literal["mcp_approval_response"]
    approval_request_id: Annotated[str, Field(max_length=300)]
    approve: Annotated[bool, Field(strict=True)]


class OutputItem(_Body):
    """The result of a call that the client has carried out."""

    type: Literal["function_call_output"]
    call_id: Annotated[str, Field(max_length=300)]
    output: Annotated[str, Field(max_length=1_000_000)] | Annotated[list[TextContent], Field(max_length=64)]

    @property
    def text(self) -> str:
        """What the tool gave."""
        return self.output if isinstance(self.output, str) else "\n".join(each.text for each in self.output)


class EchoItem(_Body):
    """What a response has said, sent back: the server knows it."""

    type: Literal[
        "reasoning",
        "function_call",
        "mcp_call",
        "mcp_list_tools",
        "mcp_approval_request",
        "item_reference",
    ]


_OTHERS = ("mcp_approval_response", "function_call_output")
_ECHOES = ("reasoning", "function_call", "mcp_call", "mcp_list_tools", "mcp_approval_request", "item_reference")


def _kind(value: Any) -> str:
    found: Any = getattr(value, "type", "message")
    if isinstance(value, dict):
        found = cast("dict[str, Any]", value).get("type", "message")
    return "echo" if found in _ECHOES else found if found in _OTHERS else "message"


Item = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[ApprovalItem, Tag("mcp_approval_response")]
    | Annotated[OutputItem, Tag("function_call_output")]
    | Annotated[EchoItem, Tag("echo")],
    Discriminator(_kind),
]


class FunctionTool(_Body):
    """A tool that the client carries out."""

    type: Literal["function"]
    name: _Name
    description: Annotated[str, Field(max_length=10_000)] | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ConversationParam(_Body):
    """A conversation."""

    id: Id


class FormatParam(_Body):
    """The form that the answer is to have."""

    type: Literal["text", "json_object", "json_schema"] = "text"


class TextParam(_Body):
    """How the text of the answer is to be."""

    format: FormatParam = Field(default_factory=FormatParam)


class CreateResponse(_Body):
    """Asks for a response."""

    model: Annotated[str, Field(max_length=200)] | None = None
    input: Text | Annotated[list[Item], Field(min_length=1, max_length=512)]
    instructions: Annotated[str, Field(max_length=100_000)] | None = None
    conversation: Id | ConversationParam | None = None
    previous_response_id: Annotated[str, Field(max_length=300)] | None = None
    background: bool | None = None
    stream: bool | None = None
    metadata: _Metadata | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=128)] | None = None
    tool_choice: Any = None
    text: TextParam | None = None
    prompt: Any = None

    @property
    def context_id(self) -> str | None:
        """The conversation that it names."""
        return self.conversation.id if isinstance(self.conversation, ConversationParam) else self.conversation

    @property
    def items(self) -> list[MessageItem | ApprovalItem | OutputItem | EchoItem]:
        """What is asked, as items."""
        return [MessageItem(role="user", content=self.input)] if isinstance(self.input, str) else self.input


class StreamOptions(_Body):
    """How a stream is to be."""

    include_usage: bool | None = None


class CreateCompletion(_Body):
    """Asks for a chat completion."""

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
    """How a response is read."""

    model_config = ConfigDict(extra="ignore")
    stream: bool = False
    starting_after: Annotated[int, Field(ge=0, le=2**53)] | None = None


class ItemsQuery(BaseModel):
    """Which items are listed."""

    model_config = ConfigDict(extra="ignore")
    limit: Annotated[int, Field(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"
    after: str | None = None
