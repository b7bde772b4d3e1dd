"""`rxloop strategies`: the reasoning strategies, their stages, and when to use which."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from textwrap import fill
from typing import Annotated

import typer
from pydantic import TypeAdapter

from rxloop.cli.terminal import reporting, write
from rxloop.strategies.catalog import STRATEGIES, get_stages
from rxloop.thinking.stages.definition import StrategyDefinition

_WIDTH = 100


class StrategyFormat(StrEnum):
    """How a strategy is written."""

    text = "text"
    mermaid = "mermaid"
    json = "json"


def _json(found: StrategyDefinition) -> str:
    """Write all of it, as `StrategyDefinition.from_json` reads it: a start for a strategy of your own."""
    return TypeAdapter(StrategyDefinition).dump_json(found, indent=2, exclude_defaults=True).decode()


_WRITERS: dict[StrategyFormat, Callable[[StrategyDefinition], str]] = {
    StrategyFormat.text: StrategyDefinition.describe,
    StrategyFormat.mermaid: StrategyDefinition.to_mermaid,
    StrategyFormat.json: _json,
}


def strategies(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A strategy, or a file of one (.json, .yaml).")
    ] = None,
    format: Annotated[StrategyFormat, typer.Option("--format", "-f", help="How to write it.")] = StrategyFormat.text,
) -> None:
    """List the reasoning strategies, or show the stages of one."""
    with reporting():
        found = [_find(name)] if name is not None else list(STRATEGIES.values())
        if name is None and format is StrategyFormat.text:
            text = "\n\n".join(map(_summary, found)) + "\n"
        else:
            text = "\n".join(_WRITERS[format](definition).rstrip("\n") + "\n" for definition in found)
        write(text)


def _find(name: str) -> StrategyDefinition:
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        return StrategyDefinition.from_yaml(path)
    return StrategyDefinition.from_json(path) if path.suffix == ".json" else get_stages(name)


def _summary(found: StrategyDefinition) -> str:
    aliases = f" (also {', '.join(found.aliases)})" if found.aliases else ""
    stages = " > ".join(stage.name for stage in found.stages)
    lines = [fill(text, _WIDTH, initial_indent="  ", subsequent_indent="  ") for text in (found.when, stages)]
    return "\n".join([f"{found.name}{aliases}", *lines])
