"""Calls over a connection, with bounds, and their results for the program and for the model."""

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
from rxloop.tools.mcp.options import Taken
from rxloop.tools.result import ToolResult, encode_result
from rxloop.tools.result_parts import PART_BYTES, PARTS

_LONGEST = 2_000


@dataclass(eq=False, slots=True)
class Call:
    """A tool call that is under way."""

    ctx: RunContext[Any]
    samples: int = 0
    """How often the server has asked the model."""
    asking: set[asyncio.Task[Any]] = field(default_factory=set[asyncio.Task[Any]])
    """The questions of the server that wait for an answer."""

    def over(self) -> None:
        """Ask no more."""
        for task in self.asking:
            task.cancel()


class Link:
    """A connection, while it is entered.

    Args:
        name: What the server is called.
        taken: What is taken of it.
        client: That of the SDK.
        secrets: What may not be seen of what was sent to it.
        sessions: Whether it is reached by HTTP, where a server may forget a session.
    """

    def __init__(self, name: str, taken: Taken, client: Client, secrets: tuple[str, ...], *, sessions: bool) -> None:
        self.name = name
        self.taken = taken
        self.client = client
        self.secrets = secrets
        self.sessions = sessions
        self.calls: set[Call] = set()
        """The calls that are under way."""
        self.closed = False
        """Whether the server has gone: nothing can be asked any more."""
        self.used = 0.0
        """When it was asked for last."""

    @property
    def modern(self) -> bool:
        """Whether the server speaks 2026-07-28 or later, where questions are answers to calls."""
        return self.client.protocol_version >= "2026"

    def shown(self, text: str, longest: int = _LONGEST) -> str:
        """A text of the server without what is secret, of a bounded length."""
        return redact_each(text, self.secrets)[:longest]


Connect = Callable[[RunContext[Any]], Awaitable[Link]]
"""Gives the connection for the credential of a run; a new one, if the last has ended."""

MOST = 32_000_000
"""Bytes of one message of a server."""


async def bounded(response: httpx2.Response) -> None:
    """Bound the body of a response that is to be read as a whole.

    Raises:
        httpx2.DecodingError: It is compressed, though that was not asked for: few bytes may stand for very many.
    """
    if response.headers.get("content-type", "").lower().startswith("text/event-stream"):
        return
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise httpx2.DecodingError("the server compressed its answer, though it was not asked to")
    response.stream = _Bounded(cast("httpx2.AsyncByteStream", response.stream))


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MOST
        async for part in self._inner:
            left -= len(part)
            if left < 0:
                # What the SDK takes as an answer that cannot be read.
                raise httpx2.StreamError(f"it is longer than {MOST} bytes")
            yield part

    async def aclose(self) -> None:
        await self._inner.aclose()


_TYPE = re.compile(r"[\w.+-]{1,100}/[\w.+-]{1,100}", re.ASCII)


@dataclass(slots=True)
class _Given:
    """A block of a result, and the image or file that is made of it."""

    block: types.ContentBlock
    part: ImagePart | FilePart | None = None


def tool_result(result: types.CallToolResult, link: Link) -> ToolResult:
    """Make a result of what the server gave.

    The model gets images, sounds and files as parts, as far as there is room for them. In the text each is named with
    its type and size, and so are those for which there is none.

    Raises:
        ToolError: The server says that the call failed. The error has the value and the parts of the result.
    """
    given = _with_parts(result.content)
    text = "\n".join(map(_text, given))
    structured = result.structured_content
    value = _shown(structured if structured is not None else _value(given), link)
    parts = [each.part for each in given if each.part is not None]
    if result.is_error:
        # Blocks are in the text already. Structured content may say more than the text.
        told = ToolResult(value, "") if structured is None else value
        why = text or f"The MCP server {link.name} says that the call failed{'.' if structured is None else ':'}"
        raise ToolError(link.shown(why, len(why)), value=told if given or structured is not None else None, parts=parts)
    if not text and structured is not None:
        text = encode_result(value)[1]
    return ToolResult(value, link.shown(text, len(text)) if text else "(no content)", parts=parts)


def _with_parts(blocks: list[types.ContentBlock]) -> list[_Given]:
    given = [_Given(block) for block in blocks]
    number, room = PARTS, PART_BYTES
    for each in given:
        part = _part(each.block, room) if number else None
        if part is not None:
            each.part = part
            number -= 1
            room -= len(part.data or b"")
    return given


def _part(block: types.ContentBlock, room: int) -> ImagePart | FilePart | None:
    """Make a part of what has bytes; None where it has none, or no type, or there is no room for it."""
    match block:
        case types.ImageContent() | types.AudioContent():
            media_type, data, name = block.mime_type, block.data, None
        case types.EmbeddedResource(resource=types.BlobResourceContents() as held):
            media_type, data, name = held.mime_type or "", held.blob, str(held.uri).rpartition("/")[2][:200]
        case _:
            return None
    if len(data) * 3 // 4 > room or (media_type and not _TYPE.fullmatch(media_type.partition(";")[0].strip())):
        return None
    try:
        return make_part(
            data=data, media_type=media_type, name=name or None, image=isinstance(block, types.ImageContent)
        )
    except ValueError:
        return None


def _value(given: list[_Given]) -> Any:
    if all(isinstance(each.block, types.TextContent) for each in given):
        return "\n".join(map(_text, given))
    return [_plain(each) for each in given]


def _plain(given: _Given) -> dict[str, Any]:
    """A block without its bytes: they are among the parts, or too many for the log."""
    plain: dict[str, Any] = given.block.model_dump(by_alias=True, mode="json", exclude_none=True)
    holder: dict[str, Any] = plain.get("resource", plain)
    for name in ("data", "blob"):
        data = holder.get(name)
        if isinstance(data, str):
            holder[name] = ""
            holder.update({"leftOut": True} if given.part is None else {"size": len(given.part.data or b"")})
    return plain


def _text(given: _Given) -> str:
    block = given.block
    match block:
        case types.TextContent():
            return block.text
        case types.ImageContent() | types.AudioContent():
            return f"[{_described(given.part, block.mime_type, block.data)}]"
        case types.ResourceLink():
            about = ", ".join(part for part in (block.mime_type, block.size and format_size(block.size)) if part)
            described = f": {block.description}" if block.description else ""
            return f"[{block.name} at {block.uri}{f' ({about})' if about else ''}{described}]"
        case types.EmbeddedResource(resource=types.TextResourceContents() as held):
            return f"[{held.uri}]\n{held.text}"
        case types.EmbeddedResource(resource=held):
            blob = cast("types.BlobResourceContents", held).blob
            return f"[{held.uri}, {_described(given.part, held.mime_type, blob)}]"


def _described(part: ImagePart | FilePart | None, media_type: str | None, base64: str) -> str:
    return part.description if part is not None else f"{media_type or 'bytes'}, {format_size(len(base64) * 3 // 4)}"


def _shown(value: Any, link: Link) -> Any:
    """A value without what is secret in its texts."""
    if not link.secrets:
        return value
    if isinstance(value, str):
        return link.shown(value, len(value))
    if isinstance(value, list):
        return [_shown(part, link) for part in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: _shown(part, link) for key, part in cast("dict[str, Any]", value).items()}
    return value
