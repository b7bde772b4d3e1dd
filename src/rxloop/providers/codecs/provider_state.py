"""Vendor-specific parts of a message, sent back unchanged with the next request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, cast

from rxloop.protocol.messages import FilePart, ImagePart, Message, TextPart, ToolCall
from rxloop.providers.codecs.fields import object_of

Kind = Literal["text", "reasoning", "call", "file", "raw"]

_KINDS: tuple[Kind, ...] = ("text", "reasoning", "call", "file", "raw")


class Piece(NamedTuple):
    """One piece of a message of the model, in the order in which it came."""

    kind: Kind
    value: str | ToolCall | ImagePart | FilePart | dict[str, Any]
    """A text for `text` and `reasoning`, the call, the file, and for `raw` what the vendor sent."""
    extra: dict[str, Any]
    """What the vendor sent beside it, such as a signature."""


class PieceRecorder:
    """Takes down the pieces of an answer as they come.

    `mark` is where the text and the reasoning of the message have got to, in characters.
    """

    __slots__ = ("_pieces", "_plain", "_reasoning", "_text")

    def __init__(self) -> None:
        self._pieces: list[dict[str, Any]] = []
        self._text = 0
        self._reasoning = 0
        self._plain = True
        """Text, then calls, and nothing else: what any message says without a state."""

    def begin(self, kind: Literal["text", "reasoning"], text: int, reasoning: int) -> dict[str, Any]:
        """Begin a piece of text or of reasoning; return its `extra`, which may be filled until the end."""
        self._close(text, reasoning)
        if self._pieces or kind == "reasoning":
            self._plain = False
        return self._add({kind: 0})

    def call(self, place: int, text: int, reasoning: int) -> dict[str, Any]:
        """Add the call with this place among the calls; return its `extra`."""
        self._close(text, reasoning)
        return self._add({"call": place})

    def file(self, place: int, text: int, reasoning: int) -> dict[str, Any]:
        """Add the file with this place among the files; return its `extra`."""
        self._close(text, reasoning)
        self._plain = False
        return self._add({"file": place})

    def raw(self, value: dict[str, Any], text: int, reasoning: int) -> None:
        """Add what only the vendor understands."""
        self._close(text, reasoning)
        self._plain = False
        self._pieces.append({"raw": value})

    def finish(self, text: int, reasoning: int) -> list[dict[str, Any]] | None:
        """Return the pieces; None where the message says it all by itself."""
        self._close(text, reasoning)
        kept: list[dict[str, Any]] = []
        for piece in self._pieces:
            if piece.get("extra") == {}:
                del piece["extra"]
            if "extra" in piece or "raw" in piece or piece.get("text") != 0:
                kept.append(piece)
        if self._plain and not any("extra" in piece for piece in kept):
            return None
        return kept

    def _add(self, piece: dict[str, Any]) -> dict[str, Any]:
        extra: dict[str, Any] = {}
        self._pieces.append({**piece, "extra": extra})
        return extra

    def _close(self, text: int, reasoning: int) -> None:
        """End the newest piece, if it is text or reasoning."""
        newest = self._pieces[-1] if self._pieces else {}
        if "text" in newest:
            newest["text"] = text - self._text
        elif text > self._text:
            # Text that nobody has announced.
            self._pieces.append({"text": text - self._text, "extra": {}})
        if "reasoning" in newest:
            newest["reasoning"] = reasoning - self._reasoning
        self._text, self._reasoning = text, reasoning


def pieces_of(message: Message, key: str) -> Iterator[Piece]:
    """The pieces of a message of the model: as the vendor `key` sent them, or else its files, its text and its calls.

    Where the state does not fit the message, since somebody has changed it, what is signed is left out with it.
    """
    state = (message.provider_state or {}).get(key)
    if isinstance(state, list):
        found = _kept(message, cast("list[Any]", state))
        if found is not None:
            yield from found
            return
    for part in [TextPart(text=message.content)] if isinstance(message.content, str) else message.content:
        if not isinstance(part, TextPart):
            yield Piece("file", part, {})
        elif part.text:
            yield Piece("text", part.text, {})
    for call in message.tool_calls:
        yield Piece("call", call, {})


def foreign_state(message: Message, key: str) -> list[str]:
    """Whose reasoning or parts a message has that vendor `key` cannot take, and what they are; empty as a rule."""
    return [name for name in (message.provider_state or {}) if name != key]


def _kept(message: Message, state: list[Any]) -> list[Piece] | None:
    """The pieces that a state tells of; None where it is not one of this message."""
    parts = [] if isinstance(message.content, str) else message.content
    files = [part for part in parts if not isinstance(part, TextPart)]
    calls = message.tool_calls
    texts = {"text": _Cursor(message.text), "reasoning": _Cursor(message.reasoning or "")}
    found: list[Piece] = []
    places: dict[str, list[int]] = {"call": [], "file": []}
    for item in state:
        piece = object_of(item)
        kind = next((kind for kind in _KINDS if kind in piece), None)
        value, extra = piece.get(kind or ""), object_of(piece.get("extra"))
        if kind == "raw" and isinstance(value, dict):
            found.append(Piece("raw", cast("dict[str, Any]", value), {}))
        elif (kind == "text" or kind == "reasoning") and type(value) is int and value >= 0:
            found.append(Piece(kind, texts[kind].next(value), extra))
        elif (kind == "call" or kind == "file") and type(value) is int:
            of: Sequence[ToolCall | ImagePart | FilePart] = calls if kind == "call" else files
            if not 0 <= value < len(of):
                return None
            places[kind].append(value)
            found.append(Piece(kind, of[value], extra))
        else:
            return None
    if not texts["text"].over or sorted(places["call"]) != [*range(len(calls))] or len(places["file"]) != len(files):
        return None
    # Reasoning that is not what it was has a signature that no longer fits.
    return found if texts["reasoning"].over else [piece for piece in found if piece.kind != "reasoning"]


class _Cursor:
    """Gives a text piece by piece."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    @property
    def over(self) -> bool:
        """Whether the pieces were as long as the text."""
        return self._at == len(self._text)

    def next(self, length: int) -> str:
        """The next piece."""
        self._at += length
        return self._text[self._at - length : self._at]
