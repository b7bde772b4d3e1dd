"""Variants for replaying recorded responses."""

from __future__ import annotations

import os
import zlib
from typing import Any

from support.vendors.recordings import body

ALL_VARIANTS = os.environ.get("RXLOOP_RECORDINGS") == "all"
MODES = ("whole", "split", "random", "lines", "byte")
SHAPES: dict[str, dict[str, Any]] = {
    "as recorded": {},
    "CRLF": {"newline": "crlf"},
    "bare CR": {"newline": "cr"},
    "comments": {"inject": ("comment",)},
    "BOM": {"inject": ("bom",)},
    "all at once": {"newline": "crlf", "inject": ("comment", "bom", "nospace")},
}
LARGE = 20_000
"""Size from which responses are no longer replayed byte by byte."""


def replay_variants(conversation: Any, number: int) -> list[tuple[str, str]]:
    """List the modes and shapes for replaying an exchange."""
    exchange = conversation["exchanges"][number]
    if not exchange["stream"] or exchange["response"]["status"] >= 400:
        return [("whole", "as recorded")]
    modes = MODES if len(body(exchange)) < LARGE else MODES[:-1]
    every = [(mode, shape) for mode in modes for shape in SHAPES]
    return every if ALL_VARIANTS else [every[zlib.crc32(f"{conversation['id']}/{number}".encode()) % len(every)]]
