"""Benchmark cases and their targets."""

from __future__ import annotations

from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Case:
    """Row of a table: a workload with its URL and its baseline."""

    name: str
    work: str
    path: str
    units: int
    """Divisor of the cost: number of tokens, tool calls or runs."""
    unit: str = "µs"
    against: str | None = None
    """Baseline workload. None uses the same workload."""
    targets: dict[str, float] = field(default_factory=dict[str, float])
    """Maximum ratio for each transport."""
    peers: bool = False
    """True if other frameworks are also measured."""
    warm_up: int = 1
    """Number of warm-up executions, which load modules and open connections."""
    times: int = 1
    """Number of measured executions. Short workloads are repeated more often, with more warm-up executions, because
    a tenth of a second is not representative."""
    many: int = 0
    """Number of concurrent runs, if there are several."""


@dataclass(frozen=True, slots=True)
class Growth:
    """Ratio of the unit costs of two cases."""

    name: str
    few: str
    many: str
    target: float | None


def targets(httpx: float, aiohttp: float) -> dict[str, float]:
    return {"httpx": httpx, "aiohttp": aiohttp}


def main_cases(quick: bool) -> list[Case]:
    """Return cases that are compared with the bare loop."""
    tokens, drip, few, many, open_, held = (400, 20, 3, 6, 4, 5) if quick else (20_000, 2_000, 50, 200, 200, 50)
    burst, dripping, tools, times = f"stream/{tokens}/1", f"drip/{drip}/1", targets(1.5, 0.8), many // few
    cases = [
        Case("stream", "stream", burst, tokens, targets=targets(1.6, 0.8), peers=True),
        Case("drip", "stream", dripping, drip, targets=targets(1.15, 0.7), peers=True),
        Case(
            f"tool iteration, K={few}",
            "tools",
            f"tools/{few}",
            few,
            targets=tools,
            peers=True,
            times=times,
            warm_up=times,
        ),
        Case(f"tool iteration, K={many}", "tools", f"tools/{many}", many, targets=tools, peers=True),
        Case(
            f"{open_} runs at once",
            *("many", "tools/5", open_ * 1_000, "ms"),
            targets=targets(0.7, 0.3),
            peers=True,
            many=open_,
        ),
        Case(
            "memory per open run",
            *("memory", f"held/{held}", open_, "kB"),
            targets=targets(2, 2),
            peers=True,
            many=open_,
        ),
        Case("first answer of a process", "cold", "tools/1", 1_000, "ms", peers=True),
    ]
    if quick:
        # Omitted cases run the same code. Targets only apply to full sizes.
        return [replace(case, targets={}) for case in cases if case.name != "drip" and case.work != "cold"]
    texts = [
        Case("stream, 16 chunks a read", "stream", f"stream/{tokens}/16", tokens, peers=True),
        Case("stream, 3 subscribers", "three", burst, tokens, against="stream"),
        Case("stream, `async for`", "text", burst, tokens, against="stream"),
    ]
    slow = Case("drip, `async for`", "text", dripping, drip, against="stream")
    log = Case(
        f"tool iteration, K={few}, SQLite log",
        "logged",
        f"tools/{few}",
        few,
        against="tools",
        times=times,
        warm_up=times,
    )
    return [cases[0], *texts, cases[1], slow, *cases[2:4], log, *cases[4:]]


def make_growth(cases: list[Case], quick: bool) -> Growth:
    """Return the growth between short and long runs of tool calls."""
    few, many = (case.name for case in cases if case.work == "tools")
    return Growth(f"growth from {few.split(', ')[1]} to {many.split(', ')[1]}", few, many, None if quick else 1.1)


def feature_cases(quick: bool) -> list[Case]:
    """Return cases with additional features, compared with the same work and one subscriber."""
    tokens, few, times = (100, 3, 1) if quick else (20_000, 50, 4)
    burst, tools, typed = f"stream/{tokens}/1", f"tools/{few}", f"typed/{few}"
    return [
        Case("stream: no subscriber", "silent", burst, tokens, against="stream"),
        Case("stream: 3 subscribers", "three", burst, tokens, against="stream"),
        Case("stream: a view of three operators", "piped", burst, tokens, against="stream"),
        Case("stream: `async for` over the text", "text", burst, tokens, against="stream"),
        Case("stream: `async for` over the events", "events", burst, tokens, against="stream"),
        Case("stream: 1 reader of server-sent events", "sse", burst, tokens, against="stream"),
        Case("stream: 3 readers of server-sent events", "sse_three", burst, tokens, against="stream"),
        Case("stream: a SQLite log", "logged", burst, tokens, against="stream"),
        Case("stream: a SQLite log that keeps deltas", "logged_deltas", burst, tokens, against="stream"),
        Case("tools: a memory log", "memory_log", tools, few, against="tools", times=times, warm_up=times),
        Case("tools: a SQLite log", "logged", tools, few, against="tools", times=times, warm_up=times),
        Case("tools: `think_aloud` off", "thoughtless", tools, few, against="tools", times=times, warm_up=times),
        Case("tools: a guard before each call", "guarded", tools, few, against="tools", times=times, warm_up=times),
        Case("tools: `compress`, nothing to do", "compressed", tools, few, against="tools", times=times, warm_up=times),
        Case("tools: `compress`, all the time", "squeezed", tools, few, against="tools", times=times, warm_up=times),
        Case("tools: the thinking phase", "thinking", tools, few, against="tools", times=times, warm_up=times),
        Case("tools: an answer with a type", "typed", typed, few, against="tools", times=times, warm_up=times),
    ]
