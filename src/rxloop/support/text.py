"""Conversion of values and strings to short, visible or escaped text."""

from __future__ import annotations

import re
from reprlib import Repr
from unicodedata import category

_WIDTH = 60


class _ShortRepr(Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxstring = self.maxother = self.maxlong = _WIDTH
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = 10


_SHORT_REPR = _ShortRepr()


def to_short_repr(value: object) -> str:
    """Return a shortened `repr`. It is fast even if a value contains itself many times."""
    text = _SHORT_REPR.repr(value)
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"


def shorten_repr(value: object, width: int) -> str:
    """Return a `repr`, truncated to a width."""
    text = repr(value)
    return text if len(text) <= width else f"{text[: width - 3]}..."


# Mermaid interprets Markdown, directives and comments even inside quotes, and misparses entities after a colon. All
# characters except letters, digits and these are therefore escaped as numbers.
_SAFE_CHARACTERS = frozenset(" ,'()/?!")

# Mermaid interprets these sequences even if they are escaped: `$$` starts a formula, `fa:fa-x` is an icon, a backslash
# and `n` are a line break, and two pairs of letters belong to its own entities. A zero-width space separates them.
_SPECIAL_SEQUENCES = r"\$(?=\$)|:(?=\w)|\\(?=n)|¶(?=ß)|ﬂ(?=°)"

_ZERO_WIDTH_SPACE = "\u200b"

_JOINERS = "\u200c\u200d"
"""Invisible characters required by emoji and several writing systems."""

# These count as printable. Several variation selectors, or one of the supplement after another character than an
# ideograph, can only encode hidden text.
_HIDDEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0]|(?<=[\ufe00-\ufe0f])[\ufe00-\ufe0f]+"
    "|(?<![\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff])[\U000e0100-\U000e01ef]+"
)

# Control characters except for line ends and tabs: they may move the cursor, write to the clipboard or hide text. Also
# characters that change the writing direction, and invisible line separators.
INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def to_visible(text: str) -> str:
    r"""Replace control and invisible characters by escapes such as `\u001b`, for output in a terminal.

    JSON uses the same escapes, so escaped JSON text still has the same content.
    """
    return INVISIBLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text.replace("\r\n", "\n"))


def to_one_line(text: str, width: int = 40) -> str:
    """Return the text on a single line without control or invisible characters, truncated to a width.

    Use it for all text from outside in log messages, in lines of a terminal and in lists for models. Invisible
    characters could contain instructions for a model.
    """
    line = " ".join(_HIDDEN.sub("", text).split())
    if not line.isprintable():
        spaced = "".join(" " if category(each) in ("Cc", "Cs") else each for each in line)
        line = " ".join("".join(each for each in spaced if each.isprintable() or each in _JOINERS).split())
    return line if len(line) <= width else line[: max(width - 1, 0)].rstrip() + "…"


def to_mermaid_text(text: str) -> str:
    """Escape text for a Mermaid label in double quotes."""
    text = re.sub(_SPECIAL_SEQUENCES, rf"\g<0>{_ZERO_WIDTH_SPACE}", text)
    return "".join(char if char.isalnum() or char in _SAFE_CHARACTERS else f"#{ord(char)};" for char in text)
