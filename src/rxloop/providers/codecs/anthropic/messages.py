"""Conversion of messages to content blocks."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from hashlib import sha256
from typing import Any, NamedTuple, cast

from rxloop.protocol.media import ResolvedMedia, resolve
from rxloop.protocol.messages import FilePart, ImagePart, Message, Part, TextPart, ToolCall
from rxloop.providers.codecs import Notice, find_foreign_states, iter_pieces
from rxloop.providers.codecs.fields import dumps
from rxloop.providers.codecs.media import IMAGES, add_change, describe_omitted, flatten_message, format_file
from rxloop.providers.codecs.message_cache import get_form, store_form
from rxloop.providers.codecs.schemas.dialects import CLAUDE

_PDF = "application/pdf"

_MAX_TITLE_LENGTH = 500


class MediaRules(NamedTuple):
    """Supported images and files."""

    fetches: bool = True
    """True if the host fetches files by their URL."""
    citations: bool = False
    """True if the model should cite the documents."""


def media_block(media: ResolvedMedia, rules: MediaRules) -> dict[str, Any] | None:
    """Convert an image or file. Return None if unsupported."""
    source = _make_source(media, rules)
    if source is None:
        return None
    if media.kind == "image":
        return {"type": "image", "source": source}
    block: dict[str, Any] = {"type": "document", "source": source}
    if media.name is not None:
        block["title"] = media.name[:_MAX_TITLE_LENGTH]
    if rules.citations:
        block["citations"] = {"enabled": True}
    return block


def _make_source(media: ResolvedMedia, rules: MediaRules) -> dict[str, Any] | None:
    kind = media.media_type
    if media.problem is not None or (media.store or "anthropic") != "anthropic":
        return None
    if media.text is not None and media.kind == "text":
        return {"type": "text", "media_type": "text/plain", "data": media.text}
    # URLs and stored files may have no known type.
    if kind not in IMAGES and kind != _PDF and (media.url is None or kind is not None):
        return None
    if media.store is not None:
        return {"type": "file", "file_id": media.url}
    if media.url is None:
        return {"type": "base64", "media_type": kind, "data": media.base64}
    return {"type": "url", "url": media.url} if rules.fetches else None


KEY = "anthropic"
"""Claude's key in `provider_state`, for all hosts."""

CONTAINER = "anthropic_container"
"""Container key in `provider_state`."""

_ID = re.compile(r"[0-9A-Za-z_-]{1,64}")

_OWN_TYPES = frozenset(("", "text", "thinking", "tool_use", "tool_result"))
"""Block types created from the message itself."""

_CACHEABLE = frozenset(("text", "image", "document", "tool_use", "tool_result"))
"""Block types supporting cache breakpoints."""


class Form(NamedTuple):
    """Encoded message."""

    role: str
    """`user`, `assistant`, or `system` for a system message in the middle of the conversation."""
    blocks: bytes
    """Encoded blocks, separated by commas; empty if the message cannot be sent."""
    offset: int = -1
    """Byte offset of the cache breakpoint, or -1 if none is possible."""
    calls: tuple[str, ...] = ()
    """Original call ids, or the answered call id."""
    ids: tuple[str, ...] = ()
    """Sent call ids."""
    thinks: bool = False
    """True if the message begins with thinking."""
    has_thinking: bool = False
    """True if the message contains thinking."""
    open: tuple[str, ...] = ()
    """Server tool calls without results."""
    answered: tuple[str, ...] = ()
    """Server tool calls answered by this message."""
    ends_with_server_tool: bool = False
    """True if the message ends with a server tool block, from which the vendor continues."""
    prefix: bool = False
    """True if the message ends with text that the model can continue."""
    container: str | None = None
    """Container used by this message."""

    def mark(self, control: bytes) -> bytes:
        """Return the blocks with a cache breakpoint at the last possible block."""
        if self.offset < 0:
            return self.blocks
        return b"%b,%b%b" % (self.blocks[: self.offset], control, self.blocks[self.offset :])


class FormEncoder:
    """Encoder of messages with a cache of its results."""

    def __init__(self, rules: MediaRules, own: str) -> None:
        self._rules = rules
        self._state_key = own
        """Key in `provider_state`."""
        self.key = ("anthropic-messages", own, rules)
        """Cache key with all settings that the forms depend on."""

    def form(self, message: Message, notice: Notice) -> Form:
        """Return the form of a message. A notice about omitted parts is published once."""
        return get_form(message, self.key, Form) or store_form(message, self.key, self._encode(message, notice))

    def encode(self, message: Message, ids: Mapping[int, str] | None = None, without: Collection[str] = ()) -> Form:
        """Encode a message with different call ids or without certain server tool calls.

        Args:
            message: Original message.
            ids: New ids by call index, or index 0 for a tool result.
            without: Server tool calls to omit.
        """
        return self._encode(message, lambda code, text: None, ids or {}, without)

    def _encode(
        self, message: Message, notice: Notice, ids: Mapping[int, str] | None = None, without: Collection[str] = ()
    ) -> Form:
        omitted: list[str] = []
        changes: list[str] = []
        if message.role == "assistant":
            form = _encode_assistant(message, self._state_key, omitted, ids or {}, without)
            if foreign := sorted(name for name in find_foreign_states(message, self._state_key) if name != CONTAINER):
                omitted.append(f"the provider state of {', '.join(foreign)}")
        elif message.role == "tool":
            form = self._encode_result(message, omitted, changes, ids or {})
        elif message.role == "system":
            text, placeholders = flatten_message(message)
            omitted += [f"{each}, which Claude does not accept in a system message" for each in placeholders]
            form = _make_form("system", [{"type": "text", "text": text}] if text.strip() else [])
        else:
            form = _make_form("user", self._encode_parts(message.content, omitted, changes))
        if omitted:
            notice("left_out", "; ".join(omitted))
        if changes:
            notice("changed", f"Claude receives {', '.join(changes)}")
        return form

    def _encode_parts(self, content: str | list[Part], omitted: list[str], changes: list[str]) -> list[dict[str, Any]]:
        if isinstance(content, str):
            return [{"type": "text", "text": content}] if content.strip() else []
        blocks: list[dict[str, Any]] = []
        for part in content:
            if isinstance(part, TextPart):
                if part.text.strip():
                    blocks.append({"type": "text", "text": part.text})
                continue
            media = resolve(part)
            block = media_block(media, self._rules)
            if block is None:
                omitted.append(f"{describe_omitted(part, media)} (unsupported)")
                block = {"type": "text", "text": part.placeholder}
            else:
                add_change(changes, part, media)
            blocks.append(block)
        return blocks

    def _encode_result(self, message: Message, omitted: list[str], changes: list[str], ids: Mapping[int, str]) -> Form:
        call_id = message.tool_call_id or ""
        sent_id = ids.get(0) or to_call_id(call_id)
        block: dict[str, Any] = {"type": "tool_result", "tool_use_id": sent_id}
        if isinstance(message.content, str):
            block["content"] = message.content
        else:
            block["content"] = self._encode_parts(message.content, omitted, changes)
        return _make_form("user", [block])._replace(calls=(call_id,), ids=(sent_id,))


def _encode_assistant(
    message: Message, key: str, omitted: list[str], ids: Mapping[int, str], without: Collection[str]
) -> Form:
    blocks = list(_assistant_blocks(message, key, omitted, ids, without))
    started = {block["id"] for block in blocks if _is_server_tool_call(block)}
    finished = {block["tool_use_id"] for block in blocks if isinstance(block.get("tool_use_id"), str)}
    sent_ids = tuple(ids.get(index) or to_call_id(call.id) for index, call in enumerate(message.tool_calls))
    last = blocks[-1] if blocks else {"type": ""}
    container = (message.provider_state or {}).get(CONTAINER)
    return _make_form("assistant", blocks)._replace(
        calls=tuple(call.id for call in message.tool_calls),
        ids=sent_ids,
        thinks=bool(blocks) and blocks[0]["type"] in ("thinking", "redacted_thinking"),
        has_thinking=any(block["type"] in ("thinking", "redacted_thinking") for block in blocks),
        open=tuple(started - finished),
        answered=tuple(finished - started),
        ends_with_server_tool=last["type"] not in ("", "text", "thinking", "redacted_thinking", "tool_use"),
        prefix=last["type"] == "text" and last["text"].rstrip() == last["text"],
        container=container if isinstance(container, str) else None,
    )


def _assistant_blocks(
    message: Message, key: str, omitted: list[str], ids: Mapping[int, str], without: Collection[str]
) -> Iterator[dict[str, Any]]:
    indexes = {id(call): index for index, call in enumerate(message.tool_calls)}
    for kind, value, extra in iter_pieces(message, key):
        if kind == "text":
            text = cast("str", value)
            if text.strip():
                yield {"type": "text", "text": text, **extra}
        elif kind == "reasoning":
            # Claude rejects thinking without its signature.
            if isinstance(signature := extra.get("signature"), str) and signature:
                yield {"type": "thinking", "thinking": value, "signature": signature}
        elif kind == "call":
            call = cast("ToolCall", value)
            new_id = ids.get(indexes[id(call)]) or to_call_id(call.id)
            yield {"type": "tool_use", "id": new_id, "name": _to_name(call.name), "input": call.arguments, **extra}
        elif kind == "raw":
            block = cast("dict[str, Any]", value)
            if not _is_raw_block(block):
                omitted.append("an invalid content block")
            elif not _is_server_tool_call(block) or block["id"] not in without:
                yield block
        else:
            part = cast("ImagePart | FilePart", value)
            media = resolve(part)
            if media.text is not None and media.kind == "text":
                yield {"type": "text", "text": format_file(media)}
                continue
            omitted.append(f"{part.placeholder} (unsupported in assistant messages)")
            yield {"type": "text", "text": part.placeholder}


def _is_raw_block(block: dict[str, Any]) -> bool:
    """Return True if Claude could have sent this block. Clients can modify the state."""
    kind = block.get("type")
    if not isinstance(kind, str) or not kind.endswith("_tool_use"):
        return isinstance(kind, str) and kind not in _OWN_TYPES
    return isinstance(block.get("id"), str)


def _is_server_tool_call(block: dict[str, Any]) -> bool:
    return block["type"] != "tool_use" and str(block["type"]).endswith("tool_use") and isinstance(block.get("id"), str)


def _make_form(role: str, blocks: list[dict[str, Any]]) -> Form:
    encoded = [dumps(block) for block in blocks]
    offset, end = -1, 0
    for index, block in enumerate(blocks):
        end += len(encoded[index]) + (index > 0)
        if block["type"] in _CACHEABLE:
            offset = end - 1
    return Form(role, b",".join(encoded), offset)


def to_call_id(call_id: str) -> str:
    """Return a valid id for a call. Ids of other vendors may contain other characters."""
    if _ID.fullmatch(call_id):
        return call_id
    return f"call_{sha256(call_id.encode('utf-8', 'surrogatepass')).hexdigest()[:20]}"


def _to_name(name: str) -> str:
    return CLAUDE.to_tool_name(name)
