from __future__ import annotations

import gzip
import zlib

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxloop.providers.transport.decompression import PIECE, Inflater, inflater


def undone(encoding: str, *pieces: bytes) -> bytes:
    undo = Inflater(encoding)
    found = b""
    for piece in pieces:
        undo.feed(piece)
        while taken := undo.take():
            assert len(taken) <= PIECE
            found += taken
    return found


def raw(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-15)
    return compressor.compress(data) + compressor.flush()


@given(st.binary(max_size=300), st.integers(1, 50))
def test_what_was_compressed_comes_out_wherever_it_is_cut(data: bytes, size: int) -> None:
    for encoding, compressed in (
        ("gzip", gzip.compress(data)),
        ("GZIP", gzip.compress(data[:9]) + gzip.compress(data[9:])),
        ("deflate", zlib.compress(data)),
        ("deflate", raw(data)),
    ):
        assert undone(encoding, *(compressed[at : at + size] for at in range(0, len(compressed), size))) == data


def test_few_bytes_come_out_as_many_small_pieces() -> None:
    assert undone("gzip", gzip.compress(b"x" * 10 * PIECE)) == b"x" * 10 * PIECE


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_what_is_not_what_it_says_cannot_be_decoded(encoding: str) -> None:
    with pytest.raises(httpx.DecodingError):
        undone(encoding, b"data: no\n\n")


@pytest.mark.parametrize("encoding", [None, "", "identity", " Identity "])
def test_there_is_nothing_to_undo_where_nothing_was_done(encoding: str | None) -> None:
    assert inflater(encoding) is None


def test_another_encoding_is_named() -> None:
    with pytest.raises(httpx.DecodingError, match="got 'br' although 'identity' was requested"):
        inflater("br")
