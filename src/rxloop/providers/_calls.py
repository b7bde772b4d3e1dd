"""Tool calls as they stream: from pieces, which vendors number, name or merely send in order, to whole calls."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, cast

import orjson

from rxloop.events import Event, ToolCallDeltaEvent
from rxloop.messages import ToolCall
from rxloop.providers._documents import values_in
from rxloop.providers._sanitize import clean_name
from rxloop.providers.bounds import DEFAULT_BOUNDS, Bounds, OutOfBounds
from rxloop.requests import ToolDefinition
from rxloop.storable import readable
from rxloop.trusted import trusted

_delta = trusted(ToolCallDeltaEvent)


class _Call:
    """A tool call that is being put together."""

    __slots__ = ("extra", "id", "index", "name", "pieces", "size")

    def __init__(self, index: int) -> None:
        self.index = index
        self.id = ""
        self.name = ""
        self.pieces: list[str] = []
        self.extra: dict[str, Any] | None = None
        self.size = 0


class CallAssembler:
    """Joins the pieces of the tool calls of one answer, and pushes them on as they come."""

    __slots__ = (
        "_bounds",
        "_by_id",
        "_by_index",
        "_calls",
        "_free",
        "_known",
        "_last",
        "_push",
        "_step",
        "_taken",
        "_tokens",
        "size",
    )

    def __init__(
        self,
        push: Callable[[Event], None],
        step: str,
        tools: Sequence[ToolDefinition] = (),
        strip: tuple[str, ...] = (),
        bounds: Bounds = DEFAULT_BOUNDS,
    ) -> None:
        self.size = 0
        """The characters of all calls together."""
        self._push = push
        self._step = step
        self._known = {tool.name: tool.hidden for tool in tools}
        self._tokens = strip
        self._bounds = bounds
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._by_id: dict[str, _Call] = {}
        self._taken: dict[int, _Call] = {}
        self._free = 0
        """The first number behind all that are taken."""
        self._last: _Call | None = None

    def feed(self, piece: dict[str, Any]) -> None:
        """Read one entry of `tool_calls`.

        Raises:
            OutOfBounds: There are too many calls, or one is too long.
        """
        found = piece.get("function")
        function = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
        call_id, name, arguments = _text(piece.get("id")), _text(function.get("name")), function.get("arguments")
        call = self._find(piece.get("index"), call_id, name)
        first = not call.name
        if call_id and not call.id:
            self._name(call, call_id)
        if first and name:
            call.name = clean_name(name, self._known, self._tokens) if self._tokens else name
        if isinstance(extra := piece.get("extra_content"), dict):
            call.extra = call.extra or {}
            call.extra.update(cast("dict[str, Any]", extra))
            self.size += size_of(cast("dict[str, Any]", extra))
        if isinstance(arguments, dict):
            try:
                arguments = orjson.dumps(arguments).decode()
            except TypeError:
                # Half a character in a text, which is then what is wrong with the call.
                arguments = json.dumps(arguments)
        fragment = _text(arguments)
        size = len(fragment) + len(call_id) + len(name)
        call.size += size
        self.size += size
        if call.size > self._bounds.arguments:
            raise OutOfBounds("arguments", self._bounds.arguments)
        if fragment:
            call.pieces.append(fragment)
        if not call.name or not (fragment or first):
            return
        if not call.id:
            self._name(call, self._made_up(call))
        self._push(
            _delta(
                index=call.index,
                tool_call_id=call.id,
                name=call.name,
                fragment="".join(call.pieces) if first else fragment,
                hidden=self._known.get(call.name, False),
                step=self._step,
            )
        )

    def finish(self) -> list[ToolCall]:
        """The calls in their order; one without a name cannot be called and is left out.

        Raises:
            OutOfBounds: There are too many values in their arguments.
        """
        written = [(call, "".join(call.pieces)) for call in self._named()]
        values = self._bounds.argument_values
        if (
            self.size > values
            and sum(values_in(arguments.encode(errors="replace")) for _, arguments in written) > values
        ):
            raise OutOfBounds("argument_values", values)
        return [
            ToolCall.parse(call.id or self._made_up(call), call.name, readable(arguments))
            for call, arguments in written
        ]

    def extra_content(self) -> dict[str, Any]:
        """What the vendor sent beside the calls and wants back with them, by the place of the call."""
        return {str(place): call.extra for place, call in enumerate(self._named()) if call.extra}

    def _named(self) -> list[_Call]:
        return [call for call in sorted(self._calls, key=lambda call: call.index) if call.name]

    def _find(self, index: Any, call_id: str, name: str) -> _Call:
        """The call that a piece belongs to: by its index, else by its id; else a name begins a new one."""
        if isinstance(index, int):
            call = self._by_index.get(index)
            if call is not None and call_id and name and call.id and call_id != call.id:
                # Another call under the same number: the vendor does not count.
                call = None
        elif call_id:
            call = self._by_id.get(call_id)
        else:
            call = None if name else self._last
        if call is None:
            if len(self._calls) >= self._bounds.calls:
                raise OutOfBounds("calls", self._bounds.calls)
            free = self._free
            call = _Call(index if isinstance(index, int) and index not in self._taken else free)
            self._taken[call.index] = call
            self._free = max(free, call.index + 1)
            self._calls.append(call)
            self._by_index[index if isinstance(index, int) else free] = call
        self._last = call
        return call

    def _name(self, call: _Call, call_id: str) -> None:
        call.id = call_id
        self._by_id.setdefault(call_id, call)

    def _made_up(self, call: _Call) -> str:
        return f"call_{re.sub('[^0-9A-Za-z]+', '_', self._step)}_{call.index}"


def size_of(fields: dict[str, Any]) -> int:
    """About how many characters there are in what a vendor wants back as it is."""
    return len(orjson.dumps(fields))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
