"""The judge finds what must not be: logs, effects, acknowledgements and followers with one thing wrong each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rxloop.testing.chaos import Report, Wrong
from rxloop.testing.chaos.report import Witness, seen
from support.chaos.sample_logs import (
    ANSWERED,
    KEY,
    PAID,
    WAITS,
    WHOLE,
    LogCase,
    checkpoint,
    end,
    input_received,
    llm_call,
    message,
    resumed,
    stamp_events,
    status,
    task,
    tool_result,
    tool_start,
)


@pytest.fixture
def case(tmp_path: Path) -> LogCase:
    return LogCase(tmp_path)


async def test_runs_that_are_whole_are_not_found_fault_with(case: LogCase) -> None:
    events = case.add_run(stamp_events(WHOLE))
    case.add_run(stamp_events(ANSWERED, "s", begins=10), answered=["q"])
    case.add_run(stamp_events([*PAID, end("canceled")], "u", begins=30), cancelling=True, cancelled_at=50_000)
    case.acknowledge(events, 6, 1)
    case.effects(KEY)
    report = await case.report("Done.")
    report.check()
    assert (report.acknowledged, report.effects, report.states) == (1, 1, {"completed": 2, "canceled": 1})


# -- stuck, lost


async def test_a_run_that_goes_on_for_ever_is_stuck(case: LogCase) -> None:
    case.add_run(stamp_events(PAID))
    assert await case.check() == ["stuck: the run r is stuck: it is working"]


async def test_a_run_whose_question_nobody_could_answer_is_stuck(case: LogCase) -> None:
    case.add_run(stamp_events(WAITS), refused={"q": "that is no date"})
    assert await case.check() == ["stuck: the run r is stuck: it waits for an answer (that is no date)"]


async def test_a_question_that_a_later_run_has_let_go_may_stay_without_an_answer(case: LogCase) -> None:
    case.add_run(stamp_events(WAITS), refused={"q": "let go"})
    case.add_run(stamp_events(WHOLE, "s", begins=20))
    assert not await case.check()


async def test_a_start_that_was_acknowledged_and_is_not_in_the_log_is_lost(case: LogCase) -> None:
    case.witnesses.append(Witness("gone", "c"))
    assert await case.check() == ["lost: the run gone was started, and is not in the log"]


async def test_a_run_that_asks_something_else_than_it_was_started_with_is_lost(case: LogCase) -> None:
    case.add_run(stamp_events(WHOLE), prompt="Come")
    assert await case.check() == ["lost: the run r was started with 'Come', and asks something else"]


async def test_a_run_that_does_not_begin_with_its_task_is_lost(case: LogCase) -> None:
    case.add_run(stamp_events(WHOLE[1:]))
    assert "lost: the run r does not begin with what was started" in await case.check()


@pytest.mark.parametrize("attempt", [1, 2])
async def test_a_checkpoint_that_was_lost_and_written_once_more_is_told_of(case: LogCase, attempt: int) -> None:
    # As the one that was acknowledged: in its place, of the same kind, and maybe of the same attempt.
    told = stamp_events([*PAID, checkpoint(), llm_call("2"), message("2", text="Done."), end()])
    other = [*PAID[:5], *([resumed()] if attempt == 2 else []), tool_result(), checkpoint()]
    case.add_run(
        [
            event.model_copy(update={"timestamp": event.timestamp + 1})
            for event in stamp_events([*other, llm_call("2"), message("2", text="Done."), end()])
        ]
    )
    case.acknowledge(told, 6, 1)
    assert await case.check() == ["lost: the run r has lost what was acknowledged: 6 of attempt 1"]


async def test_a_log_that_is_shorter_than_what_was_acknowledged_is_told_of(case: LogCase) -> None:
    case.acknowledge(
        stamp_events([*PAID, llm_call("2"), message("2", text="Done."), llm_call("3"), message("3"), end()]),
        10,
        1,
    )
    case.add_run(stamp_events(WHOLE))
    assert await case.check() == ["lost: the run r has lost what was acknowledged: 10 of attempt 1"]


# -- the log of one run


async def test_gaps_in_the_numbers_are_told_of(case: LogCase) -> None:
    events = stamp_events(WHOLE)
    case.add_run([event.model_copy(update={"seq": event.seq + (event.seq > 4)}) for event in events])
    assert "broken: the run r has gaps in its numbers" in await case.check()


async def test_two_attempts_that_are_mixed_up_are_told_of(case: LogCase) -> None:
    events = stamp_events(WHOLE)
    events[4] = events[4].model_copy(update={"attempt": 2})
    case.add_run(events)
    assert "broken: the run r has two attempts mixed up at 5" in await case.check()


async def test_an_attempt_with_two_ends_is_told_of(case: LogCase) -> None:
    case.add_run(stamp_events([*WAITS, status("input-required", final=True)]))
    assert "broken: the run r goes on after the end of its attempt at 5" in await case.check()


@pytest.mark.parametrize("state", ["completed", "failed", "canceled"])
async def test_a_run_that_goes_on_after_its_end_is_told_of(case: LogCase, state: str) -> None:
    case.add_run(stamp_events([*PAID, end(state), resumed(), llm_call("2"), message("2"), end()]), cancelling=True)
    assert "broken: the run r goes on after its end at 8" in await case.check()


async def test_a_record_that_says_otherwise_than_the_events_is_told_of(case: LogCase) -> None:
    case.add_run(stamp_events(WHOLE), state="failed")
    assert await case.check() == ["broken: the run r is completed by its events, and failed by its record"]


async def test_what_breaks_the_grammar_is_told_of(case: LogCase) -> None:
    case.add_run(stamp_events([*PAID[:4], llm_call("2"), message("2"), end()]))
    assert any(each.startswith("broken: the run r breaks the grammar") for each in await case.check())


# -- results, effects, outputs


async def test_a_call_with_two_results_is_told_of(case: LogCase) -> None:
    case.add_run(stamp_events([*PAID, tool_result(), *WHOLE[6:]]))
    assert "result: the run r has 2 results for ('r', '1', 0)" in await case.check()


async def test_a_question_with_two_answers_is_told_of(case: LogCase) -> None:
    case.add_run(stamp_events([*ANSWERED[:6], input_received(), *ANSWERED[6:]]))
    assert "result: the run r has 2 results for ('r', 'q')" in await case.check()


async def test_a_tool_that_was_begun_twice_is_told_of(case: LogCase) -> None:
    case.add_run(stamp_events(WHOLE))
    case.effects(KEY, KEY)
    assert await case.check() == [f"effect: the run r has begun the tool pay twice for the call {KEY}"]


async def test_a_tool_that_the_log_has_begun_twice_is_told_of(case: LogCase) -> None:
    case.add_run(stamp_events([*PAID[:5], resumed(), tool_start(), tool_result(), *WHOLE[6:]]))
    case.effects(KEY)
    assert await case.check() == [f"effect: the run r has begun the tool pay twice for the call {KEY}"]


async def test_a_tool_that_was_begun_before_the_log_had_it_is_told_of(case: LogCase) -> None:
    case.add_run(stamp_events([task(), status("working"), llm_call(), message(text="Done."), end()]))
    case.effects(KEY)
    assert await case.check() == [f"effect: the run r has begun the tool pay for the call {KEY} before the log knew"]


@pytest.mark.parametrize(
    "expect", ["Paid.", lambda prompt, output: (prompt, output) == ("Go", "Paid.")], ids=["text", "function"]
)
async def test_a_run_with_a_wrong_output_is_told_of(case: LogCase, expect: Any) -> None:
    case.add_run(stamp_events(WHOLE))
    assert await case.check(expect) == ["output: the run r has the output 'Done.' for 'Go'"]


async def test_a_run_that_failed_is_wrong_where_an_output_was_expected(case: LogCase) -> None:
    case.add_run(stamp_events([*PAID, status("failed", final=True, reason="attempts")]))
    assert not await case.check()
    assert await case.check("Done.") == ["output: the run r failed: failed (attempts)"]


# -- conversations


async def test_a_run_that_began_before_the_one_before_it_was_at_rest_is_told_of(case: LogCase) -> None:
    case.add_run(stamp_events(WHOLE))
    case.add_run(stamp_events(WHOLE, "s", begins=1))
    assert "order: the run s began before r was at rest, in the same conversation" in await case.check()


async def test_not_only_the_run_just_before_is_waited_for(case: LogCase) -> None:
    case.add_run(stamp_events(WHOLE))
    # Cancelled before it began.
    case.add_run(stamp_events([task(), status("working"), end("canceled")], "between", begins=2), cancelling=True)
    case.add_run(stamp_events(WHOLE, "s", begins=3))
    assert await case.check() == ["order: the run s began before r was at rest, in the same conversation"]


async def test_a_run_that_is_answered_goes_on_before_later_ones_begin(case: LogCase) -> None:
    case.add_run(stamp_events(ANSWERED))
    case.add_run(stamp_events(WHOLE, "s", begins=3))
    assert await case.check() == ["order: the run s began before r was at rest, in the same conversation"]


async def test_a_run_that_goes_on_beside_a_later_one_is_told_of(case: LogCase) -> None:
    events = stamp_events(ANSWERED)
    later = [event.model_copy(update={"timestamp": event.timestamp + 9000}) for event in events[4:]]
    case.add_run([*events[:4], *later])
    case.add_run(stamp_events(WHOLE, "s", begins=3))
    assert await case.check() == ["order: the run s went on beside r, in the same conversation"]


# -- followers, answers, cancels


async def test_a_follower_that_saw_something_else_is_told_of(case: LogCase) -> None:
    events = stamp_events(WHOLE)
    other = events[3].model_copy(update={"content": "Something else."})
    case.add_run(events, seen=[seen(event) for event in (*events[:3], other, *events[4:])])
    assert await case.check() == [
        "follower: the run r was seen by its follower as something else than the log has, at 4"
    ]


@pytest.mark.parametrize("count", [0, 8])
async def test_a_follower_that_did_not_see_all_of_a_run_is_told_of(case: LogCase, count: int) -> None:
    events = stamp_events(WHOLE)
    case.add_run(events, seen=[seen(event) for event in events[:count]], saw_its_end=False)
    assert await case.check() == [f"follower: the run r has 9 events, and its follower saw {count}"]


async def test_a_follower_that_was_not_told_of_the_end_is_told_of(case: LogCase) -> None:
    case.add_run(stamp_events(WHOLE), saw_its_end=False)
    assert await case.check() == ["follower: the run r is completed, and its follower was not told that this is all"]


async def test_a_follower_that_failed_is_told_of(case: LogCase) -> None:
    case.add_run(stamp_events(WHOLE), saw_its_end=False, failed="ValueError('no')")
    assert await case.check() == ["follower: the run r has a follower that failed: ValueError('no')"]


async def test_an_answer_that_was_taken_and_never_came_is_told_of(case: LogCase) -> None:
    case.add_run(stamp_events(WHOLE), answered=["q"])
    assert await case.check() == ["answer: the run r never took the answer to q, which was acknowledged"]


async def test_an_answer_to_a_question_that_was_let_go_is_told_of_if_it_was_acknowledged(case: LogCase) -> None:
    case.add_run(stamp_events(WAITS), answered=["q"])
    case.add_run(stamp_events(WHOLE, "s", begins=20))
    assert await case.check() == ["answer: the run r never took the answer to q, which was acknowledged"]


@pytest.mark.parametrize("state", ["canceled", "failed"])
async def test_an_answer_to_a_run_that_ended_before_it_took_it_is_not_missed(case: LogCase, state: str) -> None:
    case.add_run(stamp_events([*WAITS[:3], end(state)]), answered=["q"], cancelling=True)
    assert not await case.check()


async def test_a_cancel_that_changed_nothing_is_told_of(case: LogCase) -> None:
    case.add_run(stamp_events(WHOLE), cancelling=True, cancelled_at=8000)
    assert "cancel: the run r is completed, though it was acknowledged that it is canceled" in await case.check()


async def test_a_cancel_that_came_after_the_end_changes_nothing(case: LogCase) -> None:
    case.add_run(stamp_events(WHOLE), cancelling=True, cancelled_at=9000)
    assert not await case.check()


async def test_a_run_that_asks_the_model_after_its_cancel_is_told_of(case: LogCase) -> None:
    cut = [llm_call("2"), status("canceled", final=True)]
    case.add_run(stamp_events([*PAID, *cut]), cancelling=True, cancelled_at=6500)
    assert "cancel: the run r went on after it was acknowledged that it is canceled" in await case.check()


async def test_a_run_that_nobody_has_cancelled_is_told_of(case: LogCase) -> None:
    case.add_run(stamp_events([*PAID, end("canceled")]))
    assert await case.check() == ["cancel: the run r is canceled, and nobody has cancelled it"]


# -- what it reports


async def test_a_take_over_counts_from_what_was_done_to_the_owner(case: LogCase) -> None:
    case.add_run(stamp_events([*PAID[:5], resumed(), tool_result(), *WHOLE[6:]]))
    case.write_lines("begun", {"task": "r", "attempt": 1, "pid": 7})
    case.faults = {7: [(5500, "kill"), (9000, "freeze")]}
    assert (await case.report()).take_overs == {"kill": [0.5]}


def test_reports_add_up_and_name_each_kind_of_wrong() -> None:
    one = Report(take_overs={"kill": [1.0, 2.0]}, acknowledged=2, wrong=[Wrong("stuck", "a run")])
    one.states["completed"] = one.faults["kill"] = 1
    two = Report(take_overs={"kill": [3.0]}, effects=1)
    two.states["completed"] = two.skipped["kill"] = 1
    both = one + two
    assert str(both) == (
        "2 runs (2 completed); 1 kill (1 kill left out); 3 take-overs after kill: p50 2.0 s, p90 3.0 s, max 3.0 s; "
        "2 checkpoints and 1 effects; 1 things wrong (1 stuck, 0 lost, 0 broken, 0 output, 0 result, 0 effect, "
        "0 order, 0 follower, 0 answer, 0 cancel, 0 worker)"
    )
    with pytest.raises(AssertionError, match="stuck: a run"):
        both.check()
