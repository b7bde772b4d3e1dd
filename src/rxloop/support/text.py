"""Conversion of values and strings to short, visible or escaped text."""

from __future__ import annotations

import re
import unicodedata
from reprlib import Repr

_WIDTH = 60


class _ShortRepr(Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxstring = self.maxother = self.maxlong = _WIDTH
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = 10


_SHORT = _ShortRepr()


def to_short_repr(value: object) -> str:
    """Return a shortened `repr`. It is fast even if a value contains itself many times."""
    text = _SHORT.repr(value)
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"


# Mermaid interprets Markdown, directives and comments even inside of quotes, and parses entities wrongly after a colon.
# Therefore, escape all other characters as numbers.
_SAFE = frozenset(" ,'()/?!")

# Some sequences have a meaning even as numbers: two `$` are mathematics, which may break the drawing, `fa:fa-x` is an
# icon, and a backslash with an n is a line break. Two letters are part of Mermaid's own entities. Separate all of these
# with a zero-width space.
_SPECIAL = r"\$(?=\$)|:(?=\w)|\\(?=n)|¶(?=ß)|ﬂ(?=°)"

_ZERO_WIDTH_SPACE = "\u200b"

# Control characters except for line ends and tabs: they may move the cursor, write to the clipboard or hide text. Also
# characters that change the writing direction, and invisible line separators.
INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def to_visible(text: str) -> str:
    r"""Escape characters that a terminal would interpret, for example as `\u001b`.

    JSON remains valid and keeps its meaning, because it uses the same escapes.
    """
    return INVISIBLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text.replace("\r\n", "\n"))


def to_one_line(text: str, width: int = 40) -> str:
    """Return the text on a single line without control characters, truncated to a width."""
    visible = "".join(" " if unicodedata.category(char) in ("Cc", "Zl", "Zp", "Cs") else char for char in text)
    line = " ".join(visible.split())
    return line if len(line) <= width else line[: max(width - 1, 0)].rstrip() + "…"


def to_mermaid_text(text: str) -> str:
    """Escape text for a Mermaid label in double quotes."""
    text = re.sub(_SPECIAL, rf"\g<0>{_ZERO_WIDTH_SPACE}", text)
    return "".join(char if char.isalnum() or char in _SAFE else f"#{ord(char)};" for char in text)
