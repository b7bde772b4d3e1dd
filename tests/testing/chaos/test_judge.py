"""The judge finds what must not be: a log, effects and acknowledgements with one thing wrong each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rxloop import Event, MemoryEventLog
from rxloop.protocol.events import LLMCallEvent, StatusUpdateEvent, TaskEvent, ToolCompleteEvent
from rxloop.protocol.messages import ToolCall
from rxloop.testing.chaos._judge import Judge, seen
from rxloop.testing.chaos.report import Report


def stamped(events: Sequence[Event], task_id: str = "r", context_id: str = "c", begins: int = 0) -> list[Event]:
    """Events with their places, one a second; those of the second attempt begin with the word that it is one."""
    attempt, done = 1, list[Event]()
    for seq, event in enumerate(events, 1):
        attempt += isinstance(event, StatusUpdateEvent) and event.resumed
        place = {"seq": seq, "attempt": attempt, "timestamp": 1000 * (begins + seq)}
        done.append(event.model_copy(update={"task_id": task_id, "context_id": context_id, **place}))
    return done


def task() -> TaskEvent:
    return TaskEvent(messages=[], model="m", agent_name="a")


def call() -> LLMCallEvent:
    return LLMCallEvent(iteration=0, model="m", message_count=1, tool_count=0, estimated_input_tokens=1, step="0")


def result() -> ToolCompleteEvent:
    return ToolCompleteEvent(call=ToolCall(id="1", name="pay", arguments={}), success=True, content="paid", step="0")


def status(state: Any, **fields: Any) -> StatusUpdateEvent:
    return StatusUpdateEvent(state=state, **fields)


WHOLE = [task(), status("working"), call(), status("completed", final=True)]


class Case:
    """What the judge is given."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, MemoryEventLog()
        self.faults: dict[int, list[tuple[int, str]]] = {}

    async def put(self, events: list[Event]) -> None:
        await self.log.append(events[0].task_id, events, expected_seq=0)

    def note(self, name: str, *lines: dict[str, Any]) -> None:
        (self.folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))

    async def verdict(self, *answered: tuple[str, str], follower: Any = None) -> Report:
        judge = Judge(self.folder, self.faults)
        started = {record.task_id: follower for record in await self.log.runs()}
        await judge.judge(self.log, started, answered)
        return judge.report


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


async def test_a_run_that_is_whole_is_not_found_fault_with(case: Case) -> None:
    events = stamped(WHOLE)
    await case.put(events)
    case.note("acknowledged", {"task": "r", "seq": 3, "attempt": 1})
    case.note("effects", {"key": "k", "tool": "pay"})
    report = await case.verdict(follower=[seen(event) for event in events])
    report.check()
    assert (report.acknowledged, report.effects, report.states) == (1, 1, {"completed": 1})


async def test_a_run_that_goes_on_for_ever_is_stuck(case: Case) -> None:
    await case.put(stamped(WHOLE[:3]))
    with pytest.raises(AssertionError, match="is stuck: it is working"):
        (await case.verdict()).check()


async def test_a_follower_that_saw_something_else_is_told_of(case: Case) -> None:
    events = stamped(WHOLE)
    await case.put(events)
    report = await case.verdict(follower=[seen(event) for event in events[:-1]])
    assert "seen by its follower as something else" in report.wrong[0]


async def test_a_tool_that_was_begun_twice_is_told_of(case: Case) -> None:
    await case.put(stamped(WHOLE))
    case.note("effects", *[{"key": "k", "tool": "pay"}] * 2)
    assert (await case.verdict()).wrong == ["the tool pay was begun twice for the call k"]


async def test_a_call_with_two_results_is_told_of(case: Case) -> None:
    await case.put(stamped([*WHOLE[:3], result(), result(), WHOLE[3]]))
    assert "has 2 results for" in (await case.verdict()).wrong[0]


async def test_what_was_acknowledged_and_is_of_another_attempt_is_lost(case: Case) -> None:
    await case.put(stamped([*WHOLE[:2], status("working", resumed=True), *WHOLE[2:]]))
    case.note("acknowledged", {"task": "r", "seq": 4, "attempt": 1})
    assert "has lost what was acknowledged: 4 of attempt 1" in (await case.verdict()).wrong[0]


async def test_a_run_that_goes_on_after_its_end_is_told_of(case: Case) -> None:
    await case.put(stamped([*WHOLE, call()]))
    assert any("goes on after" in each for each in (await case.verdict()).wrong)


async def test_a_run_that_began_before_the_one_before_it_was_at_rest_is_told_of(case: Case) -> None:
    await case.put(stamped(WHOLE))
    await case.put(stamped(WHOLE, "s", begins=-1))
    assert "began before r was at rest" in (await case.verdict()).wrong[0]


async def test_an_answer_that_was_taken_and_never_came_is_told_of(case: Case) -> None:
    await case.put(stamped([*WHOLE[:3], status("input-required", final=True)]))
    assert "still waits for the answer to q" in (await case.verdict(("r", "q"))).wrong[0]


async def test_a_take_over_counts_from_what_was_done_to_the_owner(case: Case) -> None:
    await case.put(stamped([*WHOLE[:3], status("working", resumed=True), WHOLE[3]]))
    case.note("begun", {"task": "r", "attempt": 1, "pid": 7})
    case.faults = {7: [(3500, "kill"), (9000, "freeze")]}
    assert (await case.verdict()).take_overs == {"kill": [0.5]}
