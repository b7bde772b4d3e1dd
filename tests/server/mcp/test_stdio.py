"""Lines of stdin."""

from __future__ import annotations

import asyncio
import os

from rxloop.server.mcp.stdio import _line, _Lines


async def read(*pieces: bytes) -> list[str]:
    reading, writing = os.pipe()

    def write() -> None:
        for piece in pieces:
            os.write(writing, piece)
        os.close(writing)

    written = asyncio.create_task(asyncio.to_thread(write))
    found = [line async for line in _Lines(reading)]
    await written
    os.close(reading)
    return found


async def test_lines_are_put_together_whatever_the_pieces() -> None:
    assert await read(b'{"a"', b": 1}\n\n  \n{", b"}\r\n[1]") == ['{"a": 1}', "{}\r", "[1]"]


async def test_a_line_may_be_long() -> None:
    [line] = await read(*[b"x" * 60_000] * 50)
    assert len(line) == 3_000_000


def test_half_a_character_becomes_a_replacement_character() -> None:
    assert _line(rb'{"a": "\ud800", "b": "\ud83c\udf3f"}') == '{"a": "\ufffd", "b": "🌿"}'
    assert _line(b'{"a": "\xff"}') == '{"a": "\ufffd"}'
    assert _line(rb'{"a": "\ud800"') == r'{"a": "\ud800"'
