"""Text files for language models: llms.txt, llms-full.txt and a Markdown file for each page. See https://llmstxt.org."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_COMMENT = re.compile(r"<!--.*?-->\n*", re.DOTALL)
_FENCE = re.compile(r"^( *`{3,}).*?^\1`* *$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]*)\)")
_PAGE_LINK = re.compile(r"(?<=\]\()(?P<path>[\w./-]+)(?P<anchor>#[\w-]+)?(?=\))")
_SENTENCE = re.compile(r".+?[.:](?= |$)")
_GENERATED = "reference/"
_OPERATORS = "reference/op/"
"""Pages that are listed on their index page."""


@dataclass(frozen=True)
class TextPage:
    """Markdown page of the site."""

    section: str
    title: str
    path: str
    """Source path, such as `tools.md`."""
    text: str

    @property
    def is_generated(self) -> bool:
        """True if the page is generated from docstrings, so its Markdown has no content."""
        return self.path.startswith(_GENERATED)

    @property
    def is_optional(self) -> bool:
        """True if models can skip the page to save tokens."""
        return self.is_generated or posixpath.dirname(self.path) == "examples"


def clean_text(text: str) -> str:
    """Remove HTML comments, which contain setup code for tests."""
    return _COMMENT.sub("", text).strip() + "\n"


def resolve_links(text: str, path: str) -> str:
    """Make the links of a page relative to the root of the site. Links to the reference name HTML pages."""

    def resolve(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), match["path"]))
        if target.startswith(_GENERATED):
            target = target.removesuffix(".md") + ".html"
        return target + (match["anchor"] or "")

    return _PAGE_LINK.sub(resolve, text)


def summarize(text: str) -> str:
    """Return the first sentence of a page. If the page has no paragraphs, return an empty string."""
    for paragraph in _FENCE.sub("", clean_text(text)).split("\n\n"):
        line = " ".join(paragraph.split())
        if line and not line.startswith(("#", "|", ":::", "<", "* ", "- ", "1. ", "!!!")):
            plain = _LINK.sub(r"\1", line)
            found = _SENTENCE.match(plain)
            return (found[0] if found else plain).rstrip(":")
    return ""


def make_overview(name: str, summary: str, pages: Iterable[TextPage], full: str) -> str:
    """Create the content of llms.txt.

    Args:
        name: Name of the project.
        summary: Description of the project in one sentence.
        pages: Pages in the order of the navigation.
        full: Content of llms-full.txt, whose size is stated.
    """
    sections: dict[str, list[str]] = {}
    for page in pages:
        if page.path.startswith(_OPERATORS) and page.path != f"{_OPERATORS}index.md":
            continue
        link = page.path.removesuffix(".md") + ".html" if page.is_generated else page.path
        description = "" if page.is_optional else summarize(page.text)
        section = "Optional" if page.is_optional else page.section or "Overview"
        sections.setdefault(section, []).append(f"- [{page.title}]({link}){f': {description}' if description else ''}")
    optional = sections.pop("Optional", [])
    parts = [
        f"# {name}",
        f"> {summary}",
        f"All pages in one file: [llms-full.txt](llms-full.txt), {_format_size(full)}.",
    ]
    for title, lines in [*sections.items(), ("Optional", optional)]:
        if lines:
            parts += [f"## {title}", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def make_full_text(pages: Iterable[TextPage]) -> str:
    """Create the content of llms-full.txt: all pages except the optional ones."""
    return "\n".join(_iter_full_text(pages))


def _iter_full_text(pages: Iterable[TextPage]) -> Iterator[str]:
    for page in pages:
        if not page.is_optional:
            yield resolve_links(clean_text(page.text), page.path)


def _format_size(text: str) -> str:
    return f"{len(text.encode()) / 1000:.0f} kB"
