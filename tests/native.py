"""The vendors' own APIs in the recordings: who asks for them, and what the words of their SDKs mean in ours.

A new wire adds its row to `NATIVE`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from recorded import Make


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What an answer says, according to the vendor's own SDK."""

    text: str
    reasoning: str
    calls: list[tuple[str | None, str, Any]]
    """The id, if the vendor gives one, the name, and the arguments as an object."""
    finish: str | None
    """The vendor's own word."""
    usage: tuple[int, int, int, int, int] | None
    """The tokens of the input, all of them, and of the output; cached, cache written, of reasoning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Native:
    """One API in the recordings."""

    api: str
    """What stands in the names of its recordings: `msgs`, `gen`, `resp`."""
    make: Make
    """Makes the provider of an exchange."""
    told: Callable[[dict[str, Any]], Told]
    """Reads an exchange of the oracle."""
    differ: Mapping[str, str] = field(default_factory=dict[str, str])
    """What is meant to differ, with the reason: by the name of the recording, the number of the exchange, and what
    differs, with slashes between."""


NATIVE: dict[str, Native] = {}
"""By the name of the API in the recordings."""
