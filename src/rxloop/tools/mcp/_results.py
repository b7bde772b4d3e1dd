"""What a server gives back for a call, as a result for programs and as a text for the model."""

from __future__ import annotations

from typing import Any, cast

import mcp_types as types

from rxloop.errors import ToolError
from rxloop.tools._result import ToolResult, encode_result
from rxloop.tools.mcp._link import Link

_DATA = 2_000_000
"""Characters of the bytes of an image or a file, in base64, that stay in the result."""


def tool_result(result: types.CallToolResult, link: Link) -> ToolResult:
    """Make a result of what the server gave.

    The model reads texts; an image, a sound or a file is named there with its type and size, and its bytes are in the
    result for programs, unless there are too many.

    Raises:
        ToolError: The server says that the call failed.
    """
    text = "\n".join(_text(block) for block in result.content)
    if result.is_error:
        raise ToolError(link.shown(text or "The tool failed, and the server does not say why.", len(text) + 100))
    value = _value(result)
    if not text and result.structured_content is not None:
        text = encode_result(value)[1]
    return ToolResult(_shown(value, link), link.shown(text, len(text)) if text else "(no content)")


def _value(result: types.CallToolResult) -> Any:
    if result.structured_content is not None:
        return result.structured_content
    blocks = result.content
    if all(isinstance(block, types.TextContent) for block in blocks):
        return "\n".join(_text(block) for block in blocks)
    return [_bounded(block.model_dump(by_alias=True, mode="json", exclude_none=True)) for block in blocks]


def _bounded(block: dict[str, Any]) -> dict[str, Any]:
    """A block without bytes that would make the log heavy."""
    holder = block.get("resource", block)
    for name in ("data", "blob"):
        if len(holder.get(name, "")) > _DATA:
            holder[name] = ""
            holder["leftOut"] = "too large"
    return block


def _text(block: types.ContentBlock) -> str:
    match block:
        case types.TextContent():
            return block.text
        case types.ImageContent() | types.AudioContent():
            return f"[{block.mime_type}, {_size(block.data)}]"
        case types.ResourceLink():
            about = ", ".join(part for part in (block.mime_type, block.size and _bytes(block.size)) if part)
            described = f": {block.description}" if block.description else ""
            return f"[{block.name} at {block.uri}{f' ({about})' if about else ''}{described}]"
        case types.EmbeddedResource(resource=types.TextResourceContents() as held):
            return f"[{held.uri}]\n{held.text}"
        case types.EmbeddedResource(resource=held):
            return f"[{held.uri}, {held.mime_type or 'bytes'}, {_size(cast('types.BlobResourceContents', held).blob)}]"


def _size(base64: str) -> str:
    return _bytes(len(base64) * 3 // 4)


def _bytes(count: int) -> str:
    if count < 1_000:
        return f"{count} bytes"
    return f"{count / 1_000:.1f} kB" if count < 1_000_000 else f"{count / 1_000_000:.1f} MB"


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
