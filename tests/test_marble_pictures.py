"""Parsing and drawing of marble diagrams in docstrings."""

from __future__ import annotations

import inspect
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxloop import op

ROOT = Path(__file__).parents[1]
NAMES = [name for name in op.__all__ if inspect.isfunction(getattr(op, name))]


@pytest.fixture(scope="module")
def website() -> Any:
    """Drawing modules of scripts/website."""
    sys.path.insert(0, str(ROOT / "scripts/website"))
    try:
        import drawing  # pyright: ignore[reportMissingImports]
        import marbles  # pyright: ignore[reportMissingImports]
    finally:
        sys.path.pop(0)
    return SimpleNamespace(marbles=marbles, drawing=drawing)


@pytest.mark.parametrize("name", NAMES)
def test_every_operator_has_a_valid_diagram(website: Any, name: str) -> None:
    parts = website.marbles.split(inspect.getdoc(getattr(op, name)))
    assert parts is not None, f"op.{name} has no marble diagram"
    diagram = website.marbles.parse(parts[1], name)
    picture = ET.fromstring(website.drawing.make_svg(diagram))
    texts = [element.text for element in picture.iter() if element.tag == "text"]
    drawn = {
        marble
        for panel in diagram.panels
        for row in panel
        if isinstance(row, website.marbles.Line)
        for piece in row.pieces
        for at in piece.instants
        for marble in at.marbles
    }
    assert drawn
    assert drawn <= set(texts)
    assert [row.label for panel in diagram.panels for row in panel if isinstance(row, website.marbles.Box)]


@pytest.mark.parametrize("name", NAMES)
def test_elements_are_inside_the_picture(website: Any, name: str) -> None:
    parts = website.marbles.split(inspect.getdoc(getattr(op, name)))
    picture = ET.fromstring(website.drawing.make_svg(website.marbles.parse(parts[1], name)))
    _, _, width, height = map(float, picture.attrib["viewBox"].split())
    for box in picture.iter("rect"):
        x, y, w, h = (float(box.attrib[key]) for key in ("x", "y", "width", "height"))
        assert 0 <= x <= x + w <= width
        assert 0 <= y <= y + h <= height


def test_diagram_is_parsed_by_column(website: Any) -> None:
    text = "in            --a--(b,c)--d(1)--|\nhandler            ..e\nout           --a--------#      e and more"
    diagram = website.marbles.parse(text, "on")
    (panel,) = diagram.panels
    source, handler, box, out = panel
    assert [(at.column, at.marbles) for at in source.pieces[0].instants] == [
        (2, ("a",)),
        (5, ("b", "c")),
        (12, ("d(1)",)),
    ]
    assert (source.pieces[0].end, source.pieces[0].stop) == ("|", 18)
    assert (handler.pieces[0].start, handler.pieces[0].work, handler.pieces[0].end) == (5, ((5, 7),), "")
    assert (box.label, out.pieces[0].end, out.pieces[0].stop) == ("on", "#", 11)
    assert diagram.legend == ("e and more",)


def test_line_can_contain_several_streams(website: Any) -> None:
    (panel,) = website.marbles.parse("in   --M--|    --M--\nout  --(c,m)", "compress").panels
    assert [(piece.start, piece.stop, piece.end) for piece in panel[0].pieces] == [(0, 5, "|"), (10, 15, "-")]


def test_operator_with_other_arguments_has_its_own_picture(website: Any) -> None:
    panels = website.marbles.parse("source    --a--|\nf(1)      --a--|\nf(2)      -----|", "f").panels
    assert [[getattr(row, "label", None) for row in panel] for panel in panels] == [
        ["source", "f(1)", "f(1)"],
        ["source", "f(2)", "f(2)"],
    ]


def test_operators_can_be_named_on_separate_lines(website: Any) -> None:
    (panel,) = website.marbles.parse("in   --A--|\n[a]\n[b]\nout  --C--|", "compose").panels
    assert [row.label for row in panel] == ["in", "a", "b", "out"]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("in   --a--|\nout  --C(TT)--(|)", "must be separated by commas"),
        ("in   --a--|\nout  --m(E|)", "in the same parentheses"),
        ("in   --a--|\nout  --C(T,T)", "in the same parentheses"),
        ("in   --a--|-\nout  --a--|", "must not continue after its end"),
        ("in   --a-- |\nout  --a--|", "must not contain a single space"),
        ("in     --a--|\nout  --a--|", "must not begin before"),
        ("in --a--|\nout", "a label, at least two spaces, and a stream"),
        ("in   --(a--|\nout  --a--|", "invalid marble"),
        ("in   --a)--|\nout  --a--|", "invalid marble"),
        ("in   --a--|", "inputs must be followed by outputs"),
        ("out  --a--|\nin   --a--|", "inputs must be followed by outputs"),
        ("[a]\nin   --a--|", "must begin with a stream"),
    ],
)
def test_invalid_diagram_is_rejected_with_its_position(website: Any, text: str, what: str) -> None:
    with pytest.raises(website.marbles.DiagramError, match=what) as caught:
        website.marbles.parse(text, "broken")
    assert "^" in str(caught.value)


def test_docstring_with_two_diagrams_is_rejected(website: Any) -> None:
    assert website.marbles.split("Does it.\n\nArgs:\n    a: One.\n") is None
    one = "Does it.\n\n::\n\n    in   --a--|\n    out  --a--|\n\nMore.\n"
    assert website.marbles.split(one) == ("Does it.\n\n", "in   --a--|\nout  --a--|", "\n\nMore.\n")
    with pytest.raises(website.marbles.DiagramError, match="only one diagram"):
        website.marbles.split(one + "\n::\n\n    in   --b--|\n    out  --b--|\n")


def test_standalone_picture_supports_light_and_dark_themes(website: Any) -> None:
    diagram = website.marbles.parse('in   --d({"a<b)--|\nout  --&--|', "f")
    root = ET.fromstring(website.drawing.make_svg_file(diagram))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    style = root.find("{http://www.w3.org/2000/svg}style")
    assert style is not None
    assert "prefers-color-scheme: dark" in (style.text or "")
    assert "&" in [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]


@given(st.text(alphabet="-.|#() ,ab{}[]'1", max_size=30), st.text(alphabet="-.|#() ,ab{}", max_size=30))
def test_any_text_is_drawn_or_rejected(first: str, second: str) -> None:
    sys.path.insert(0, str(ROOT / "scripts/website"))
    try:
        import drawing  # pyright: ignore[reportMissingImports]
        import marbles  # pyright: ignore[reportMissingImports]
    finally:
        sys.path.pop(0)
    try:
        diagram = marbles.parse(f"in   {first}\nout  {second}", "f")
    except marbles.DiagramError:
        return
    ET.fromstring(drawing.make_svg(diagram))
