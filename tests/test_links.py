"""Link checker for Markdown files in the repository.

It checks that linked files and anchors exist, and that external addresses are valid. `test_site.py` checks the links of
the built site, because mkdocs changes paths and anchors.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from support.markdown_links import CODE, find_links

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    {
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
        *(ROOT / "src").rglob("*.md"),
        *(ROOT / "tests").glob("*.md"),
    }
)
HEADING = re.compile(r"^#{1,6} +(.+?)(?: +\{#(?P<id>[\w-]+)\})? *#* *$", re.MULTILINE)
HOST = re.compile(r"(?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\.)+[a-z]{2,}")
LOOPBACK = re.compile(r"localhost|127\.0\.0\.1")


def make_anchor(title: str) -> str:
    """Return the anchor that GitHub assigns to a heading."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "").lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


@cache
def find_anchors(page: Path) -> frozenset[str]:
    """Return all anchors of a page, with numbers for repeated headings."""
    text = CODE.sub("", page.read_text(encoding="utf-8"))
    anchors = set(re.findall(r"\b(?:id|name)=\"([^\"]+)\"", text))
    counts: Counter[str] = Counter()
    for match in HEADING.finditer(text):
        anchor = match["id"] or make_anchor(match[1])
        anchors.add(f"{anchor}-{counts[anchor]}" if counts[anchor] else anchor)
        counts[anchor] += 1
    return frozenset(anchors)


def find_problem(page: Path, link: str) -> str | None:
    """Return a description of the problem if the link is invalid."""
    parts = urlsplit(link)
    if parts.scheme == "mailto":
        return None if "@" in parts.path else "is not an e-mail address"
    if parts.scheme or parts.netloc:
        host = parts.hostname or ""
        if parts.scheme == "http" and LOOPBACK.fullmatch(host):
            return None
        return None if parts.scheme == "https" and HOST.fullmatch(host) else "is not an https address"
    if parts.path.startswith("/"):
        return "is not relative"
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if not target.exists():
        return "does not exist"
    if not target.is_relative_to(ROOT):
        return "is outside of the repository"
    if parts.fragment and target.suffix == ".md" and unquote(parts.fragment) not in find_anchors(target):
        return "has no such heading"
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_of_a_page_are_valid(page: Path) -> None:
    links = find_links(page.read_text(encoding="utf-8"))
    problems = [f"{link} {problem}" for link in links if (problem := find_problem(page, link))]
    assert problems == []


@pytest.mark.parametrize(
    ("link", "problem"),
    [
        ("docs/tools.md#toolsets", None),
        ("docs/tools.md#no-such-heading", "has no such heading"),
        ("docs/missing.md", "does not exist"),
        ("#five-promises", None),
        ("#six-promises", "has no such heading"),
        ("/docs/tools.md", "is not relative"),
        ("../", "is outside of the repository"),
        ("https://ai.pydantic.dev/", None),
        ("http://127.0.0.1:8000", None),
        ("http://example.com", "is not an https address"),
        ("https://example", "is not an https address"),
        ("https:/example.com", "is not an https address"),
    ],
)
def test_link_checker_recognises_invalid_links(link: str, problem: str | None) -> None:
    assert find_problem(ROOT / "README.md", link) == problem


def test_links_in_code_are_not_checked() -> None:
    code = "`[b](b.md)`\n```\n[c](c.md)\n```\n<!-- [d](d.md) -->\n"
    text = f'[a](a.md) {code}<https://e.org> <a href="f.md">f</a> [g](g(1).md)\n'
    assert list(find_links(text)) == ["a.md", "https://e.org", "f.md", "g(1).md"]
