"""Reads Google-style docstrings: what a tool is for, and what its parameters mean."""

from __future__ import annotations

import inspect
import re
from typing import NamedTuple

_PARAMETERS = {"args", "arguments", "parameters", "params", "keyword args", "keyword arguments"}
_DROPPED = {"returns", "return", "yields", "yield", "raises", "raise"}
_HEADER = re.compile(r"^([A-Za-z][A-Za-z ]*):\s*$")
_ENTRY = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_BULLET = re.compile(r"^([-*+]|\d+[.)])\s")


class Docstring(NamedTuple):
    """A docstring, taken apart."""

    description: str
    """Everything but the sections on parameters, results and exceptions."""
    parameters: dict[str, str]
    """What the `Args:` section says of each parameter."""


def parse(text: str | None) -> Docstring:
    """Take a docstring apart.

    A section starts with a line such as `Args:` that is not indented and ends before the next line that is not.
    Sections other than those on parameters, results and exceptions (examples, notes) stay in the description.
    """
    kept: list[str] = []
    parameters: dict[str, str] = {}
    lines = inspect.cleandoc(text or "").splitlines()
    at = 0
    while at < len(lines):
        header = _HEADER.match(lines[at])
        title = header.group(1).lower() if header else ""
        end = _block_end(lines, at + 1)
        if title in _PARAMETERS and end > at + 1:
            parameters |= _entries(lines[at + 1 : end])
            at = end
        elif title in _DROPPED and end > at + 1:
            at = end
        else:
            kept.append(lines[at])
            at += 1
    return Docstring(re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip(), parameters)


def _block_end(lines: list[str], start: int) -> int:
    """The first line from `start` on that is neither blank nor indented; `start` itself if no line is indented."""
    end = start
    for at in range(start, len(lines)):
        if not lines[at].strip():
            continue
        if not lines[at][0].isspace():
            break
        end = at + 1
    return end


def _entries(block: list[str]) -> dict[str, str]:
    margin = min(len(line) - len(line.lstrip()) for line in block if line.strip())
    entries: dict[str, list[str]] = {}
    current: list[str] = []
    for line in block:
        text = line[margin:].rstrip()
        entry = _ENTRY.match(text)
        if entry:
            current = entries.setdefault(entry.group(1), [])
            current.append(entry.group(2))
        else:
            current.append(text.strip())
    return {name: _flow(lines) for name, lines in entries.items()}


def _flow(lines: list[str]) -> str:
    """Join lines that were wrapped; blank lines and list items stay where they are."""
    text = ""
    for line in lines:
        if not line:
            text += "\n\n" if text and not text.endswith("\n") else ""
        elif not text or text.endswith("\n"):
            text += line
        else:
            text += ("\n" if _BULLET.match(line) else " ") + line
    return text.strip()
