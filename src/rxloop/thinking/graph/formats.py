"""Graph rendering as text tree, Mermaid, Graphviz and JSON.

Model output is escaped, so thoughts cannot inject lines, nodes or directives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

from pydantic_core import to_json

from rxloop.protocol.events import ThoughtStreamEvent
from rxloop.protocol.messages import ToolCall
from rxloop.support.text import to_mermaid_text, to_one_line

Node = ThoughtStreamEvent | ToolCall

EdgeKind = Literal["thought", "call", "branch", "revision", "merge"]


class Link(NamedTuple):
    """Directed edge between node indices."""

    source: int
    target: int
    kind: EdgeKind


Nodes = Mapping[int, Node]

Edges = Sequence[Link]

_WIDTH = 120
"""Maximum thought length in characters."""


def to_public(node: Node) -> Node | None:
    """Convert a node for clients. Hidden tool calls become None."""
    if isinstance(node, ToolCall):
        return None if node.hidden else node
    return cast("ThoughtStreamEvent | None", node.to_public())


def label(node: Node, width: int = _WIDTH) -> str:
    """Format a node as a single line, for example `planning plan: content (0.9)`."""
    return ": ".join(part for part in _parts(node, width) if part)


def _parts(node: Node, width: int) -> tuple[str, str]:
    if isinstance(node, ToolCall):
        arguments = to_json(node.arguments, fallback=str).decode() if node.arguments else ""
        return f"{to_one_line(node.name)} {to_one_line(node.id)}", to_one_line(arguments, width)
    sure = f" ({node.confidence:.2g})" if node.confidence is not None else ""
    return f"{node.thought_type} {name(node)}", to_one_line(node.content, width) + sure


def name(node: Node) -> str:
    """Return the display name of a node.

    Session thoughts are identified by number, for example `3/5 on dual-write, revises 2`.
    """
    if isinstance(node, ToolCall) or node.session is None:
        return to_one_line(node.id if isinstance(node, ToolCall) else node.thought_id)
    session = node.session
    stage = f"{to_one_line(session.stage)} " if session.stage is not None else ""
    branch = f" on {to_one_line(session.branch_id)}" if session.branch_id is not None else ""
    revises = f", revises {session.revises}" if session.revises is not None else ""
    return f"{stage}{session.number}/{session.total}{branch}{revises}"


def tree(below: Mapping[int | None, Sequence[int]], label: Callable[[int], str]) -> str:
    """Render a forest with box-drawing characters.

    Args:
        below: Ordered children by node. Root nodes are stored under None.
        label: Function that returns the node text.
    """
    lines: list[str] = []
    # An explicit stack, because a chain of thoughts may exceed the recursion limit.
    stack = [(root, "", "") for root in reversed(below.get(None, ()))]
    while stack:
        index, before, margin = stack.pop()
        lines.append(before + label(index))
        under = below.get(index, ())
        for position, child in reversed(list(enumerate(under))):
            last = position == len(under) - 1
            stack.append((child, margin + ("└─ " if last else "├─ "), margin + ("   " if last else "│  ")))
    return "\n".join(lines)


def to_mermaid(nodes: Nodes, edges: Edges, placed: Sequence[tuple[int, int]]) -> str:
    """Return a Mermaid flowchart. Thoughts are boxes, calls are hexagons."""
    lines = ["flowchart TD"]
    for index, node in nodes.items():
        head, body = (to_mermaid_text(part) for part in _parts(node, _WIDTH))
        text = f"{head}<br/>{body}" if body else head
        opening, closing = ("{{", "}}") if isinstance(node, ToolCall) else ("[", "]")
        lines.append(f'    n{index}{opening}"{text}"{closing}')
    arrows: dict[EdgeKind, str] = {"branch": "== branch ==>", "revision": "-. revised .->", "merge": "-. merged .->"}
    lines += [f"    n{source} {arrows.get(kind, '-->')} n{target}" for source, target, kind in edges]
    lines += [f"    n{source} -.-> n{target}" for source, target in placed]
    return "\n".join(lines) + "\n"


def to_dot(nodes: Nodes, edges: Edges, placed: Sequence[tuple[int, int]]) -> str:
    """Return a Graphviz graph. Thoughts are boxes, calls are hexagons."""
    lines = ["digraph thoughts {", "    node [shape=box];"]
    for index, node in nodes.items():
        text = "\\n".join(_dot_text(part) for part in _parts(node, _WIDTH) if part)
        shape = ", shape=hexagon" if isinstance(node, ToolCall) else ""
        lines.append(f'    n{index} [label="{text}"{shape}];')
    styles: dict[EdgeKind, str] = {
        "branch": " [style=bold, label=branch]",
        "revision": " [style=dashed, label=revised]",
        "merge": " [style=dashed, label=merged]",
    }
    lines += [f"    n{source} -> n{target}{styles.get(kind, '')};" for source, target, kind in edges]
    lines += [f"    n{source} -> n{target} [style=dotted];" for source, target in placed]
    return "\n".join([*lines, "}"]) + "\n"


def _dot_text(text: str) -> str:
    # Graphviz also decodes HTML entities in labels.
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;")


def json(nodes: Nodes, edges: Edges) -> bytes:
    """Serialize nodes and edges to JSON."""
    data = {
        "nodes": [{"key": f"n{index}", **_data(node)} for index, node in nodes.items()],
        "edges": [{"from": f"n{source}", "to": f"n{target}", "kind": kind} for source, target, kind in edges],
    }
    return to_json(data, fallback=str)


def _data(node: Node) -> dict[str, Any]:
    if isinstance(node, ToolCall):
        return {"kind": "call", "id": node.id, "name": node.name, "arguments": node.arguments}
    return {
        "kind": "thought",
        "id": node.thought_id,
        "thoughtType": node.thought_type,
        "content": node.content,
        "index": node.index,
        "verbosity": node.verbosity,
        "confidence": node.confidence,
        "relatedTo": node.related_to,
        "alternatives": node.alternatives,
        "source": node.source,
        "toolCallId": node.tool_call_id,
        "name": name(node),
        "session": None if node.session is None else node.session.model_dump(exclude_none=True),
    }
