"""Counters of the benchmark. Times are not checked, because the machine may be shared."""

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


def read_counts(report: dict[str, Any], kind: str, work: str) -> dict[int, Counts]:
    return {int(count): found for count, found in report["counters"][kind][work].items()}


def find_difference(report: dict[str, Any], kind: str, work: str) -> tuple[int, Counts]:
    """Return the difference of tokens or calls between two runs, and the differences of their counters."""
    (few, short), (many, long), *_ = read_counts(report, kind, work).items()
    return many - few, {name: long[name] - short[name] for name in long}


@pytest.mark.parametrize("work", ["stream", "three", "text", "logged"])
def test_token_causes_no_copies_validation_encoding_scheduling_or_locks(report: dict[str, Any], work: str) -> None:
    tokens, more = find_difference(report, "tokens", work)

    for name in ("copies", "validations", "ids", "subscriptions"):
        assert (name, more[name]) == (name, 0)
    # The log thread, which is not measured, may write some events, and each flush of a log is a task.
    for name in ("serialisations", "tasks"):
        assert (name, abs(more[name])) <= (name, tokens / 16 if work == "logged" else 0)
    # Locks and timers for flushes and socket reads are shared by many tokens.
    assert more["locks"] <= tokens / 16
    assert more["timers"] <= tokens / 16


def test_token_creates_one_event(report: dict[str, Any]) -> None:
    for tokens, found in read_counts(report, "tokens", "stream").items():
        assert found["content-delta"] == tokens
        assert found["llm-call"] == found["content-complete"] == found["usage"] == 1
        # One each for the run and the model call.
        assert found["tasks"] == 2


def test_token_needs_few_more_calls_than_a_manual_loop(report: dict[str, Any]) -> None:
    tokens, ours = find_difference(report, "tokens", "stream")
    _, bare = find_difference(report, "tokens", "bare")

    assert 0 < (ours["calls"] - bare["calls"]) / tokens <= 50


def test_each_additional_subscriber_costs_two_calls(report: dict[str, Any]) -> None:
    tokens, one = find_difference(report, "tokens", "stream")
    _, three = find_difference(report, "tokens", "three")

    assert (three["calls"] - one["calls"]) / tokens <= 2 * 3


def test_event_is_serialised_once_for_all_readers(report: dict[str, Any]) -> None:
    tokens, one = find_difference(report, "tokens", "sse")
    _, three = find_difference(report, "tokens", "sse_three")

    assert one["serialisations"] == three["serialisations"] == tokens
    size, remainder = divmod(three["bytes"], 3)
    assert remainder == 0
    # The durations in the final message of each run have a different number of digits.
    assert abs(size - one["bytes"]) < 20


def test_tool_call_creates_one_request_and_two_tasks(report: dict[str, Any]) -> None:
    calls, more = find_difference(report, "calls", "tools")

    for name in ("llm-call", "content-complete", "tool-start", "tool-complete", "checkpoint", "usage"):
        assert (name, more[name]) == (name, calls)
    assert more["tasks"] == 2 * calls
    for name in ("copies", "ids", "subscriptions"):
        assert (name, more[name]) == (name, 0)
    # Once each for the model response and the tool result, because the rest of the request does not change.
    assert more["serialisations"] == 2 * calls
    # Once for the arguments.
    assert more["validations"] == calls


def test_tool_call_creates_almost_no_garbage(report: dict[str, Any]) -> None:
    calls, ours = find_difference(report, "calls", "tools")
    _, bare = find_difference(report, "calls", "bare")

    # httpx creates about 40 objects per request of the manual loop, half of them to search its response for cookies.
    assert (ours["garbage"] - bare["garbage"]) / calls <= 0


def test_cost_of_a_tool_call_does_not_grow_during_a_run(report: dict[str, Any]) -> None:
    for work in ("tools", "bare"):
        (_, short), (_, middle), (_, long) = read_counts(report, "calls", work).items()
        early, late = middle["calls"] - short["calls"], long["calls"] - middle["calls"]

        assert late == pytest.approx(early, rel=0.02)


def test_tool_call_needs_few_more_calls_than_a_manual_loop(report: dict[str, Any]) -> None:
    _, ours = find_difference(report, "calls", "tools")
    _, bare = find_difference(report, "calls", "bare")

    assert 1 < ours["calls"] / bare["calls"] <= 1.3


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="the number of bytecodes depends on the version of Python")
def test_tool_call_executes_few_more_bytecodes_than_a_manual_loop(report: dict[str, Any]) -> None:
    _, ours = find_difference(report, "calls", "tools")
    _, bare = find_difference(report, "calls", "bare")

    assert 1 < ours["bytecodes"] / bare["bytecodes"] <= 1.42


def test_features_do_not_change_the_work(report: dict[str, Any]) -> None:
    features = report["counters"]["features"]

    assert len(features) == len(import_cases().feature_cases(quick=True))
    for name, found in features.items():
        assert (name, found["with"]["characters"]) == (name, found["without"]["characters"])


def test_contenders_do_the_same_work(report: dict[str, Any]) -> None:
    for name, done in report["done"].items():
        bare, ours = done["bare"], done["rxloop-httpx"]
        assert (name, bare.get("requests"), bare.get("characters")) == (
            name,
            ours.get("requests"),
            ours.get("characters"),
        )
        assert bare.get("characters", 1) > 0


def test_report_lists_the_packages(report: dict[str, Any]) -> None:
    assert {"rxloop", "reactivex", "httpx", "pydantic"} <= set(report["packages"]["rxloop"])


def test_report_is_compared_with_an_earlier_report(report: dict[str, Any], file: Path) -> None:
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
