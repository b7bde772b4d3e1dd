"""`rxloop graph`: the thoughts of a run, drawn."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rxloop.cli import options
from rxloop.cli.store import find_run, opened
from rxloop.cli.terminal import running, say, write_plain
from rxloop.thoughts.graph import ThoughtGraph


class GraphFormat(StrEnum):
    """How a graph of thoughts is written."""

    tree = "tree"
    mermaid = "mermaid"
    dot = "dot"
    json = "json"
    html = "html"


_WRITERS: dict[GraphFormat, Callable[[ThoughtGraph], str]] = {
    GraphFormat.tree: ThoughtGraph.tree,
    GraphFormat.mermaid: ThoughtGraph.to_mermaid,
    GraphFormat.dot: ThoughtGraph.to_dot,
    GraphFormat.json: lambda graph: graph.to_json().decode(),
    GraphFormat.html: ThoughtGraph.to_html,
}


def graph(
    run: options.RunId,
    format: Annotated[GraphFormat, typer.Option("--format", "-f", help="How to write it.")] = GraphFormat.tree,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write it.")] = None,
    db: options.Database = None,
) -> None:
    """Draw the thoughts of a run."""

    async def main() -> None:
        async with opened(db) as log:
            record = await find_run(log, run)
            thoughts = ThoughtGraph.of(await log.read(record.task_id))
        text = _WRITERS[format](thoughts).rstrip("\n") + "\n"
        if output is not None:
            output.write_text(text, encoding="utf-8")
            say(f"{output} has {len(thoughts)} thoughts")
        elif len(thoughts) or format is not GraphFormat.tree:
            write_plain(text)
        else:
            say("this run has no thoughts")

    running(main())
