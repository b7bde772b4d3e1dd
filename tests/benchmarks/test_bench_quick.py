"""The benchmark runs, and what it counts is right. No times here: they mean nothing on a machine that is shared."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

RUN = Path(__file__).parents[2] / "benchmarks" / "run.py"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    file = tmp_path_factory.mktemp("bench") / "report.json"
    subprocess.run([sys.executable, str(RUN), "--quick", "--json", str(file)], check=True, capture_output=True)
    return json.loads(file.read_text())


def test_a_token_makes_one_event_and_no_task(report: dict[str, Any]) -> None:
    ours = report["cases"]["stream, 1 event a read"]["ours"]

    assert ours["content-delta"] == 400
    assert ours["requests"] == ours["llm-call"] == 1
    # The run and the model call; tasks are counted in a run of their own.
    assert ours["tasks"] == 2


def test_a_tool_call_makes_one_request_and_two_tasks(report: dict[str, Any]) -> None:
    few, many = (report["cases"][f"tool iteration, K={count}"]["ours"] for count in (3, 6))

    assert (few["tool-complete"], many["tool-complete"]) == (3, 6)
    assert (few["requests"], many["requests"]) == (4, 7)
    assert many["tasks"] - few["tasks"] == 2 * 3


def test_both_sides_do_the_same_work(report: dict[str, Any]) -> None:
    for case in report["cases"].values():
        assert case["bare"]["requests"] == case["ours"]["requests"]
        assert case["bare"]["characters"] == case["ours"]["characters"] > 0


def test_the_report_names_the_packages(report: dict[str, Any]) -> None:
    assert {"rxloop", "reactivex", "httpx", "pydantic"} <= set(report["packages"])
