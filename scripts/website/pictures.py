"""Extension for mkdocstrings that draws the marble diagrams of operators."""

from __future__ import annotations

import re
from typing import Any

import griffe
from drawing import make_svg
from marbles import DiagramError, parse, split

_MARK = re.compile(r"^ *::\n\n(?= +\S)", re.MULTILINE)


def draw_diagram(docstring: str, name: str) -> str:
    """Replace the diagram in a docstring by an SVG image.

    Raises:
        DiagramError: The diagram of the operator is invalid.
    """
    try:
        parts = split(docstring)
        if parts is None:
            return docstring
        before, text, after = parts
        return f'{before}<figure class="marble-diagram">{make_svg(parse(text, name))}</figure>\n{after}'
    except DiagramError as error:
        raise DiagramError(f"invalid marble diagram of {name}: {error}") from error


class MarblePictures(griffe.Extension):
    """Extension that draws the diagrams of operators. In other docstrings, `::` is removed."""

    def on_object(self, *, obj: griffe.Object, loader: griffe.GriffeLoader, **kwargs: Any) -> None:
        """Process the docstring of an object."""
        if obj.docstring is None:
            return
        operator = (
            obj.is_function and obj.canonical_path.startswith("rxloop.operators.") and not obj.name.startswith("_")
        )
        text = obj.docstring.value
        obj.docstring.value = draw_diagram(text, obj.name) if operator else _MARK.sub("", text)
