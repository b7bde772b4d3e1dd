"""Terms of the glossary, and retired words in documents."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GLOSSARY = ROOT / "docs/glossary.md"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
ROW = re.compile(r"^\| \*\*(?P<term>[^*]+)\*\* \| (?P<meaning>.+) \|$", re.MULTILINE)
TERMS = {match["term"]: match["meaning"] for match in ROW.finditer(GLOSSARY.read_text(encoding="utf-8"))}
DESIGN_TERMS = {
    "adapter", "attempt", "command", "context", "event", "fold", "idle", "inbox", "iteration", "job", "lease",
    "operator", "request", "run", "RunContext", "step", "task", "toolset", "view",
}  # fmt: skip
"""Terms that rxloop defines differently from other libraries, or that have several meanings elsewhere."""
RETIRED = re.compile(
    r"\b(anew|thereby|letters? to a run|mailbox|bells?|lanes?|strangers?|at rest|taken up again|main line|settle[ds]?"
    r"|settling|nobody|somebody|whoever|voided|patience|seam|ToolProvider|carr(?:y|ies|ied) out|doors?)\b",
    re.IGNORECASE,
)
CODE = re.compile(r"^ *(`{3,}).*?^ *\1`* *$|`[^`\n]+`|<!--.*?-->", re.MULTILINE | re.DOTALL)


def read_prose(page: Path) -> str:
    """Read a page, with its code replaced by spaces."""
    return CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), page.read_text(encoding="utf-8"))


def test_glossary_is_sorted_and_contains_the_terms_of_the_design() -> None:
    assert list(TERMS) == sorted(TERMS, key=str.casefold)
    assert DESIGN_TERMS - TERMS.keys() == set()


@pytest.mark.parametrize("term", TERMS)
def test_term_is_used_by_the_linked_page(term: str) -> None:
    pages = re.findall(r"\]\(([\w-]+\.md)", TERMS[term])
    assert pages, "each term needs a link"
    word = re.compile(r"\b" + term.replace(" ", r"\s+") + r"(?:s|es)?\b", re.IGNORECASE)
    assert [page for page in pages if not word.search((ROOT / "docs" / page).read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_documents_contain_no_retired_words(page: Path) -> None:
    text = read_prose(page)
    found = [f"line {text.count(chr(10), 0, match.start()) + 1}: {match[0]}" for match in RETIRED.finditer(text)]
    assert found == []
