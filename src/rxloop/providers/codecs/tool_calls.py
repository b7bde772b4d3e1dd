"""Tool calls assembled from streamed fragments."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import orjson

from rxloop.pipeline.requests import ToolDefinition
from rxloop.protocol.events import Event, ToolCallDeltaEvent
from rxloop.protocol.json_data import replace_surrogates
from rxloop.protocol.messages import ToolCall
from rxloop.protocol.model import make_unchecked
from rxloop.providers.bounds import DEFAULT_BOUNDS, Bounds, OutOfBounds, check_document
from rxloop.providers.codecs.call_fragments import Call, Piece, is_placeholder, is_same_value, read_index, starts_value
from rxloop.providers.codecs.markup import clean_name
from rxloop.providers.codecs.tools import Original
from rxloop.support.json_limits import count_values

_delta = make_unchecked(ToolCallDeltaEvent)

_EMPTY: dict[str, Any] = {}


class CallAssembler:
    """Assembles streamed tool calls and publishes fragments immediately."""

    __slots__ = (
        "_bounds",
        "_by_call_index",
        "_by_id",
        "_by_index",
        "_calls",
        "_exceeds_values",
        "_has_extra",
        "_held",
        "_hidden_by_name",
        "_last",
        "_next_index",
        "_originals",
        "_push",
        "_step",
        "_tokens",
        "_undecided",
        "repaired",
        "size",
        "splits_names",
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
        """Total size in characters."""
        self.repaired: list[str] = []
        """Names of the calls whose arguments were not JSON but contained exactly one JSON value."""
        self.splits_names = False
        """True if the server may split names, or send a placeholder before the arguments."""
        self._has_extra = False
        """True if any call has extra content."""
        self._exceeds_values = False
        """True if the arguments of all calls have too many values to process them on the event loop."""
        self._push = push
        self._step = step
        self._hidden_by_name = {tool.name: tool.hidden for tool in tools}
        self._originals: Mapping[str, Original] = {}
        self._tokens = strip
        self._bounds = bounds
        self._calls: list[Call] = []
        self._by_index: dict[int, Call] = {}
        self._by_id: dict[str, Call] = {}
        self._by_call_index: dict[int, Call] = {}
        self._undecided: dict[int, tuple[Call, str]] = {}
        """Calls whose name was repeated after complete arguments, by index, together with the repeated id. The next
        fragment determines if there is a new call.
        """
        self._held: dict[int, Call] = {}
        """Unpublished calls by index. The next fragment could extend the name or replace the arguments. Not part of
        `_by_index`.
        """
        self._next_index = 0
        """First call number above all used numbers."""
        self._last: Call | None = None

    @property
    def empty(self) -> bool:
        """True if there are no calls."""
        return not self._calls

    def restore(self, originals: Mapping[str, Original]) -> None:
        """Replace the vendor's names of tools and parameters by the original names in later calls.

        Args:
            originals: Original tools by the vendor's tool name.
        """
        self._originals = originals
        self._hidden_by_name |= {name: self._hidden_by_name.get(each.name, False) for name, each in originals.items()}

    def feed(self, piece: dict[str, Any], last: bool = False) -> None:
        """Read a `tool_calls` entry.

        Args:
            piece: Received entry.
            last: True for the final chunk, which repeats all arguments on some servers.

        Raises:
            OutOfBounds: Too many calls, or a name or call is too long.
        """
        index, call_id, function = piece.get("index", ""), piece.get("id", ""), piece.get("function", _EMPTY)
        if call_id.__class__ is not str:
            call_id = ""
        if function.__class__ is not dict:
            function = _EMPTY
        name, fragment = function.get("name", ""), function.get("arguments", "")
        if name.__class__ is not str:
            name = ""
        if fragment.__class__ is not str:
            # Some vendors send arguments as an object.
            fragment = self._encode_checked(fragment).decode() if fragment.__class__ is dict else ""
        # Fast path: most fragments just continue an existing call.
        call = None if call_id or name or last or index.__class__ is not int else self._by_index.get(index)
        if call is None:
            if len(name) > self._bounds.name:
                raise OutOfBounds("name", self._bounds.name)
            if name and self._tokens:
                name = clean_name(name, self._hidden_by_name, self._tokens)
            entry = Piece(read_index(index), call_id, name, fragment)
            call = self._find(entry)
            call_id, name, fragment = entry.call_id, entry.name, entry.fragment
        self._last = call
        size = len(fragment)
        was_started = call.started
        if call_id and not call.id:
            self._set_id(call, call_id)
            size += len(call_id)
        if call_id:
            call.has_vendor_id = True
        if name and not was_started:
            size += len(name) - len(call.name)
            call.name = name
            call.hidden = self._hidden_by_name.get(call.name, False)
        if "extra_content" in piece:
            self._store_extra(call, piece["extra_content"])
        call.size += size
        self.size += size
        if call.size > self._bounds.arguments:
            raise OutOfBounds("arguments", self._bounds.arguments)
        if fragment:
            call.pieces.append(fragment)
        if not was_started:
            if call.name and not self._hold(call) and not self._is_renamed(call):
                self._start(call)
        elif fragment:
            self._push(
                _delta(
                    index=call.index,
                    tool_call_id=call.id,
                    name=call.shown_name,
                    fragment=fragment,
                    hidden=call.hidden,
                    step=self._step,
                )
            )

    def flush(self) -> None:
        """Publish held-back calls."""
        left = self._bounds.argument_values
        # Each value has at least one character.
        for call in self._calls if self.size > left else ():
            left -= count_values("".join(call.pieces).encode(errors="replace"), max(left, 0))
        self._exceeds_values = left < 0
        for call in self._held.values():
            self._start(call)
        self._held.clear()
        for call in self._list_named() if self._originals else ():
            if not call.started:
                self._start(call)

    def finish(self) -> list[ToolCall]:
        """Return sorted calls. Unnamed calls are dropped. If there are too many argument values, all calls fail."""
        limit = self._bounds.argument_values
        error = f"the calls of a message must not have more than {limit:,} argument values; write fewer at once"
        calls: list[ToolCall] = []
        for call in self._list_named():
            text = replace_surrogates("".join(call.pieces))
            call_id, name = call.id or self._new_id(call), call.shown_name or call.name
            failed = ToolCall(id=call_id, name=name, raw=text, error=error) if self._exceeds_values else None
            read = failed or ToolCall.parse(call_id, name, text, limit=limit)
            if read.raw is not None and read.raw != text:
                self.repaired.append(read.name)
            calls.append(read)
        return calls

    def extra_content(self) -> dict[str, Any]:
        """Return extra content by call position, for sending it back."""
        if not self._has_extra:
            return {}
        return {str(index): call.extra for index, call in enumerate(self._list_named()) if call.extra}

    def _list_named(self) -> list[Call]:
        return [call for call in sorted(self._calls, key=lambda call: call.index) if call.name]

    def _find(self, piece: Piece) -> Call:
        """Return the matching call by index, id or order. Begin a new call if needed.

        Some servers use one index for several calls, others repeat the name, id or arguments. For this reason, the
        received arguments are checked: another value after a complete value starts a new call.
        """
        index, call_id, name = piece.index, piece.call_id, piece.name
        owner = self._by_id.get(call_id) if call_id else None
        if index is None:
            call = owner or (None if call_id and name and not self._continues_last(piece) else self._last)
        elif index in self._undecided:
            return self._resolve(piece, index)
        else:
            call = self._by_index.get(index) or self._held.get(index)
            if call is None:
                # Either a new call, or the server numbers its chunks.
                call = None if name else self._find_unfinished(owner if call_id else self._last, piece)
                if call is None:
                    return self._begin(index)
                self._by_index[index] = call
            elif owner is not None and owner.key == index:
                call = owner
        if call is None:
            return self._begin(index)
        if self._is_other(call, piece):
            other = self._begin(index)
            if owner is not None:
                # Clients need unique ids.
                other.id = self._new_id(other)
                self._by_id[call_id] = other
            return other
        if call_id and owner is None and not call.has_vendor_id:
            self._by_id[call_id] = call
        return call

    def _is_other(self, call: Call, piece: Piece) -> bool:
        """Return True if a fragment begins another call. Clear the fragment if it only repeats the call's arguments."""
        name, fragment = piece.name, piece.fragment
        is_own = piece.call_id == call.id or self._by_id.get(piece.call_id) is call
        other_id = bool(piece.call_id) and call.has_vendor_id and not is_own
        if name and call.name and name != call.name:
            joined = "" if other_id else self._join_names(call, name)
            piece.name = joined or name
            return not joined
        keyless = piece.index is None and not piece.call_id
        if not call.pieces:
            return bool(name and call.name) and (other_id or (keyless and not fragment.strip()))
        starts = starts_value(fragment)
        if not starts and fragment.strip():
            return False
        if starts and is_placeholder(call) and (not name or (is_own and call.has_vendor_id)) and not other_id:
            self.size -= call.clear()
            return False
        scanner = call.scan()
        if not scanner.complete:
            return bool(name and call.name) and starts and not scanner.takes_value
        if not starts:
            if name and call.name and piece.index is not None and not other_id:
                self._by_index.pop(piece.index, None)
                self._undecided[piece.index] = call, piece.call_id
            return bool(name and call.name) and (other_id or keyless)
        is_repeated = not (keyless or (other_id and name)) and is_same_value("".join(call.pieces), fragment)
        if is_repeated:
            piece.fragment = ""
            return False
        return bool(name or other_id)

    def _resolve(self, piece: Piece, index: int) -> Call:
        """Return the matching call after a repeated name, based on the new fragment."""
        call, call_id = self._undecided.pop(index)
        self._by_index[index] = call
        piece.name = piece.name or call.name
        piece.call_id = piece.call_id or call_id
        return self._find(piece)

    def _continues_last(self, piece: Piece) -> bool:
        """Return True if a fragment with a new id and no index can only continue the newest call."""
        call, fragment = self._last, piece.fragment
        if call is None or call.name != piece.name or not fragment.strip() or starts_value(fragment):
            return False
        return bool(call.pieces) and not call.scan().complete

    def _find_unfinished(self, call: Call | None, piece: Piece) -> Call | None:
        """Return the call if its arguments are incomplete and can be continued without a name."""
        if call is None or not piece.fragment.strip() or not (call.pieces or piece.call_id):
            return None
        return None if call.scan().complete else call

    def _begin(self, index: int | None) -> Call:
        if len(self._calls) >= self._bounds.calls:
            raise OutOfBounds("calls", self._bounds.calls)
        if index is not None and (held := self._held.pop(index, None)) is not None:
            self._start(held)
        next_index = self._next_index
        call_index = index if index is not None and index not in self._by_call_index else next_index
        call = Call(call_index, next_index if index is None else index)
        self._by_call_index[call.index] = call
        self._next_index = max(next_index, call.index + 1)
        self._calls.append(call)
        self._by_index[call.key] = call
        return call

    def _hold(self, call: Call) -> bool:
        """Return True if the next fragment could still change the name or arguments."""
        if self.splits_names and (is_placeholder(call) or (not call.pieces and self._is_prefix(call.name))):
            self._by_index.pop(call.key, None)
            self._held[call.key] = call
            return True
        if self._held.pop(call.key, None) is not None:
            self._by_index[call.key] = call
        return False

    def _start(self, call: Call) -> None:
        """Publish the call's name and current arguments."""
        call.started = True
        call.shown_name = call.name
        if (original := self._originals.get(call.name)) is not None:
            call.shown_name = original.name
            if original.names and not self._exceeds_values:
                call.pieces = [original.translate("".join(call.pieces))]
        if not call.id:
            self._set_id(call, self._new_id(call))
        self._push(
            _delta(
                index=call.index,
                tool_call_id=call.id,
                name=call.shown_name,
                fragment="".join(call.pieces),
                hidden=call.hidden,
                step=self._step,
            )
        )

    def _is_renamed(self, call: Call) -> bool:
        """Return True if parameters of the call are renamed, which requires the complete arguments."""
        original = self._originals.get(call.name)
        return original is not None and bool(original.names)

    def _join_names(self, call: Call, name: str) -> str:
        """Return the extended name if it matches a tool, otherwise an empty string."""
        if call.started or call.pieces or name in self._hidden_by_name:
            return ""
        joined = call.name + name
        return joined if joined in self._hidden_by_name or self._is_prefix(joined) else ""

    def _is_prefix(self, name: str) -> bool:
        """Return True if `name` is a proper prefix of a tool name."""
        return any(tool_name != name and tool_name.startswith(name) for tool_name in self._hidden_by_name)

    def _store_extra(self, call: Call, extra: Any) -> None:
        """Store the call's extra content."""
        if not isinstance(extra, dict):
            return
        self.size += len(self._encode_checked(cast("dict[str, Any]", extra)))
        call.extra = call.extra or {}
        call.extra.update(cast("dict[str, Any]", extra))
        self._has_extra = True

    def _encode_checked(self, fields: dict[str, Any]) -> bytes:
        """Encode nested data after checking its size and depth."""
        data = encode_json(fields)
        check_document(data, self._bounds)
        return data

    def _set_id(self, call: Call, call_id: str) -> None:
        call.id = call_id
        self._by_id.setdefault(call_id, call)

    def _new_id(self, call: Call) -> str:
        return f"call_{re.sub('[^0-9A-Za-z]+', '_', self._step)}_{call.index}"


def encode_json(value: Any) -> bytes:
    """Encode vendor data as JSON.

    Raises:
        OutOfBounds: The data is nested too deeply.
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        # orjson rejects unpaired surrogates, which are handled later, and deep nesting.
        try:
            return json.dumps(value).encode()
        except RecursionError:
            raise OutOfBounds("depth", DEFAULT_BOUNDS.depth) from None
