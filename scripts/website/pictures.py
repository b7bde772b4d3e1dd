"""Puts the pictures into the docstrings of the operators, for mkdocstrings."""

from __future__ import annotations

import re
from typing import Any

import griffe
from drawing import svg
from marbles import DiagramError, parse, split

_MARK = re.compile(r"^ *::\n\n(?= +\S)", re.MULTILINE)


def with_picture(docstring: str, name: str) -> str:
    """A docstring with a picture in the place of its diagram.

    Raises:
        DiagramError: The diagram cannot be read; the message names the operator.
    """
    try:
        parts = split(docstring)
        if parts is None:
            return docstring
        before, text, after = parts
        return f'{before}<figure class="marble-diagram">{svg(parse(text, name))}</figure>\n{after}'
    except DiagramError as error:
        raise DiagramError(f"the diagram of {name}: {error}") from error


class MarblePictures(griffe.Extension):
    """Draws the diagram of every function in `rxloop.operators`; what stands behind `::` elsewhere stays text."""

    def on_object(self, *, obj: griffe.Object, loader: griffe.GriffeLoader, **kwargs: Any) -> None:
        """Take the next object of the package."""
        if obj.docstring is None:
            return
        operator = (
            obj.is_function and obj.canonical_path.startswith("rxloop.operators.") and not obj.name.startswith("_")
        )
        text = obj.docstring.value
        obj.docstring.value = with_picture(text, obj.name) if operator else _MARK.sub("", text)
