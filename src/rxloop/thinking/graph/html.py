"""Standalone HTML rendering of a graph, without external resources.

Model output is escaped in the drawing. Scripts insert text content only.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from string import Template

from pydantic_core import to_json

from rxloop.protocol.messages import ToolCall
from rxloop.support.text import to_one_line
from rxloop.thinking.graph import formats

WIDTH, HEIGHT = 230, 54
"""Box width and height in pixels."""

BESIDE: tuple[formats.EdgeKind, ...] = ("revision", "merge")
"""Edge kinds excluded from chain layout."""

STEP, ROW, MARGIN = 290, 70, 24
"""Column spacing, row spacing and margin in pixels."""


def html(nodes: formats.Nodes, edges: formats.Edges, placed: Sequence[tuple[int, int]], title: str) -> str:
    """Render a graph as an HTML page.

    Args:
        nodes: Nodes by index.
        edges: Directed edges. Cyclic edges point backwards.
        placed: Additional pairs of nodes that are connected in the drawing.
        title: Page title.
    """
    dotted = [formats.Link(source, target, "thought") for source, target in placed]
    positions = layout(nodes, [*edges, *dotted])
    # Escaping "<" prevents premature termination of the script element.
    data = formats.json(nodes, edges).decode().replace("<", "\\u003c")
    return Template(PAGE).substitute(
        title=escape(title),
        count=f"{sum(not isinstance(node, ToolCall) for node in nodes.values())} thoughts",
        width=max((x for x, _ in positions.values()), default=0) + WIDTH + MARGIN,
        height=max((y for _, y in positions.values()), default=0) + HEIGHT + MARGIN,
        edges="\n".join(
            [*(_edge(positions, link) for link in edges), *(_edge(positions, link, "placed") for link in dotted)]
        ),
        nodes="\n".join(_box(index, node, positions[index]) for index, node in nodes.items()),
        empty="" if nodes else "There are no thoughts in this run.",
        data=data,
    )


def layout(nodes: formats.Nodes, edges: formats.Edges) -> dict[int, tuple[int, int]]:
    """Calculate box coordinates, with one column per chain step and one row per branch.

    Chains start in the leftmost column. Cyclic references, revisions and merges do not affect the layout.
    """
    below: dict[int | None, list[int]] = {}
    parents = {target: source for source, target, kind in edges if kind not in BESIDE}
    depths: dict[int, int] = {}
    for index in nodes:
        _depth(index, parents, depths)
    for index in nodes:
        parent = parents.get(index)
        forward = parent is not None and depths[parent] < depths[index]
        below.setdefault(parent if forward else None, []).append(index)
    positions: dict[int, tuple[int, int]] = {}
    row = 0
    stack = list(reversed(below.get(None, ())))
    while stack:
        index = stack.pop()
        positions[index] = (MARGIN + depths[index] * STEP, MARGIN + row * ROW)
        children = below.get(index, ())
        stack.extend(reversed(children))
        # Chains stay in one row, while additional branches start a new row.
        row += not children
    return positions


def _depth(index: int, parents: dict[int, int], depths: dict[int, int]) -> None:
    """Store chain depths for a node and its ancestors."""
    line: list[int] = []
    visited: set[int] = set()
    node: int | None = index
    while node is not None and node not in depths and node not in visited:
        line.append(node)
        visited.add(node)
        node = parents.get(node)
    # Cyclic chains start at depth zero.
    depth = depths[node] + 1 if node is not None and node in depths else 0
    for member in reversed(line):
        depths[member] = depth
        depth += 1


def _box(index: int, node: formats.Node, position: tuple[int, int]) -> str:
    x, y = position
    call = isinstance(node, ToolCall)
    kind = "call" if call else node.thought_type
    head = node.name if call else f"{node.thought_type} · {formats.name(node)}"
    body = to_json(node.arguments, fallback=str).decode() if call else node.content
    corner = HEIGHT // 2 if call else 8
    return (
        f'<g class="node {escape(kind)}" id="n{index}" tabindex="0" role="button" transform="translate({x} {y})"'
        f' aria-label="{_line(formats.label(node, 200), 240)}">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="{corner}"/>'
        f'<text x="14" y="22" class="head">{_line(head, 30)}</text>'
        f'<text x="14" y="41">{_line(body, 32)}</text></g>'
    )


def _edge(positions: dict[int, tuple[int, int]], link: formats.Link, style: str | None = None) -> str:
    (x1, y1), (x2, y2) = positions[link.source], positions[link.target]
    ends = f'data-edge="n{link.source} n{link.target}"'
    if link.kind in BESIDE:
        # From top to top, to distinguish it from steps, which run from side to side.
        x1, x2, high = x1 + WIDTH // 2, x2 + WIDTH // 2, min(y1, y2) - MARGIN + 6
        return f'<path class="{link.kind}" d="M{x1} {y1}C{x1} {high} {x2} {high} {x2} {y2}" {ends}/>'
    x1, y1, y2 = x1 + WIDTH, y1 + HEIGHT // 2, y2 + HEIGHT // 2
    style = style or ("back" if x2 < x1 else link.kind)
    middle = (x1 + x2) // 2
    return f'<path class="{style}" d="M{x1} {y1}C{middle} {y1} {middle} {y2} {x2} {y2}" {ends}/>'


def _line(text: str, width: int) -> str:
    return escape(to_one_line(text, width))


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>$title</title>
<style>
:root { color-scheme: light dark; --ink: #1d2430; --quiet: #667; --paper: #fafafa; --box: #fff; --line: #b8bcc8; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8eaf0; --quiet: #99a; --paper: #15181f; --box: #1e232d; --line: #4a5060; }
}
* { box-sizing: border-box; }
body { margin: 0; height: 100vh; display: grid; grid-template: auto 1fr / 1fr 24rem;
  font: 14px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper); }
header { grid-column: 1 / -1; display: flex; gap: .75rem; align-items: center; padding: .6rem 1rem;
  border-bottom: 1px solid var(--line); }
h1 { font-size: 1rem; margin: 0; } header span { color: var(--quiet); flex: 1; }
input, button { font: inherit; color: inherit; background: var(--box); border: 1px solid var(--line);
  border-radius: 6px; padding: .25rem .6rem; }
main { overflow: auto; } main p { padding: 2rem; color: var(--quiet); } main p:empty { display: none; }
aside { overflow: auto; padding: 1rem; border-left: 1px solid var(--line); }
aside h2 { font-size: 1rem; margin: 0 0 .5rem; overflow-wrap: anywhere; }
aside pre { white-space: pre-wrap; overflow-wrap: anywhere; font: inherit; margin: 0 0 1rem; }
dl { display: grid; grid-template-columns: auto 1fr; gap: .2rem .8rem; margin: 0; }
dt { color: var(--quiet); } dd { margin: 0; overflow-wrap: anywhere; } aside a { color: inherit; }
path { fill: none; stroke: var(--line); stroke-width: 1.5; marker-end: url(#arrow); }
path.back { stroke-dasharray: 5 4; } path.branch { stroke-width: 3; } path.placed { stroke-dasharray: 2 4; }
path.revision { stroke: #c6503c; stroke-dasharray: 3 3; } path.merge { stroke: #2c8a57; stroke-dasharray: 3 3; }
path.near { stroke: var(--ink); stroke-width: 2; }
.node { cursor: pointer; outline: none; --kind: #7a8194; }
.node rect { fill: var(--box); stroke: var(--kind); stroke-width: 1.5; }
.node text { fill: var(--quiet); font-size: 12px; } .node .head { fill: var(--kind); font-weight: 600; }
.node:hover rect, .node:focus rect, .node.open rect { stroke-width: 3; }
.node.open rect { fill: color-mix(in srgb, var(--kind) 14%, var(--box)); } .node.off { opacity: .18; }
.planning { --kind: #3b74d9; } .reasoning { --kind: #7457c8; } .reflection { --kind: #a34fb5; }
.decision { --kind: #2c8a57; } .observation { --kind: #2a8899; } .critique { --kind: #c6503c; }
.strategy { --kind: #5560c9; } .analysis { --kind: #8a6d1f; } .call { --kind: #c07716; }
@media (max-width: 800px) { body { grid-template: auto 1fr 40% / 1fr; }
  aside { border-left: 0; border-top: 1px solid var(--line); } }
</style>
</head>
<body>
<header><h1>$title</h1><span>$count</span>
<input id="find" type="search" placeholder="Find" aria-label="Find in the thoughts">
<button id="less" aria-label="Smaller">&minus;</button><button id="more" aria-label="Larger">+</button></header>
<main><p>$empty</p>
<svg width="$width" height="$height" viewBox="0 0 $width $height" role="group" aria-label="Graph of thoughts">
<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
<path d="M0 0L8 4L0 8z" style="fill:var(--line);stroke:none;marker:none"/></marker></defs>
$edges
$nodes
</svg></main>
<aside aria-live="polite"><p>Click a node, or move with Tab and press Enter.</p></aside>
<script type="application/json" id="data">$data</script>
<script>
"use strict";
const graph = JSON.parse(document.getElementById("data").textContent);
const byKey = new Map(graph.nodes.map(node => [node.key, node]));
const panel = document.querySelector("aside"), svg = document.querySelector("svg");
const make = (tag, text) => Object.assign(document.createElement(tag), {textContent: text});
const named = node => node.kind === "call" ? node.name + " " + node.id : node.thoughtType + " · " + node.name;
const SHOWN = {id: "id", index: "number", confidence: "confidence", verbosity: "verbosity", source: "source",
  relatedTo: "related to", toolCallId: "tool call"};
function links(list, title, keys) {
  if (!keys.length) return;
  list.append(make("dt", title));
  const all = make("dd", "");
  for (const key of keys) {
    const link = make("a", named(byKey.get(key)));
    link.href = "#" + key;
    all.append(link, document.createElement("br"));
  }
  list.append(all);
}
function open(key) {
  const node = byKey.get(key);
  if (!node) return;
  document.querySelectorAll(".open, .near").forEach(each => each.classList.remove("open", "near"));
  const box = document.getElementById(key);
  box.classList.add("open");
  box.scrollIntoView({block: "nearest", inline: "nearest"});
  document.querySelectorAll("[data-edge]").forEach(
    each => each.classList.toggle("near", each.dataset.edge.split(" ").includes(key)));
  const text = node.kind === "call" ? JSON.stringify(node.arguments, null, 2) : node.content;
  const facts = document.createElement("dl");
  for (const [field, title] of Object.entries(SHOWN))
    if (node[field] !== null && node[field] !== undefined) facts.append(make("dt", title), make("dd", node[field]));
  for (const other of node.alternatives || []) facts.append(make("dt", "alternative"), make("dd", other));
  for (const [field, value] of Object.entries(node.session || {})) facts.append(make("dt", field), make("dd", value));
  const is = (...kinds) => edge => kinds.includes(edge.kind), step = is("thought", "call", "branch");
  const from = wanted => graph.edges.filter(edge => edge.to === key && wanted(edge)).map(edge => edge.from);
  const to = wanted => graph.edges.filter(edge => edge.from === key && wanted(edge)).map(edge => edge.to);
  links(facts, "follows from", from(step));
  links(facts, "leads to", to(step));
  links(facts, "revises", from(is("revision")));
  links(facts, "revised by", to(is("revision")));
  links(facts, "merges", from(is("merge")));
  links(facts, "merged into", to(is("merge")));
  panel.replaceChildren(make("h2", named(node)), make("pre", text), facts);
}
const show = key => { if (location.hash === "#" + key) open(key); else location.hash = key; };
svg.addEventListener("click", event => { const box = event.target.closest(".node"); if (box) show(box.id); });
svg.addEventListener("keydown", event => {
  const box = event.target.closest(".node");
  if (box && (event.key === "Enter" || event.key === " ")) { event.preventDefault(); show(box.id); }
});
addEventListener("hashchange", () => open(location.hash.slice(1)));
document.getElementById("find").addEventListener("input", event => {
  const wanted = event.target.value.toLowerCase();
  for (const node of graph.nodes)
    document.getElementById(node.key).classList.toggle("off", !JSON.stringify(node).toLowerCase().includes(wanted));
});
let zoom = 1;
const [width, height] = [svg.width.baseVal.value, svg.height.baseVal.value];
function scale(by) {
  zoom = Math.min(3, Math.max(.1, zoom * by));
  svg.setAttribute("width", width * zoom);
  svg.setAttribute("height", height * zoom);
}
document.getElementById("less").onclick = () => scale(1 / 1.25);
document.getElementById("more").onclick = () => scale(1.25);
open(location.hash.slice(1));
</script>
</body>
</html>
"""
