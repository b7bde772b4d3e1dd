"""In which pieces and under which changes a recorded answer is sent: one way that its name draws, or every one."""

from __future__ import annotations

import os
import zlib
from typing import Any

from support.vendors.recordings import body

EVERY_WAY = os.environ.get("RXLOOP_RECORDINGS") == "all"
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
"""From here on an answer is too long to be sent byte by byte."""


def ways(conversation: Any, number: int) -> list[tuple[str, str]]:
    """In which pieces and which shape an exchange is to be sent."""
    exchange = conversation["exchanges"][number]
    if not exchange["stream"] or exchange["response"]["status"] >= 400:
        return [("whole", "as recorded")]
    modes = MODES if len(body(exchange)) < LARGE else MODES[:-1]
    every = [(mode, shape) for mode in modes for shape in SHAPES]
    return every if EVERY_WAY else [every[zlib.crc32(f"{conversation['id']}/{number}".encode()) % len(every)]]
