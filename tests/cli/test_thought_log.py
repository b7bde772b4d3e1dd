"""Boxes and background thread of the thought log."""

from __future__ import annotations

import io
import os
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from rxloop.cli.commands import mcp
from rxloop.cli.commands.mcp import ThoughtLog, format_box, is_thought_log_enabled
from rxloop.storage import MemoryArtifacts
from rxloop.thinking import ThinkingSessions, ThoughtResult


async def make_results(*thoughts: dict[str, Any]) -> list[ThoughtResult]:
    sessions = ThinkingSessions(MemoryArtifacts(), max_length=1_000_000)
    basis = {"thought": "So.", "nextThoughtNeeded": True, "thoughtNumber": 2, "totalThoughts": 3}
    return [await sessions.think({**basis, **each}, session_id="s") for each in thoughts]


def draw(result: ThoughtResult, *, width: int = 60, colour: bool = False) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width, force_terminal=colour, color_system="standard" if colour else None).print(
        format_box(result)
    )
    return file.getvalue().splitlines()


@pytest.mark.parametrize(
    ("fields", "title"),
    [
        ({}, "💭 Thought 2/3 ─"),
        ({"isRevision": True, "revisesThought": 1}, "🔄 Revision 2/3 (revising thought 1) ─"),
        ({"revisesThought": 1}, "🔄 Revision 2/3 (revising thought 1) ─"),
        # T16
        ({"isRevision": True}, "🔄 Revision 2/3 ─"),
        ({"branchFromThought": 1, "branchId": "a"}, "🌿 Branch 2/3 (from thought 1, ID: a) ─"),
        ({"branchFromThought": 1}, "🌿 Branch 2/3 (from thought 1) ─"),
        ({"branchId": "a"}, "💭 Thought 2/3 ─"),
    ],
)
async def test_title_contains_the_kind_of_thought(fields: dict[str, Any], title: str) -> None:
    [result] = await make_results(fields)
    lines = draw(result)
    assert title in lines[0]
    assert "None" not in "".join(lines)


async def test_later_thought_of_a_branch_names_the_branch() -> None:
    results_ = await make_results({"branchFromThought": 1, "branchId": "a"}, {"branchId": "a"})
    assert "🌿 Branch 2/3 (ID: a) ─" in draw(results_[1])[0]


@pytest.mark.parametrize("text", ["word " * 200, "x" * 500, "思考" * 100, "🌿 " * 90, "e\u0301" * 200, "a\tb\nc\r\n"])
async def test_long_thought_is_wrapped_inside_its_box(text: str) -> None:
    [result] = await make_results({"thought": text})
    assert {cell_len(line) for line in draw(result)} == {60}


async def test_huge_thought_is_truncated() -> None:
    [result] = await make_results({"thought": "x" * 1_000_000})
    lines = draw(result)
    assert len(lines) < 50
    assert "998,000 more characters" in " ".join(line.strip("│ ") for line in lines)


async def test_control_characters_are_escaped() -> None:
    [result] = await make_results({"thought": "\x1b[2Jred\x07\x9b", "branchFromThought": 1, "branchId": "a\x1b]0;b"})
    text = "".join(draw(result))
    assert "red" in text
    assert not any(ord(char) < 32 or 0x7F <= ord(char) < 0xA0 for char in text)


async def test_rich_markup_is_printed_verbatim() -> None:
    [result] = await make_results({"thought": "[red]not red[/red] :tada:", "branchFromThought": 1, "branchId": "[b]"})
    text = "\n".join(draw(result))
    assert "[red]not red[/red] :tada:" in text
    assert "ID: [b]" in text


async def test_every_kind_of_thought_has_its_own_colour() -> None:
    kinds = await make_results({}, {"isRevision": True}, {"branchFromThought": 1, "branchId": "a"})
    assert len({draw(result, colour=True)[-1].split("╰")[0] for result in kinds}) == 3


@pytest.mark.parametrize(
    ("value", "logged"), [(None, True), ("", True), ("1", True), ("yes", True), ("true", False), ("TRUE", False)]
)
def test_only_true_disables_the_thought_log(value: str | None, logged: bool) -> None:
    # T22
    assert is_thought_log_enabled({} if value is None else {"DISABLE_THOUGHT_LOGGING": value}) is logged


async def test_log_is_flushed_on_exit() -> None:
    file = io.StringIO()
    with ThoughtLog(Console(file=file, width=60)) as log:
        for result in await make_results(*({"thought": f"number {n}"} for n in range(50))):
            log(result)
    assert [f"number {n} " in file.getvalue() for n in range(50)] == [True] * 50


async def test_blocked_reader_does_not_block_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp, "_GRACE", 0.05)
    [result] = await make_results({"thought": "x" * 2_000})
    reading, writing = os.pipe()
    with os.fdopen(writing, "w", encoding="utf-8") as file:
        with ThoughtLog(Console(file=file, width=60)) as log:
            for _ in range(3_000):
                log(result)
        # The blocked write of the thread fails when the pipe is closed.
        os.close(reading)
        log.join()


async def test_closed_stream_ends_only_the_log() -> None:
    [result] = await make_results({})
    file = io.StringIO()
    with ThoughtLog(Console(file=file, width=60)) as log:
        file.close()
        log(result)
        log(result)
