"""Statistics of runs, live and recorded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reactivex import Observable, Subject
from reactivex import operators as rx

from rxloop import Agent, ContentDeltaEvent, Event, GapEvent, MemoryEventLog, Usage, replay, tool
from rxloop.errors import ConfigurationError, RunCancelled
from rxloop.operators.views.stats import Stats, stats
from rxloop.protocol.events import (
    InputReceivedEvent,
    InputRequiredEvent,
    PendingInput,
    StatusUpdateEvent,
    TaskEvent,
    ToolCompleteEvent,
    ToolStartEvent,
)
from rxloop.protocol.messages import Message, ToolCall
from rxloop.providers.catalog import Price
from rxloop.stream.sources import emit
from rxloop.testing import ScriptedModel, call, turn, virtual_time
from support.timelines import (
    LETTERS,
    collect_values,
    format_timeline,
    nest_event,
    observe_live,
    observe_recorded,
    parse_timeline,
    stamp,
)


def changes(emissions: list[tuple[int, Any]], figure: Callable[[Stats], Any]) -> list[tuple[int, Any]]:
    """Return each change of a figure with its second."""
    points: list[tuple[int, Any]] = []
    for second, value in emissions:
        if isinstance(value, Stats) and (not points or points[-1][1] != figure(value)):
            points.append((second, figure(value)))
    return points


def test_stats_are_emitted_once_per_window_and_with_the_final_event() -> None:
    emissions = observe_live(stats(3), "--t--l--d--d--d--c--s---------x---F|")
    assert format_timeline(emissions, lambda _: "S") == "-----S--S--S--S--S--S--S--S--S--S-S|"
    assert changes(emissions, lambda s: s.seconds)[-2:] == [(32, 30), (34, 32)]


def test_stats_contain_events_before_the_window_ends() -> None:
    emissions = observe_live(stats(3), "--t--l--(ddd)--d--(uc)--F|")
    # The request is sent at second 5, the start of the next window.
    assert changes(emissions, lambda s: s.model_calls) == [(5, 0), (8, 1)]
    assert changes(emissions, lambda s: s.tokens_per_second) == [(5, 0), (11, 1), (14, 1 / 3), (17, 0)]
    assert changes(emissions, lambda s: s.usage.output_tokens) == [(5, 0), (17, 12)]


def test_recorded_events_yield_the_same_stats_without_empty_windows() -> None:
    line = "--t--l-dd-d----------d-c-s-----------------x--F|"
    everything = [value for _, value in observe_live(stats(3), line) if value != "|"]
    recorded = observe_recorded(stats(3), line)
    assert recorded == [each for each in everything if each in recorded]
    assert [each.seconds for each in everything] == [*range(3, 45, 3), 44]
    assert [each.seconds for each in recorded] == [3, 6, 9, 21, 24, 42, 44]


@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from("dtscx")), min_size=1), st.integers(1, 9))
def test_every_delta_counts_in_exactly_one_window(moments: list[tuple[int, str]], window: int) -> None:
    events = [stamp(LETTERS[symbol], second) for second, symbol in sorted(moments)]
    results = collect_values(stats(window), [*events, stamp(LETTERS["t"], 100)])
    deltas = sum(isinstance(event, ContentDeltaEvent) for event in events)
    assert sum(each.tokens_per_second for each in results) * window == pytest.approx(deltas)


def test_first_token_is_timed_from_its_own_request() -> None:
    again, late = (LETTERS[symbol].model_copy(update={"step": "2"}) for symbol in "ld")
    emissions = observe_live(stats(3), "-t-l--d--c--L-----D--F|", L=again, D=late)
    assert changes(emissions, lambda s: s.time_to_first_token) == [(4, None), (7, 3), (19, 6)]


def test_repeated_request_is_timed_again() -> None:
    emissions = observe_live(stats(3), "-t-l----l--d--c-F|")
    assert changes(emissions, lambda s: s.time_to_first_token) == [(4, None), (13, 3)]
    assert changes(emissions, lambda s: s.model_calls) == [(4, 1), (10, 2)]


def test_answer_without_deltas_counts_by_its_usage() -> None:
    # 12 tokens in 6 seconds. The 12 tokens of the second answer are in one window of 3 seconds.
    again, more, end = (LETTERS[symbol].model_copy(update={"step": "2"}) for symbol in "luc")
    emissions = observe_live(stats(3), "-t--l-----(uc)---L-(UC)---F|", L=again, U=more, C=end)
    assert changes(emissions, lambda s: s.tokens_per_second) == [(4, 0), (13, 2), (16, 0), (19, 4), (20, 0)]
    assert {each.time_to_first_token for _, each in emissions if each != "|"} == {None}


def test_rate_of_a_run_shorter_than_a_window_uses_the_duration_of_the_run() -> None:
    assert [each.tokens_per_second for each in observe_recorded(stats(100), "-t-l-d-d-(dc)F|")] == [3 / 9]
    assert [each.tokens_per_second for each in observe_recorded(stats(100), "-t-l-----(uc)F|")] == [12 / 9]
    assert [each.tokens_per_second for each in observe_recorded(stats(100), "-(tldcF)|")] == [1 / 100]


def test_parallel_tools_count_their_time_once() -> None:
    emissions = observe_live(stats(3), "-t-c--s-S--x--X----s--x-F|")
    assert changes(emissions, lambda s: s.tool_seconds)[-1] == (22, 8 + 3)
    assert changes(emissions, lambda s: s.tool_calls) == [(4, 0), (7, 1), (10, 2), (22, 3)]


def test_running_tool_counts_up_to_the_current_time() -> None:
    emissions = observe_live(stats(3), "-(ts)-------------x-F|")
    assert changes(emissions, lambda s: s.tool_seconds) == [(4, 3), (7, 6), (10, 9), (13, 12), (16, 14)]


def test_refused_call_is_not_counted() -> None:
    last = observe_recorded(stats(3), "-t-c--x----F|")[-1]
    assert last.tool_calls == 0
    assert last.tool_seconds == 0


def test_tool_that_waits_for_a_person_is_not_counted() -> None:
    assert observe_recorded(stats(3), "-t-s--i--------r--x-F|")[-1].tool_seconds == 3 + 3
    # The other tool works.
    assert observe_recorded(stats(3), "-t-s-Si--------r--x-XF|")[-1].tool_seconds == 17
    assert observe_recorded(stats(3), "-t-s--i--------------x--F|")[-1].tool_seconds == 3


def test_four_hundred_waiting_calls_are_counted_in_linear_time() -> None:
    calls = [ToolCall(id=f"c{index}", name="ask") for index in range(400)]
    events: list[Event] = [TaskEvent(messages=[Message.user("Go.")], model="m", agent_name="a")]
    events += [ToolStartEvent(call=each, index=index, idempotency_key="k") for index, each in enumerate(calls)]
    for index, each in enumerate(calls):
        question = PendingInput(input_id=each.id, prompt="Sure?", call=each, index=index)
        events.append(InputRequiredEvent(input=question))
    for index, each in enumerate(calls):
        events.append(InputReceivedEvent(input_id=each.id, value=True))
        events.append(ToolCompleteEvent(call=each, index=index, success=True, content=""))
    events.append(StatusUpdateEvent(state="completed", final=True))
    seen: list[Stats] = []
    begin = time.process_time()
    emit(*(event.model_copy(update={"timestamp": 1 + n}) for n, event in enumerate(events))).pipe(stats(60)).subscribe(
        seen.append
    )
    # This takes 0.1 s. It took 5 s when each call built the set of waiting calls.
    assert time.process_time() - begin < 2
    assert seen[-1].tool_calls == 400
    assert seen[-1].tool_seconds == 1.199


def test_calls_left_open_by_a_crash_end_with_the_last_event() -> None:
    last = observe_recorded(stats(3), f"-t-s-d{'-' * 60}W--l--F|")[-1]
    assert last.tool_seconds == 2
    assert last.seconds == 4 + 6


def test_time_between_attempts_is_not_counted() -> None:
    emissions = observe_live(stats(3), f"-t--l-dP{'-' * 60}W----F|")
    assert changes(emissions, lambda s: s.seconds) == [(4, 3), (7, 6), (71, 9), (73, 11)]
    assert changes(emissions, lambda s: s.tokens_per_second) == [(4, 0), (7, 1 / 3), (71, 0)]


def test_rate_includes_only_its_own_attempt() -> None:
    assert [each.tokens_per_second for each in observe_recorded(stats(3), "-tdPWF|")] == [1 / 2, 0]


def test_runs_of_a_conversation_add_up_without_the_time_between_them() -> None:
    emissions = observe_live(stats(3), f"-t--l-(cF){'-' * 40}t-s--x-F|")
    assert changes(emissions, lambda s: s.seconds) == [(4, 3), (6, 5), (50, 8), (53, 11), (54, 12)]
    assert changes(emissions, lambda s: s.tool_seconds) == [(4, 0), (50, 1), (53, 3)]


def test_clock_that_is_set_back_subtracts_nothing() -> None:
    events = [stamp(LETTERS[symbol], at) for symbol, at in (("t", 0), ("s", 10), ("x", 4), ("F", 3))]
    last = collect_values(stats(3), events)[-1]
    assert last.seconds == 10
    assert last.tool_seconds == 0


def test_events_without_timestamps_are_timed_by_the_scheduler() -> None:
    def unstamped(source: Observable[Event]) -> Observable[Stats]:
        return source.pipe(rx.map(lambda event: event.model_copy(update={"timestamp": 0})), stats(3))

    emissions = observe_live(unstamped, "-dddddddd|")
    assert changes(emissions, lambda s: (s.seconds, s.tokens_per_second)) == [(4, (3, 1)), (7, (6, 1))]


def test_gap_is_not_counted() -> None:
    events = [event for _, event in parse_timeline("-t-l-d-F|")[0]]
    gap = GapEvent(reason="trimmed", task_id="run", attempt=1)
    assert collect_values(stats(3), [gap, *events, gap]) == collect_values(stats(3), events)


def test_nested_runs_are_counted_and_end_with_their_call() -> None:
    request, usage, tool_start = (nest_event(LETTERS[symbol]) for symbol in "lus")
    # The nested run and its outer call are interrupted, so the nested tool has no end.
    emissions = observe_live(stats(3), "-t-l-(uc)s-L--U--N---x-----F|", L=request, U=usage, N=tool_start)
    last = emissions[-2][1]
    assert last.model_calls == 2
    assert last.tool_calls == 2
    assert last.usage == Usage(input_tokens=200, output_tokens=24)
    assert last.tool_seconds == 12


def test_final_event_of_a_nested_run_does_not_complete_the_view() -> None:
    assert (
        format_timeline(observe_live(stats(3), "-t--f------F|", f=nest_event(LETTERS["F"])), lambda _: "S")
        == "----S--S--SS|"
    )


def test_cost_includes_only_models_with_a_price() -> None:
    table = {"m": Price(input=1_000_000, output=2_000_000)}
    free = LETTERS["l"].model_copy(update={"model": "unknown", "step": "2"})
    more = LETTERS["u"].model_copy(update={"step": "2"})
    emissions = observe_live(stats(3, prices=table), "-t-l--(uc)--L---U-F|", L=free, U=more)
    assert changes(emissions, lambda s: s.dollars) == [(4, None), (7, 124.0)]
    assert changes(emissions, lambda s: s.usage.output_tokens) == [(4, 0), (7, 12), (15, 24)]


def test_each_subscriber_of_a_stored_view_has_its_own_counts() -> None:
    view = stats(3)
    assert observe_live(view, "-t-l-d-F|") == observe_live(view, "-t-l-d-F|") == observe_live(stats(3), "-t-l-d-F|")


def test_disposal_cancels_the_timer() -> None:
    assert format_timeline(observe_live(stats(3), "-t--d", until=9), lambda _: "S") == "----S--S"


@pytest.mark.parametrize("window", [0, -1, float("nan")])
def test_stats_rejects_a_window_that_is_not_positive(window: float) -> None:
    with pytest.raises(ConfigurationError, match="window must be a positive number"):
        stats(window)


def test_stats_are_described_in_one_line() -> None:
    *_, last = observe_recorded(stats(3, prices={"m": Price(100, 100)}), "-t-l--d-(uc)-s--x-F|")
    assert str(last) == (
        "14.0 s, 0.0 tokens/s, first token after 3.00 s, 1 model call, 1 tool call in 3.0 s, 112 tokens, $0.0112"
    )
    *_, first = observe_recorded(stats(3), "-t-l-l-F|")
    assert str(first) == "6.0 s, 0.0 tokens/s, 2 model calls, 0 tokens"


@tool
async def slow() -> str:
    """Take two seconds."""
    await asyncio.sleep(2)
    return "done"


def test_stats_of_a_run_are_the_same_live_and_from_its_log() -> None:
    with virtual_time() as time:
        log = MemoryEventLog()
        model = ScriptedModel(call("slow"), turn("abc", usage=Usage(input_tokens=20, output_tokens=3)))
        run = Agent(model, tools=[slow], log=log).run("Go.")
        seen: list[Stats] = []

        async def main() -> None:
            run.pipe(stats(0.5)).subscribe(seen.append)
            await run
            *_, late = [value async for value in run.pipe(stats(0.5))]
            *_, logged = collect_values(stats(0.5), await log.read(run.task_id))
            *_, again = [value async for value in replay(log, run.task_id, speed=None).pipe(stats(0.5))]
            assert logged == again == late
            assert logged.tool_seconds == seen[-1].tool_seconds
            assert logged.usage == seen[-1].usage
            assert logged.seconds == seen[-1].seconds
            assert logged.tool_calls == seen[-1].tool_calls

        time.run(main())
    # Stats are also emitted while the tool works and no events arrive.
    assert [each.tool_seconds for each in seen[:4]] == [0.5, 1, 1.5, 2]
    assert seen[-1].tool_calls == 1
    assert seen[-1].model_calls == 2
    assert seen[-1].usage.total_tokens == 23


def test_nothing_is_emitted_after_the_end_of_a_run() -> None:
    with virtual_time() as time:
        run = Agent(ScriptedModel(call("slow")), tools=[slow]).run("Go.")
        seen: list[Stats] = []

        async def main() -> None:
            run.pipe(stats(0.3)).subscribe(seen.append)
            asyncio.get_running_loop().call_later(1, run.cancel)
            with pytest.raises(RunCancelled):
                await run

        time.run(main())
        time.advance(5)
    assert [each.seconds for each in seen] == [0.3, 0.6, 0.9, 1]
    assert seen[-1].tool_seconds == 1


def test_blocked_event_loop_causes_one_late_emission() -> None:
    with virtual_time() as time:
        source = Subject[Event]()
        seen: list[Stats] = []

        async def main() -> None:
            source.pipe(stats(1)).subscribe(seen.append)
            source.on_next(stamp(LETTERS["t"], 0))
            source.on_next(stamp(LETTERS["d"], 4.5))
            await asyncio.sleep(2)
            source.on_completed()

        time.run(main())
    assert [each.seconds for each in seen] == [1, 5, 6]


def test_helper_stamps_events_by_their_column() -> None:
    assert [second for second, _ in parse_timeline("-t(ld)--F|")[0]] == [1, 2, 2, 5]
