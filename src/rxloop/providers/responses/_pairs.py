"""Calls and their results: every call that is sent has one, under an id that no other call has."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any

from rxloop.protocol.messages import Message
from rxloop.providers._calls import dumped
from rxloop.providers.responses._chain import Form
from rxloop.providers.wire import Notice

_CALL_ID = re.compile("[0-9A-Za-z_.:|-]{1,64}")
_NO_RESULT = "There is no result of this call."


def paired(
    forms: Sequence[tuple[Message, Form]], first: int, renamed: Callable[[Message], bytes], notice: Notice
) -> list[bytes]:
    """The items from one message on, in which every call has its result and every result its call.

    Args:
        forms: All messages, and what they became.
        first: The message from which on they are sent.
        renamed: Encodes a message whose calls got other ids.
        notice: Told of what is added or put in other words.
    """
    items: list[bytes] = []
    strays: list[bytes] = []
    waiting: dict[str, list[tuple[str, bool]]] = {}
    used: set[str] = set()

    def close() -> None:
        for call_id, custom in (call for calls in waiting.values() for call in calls):
            notice("left_out", f"nothing of the conversation: call {call_id} has no result, and is told so")
            items.append(_for(result_of(call_id, _NO_RESULT), call_id, call_id, custom))
        waiting.clear()
        items.extend(strays)
        strays.clear()

    for place, (message, form) in enumerate(forms):
        if message.role == "tool":
            call_id = form.calls[0]
            if made := waiting.get(call_id):
                items.append(_for(form.data, call_id, *made.pop(0)))
            elif place >= first:
                notice("left_out", f"that a text is the result of call {call_id}, which nobody made")
                strays.append(item_bytes({"role": "user", "content": message.text_alone}))
            continue
        if waiting or strays:
            close()
        data, calls = form.data, form.calls
        if not used.isdisjoint(calls) or len(set(calls)) < len(calls):
            message = _with_other_ids(message, used)
            data, calls = renamed(message), tuple(call_id_of(call.id) for call in message.tool_calls)
        used.update(calls)
        if place >= first and data:
            items.append(data)
        if place >= first - 1:
            for call_id, sent in zip(form.calls, calls, strict=True):
                waiting.setdefault(call_id, []).append((sent, sent in form.custom))
    close()
    return items


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


def _with_other_ids(message: Message, used: set[str]) -> Message:
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
