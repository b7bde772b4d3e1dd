"""The benchmark runs, and what it counts is right. No times here: they mean nothing on a machine that is shared."""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RUN = BENCHMARKS / "run.py"
Counts = dict[str, int]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("bench") / "report.json"
    subprocess.run([sys.executable, str(RUN), "--quick", "--json", str(file)], check=True, capture_output=True)
    return file


@pytest.fixture(scope="module")
def report(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text())


def counts(report: dict[str, Any], kind: str, work: str) -> dict[int, Counts]:
    return {int(count): found for count, found in report["counters"][kind][work].items()}


def added(report: dict[str, Any], kind: str, work: str) -> tuple[int, Counts]:
    """How many tokens or calls a longer run had than a shorter one, and what it did more often."""
    (few, short), (many, long), *_ = counts(report, kind, work).items()
    return many - few, {name: long[name] - short[name] for name in long}


@pytest.mark.parametrize("work", ["stream", "three", "text", "logged"])
def test_a_token_copies_validates_encodes_schedules_and_locks_nothing(report: dict[str, Any], work: str) -> None:
    tokens, more = added(report, "tokens", work)

    for name in ("copies", "validations", "tasks", "ids", "subscriptions"):
        assert (name, more[name]) == (name, 0)
    # A few events of a run may be written by the thread of the log, in which nothing is counted.
    assert abs(more["serialisations"]) <= (tokens / 16 if work == "logged" else 0)
    # The flusher of a log, and a read of the socket, take a lock or a timer of their own, for very many tokens at once.
    assert more["locks"] <= tokens / 16
    assert more["timers"] <= tokens / 16


def test_a_token_makes_one_event(report: dict[str, Any]) -> None:
    for tokens, found in counts(report, "tokens", "stream").items():
        assert found["content-delta"] == tokens
        assert found["llm-call"] == found["content-complete"] == found["usage"] == 1
        # The run and the model call.
        assert found["tasks"] == 2


def test_a_token_calls_few_functions_more_than_a_loop_by_hand(report: dict[str, Any]) -> None:
    tokens, ours = added(report, "tokens", "stream")
    _, bare = added(report, "tokens", "bare")

    assert 0 < (ours["calls"] - bare["calls"]) / tokens <= 50


def test_two_more_subscribers_cost_two_calls_each(report: dict[str, Any]) -> None:
    tokens, one = added(report, "tokens", "stream")
    _, three = added(report, "tokens", "three")

    assert (three["calls"] - one["calls"]) / tokens <= 2 * 3


def test_an_event_is_serialised_once_however_many_read_it(report: dict[str, Any]) -> None:
    tokens, one = added(report, "tokens", "sse")
    _, three = added(report, "tokens", "sse_three")

    assert one["serialisations"] == three["serialisations"] == tokens
    assert three["bytes"] == 3 * one["bytes"]


def test_a_tool_call_makes_one_request_and_two_tasks(report: dict[str, Any]) -> None:
    calls, more = added(report, "calls", "tools")

    for name in ("llm-call", "content-complete", "tool-start", "tool-complete", "checkpoint", "usage"):
        assert (name, more[name]) == (name, calls)
    assert more["tasks"] == 2 * calls
    for name in ("copies", "ids", "subscriptions"):
        assert (name, more[name]) == (name, 0)
    # The request, the answer of the model and the result of the tool, each once.
    assert more["serialisations"] == 3 * calls
    # The arguments, once.
    assert more["validations"] == calls


def test_a_tool_call_leaves_next_to_nothing_to_the_garbage_collector(report: dict[str, Any]) -> None:
    calls, ours = added(report, "calls", "tools")
    _, bare = added(report, "calls", "bare")

    # httpx leaves some forty objects a request.
    assert (ours["garbage"] - bare["garbage"]) / calls <= 16


def test_a_tool_call_costs_the_same_late_in_a_run_as_early(report: dict[str, Any]) -> None:
    for work in ("tools", "bare"):
        (_, short), (_, middle), (_, long) = counts(report, "calls", work).items()
        early, late = middle["calls"] - short["calls"], long["calls"] - middle["calls"]

        assert late == pytest.approx(early, rel=0.02)


def test_a_tool_call_calls_few_functions_more_than_a_loop_by_hand(report: dict[str, Any]) -> None:
    _, ours = added(report, "calls", "tools")
    _, bare = added(report, "calls", "bare")

    assert 1 < ours["calls"] / bare["calls"] <= 1.75


def test_with_each_feature_the_work_is_the_same(report: dict[str, Any]) -> None:
    features = report["counters"]["features"]

    assert len(features) == len(import_cases().feature_cases(quick=True))
    for name, found in features.items():
        assert (name, found["with"]["characters"]) == (name, found["without"]["characters"])


def test_both_sides_do_the_same_work(report: dict[str, Any]) -> None:
    for name, done in report["done"].items():
        bare, ours = done["bare"], done["rxloop-httpx"]
        assert (name, bare.get("requests"), bare.get("characters")) == (
            name,
            ours.get("requests"),
            ours.get("characters"),
        )
        assert bare.get("characters", 1) > 0


def test_the_report_names_the_packages(report: dict[str, Any]) -> None:
    assert {"rxloop", "reactivex", "httpx", "pydantic"} <= set(report["packages"]["rxloop"])


def test_a_report_is_shown_again_beside_an_earlier_one(report: dict[str, Any], file: Path) -> None:
    command = [sys.executable, str(RUN), "--markdown", str(file), "--compare", str(file)]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout

    for name, row in report["cases"].items():
        line = next(line for line in shown.splitlines() if line.startswith(f"| {name} "))
        assert line.endswith(f"{row['ratios']['rxloop-httpx']['median']:.2f} |")


def import_cases() -> Any:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return import_module("cases")
    finally:
        sys.path.remove(str(BENCHMARKS))
