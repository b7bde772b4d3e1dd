"""Rendering of workspaces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rxloop import Agent, FolderWorkspace, RunError, Scratchpad, op
from rxloop.context import CompositeWorkspace, TextWorkspace
from rxloop.context.workspaces import render_parts
from rxloop.errors import ConfigurationError
from rxloop.testing import ScriptedModel


async def render_titles(folder: FolderWorkspace) -> dict[str, str]:
    return {part.title: part.text for part in await render_parts(folder)}


async def test_folder_shows_current_text_files_in_order(tmp_path: Path) -> None:
    # T91
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "b.py").write_text("b = 1")
    (tmp_path / "a.md").write_text("# A")
    (tmp_path / ".secret").write_text("no")
    (tmp_path / "image.bin").write_bytes(b"\0\1\2")
    (tmp_path / "link").symlink_to(tmp_path / "a.md")
    folder = FolderWorkspace(tmp_path)
    shown = await render_titles(folder)
    assert list(shown) == ["a.md", "image.bin", "src/b.py"]
    assert shown["src/b.py"] == "b = 1"
    assert "not shown" in shown["image.bin"]
    (tmp_path / "a.md").write_text("# B")
    assert (await render_titles(folder))["a.md"] == "# B"


async def test_folder_shows_only_selected_files(tmp_path: Path) -> None:
    for name in ("a.py", "test_a.py", "b.txt"):
        (tmp_path / name).write_text(name)
    folder = FolderWorkspace(tmp_path, ["*.py"], exclude=["test_*"], kind="static")
    (part,) = await render_parts(folder)
    assert (part.title, part.kind) == ("a.py", "static")


async def test_middle_of_a_long_file_is_omitted(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("ä" * 600 + "é" * 600)
    (tmp_path / "more.txt").write_text("x" * 500)
    shown = await render_titles(FolderWorkspace(tmp_path, max_bytes=1_000, max_total=1_200))
    assert shown["long.txt"].startswith("ää")
    assert shown["long.txt"].endswith("éé")
    assert "[... 1400 bytes left out ...]" in shown["long.txt"]
    assert len(shown["more.txt"]) < 250


@pytest.mark.parametrize("content", [None, 3, [None], ["text"], {"a": "b"}])
async def test_workspace_with_invalid_content_is_named(content: Any) -> None:
    class Notes:
        def render(self) -> Any:
            return content

    remedy = r"Notes\.render\(\) must return a string or a sequence of WorkspacePart, got .*; return"
    with pytest.raises(ConfigurationError, match=remedy):
        await render_parts(Notes())
    agent = Agent(ScriptedModel("Hi"), loop=op.standard(before_model=[op.workspace(Notes())]))
    with pytest.raises(RunError, match=remedy):
        await agent.run("Hi")


def test_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is not a folder"):
        FolderWorkspace(tmp_path / "nowhere")


async def test_scratchpad_keeps_the_latest_entries() -> None:
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


async def test_workspaces_can_be_combined() -> None:
    both = CompositeWorkspace(TextWorkspace("rules", title="House"), CompositeWorkspace(Scratchpad({"k": "v"})))
    parts = [(part.title, part.kind) for part in await render_parts(both)]
    assert parts == [("House", "static"), ("Scratchpad", "live")]
