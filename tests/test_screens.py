"""Recording of terminal screens for the documents."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def scripts() -> Any:
    """Modules of the recorder and of the site."""
    folders = [str(ROOT / "scripts"), str(ROOT / "scripts/website")]
    sys.path[:0] = folders
    try:
        import pages  # pyright: ignore[reportMissingImports]
        import screens  # pyright: ignore[reportMissingImports]
    finally:
        del sys.path[: len(folders)]
    return SimpleNamespace(pages=pages, screens=screens)


def test_screen_shows_the_output_with_colours_and_without_a_status_line(scripts: Any, tmp_path: Path) -> None:
    (tmp_path / "weather.py").write_text(scripts.screens._PROGRAM)
    recording = scripts.screens.RECORDINGS["run"]
    svg = scripts.screens.to_svg(scripts.screens.record(recording, tmp_path), recording.command)
    texts = [element.text or "" for element in ET.fromstring(svg).iter() if element.tag.endswith("text")]
    shown = " ".join(texts).replace("\xa0", " ")
    assert "$  rxloop run" in shown
    assert "Oslo is warmer than Bergen, by 5 °C." in shown
    assert "completed" in shown
    assert "waiting for the model" not in shown
    assert len(set(re.findall(r"fill: #[0-9a-f]{6}", svg))) >= 3
    assert "@font-face" not in svg
    assert str(ROOT) not in svg


def test_failed_command_is_reported_with_its_screen(scripts: Any, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"exited with code 2:\nrxloop: unknown model"):
        scripts.screens.record(scripts.screens.Recording("rxloop models nope"), tmp_path)


def test_screens_are_added_where_a_document_names_them(scripts: Any) -> None:
    text = "before\n\n<!-- screen: run -->\n\nafter\n"
    shown = scripts.pages.add_screens(text, {"run.svg", "running.svg"})
    assert shown == "before\n\n![Screen of rxloop run](assets/run.svg)\n\nafter\n"
    picture = scripts.pages.add_screens("<!-- screen: view -->", {"view.png"})
    assert picture == "![Screen of rxloop view](assets/view.png)"
    assert scripts.pages.add_screens(text, set()) == "before\n\n\n\nafter\n"


def test_document_shows_all_recorded_screens(scripts: Any) -> None:
    named = re.findall(r"<!-- screen: (\w+) -->", (ROOT / "docs/command.md").read_text(encoding="utf-8"))
    assert sorted(named) == sorted(scripts.screens.RECORDINGS)
