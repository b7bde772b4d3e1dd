"""Opaque vendor data that must be sent back unchanged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, cast

from rxloop.protocol.messages import FilePart, ImagePart, Message, TextPart, ToolCall
from rxloop.providers.codecs.fields import as_object

Kind = Literal["text", "reasoning", "call", "file", "raw"]

_KINDS: tuple[Kind, ...] = ("text", "reasoning", "call", "file", "raw")


class Piece(NamedTuple):
    """Ordered piece of an assistant message."""

    kind: Kind
    value: str | ToolCall | ImagePart | FilePart | dict[str, Any]
    """String (`text`, `reasoning`), call, file, or raw vendor object."""
    extra: dict[str, Any]
    """Additional vendor data such as signatures."""


class PieceRecorder:
    """Records message pieces.

    The `text` and `reasoning` parameters are current lengths in characters.
    """

    __slots__ = ("_is_plain", "_pieces", "_reasoning", "_text")

    def __init__(self) -> None:
        self._pieces: list[dict[str, Any]] = []
        self._text = 0
        self._reasoning = 0
        self._is_plain = True
        """True for text followed by calls, which any message represents without a state."""

    def begin(self, kind: Literal["text", "reasoning"], text: int, reasoning: int) -> dict[str, Any]:
        """Begin a text or reasoning piece. The returned `extra` object can be filled until the end."""
        self._close(text, reasoning)
        if self._pieces or kind == "reasoning":
            self._is_plain = False
        return self._add({kind: 0})

    def call(self, index: int, text: int, reasoning: int) -> dict[str, Any]:
        """Add a call and return its `extra` object."""
        self._close(text, reasoning)
        return self._add({"call": index})

    def file(self, index: int, text: int, reasoning: int) -> dict[str, Any]:
        """Add a file and return its `extra` object."""
        self._close(text, reasoning)
        self._is_plain = False
        return self._add({"file": index})

    def raw(self, value: dict[str, Any], text: int, reasoning: int) -> None:
        """Add an opaque vendor object."""
        self._close(text, reasoning)
        self._is_plain = False
        self._pieces.append({"raw": value})

    def finish(self, text: int, reasoning: int) -> list[dict[str, Any]] | None:
        """Return the pieces, or None if the message itself contains all the information."""
        self._close(text, reasoning)
        pieces: list[dict[str, Any]] = []
        for piece in self._pieces:
            if piece.get("extra") == {}:
                del piece["extra"]
            if "extra" in piece or "raw" in piece or piece.get("text") != 0:
                pieces.append(piece)
        if self._is_plain and not any("extra" in piece for piece in pieces):
            return None
        return pieces

    def _add(self, piece: dict[str, Any]) -> dict[str, Any]:
        extra: dict[str, Any] = {}
        self._pieces.append({**piece, "extra": extra})
        return extra

    def _close(self, text: int, reasoning: int) -> None:
        """Set the length of the newest piece if it is text or reasoning."""
        newest = self._pieces[-1] if self._pieces else {}
        if "text" in newest:
            newest["text"] = text - self._text
        elif text > self._text:
            # The vendor did not announce this text.
            self._pieces.append({"text": text - self._text, "extra": {}})
        if "reasoning" in newest:
            newest["reasoning"] = reasoning - self._reasoning
        self._text, self._reasoning = text, reasoning


def iter_pieces(message: Message, key: str) -> Iterator[Piece]:
    """Yield the original message pieces, or files, text and calls if there is no matching state.

    If the message was changed after recording, signed parts are dropped.
    """
    state = (message.provider_state or {}).get(key)
    if isinstance(state, list):
        pieces = _restore_pieces(message, cast("list[Any]", state))
        if pieces is not None:
            yield from pieces
            return
    for part in [TextPart(text=message.content)] if isinstance(message.content, str) else message.content:
        if not isinstance(part, TextPart):
            yield Piece("file", part, {})
        elif part.text:
            yield Piece("text", part.text, {})
    for call in message.tool_calls:
        yield Piece("call", call, {})


def find_foreign_states(message: Message, key: str) -> list[str]:
    """Return the other vendors whose reasoning or parts the message contains; usually empty."""
    return [name for name in (message.provider_state or {}) if name != key]


def _restore_pieces(message: Message, state: list[Any]) -> list[Piece] | None:
    """Restore the recorded pieces, or return None if they do not match the message."""
    parts = [] if isinstance(message.content, str) else message.content
    files = [part for part in parts if not isinstance(part, TextPart)]
    calls = message.tool_calls
    texts = {"text": _Cursor(message.text), "reasoning": _Cursor(message.reasoning or "")}
    pieces: list[Piece] = []
    order: dict[str, list[int]] = {"call": [], "file": []}
    for item in state:
        piece = as_object(item)
        kind = next((kind for kind in _KINDS if kind in piece), None)
        value, extra = piece.get(kind or ""), as_object(piece.get("extra"))
        if kind == "raw" and isinstance(value, dict):
            pieces.append(Piece("raw", cast("dict[str, Any]", value), {}))
        elif (kind == "text" or kind == "reasoning") and type(value) is int and value >= 0:
            pieces.append(Piece(kind, texts[kind].take(value), extra))
        elif (kind == "call" or kind == "file") and type(value) is int:
            sequence: Sequence[ToolCall | ImagePart | FilePart] = calls if kind == "call" else files
            if not 0 <= value < len(sequence):
                return None
            order[kind].append(value)
            pieces.append(Piece(kind, sequence[value], extra))
        else:
            return None
    if not texts["text"].done or sorted(order["call"]) != [*range(len(calls))] or len(order["file"]) != len(files):
        return None
    # The signature is invalid if the reasoning was changed.
    return pieces if texts["reasoning"].done else [piece for piece in pieces if piece.kind != "reasoning"]


class _Cursor:
    """Cursor that splits a string into pieces."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    @property
    def done(self) -> bool:
        """True if the pieces cover the whole text."""
        return self._at == len(self._text)

    def take(self, length: int) -> str:
        """Return the next `length` characters."""
        self._at += length
        return self._text[self._at - length : self._at]
