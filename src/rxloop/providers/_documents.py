"""Whether a JSON document of a vendor's is safe to read, judged by its bytes: a few of them can become many objects."""

from __future__ import annotations

import re
from itertools import accumulate

from rxloop.providers.bounds import Bounds, OutOfBounds

SMALL = 2**16
"""Bytes of a document whose objects take no memory to speak of, whatever they are."""
BEGINNING = 2**14
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_STEPS = [0] * 256
for _byte in b"[{":
    _STEPS[_byte] = 1
for _byte in b"]}":
    _STEPS[_byte] = -1


def check_document(data: bytes, bounds: Bounds) -> None:
    """See that a document has no more values, and is nested no deeper, than the bounds say.

    What is not JSON passes, unless it looks like too much of it: the parser refuses it.

    Raises:
        OutOfBounds: It has, or it is.
    """
    if len(data) > bounds.document:
        raise OutOfBounds("document", bounds.document)
    opened = data.count(b"[") + data.count(b"{")
    large = len(data) > SMALL and opened + data.count(b",") > bounds.values
    if not large and opened <= bounds.depth:
        return
    # What is very deep is so at once, as a rule, and takes no time then.
    if opened > bounds.depth and _depth(_STRING.sub(b"", data[:BEGINNING])) > bounds.depth:
        raise OutOfBounds("depth", bounds.depth)
    # A text of code may have as many of these inside its strings, which are left out; too many strings are values, too.
    if data.count(b'"') - data.count(b'\\"') > 2 * bounds.values:
        raise OutOfBounds("values", bounds.values)
    bare = _STRING.sub(b"", data)
    opened = bare.count(b"[") + bare.count(b"{")
    if opened + bare.count(b",") > bounds.values:
        raise OutOfBounds("values", bounds.values)
    if opened > bounds.depth and _depth(bare) > bounds.depth:
        raise OutOfBounds("depth", bounds.depth)


def values_in(data: bytes) -> int:
    """About how many values a document has, those inside of a text that is a document itself included."""
    bare = _STRING.sub(b"", data)
    if not bare.strip():
        bare = data
    return bare.count(b"[") + bare.count(b"{") + bare.count(b",")


def _depth(bare: bytes) -> int:
    brackets = bare.translate(None, _NO_BRACKETS)
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0)
