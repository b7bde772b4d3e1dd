"""Help for tests of wires."""

from __future__ import annotations


def unheard(*_: object) -> None:
    """Takes what a wire tells of what it left out."""
