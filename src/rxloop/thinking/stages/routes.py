"""Stages as a graph: reachability, distance to the end, loops."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence

Edge = tuple[str, str]

Transitions = Mapping[str, Sequence[str]]

Ways = Mapping[str, tuple[tuple[str, int], ...]]
"""For each stage the stages that may follow, in the order of the table, each with its steps to the end."""


def reachable(transitions: Transitions, start: str) -> set[str]:
    """Find the stages that can be reached from a stage, itself among them."""
    found = {start}
    waiting = [start]
    while waiting:
        fresh = [target for target in transitions[waiting.pop()] if target not in found]
        found.update(fresh)
        waiting += fresh
    return found


def steps_to_end(transitions: Transitions, terminal: Iterable[str], closed: Collection[Edge] = ()) -> dict[str, int]:
    """Measure the shortest way to the end, for each stage that has one.

    Args:
        transitions: What may follow each stage.
        terminal: The stages at which a flow ends.
        closed: Edges that are not to be used.
    """
    sources: dict[str, list[str]] = {stage: [] for stage in transitions}
    for source, targets in transitions.items():
        for target in targets:
            if (source, target) not in closed:
                sources[target].append(source)
    steps = dict.fromkeys(terminal, 0)
    waiting = deque(steps)
    while waiting:
        stage = waiting.popleft()
        for source in sources[stage]:
            if source not in steps:
                steps[source] = steps[stage] + 1
                waiting.append(source)
    return steps


def loops(transitions: Transitions, initial: str) -> tuple[Edge, ...]:
    """Find the edges that lead back: to a stage on the way of a search in depth, in table order.

    Every cycle has one, and without them the end can still be reached from the initial stage.
    """
    found: list[Edge] = []
    entered, left = {initial}, set[str]()
    way = [(initial, iter(transitions[initial]))]
    while way:
        source, targets = way[-1]
        target = next(targets, None)
        if target is None:
            left.add(source)
            way.pop()
        elif target not in entered:
            entered.add(target)
            way.append((target, iter(transitions[target])))
        elif target not in left:
            found.append((source, target))
    return tuple(found)


def ways(transitions: Transitions, terminal: Iterable[str], closed: Collection[Edge] = ()) -> Ways:
    """Find what may follow each stage when some edges are closed: only what still leads to the end."""
    steps = steps_to_end(transitions, terminal, closed)
    return {
        source: tuple(
            (target, steps[target]) for target in targets if target in steps and (source, target) not in closed
        )
        for source, targets in transitions.items()
    }
