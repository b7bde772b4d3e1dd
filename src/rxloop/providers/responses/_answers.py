"""A message of the model as items again: as they came, or, where that cannot be, as anybody's message."""

from __future__ import annotations

from base64 import b64encode
from typing import Any, NamedTuple, cast

from rxloop.protocol.messages import FilePart, ImagePart, Message, ToolCall
from rxloop.providers.reading._calls import dumped
from rxloop.providers.reading._fields import object_of, text_of
from rxloop.providers.reading._pieces import Piece, pieces_of
from rxloop.providers.responses._output import CALLS, FIELD_OF
from rxloop.providers.responses._server_tools import NOT_HERE

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
    text = message.text or message.text_alone
    if text:
        items.append({"role": "assistant", "content": text})
    items += [
        {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": arguments_of(call)}
        for call in message.tool_calls
    ]
    if why is None and message.media:
        why = "images and files of the model itself"
    return Answer(items, [], None, why)


def arguments_of(call: ToolCall) -> str:
    """The arguments of a call as they are sent back."""
    if call.error is not None:
        # What the model wrote is not JSON. The result of the call says what was wrong.
        return "{}"
    return call.raw if call.raw is not None else dumped(call.arguments).decode()
