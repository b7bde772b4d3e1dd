"""Stalls of silent runs, live and recorded."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reactivex import operators as rx

from rxloop import (
    Agent,
    ContentCompleteEvent,
    Event,
    GapEvent,
    InputRequiredEvent,
    MemoryEventLog,
    ToolStartEvent,
    replay,
    tool,
)
from rxloop.errors import ConfigurationError, RunCancelled
from rxloop.operators.views.stalled import Stall, stalled
from rxloop.protocol.events import PendingInput
from rxloop.testing import ScriptedModel, call, frames, virtual_time
from support.timelines import (
    CALL,
    LETTERS,
    collect_values,
    format_timeline,
    nest_event,
    observe_live,
    observe_recorded,
    stamp,
)


def describe_stalls(stalls: list[tuple[int, Any]]) -> list[tuple[int, str]]:
    """Return second, awaited thing and duration of each stall."""
    return [(second, f"{each.awaits} {each.seconds:g}") for second, each in stalls if isinstance(each, Stall)]


def test_silent_run_is_reported_repeatedly_with_the_awaited_thing() -> None:
    stalls = observe_live(stalled(4), "--l--d----------d--c--s------x--F|")
    symbols = {("model", 4): "a", ("model", 8): "b", ("tool", 4): "c"}
    assert (
        format_timeline(stalls, lambda each: symbols[each.awaits, each.seconds]) == "---------a---b------------c------|"
    )
    assert describe_stalls(stalls) == [(9, "model 4"), (13, "model 8"), (26, "tool 4")]


@pytest.mark.parametrize(
    "line",
    [
        "-t-w-l-----------d-c-s-----------x-F|",
        "-t-w------l-----d----d------c----------F|",
        f"-t-s-----P{'-' * 90}W-----l----F|",
    ],
)
def test_recorded_events_yield_the_same_stalls(line: str) -> None:
    assert [*observe_recorded(stalled(4), line), "|"] == [each for _, each in observe_live(stalled(4), line)]


def test_time_between_a_crash_and_the_next_attempt_is_not_a_stall() -> None:
    stalls = observe_recorded(stalled(4), f"-t-s-----d{'-' * 90}W-----l----F|")
    assert [(each.awaits, each.seconds) for each in stalls] == [("tool", 4), ("run", 4), ("model", 4)]


@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.integers(2, 9))
def test_silence_is_reported_once_per_interval(gaps: list[int], seconds: int) -> None:
    line = "-t" + "".join("-" * (gap - 1) + "d" for gap in gaps)
    expected = [seconds * (time + 1) for gap in gaps for time in range(gap // seconds)]
    assert [each.seconds for each in observe_recorded(stalled(seconds), line)] == expected


def test_event_at_the_end_of_the_interval_prevents_a_stall() -> None:
    assert observe_live(stalled(4), "-t--w--l--d|") == [(11, "|")]


def test_time_between_two_attempts_is_not_a_stall() -> None:
    stalls = observe_live(stalled(4), f"-t-P{'-' * 40}W-----l----F|")
    assert describe_stalls(stalls) == [(48, "run 4"), (54, "model 4")]


def test_time_between_two_runs_of_a_conversation_is_not_a_stall() -> None:
    assert observe_recorded(stalled(4), f"-t-F{'-' * 40}t-F|") == []
    assert observe_live(stalled(4), f"-t-F{'-' * 40}t-F|") == [(47, "|")]


def test_resumption_of_a_nested_run_is_not_an_attempt_of_the_run() -> None:
    assert [each.seconds for each in observe_recorded(stalled(4), "-s-----N|", N=nest_event(LETTERS["W"]))] == [4]


def test_stalls_are_multiples_of_a_fractional_interval() -> None:
    events = [stamp(LETTERS["l"], 0), stamp(LETTERS["c"], 0.3)]
    assert [round(each.seconds, 3) for each in collect_values(stalled(0.1), events)] == [0.1, 0.2, 0.3]


def test_run_that_has_not_started_is_awaited() -> None:
    assert describe_stalls(observe_live(stalled(4), "------t-F|")) == [(4, "run 4")]


def test_question_is_awaited_until_its_answer_or_the_end_of_its_call() -> None:
    assert describe_stalls(observe_live(stalled(4), "-s-i-----r-----x|")) == [(7, "input 4"), (13, "tool 4")]
    assert describe_stalls(observe_live(stalled(4), "-s-i-----x-----F|")) == [(7, "input 4"), (13, "run 4")]
    [(_, stall)] = observe_live(stalled(4), "-s-i----x", until=9)
    assert stall.names == ("Sure?",)
    assert stall.questions == ("Sure?",)
    assert stall.calls == (CALL,)


def test_question_of_a_paused_run_is_awaited_in_the_next_attempt() -> None:
    assert describe_stalls(observe_live(stalled(4), "-s-i-P------W-----r|")) == [(16, "input 4")]
    assert describe_stalls(observe_live(stalled(4), "-s-i-F------W-----r|")) == [(16, "run 4")]


def test_question_without_a_call_does_not_end_with_another_call() -> None:
    question = InputRequiredEvent(step="1", input=PendingInput(input_id="q", prompt="Sure?", step="1"))
    assert describe_stalls(observe_live(stalled(4), "-s-I-x-----r|", I=question)) == [(9, "input 4")]


def test_questions_of_different_runs_may_have_the_same_id() -> None:
    mine, other = LETTERS["i"], nest_event(LETTERS["i"])
    assert describe_stalls(observe_live(stalled(4), "-s-iI-R-----|", I=other, R=nest_event(LETTERS["r"]))) == [
        (10, "input 4")
    ]
    assert mine.task_id == ""


def test_stall_names_everything_that_is_open() -> None:
    [(_, stall)] = observe_live(stalled(4), "-l-sS----x", until=9)
    assert stall.awaits == "tool"
    assert stall.names == ("look", "search")
    assert stall.models == ("m",)
    assert str(stall) == "nothing came for 4 s; awaited: tool look, search"
    [(_, stall)] = observe_live(stalled(4), "-l----x", until=6)
    assert stall.awaits == "model"
    assert stall.names == ("m",)
    [(_, stall)] = observe_live(stalled(4), "-t----x", until=6)
    assert stall.awaits == "run"
    assert stall.names == ()
    assert str(stall) == "nothing came for 4 s; awaited: run"


def test_call_with_a_nested_run_is_not_awaited_itself() -> None:
    child, inner, end = nest_event(LETTERS["l"]), nest_event(LETTERS["s"]), nest_event(LETTERS["F"])
    assert describe_stalls(observe_live(stalled(4), "-s-L-----x|", L=child)) == [(7, "model 4")]
    [(_, stall)] = observe_live(
        stalled(4), "-s-N----x", until=8, N=nest_event(ToolStartEvent(call=CALL, idempotency_key="k"))
    )
    assert stall.calls == (CALL,)
    # Two levels of nesting and back.
    deep = nest_event(LETTERS["l"], "grandchild", "child")
    assert describe_stalls(observe_live(stalled(4), "-s-N-D-----x|", N=inner, D=deep)) == [(9, "model 4")]
    assert describe_stalls(observe_live(stalled(4), "-s-L-E-----x|", L=child, E=end)) == [(9, "tool 4")]
    # One call is working, while the other waits for its nested run.
    [(_, stall)] = observe_live(stalled(4), "-sS-L----x", until=9, L=child)
    assert stall.awaits == "tool"
    assert stall.names == ("look", "search")


def test_nested_run_is_forgotten_when_its_call_ends() -> None:
    child = nest_event(LETTERS["l"])
    assert describe_stalls(observe_live(stalled(4), "-s-L-x-----w|", L=child)) == [(9, "run 4")]


def test_clock_that_is_set_back_causes_no_stall() -> None:
    events = [stamp(LETTERS[symbol], at) for symbol, at in (("t", 0), ("l", 10), ("d", 2), ("c", 11), ("F", 12))]
    assert [each.seconds for each in collect_values(stalled(4), events)] == [4, 8]


def test_gap_does_not_interrupt_a_silence() -> None:
    assert describe_stalls(observe_live(stalled(4), "-l--g-c|", g=GapEvent(reason="dropped"))) == [(5, "model 4")]


def test_disposal_cancels_the_timer() -> None:
    assert describe_stalls(observe_live(stalled(4), "-l", until=20)) == [
        (5, "model 4"),
        (9, "model 8"),
        (13, "model 12"),
        (17, "model 16"),
    ]


def test_each_subscriber_of_a_stored_view_has_its_own_timer() -> None:
    view = stalled(4)
    assert observe_live(view, "-l-----c-F|") == observe_live(view, "-l-----c-F|") != []


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_stalled_rejects_an_interval_that_is_not_positive(seconds: float) -> None:
    with pytest.raises(ConfigurationError, match="seconds must be a positive number"):
        stalled(seconds)


@tool
async def slow() -> str:
    """Take ten seconds."""
    await asyncio.sleep(10)
    return "done"


def test_stalls_of_a_run_are_the_same_live_and_from_its_log() -> None:
    with virtual_time() as time:
        log = MemoryEventLog()
        run = Agent(ScriptedModel(call("slow"), "ok"), tools=[slow], log=log).run("Go.")
        live_stalls: list[tuple[float, Stall]] = []

        async def main() -> list[Stall]:
            run.pipe(stalled(4)).subscribe(lambda stall: live_stalls.append((time.now, stall)))
            await run
            late = [stall async for stall in run.pipe(stalled(4))]
            assert late == collect_values(stalled(4), await log.read(run.task_id))
            return [stall async for stall in replay(log, run.task_id, speed=2).pipe(stalled(4))]

        again = time.run(main())
    assert [(at, str(stall)) for at, stall in live_stalls] == [
        (4, "nothing came for 4 s; awaited: tool slow"),
        (8, "nothing came for 8 s; awaited: tool slow"),
    ]
    assert again == [stall for _, stall in live_stalls]


def test_subscriber_can_cancel_a_run_whose_model_is_silent() -> None:
    def awaits_model(stall: Stall) -> bool:
        return stall.awaits == "model"

    with virtual_time() as time:
        run = Agent(ScriptedModel(frames("--a----------------------------------b|"))).run("Go.")

        async def main() -> None:
            run.pipe(stalled(0.5), rx.filter(awaits_model)).subscribe(lambda stall: run.cancel(str(stall)))
            with pytest.raises(RunCancelled, match=r"nothing came for 0\.5 s; awaited: model scripted"):
                await run

        time.run(main())
        assert time.now == pytest.approx(0.55)


def test_only_the_end_of_a_step_ends_its_wait() -> None:
    events: list[Event] = [stamp(LETTERS["l"], 0), stamp(ContentCompleteEvent(step="2"), 1)]
    [stall] = collect_values(stalled(4), [*events, stamp(LETTERS["F"], 6)])
    assert stall.awaits == "model"
