"""Writes a strategy for people: as a drawing for Mermaid, and as a page of text."""

from __future__ import annotations

import re

from rxloop.thinking.drawing import mermaid_text
from rxloop.thinking.flow.definition import Stage, StrategyDefinition

# Names that can be the id of a node as they are; Mermaid takes these words for its own, wherever they stand.
_PLAIN = re.compile(r"(?!(?:end|graph|flowchart|subgraph|direction|style|linkstyle|class|classdef|click|default)$)\w+")


def mermaid(strategy: StrategyDefinition) -> str:
    """A flowchart: decisions are diamonds, the first and the last stages are rounded, ways back are dotted."""
    plain = all(_PLAIN.fullmatch(stage.name.lower()) and stage.name.isascii() for stage in strategy.stages)
    ids = {stage.name: stage.name if plain else f"n{place}" for place, stage in enumerate(strategy.stages)}
    lines = ["flowchart TD"]
    for stage in strategy.stages:
        opening, closing = _shape(strategy, stage)
        lines.append(f'    {ids[stage.name]}{opening}"{mermaid_text(stage.name.replace("_", " "))}"{closing}')
    for source, targets in strategy.transitions.items():
        for target in targets:
            arrow = "-. again .->" if (source, target) in strategy.loops else "-->"
            lines.append(f"    {ids[source]} {arrow} {ids[target]}")
    return "\n".join(lines) + "\n"


def _shape(strategy: StrategyDefinition, stage: Stage) -> tuple[str, str]:
    if stage.name in strategy.decision_points:
        return "{", "}"
    if stage.name == strategy.initial or stage.name in strategy.terminal:
        return "([", "])"
    return "[", "]"


def text(strategy: StrategyDefinition) -> str:
    """When to use it, then a line for each stage and for each thing that may follow it."""
    aliases = f" (also {', '.join(strategy.aliases)})" if strategy.aliases else ""
    lines = [f"{strategy.name}{aliases}: {strategy.title}"]
    if strategy.when:
        lines.append(strategy.when)
    lines.append("")
    for place, stage in enumerate(strategy.stages, 1):
        about = f": {stage.description}" if stage.description else ""
        lines.append(f"{place:2}. {stage.name}{about}")
        if stage.fields:
            lines.append(f"      needs {', '.join(field.replace('|', ' or ') for field in stage.fields)}")
        if stage.next:
            lines.append(f"      then {' or '.join(_way(strategy, stage.name, target) for target in stage.next)}")
    return "\n".join(lines) + "\n"


def _way(strategy: StrategyDefinition, source: str, target: str) -> str:
    return f"back to {target}" if (source, target) in strategy.loops else target
