"""Pictures of the viewer in README.md, and the script that creates them."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
MAX_BYTES = 150_000


@pytest.fixture(scope="module")
def script() -> Any:
    """Module of the script."""
    spec = importlib.util.spec_from_file_location("viewer_screen", ROOT / "scripts/viewer_screen.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    path = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = path
    return module


def read_size(data: bytes) -> tuple[int, int]:
    """Return the size of a WebP picture with an extended header, as Chromium writes it."""
    assert (data[:4], data[8:16]) == (b"RIFF", b"WEBPVP8X")
    return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1


def test_readme_shows_small_pictures_of_both_themes(script: Any) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for path in script.README.values():
        data = path.read_bytes()
        assert len(data) < MAX_BYTES
        assert read_size(data) == (script.SIZE["width"], script.SIZE["height"])
        assert readme.count(f'"{path.relative_to(ROOT).as_posix()}"') == 1


@pytest.mark.service("chromium")
def test_script_creates_pictures_that_differ_by_theme(script: Any) -> None:
    log = script.MemoryEventLog()
    task_id = script.record_weather_run(log)
    pictures = [asyncio.run(script.take_picture(log, task_id, theme, is_webp=True)) for theme in ("dark", "light")]
    assert pictures[0] != pictures[1]
    for data in pictures:
        assert len(data) < MAX_BYTES
        assert read_size(data) == (script.SIZE["width"], script.SIZE["height"])
