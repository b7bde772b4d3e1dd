"""Short, visible and escaped forms of strings and values."""

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
    """Shorten the `repr` of a value; a value that contains itself many times costs no more than a small one."""
    text = _SHORT.repr(value)
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"


# Mermaid reads Markdown, directives and comments even inside quotes, and ends an entity at the wrong place where a
# colon stands before it: whatever is not a letter, a digit or one of these is written as the number of its character.
_SAFE = frozenset(" ,'()/?!")

# Even as numbers some characters mean something beside others: two `$` are mathematics, which may not parse, and then
# the drawing is lost; `fa:fa-x` is an icon, and so may other words be; a backslash and an n end a line; two letters are
# those of Mermaid's own entities. What nobody sees stands between them.
_MEANT = r"\$(?=\$)|:(?=\w)|\\(?=n)|¶(?=ß)|ﬂ(?=°)"

_NOTHING = "\u200b"

# Control characters but for line ends and tabs, with which a text moves the cursor, writes the clipboard or hides what
# was there; and what changes the direction of writing, or ends a line that nobody sees ending.
INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def to_visible(text: str) -> str:
    r"""Escape each character that a terminal would act upon, for instance as `\u001b`.

    JSON stays the same JSON: the escapes are those that it has itself.
    """
    return INVISIBLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text.replace("\r\n", "\n"))


def to_one_line(text: str, width: int = 40) -> str:
    """Put a text on one line, cut to a width, without control characters."""
    visible = "".join(" " if unicodedata.category(char) in ("Cc", "Zl", "Zp", "Cs") else char for char in text)
    line = " ".join(visible.split())
    return line if len(line) <= width else line[: max(width - 1, 0)].rstrip() + "…"


def to_mermaid_text(text: str) -> str:
    """Write a text as it may stand in a label between double quotes."""
    text = re.sub(_MEANT, rf"\g<0>{_NOTHING}", text)
    return "".join(char if char.isalnum() or char in _SAFE else f"#{ord(char)};" for char in text)
