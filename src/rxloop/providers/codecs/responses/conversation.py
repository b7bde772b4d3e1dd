"""Messages as items: stored responses, output of the model, and calls paired with their results."""

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
"""How many conversations are known by what has been sent of them."""


class Form(NamedTuple):
    """What a message became."""

    data: bytes
    """Its items, with commas between them."""
    calls: tuple[str, ...] = ()
    """The ids of the calls in it, or of the one that it answers, as they are sent."""
    custom: frozenset[str] = frozenset()
    """Those whose results have another form."""
    response: str | None = None
    """The id under which the vendor has stored it."""


class Chain:
    """Knows which conversations the vendor has, by what this process has sent.

    A conversation that was changed since then, as by a compressor, or that another process began, is sent whole: what
    the vendor would add to it by itself is not what was asked.
    """

    def __init__(self) -> None:
        self._sent: OrderedDict[bytes, None] = OrderedDict()

    def forget(self) -> None:
        """Send everything whole from now on, until it has been sent once."""
        self._sent.clear()

    def goes_on(self, before: bytes | None, whole: bytes) -> bool:
        """Whether the vendor has what was said before an answer that it has stored, so that it knows the conversation.

        Args:
            before: The digest of the messages before that answer; None where nothing comes after it.
            whole: That of all messages.
        """
        fits = before in self._sent
        self.note(whole)
        return fits

    def note(self, whole: bytes) -> None:
        """Note that the vendor will have a conversation, by its digest."""
        self._sent[whole] = None
        self._sent.move_to_end(whole)
        if len(self._sent) > _KEPT:
            self._sent.popitem(last=False)


class ChainLost(BadRequest):
    """The vendor no longer has the answer that the request goes on from: it is to be sent again, whole."""

    retryable = True


Item = dict[str, Any]


class Answer(NamedTuple):
    """What becomes of a message of the model."""

    items: list[Item]
    custom: list[str]
    """The ids of the calls among them whose results go back in another form."""
    response: str | None
    """The id under which the vendor has stored it."""
    left_out: str | None
    """What the model does not get of it."""


class _Parts(NamedTuple):
    heads: dict[int, dict[str, Any]]
    texts: dict[tuple[int, str], str]
    calls: dict[int, ToolCall]
    files: dict[int, ImagePart | FilePart]
    response: str | None


def answer_of(message: Message, key: str, takes_reasoning: bool) -> Answer:
    """The items of a message of the model.

    An item that is left out would leave others without what they were made from, which the vendor refuses by their
    ids. So all go back as they came, or none does: then the message is its text and its calls, without ids.

    Args:
        message: The message.
        key: Under which name its pieces are kept, if they are from the same endpoint.
        takes_reasoning: Whether the model may be sent reasoning.
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
    """The pieces by the items that they belong to; None where they are not ours."""
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
    """What the vendor would miss of the items, or refuse; None where they can go back."""
    numbers = {number for number, _ in parts.texts} | parts.calls.keys() | parts.files.keys()
    if not numbers <= parts.heads.keys():
        return "items that nothing is known of"
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
                return "reasoning, which the model does not take"
            if not (fields.get("encrypted_content") or full or parts.response):
                return "reasoning that the vendor has neither stored nor sent encrypted"
        elif kind in CALLS and number not in parts.calls:
            return "a call that was taken out"
        elif kind in NOT_HERE and kind != "mcp_approval_request" and fields.get("call_id") not in answered:
            return f"a {kind} that nobody answered"
        elif not kind:
            return "an item without a type"
    newest = max(fields_of, default=None)
    if newest is not None and fields_of[newest].get("type") == "reasoning":
        # As of an answer that was cut: the vendor wants what came of it.
        return "reasoning that nothing came of"
    return None


def _is_output(fields: dict[str, Any]) -> bool:
    return text_of(fields.get("type")).endswith("_output")


def _item(number: int, head: dict[str, Any], parts: _Parts) -> Item:
    """One item as it came."""
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
    # By number over all kinds: the content of a message is texts and refusals.
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
    """The arguments of a call as they are sent back."""
    if call.error is not None:
        # What the model wrote is not JSON. The result of the call says what was wrong.
        return "{}"
    return call.raw if call.raw is not None else dumped(call.arguments).decode()


_CALL_ID = re.compile("[0-9A-Za-z_.:|-]{1,64}")

_NO_RESULT = "There is no result of this call."


class Items:
    """The items of a request, in which every call has its result and every result its call."""

    def __init__(self) -> None:
        self.digest = b""
        """What tells the messages from all others."""
        self._items: list[bytes] = []
        self._strays: list[bytes] = []
        self._waiting: dict[str, list[tuple[str, bool]]] = {}
        """The calls without a result: as they are sent, and whether the result has another form, by their ids."""
        self._used: Ledger[str, None] = Ledger()

    def copy(self) -> Items:
        """One that grows by itself; the items that are there are joined in both."""
        if len(self._items) > 1:
            self._items = [b",".join(self._items)]
        other = self.only_new()
        other._items, other._strays = self._items.copy(), self._strays.copy()
        other._waiting = {call_id: calls.copy() for call_id, calls in self._waiting.items()}
        return other

    def only_new(self) -> Items:
        """One for what comes behind these items, without them."""
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
            message: The message.
            form: What it became.
            renamed: Encodes a message whose calls got other ids.
            notice: Told of what is added or put in other words.
            hashed: The digest is wanted.
            known: The vendor has it already, and may still want the results of its calls.
        """
        if hashed:
            self.digest = with_form(self.digest, message, form)
        if message.role == "tool":
            call_id = form.calls[0]
            if made := self._waiting.get(call_id):
                self._items.append(_for(form.data, call_id, *made.pop(0)))
            else:
                notice("left_out", f"gets the result of call {call_id}, which is not there, as a text")
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
        """All of them, with commas between them; the last calls have their results, too."""
        self._close(notice)
        return b",".join(self._items)

    def _close(self, notice: Notice) -> None:
        for call_id, custom in (call for calls in self._waiting.values() for call in calls):
            notice("left_out", f"is told that call {call_id} has no result")
            self._items.append(_for(result_of(call_id, _NO_RESULT), call_id, call_id, custom))
        self._waiting.clear()
        self._items.extend(self._strays)
        self._strays.clear()


def with_form(digest: bytes, message: Message, form: Form) -> bytes:
    """The digest of some messages and of one more, by what it became."""
    return sha256(b"%b%b %b" % (digest, message.role.encode(), form.data)).digest()


def call_id_of(call_id: str) -> str:
    """The id of a call as the vendor takes it: another vendor's may be too long, or empty."""
    if _CALL_ID.fullmatch(call_id):
        return call_id
    return "call_" + sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:24]


def item_bytes(item: dict[str, Any]) -> bytes:
    """One item as JSON."""
    return copied(dumped(item))


def copied(data: bytes) -> bytes:
    """The same bytes: what orjson returns holds the whole buffer that it was written to, 4 kB at least."""
    return b"%b" % data


def _with_other_ids(message: Message, used: Collection[str]) -> Message:
    """The message with calls whose ids nobody else has, as another vendor's history may not have them."""
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
    """The item of a result."""
    return item_bytes({"type": "function_call_output", "call_id": call_id, "output": output})


def _for(result: bytes, call_id: str, sent: str, custom: bool) -> bytes:
    """A result for the call as it was sent."""
    if sent == call_id and not custom:
        return result
    kind = "custom_tool_call_output" if custom else "function_call_output"
    before = len(item_bytes({"type": "function_call_output", "call_id": call_id})) - 1
    return item_bytes({"type": kind, "call_id": sent})[:-1] + result[before:]
