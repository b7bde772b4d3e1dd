"""Streams in pieces, as the reads of a socket give them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hypothesis import strategies as st

from rxloop.providers.bounds import Unreadable


class Decoder(Protocol):
    """What cuts the bytes of a stream into payloads."""

    def feed(self, data: bytes) -> list[bytes]: ...

    def flush(self) -> list[bytes]: ...


@st.composite
def cut(draw: st.DrawFn, stream: bytes) -> list[bytes]:
    """A stream, cut at any places."""
    places = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    return [stream[a:b] for a, b in zip([0, *places], [*places, len(stream)], strict=True)]


def bytewise(stream: bytes) -> list[bytes]:
    """A stream, one byte at a time."""
    return [stream[i : i + 1] for i in range(len(stream))]


def decoded(decoder: Decoder, pieces: Sequence[bytes]) -> tuple[list[bytes], str | None]:
    """The payloads of a stream, and what was wrong with it."""
    found: list[bytes] = []
    try:
        for piece in pieces:
            found += decoder.feed(piece)
        found += decoder.flush()
    except Unreadable as error:
        return found, str(error)
    return found, None
