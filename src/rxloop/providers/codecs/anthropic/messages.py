"""One message as content blocks."""

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
    """What the place where Claude is served takes of images and files."""

    fetches: bool = True
    """It fetches them by their URL."""
    citations: bool = False
    """The model is to say what in the documents its words rest on."""


def media_block(media: ResolvedMedia, rules: MediaRules) -> dict[str, Any] | None:
    """The block of an image or a file; None where the vendor does not take one of its type."""
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
    # The type of a page or of a file in the store may be unknown.
    if kind not in IMAGES and kind != _PDF and (media.url is None or kind is not None):
        return None
    if media.store is not None:
        return {"type": "file", "file_id": media.url}
    if media.url is None:
        return {"type": "base64", "media_type": kind, "data": media.base64}
    return {"type": "url", "url": media.url} if rules.fetches else None


KEY = "anthropic"
"""Under which name the pieces of a message of Claude's are kept for the way back, wherever it is served."""

CONTAINER = "anthropic_container"
"""Under which name the container is kept that code of a message ran in."""

_ID = re.compile(r"[0-9A-Za-z_-]{1,64}")

_NEVER_RAW = frozenset(("", "text", "thinking", "tool_use", "tool_result"))
"""Types of parts that a message has itself."""

_MARKED = frozenset(("text", "image", "document", "tool_use", "tool_result"))
"""The blocks up to which a request may be kept in the cache: never thinking, and not the blocks of others."""


class Form(NamedTuple):
    """What a message became."""

    role: str
    """`user`, `assistant`, or `system` for one in the middle of the conversation."""
    blocks: bytes
    """Its blocks, with commas between them; empty where nothing of it can be sent."""
    cut: int = -1
    """Where in the bytes a cache breakpoint goes; -1 where it may have none."""
    calls: tuple[str, ...] = ()
    """The ids of its calls as the conversation has them, or the one that it answers."""
    ids: tuple[str, ...] = ()
    """The same ids as they are sent."""
    thinks: bool = False
    """It begins with thinking."""
    thought: bool = False
    """There is thinking in it."""
    open: tuple[str, ...] = ()
    """The calls of the vendor's own tools that have no result in it."""
    answered: tuple[str, ...] = ()
    """Those calls of an earlier message whose results are in it."""
    vendors: bool = False
    """It ends in what a tool of the vendor's did: the vendor goes on from there."""
    prefix: bool = False
    """It ends in text that the model may go on with."""
    container: str | None = None
    """Where its code ran."""

    def marked(self, control: bytes) -> bytes:
        """The blocks with a cache breakpoint at the last one that may have it."""
        if self.cut < 0:
            return self.blocks
        return b"%b,%b%b" % (self.blocks[: self.cut], control, self.blocks[self.cut :])


class Forms:
    """Makes the forms of messages, and keeps each on its message."""

    def __init__(self, rules: MediaRules, own: str) -> None:
        self._rules = rules
        self._own = own
        """Under which name the pieces of the model's own messages are kept."""
        self.key = ("anthropic-messages", own, rules)
        """Names what the forms depend on."""

    def form(self, message: Message, notice: Notice) -> Form:
        """The form of a message; tells once what of it is left out."""
        return kept(message, self.key, Form) or keep(message, self.key, self._made(message, notice))

    def again(self, message: Message, ids: Mapping[int, str] | None = None, without: Collection[str] = ()) -> Form:
        """The form of a message with other ids for its calls, and without some calls of the vendor's own tools.

        Args:
            message: The message.
            ids: What to send in the place of an id, by the place of the call; 0 for the call that is answered.
            without: The ids of the vendor's calls that are left out.
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
                lost.append(f"what {', '.join(others)} wants back with its own message")
        elif message.role == "tool":
            form = self._result(message, lost, changes, ids or {})
        elif message.role == "system":
            text, unshown = text_with_files(message)
            lost += [f"{each}, since Claude takes none in a system message" for each in unshown]
            form = _form("system", [{"type": "text", "text": text}] if text.strip() else [])
        else:
            form = _form("user", self._parts(message.content, lost, changes))
        if lost:
            notice("left_out", "; ".join(lost))
        if changes:
            notice("changed", f"Claude gets {', '.join(changes)}")
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
                lost.append(f"{describe(part, media)}, which Claude does not take")
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
            # Without its signature it would be refused.
            if isinstance(signature := extra.get("signature"), str) and signature:
                yield {"type": "thinking", "thinking": value, "signature": signature}
        elif kind == "call":
            call = cast("ToolCall", value)
            sent = ids.get(places[id(call)]) or sent_id(call.id)
            yield {"type": "tool_use", "id": sent, "name": _sent_name(call.name), "input": call.arguments, **extra}
        elif kind == "raw":
            block = cast("dict[str, Any]", value)
            if not _is_own(block):
                lost.append("a part that is none of Claude's own")
            elif not _is_vendors_call(block) or block["id"] not in without:
                yield block
        else:
            part = cast("ImagePart | FilePart", value)
            media = resolve(part)
            if media.text is not None and media.kind == "text":
                yield {"type": "text", "text": file_text(media)}
                continue
            lost.append(f"{part.placeholder}, since Claude takes none in its own messages")
            yield {"type": "text", "text": part.placeholder}


def _is_own(block: dict[str, Any]) -> bool:
    """Whether a part can be one that was kept as it came: anybody may have written the state."""
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
    """The id of a call as the vendor takes it: another vendor's may have other characters in it."""
    if _ID.fullmatch(call_id):
        return call_id
    return f"call_{sha256(call_id.encode('utf-8', 'surrogatepass')).hexdigest()[:20]}"


def _sent_name(name: str) -> str:
    return CLAUDE.fitting_tool_name(name)
