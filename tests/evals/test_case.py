"""Tests for cases from lists, files and logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rxloop import ConfigurationError, MemoryEventLog, Message
from rxloop.evals import Case, experiment, score
from rxloop.evals.case import assign_ids
from support.capitals import CASES, agent, make_capital_model


def test_assign_ids_numbers_cases_without_an_id() -> None:
    assert [case.id for case in assign_ids([Case("a"), Case("b", id="mine"), Case("c")])] == ["1", "mine", "3"]


def test_assign_ids_rejects_duplicate_ids() -> None:
    with pytest.raises(ConfigurationError, match="case ids must be unique, got 'a' twice"):
        assign_ids([Case("x", id="a"), Case("y", id="a")])


@pytest.mark.parametrize("cases", [[], ["What?"]])
def test_assign_ids_rejects_empty_lists_and_other_types(cases: list[Any]) -> None:
    with pytest.raises(ConfigurationError, match="case"):
        assign_ids(cases)


def test_case_requires_input_or_both_fork_positions() -> None:
    with pytest.raises(ConfigurationError, match="no input"):
        Case(expected="Oslo")
    with pytest.raises(ConfigurationError, match="both fork_of and fork_at"):
        Case("And?", fork_of="x")


def test_case_read_parses_one_case_per_line(tmp_path: Path) -> None:
    file = tmp_path / "cases.jsonl"
    file.write_text('{"id": 7, "input": "a", "expected": [1], "metadata": {"k": 2}}\n\n{"input": {"x": 1}}\n')
    assert Case.read(file) == [Case("a", [1], id="7", metadata={"k": 2}), Case({"x": 1})]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 is not valid JSON"),
        ("[1]", "line 2 must be an object"),
        ('{"input": "a", "answer": "b"}', "line 2 has unknown field 'answer'"),
        ('{"id": "x"}', "line 2: case 'x' has no input"),
    ],
)
def test_case_read_names_the_invalid_line(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "cases.jsonl"
    file.write_text('{"input": "a"}\n' + line)
    with pytest.raises(ConfigurationError, match=message):
        Case.read(file)


async def test_case_recorded_includes_the_earlier_conversation() -> None:
    log = MemoryEventLog()
    recorded = agent(log=log)
    await recorded.run("Capital of Norway?", context_id="c")
    second = await recorded.run("Capital of Fiji?", context_id="c")
    cases = await Case.from_log(log, expected=True)
    assert [case.expected for case in cases] == ["Oslo", "Suva"]
    assert cases[1].id == second.task_id
    assert [message.text for message in cases[1].input] == ["Capital of Norway?", "Oslo", "Capital of Fiji?"]

    report = await experiment(cases, agent(), [score.exact()]).run()
    assert report.mean("exact") == 1


async def test_case_recorded_filters_runs() -> None:
    log = MemoryEventLog()
    done = await agent(log=log, name="a").run("Capital of Norway?", metadata={"kind": "real"})
    failing = agent(make_capital_model(), log=log, name="b").run("Capital of Norway?")
    with pytest.raises(Exception, match="not on the map"):
        await failing

    async def list_ids(**options: Any) -> list[str]:
        return [case.id for case in await Case.from_log(log, **options)]

    assert await list_ids() == [done.task_id]
    assert await list_ids(agent_name="b", states=["failed"]) == [failing.task_id]
    assert await list_ids(agent_name="b") == []
    assert await list_ids(metadata={"kind": "other"}) == []
    assert await list_ids(metadata={"kind": "real"}, since=0, until=2**62) == [done.task_id]
    assert await list_ids(until=1) == await list_ids(owner="nobody") == []


async def test_case_recorded_omits_runs_of_experiments() -> None:
    log = MemoryEventLog()
    judge = score.judge(make_capital_model(map="x"), "Right?")
    await experiment(CASES[:1], agent(), [score.exact(), judge], name="e", log=log).run()
    assert len(await log.list_runs()) == 2
    assert await Case.from_log(log, states=["completed", "failed"]) == []


async def test_message_inputs_are_reported_as_text() -> None:
    cases = [Case(Message.user("Capital of Fiji?")), Case(["Hi", Message.user("Capital of Fiji?")])]
    report = await experiment(cases, agent(), [score.steps()]).run()
    assert [trial.input for trial in report.trials] == ["Capital of Fiji?", "user: Hi\n\nuser: Capital of Fiji?"]
