"""The documents build with no warning and no network, and no link in them is dead."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from typing_extensions import override

import rxloop
from rxloop import op

ROOT = Path(__file__).parents[1]
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "link": "href"}


class Page(HTMLParser):
    """What a page links to, what it loads, and where it can be linked to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors.update(values[name] for name in ("id", "name") if name in values)
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if LOADED.get(tag) in values and values.get("rel") not in ("prev", "next", "canonical"):
            self.loads.append(values[LOADED[tag]])


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Build the documents with no key in the environment and no way out of the machine."""
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(config), "--site-dir", str(site)],
        cwd=ROOT,
        env={
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(site.parent),
            "PYTHONPATH": str(ROOT / "src"),
            "PYTHONUTF8": "1",
            "HTTP_PROXY": "http://127.0.0.1:9",
            "HTTPS_PROXY": "http://127.0.0.1:9",
            "NO_MKDOCS_2_WARNING": "1",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built documents."""
    site = tmp_path_factory.mktemp("documents") / "site"
    done = build(ROOT / "mkdocs.yml", site)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert not re.search(r"WARNING|ERROR|Traceback|Warning:", output), output
    return site


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    """Every page, by its file."""
    return {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}


@pytest.mark.timeout(300)
def test_no_link_and_no_anchor_is_dead(site: Path, pages: dict[Path, Page]) -> None:
    dead: list[str] = []
    for path, page in pages.items():
        for link in [*page.links, *page.loads]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            folder = site if parts.path.startswith("/") else path.parent
            target = (folder / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
            if not target.exists():
                dead.append(f"{path.relative_to(site)}: {link}")
            elif parts.fragment and target.suffix == ".html" and unquote(parts.fragment) not in pages[target].anchors:
                dead.append(f"{path.relative_to(site)}: {link} (no such anchor)")
    assert dead == []


@pytest.mark.timeout(300)
def test_nothing_is_loaded_from_elsewhere(pages: dict[Path, Page]) -> None:
    assert {load for page in pages.values() for load in page.loads if urlsplit(load).netloc} == set()
    # The theme would load a library for these when a page has one.
    assert [path for path in pages if 'class="mermaid"' in path.read_text(encoding="utf-8")] == []


@pytest.mark.timeout(300)
def test_every_public_name_has_its_place_in_the_reference(pages: dict[Path, Page]) -> None:
    anchors = {
        anchor.rpartition(".")[2]
        for path, page in pages.items()
        if "reference" in path.parts
        for anchor in page.anchors
    }
    assert [name for name in rxloop.__all__ if name not in anchors | {"op", "__version__"}] == []
    assert [name for name in op.__all__ if name not in anchors] == []


@pytest.mark.timeout(300)
def test_a_run_and_a_stream_are_shown_with_what_they_inherit(pages: dict[Path, Page]) -> None:
    anchors = {anchor for page in pages.values() for anchor in page.anchors}
    assert anchors >= {"rxloop.run.handle.Run.pipe", "rxloop.stream.stream.Stream.pipe"}


@pytest.mark.timeout(300)
def test_every_operator_is_shown_with_its_picture(site: Path) -> None:
    made = sorted((site / "reference/op").glob("*.html"))
    assert len(made) > 30
    for path in made:
        text = path.read_text(encoding="utf-8")
        assert text.count('<svg class="marbles"') == (path.stem != "index"), path.name


@pytest.mark.timeout(300)
def test_no_page_shows_the_mark_of_a_diagram(pages: dict[Path, Page]) -> None:
    assert [path.name for path in pages if "<p>::</p>" in path.read_text(encoding="utf-8")] == []


@pytest.mark.timeout(300)
def test_a_diagram_that_cannot_be_read_fails_the_build(tmp_path: Path) -> None:
    for name in ("docs", "examples", "scripts", "src", "benchmarks"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.db"))
    for name in ("mkdocs.yml", "CONTRIBUTING.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path)
    operator = tmp_path / "src/rxloop/operators/views/filters.py"
    operator.write_text(
        operator.read_text(encoding="utf-8").replace("--S--------C--|", "--S--------C--|-"), encoding="utf-8"
    )
    done = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode != 0
    assert "the diagram of of_type: nothing follows an end" in done.stdout + done.stderr
