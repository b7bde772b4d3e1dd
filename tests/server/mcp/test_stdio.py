"""Lines of stdin."""

from __future__ import annotations

import asyncio
import os

from rxloop.server.mcp.stdio import _decode_line, _LineReader


async def read_lines(*chunks: bytes) -> list[str]:
    read_end, write_end = os.pipe()

    def write() -> None:
        for chunk in chunks:
            os.write(write_end, chunk)
        os.close(write_end)

    writing_task = asyncio.create_task(asyncio.to_thread(write))
    lines = [line async for line in _LineReader(read_end)]
    await writing_task
    os.close(read_end)
    return lines


async def test_lines_are_joined_from_any_pieces() -> None:
    assert await read_lines(b'{"a"', b": 1}\n\n  \n{", b"}\r\n[1]") == ['{"a": 1}', "{}\r", "[1]"]


async def test_line_may_be_long() -> None:
    [line] = await read_lines(*[b"x" * 60_000] * 50)
    assert len(line) == 3_000_000


def test_invalid_characters_become_replacement_characters() -> None:
    assert _decode_line(rb'{"a": "\ud800", "b": "\ud83c\udf3f"}') == '{"a": "\ufffd", "b": "🌿"}'
    assert _decode_line(b'{"a": "\xff"}') == '{"a": "\ufffd"}'
    assert _decode_line(rb'{"a": "\ud800"') == r'{"a": "\ud800"'
