"""Costs of tokens, tool calls and imports compared with a bare httpx loop. See `scripts/bench --help`."""

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

from cases import Case, Growth, feature_cases, main_cases, make_growth
from endpoint import HERE, server
from environments import CONTENDERS, CannotInstall, default_folder, environment
from packaging.requirements import Requirement
from tables import Spread, markdown

TRANSPORTS = ("httpx", "aiohttp")
IMPORT_TARGET = 250
IMPORTS = 3
"""Number of measurements per import and round."""
HTTPX, OURS = "import httpx", "from rxloop import Agent"
# Development packages that httpx would load for its command line.
WITHOUT = "import sys; sys.modules.update(dict.fromkeys(('click', 'rich', 'pygments')))"
IMPORT = """
import time
{first}
wall, cpu = time.perf_counter(), time.process_time()
{statement}
print(time.process_time() - cpu, time.perf_counter() - wall)
"""
Samples = dict[tuple[str, str], list[float | None]]
"""Measurements of each round by case and column. None for failures."""


@dataclass(frozen=True, slots=True)
class Column:
    """Measured program."""

    name: str
    client: str
    imports: str
    """Import statement of the program."""
    python: str = sys.executable
    transport: str | None = None
    environment: dict[str, str] = field(default_factory=dict[str, str])


BARE = Column("bare", "bare", HTTPX)


def child(python: str, *arguments: str, **environment: str) -> str:
    """Return the output of a new Python process."""
    # Our Python uses the same path. Other environments have their own.
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
    # Use cached bytecode like normal programs. Otherwise, each start would compile changed modules.
    first = WITHOUT if column.python == sys.executable else ""
    code = IMPORT.format(first=first, statement=column.imports)
    cpu, wall = child(column.python, "-c", code, PYTHONDONTWRITEBYTECODE="").split()
    return {"cpu": float(cpu) * 1_000, "wall": float(wall) * 1_000}


class Round:
    """Single round. The measurements of a row are consecutive, so that disturbances affect all of them."""

    def __init__(self, base: str, columns: list[Column]) -> None:
        self.base = base
        self.columns = columns
        self.failed: list[str] = []
        self.counters: dict[str, dict[str, Any]] = {}

    def main(self, cases: list[Case], samples: Samples) -> None:
        """Measure cases compared with the bare loop."""
        for case in cases:
            for column in self.columns:
                if column is BARE or column.client == "ours" or case.peers:
                    work = (case.against or case.work) if column is BARE else case.work
                    self._take(column, case, work, samples.setdefault((case.name, column.name), []))

    def features(self, cases: list[Case], samples: Samples) -> None:
        """Measure features compared with runs without them."""
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
            # Failure of another framework. Its traceback has been printed.
            self.failed.append(f"{column.name}: {case.name}")
            values.append(None)
            return
        values.append(measured["cost"] / case.units)
        self.counters.setdefault(case.name, {})[column.name] = measured["counters"]


def summary(values: list[float]) -> Spread:
    return {"median": median(values), "low": min(values), "high": max(values)}


def ratios(values: Sequence[float | None], units: Sequence[float | None]) -> list[float]:
    """Return the ratios of rounds with both values."""
    return [value / unit for value, unit in zip(values, units, strict=True) if value is not None and unit is not None]


def row(case: Case, samples: Samples, columns: list[str], unit_of: str | None = "bare") -> dict[str, Any]:
    """Return a table row with costs, and ratios to the baseline of the same round."""
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
    """Return the growth of iteration costs in long runs for each column."""
    both = {
        name: ratios(samples[growth.many, name], samples[growth.few, name])
        for name in columns
        if (growth.few, name) in samples
    }
    found = {name: summary(values) for name, values in both.items() if values}
    limits = {} if growth.target is None else {name: growth.target for name in columns if name.startswith("rxloop")}
    return {"unit": "", "targets": limits, "costs": {"bare": found["bare"]}, "ratios": found}


def packages(*extras: str) -> list[str]:
    """Return packages installed with rxloop and its extras."""
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
    """Benchmark with multiple rounds."""

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
            print(f"Skipping {name}, installation failed: {error}", file=sys.stderr)
            return
        module = f"contenders.with_{name.replace('-', '_')}"
        self.columns.append(Column(name, module, f"import {module}", str(found.python)))
        self.versions[name] = found.packages.get(name) or found.packages[f"{name}-slim"]
        self.packages[name] = list(found.packages)

    def run(self, keep: Path | None) -> dict[str, Any]:
        """Run all rounds, updating the report after each round."""
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
        growth = make_growth(self.cases, self.quick)
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
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short run to check that the benchmark works")
    parser.add_argument("--rounds", type=int, help="number of rounds (default: 7, or 1 with --quick)")
    parser.add_argument(
        "--transport", nargs="+", choices=TRANSPORTS, help="transports (default: httpx, and aiohttp if installed)"
    )
    parser.add_argument("--features", action="store_true", help="also measure the costs of features")
    parser.add_argument(
        "--with", nargs="+", dest="contenders", default=[], choices=CONTENDERS, help="also measure other frameworks"
    )
    parser.add_argument(
        "--envs",
        type=Path,
        dest="environments",
        metavar="FOLDER",
        help="folder of their environments (default: cache folder)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write measurements and counters to FILE")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="also show the ratios of an earlier --json file")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="show an earlier --json file without measuring")
    options = parser.parse_args()
    if options.transport is None:
        # In quick mode, one execution is sufficient, because the counts are the same.
        fast = importlib.util.find_spec("aiohttp") is not None and not options.quick
        options.transport = list(TRANSPORTS if fast else TRANSPORTS[:1])
    if options.environments is None and options.contenders:
        options.environments = default_folder()
    return options


def main() -> None:
    """Run the measurements, print tables, and optionally write the results."""
    options = parsed()
    earlier = json.loads(options.compare.read_text()) if options.compare is not None else None
    if options.markdown is not None:
        report = json.loads(options.markdown.read_text())
    else:
        report = Benchmark(options).run(options.json)
    print(markdown(report, earlier), end="")
    for each in report["failed"]:
        print(f"Failed: {each}", file=sys.stderr)


if __name__ == "__main__":
    main()
