"""What a silent run waits for, live and recorded."""

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


def marked(found: list[tuple[int, Any]]) -> list[tuple[int, str]]:
    """When each stall came, what was awaited, and how long nothing had come."""
    return [(second, f"{each.awaits} {each.seconds:g}") for second, each in found if isinstance(each, Stall)]


def test_a_silent_run_is_told_of_again_and_again_with_what_it_waits_for() -> None:
    found = observe_live(stalled(4), "--l--d----------d--c--s------x--F|")
    letters = {("model", 4): "a", ("model", 8): "b", ("tool", 4): "c"}
    assert (
        format_timeline(found, lambda each: letters[each.awaits, each.seconds]) == "---------a---b------------c------|"
    )
    assert marked(found) == [(9, "model 4"), (13, "model 8"), (26, "tool 4")]


@pytest.mark.parametrize(
    "line",
    [
        "-t-w-l-----------d-c-s-----------x-F|",
        "-t-w------l-----d----d------c----------F|",
        f"-t-s-----P{'-' * 90}W-----l----F|",
    ],
)
def test_recorded_events_tell_of_the_same_stalls(line: str) -> None:
    assert [*observe_recorded(stalled(4), line), "|"] == [each for _, each in observe_live(stalled(4), line)]


def test_the_time_between_a_crash_and_the_next_attempt_is_no_stall_in_a_record() -> None:
    found = observe_recorded(stalled(4), f"-t-s-----d{'-' * 90}W-----l----F|")
    assert [(each.awaits, each.seconds) for each in found] == [("tool", 4), ("run", 4), ("model", 4)]


@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.integers(2, 9))
def test_a_silence_is_told_once_for_each_time_that_has_passed(gaps: list[int], seconds: int) -> None:
    line = "-t" + "".join("-" * (gap - 1) + "d" for gap in gaps)
    expected = [seconds * (time + 1) for gap in gaps for time in range(gap // seconds)]
    assert [each.seconds for each in observe_recorded(stalled(seconds), line)] == expected


def test_an_event_that_comes_just_in_time_is_no_stall() -> None:
    assert observe_live(stalled(4), "-t--w--l--d|") == [(11, "|")]


def test_nothing_stalls_between_two_attempts() -> None:
    found = observe_live(stalled(4), f"-t-P{'-' * 40}W-----l----F|")
    assert marked(found) == [(48, "run 4"), (54, "model 4")]


def test_nothing_stalls_between_two_runs_of_a_conversation() -> None:
    assert observe_recorded(stalled(4), f"-t-F{'-' * 40}t-F|") == []
    assert observe_live(stalled(4), f"-t-F{'-' * 40}t-F|") == [(47, "|")]


def test_a_nested_run_that_is_resumed_is_no_attempt_of_the_run() -> None:
    assert [each.seconds for each in observe_recorded(stalled(4), "-s-----N|", N=nest_event(LETTERS["W"]))] == [4]


def test_a_silence_is_told_of_in_whole_times_though_they_are_fractions() -> None:
    events = [stamp(LETTERS["l"], 0), stamp(LETTERS["c"], 0.3)]
    assert [round(each.seconds, 3) for each in collect_values(stalled(0.1), events)] == [0.1, 0.2, 0.3]


def test_a_run_that_has_not_begun_is_waited_for() -> None:
    assert marked(observe_live(stalled(4), "------t-F|")) == [(4, "run 4")]


def test_a_question_is_what_is_awaited_until_it_is_answered_or_its_call_ends() -> None:
    assert marked(observe_live(stalled(4), "-s-i-----r-----x|")) == [(7, "input 4"), (13, "tool 4")]
    assert marked(observe_live(stalled(4), "-s-i-----x-----F|")) == [(7, "input 4"), (13, "run 4")]
    [(_, stall)] = observe_live(stalled(4), "-s-i----x", until=9)
    assert (stall.names, stall.questions, stall.calls) == (("Sure?",), ("Sure?",), (CALL,))


def test_a_question_that_a_pause_has_put_waits_on_in_the_next_attempt() -> None:
    assert marked(observe_live(stalled(4), "-s-i-P------W-----r|")) == [(16, "input 4")]
    assert marked(observe_live(stalled(4), "-s-i-F------W-----r|")) == [(16, "run 4")]


def test_a_question_that_no_call_asks_does_not_end_with_one() -> None:
    asked = InputRequiredEvent(step="1", input=PendingInput(input_id="q", prompt="Sure?", step="1"))
    assert marked(observe_live(stalled(4), "-s-I-x-----r|", I=asked)) == [(9, "input 4")]


def test_questions_of_different_runs_may_have_the_same_id() -> None:
    mine, other = LETTERS["i"], nest_event(LETTERS["i"])
    assert marked(observe_live(stalled(4), "-s-iI-R-----|", I=other, R=nest_event(LETTERS["r"]))) == [(10, "input 4")]
    assert mine.task_id == ""


def test_all_that_is_open_is_told_with_its_name() -> None:
    [(_, stall)] = observe_live(stalled(4), "-l-sS----x", until=9)
    assert (stall.awaits, stall.names, stall.models) == ("tool", ("look", "search"), ("m",))
    assert str(stall) == "nothing came for 4 s; awaited: tool look, search"
    [(_, stall)] = observe_live(stalled(4), "-l----x", until=6)
    assert (stall.awaits, stall.names) == ("model", ("m",))
    [(_, stall)] = observe_live(stalled(4), "-t----x", until=6)
    assert (stall.awaits, stall.names, str(stall)) == ("run", (), "nothing came for 4 s; awaited: run")


def test_a_call_that_waits_for_a_nested_run_is_not_what_is_awaited() -> None:
    child, inner, end = nest_event(LETTERS["l"]), nest_event(LETTERS["s"]), nest_event(LETTERS["F"])
    assert marked(observe_live(stalled(4), "-s-L-----x|", L=child)) == [(7, "model 4")]
    [(_, stall)] = observe_live(
        stalled(4), "-s-N----x", until=8, N=nest_event(ToolStartEvent(call=CALL, idempotency_key="k"))
    )
    assert stall.calls == (CALL,)
    # Two levels down, and up again.
    deep = nest_event(LETTERS["l"], "grandchild", "child")
    assert marked(observe_live(stalled(4), "-s-N-D-----x|", N=inner, D=deep)) == [(9, "model 4")]
    assert marked(observe_live(stalled(4), "-s-L-E-----x|", L=child, E=end)) == [(9, "tool 4")]
    # One of two may be at work itself.
    [(_, stall)] = observe_live(stalled(4), "-sS-L----x", until=9, L=child)
    assert (stall.awaits, stall.names) == ("tool", ("look", "search"))


def test_a_nested_run_is_forgotten_with_the_call_that_it_was_in() -> None:
    child = nest_event(LETTERS["l"])
    assert marked(observe_live(stalled(4), "-s-L-x-----w|", L=child)) == [(9, "run 4")]


def test_a_clock_that_goes_back_makes_no_stall() -> None:
    events = [stamp(LETTERS[letter], at) for letter, at in (("t", 0), ("l", 10), ("d", 2), ("c", 11), ("F", 12))]
    assert [each.seconds for each in collect_values(stalled(4), events)] == [4, 8]


def test_a_gap_is_no_event_of_the_run() -> None:
    assert marked(observe_live(stalled(4), "-l--g-c|", g=GapEvent(reason="dropped"))) == [(5, "model 4")]


def test_who_leaves_leaves_no_timer() -> None:
    assert marked(observe_live(stalled(4), "-l", until=20)) == [
        (5, "model 4"),
        (9, "model 8"),
        (13, "model 12"),
        (17, "model 16"),
    ]


def test_a_stored_view_waits_for_each_subscriber_apart() -> None:
    view = stalled(4)
    assert observe_live(view, "-l-----c-F|") == observe_live(view, "-l-----c-F|") != []


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_the_time_is_positive(seconds: float) -> None:
    with pytest.raises(ConfigurationError, match="time above 0"):
        stalled(seconds)


@tool
async def slow() -> str:
    """Takes ten seconds."""
    await asyncio.sleep(10)
    return "done"


def test_a_run_that_stalls_is_told_of_live_and_from_its_log() -> None:
    with virtual_time() as time:
        log = MemoryEventLog()
        run = Agent(ScriptedModel(call("slow"), "ok"), tools=[slow], log=log).run("Go.")
        seen: list[tuple[float, Stall]] = []

        async def main() -> list[Stall]:
            run.pipe(stalled(4)).subscribe(lambda stall: seen.append((time.now, stall)))
            await run
            late = [stall async for stall in run.pipe(stalled(4))]
            assert late == collect_values(stalled(4), await log.read(run.task_id))
            return [stall async for stall in replay(log, run.task_id, speed=2).pipe(stalled(4))]

        again = time.run(main())
    assert [(at, str(stall)) for at, stall in seen] == [
        (4, "nothing came for 4 s; awaited: tool slow"),
        (8, "nothing came for 8 s; awaited: tool slow"),
    ]
    assert again == [stall for _, stall in seen]


def test_a_run_whose_model_is_silent_can_be_cancelled_by_who_watches_it() -> None:
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


def test_only_events_that_say_so_end_a_wait() -> None:
    events: list[Event] = [stamp(LETTERS["l"], 0), stamp(ContentCompleteEvent(step="2"), 1)]
    [stall] = collect_values(stalled(4), [*events, stamp(LETTERS["F"], 6)])
    assert stall.awaits == "model"
