"""Conversion of messages to items, including stored responses and tool calls."""

from __future__ import annotations

import re
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Callable, Collection
from hashlib import sha256
from typing import Any, NamedTuple, cast

from rxloop.errors import BadRequest
from rxloop.protocol.messages import FilePart, ImagePart, Message, ToolCall
from rxloop.providers.codecs import Notice
from rxloop.providers.codecs.fields import object_of, text_of
from rxloop.providers.codecs.media import answer_text, text_with_files
from rxloop.providers.codecs.provider_state import Piece, pieces_of
from rxloop.providers.codecs.responses.output_items import CALLS, FIELD_OF, NOT_HERE
from rxloop.providers.codecs.tool_calls import dumped
from rxloop.state.history import Ledger

_KEPT = 1_000
"""Maximum number of conversations whose digests are remembered."""


class Form(NamedTuple):
    """Encoded message."""

    data: bytes
    """Encoded items, separated by commas."""
    calls: tuple[str, ...] = ()
    """Sent call ids, or the answered call id."""
    custom: frozenset[str] = frozenset()
    """Custom tool call ids, whose results use another type."""
    response: str | None = None
    """Stored response id, if any."""


class Chain:
    """Remembers conversations stored by the vendor.

    A conversation that was changed by a compressor, or started by another process, is sent completely. Otherwise the
    model would see the wrong history.
    """

    def __init__(self) -> None:
        self._sent: OrderedDict[bytes, None] = OrderedDict()

    def forget(self) -> None:
        """Forget all conversations, so they are sent completely."""
        self._sent.clear()

    def goes_on(self, before: bytes | None, whole: bytes) -> bool:
        """Return True if the vendor has the messages before a stored answer, and record the whole conversation.

        Args:
            before: Digest of the messages before that answer; None if no message follows it.
            whole: Digest of all messages.
        """
        fits = before in self._sent
        self.note(whole)
        return fits

    def note(self, whole: bytes) -> None:
        """Record a conversation digest."""
        self._sent[whole] = None
        self._sent.move_to_end(whole)
        if len(self._sent) > _KEPT:
            self._sent.popitem(last=False)


class ChainLost(BadRequest):
    """The previous response was deleted; send the whole conversation again."""

    retryable = True


Item = dict[str, Any]


class Answer(NamedTuple):
    """Items for one assistant message."""

    items: list[Item]
    custom: list[str]
    """Custom tool call ids."""
    response: str | None
    """Stored response id, if any."""
    left_out: str | None
    """Description of dropped parts, if any."""


class _Parts(NamedTuple):
    heads: dict[int, dict[str, Any]]
    texts: dict[tuple[int, str], str]
    calls: dict[int, ToolCall]
    files: dict[int, ImagePart | FilePart]
    response: str | None


def answer_of(message: Message, key: str, takes_reasoning: bool) -> Answer:
    """Convert an assistant message to items.

    Vendors reject items if related ones are missing. For this reason either all items are sent, or just text and calls
    without ids.

    Args:
        message: Assistant message.
        key: Key in `provider_state`.
        takes_reasoning: Whether the model accepts reasoning.
    """
    pieces = list(pieces_of(message, key))
    parts = _sorted(pieces)
    why = None
    if parts is not None and parts.heads:
        why = _missing(parts, takes_reasoning)
        if why is None:
            items = [_item(number, head, parts) for number, head in sorted(parts.heads.items())]
            custom = [item["call_id"] for item in items if item["type"] == "custom_tool_call"]
            return Answer(items, custom, parts.response, None)
    return _plain(message, why)


def _sorted(pieces: list[Piece]) -> _Parts | None:
    """Group pieces by item. Return None for foreign pieces."""
    parts = _Parts({}, {}, {}, {}, None)
    for kind, value, extra in pieces:
        if kind == "raw":
            fields = cast("dict[str, Any]", value)
            if isinstance(fields.get("item"), int):
                parts.heads[fields["item"]] = fields
            elif response := text_of(fields.get("response")):
                parts = parts._replace(response=response)
            continue
        number = extra.get("item")
        if not isinstance(number, int):
            return None
        if isinstance(value, ToolCall):
            parts.calls[number] = value
        elif isinstance(value, ImagePart | FilePart):
            parts.files[number] = value
        elif isinstance(value, str):
            name = (number, text_of(extra.get("part")))
            parts.texts[name] = parts.texts.get(name, "") + value
    return parts


def _missing(parts: _Parts, takes_reasoning: bool) -> str | None:
    """Explain why items cannot be sent back, or return None."""
    numbers = {number for number, _ in parts.texts} | parts.calls.keys() | parts.files.keys()
    if not numbers <= parts.heads.keys():
        return "pieces of unknown items"
    fields_of = {number: object_of(head.get("fields")) for number, head in parts.heads.items()}
    answered = {text_of(fields.get("call_id")) for fields in fields_of.values() if _is_output(fields)}
    for number, fields in fields_of.items():
        kind = text_of(fields.get("type"))
        if kind == "reasoning":
            shown = object_of(parts.heads[number].get("parts"))
            kept = all((number, name) in parts.texts or "text" in object_of(part) for name, part in shown.items())
            full = any(name.startswith("reasoning_text/") for name in shown)
            if not kept:
                return "reasoning that was changed"
            if not takes_reasoning:
                return "reasoning, which the model does not accept"
            if not (fields.get("encrypted_content") or full or parts.response):
                return "reasoning that the vendor has neither stored nor sent encrypted"
        elif kind in CALLS and number not in parts.calls:
            return "a call that was removed"
        elif kind in NOT_HERE and kind != "mcp_approval_request" and fields.get("call_id") not in answered:
            return f"a {kind} without an output"
        elif not kind:
            return "an item without a type"
    newest = max(fields_of, default=None)
    if newest is not None and fields_of[newest].get("type") == "reasoning":
        # Trailing reasoning is rejected, for example after truncation.
        return "reasoning without an answer"
    return None


def _is_output(fields: dict[str, Any]) -> bool:
    return text_of(fields.get("type")).endswith("_output")


def _item(number: int, head: dict[str, Any], parts: _Parts) -> Item:
    """Restore an original item."""
    fields: Item = dict(object_of(head.get("fields")))
    shown = object_of(head.get("parts"))
    if call := parts.calls.get(number):
        fields["call_id"], fields["name"] = call.id, call.name
        if fields["type"] == "custom_tool_call":
            fields["input"] = text_of(call.arguments.get("input"))
        else:
            fields["arguments"] = arguments_of(call)
    elif file := parts.files.get(number):
        fields["result"] = b64encode(file.data or b"").decode()
    elif fields["type"] in ("message", "reasoning"):
        needed = "content" if fields["type"] == "message" else "summary"
        contents: dict[str, list[Item]] = {
            name: [] for name in ("content", "summary") if name in fields or name == needed
        }
        for name, part in sorted(shown.items(), key=_place):
            kind = name.partition("/")[0]
            text = parts.texts.get((number, name)) or text_of(object_of(part).get("text"))
            contents.setdefault(FIELD_OF.get(kind, "content"), []).append(_content(kind, text, object_of(part)))
        fields.update(contents)
    return fields


def _place(named: tuple[str, Any]) -> tuple[str, int]:
    # Text and refusal indexes share one sequence.
    kind, _, index = named[0].partition("/")
    return FIELD_OF.get(kind, "content"), int(index) if index.isdecimal() else 0


def _content(kind: str, text: str, part: dict[str, Any]) -> Item:
    if kind == "output_text":
        return {"type": kind, "text": text, "annotations": part.get("annotations", [])}
    return {"type": kind, "refusal" if kind == "refusal" else "text": text}


def _plain(message: Message, why: str | None) -> Answer:
    items: list[Item] = []
    text = answer_text(message)
    if text:
        items.append({"role": "assistant", "content": text})
    items += [
        {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": arguments_of(call)}
        for call in message.tool_calls
    ]
    if why is None and text_with_files(message)[1]:
        why = "images and files of the model itself"
    return Answer(items, [], None, why)


def arguments_of(call: ToolCall) -> str:
    """Encode call arguments as JSON."""
    if call.error is not None:
        # Vendors reject invalid JSON. The tool result explains the error.
        return "{}"
    return call.raw if call.raw is not None else dumped(call.arguments).decode()


_CALL_ID = re.compile("[0-9A-Za-z_.:|-]{1,64}")

_NO_RESULT = "There is no result of this call."


class Items:
    """Request items with matching calls and results."""

    def __init__(self) -> None:
        self.digest = b""
        """Message digest."""
        self._items: list[bytes] = []
        self._strays: list[bytes] = []
        self._waiting: dict[str, list[tuple[str, bool]]] = {}
        """Unanswered calls by id, with the sent id and whether it is a custom call."""
        self._used: Ledger[str, None] = Ledger()

    def copy(self) -> Items:
        """Return an independent copy."""
        if len(self._items) > 1:
            self._items = [b",".join(self._items)]
        other = self.only_new()
        other._items, other._strays = self._items.copy(), self._strays.copy()
        other._waiting = {call_id: calls.copy() for call_id, calls in self._waiting.items()}
        return other

    def only_new(self) -> Items:
        """Return empty items that continue the digest and ids."""
        other = Items()
        other.digest, other._used = self.digest, self._used
        return other

    def add(
        self,
        message: Message,
        form: Form,
        renamed: Callable[[Message], bytes],
        notice: Notice,
        *,
        hashed: bool,
        known: bool = False,
    ) -> None:
        """Add a message.

        Args:
            message: Original message.
            form: Encoded message.
            renamed: Encodes a message after its calls were renamed.
            notice: Called for added or converted results.
            hashed: Update the digest.
            known: The vendor already has this message, but may need tool results.
        """
        if hashed:
            self.digest = with_form(self.digest, message, form)
        if message.role == "tool":
            call_id = form.calls[0]
            if made := self._waiting.get(call_id):
                self._items.append(_for(form.data, call_id, *made.pop(0)))
            else:
                notice("left_out", f"receives the result of the missing call {call_id} as text")
                self._strays.append(item_bytes({"role": "user", "content": text_with_files(message)[0]}))
            return
        if self._waiting or self._strays:
            self._close(notice)
        data, calls = form.data, form.calls
        if not known and (any(call_id in self._used for call_id in calls) or len(set(calls)) < len(calls)):
            message = _with_other_ids(message, self._used)
            data, calls = renamed(message), tuple(call_id_of(call.id) for call in message.tool_calls)
        self._used = self._used.add_all((call_id, None) for call_id in calls) if calls else self._used
        if data and not known:
            self._items.append(data)
        for call_id, sent in zip(form.calls, calls, strict=True):
            self._waiting.setdefault(call_id, []).append((sent, sent in form.custom))

    def joined(self, notice: Notice) -> bytes:
        """Add results for calls without one, and return all items, separated by commas."""
        self._close(notice)
        return b",".join(self._items)

    def _close(self, notice: Notice) -> None:
        for call_id, custom in (call for calls in self._waiting.values() for call in calls):
            notice("left_out", f"receives a placeholder as the result of call {call_id}")
            self._items.append(_for(result_of(call_id, _NO_RESULT), call_id, call_id, custom))
        self._waiting.clear()
        self._items.extend(self._strays)
        self._strays.clear()


def with_form(digest: bytes, message: Message, form: Form) -> bytes:
    """Extend a conversation digest by one message."""
    return sha256(b"%b%b %b" % (digest, message.role.encode(), form.data)).digest()


def call_id_of(call_id: str) -> str:
    """Return a valid id for a call. Ids of other vendors may be too long or empty."""
    if _CALL_ID.fullmatch(call_id):
        return call_id
    return "call_" + sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:24]


def item_bytes(item: dict[str, Any]) -> bytes:
    """Encode an item."""
    return copied(dumped(item))


def copied(data: bytes) -> bytes:
    """Copy bytes from orjson, which otherwise keep a buffer of at least 4 kB alive."""
    return b"%b" % data


def _with_other_ids(message: Message, used: Collection[str]) -> Message:
    """Return the message with unique call ids. Histories of other vendors may contain duplicates."""
    taken: set[str] = set()
    calls = list(message.tool_calls)
    for place, call in enumerate(calls):
        call_id, number = call_id_of(call.id), 1
        while call_id in used or call_id in taken:
            number += 1
            call_id = call_id_of(f"{call.id}.{len(used)}.{number}")
        taken.add(call_id)
        calls[place] = call.model_copy(update={"id": call_id})
    return message.model_copy(update={"tool_calls": tuple(calls), "provider_state": None})


def result_of(call_id: str, output: str | list[dict[str, Any]]) -> bytes:
    """Encode a tool result."""
    return item_bytes({"type": "function_call_output", "call_id": call_id, "output": output})


def _for(result: bytes, call_id: str, sent: str, custom: bool) -> bytes:
    """Adapt a result to the call's id and type."""
    if sent == call_id and not custom:
        return result
    kind = "custom_tool_call_output" if custom else "function_call_output"
    before = len(item_bytes({"type": "function_call_output", "call_id": call_id})) - 1
    return item_bytes({"type": kind, "call_id": sent})[:-1] + result[before:]
