"""Lenient parsing of model replies."""

from __future__ import annotations

import re
from collections.abc import Iterable

_MARK = re.compile(r"^[\s>*#_`]*(?:(?:step|thought|option|proposal)\s*)?(?:\(?\d+[.):]+|[-*•])\s*", re.IGNORECASE)

_MAX_MARK = 100
"""Maximum number of characters before the text of a list item."""

_WHITESPACE = re.compile(r"[^\S\n]{20,}")
"""Long whitespace, which would be searched again for each of its characters."""

_NUMBER = re.compile(r"(-?\d{1,15}(?:\.\d+)?|-?\.\d+)\s*(?:(%)|(?:/|out\s+of\s)\s*(\d{1,15}(?:\.\d+)?))?")

_INLINE_ANSWERS = (
    re.compile(r"\banswer\**\s*:\**\s*(.+)$", re.IGNORECASE | re.MULTILINE),
    re.compile(r"\banswer\s+is:?\s+(.+?)(?:[.!]?\s*$|[.!]\s)", re.IGNORECASE | re.MULTILINE),
)
"""Regular expressions for inline answers. The match extends to the end of the line or sentence."""


def split_paragraphs(text: str) -> list[str]:
    """Split text into paragraphs, falling back to lines for a single paragraph."""
    parts = re.split(r"\n\s*\n", text.strip())
    if len(parts) == 1:
        parts = text.splitlines()
    return [part.strip() for part in parts if part.strip()]


def parse_list(text: str) -> list[str]:
    """Parse list items without bullets or numbering. If no line has a marker, every line counts as an item."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    list_items = [line for line in lines if _MARK.match(line, 0, _MAX_MARK)]
    items = [_strip_mark(line).strip(" *_`") for line in list_items or lines]
    return list(dict.fromkeys(item for item in items if item))


def _strip_mark(line: str) -> str:
    match = _MARK.match(line, 0, _MAX_MARK)
    return line if match is None else line[match.end() :].lstrip()


def find_labelled(text: str, *labels: str) -> str | None:
    """Return the text after the last `Label:`, including the lines below. Return None if there is no such line.

    Ignores case, and Markdown around the label.
    """
    names = "|".join(re.escape(label).replace(r"\ ", r"[\s_-]*") for label in labels)
    # Possessive repetitions and whitespace within a line keep the search linear.
    mark = r"(?:[^\S\n]|[>*#_`-])*+"
    match = list(re.finditer(rf"(?im)^{mark}(?:{names})[\s*_`]*+[:=][\s*_`]*+(?P<rest>.*)$", text))
    if not match:
        return None
    remainder = match[-1]["rest"].strip(" *_`\t")
    following = text[match[-1].end() :].strip()
    return "\n".join(part for part in (remainder, following) if part)


def find_word(text: str, *labels: str) -> str:
    """Return the first word after the last `Label:` in lower case, or an empty string."""
    match = re.search(r"\w+", find_labelled(text, *labels) or "")
    return match[0].lower() if match else ""


def find_number(text: str, *labels: str) -> float | None:
    """Return the number following the last `Label:`, or None. Fractions and percentages are converted to decimals."""
    match = _NUMBER.search(find_labelled(text, *labels) or "")
    if match is None:
        return None
    value, percent, whole = match.groups()
    divisor = 100 if percent else float(whole or 1)
    return float(value) / divisor if divisor else None


def find_final_answer(text: str) -> str | None:
    """Extract the final answer: boxed expression, `Answer:` label, or last line."""
    boxed = re.findall(r"\\boxed\{([^{}]*)\}", text)
    if boxed:
        return boxed[-1].strip() or None
    # The answer follows the label on the same line or on the next.
    lines = _split_lines(find_labelled(text, "answer", "final answer", "the answer", "the final answer") or "")
    if lines:
        return lines[0]
    plain = _WHITESPACE.sub(" ", text)
    answers = [match[-1] for pattern in _INLINE_ANSWERS if (match := pattern.findall(plain))]
    lines = _split_lines(answers[0] if answers else text)
    return lines[-1] if lines else None


def _split_lines(text: str) -> list[str]:
    return [line for line in (line.strip(" *_`\t") for line in text.splitlines()) if line]


def format_list(items: Iterable[str]) -> str:
    """Format items as a numbered list."""
    return "\n".join(f"{index}. {item}" for index, item in enumerate(items, 1))
