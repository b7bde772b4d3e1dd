from __future__ import annotations

import gzip
import zlib

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxloop.support.decompression import PIECE, Inflater, inflater


def decompress(encoding: str, *pieces: bytes) -> bytes:
    undo = Inflater(encoding)
    found = b""
    for piece in pieces:
        undo.feed(piece)
        while taken := undo.take():
            assert len(taken) <= PIECE
            found += taken
    return found


def compress_raw(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-15)
    return compressor.compress(data) + compressor.flush()


@given(st.binary(max_size=300), st.integers(1, 50))
def test_compressed_data_is_decoded_at_any_read_boundaries(data: bytes, size: int) -> None:
    for encoding, compressed in (
        ("gzip", gzip.compress(data)),
        ("GZIP", gzip.compress(data[:9]) + gzip.compress(data[9:])),
        ("deflate", zlib.compress(data)),
        ("deflate", compress_raw(data)),
    ):
        assert decompress(encoding, *(compressed[at : at + size] for at in range(0, len(compressed), size))) == data


def test_high_compression_is_returned_in_small_pieces() -> None:
    assert decompress("gzip", gzip.compress(b"x" * 10 * PIECE)) == b"x" * 10 * PIECE


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_invalid_data_is_a_decoding_error(encoding: str) -> None:
    with pytest.raises(httpx.DecodingError):
        decompress(encoding, b"data: no\n\n")


@pytest.mark.parametrize("encoding", [None, "", "identity", " Identity "])
def test_identity_encoding_needs_no_decoder(encoding: str | None) -> None:
    assert inflater(encoding) is None


def test_unsupported_encoding_is_named() -> None:
    with pytest.raises(httpx.DecodingError, match="got 'br' although 'identity' was requested"):
        inflater("br")
