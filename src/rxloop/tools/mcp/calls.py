"""MCP tool calls and result conversion."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

import httpx2
import mcp_types as types
from mcp.client import Client

from rxloop.errors import ToolError
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.media import make_part
from rxloop.protocol.parts import FilePart, ImagePart, format_size
from rxloop.support.redaction import redact_each
from rxloop.tools.mcp.options import ServerOptions
from rxloop.tools.result import ToolResult, encode_result
from rxloop.tools.result_parts import MAX_PART_BYTES, MAX_PARTS

_MAX_TEXT = 2_000


@dataclass(eq=False, slots=True)
class Call:
    """A pending tool call."""

    ctx: RunContext[Any]
    samples: int = 0
    """Number of sampling requests received from the server."""
    requests: set[asyncio.Task[Any]] = field(default_factory=set[asyncio.Task[Any]])
    """Pending server requests for this call."""

    def cancel_requests(self) -> None:
        """Cancel the pending requests of the server."""
        for task in self.requests:
            task.cancel()


class Link:
    """An open connection.

    Args:
        name: Name of the server.
        options: Options of the server.
        client: Client of the SDK.
        secrets: Secret values that were sent to the server.
        sessions: True for HTTP, where a server may drop a session.
    """

    def __init__(
        self, name: str, options: ServerOptions, client: Client, secrets: tuple[str, ...], *, sessions: bool
    ) -> None:
        self.name = name
        self.options = options
        self.client = client
        self.secrets = secrets
        self.sessions = sessions
        self.calls: set[Call] = set()
        """Pending calls."""
        self.closed = False
        """True if the server has closed the connection."""
        self.used = 0.0
        """Event loop time of the last use."""

    @property
    def is_modern(self) -> bool:
        """True for protocol version 2026-07-28 or later, which returns server requests as call results."""
        return self.client.protocol_version >= "2026"

    def redact(self, text: str, max_length: int = _MAX_TEXT) -> str:
        """Redact secrets and truncate server text."""
        return redact_each(text, self.secrets)[:max_length]


Connect = Callable[[RunContext[Any]], Awaitable[Link]]
"""Function that returns the connection for the credential of a run. Connects again if necessary."""

MAX_MESSAGE_BYTES = 32_000_000
"""Maximum size of server messages in bytes."""


async def limit_body(response: httpx2.Response) -> None:
    """Limit the size of a response body that is read as a whole.

    Raises:
        httpx2.DecodingError: If the body is compressed although this was not requested. It could expand to a huge size.
    """
    if response.headers.get("content-type", "").lower().startswith("text/event-stream"):
        return
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise httpx2.DecodingError("the server sent a compressed response, although it was not requested")
    response.stream = _LimitedStream(cast("httpx2.AsyncByteStream", response.stream))


class _LimitedStream(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MAX_MESSAGE_BYTES
        async for part in self._inner:
            left -= len(part)
            if left < 0:
                # The SDK treats this error as an unreadable response.
                raise httpx2.StreamError(f"the response is longer than {MAX_MESSAGE_BYTES} bytes")
            yield part

    async def aclose(self) -> None:
        await self._inner.aclose()


_TYPE = re.compile(r"[\w.+-]{1,100}/[\w.+-]{1,100}", re.ASCII)


@dataclass(slots=True)
class _Block:
    """Result block with an optional converted image or file."""

    block: types.ContentBlock
    part: ImagePart | FilePart | None = None


def tool_result(result: types.CallToolResult, link: Link) -> ToolResult:
    """Convert a server result to a tool result.

    Images, audio and files are converted to parts within the configured limits. The text includes their type and size,
    even for omitted parts.

    Raises:
        ToolError: Call failure reported by the server. The error includes the result value and parts.
    """
    blocks = _extract_parts(result.content)
    text = "\n".join(map(_text, blocks))
    structured = result.structured_content
    value = _redact_value(structured if structured is not None else _value(blocks), link)
    parts = [each.part for each in blocks if each.part is not None]
    if result.is_error:
        # The text already contains the blocks. Structured content may add information.
        error_value = ToolResult(value, "") if structured is None else value
        text = text or f"The MCP server {link.name} says that the call failed{'.' if structured is None else ':'}"
        raise ToolError(
            link.redact(text, len(text)), value=error_value if blocks or structured is not None else None, parts=parts
        )
    if not text and structured is not None:
        text = encode_result(value)[1]
    return ToolResult(value, link.redact(text, len(text)) if text else "(no content)", parts=parts)


def _extract_parts(blocks: list[types.ContentBlock]) -> list[_Block]:
    given = [_Block(block) for block in blocks]
    number, max_bytes = MAX_PARTS, MAX_PART_BYTES
    for each in given:
        part = _part(each.block, max_bytes) if number else None
        if part is not None:
            each.part = part
            number -= 1
            max_bytes -= len(part.data or b"")
    return given


def _part(block: types.ContentBlock, max_bytes: int) -> ImagePart | FilePart | None:
    """Create a part from a block with binary data.

    Return None for other blocks, invalid types, or if the limit is reached.
    """
    match block:
        case types.ImageContent() | types.AudioContent():
            media_type, data, name = block.mime_type, block.data, None
        case types.EmbeddedResource(resource=types.BlobResourceContents() as resource):
            media_type, data, name = resource.mime_type or "", resource.blob, str(resource.uri).rpartition("/")[2][:200]
        case _:
            return None
    if len(data) * 3 // 4 > max_bytes or (media_type and not _TYPE.fullmatch(media_type.partition(";")[0].strip())):
        return None
    try:
        return make_part(
            data=data, media_type=media_type, name=name or None, image=isinstance(block, types.ImageContent)
        )
    except ValueError:
        return None


def _value(blocks: list[_Block]) -> Any:
    if all(isinstance(each.block, types.TextContent) for each in blocks):
        return "\n".join(map(_text, blocks))
    return [_serialize_block(each) for each in blocks]


def _serialize_block(block: _Block) -> dict[str, Any]:
    """Serialize a block. Binary data is replaced by its size, or marked as left out if it is not part of the result."""
    plain: dict[str, Any] = block.block.model_dump(by_alias=True, mode="json", exclude_none=True)
    holder: dict[str, Any] = plain.get("resource", plain)
    for name in ("data", "blob"):
        data = holder.get(name)
        if isinstance(data, str):
            holder[name] = ""
            holder.update({"leftOut": True} if block.part is None else {"size": len(block.part.data or b"")})
    return plain


def _text(item: _Block) -> str:
    block = item.block
    match block:
        case types.TextContent():
            return block.text
        case types.ImageContent() | types.AudioContent():
            return f"[{_describe_media(item.part, block.mime_type, block.data)}]"
        case types.ResourceLink():
            about = ", ".join(part for part in (block.mime_type, block.size and format_size(block.size)) if part)
            described = f": {block.description}" if block.description else ""
            return f"[{block.name} at {block.uri}{f' ({about})' if about else ''}{described}]"
        case types.EmbeddedResource(resource=types.TextResourceContents() as resource):
            return f"[{resource.uri}]\n{resource.text}"
        case types.EmbeddedResource(resource=resource):
            blob = cast("types.BlobResourceContents", resource).blob
            return f"[{resource.uri}, {_describe_media(item.part, resource.mime_type, blob)}]"


def _describe_media(part: ImagePart | FilePart | None, media_type: str | None, base64: str) -> str:
    return part.description if part is not None else f"{media_type or 'bytes'}, {format_size(len(base64) * 3 // 4)}"


def _redact_value(value: Any, link: Link) -> Any:
    """Return a value with the secrets in its strings redacted."""
    if not link.secrets:
        return value
    if isinstance(value, str):
        return link.redact(value, len(value))
    if isinstance(value, list):
        return [_redact_value(part, link) for part in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: _redact_value(part, link) for key, part in cast("dict[str, Any]", value).items()}
    return value
