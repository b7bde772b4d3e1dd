"""Compare how often agent frameworks repeat or lose an effect when their process is killed.

    python benchmarks/effects.py [--kills 200] [--only NAME ...] [--seed N] [--json FILE] [--envs FOLDER]
    python benchmarks/effects.py --markdown FILE

The same agent looks up an order, refunds it once and writes a note. Each process is killed with SIGKILL at a random
moment of its run, and the run is resumed in a new process as the documents of the framework recommend. The model and
the bank run in another process (`crashes/services.py`) and count the requests. Requires a POSIX system.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

from crashes.worker import Job, Outcome
from environments import CannotInstall, default_folder, environment
from tables import table

CRASHES = Path(__file__).parent / "crashes"
UNDISTURBED = 3
"""Number of recent undisturbed runs. Kills are spread over their median duration."""
INTERVAL = 10
"""Kills between two undisturbed runs, because the load of a shared machine changes."""
RESUMPTIONS = 3
"""Maximum resumptions per run. Later, it counts as unfinished."""
TIME_LIMIT = 30
"""Maximum seconds for undisturbed and resumed runs."""
MODEL_CALLS = 4
"""Model calls per undisturbed run: three tool calls, then an answer."""


@dataclass(frozen=True, slots=True)
class Row:
    """Framework, program and mode of a table row."""

    title: str
    program: str
    packages: str
    """Packages to install. Empty for rxloop."""
    versions: tuple[str, ...]
    """Names of reported packages."""
    mode: str = ""
    policy: str = "accept"


_LANGGRAPH = "langgraph langgraph-checkpoint-sqlite langchain-openai"
_PYDANTIC = "pydantic-ai-slim[openai] pydantic-ai-harness"
_ADK = "google-adk[db] aiosqlite"
_LANGGRAPH_VERSIONS = ("langgraph", "langgraph-checkpoint-sqlite")
_PYDANTIC_VERSIONS = ("pydantic-ai-slim", "pydantic-ai-harness")
ROWS = {
    "rxloop": Row("rxloop", "with_rxloop", "", ("rxloop",)),
    "rxloop-check": Row("rxloop, model checks", "with_rxloop", "", ("rxloop",), policy="check"),
    "rxloop-key": Row("rxloop, key", "with_rxloop", "", ("rxloop",), mode="idempotent"),
    "langgraph": Row("LangGraph", "with_langgraph", _LANGGRAPH, _LANGGRAPH_VERSIONS),
    "langgraph-key": Row("LangGraph, key", "with_langgraph", _LANGGRAPH, _LANGGRAPH_VERSIONS, mode="key"),
    "pydantic-ai": Row("pydantic-ai, `settled`", "with_pydantic_ai", _PYDANTIC, _PYDANTIC_VERSIONS, mode="settled"),
    "pydantic-ai-inspected": Row(
        "pydantic-ai, inspected", "with_pydantic_ai", _PYDANTIC, _PYDANTIC_VERSIONS, mode="inspected"
    ),
    "pydantic-ai-check": Row(
        "pydantic-ai, inspected, model checks",
        "with_pydantic_ai",
        _PYDANTIC,
        _PYDANTIC_VERSIONS,
        mode="inspected",
        policy="check",
    ),
    "pydantic-ai-key": Row("pydantic-ai, key", "with_pydantic_ai", _PYDANTIC, _PYDANTIC_VERSIONS, mode="key"),
    "google-adk": Row("google-adk", "with_google_adk", _ADK, ("google-adk",)),
    "google-adk-key": Row("google-adk, key", "with_google_adk", _ADK, ("google-adk",), mode="key"),
    "openai-agents": Row("openai-agents", "with_openai_agents", "openai-agents", ("openai-agents",)),
    "openai-agents-key": Row(
        "openai-agents, key", "with_openai_agents", "openai-agents", ("openai-agents",), mode="key"
    ),
}


class Worker:
    """Client for a fork server."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def execute(self, job: Job) -> Outcome:
        """Execute a job in a new process."""
        Path(job.folder).mkdir(parents=True, exist_ok=True)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(job)) + "\n")
        self._process.stdin.flush()
        return Outcome(**json.loads(self._process.stdout.readline()))


@contextmanager
def start(command: list[str | Path]) -> Generator[tuple[subprocess.Popen[str], str]]:
    """Start a process and yield its first output line. Closing stdin stops it."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        if not line:
            raise SystemExit(f"{' '.join(map(str, command))} ended at once")
        yield process, line
        process.stdin.close()


class Trials:
    """Runs for one table row."""

    def __init__(self, row: Row, worker: Worker, url: str, folder: Path) -> None:
        self._row, self._worker, self._url, self._folder = row, worker, url, folder

    def begin(self, seconds: float = TIME_LIMIT) -> tuple[Job, Outcome]:
        """Start a new run."""
        run = str(uuid4())
        folder = self._folder / run
        job = Job(run, str(folder), f"{self._url}/{self._row.policy}/{run}", mode=self._row.mode, seconds=seconds)
        return job, self._worker.execute(job)

    def resume(self, job: Job) -> Outcome:
        """Resume a killed run until it finishes."""
        job = replace(job, resume=True, seconds=TIME_LIMIT)
        outcome = self._worker.execute(job)
        for _ in range(RESUMPTIONS - 1):
            if outcome.output is not None:
                break
            outcome = self._worker.execute(job)
        return outcome

    def read_counts(self, job: Job) -> dict[str, Any]:
        """Fetch service counters for a run."""
        with urllib.request.urlopen(job.url) as response:
            return json.load(response)


def measure(row: Row, python: Path, url: str, kills: int, seed: int) -> dict[str, Any]:
    """Kill and resume runs, and return the counts."""
    random = Random(f"{seed} {row.title}")
    counts: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    notices: set[str] = set()
    with TemporaryDirectory() as folder, start([python, CRASHES / "worker.py", row.program]) as (process, _):
        trials = Trials(row, Worker(process), url, Path(folder))
        durations = [measure_duration(trials) for _ in range(UNDISTURBED)]
        while counts["kills"] < kills:
            if len(durations) < UNDISTURBED + counts["kills"] // INTERVAL:
                durations.append(measure_duration(trials))
            seconds = statistics.median(durations[-UNDISTURBED:])
            job, outcome = trials.begin(random.uniform(0, seconds))
            if not outcome.killed:
                if outcome.error is not None:
                    raise SystemExit(f"{row.title} failed before its kill: {outcome.error}")
                continue
            outcome = trials.resume(job)
            found = trials.read_counts(job)
            counts += count(found, outcome)
            notices |= set(found["notices"].values())
            if outcome.output is None:
                errors[outcome.error or f"not finished after {TIME_LIMIT} s"] += 1
    return {
        "title": row.title,
        "seconds": statistics.median(durations),
        "errors": errors,
        "notices": sorted(notices),
        **counts,
    }


def measure_duration(trials: Trials) -> float:
    """Return the seconds of an undisturbed run."""
    job, outcome = trials.begin()
    counts = trials.read_counts(job)
    if (
        outcome.output is None
        or counts["requests"] != MODEL_CALLS
        or counts["effects"] != {"refund": 1, "write_note": 1}
    ):
        raise SystemExit(f"undisturbed runs must have each effect once, got {counts} and {outcome}")
    return outcome.seconds


def count(found: dict[str, Any], outcome: Outcome) -> Counter[str]:
    """Count faults after a kill and resumption."""
    counts = Counter(kills=1)
    refunds, notes = found["effects"].get("refund", 0), found["effects"].get("write_note", 0)
    counts["unfinished"] += outcome.output is None
    counts["double_refunds"] += refunds > 1
    counts["missing_refunds"] += refunds == 0
    counts["double_notes"] += notes > 1
    counts["missing_notes"] += notes == 0
    counts["extra_calls"] += max(0, found["requests"] - MODEL_CALLS)
    counts["interrupted"] += any(found["interrupted"].get(tool) for tool in ("refund", "write_note"))
    counts["told"] += bool(found["notices"])
    return counts


def markdown(report: dict[str, Any]) -> str:
    """Format the report."""
    columns = {
        "double refunds": "double_refunds",
        "missing refunds": "missing_refunds",
        "double notes": "double_notes",
        "missing notes": "missing_notes",
        "unfinished runs": "unfinished",
        "repeated model calls": "extra_calls",
        "killed during an effect": "interrupted",
        "model told": "told",
    }
    rows = [["framework", "kills", "run, ms", *columns]]
    for row in report["rows"].values():
        cells = [str(row.get(column, 0)) for column in columns.values()]
        rows.append([row["title"], str(row["kills"]), f"{row['seconds'] * 1_000:.0f}", *cells])
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    head = f"Seed {report['seed']}, Python {report['python']}, {versions}."
    return f"{head}\n\n{table(rows)}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--only", nargs="+", choices=list(ROWS), default=list(ROWS), metavar="NAME")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="rows measured concurrently")
    parser.add_argument("--model-ms", type=float, default=60)
    parser.add_argument("--tool-ms", type=float, default=60)
    parser.add_argument("--envs", type=Path, default=default_folder())
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path, help="print a stored report")
    options = parser.parse_args()
    if options.markdown is not None:
        print(markdown(json.loads(options.markdown.read_text())))
        return
    latencies = ["--model-ms", str(options.model_ms), "--tool-ms", str(options.tool_ms)]
    report: dict[str, Any] = {"kills": options.kills, "seed": options.seed, "python": platform.python_version()}
    report |= {"model_ms": options.model_ms, "tool_ms": options.tool_ms, "versions": {}, "rows": {}}
    with start([sys.executable, CRASHES / "services.py", *latencies]) as (_, port):
        pythons: dict[str, Path] = {}
        for name in options.only:
            row = ROWS[name]
            try:
                pythons[name], packages = prepare(row, options.envs)
            except CannotInstall as error:
                print(f"{row.title} is skipped: {error}", file=sys.stderr)
            else:
                report["versions"] |= {package: packages[package] for package in row.versions}

        def measure_row(name: str) -> dict[str, Any]:
            result = measure(ROWS[name], pythons[name], f"http://127.0.0.1:{port}", options.kills, options.seed)
            print(f"{name}: {result}", file=sys.stderr, flush=True)
            return result

        with ThreadPoolExecutor(options.jobs) as pool:
            report["rows"] = dict(zip(pythons, pool.map(measure_row, pythons), strict=True))
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=2))
    print(markdown(report))


def prepare(row: Row, folder: Path) -> tuple[Path, dict[str, str]]:
    """Return a Python executable and package versions for a row."""
    if not row.packages:
        from rxloop import __version__

        return Path(sys.executable), {"rxloop": __version__}
    found = environment(f"effects-{row.program.removeprefix('with_')}", folder, row.packages)
    return found.python, found.packages


if __name__ == "__main__":
    main()
