"""Conversion of messages to content blocks."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from hashlib import sha256
from typing import Any, NamedTuple, cast

from rxloop.protocol.media import ResolvedMedia, resolve
from rxloop.protocol.messages import FilePart, ImagePart, Message, Part, TextPart, ToolCall
from rxloop.providers.codecs import Notice, foreign_state, pieces_of
from rxloop.providers.codecs.fields import dumps
from rxloop.providers.codecs.media import IMAGES, add_change, describe, file_text, text_with_files
from rxloop.providers.codecs.message_cache import keep, kept
from rxloop.providers.codecs.schemas.dialects import CLAUDE

_PDF = "application/pdf"

_LONGEST_TITLE = 500


class MediaRules(NamedTuple):
    """Supported images and files."""

    fetches: bool = True
    """True if the host fetches files by their URL."""
    citations: bool = False
    """True if the model should cite the documents."""


def media_block(media: ResolvedMedia, rules: MediaRules) -> dict[str, Any] | None:
    """Convert an image or file. Return None if unsupported."""
    source = _source(media, rules)
    if source is None:
        return None
    if media.kind == "image":
        return {"type": "image", "source": source}
    block: dict[str, Any] = {"type": "document", "source": source}
    if media.name is not None:
        block["title"] = media.name[:_LONGEST_TITLE]
    if rules.citations:
        block["citations"] = {"enabled": True}
    return block


def _source(media: ResolvedMedia, rules: MediaRules) -> dict[str, Any] | None:
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

_NEVER_RAW = frozenset(("", "text", "thinking", "tool_use", "tool_result"))
"""Block types created from the message itself."""

_MARKED = frozenset(("text", "image", "document", "tool_use", "tool_result"))
"""Block types supporting cache breakpoints."""


class Form(NamedTuple):
    """Encoded message."""

    role: str
    """`user`, `assistant`, or `system` for a system message in the middle of the conversation."""
    blocks: bytes
    """Encoded blocks, separated by commas; empty if the message cannot be sent."""
    cut: int = -1
    """Byte offset of the cache breakpoint, or -1 if none is possible."""
    calls: tuple[str, ...] = ()
    """Original call ids, or the answered call id."""
    ids: tuple[str, ...] = ()
    """Sent call ids."""
    thinks: bool = False
    """True if the message begins with thinking."""
    thought: bool = False
    """True if the message contains thinking."""
    open: tuple[str, ...] = ()
    """Server tool calls without results."""
    answered: tuple[str, ...] = ()
    """Server tool calls answered by this message."""
    vendors: bool = False
    """True if the message ends with a server tool block, from which the vendor continues."""
    prefix: bool = False
    """True if the message ends with text that the model can continue."""
    container: str | None = None
    """Container used by this message."""

    def marked(self, control: bytes) -> bytes:
        """Return the blocks with a cache breakpoint at the last possible block."""
        if self.cut < 0:
            return self.blocks
        return b"%b,%b%b" % (self.blocks[: self.cut], control, self.blocks[self.cut :])


class Forms:
    """Encodes messages and caches the result."""

    def __init__(self, rules: MediaRules, own: str) -> None:
        self._rules = rules
        self._own = own
        """Key in `provider_state`."""
        self.key = ("anthropic-messages", own, rules)
        """Cache key with all settings that the forms depend on."""

    def form(self, message: Message, notice: Notice) -> Form:
        """Return the form of a message. A notice about omitted parts is published once."""
        return kept(message, self.key, Form) or keep(message, self.key, self._made(message, notice))

    def again(self, message: Message, ids: Mapping[int, str] | None = None, without: Collection[str] = ()) -> Form:
        """Encode a message with different call ids or without certain server tool calls.

        Args:
            message: Original message.
            ids: New ids by call index, or index 0 for a tool result.
            without: Server tool calls to omit.
        """
        return self._made(message, lambda code, text: None, ids or {}, without)

    def _made(
        self, message: Message, notice: Notice, ids: Mapping[int, str] | None = None, without: Collection[str] = ()
    ) -> Form:
        lost: list[str] = []
        changes: list[str] = []
        if message.role == "assistant":
            form = _assistant(message, self._own, lost, ids or {}, without)
            if others := sorted(name for name in foreign_state(message, self._own) if name != CONTAINER):
                lost.append(f"the provider state of {', '.join(others)}")
        elif message.role == "tool":
            form = self._result(message, lost, changes, ids or {})
        elif message.role == "system":
            text, unshown = text_with_files(message)
            lost += [f"{each}, which Claude does not accept in a system message" for each in unshown]
            form = _form("system", [{"type": "text", "text": text}] if text.strip() else [])
        else:
            form = _form("user", self._parts(message.content, lost, changes))
        if lost:
            notice("left_out", "; ".join(lost))
        if changes:
            notice("changed", f"Claude receives {', '.join(changes)}")
        return form

    def _parts(self, content: str | list[Part], lost: list[str], changes: list[str]) -> list[dict[str, Any]]:
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
                lost.append(f"{describe(part, media)} (unsupported)")
                block = {"type": "text", "text": part.placeholder}
            else:
                add_change(changes, part, media)
            blocks.append(block)
        return blocks

    def _result(self, message: Message, lost: list[str], changes: list[str], ids: Mapping[int, str]) -> Form:
        answered = message.tool_call_id or ""
        sent = ids.get(0) or sent_id(answered)
        block: dict[str, Any] = {"type": "tool_result", "tool_use_id": sent}
        if isinstance(message.content, str):
            block["content"] = message.content
        else:
            block["content"] = self._parts(message.content, lost, changes)
        return _form("user", [block])._replace(calls=(answered,), ids=(sent,))


def _assistant(message: Message, own: str, lost: list[str], ids: Mapping[int, str], without: Collection[str]) -> Form:
    blocks = list(_assistant_blocks(message, own, lost, ids, without))
    called = {block["id"] for block in blocks if _is_vendors_call(block)}
    answered = {block["tool_use_id"] for block in blocks if isinstance(block.get("tool_use_id"), str)}
    sent = tuple(ids.get(place) or sent_id(call.id) for place, call in enumerate(message.tool_calls))
    last = blocks[-1] if blocks else {"type": ""}
    container = (message.provider_state or {}).get(CONTAINER)
    return _form("assistant", blocks)._replace(
        calls=tuple(call.id for call in message.tool_calls),
        ids=sent,
        thinks=bool(blocks) and blocks[0]["type"] in ("thinking", "redacted_thinking"),
        thought=any(block["type"] in ("thinking", "redacted_thinking") for block in blocks),
        open=tuple(called - answered),
        answered=tuple(answered - called),
        vendors=last["type"] not in ("", "text", "thinking", "redacted_thinking", "tool_use"),
        prefix=last["type"] == "text" and last["text"].rstrip() == last["text"],
        container=container if isinstance(container, str) else None,
    )


def _assistant_blocks(
    message: Message, own: str, lost: list[str], ids: Mapping[int, str], without: Collection[str]
) -> Iterator[dict[str, Any]]:
    places = {id(call): place for place, call in enumerate(message.tool_calls)}
    for kind, value, extra in pieces_of(message, own):
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
            sent = ids.get(places[id(call)]) or sent_id(call.id)
            yield {"type": "tool_use", "id": sent, "name": _sent_name(call.name), "input": call.arguments, **extra}
        elif kind == "raw":
            block = cast("dict[str, Any]", value)
            if not _is_own(block):
                lost.append("an invalid content block")
            elif not _is_vendors_call(block) or block["id"] not in without:
                yield block
        else:
            part = cast("ImagePart | FilePart", value)
            media = resolve(part)
            if media.text is not None and media.kind == "text":
                yield {"type": "text", "text": file_text(media)}
                continue
            lost.append(f"{part.placeholder} (unsupported in assistant messages)")
            yield {"type": "text", "text": part.placeholder}


def _is_own(block: dict[str, Any]) -> bool:
    """Return True if Claude could have sent this block. Clients can modify the state."""
    kind = block.get("type")
    if not isinstance(kind, str) or not kind.endswith("_tool_use"):
        return isinstance(kind, str) and kind not in _NEVER_RAW
    return isinstance(block.get("id"), str)


def _is_vendors_call(block: dict[str, Any]) -> bool:
    return block["type"] != "tool_use" and str(block["type"]).endswith("tool_use") and isinstance(block.get("id"), str)


def _form(role: str, blocks: list[dict[str, Any]]) -> Form:
    encoded = [dumps(block) for block in blocks]
    cut, end = -1, 0
    for place, block in enumerate(blocks):
        end += len(encoded[place]) + (place > 0)
        if block["type"] in _MARKED:
            cut = end - 1
    return Form(role, b",".join(encoded), cut)


def sent_id(call_id: str) -> str:
    """Return a valid id for a call. Ids of other vendors may contain other characters."""
    if _ID.fullmatch(call_id):
        return call_id
    return f"call_{sha256(call_id.encode('utf-8', 'surrogatepass')).hexdigest()[:20]}"


def _sent_name(name: str) -> str:
    return CLAUDE.fitting_tool_name(name)
