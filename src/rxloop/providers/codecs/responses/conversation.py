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
from rxloop.providers.codecs.fields import as_object, as_text
from rxloop.providers.codecs.media import flatten_answer, flatten_message
from rxloop.providers.codecs.provider_state import Piece, iter_pieces
from rxloop.providers.codecs.responses.output_items import CALLS, PART_FIELDS, UNSUPPORTED
from rxloop.providers.codecs.tool_calls import encode_json
from rxloop.state.history import Ledger

_MAX_DIGESTS = 1_000
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

    def continues(self, previous: bytes | None, digest: bytes) -> bool:
        """Record a conversation. Return True if the vendor has stored its beginning, so only newer messages are sent.

        Args:
            previous: Digest of the messages up to the last stored answer; None if no message follows the answer.
            digest: Digest of all messages.
        """
        is_stored = previous in self._sent
        self.record(digest)
        return is_stored

    def record(self, digest: bytes) -> None:
        """Record a conversation digest."""
        self._sent[digest] = None
        self._sent.move_to_end(digest)
        if len(self._sent) > _MAX_DIGESTS:
            self._sent.popitem(last=False)


class ChainLost(BadRequest):
    """The previous response was deleted; send the whole conversation again."""

    retryable = True


Item = dict[str, Any]


class AnswerItems(NamedTuple):
    """Items for one assistant message."""

    items: list[Item]
    custom: list[str]
    """Custom tool call ids."""
    response: str | None
    """Stored response id, if any."""
    omission: str | None
    """Description of dropped parts, if any."""


class _Parts(NamedTuple):
    heads: dict[int, dict[str, Any]]
    texts: dict[tuple[int, str], str]
    calls: dict[int, ToolCall]
    files: dict[int, ImagePart | FilePart]
    response: str | None


def to_answer_items(message: Message, key: str, takes_reasoning: bool) -> AnswerItems:
    """Convert an assistant message to items.

    Vendors reject items if related ones are missing. For this reason either all items are sent, or just text and calls
    without ids.

    Args:
        message: Assistant message.
        key: Key in `provider_state`.
        takes_reasoning: Whether the model accepts reasoning.
    """
    pieces = list(iter_pieces(message, key))
    parts = _group_pieces(pieces)
    omission = None
    if parts is not None and parts.heads:
        omission = _find_obstacle(parts, takes_reasoning)
        if omission is None:
            items = [_restore_item(number, head, parts) for number, head in sorted(parts.heads.items())]
            custom = [item["call_id"] for item in items if item["type"] == "custom_tool_call"]
            return AnswerItems(items, custom, parts.response, None)
    return _to_plain_items(message, omission)


def _group_pieces(pieces: list[Piece]) -> _Parts | None:
    """Group pieces by item. Return None for foreign pieces."""
    parts = _Parts({}, {}, {}, {}, None)
    for kind, value, extra in pieces:
        if kind == "raw":
            fields = cast("dict[str, Any]", value)
            if isinstance(fields.get("item"), int):
                parts.heads[fields["item"]] = fields
            elif response := as_text(fields.get("response")):
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
            name = (number, as_text(extra.get("part")))
            parts.texts[name] = parts.texts.get(name, "") + value
    return parts


def _find_obstacle(parts: _Parts, takes_reasoning: bool) -> str | None:
    """Explain why items cannot be sent back, or return None."""
    numbers = {number for number, _ in parts.texts} | parts.calls.keys() | parts.files.keys()
    if not numbers <= parts.heads.keys():
        return "pieces of unknown items"
    fields_of = {number: as_object(head.get("fields")) for number, head in parts.heads.items()}
    outputs = [fields for fields in fields_of.values() if as_text(fields.get("type")).endswith("_output")]
    answered_ids = {as_text(fields.get("call_id")) for fields in outputs}
    for number, fields in fields_of.items():
        kind = as_text(fields.get("type"))
        if kind == "reasoning":
            states = as_object(parts.heads[number].get("parts"))
            complete = all((number, name) in parts.texts or "text" in as_object(part) for name, part in states.items())
            has_full_text = any(name.startswith("reasoning_text/") for name in states)
            if not complete:
                return "reasoning that was changed"
            if not takes_reasoning:
                return "reasoning, which the model does not accept"
            if not (fields.get("encrypted_content") or has_full_text or parts.response):
                return "reasoning that the vendor has neither stored nor sent encrypted"
        elif kind in CALLS and number not in parts.calls:
            return "a call that was removed"
        elif kind in UNSUPPORTED and kind != "mcp_approval_request" and fields.get("call_id") not in answered_ids:
            return f"a {kind} without an output"
        elif not kind:
            return "an item without a type"
    newest = max(fields_of, default=None)
    if newest is not None and fields_of[newest].get("type") == "reasoning":
        # Trailing reasoning is rejected, for example after truncation.
        return "reasoning without an answer"
    return None


def _restore_item(number: int, head: dict[str, Any], parts: _Parts) -> Item:
    """Restore an original item."""
    fields: Item = dict(as_object(head.get("fields")))
    part_states = as_object(head.get("parts"))
    if call := parts.calls.get(number):
        fields["call_id"], fields["name"] = call.id, call.name
        if fields["type"] == "custom_tool_call":
            fields["input"] = as_text(call.arguments.get("input"))
        else:
            fields["arguments"] = encode_arguments(call)
    elif file := parts.files.get(number):
        fields["result"] = b64encode(file.data or b"").decode()
    elif fields["type"] in ("message", "reasoning"):
        needed = "content" if fields["type"] == "message" else "summary"
        contents: dict[str, list[Item]] = {
            name: [] for name in ("content", "summary") if name in fields or name == needed
        }
        for name, part in sorted(part_states.items(), key=_part_position):
            kind = name.partition("/")[0]
            text = parts.texts.get((number, name)) or as_text(as_object(part).get("text"))
            contents.setdefault(PART_FIELDS.get(kind, "content"), []).append(_make_content(kind, text, as_object(part)))
        fields.update(contents)
    return fields


def _part_position(named: tuple[str, Any]) -> tuple[str, int]:
    # Text and refusal indexes share one sequence.
    kind, _, index = named[0].partition("/")
    return PART_FIELDS.get(kind, "content"), int(index) if index.isdecimal() else 0


def _make_content(kind: str, text: str, part: dict[str, Any]) -> Item:
    if kind == "output_text":
        return {"type": kind, "text": text, "annotations": part.get("annotations", [])}
    return {"type": kind, "refusal" if kind == "refusal" else "text": text}


def _to_plain_items(message: Message, omission: str | None) -> AnswerItems:
    items: list[Item] = []
    text = flatten_answer(message)
    if text:
        items.append({"role": "assistant", "content": text})
    items += [
        {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": encode_arguments(call)}
        for call in message.tool_calls
    ]
    if omission is None and flatten_message(message)[1]:
        omission = "images and files of the model itself"
    return AnswerItems(items, [], None, omission)


def encode_arguments(call: ToolCall) -> str:
    """Encode call arguments as JSON."""
    if call.error is not None:
        # Vendors reject invalid JSON. The tool result explains the error.
        return "{}"
    return call.raw if call.raw is not None else encode_json(call.arguments).decode()


_CALL_ID = re.compile("[0-9A-Za-z_.:|-]{1,64}")

_NO_RESULT = "There is no result of this call."


class Items:
    """Request items with matching calls and results."""

    def __init__(self) -> None:
        self.digest = b""
        """Message digest."""
        self._items: list[bytes] = []
        self._stray_results: list[bytes] = []
        self._unanswered: dict[str, list[tuple[str, bool]]] = {}
        """Unanswered calls by id, with the sent id and whether it is a custom call."""
        self._used_ids: Ledger[str, None] = Ledger()

    def copy(self) -> Items:
        """Return an independent copy."""
        if len(self._items) > 1:
            self._items = [b",".join(self._items)]
        other = self.create_continuation()
        other._items, other._stray_results = self._items.copy(), self._stray_results.copy()
        other._unanswered = {call_id: calls.copy() for call_id, calls in self._unanswered.items()}
        return other

    def create_continuation(self) -> Items:
        """Return empty items that continue the digest and ids."""
        other = Items()
        other.digest, other._used_ids = self.digest, self._used_ids
        return other

    def add(
        self,
        message: Message,
        form: Form,
        encode_renamed: Callable[[Message], bytes],
        notice: Notice,
        *,
        updates_digest: bool,
        is_stored: bool = False,
    ) -> None:
        """Add a message.

        Args:
            message: Original message.
            form: Encoded message.
            encode_renamed: Encodes a message after its calls were renamed.
            notice: Called for added or converted results.
            updates_digest: Update the digest.
            is_stored: The vendor already has this message, but may need tool results.
        """
        if updates_digest:
            self.digest = extend_digest(self.digest, message, form)
        if message.role == "tool":
            call_id = form.calls[0]
            if unanswered := self._unanswered.get(call_id):
                self._items.append(_adapt_result(form.data, call_id, *unanswered.pop(0)))
            else:
                notice("left_out", f"receives the result of the missing call {call_id} as text")
                self._stray_results.append(encode_item({"role": "user", "content": flatten_message(message)[0]}))
            return
        if self._unanswered or self._stray_results:
            self._close_calls(notice)
        data, calls = form.data, form.calls
        if not is_stored and (any(call_id in self._used_ids for call_id in calls) or len(set(calls)) < len(calls)):
            message = _rename_calls(message, self._used_ids)
            data, calls = encode_renamed(message), tuple(to_call_id(call.id) for call in message.tool_calls)
        self._used_ids = self._used_ids.add_all((call_id, None) for call_id in calls) if calls else self._used_ids
        if data and not is_stored:
            self._items.append(data)
        for call_id, sent_id in zip(form.calls, calls, strict=True):
            self._unanswered.setdefault(call_id, []).append((sent_id, sent_id in form.custom))

    def finish(self, notice: Notice) -> bytes:
        """Add results for calls without one, and return all items, separated by commas."""
        self._close_calls(notice)
        return b",".join(self._items)

    def _close_calls(self, notice: Notice) -> None:
        for call_id, custom in (call for calls in self._unanswered.values() for call in calls):
            notice("left_out", f"receives a placeholder as the result of call {call_id}")
            self._items.append(_adapt_result(encode_result(call_id, _NO_RESULT), call_id, call_id, custom))
        self._unanswered.clear()
        self._items.extend(self._stray_results)
        self._stray_results.clear()


def extend_digest(digest: bytes, message: Message, form: Form) -> bytes:
    """Extend a conversation digest by one message."""
    return sha256(b"%b%b %b" % (digest, message.role.encode(), form.data)).digest()


def to_call_id(call_id: str) -> str:
    """Return a valid id for a call. Ids of other vendors may be too long or empty."""
    if _CALL_ID.fullmatch(call_id):
        return call_id
    return "call_" + sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:24]


def encode_item(item: dict[str, Any]) -> bytes:
    """Encode an item."""
    return copy_bytes(encode_json(item))


def copy_bytes(data: bytes) -> bytes:
    """Copy bytes from orjson, which otherwise keep a buffer of at least 4 kB alive."""
    return b"%b" % data


def _rename_calls(message: Message, used_ids: Collection[str]) -> Message:
    """Return the message with unique call ids. Histories of other vendors may contain duplicates."""
    new_ids: set[str] = set()
    calls = list(message.tool_calls)
    for index, call in enumerate(calls):
        call_id, number = to_call_id(call.id), 1
        while call_id in used_ids or call_id in new_ids:
            number += 1
            call_id = to_call_id(f"{call.id}.{len(used_ids)}.{number}")
        new_ids.add(call_id)
        calls[index] = call.model_copy(update={"id": call_id})
    return message.model_copy(update={"tool_calls": tuple(calls), "provider_state": None})


def encode_result(call_id: str, output: str | list[dict[str, Any]]) -> bytes:
    """Encode a tool result."""
    return encode_item({"type": "function_call_output", "call_id": call_id, "output": output})


def _adapt_result(result: bytes, call_id: str, sent_id: str, custom: bool) -> bytes:
    """Adapt a result to the call's id and type."""
    if sent_id == call_id and not custom:
        return result
    kind = "custom_tool_call_output" if custom else "function_call_output"
    prefix_length = len(encode_item({"type": "function_call_output", "call_id": call_id})) - 1
    return encode_item({"type": kind, "call_id": sent_id})[:-1] + result[prefix_length:]
