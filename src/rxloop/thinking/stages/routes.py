"""Stage graph algorithms: reachability, distances and loops."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence

Edge = tuple[str, str]

Transitions = Mapping[str, Sequence[str]]

Routes = Mapping[str, tuple[tuple[str, int], ...]]
"""Allowed transitions and distances to the end, by stage."""


def find_reachable(transitions: Transitions, start: str) -> set[str]:
    """Return the stages that can be reached from a stage, including the stage itself."""
    result = {start}
    pending = [start]
    while pending:
        fresh = [target for target in transitions[pending.pop()] if target not in result]
        result.update(fresh)
        pending += fresh
    return result


def measure_steps(transitions: Transitions, terminal: Iterable[str], closed: Collection[Edge] = ()) -> dict[str, int]:
    """Return the shortest distance to the end by stage. Unreachable stages are omitted.

    Args:
        transitions: Allowed transitions by stage.
        terminal: Terminal stages.
        closed: Excluded edges.
    """
    sources: dict[str, list[str]] = {stage: [] for stage in transitions}
    for source, targets in transitions.items():
        for target in targets:
            if (source, target) not in closed:
                sources[target].append(source)
    steps = dict.fromkeys(terminal, 0)
    pending = deque(steps)
    while pending:
        stage = pending.popleft()
        for source in sources[stage]:
            if source not in steps:
                steps[source] = steps[stage] + 1
                pending.append(source)
    return steps


def find_loops(transitions: Transitions, initial: str) -> tuple[Edge, ...]:
    """Return all back edges found by depth-first search.

    Every cycle contains at least one back edge. Removing them keeps the end reachable from the initial stage.
    """
    result: list[Edge] = []
    entered, finished = {initial}, set[str]()
    path = [(initial, iter(transitions[initial]))]
    while path:
        source, targets = path[-1]
        target = next(targets, None)
        if target is None:
            finished.add(source)
            path.pop()
        elif target not in entered:
            entered.add(target)
            path.append((target, iter(transitions[target])))
        elif target not in finished:
            result.append((source, target))
    return tuple(result)


def find_routes(transitions: Transitions, terminal: Iterable[str], closed: Collection[Edge] = ()) -> Routes:
    """Return the possible next stages of each stage if some edges are closed.

    Omits stages from which the end is unreachable.
    """
    steps = measure_steps(transitions, terminal, closed)
    return {
        source: tuple(
            (target, steps[target]) for target in targets if target in steps and (source, target) not in closed
        )
        for source, targets in transitions.items()
    }
