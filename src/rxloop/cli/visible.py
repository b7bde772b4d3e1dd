"""The one place through which text from outside goes on its way to the terminal."""

from __future__ import annotations

from rich.text import Text

from rxloop.thoughts.drawing import UNSEEN, visible


def shown(text: Text | str) -> Text:
    """Write an escape in the place of each character that a terminal would act upon; the colours stay."""
    if isinstance(text, str):
        return Text(visible(text))
    found = [match.start() for match in UNSEEN.finditer(text.plain)]
    if not found:
        return text
    made = Text(style=text.style)
    for piece in text.divide(sorted({*found, *(place + 1 for place in found)})):
        piece.plain = visible(piece.plain)
        made.append_text(piece)
    return made
