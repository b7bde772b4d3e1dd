"""Cases: from a list, from a file, and out of a log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rxloop import ConfigurationError, MemoryEventLog, Message
from rxloop.evals import Case, experiment, score
from rxloop.evals.case import numbered
from support.capitals import CASES, agent, make_capital_model


def test_a_case_without_an_id_is_called_by_its_place() -> None:
    assert [case.id for case in numbered([Case("a"), Case("b", id="mine"), Case("c")])] == ["1", "mine", "3"]


def test_two_cases_of_one_id_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="case ids must be unique, got 'a' twice"):
        numbered([Case("x", id="a"), Case("y", id="a")])


@pytest.mark.parametrize("cases", [[], ["What?"]])
def test_what_is_no_list_of_cases_is_refused(cases: list[Any]) -> None:
    with pytest.raises(ConfigurationError, match="case"):
        numbered(cases)


def test_a_case_needs_an_input_and_a_fork_needs_both_its_places() -> None:
    with pytest.raises(ConfigurationError, match="no input"):
        Case(expected="Oslo")
    with pytest.raises(ConfigurationError, match="both fork_of and fork_at"):
        Case("And?", fork_of="x")


def test_cases_are_read_from_a_file_with_one_a_line(tmp_path: Path) -> None:
    file = tmp_path / "cases.jsonl"
    file.write_text('{"id": 7, "input": "a", "expected": [1], "metadata": {"k": 2}}\n\n{"input": {"x": 1}}\n')
    assert Case.read(file) == [Case("a", [1], id="7", metadata={"k": 2}), Case({"x": 1})]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2 is not JSON"),
        ("[1]", "line 2 is not an object"),
        ('{"input": "a", "answer": "b"}', "line 2 has 'answer', which no case has"),
        ('{"id": "x"}', "line 2: the case 'x' has no input"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, said: str) -> None:
    file = tmp_path / "cases.jsonl"
    file.write_text('{"input": "a"}\n' + line)
    with pytest.raises(ConfigurationError, match=said):
        Case.read(file)


async def test_recorded_runs_are_cases_with_the_conversation_before_them() -> None:
    log = MemoryEventLog()
    asked = agent(log=log)
    await asked.run("Capital of Norway?", context_id="c")
    second = await asked.run("Capital of Fiji?", context_id="c")
    cases = await Case.recorded(log, expected=True)
    assert [case.expected for case in cases] == ["Oslo", "Suva"]
    assert cases[1].id == second.task_id
    assert [message.text for message in cases[1].input] == ["Capital of Norway?", "Oslo", "Capital of Fiji?"]

    report = await experiment(cases, agent(), [score.exact()]).run()
    assert report.mean("exact") == 1


async def test_recorded_runs_are_chosen_as_the_log_chooses_them() -> None:
    log = MemoryEventLog()
    done = await agent(log=log, name="a").run("Capital of Norway?", metadata={"kind": "real"})
    failing = agent(make_capital_model(), log=log, name="b").run("Capital of Norway?")
    with pytest.raises(Exception, match="not on the map"):
        await failing

    async def ids(**options: Any) -> list[str]:
        return [case.id for case in await Case.recorded(log, **options)]

    assert await ids() == [done.task_id]
    assert await ids(agent_name="b", states=["failed"]) == [failing.task_id]
    assert await ids(agent_name="b") == []
    assert await ids(metadata={"kind": "other"}) == []
    assert await ids(metadata={"kind": "real"}, since=0, until=2**62) == [done.task_id]
    assert await ids(until=1) == await ids(owner="nobody") == []


async def test_the_runs_of_an_experiment_are_no_cases() -> None:
    log = MemoryEventLog()
    judge = score.judge(make_capital_model(map="x"), "Right?")
    await experiment(CASES[:1], agent(), [score.exact(), judge], name="e", log=log).run()
    assert len(await log.list_runs()) == 2
    assert await Case.recorded(log, states=["completed", "failed"]) == []


async def test_a_message_is_a_case_and_reads_as_text_in_the_report() -> None:
    cases = [Case(Message.user("Capital of Fiji?")), Case(["Hi", Message.user("Capital of Fiji?")])]
    report = await experiment(cases, agent(), [score.steps()]).run()
    assert [trial.input for trial in report.trials] == ["Capital of Fiji?", "user: Hi\n\nuser: Capital of Fiji?"]
