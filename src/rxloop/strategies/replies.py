"""Lenient parsing of model replies."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rxloop.errors import ConfigurationError

_MARK = re.compile(r"^[\s>*#_`]*(?:(?:step|thought|option|proposal)\s*)?(?:\(?\d+[.):]+|[-*•])\s*", re.IGNORECASE)

_NUMBER = re.compile(r"(-?\d{1,15}(?:\.\d+)?|-?\.\d+)\s*(?:(%)|(?:/|out\s+of\s)\s*(\d{1,15}(?:\.\d+)?))?")

_SAID = (
    re.compile(r"\banswer\**\s*:\**\s*(.+)$", re.IGNORECASE | re.MULTILINE),
    re.compile(r"\banswer\s+is:?\s+(.+?)(?:[.!]?\s*$|[.!]\s)", re.IGNORECASE | re.MULTILINE),
)
"""An answer in the middle of a line: to the end of it, or of its sentence."""


def paragraphs(text: str) -> list[str]:
    """Split a text into paragraphs, or into lines where it has only one paragraph."""
    parts = re.split(r"\n\s*\n", text.strip())
    if len(parts) == 1:
        parts = text.splitlines()
    return [part.strip() for part in parts if part.strip()]


def listed(text: str) -> list[str]:
    """Read the items of a list, without numbers or dashes; where no line is marked as an item, every line is one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    marked = [line for line in lines if _MARK.match(line)]
    items = [_MARK.sub("", line).strip(" *_`") for line in marked or lines]
    return list(dict.fromkeys(item for item in items if item))


def labelled(text: str, *labels: str) -> str | None:
    """Find the text after the last `Label:` of a line, and the lines below it; None if there is no such line.

    Upper and lower case and Markdown around the label do not count.
    """
    names = "|".join(re.escape(label).replace(r"\ ", r"[\s_-]*") for label in labels)
    found = list(re.finditer(rf"(?im)^[\s>*#_`-]*(?:{names})[\s*_`]*[:=][\s*_`]*(?P<rest>.*)$", text))
    if not found:
        return None
    rest = found[-1]["rest"].strip(" *_`\t")
    below = text[found[-1].end() :].strip()
    return "\n".join(part for part in (rest, below) if part)


def word(text: str, *labels: str) -> str:
    """Find the first word after the last `Label:`, in lower case; empty if there is none."""
    found = re.search(r"\w+", labelled(text, *labels) or "")
    return found[0].lower() if found else ""


def number(text: str, *labels: str) -> float | None:
    """Find the number after the last `Label:`; a fraction or a percentage counts by its value."""
    found = _NUMBER.search(labelled(text, *labels) or "")
    if found is None:
        return None
    value, percent, whole = found.groups()
    over = 100 if percent else float(whole or 1)
    return float(value) / over if over else None


def final_answer(text: str) -> str | None:
    """Find the answer at the end of a line of reasoning: in a box, after `Answer:`, or in the last line."""
    boxed = re.findall(r"\\boxed\{([^{}]*)\}", text)
    if boxed:
        return boxed[-1].strip() or None
    # A label has its answer beside it, or right below.
    lines = _lines(labelled(text, "answer", "final answer", "the answer", "the final answer") or "")
    if lines:
        return lines[0]
    said = [found[-1] for pattern in _SAID if (found := pattern.findall(text))]
    lines = _lines(said[0] if said else text)
    return lines[-1] if lines else None


def _lines(text: str) -> list[str]:
    return [line for line in (line.strip(" *_`\t") for line in text.splitlines()) if line]


def numbered(items: Iterable[str]) -> str:
    """Write items as a numbered list."""
    return "\n".join(f"{place}. {item}" for place, item in enumerate(items, 1))


def at_least(least: int, **given: int) -> None:
    """Refuse arguments that are too small.

    Raises:
        ConfigurationError: One is; it says which.
    """
    for name, value in given.items():
        if value < least:
            raise ConfigurationError(f"{name} must be at least {least}, not {value}")
