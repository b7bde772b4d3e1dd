"""Tests for the chaos checker, using logs with a single violation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rxloop import Event
from rxloop.protocol.events import SUPERSEDED
from rxloop.protocol.messages import ErrorInfo
from rxloop.testing.chaos import Report, Violation
from rxloop.testing.chaos.report import Witness, summarize
from support.chaos.sample_logs import (
    ANSWERED,
    COMPLETED,
    KEY,
    PAID,
    WAITS,
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


async def test_correct_runs_have_no_violations(case: LogCase) -> None:
    events = case.add_run(stamp_events(COMPLETED))
    case.add_run(stamp_events(ANSWERED, "s", begins=10), answered=["q"])
    case.add_run(stamp_events([*PAID, end("canceled")], "u", begins=30), cancel_requested=True, cancelled_at=50_000)
    case.acknowledge(events, 6, 1)
    case.effects(KEY)
    report = await case.report("Done.")
    report.check()
    assert (report.acknowledged, report.effects, report.states) == (1, 1, {"completed": 2, "canceled": 1})


# -- unfinished, stuck, lost


async def test_run_that_is_still_executing_is_unfinished(case: LogCase) -> None:
    case.add_run(stamp_events(PAID), received=[], answered=["q"])
    assert await case.check() == ["unfinished: run r was not idle when the time limit ended (now working)"]


@pytest.mark.parametrize("events", [COMPLETED, WAITS], ids=["completed", "waiting"])
async def test_run_that_becomes_idle_after_the_time_limit_is_unfinished(case: LogCase, events: Sequence[Event]) -> None:
    case.add_run(stamp_events(events), received=[], reached_end=False, answered=["q"], unfinished=True)
    (violation,) = await case.check()
    assert violation.startswith("unfinished: run r was not idle when the time limit ended")


@pytest.mark.parametrize("unfinished", [False, True])
async def test_events_that_a_follower_of_an_unfinished_run_saw_are_compared(case: LogCase, unfinished: bool) -> None:
    events = stamp_events(COMPLETED)
    case.add_run(events, received=[summarize(event) for event in events[1:]], unfinished=unfinished)
    assert "follower: run r has a follower whose event 1 differs from the log" in await case.check()


async def test_notes_that_a_worker_writes_while_the_logs_are_read_are_ignored(
    case: LogCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = case.read

    async def read_then_continue(task_id: str, **options: Any) -> Sequence[Event]:
        events = await read(task_id, **options)
        case.acknowledge(stamp_events([*PAID, checkpoint()]), 7, 1)
        case.effects("r:2:0")
        return events

    monkeypatch.setattr(case, "read", read_then_continue)
    case.add_run(stamp_events(PAID))
    assert await case.check() == ["unfinished: run r was not idle when the time limit ended (now working)"]


async def test_note_that_is_only_partly_written_is_ignored(case: LogCase) -> None:
    case.add_run(stamp_events(COMPLETED))
    case.effects(KEY)
    with (case.folder / "effects").open("a") as file:
        file.write('{"key": "r:')
    assert not await case.check()


async def test_later_run_may_start_after_the_log_of_an_unfinished_run_is_read(case: LogCase) -> None:
    case.add_run(stamp_events(PAID))
    case.add_run(stamp_events(COMPLETED, "s", begins=20))
    assert [each.partition(":")[0] for each in await case.check()] == ["unfinished"]
    case.add_run(stamp_events(COMPLETED, "overlapping", begins=1))
    assert "order: run overlapping started before run r of the same conversation was idle" in await case.check()


async def test_run_whose_answer_is_refused_is_stuck(case: LogCase) -> None:
    case.add_run(stamp_events(WAITS), refused={"q": "that is no date"})
    assert await case.check() == ["stuck: run r is stuck waiting for an answer (that is no date)"]


async def test_run_whose_question_a_later_run_dropped_is_not_stuck(case: LogCase) -> None:
    case.add_run(stamp_events(WAITS), refused={"q": "let go"})
    case.add_run(stamp_events(COMPLETED, "s", begins=20))
    assert not await case.check()


async def test_acknowledged_start_that_is_missing_from_the_log_is_lost(case: LogCase) -> None:
    case.witnesses.append(Witness("gone", "c"))
    assert await case.check() == ["lost: run gone is missing from the log although its start was acknowledged"]


async def test_run_with_another_prompt_is_lost(case: LogCase) -> None:
    case.add_run(stamp_events(COMPLETED), prompt="Come")
    assert await case.check() == ["lost: run r was started with 'Come', but has another prompt"]


async def test_run_without_its_task_event_is_lost(case: LogCase) -> None:
    case.add_run(stamp_events(COMPLETED[1:]))
    assert "lost: run r does not start with the task event of its conversation" in await case.check()


@pytest.mark.parametrize("attempt", [1, 2])
async def test_acknowledged_checkpoint_that_was_rewritten_is_lost(case: LogCase, attempt: int) -> None:
    # The rewritten events have the same `seq` and `kind`. Only their content is different.
    acknowledged = stamp_events([*PAID, checkpoint(), llm_call("2"), message("2", text="Done."), end()])
    other = [*PAID[:5], *([resumed()] if attempt == 2 else []), tool_result(), checkpoint()]
    case.add_run(
        [
            event.model_copy(update={"timestamp": event.timestamp + 1})
            for event in stamp_events([*other, llm_call("2"), message("2", text="Done."), end()])
        ]
    )
    case.acknowledge(acknowledged, 6, 1)
    assert await case.check() == ["lost: run r lost the acknowledged checkpoint at event 6 of attempt 1"]


async def test_acknowledged_checkpoint_after_the_end_of_the_log_is_lost(case: LogCase) -> None:
    case.acknowledge(
        stamp_events([*PAID, llm_call("2"), message("2", text="Done."), llm_call("3"), message("3"), end()]),
        10,
        1,
    )
    case.add_run(stamp_events(COMPLETED))
    assert await case.check() == ["lost: run r lost the acknowledged checkpoint at event 10 of attempt 1"]


# -- invalid logs


async def test_gap_in_sequence_numbers_is_broken(case: LogCase) -> None:
    events = stamp_events(COMPLETED)
    case.add_run([event.model_copy(update={"seq": event.seq + (event.seq > 4)}) for event in events])
    assert "broken: run r has gaps in its sequence numbers" in await case.check()


async def test_interleaved_attempts_are_broken(case: LogCase) -> None:
    events = stamp_events(COMPLETED)
    events[4] = events[4].model_copy(update={"attempt": 2})
    case.add_run(events)
    assert "broken: run r has interleaved attempts at event 5" in await case.check()


async def test_attempt_with_two_ends_is_broken(case: LogCase) -> None:
    case.add_run(stamp_events([*WAITS, status("input-required", final=True)]))
    assert "broken: run r continues after the end of its attempt at event 5" in await case.check()


@pytest.mark.parametrize("state", ["completed", "failed", "canceled"])
async def test_run_that_continues_after_its_end_is_broken(case: LogCase, state: str) -> None:
    case.add_run(
        stamp_events([*PAID, end(state), resumed(), llm_call("2"), message("2"), end()]), cancel_requested=True
    )
    assert "broken: run r continues after its end at event 8" in await case.check()


async def test_record_that_differs_from_the_events_is_broken(case: LogCase) -> None:
    case.add_run(stamp_events(COMPLETED), state="failed")
    assert await case.check() == ["broken: run r is completed, but its record has the state failed"]


async def test_log_that_violates_the_grammar_is_broken(case: LogCase) -> None:
    case.add_run(stamp_events([*PAID[:4], llm_call("2"), message("2"), end()]))
    assert any(each.startswith("broken: run r violates the grammar") for each in await case.check())


# -- results, effects, outputs


async def test_call_with_two_results_is_reported(case: LogCase) -> None:
    case.add_run(stamp_events([*PAID, tool_result(), *COMPLETED[6:]]))
    assert "result: run r has 2 results for ('r', '1', 0)" in await case.check()


async def test_question_with_two_answers_is_reported(case: LogCase) -> None:
    case.add_run(stamp_events([*ANSWERED[:6], input_received(), *ANSWERED[6:]]))
    assert "result: run r has 2 results for ('r', 'q')" in await case.check()


async def test_tool_that_was_called_twice_is_reported(case: LogCase) -> None:
    case.add_run(stamp_events(COMPLETED))
    case.effects(KEY, KEY)
    assert await case.check() == [f"effect: run r called tool pay twice for call {KEY}"]


async def test_tool_call_that_was_stored_twice_is_reported(case: LogCase) -> None:
    case.add_run(stamp_events([*PAID[:5], resumed(), tool_start(), tool_result(), *COMPLETED[6:]]))
    case.effects(KEY)
    assert await case.check() == [f"effect: run r called tool pay twice for call {KEY}"]


async def test_tool_that_was_called_before_it_was_stored_is_reported(case: LogCase) -> None:
    case.add_run(stamp_events([task(), status("working"), llm_call(), message(text="Done."), end()]))
    case.effects(KEY)
    assert await case.check() == [f"effect: run r called tool pay for call {KEY} before it was stored"]


@pytest.mark.parametrize(
    "expect", ["Paid.", lambda prompt, output: (prompt, output) == ("Go", "Paid.")], ids=["text", "function"]
)
async def test_unexpected_output_is_reported(case: LogCase, expect: Any) -> None:
    case.add_run(stamp_events(COMPLETED))
    assert await case.check(expect) == ["output: run r has the output 'Done.' for 'Go'"]


async def test_failed_run_is_reported_when_an_output_is_expected(case: LogCase) -> None:
    case.add_run(stamp_events([*PAID, status("failed", final=True, reason="attempts")]))
    assert not await case.check()
    assert await case.check("Done.") == ["output: run r failed: failed (attempts)"]


# -- conversations


async def test_run_that_starts_before_the_previous_one_is_idle_is_reported(case: LogCase) -> None:
    case.add_run(stamp_events(COMPLETED))
    case.add_run(stamp_events(COMPLETED, "s", begins=1))
    assert "order: run s started before run r of the same conversation was idle" in await case.check()


async def test_run_that_starts_before_any_earlier_one_is_idle_is_reported(case: LogCase) -> None:
    case.add_run(stamp_events(COMPLETED))
    # Cancelled before it began.
    case.add_run(stamp_events([task(), status("working"), end("canceled")], "between", begins=2), cancel_requested=True)
    case.add_run(stamp_events(COMPLETED, "s", begins=3))
    assert await case.check() == ["order: run s started before run r of the same conversation was idle"]


async def test_later_run_that_starts_before_an_answered_run_ends_is_reported(case: LogCase) -> None:
    case.add_run(stamp_events(ANSWERED))
    case.add_run(stamp_events(COMPLETED, "s", begins=3))
    assert await case.check() == ["order: run s started before run r of the same conversation was idle"]


async def test_run_that_continues_after_a_later_one_started_is_reported(case: LogCase) -> None:
    events = stamp_events(ANSWERED)
    later = [event.model_copy(update={"timestamp": event.timestamp + 9000}) for event in events[4:]]
    case.add_run([*events[:4], *later])
    case.add_run(stamp_events(COMPLETED, "s", begins=3))
    assert await case.check() == ["order: run s overlaps with run r of the same conversation"]


# -- followers, answers, cancels


async def test_follower_with_a_different_event_is_reported(case: LogCase) -> None:
    events = stamp_events(COMPLETED)
    other = events[3].model_copy(update={"content": "Something else."})
    case.add_run(events, received=[summarize(event) for event in (*events[:3], other, *events[4:])])
    assert await case.check() == ["follower: run r has a follower whose event 4 differs from the log"]


@pytest.mark.parametrize("count", [0, 8])
async def test_follower_with_missing_events_is_reported(case: LogCase, count: int) -> None:
    events = stamp_events(COMPLETED)
    case.add_run(events, received=[summarize(event) for event in events[:count]], reached_end=False)
    assert await case.check() == [f"follower: run r has 9 events, but its follower received {count}"]


async def test_follower_whose_stream_does_not_end_is_reported(case: LogCase) -> None:
    case.add_run(stamp_events(COMPLETED), reached_end=False)
    assert await case.check() == ["follower: run r is completed, but the stream of its follower did not end"]


async def test_failed_follower_is_reported(case: LogCase) -> None:
    case.add_run(stamp_events(COMPLETED), reached_end=False, failed="ValueError('no')")
    assert await case.check() == ["follower: run r has a failed follower: ValueError('no')"]


async def test_acknowledged_answer_that_was_not_applied_is_reported(case: LogCase) -> None:
    case.add_run(stamp_events(COMPLETED), answered=["q"])
    assert await case.check() == ["answer: run r did not apply the acknowledged answer to q"]


async def test_acknowledged_answer_to_a_dropped_question_is_reported(case: LogCase) -> None:
    case.add_run(stamp_events(WAITS), answered=["q"])
    case.add_run(stamp_events(COMPLETED, "s", begins=20))
    assert await case.check() == ["answer: run r did not apply the acknowledged answer to q"]


@pytest.mark.parametrize("state", ["canceled", "failed"])
async def test_answer_to_a_run_that_ended_before_applying_it_is_not_reported(case: LogCase, state: str) -> None:
    case.add_run(stamp_events([*WAITS[:3], end(state)]), answered=["q"], cancel_requested=True)
    assert not await case.check()


async def test_acknowledged_cancel_of_a_run_that_completed_later_is_reported(case: LogCase) -> None:
    case.add_run(stamp_events(COMPLETED), cancel_requested=True, cancelled_at=8000)
    assert "cancel: run r is completed although its cancel was acknowledged" in await case.check()


async def test_cancel_after_the_end_of_a_run_is_not_reported(case: LogCase) -> None:
    case.add_run(stamp_events(COMPLETED), cancel_requested=True, cancelled_at=9000)
    assert not await case.check()


async def test_run_that_calls_the_model_after_its_cancel_is_reported(case: LogCase) -> None:
    canceled = [llm_call("2"), status("canceled", final=True)]
    case.add_run(stamp_events([*PAID, *canceled]), cancel_requested=True, cancelled_at=6500)
    assert "cancel: run r continued after its cancel was acknowledged" in await case.check()


async def test_canceled_run_without_a_cancel_is_reported(case: LogCase) -> None:
    case.add_run(stamp_events([*PAID, end("canceled")]))
    assert await case.check() == ["cancel: run r is canceled, but no client requested it"]


SUPERSEDED_RUN = [
    *WAITS,
    resumed(),
    status("canceled", final=True, reason=SUPERSEDED, error=ErrorInfo(code=SUPERSEDED, message="dropped")),
]


async def test_waiting_run_that_a_later_run_canceled_is_not_reported(case: LogCase) -> None:
    case.add_run(stamp_events(SUPERSEDED_RUN))
    case.add_run(stamp_events(COMPLETED, "s", begins=20))
    assert not await case.check()


async def test_waiting_run_that_was_canceled_without_a_later_run_is_reported(case: LogCase) -> None:
    case.add_run(stamp_events(SUPERSEDED_RUN))
    assert await case.check() == ["cancel: run r is canceled, but no client requested it"]


# -- reports


async def test_take_over_counts_from_the_fault_of_the_owner(case: LogCase) -> None:
    case.add_run(stamp_events([*PAID[:5], resumed(), tool_result(), *COMPLETED[6:]]))
    case.write_lines("attempts", {"task": "r", "attempt": 1, "pid": 7})
    case.faults = {7: [(5500, "kill"), (9000, "freeze")]}
    assert (await case.report()).take_overs == {"kill": [0.5]}


def test_added_reports_list_every_kind_of_violation() -> None:
    one = Report(take_overs={"kill": [1.0, 2.0]}, acknowledged=2, violations=[Violation("stuck", "a run")])
    one.states["completed"] = one.faults["kill"] = 1
    two = Report(take_overs={"kill": [3.0]}, effects=1)
    two.states["completed"] = two.skipped["kill"] = 1
    both = one + two
    assert str(both) == (
        "2 runs (2 completed); 1 kill (1 kill skipped); 3 take-overs after kill: p50 2.0 s, p90 3.0 s, max 3.0 s; "
        "2 checkpoints and 1 effects; 1 violations (0 unfinished, 1 stuck, 0 lost, 0 broken, 0 output, 0 result, "
        "0 effect, 0 order, 0 follower, 0 answer, 0 cancel, 0 worker)"
    )
    with pytest.raises(AssertionError, match="stuck: a run"):
        both.check()
