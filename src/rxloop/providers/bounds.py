"""What a vendor may send: bounds that real answers never meet."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The most that the answer to one request may be; whoever is at the address cannot fill the memory with more.

    The defaults are far above what models write. What is above a bound is a `ProviderProtocolError` that names it.
    """

    head: int = 2**16
    """Bytes of the status and the headers, interim answers included."""
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
    "head": "a head of more than {:,} bytes",
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
