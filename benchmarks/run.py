"""What a token, a tool call and an import cost, beside a bare httpx loop. See `scripts/bench --help`."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import distribution
from pathlib import Path
from statistics import median
from typing import Any

from cases import Case, Growth, feature_cases, growth_of, main_cases
from endpoint import HERE, server
from environments import CONTENDERS, CannotInstall, default_folder, environment
from packaging.requirements import Requirement
from tables import Spread, markdown

TRANSPORTS = ("httpx", "aiohttp")
IMPORT_TARGET = 250
IMPORTS = 3
"""How often each import is measured in a round."""
HTTPX, OURS = "import httpx", "from rxloop import Agent"
# What only an environment for development has: httpx would load it for a command line of its own.
WITHOUT = "import sys; sys.modules.update(dict.fromkeys(('click', 'rich', 'pygments')))"
IMPORT = """
import time
{first}
wall, cpu = time.perf_counter(), time.process_time()
{statement}
print(time.process_time() - cpu, time.perf_counter() - wall)
"""
Samples = dict[tuple[str, str], list[float | None]]
"""What was measured in each round, by the name of the case and the column; None where it failed."""


@dataclass(frozen=True, slots=True)
class Column:
    """One who is measured."""

    name: str
    client: str
    imports: str
    """What a program has to load, as a statement."""
    python: str = sys.executable
    transport: str | None = None
    environment: dict[str, str] = field(default_factory=dict[str, str])


BARE = Column("bare", "bare", HTTPX)


def child(python: str, *arguments: str, **environment: str) -> str:
    """What a fresh Python prints."""
    # An own Python sees what this one sees; that of another environment has a path of its own.
    path = [str(HERE), *([os.environ["PYTHONPATH"]] if python == sys.executable and "PYTHONPATH" in os.environ else [])]
    given = {**os.environ, "PYTHONPATH": os.pathsep.join(path), **environment}
    return subprocess.run([python, *arguments], check=True, stdout=subprocess.PIPE, text=True, env=given).stdout


def ours(transport: str) -> Column:
    return Column(f"rxloop-{transport}", "ours", OURS, sys.executable, transport, {"RXLOOP_TRANSPORT": transport})


def measure(column: Column, case: Case, work: str, base: str) -> dict[str, Any]:
    script = str(HERE / "measure.py")
    arguments = [column.client, work, f"{base}/{case.path}", str(case.warm_up), str(case.times), str(case.many)]
    return json.loads(child(column.python, script, *arguments, **column.environment))


def measure_import(column: Column) -> dict[str, float]:
    # With bytecode, as programs are started: where Python may not write it, each start would compile what has changed.
    first = WITHOUT if column.python == sys.executable else ""
    code = IMPORT.format(first=first, statement=column.imports)
    cpu, wall = child(column.python, "-c", code, PYTHONDONTWRITEBYTECODE="").split()
    return {"cpu": float(cpu) * 1_000, "wall": float(wall) * 1_000}


class Round:
    """Takes each measure once, those of one row right after each other: what disturbs one disturbs all."""

    def __init__(self, base: str, columns: list[Column]) -> None:
        self.base = base
        self.columns = columns
        self.failed: list[str] = []
        self.counters: dict[str, dict[str, Any]] = {}

    def main(self, cases: list[Case], samples: Samples) -> None:
        """The cases beside the bare loop."""
        for case in cases:
            for column in self.columns:
                if column is BARE or column.client == "ours" or case.peers:
                    work = (case.against or case.work) if column is BARE else case.work
                    self._take(column, case, work, samples.setdefault((case.name, column.name), []))

    def features(self, cases: list[Case], samples: Samples) -> None:
        """The cases beside the library without them."""
        for column in self.columns:
            if column.client != "ours":
                continue
            units: dict[tuple[str, str], float] = {}
            for case in cases:
                key = (case.path, case.against or case.work)
                if key not in units:
                    units[key] = measure(column, case, key[1], self.base)["cost"] / case.units
                samples.setdefault((case.name, f"{column.name} without"), []).append(units[key])
                self._take(column, case, case.work, samples.setdefault((case.name, column.name), []))

    def _take(self, column: Column, case: Case, work: str, values: list[float | None]) -> None:
        try:
            measured = measure(column, case, work, self.base)
        except subprocess.CalledProcessError:
            if column is BARE or column.client == "ours":
                raise
            # Somebody else's failure; its trace has been shown.
            self.failed.append(f"{column.name}: {case.name}")
            values.append(None)
            return
        values.append(measured["cost"] / case.units)
        self.counters.setdefault(case.name, {})[column.name] = measured["counters"]


def summary(values: list[float]) -> Spread:
    return {"median": median(values), "low": min(values), "high": max(values)}


def ratios(values: Sequence[float | None], units: Sequence[float | None]) -> list[float]:
    """The ratios within each round that has both."""
    return [value / unit for value, unit in zip(values, units, strict=True) if value is not None and unit is not None]


def row(case: Case, samples: Samples, columns: list[str], unit_of: str | None = "bare") -> dict[str, Any]:
    """A row of a table: costs, and ratios to the unit in the same round."""
    measured = {name: samples[case.name, name] for name in columns if (case.name, name) in samples}
    costs = {
        name: found for name, values in measured.items() if (found := [each for each in values if each is not None])
    }

    def against(name: str) -> Spread:
        return summary(ratios(measured[name], samples[case.name, unit_of or f"{name} without"]))

    return {
        "unit": case.unit,
        "targets": {f"rxloop-{transport}": limit for transport, limit in case.targets.items()},
        "costs": {name: summary(values) for name, values in costs.items()},
        "ratios": {name: against(name) for name in costs if name != unit_of},
        "samples": measured,
    }


def growth_row(growth: Growth, samples: Samples, columns: list[str]) -> dict[str, Any]:
    """How much dearer an iteration of a long run is, for each column by itself."""
    both = {
        name: ratios(samples[growth.many, name], samples[growth.few, name])
        for name in columns
        if (growth.few, name) in samples
    }
    found = {name: summary(values) for name, values in both.items() if values}
    limits = {} if growth.target is None else {name: growth.target for name in columns if name.startswith("rxloop")}
    return {"unit": "", "targets": limits, "costs": {"bare": found["bare"]}, "ratios": found}


def packages(*extras: str) -> list[str]:
    """What is installed with the library, itself included, and with extras of it."""
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]
    found = {project["name"]}
    waiting = [Requirement(text) for text in project["dependencies"]]
    for extra in extras:
        waiting += [Requirement(text) for text in project["optional-dependencies"][extra]]
    while waiting:
        requirement = waiting.pop()
        name = requirement.name.lower().replace("_", "-")
        if name not in found and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            found.add(name)
            waiting += map(Requirement, distribution(name).requires or ())
    return sorted(found)


class Benchmark:
    """All measures, round after round."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.quick: bool = options.quick
        self.rounds: int = options.rounds or (1 if options.quick else 7)
        self.cases = main_cases(options.quick)
        self.extra = feature_cases(options.quick) if options.features else []
        self.columns = [BARE, *map(ours, options.transport)]
        self.versions: dict[str, str] = {}
        self.packages = {"rxloop": packages()}
        if "aiohttp" in options.transport:
            self.packages["rxloop[fast]"] = packages("fast")
        for name in options.contenders:
            self._invite(name, options.environments)

    def _invite(self, name: str, folder: Path) -> None:
        try:
            found = environment(name, folder)
        except CannotInstall as error:
            print(f"skipped {name}, which could not be installed: {error}", file=sys.stderr)
            return
        module = f"contenders.with_{name.replace('-', '_')}"
        self.columns.append(Column(name, module, f"import {module}", str(found.python)))
        self.versions[name] = found.packages.get(name) or found.packages[f"{name}-slim"]
        self.packages[name] = list(found.packages)

    def run(self, keep: Path | None) -> dict[str, Any]:
        """Measure, and keep what there is after each round."""
        samples: Samples = {}
        features: Samples = {}
        imports: dict[str, list[dict[str, float]]] = {}
        report: dict[str, Any] = {}
        with server() as base:
            counters = json.loads(child(sys.executable, str(HERE / "counters.py"), base, RXLOOP_TRANSPORT="httpx"))
            this = Round(base, self.columns)
            for number in range(1, self.rounds + 1):
                this.main(self.cases, samples)
                this.features(self.extra, features)
                for _ in range(1 if self.quick else IMPORTS):
                    for column in {column.imports: column for column in self.columns}.values():
                        imports.setdefault(column.imports, []).append(measure_import(column))
                print(f"round {number} of {self.rounds}", file=sys.stderr)
                report = self._report(number, samples, features, imports)
                report.update(done=this.counters, counters=counters, failed=this.failed)
                if keep is not None:
                    keep.write_text(json.dumps(report, indent=1) + "\n")
        return report

    def _report(
        self, rounds: int, samples: Samples, features: Samples, imports: dict[str, list[dict[str, float]]]
    ) -> dict[str, Any]:
        names = [column.name for column in self.columns]
        rows = {case.name: row(case, samples, names) for case in self.cases}
        growth = growth_of(self.cases, self.quick)
        return {
            "python": platform.python_version(),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "rounds": rounds,
            "columns": names,
            "versions": self.versions,
            "cases": {**rows, growth.name: growth_row(growth, samples, names)},
            "features": {case.name: row(case, features, names, None) for case in self.extra},
            "imports": {
                statement: {
                    **{clock: summary([value[clock] for value in values]) for clock in ("cpu", "wall")},
                    "ratio": summary(ratios(*([each["cpu"] for each in found] for found in (values, imports[HTTPX])))),
                    "target": IMPORT_TARGET if statement == OURS and not self.quick else None,
                }
                for statement, values in imports.items()
            },
            "packages": self.packages,
        }


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few seconds, to see that it works")
    parser.add_argument("--rounds", type=int, help="how often each measure is taken (7; 1 with --quick)")
    parser.add_argument("--transport", nargs="+", choices=TRANSPORTS, help="httpx, and aiohttp where it is installed")
    parser.add_argument("--features", action="store_true", help="measure what it costs to turn each feature on, too")
    parser.add_argument(
        "--with", nargs="+", dest="contenders", default=[], choices=CONTENDERS, help="measure other frameworks, too"
    )
    parser.add_argument(
        "--envs", type=Path, dest="environments", metavar="FOLDER", help="where their environments are kept (the cache)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures, and what was counted, to FILE")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="show the ratios of an earlier --json, too")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="measure nothing: show an earlier --json")
    options = parser.parse_args()
    if options.transport is None:
        # In quick passes one is enough: what they look at is the same.
        fast = importlib.util.find_spec("aiohttp") is not None and not options.quick
        options.transport = list(TRANSPORTS if fast else TRANSPORTS[:1])
    if options.environments is None and options.contenders:
        options.environments = default_folder()
    return options


def main() -> None:
    """Measure, print tables and, if asked, write the figures."""
    options = parsed()
    earlier = json.loads(options.compare.read_text()) if options.compare is not None else None
    if options.markdown is not None:
        report = json.loads(options.markdown.read_text())
    else:
        report = Benchmark(options).run(options.json)
    print(markdown(report, earlier), end="")
    for each in report["failed"]:
        print(f"failed: {each}", file=sys.stderr)


if __name__ == "__main__":
    main()
