"""Reports, thresholds and errors of `rxloop eval`."""

from __future__ import annotations

import json
import signal
import sys

import orjson
import pytest

from rxloop.evals import Report
from support.cli_workspace import Workspace

EVALS = """
import os
import sys

from rxloop import Agent, MemoryEventLog, SqliteEventLog
from rxloop.evals import Case, experiment, score
from rxloop.testing import ScriptedModel, frames

cases = [Case(f"{n} + 1?", expected=str(n + 1), id=f"c{n}") for n in range(4)]


def answers(wrong):
    def answer(request):
        with open("asked", "a") as asked:
            asked.write("x")
        number = int(request.messages[-1].text.split()[0])
        if number in map(int, os.environ.get("BROKEN", "").split()):
            raise RuntimeError("\\x1b[31mbroken\\x07")
        return "wrong" if number in wrong else str(number + 1)

    return ScriptedModel(*[answer] * 100)


def agent(*wrong):
    return Agent(answers([*wrong, *map(int, os.environ.get("WRONG", "").split())]), thoughts=False)


sums = experiment(cases, agent(), [score.exact()], name="sums")
both = experiment(cases, {"good": agent(), "bad": agent(0, 1, 2)}, [score.exact(), score.steps()], name="both")


def made():
    return experiment(cases, agent(), [score.exact()], name="made", log=SqliteEventLog("evals.db"))


def slow():
    def answer(request):
        print("begun", file=sys.stderr, flush=True)
        return "1" if os.environ.get("FAST") else frames("---")

    agent = Agent(ScriptedModel(*[answer] * 9), thoughts=False)
    return experiment(cases[:1], agent, [score.exact()], name="slow", log=SqliteEventLog("evals.db"))


async def recorded():
    log = MemoryEventLog()
    await agent().with_log(log).run("6 + 1?")
    return experiment(await Case.from_log(log, expected=True), agent(), [score.exact()])


def broken():
    raise ValueError("no such file")


def broken_score(result):
    raise ValueError("cannot score")


scored = experiment(cases, agent(), [broken_score, score.exact()])
number = 5
"""


@pytest.fixture
def evals(workspace: Workspace) -> Workspace:
    (workspace.folder / "evals.py").write_text(EVALS, encoding="utf-8")
    return workspace


def run(workspace: Workspace, *arguments: str, code: int = 0, **env: str) -> tuple[str, str]:
    """Run the command with a freshly imported module."""
    sys.modules.pop("evals", None)
    done = workspace.run("eval", *arguments, code=code, **{"WRONG": "", "BROKEN": "", **env})
    return done.stdout, done.stderr


def test_eval_prints_a_table(evals: Workspace) -> None:
    out, error = run(evals, "evals:both")
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["both:", "8", "of", "8", "trials,", "4", "cases"]
    assert ["GOOD", "BAD"] in lines
    assert ["exact", "1", "[1,", "1]", "0.25", "[0,", "0.75]"] in lines
    assert error == ""


def test_report_is_written_to_files_and_stdout(evals: Workspace) -> None:
    out, _ = run(evals, "evals:sums", "--out", "report.json", "--html", "report.html", "--json")
    report = Report.from_json((evals.folder / "report.json").read_bytes())
    assert report.mean("exact") == 1
    assert orjson.loads(out) == json.loads(report.to_json())
    assert (evals.folder / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("threshold", "code"), [("exact=0.75", 0), ("exact=0.76", 1), ("agent/exact=0.9", 1), ("exact=0", 0)]
)
def test_mean_below_its_threshold_fails(evals: Workspace, threshold: str, code: int) -> None:
    _, error = run(evals, "evals:sums", "--fail-under", threshold, code=code, WRONG="2")
    assert ("! exact of agent is 0.75, but must be at least" in error) == bool(code)


def test_threshold_applies_to_all_variants_or_to_one(evals: Workspace) -> None:
    run(evals, "evals:both", "--fail-under", "good/exact=0.9")
    _, error = run(evals, "evals:both", "--fail-under", "exact=0.9", code=1)
    assert "exact of bad" in error
    assert "exact of good" not in error


def test_threshold_of_a_failed_scorer_fails(evals: Workspace) -> None:
    out, _ = run(evals, "evals:scored")
    assert "-, 4 errors" in out
    _, error = run(evals, "evals:scored", "--fail-under", "broken_score=0", code=1)
    assert "failed for 4 of 4 trials" in error


def test_clearly_worse_report_fails(evals: Workspace) -> None:
    run(evals, "evals:sums", "--out", "before.json")
    out, _ = run(evals, "evals:sums", "--compare", "before.json")
    assert "same" in out
    out, error = run(evals, "evals:sums", "--compare", "before.json", code=1, WRONG="0 1 2 3")
    assert "- exact (agent), c0: 1 > 0" in out
    assert "! exact of agent is worse than before" in error
    out, _ = run(evals, "evals:sums", "--compare", "before.json", WRONG="3")
    assert "unclear" in out


def test_failed_runs_are_shown_and_only_a_complete_failure_fails(evals: Workspace) -> None:
    out, _ = run(evals, "evals:sums", BROKEN="1")
    assert "! agent, c1: " in out
    assert "\x1b" not in out
    _, error = run(evals, "evals:sums", code=1, BROKEN="0 1 2 3")
    assert "! all runs failed" in error


def test_experiment_of_a_function_with_a_log_reuses_answers(evals: Workspace) -> None:
    for _ in range(2):
        out, _ = run(evals, "evals.py:made", "--fail-under", "exact=1")
        assert "4 of 4 trials" in out
    assert (evals.folder / "asked").read_text() == "xxxx"


def test_async_function_can_create_the_experiment_from_a_log(evals: Workspace) -> None:
    out, _ = run(evals, "evals:recorded")
    assert "1 of 1 trials" in out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["evals:number"], "must be an Experiment or a function"),
        (["evals:broken"], "did not create an experiment: ValueError: no such file"),
        (["evals:nothing"], "missing attribute 'nothing' in "),
        (["evals"], "expected module:object"),
        (["evals:sums", "--fail-under", "exact"], "must be SCORER=MEAN"),
        (["evals:sums", "--fail-under", "exact=much"], "must be SCORER=MEAN"),
        (["evals:sums", "--fail-under", "exakt=1"], "unknown scorer exakt; use exact"),
        (["evals:sums", "--fail-under", "large/exact=1"], "unknown variant large; use agent"),
        (["evals:sums", "--compare", "evals.py"], "must be a report"),
    ],
)
def test_invalid_usage_is_reported_before_model_calls(evals: Workspace, arguments: list[str], expected: str) -> None:
    _, error = run(evals, *arguments, code=2)
    assert expected in error
    assert not (evals.folder / "asked").exists()


def test_missing_report_file_is_named(evals: Workspace) -> None:
    _, error = run(evals, "evals:sums", "--compare", "before.json", code=2)
    assert "'before.json': No such file" in error
    assert not (evals.folder / "asked").exists()


def test_experiment_continues_after_ctrl_c(evals: Workspace) -> None:
    process = evals.process("eval", "evals:slow")
    assert process.stderr is not None
    assert process.stderr.readline() == b"begun\n"
    process.send_signal(signal.SIGINT)
    out, output = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, b"")
    assert output == b"cancelled; repeat the command to continue\n"
    out, _ = run(evals, "evals:slow", FAST="1")
    assert "1 of 1 trials" in out
    assert "! " not in out
