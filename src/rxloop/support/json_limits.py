"""Counting of JSON values and levels before a document is parsed."""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Literal

_BEGINNING = 2**14
"""Size in bytes of the start of a document that is checked first."""

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)

_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")

_STEPS = [0] * 256

for _byte in b"[{":
    _STEPS[_byte] = 1

for _byte in b"]}":
    _STEPS[_byte] = -1


def find_excess(data: bytes, *, values: int, depth: int) -> Literal["values", "depth"] | None:
    """Return the name of the first limit that a JSON document exceeds.

    Invalid JSON passes unless it looks too large. The parser rejects it later.

    Args:
        data: JSON document.
        values: Maximum number of values, counted approximately.
        depth: Maximum nesting depth.
    """
    opened = data.count(b"[") + data.count(b"{")
    if opened <= depth and opened + data.count(b",") <= values:
        return None
    # Very deep documents are usually deep from the start, so checking only the start is fast.
    if opened > depth and _measure_depth(_STRING.sub(b"", data[:_BEGINNING])) > depth:
        return "depth"
    # Brackets and commas inside of strings, as in code, do not count. Each string is a value, so their number is
    # limited too.
    if data.count(b'"') - data.count(b'\\"') > 2 * values:
        return "values"
    bare = _STRING.sub(b"", data)
    opened = bare.count(b"[") + bare.count(b"{")
    if opened + bare.count(b",") > values:
        return "values"
    return "depth" if opened > depth and _measure_depth(bare) > depth else None


def count_values(data: bytes, limit: int) -> int:
    """Return the approximate number of values in a document, including values in a string that contains a document.

    Args:
        data: JSON document.
        limit: Number above which the values are not counted precisely, because that would take long.
    """
    if data.count(b'"') - data.count(b'\\"') > 2 * limit:
        return limit + 1
    bare = _STRING.sub(b"", data)
    if not bare.strip():
        bare = data
    return bare.count(b"[") + bare.count(b"{") + bare.count(b",")


def _measure_depth(bare: bytes) -> int:
    """Return the nesting depth of a document without strings."""
    brackets = bare.translate(None, _NO_BRACKETS)
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0)
