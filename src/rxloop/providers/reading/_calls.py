"""Tool calls as they stream: from pieces, which vendors number, name or merely send in order, to whole calls."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, cast

import orjson

from rxloop.pipeline.requests import ToolDefinition
from rxloop.protocol.events import Event, ToolCallDeltaEvent
from rxloop.protocol.messages import ToolCall
from rxloop.protocol.storable import readable
from rxloop.protocol.unchecked import unchecked
from rxloop.providers._documents import check_document, values_in
from rxloop.providers.bounds import DEFAULT_BOUNDS, Bounds, OutOfBounds
from rxloop.providers.reading._sanitize import clean_name

_delta = unchecked(ToolCallDeltaEvent)
_NOTHING: dict[str, Any] = {}


class _Call:
    """A tool call that is being put together."""

    __slots__ = ("extra", "hidden", "id", "index", "name", "pieces", "size")

    def __init__(self, index: int) -> None:
        self.index = index
        self.id = ""
        self.name = ""
        self.hidden = False
        self.pieces: list[str] = []
        self.extra: dict[str, Any] | None = None
        self.size = 0


class CallAssembler:
    """Joins the pieces of the tool calls of one answer, and pushes each as it comes."""

    __slots__ = (
        "_bounds",
        "_by_id",
        "_by_index",
        "_by_number",
        "_calls",
        "_extra",
        "_free",
        "_known",
        "_last",
        "_push",
        "_step",
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
        self._extra = False
        """Whether a call has something that the vendor wants back."""
        self._push = push
        self._step = step
        self._known = {tool.name: tool.hidden for tool in tools}
        self._tokens = strip
        self._bounds = bounds
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._by_id: dict[str, _Call] = {}
        self._by_number: dict[int, _Call] = {}
        self._free = 0
        """The first number after all that are used."""
        self._last: _Call | None = None

    def feed(self, piece: dict[str, Any]) -> None:
        """Read one entry of `tool_calls`.

        Raises:
            OutOfBounds: There are too many calls, or one is too long.
        """
        index, call_id, function = piece.get("index", ""), piece.get("id", ""), piece.get("function", _NOTHING)
        if call_id.__class__ is not str:
            call_id = ""
        if function.__class__ is not dict:
            function = _NOTHING
        name, fragment = function.get("name", ""), function.get("arguments", "")
        if name.__class__ is not str:
            name = ""
        if fragment.__class__ is not str:
            # Some vendors send all arguments as an object.
            fragment = self._dumped(fragment).decode() if fragment.__class__ is dict else ""
        # Nearly every piece continues the call that has its number.
        call = None if call_id or index.__class__ is not int else self._by_index.get(index)
        if call is None:
            call = self._find(index, call_id, name)
        self._last = call
        size = len(fragment)
        first = not call.name
        if call_id and not call.id:
            self._name(call, call_id)
            size += len(call_id)
        if first and name:
            if len(name) > self._bounds.name:
                raise OutOfBounds("name", self._bounds.name)
            call.name = clean_name(name, self._known, self._tokens) if self._tokens else name
            call.hidden = self._known.get(call.name, False)
            size += len(name)
        if "extra_content" in piece:
            self._keep(call, piece["extra_content"])
        call.size += size
        self.size += size
        if call.size > self._bounds.arguments:
            raise OutOfBounds("arguments", self._bounds.arguments)
        if fragment:
            call.pieces.append(fragment)
        if not call.name or not (fragment or first):
            return
        if not call.id:
            self._name(call, self._new_id(call))
        self._push(
            _delta(
                index=call.index,
                tool_call_id=call.id,
                name=call.name,
                fragment="".join(call.pieces) if first else fragment,
                hidden=call.hidden,
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
            ToolCall.parse(call.id or self._new_id(call), call.name, readable(arguments)) for call, arguments in written
        ]

    def extra_content(self) -> dict[str, Any]:
        """What the vendor sent beside the calls and wants back with them, by the place of the call."""
        if not self._extra:
            return {}
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
            call = _Call(index if isinstance(index, int) and index not in self._by_number else free)
            self._by_number[call.index] = call
            self._free = max(free, call.index + 1)
            self._calls.append(call)
            self._by_index[index if isinstance(index, int) else free] = call
        return call

    def _keep(self, call: _Call, extra: Any) -> None:
        """Keep what the vendor wants back with a call."""
        if not isinstance(extra, dict):
            return
        self.size += len(self._dumped(cast("dict[str, Any]", extra)))
        call.extra = call.extra or {}
        call.extra.update(cast("dict[str, Any]", extra))
        self._extra = True

    def _dumped(self, fields: dict[str, Any]) -> bytes:
        """What is kept of a chunk that nobody has looked at for what is deep in it."""
        data = dumped(fields)
        check_document(data, self._bounds)
        return data

    def _name(self, call: _Call, call_id: str) -> None:
        call.id = call_id
        self._by_id.setdefault(call_id, call)

    def _new_id(self, call: _Call) -> str:
        return f"call_{re.sub('[^0-9A-Za-z]+', '_', self._step)}_{call.index}"


def dumped(value: Any) -> bytes:
    """What a vendor sent, as JSON again.

    Raises:
        OutOfBounds: It is nested too deep for that.
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        # Half a character in a text, which is for others to find; or it is deep.
        try:
            return json.dumps(value).encode()
        except RecursionError:
            raise OutOfBounds("depth", DEFAULT_BOUNDS.depth) from None
