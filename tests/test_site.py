"""Build and links of the documentation site."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import griffe
import pytest
from typing_extensions import override

import rxloop
from rxloop import op
from support.browser import until
from support.markdown_links import find_links

if TYPE_CHECKING:
    from playwright.async_api import Page as BrowserPage

ROOT = Path(__file__).parents[1]
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "link": "href"}


class Page(HTMLParser):
    """Links, resources and anchors of a page."""

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
    """Build the site without API keys and network access."""
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
    """Folder with the built site."""
    site = tmp_path_factory.mktemp("documents") / "site"
    done = build(ROOT / "mkdocs.yml", site)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert not re.search(r"WARNING|ERROR|Traceback|Warning:", output), output
    return site


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    """Pages by file name."""
    return {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}


@pytest.mark.timeout(300)
def test_links_and_anchors_exist(site: Path, pages: dict[Path, Page]) -> None:
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
def test_pages_load_no_external_resources(pages: dict[Path, Page]) -> None:
    assert {load for page in pages.values() for load in page.loads if urlsplit(load).netloc} == set()
    # The theme would load a library for pages with these elements.
    assert [path for path in pages if 'class="mermaid"' in path.read_text(encoding="utf-8")] == []


@pytest.mark.timeout(300)
def test_every_public_name_has_an_entry_in_the_reference(pages: dict[Path, Page]) -> None:
    anchors = {
        anchor.rpartition(".")[2]
        for path, page in pages.items()
        if "reference" in path.parts
        for anchor in page.anchors
    }
    assert [name for name in rxloop.__all__ if name not in anchors | {"op", "__version__"}] == []
    assert [name for name in op.__all__ if name not in anchors] == []


@pytest.mark.timeout(300)
def test_inherited_members_of_run_and_stream_are_shown(pages: dict[Path, Page]) -> None:
    anchors = {anchor for page in pages.values() for anchor in page.anchors}
    assert anchors >= {"rxloop.run.handle.Run.pipe", "rxloop.stream.stream.Stream.pipe"}


@pytest.mark.timeout(300)
def test_every_operator_page_contains_its_picture(site: Path) -> None:
    made = sorted((site / "reference/op").glob("*.html"))
    assert len(made) > 30
    for path in made:
        text = path.read_text(encoding="utf-8")
        assert text.count('<svg class="marbles"') == (path.stem != "index"), path.name


@pytest.mark.timeout(300)
def test_pages_contain_no_diagram_markers(pages: dict[Path, Page]) -> None:
    assert [path.name for path in pages if "<p>::</p>" in path.read_text(encoding="utf-8")] == []


@pytest.mark.timeout(300)
def test_links_of_text_files_exist(site: Path) -> None:
    files = [site / "llms.txt", site / "llms-full.txt", *site.rglob("*.md")]
    assert len(files) > 60
    dead = [
        f"{file.relative_to(site)}: {link}"
        for file in files
        for link in find_links(file.read_text(encoding="utf-8"))
        if not (parts := urlsplit(link)).scheme and not (file.parent / unquote(parts.path)).exists()
    ]
    assert dead == []


@pytest.mark.timeout(300)
def test_llms_txt_lists_and_describes_all_pages(site: Path) -> None:
    title, summary, size, *sections = (site / "llms.txt").read_text(encoding="utf-8").split("\n\n")
    assert title == "# rxloop"
    assert summary.startswith("> ")
    stated = re.search(r"(\d+) kB", size)
    assert stated
    assert abs(int(stated[1]) - (site / "llms-full.txt").stat().st_size / 1000) < 1
    described = dict(re.findall(r"^- \[[^\]]+\]\((\S+)\): (.+)$", "\n".join(sections), re.MULTILINE))
    missing = {path.name for path in (ROOT / "docs").glob("*.md")} - described.keys()
    assert missing == set(), "each page must start with a sentence"
    assert "## Optional" in sections


@pytest.mark.timeout(300)
def test_llms_full_txt_contains_all_pages_without_hidden_code(site: Path) -> None:
    text = (site / "llms-full.txt").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert page.read_text(encoding="utf-8").partition("\n")[0] in text
    assert "<!--" not in text


@pytest.mark.timeout(300)
@pytest.mark.service("chromium")
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", ["index.html", "reference/op/index.html"])
async def test_search_works_in_pages_opened_as_files(site: Path, page: BrowserPage, name: str) -> None:
    await page.goto(f"{(site / name).as_uri()}?q=superseded+questions")
    links = page.locator(".md-search-result__link")
    await until(page, "document.querySelectorAll('.md-search-result__link').length > 3")
    address = await links.first.evaluate("link => link.href")
    assert Path(unquote(urlsplit(address).path)) == site / "durability.html"


def test_invalid_diagram_fails_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A second build would take several seconds, so load only the module with the diagram, like mkdocstrings.
    monkeypatch.syspath_prepend(ROOT / "scripts/website")
    pictures = griffe.load_extensions(str(ROOT / "scripts/website/pictures.py"))
    name = "rxloop/operators/views/filters.py"
    text = (ROOT / "src" / name).read_text(encoding="utf-8")
    assert "--S--------C--|" in text
    (tmp_path / name).parent.mkdir(parents=True)
    for folder in (Path(name).parents[0], Path(name).parents[1], Path(name).parents[2]):
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / name).write_text(text, encoding="utf-8")
    griffe.load("rxloop", search_paths=[tmp_path], extensions=pictures)
    (tmp_path / name).write_text(text.replace("--S--------C--|", "--S--------C--|-"), encoding="utf-8")
    with pytest.raises(Exception, match="of_type: a stream must not continue after its end"):
        griffe.load("rxloop", search_paths=[tmp_path], extensions=pictures)
