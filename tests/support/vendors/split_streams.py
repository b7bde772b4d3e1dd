"""Streams split into socket reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hypothesis import strategies as st

from rxloop.providers.bounds import Unreadable


class Decoder(Protocol):
    """Decoder of a byte stream into payloads."""

    def feed(self, data: bytes) -> list[bytes]: ...

    def flush(self) -> list[bytes]: ...


@st.composite
def split_stream(draw: st.DrawFn, stream: bytes) -> list[bytes]:
    """Split a stream at arbitrary positions."""
    places = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    return [stream[a:b] for a, b in zip([0, *places], [*places, len(stream)], strict=True)]


def split_bytes(stream: bytes) -> list[bytes]:
    """Split a stream into single bytes."""
    return [stream[i : i + 1] for i in range(len(stream))]


def decode_pieces(decoder: Decoder, pieces: Sequence[bytes]) -> tuple[list[bytes], str | None]:
    """Parse a stream into payloads and an optional error message."""
    found: list[bytes] = []
    try:
        for piece in pieces:
            found += decoder.feed(piece)
        found += decoder.flush()
    except Unreadable as error:
        return found, str(error)
    return found, None
