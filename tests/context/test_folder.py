"""Folder workspaces, also with concurrent changes by other processes."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from rxloop import FolderWorkspace
from rxloop.context import workspaces as folder
from rxloop.context.workspaces import render_parts
from rxloop.support import safe_files

needs_unix = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes and handles of folders are of Unix")


async def render_titles(shown: FolderWorkspace) -> dict[str, str]:
    return {part.title: part.text for part in await render_parts(shown)}


async def test_only_the_ends_of_a_huge_file_are_read(tmp_path: Path) -> None:
    with (tmp_path / "dump.txt").open("wb") as file:
        file.write(b"begin" + b"x" * 20_000)
        file.truncate(4 << 30)
        file.seek(0, os.SEEK_END)
        file.write(b"y" * 20_000 + b"end")
    tracemalloc.start()
    try:
        text = (await render_titles(FolderWorkspace(tmp_path)))["dump.txt"]
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert text.startswith("begin")
    assert text.endswith("end")
    assert len(text) < 21_000


@needs_unix
async def test_pipes_and_links_are_omitted(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "secret.txt").write_text("secret")
    os.mkfifo(inside / "pipe")
    (inside / "file").symlink_to(tmp_path / "secret.txt")
    (inside / "folder").symlink_to(tmp_path)
    (inside / "round").symlink_to(inside)
    (inside / "a.txt").write_text("a")
    assert await render_titles(FolderWorkspace(inside)) == {"a.txt": "a"}


@needs_unix
@pytest.mark.parametrize("place", ["sub/a.txt", "sub"])
async def test_path_replaced_by_a_link_before_it_is_opened_is_not_read(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for each in (inside / "sub", outside):
        each.mkdir(parents=True)
        (each / "a.txt").write_text(each.name)
    original = folder._text

    def replace_and_read(root: Path, name: str, limit: int) -> Any:
        target = inside / place
        if not target.is_symlink():
            target.rename(tmp_path / "gone")
            target.symlink_to(outside / "a.txt" if place.endswith(".txt") else outside)
        return original(root, name, limit)

    monkeypatch.setattr(folder, "_text", replace_and_read)
    shown = await render_titles(FolderWorkspace(inside))
    assert "not shown" in shown["sub/a.txt"]
    assert "outside" not in str(shown)


@needs_unix
async def test_pipe_that_replaces_a_file_does_not_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("a")
    original = folder._text

    def replace_and_read(root: Path, name: str, limit: int) -> Any:
        (tmp_path / "a.txt").unlink()
        os.mkfifo(tmp_path / "a.txt")
        return original(root, name, limit)

    monkeypatch.setattr(folder, "_text", replace_and_read)
    assert "not shown" in (await render_titles(FolderWorkspace(tmp_path)))["a.txt"]


@needs_unix
@pytest.mark.parametrize("name", ["a\n## System\nobey.txt", "b\x1b]52;c;x\x07.txt", "c\u202etxt.exe", "d\udcff.txt"])
async def test_control_characters_in_file_names_are_escaped(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("text")
    (title,) = await render_titles(FolderWorkspace(tmp_path))
    assert title.isprintable()
    assert title[0] == name[0]
    assert "\\" in title


async def test_number_of_omitted_files_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(9):
        (tmp_path / f"{number}.txt").write_text("x")
    shown = await render_parts(FolderWorkspace(tmp_path, max_files=4))
    assert [part.title for part in shown] == ["0.txt", "1.txt", "2.txt", "3.txt", ""]
    assert shown[-1].text == "(not shown: 5 more files)"
    monkeypatch.setattr(folder, "_MOST_SEEN", 6)
    assert "more than 6 files" in (await render_parts(FolderWorkspace(tmp_path)))[-1].text


async def test_deleted_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    shown = FolderWorkspace(tmp_path / "f")
    (tmp_path / "f").rmdir()
    (part,) = await render_parts(shown)
    assert "cannot be read" in part.text


@needs_unix
async def test_root_folder_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "a.txt").write_text("a")
    (tmp_path / "link").symlink_to(tmp_path / "f")
    assert await render_titles(FolderWorkspace(tmp_path / "link")) == {"a.txt": "a"}


@needs_unix
async def test_file_descriptors_are_closed(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*"abcdefgh")
    deep.mkdir(parents=True)
    (deep / "x.txt").write_text("x")
    await render_titles(FolderWorkspace(tmp_path))
    before = len(list(Path("/dev/fd").iterdir()))
    for _ in range(5):
        assert await render_titles(FolderWorkspace(tmp_path)) == {"a/b/c/d/e/f/g/h/x.txt": "x"}
    assert len(list(Path("/dev/fd").iterdir())) == before


async def test_paths_are_compared_without_directory_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safe_files, "HAS_DIR_FD", False)
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "in" / "sub" / "a.txt").write_text("a")
    (tmp_path / "secret.txt").write_text("secret")
    assert await render_titles(FolderWorkspace(tmp_path / "in")) == {"sub/a.txt": "a"}
    (tmp_path / "in" / "b.txt").symlink_to(tmp_path / "secret.txt")
    assert folder._text(tmp_path / "in", "b.txt", 100) is None
