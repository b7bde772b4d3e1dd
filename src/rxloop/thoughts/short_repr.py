"""Writes values into error messages: shortened, and without walking through all of them."""

from __future__ import annotations

from reprlib import Repr

_WIDTH = 60


class _ShortRepr(Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxstring = self.maxother = self.maxlong = _WIDTH
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = 10


_SHORT = _ShortRepr()


def short_repr(value: object) -> str:
    """Shorten the `repr` of a value; a value that contains itself many times costs no more than a small one."""
    text = _SHORT.repr(value)
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"
