"""Calls and their results: every call that is sent has one, under an id that no other call has."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from hashlib import sha256
from typing import Any

from rxloop.protocol.messages import Message
from rxloop.providers.reading._calls import dumped
from rxloop.providers.responses._chain import Form
from rxloop.providers.wire import Notice
from rxloop.state.history import Ledger

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
                self._strays.append(item_bytes({"role": "user", "content": message.text_alone}))
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
