"""Workspaces by themselves: what they render."""

from __future__ import annotations

from pathlib import Path

import pytest

from rxloop import FolderWorkspace, Scratchpad
from rxloop.context import CompositeWorkspace, TextWorkspace
from rxloop.context.workspaces import render_parts
from rxloop.errors import ConfigurationError


async def titles(folder: FolderWorkspace) -> dict[str, str]:
    return {part.title: part.text for part in await render_parts(folder)}


async def test_a_folder_shows_its_text_files_in_order_and_anew_each_time(tmp_path: Path) -> None:
    # T91
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "b.py").write_text("b = 1")
    (tmp_path / "a.md").write_text("# A")
    (tmp_path / ".secret").write_text("no")
    (tmp_path / "image.bin").write_bytes(b"\0\1\2")
    (tmp_path / "link").symlink_to(tmp_path / "a.md")
    folder = FolderWorkspace(tmp_path)
    shown = await titles(folder)
    assert list(shown) == ["a.md", "image.bin", "src/b.py"]
    assert shown["src/b.py"] == "b = 1"
    assert "not shown" in shown["image.bin"]
    (tmp_path / "a.md").write_text("# B")
    assert (await titles(folder))["a.md"] == "# B"


async def test_a_folder_shows_what_was_asked_for(tmp_path: Path) -> None:
    for name in ("a.py", "test_a.py", "b.txt"):
        (tmp_path / name).write_text(name)
    folder = FolderWorkspace(tmp_path, ["*.py"], exclude=["test_*"], kind="static")
    (part,) = await render_parts(folder)
    assert (part.title, part.kind) == ("a.py", "static")


async def test_a_file_that_is_too_long_loses_its_middle(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("ä" * 600 + "é" * 600)
    (tmp_path / "more.txt").write_text("x" * 500)
    shown = await titles(FolderWorkspace(tmp_path, max_bytes=1_000, max_total=1_200))
    assert shown["long.txt"].startswith("ää")
    assert shown["long.txt"].endswith("éé")
    assert "[... 1400 bytes left out ...]" in shown["long.txt"]
    assert len(shown["more.txt"]) < 250


def test_a_folder_has_to_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is not a folder"):
        FolderWorkspace(tmp_path / "nowhere")


async def test_a_scratchpad_keeps_what_was_written_last() -> None:
    pad = Scratchpad({"goal": "win"}, max_length=20)
    pad["a"] = "x" * 10
    pad["goal"] = "win again"
    pad["b"] = "y" * 10
    assert list(pad) == ["goal", "b"]
    (part,) = await render_parts(pad)
    assert (part.title, part.kind, part.text) == ("Scratchpad", "live", "goal: win again\nb: yyyyyyyyyy")
    pad["b"] = ""
    del pad["goal"]
    assert await render_parts(pad) == []


async def test_several_workspaces_are_one() -> None:
    both = CompositeWorkspace(TextWorkspace("rules", title="House"), CompositeWorkspace(Scratchpad({"k": "v"})))
    parts = [(part.title, part.kind) for part in await render_parts(both)]
    assert parts == [("House", "static"), ("Scratchpad", "live")]
