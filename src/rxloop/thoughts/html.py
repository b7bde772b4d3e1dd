"""Draws a graph of thoughts as one HTML file that opens in any browser and loads nothing.

Whatever a model wrote is data: it is escaped in the drawing, and the script puts it on the page as text only.
"""

from __future__ import annotations

from html import escape
from string import Template

from pydantic_core import to_json

from rxloop.protocol.messages import ToolCall
from rxloop.thoughts import drawing
from rxloop.thoughts.page import PAGE

WIDTH, HEIGHT = 230, 54
"""A box, in pixels."""
BESIDE: tuple[drawing.EdgeKind, ...] = ("revision", "merge")
"""Edges that are not steps of a chain."""
STEP, ROW, MARGIN = 290, 70, 24
"""From a column to the next, from a row to the next, and around it all."""


def html(nodes: drawing.Nodes, edges: drawing.Edges, title: str) -> str:
    """Write the page.

    Args:
        nodes: The nodes, by place.
        edges: From what is followed to what follows; those that go in circles point backwards.
        title: The title of the page.
    """
    spots = layout(nodes, edges)
    # In a script element nothing but this sign can end it.
    data = drawing.json(nodes, edges).decode().replace("<", "\\u003c")
    return Template(PAGE).substitute(
        title=escape(title),
        count=f"{sum(not isinstance(node, ToolCall) for node in nodes.values())} thoughts",
        width=max((x for x, _ in spots.values()), default=0) + WIDTH + MARGIN,
        height=max((y for _, y in spots.values()), default=0) + HEIGHT + MARGIN,
        edges="\n".join(_edge(spots, link) for link in edges),
        nodes="\n".join(_box(place, node, spots[place]) for place, node in nodes.items()),
        empty="" if nodes else "There are no thoughts in this run.",
        data=data,
    )


def layout(nodes: drawing.Nodes, edges: drawing.Edges) -> dict[int, tuple[int, int]]:
    """Place the boxes: a column for each step of a chain, from left to right, and a row for each branch.

    What starts a chain stands left; a reference that closes a circle does not count, nor do revisions and merges.
    """
    below: dict[int | None, list[int]] = {}
    parents = {target: source for source, target, kind in edges if kind not in BESIDE}
    depths: dict[int, int] = {}
    for place in nodes:
        _depth(place, parents, depths)
    for place in nodes:
        parent = parents.get(place)
        forward = parent is not None and depths[parent] < depths[place]
        below.setdefault(parent if forward else None, []).append(place)
    spots: dict[int, tuple[int, int]] = {}
    row = 0
    stack = list(reversed(below.get(None, ())))
    while stack:
        place = stack.pop()
        spots[place] = (MARGIN + depths[place] * STEP, MARGIN + row * ROW)
        children = below.get(place, ())
        stack.extend(reversed(children))
        # A chain goes on in its own row; the next branch gets a new one.
        row += not children
    return spots


def _depth(place: int, parents: dict[int, int], depths: dict[int, int]) -> None:
    """Note how long the chain to a node is, and to all that it hangs on."""
    line: list[int] = []
    seen: set[int] = set()
    at: int | None = place
    while at is not None and at not in depths and at not in seen:
        line.append(at)
        seen.add(at)
        at = parents.get(at)
    # A chain begins after a circle, as it does after nothing.
    depth = depths[at] + 1 if at is not None and at in depths else 0
    for member in reversed(line):
        depths[member] = depth
        depth += 1


def _box(place: int, node: drawing.Node, spot: tuple[int, int]) -> str:
    x, y = spot
    call = isinstance(node, ToolCall)
    kind = "call" if call else node.thought_type
    head = node.name if call else f"{node.thought_type} · {drawing.name(node)}"
    body = to_json(node.arguments, fallback=str).decode() if call else node.content
    corner = HEIGHT // 2 if call else 8
    return (
        f'<g class="node {escape(kind)}" id="n{place}" tabindex="0" role="button" transform="translate({x} {y})"'
        f' aria-label="{_line(drawing.label(node, 200), 240)}">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="{corner}"/>'
        f'<text x="14" y="22" class="head">{_line(head, 30)}</text>'
        f'<text x="14" y="41">{_line(body, 32)}</text></g>'
    )


def _edge(spots: dict[int, tuple[int, int]], link: drawing.Link) -> str:
    (x1, y1), (x2, y2) = spots[link.source], spots[link.target]
    ends = f'data-edge="n{link.source} n{link.target}"'
    if link.kind in BESIDE:
        # From top to top, so that it is told apart from the steps, which run from side to side.
        x1, x2, high = x1 + WIDTH // 2, x2 + WIDTH // 2, min(y1, y2) - MARGIN + 6
        return f'<path class="{link.kind}" d="M{x1} {y1}C{x1} {high} {x2} {high} {x2} {y2}" {ends}/>'
    x1, y1, y2 = x1 + WIDTH, y1 + HEIGHT // 2, y2 + HEIGHT // 2
    style = "back" if x2 < x1 else link.kind
    middle = (x1 + x2) // 2
    return f'<path class="{style}" d="M{x1} {y1}C{middle} {y1} {middle} {y2} {x2} {y2}" {ends}/>'


def _line(text: str, width: int) -> str:
    return escape(drawing.one_line(text, width))
