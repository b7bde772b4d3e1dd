"""Limits of one answer: its size, the depth of its JSON, and its time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The most that the answer to one request may be; whoever is at the address cannot fill the memory with more.

    The defaults are far above what models write. What is above a bound is a `ProviderProtocolError` that names it.
    """

    head: int = 2**16
    """Bytes of the status, or of one header, over aiohttp. httpx has a limit of its own: 100 kB for a head."""
    document: int = 4 * 2**20
    """Bytes of one JSON document: an event of a stream, or an answer that is not streamed."""
    values: int = 200_000
    """Values in one such document. Log probabilities of a long answer that is not streamed may be more."""
    depth: int = 100
    """How deep the lists and objects in one such document may be nested."""
    answer: int = 256 * 2**20
    """Bytes of a stream in all, once they are decoded."""
    text: int = 8_000_000
    """Characters of a message in all: its text, its reasoning and the arguments of its calls."""
    arguments: int = 2_000_000
    """Characters of one tool call: its arguments, its name and its id."""
    name: int = 1_000
    """Characters of the name of a tool that is called."""
    argument_values: int = 200_000
    """Values in the arguments of all tool calls of a message together."""
    calls: int = 1_000
    """Tool calls of a message."""


DEFAULT_BOUNDS = Bounds()

_SENT = {
    "head": "a status or a header of more than {:,} bytes",
    "document": "an event or an answer of more than {:,} bytes in one piece",
    "values": "JSON with more than {:,} values in one piece",
    "depth": "JSON that is nested more than {:,} deep",
    "answer": "a stream of more than {:,} bytes",
    "text": "a message of more than {:,} characters",
    "arguments": "a tool call of more than {:,} characters",
    "name": "a name of a tool of more than {:,} characters",
    "argument_values": "tool calls with more than {:,} values in their arguments",
    "calls": "a message with more than {:,} tool calls",
}


class Unreadable(Exception):
    """A vendor sent what nobody can read; whoever knows the vendor makes a `ProviderProtocolError` of it."""


class OutOfBounds(Unreadable):
    """A vendor sent more than a bound lets through."""

    def __init__(self, name: str, bound: int) -> None:
        super().__init__(f"{_SENT[name].format(bound)}; if that is right, raise it: bounds=Bounds({name}=...)")


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


VALUE_WEIGHT = 30
"""Characters that a value counts for where it is kept as it came, since many of them are short in JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """The seconds that a model call may take; None is no limit, except for `event`."""

    connect: float | None = 10.0
    """Until there is a connection."""
    key: float | None = 30.0
    """Until an `async` function that `api_key=` or `sign=` calls has given the key or the signature."""
    idle: float | None = 60.0
    """Without a single byte, before a stream begins and while it goes on."""
    answer: float | None = 600.0
    """The same for an answer that is not streamed: it comes in one piece."""
    event: float | None = None
    """Without a single event of the answer, even if something else comes, such as comments that keep the connection
    open; None is ten times `idle`, or `answer`. An answer that is not streamed counts as one event."""
    total: float | None = 3600.0
    """From the request to the end of the answer, including retries."""
