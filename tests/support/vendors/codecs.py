"""Help for tests of codecs."""

from __future__ import annotations


def unheard(*_: object) -> None:
    """Ignore the notice of a codec about content that it left out."""
