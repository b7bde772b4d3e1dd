"""What a token, a tool call and an import cost, beside a bare httpx loop. See `scripts/bench --help`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tomllib
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from statistics import median
from typing import Any

from packaging.requirements import Requirement

HERE = Path(__file__).parent
IMPORT = """
import time
wall, cpu = time.perf_counter(), time.process_time()
import {module}
print(time.process_time() - cpu, time.perf_counter() - wall)
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table: what a client does with an address, and against which work of the bare loop."""

    name: str
    work: str
    against: str
    path: str
    units: int
    """What the cost is divided by: tokens or tool calls."""


def cases(quick: bool) -> list[Case]:
    """What is measured."""
    tokens, few, many = (400, 3, 6) if quick else (20_000, 50, 200)
    burst = f"stream/{tokens}/1"
    always = [
        Case("stream, 1 event a read", "stream", "stream", burst, tokens),
        Case("async for, 1 event a read", "text", "stream", burst, tokens),
        Case(f"tool iteration, K={few}", "tools", "tools", f"tools/{few}", few),
        Case(f"tool iteration, K={many}", "tools", "tools", f"tools/{many}", many),
        Case("with a SQLite log, K=3", "logged", "tools", "tools/3", 3),
    ]
    if quick:
        return always
    return [
        *always[:-1],
        Case("stream, 16 events a read", "stream", "stream", f"stream/{tokens}/16", tokens),
        Case("stream, 3 subscribers", "three", "stream", burst, tokens),
        Case("drip, 1 ms apart", "stream", "stream", "drip/2000/1", 2_000),
        Case("with a SQLite log, K=50", "logged", "tools", "tools/50", 50),
        Case("200 runs at once, ms each", "many", "many", "tools/5", 200_000),
        Case("memory per open run, kB", "hold", "hold", "held/50", 1_000),
    ]


@contextmanager
def server() -> Generator[str]:
    """The endpoint, in a process of its own; its address."""
    command = [sys.executable, str(HERE / "server.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.stdin.close()


def child(*arguments: str) -> str:
    """What a fresh Python prints."""
    return subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout


def measure(case: Case, client: str, base: str) -> dict[str, Any]:
    work = case.against if client == "bare" else case.work
    return json.loads(child(str(HERE / "measure.py"), client, work, f"{base}/{case.path}"))


def measure_import(module: str) -> dict[str, float]:
    cpu, wall = child("-c", IMPORT.format(module=module)).split()
    return {"cpu": float(cpu), "wall": float(wall)}


def packages() -> list[str]:
    """What is installed with the library, itself included, without extras."""
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]
    found = {project["name"]}
    waiting = [Requirement(text) for text in project["dependencies"]]
    while waiting:
        requirement = waiting.pop()
        name = requirement.name.lower().replace("_", "-")
        if name not in found and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            found.add(name)
            waiting += map(Requirement, distribution(name).requires or ())
    return sorted(found)


def spread(values: list[float]) -> dict[str, float]:
    return {"median": median(values), "low": min(values), "high": max(values)}


def compared(case: Case, bare: list[dict[str, Any]], ours: list[dict[str, Any]]) -> dict[str, Any]:
    """The rounds of one case as medians; the ratio is that of two processes that ran one after the other."""
    per_unit = 1e6 / case.units
    return {
        "bare_us": spread([each["cpu"] * per_unit for each in bare]),
        "ours_us": spread([each["cpu"] * per_unit for each in ours]),
        "ratio": spread([mine["cpu"] / theirs["cpu"] for mine, theirs in zip(ours, bare, strict=True)]),
        "bare": bare[-1]["counters"],
        "ours": ours[-1]["counters"],
    }


def run(quick: bool, rounds: int) -> dict[str, Any]:
    """All measures, in turn: what disturbs one round disturbs both sides of it."""
    todo = cases(quick)
    taken: dict[tuple[str, str], list[dict[str, Any]]] = {
        (case.name, client): [] for case in todo for client in ("bare", "ours")
    }
    imports: dict[str, list[dict[str, float]]] = {"rxloop": [], "httpx": []}
    with server() as base:
        for number in range(rounds):
            for case in todo:
                for client in ("bare", "ours"):
                    taken[case.name, client].append(measure(case, client, base))
            for module, values in imports.items():
                values.append(measure_import(module))
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
    rows = {case.name: compared(case, taken[case.name, "bare"], taken[case.name, "ours"]) for case in todo}
    few, many = (rows[case.name] for case in todo if case.name.startswith("tool iteration"))
    return {
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "rounds": rounds,
        "cases": rows,
        "growth": {side: many[f"{side}_us"]["median"] / few[f"{side}_us"]["median"] for side in ("bare", "ours")},
        "import": {
            module: {clock: spread([value[clock] for value in values]) for clock in ("cpu", "wall")}
            for module, values in imports.items()
        },
        "packages": packages(),
    }


def show(report: dict[str, Any], earlier: dict[str, Any] | None = None) -> None:
    """The report as a table, beside the ratios of an earlier one."""
    print(f"Python {report['python']}, {report['machine']}, medians of {report['rounds']} rounds (lowest - highest)")
    print(f"\n{'CPU µs':28}{'bare httpx':>24}{'rxloop':>24}{'ratio':>22}")
    for name, row in report["cases"].items():
        cells = [_cell(row["bare_us"], 1), _cell(row["ours_us"], 1), _cell(row["ratio"], 2)]
        print(f"{name:28}{cells[0]:>24}{cells[1]:>24}{cells[2]:>22}{_change(name, row, earlier)}")
    growth = report["growth"]
    print(f"{'growth with K':28}{growth['bare']:>24.2f}{growth['ours']:>24.2f}")
    print(f"\n{'import, ms':28}{'CPU':>24}{'wall':>24}")
    for module, clocks in report["import"].items():
        cells = [_cell(clocks[clock], 0, 1000) for clock in ("cpu", "wall")]
        print(f"{module:28}{cells[0]:>24}{cells[1]:>24}")
    print(f"\n{len(report['packages'])} packages: {', '.join(report['packages'])}")


def _change(name: str, row: dict[str, Any], earlier: dict[str, Any] | None) -> str:
    before = earlier["cases"].get(name) if earlier is not None else None
    if before is None:
        return ""
    was, now = before["ratio"]["median"], row["ratio"]["median"]
    return f"  was {was:.2f} ({now / was - 1:+.0%})"


def _cell(values: dict[str, float], digits: int, factor: float = 1) -> str:
    middle, low, high = (values[name] * factor for name in ("median", "low", "high"))
    return f"{middle:.{digits}f} ({low:.{digits}f} - {high:.{digits}f})"


def main() -> None:
    """Measure, print a table and, if asked, write the figures."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few seconds, to see that it works")
    parser.add_argument("--rounds", type=int, help="how often each measure is taken (7; 1 with --quick)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures, and what was counted, to FILE")
    parser.add_argument(
        "--compare", type=Path, metavar="FILE", help="show the ratios of an earlier --json beside these"
    )
    options = parser.parse_args()
    earlier = json.loads(options.compare.read_text()) if options.compare is not None else None
    report = run(options.quick, options.rounds or (1 if options.quick else 7))
    show(report, earlier)
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
