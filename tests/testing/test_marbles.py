from __future__ import annotations

import asyncio
import traceback
from dataclasses import dataclass

import pytest
import reactivex as rx
from hypothesis import given
from hypothesis import strategies as st
from reactivex import Observable
from reactivex import operators as ops

from rxloop import Agent, Run
from rxloop.errors import ConfigurationError, RxloopError
from rxloop.protocol.envelope import EVENT_TYPES
from rxloop.protocol.events import (
    CheckpointEvent,
    ContentCompleteEvent,
    ContentDeltaEvent,
    CustomEvent,
    Event,
    LLMCallEvent,
    MessageAddedEvent,
    StatusUpdateEvent,
    UsageEvent,
)
from rxloop.protocol.messages import Usage
from rxloop.stream.sources import Push, from_task
from rxloop.testing import NothingLeft, ScriptedModel, assert_marbles, frames, marbles, virtual_time
from rxloop.testing.marbles import get_marble

CALL = LLMCallEvent(iteration=1, model="m", message_count=1, tool_count=0, estimated_input_tokens=1)
DELTA = ContentDeltaEvent(delta="hi")
MESSAGE = ContentCompleteEvent(content="hi")
FINAL = StatusUpdateEvent(state="completed", final=True)


def timed(*steps: Event | float, error: Exception | None = None) -> Observable[Event]:
    """Return a stream of the events. Numbers are seconds to wait."""

    async def work(push: Push[Event]) -> None:
        for step in steps:
            if isinstance(step, Event):
                push(step)
            else:
                await asyncio.sleep(step)
        if error is not None:
            raise error

    return from_task(work)


@dataclass
class RunLike:
    events: Observable[Event]


@pytest.mark.parametrize(
    "line",
    [
        "l 150ms (cF|)",
        "(l) ------ (cF|)",
        "l 0.05s -- 50ms c F |",
        "l---- --(c F)|",
    ],
)
def test_line_can_be_written_in_several_ways(line: str) -> None:
    with virtual_time():
        assert_marbles(timed(CALL, 0.15, MESSAGE, FINAL), line)


def test_frame_length_can_be_set() -> None:
    with virtual_time():
        assert_marbles(timed(CALL, 2.0, MESSAGE), "l--(c|)", frame=1)


def test_assert_marbles_accepts_a_run() -> None:
    with virtual_time():
        assert_marbles(RunLike(timed(CALL, MESSAGE)), "(lc|)")


def test_time_counts_from_the_subscription() -> None:
    with virtual_time() as time:
        time.advance(3)
        assert_marbles(timed(CALL, 0.5, MESSAGE), "l 500ms (c|)")


def test_deltas_usage_and_checkpoints_are_only_compared_if_expected() -> None:
    checkpoint = CheckpointEvent(iteration=1, message_count=1, usage=Usage(), durable_seq=None)
    events = (CALL, DELTA, UsageEvent(), MESSAGE, checkpoint)
    with virtual_time():
        assert_marbles(timed(*events), "(lc|)")
        assert_marbles(timed(*events), "(ldc|)")
        assert_marbles(timed(*events), "(luck|)")
        with pytest.raises(AssertionError):
            assert_marbles(timed(CALL, MESSAGE), "(lck|)")


def test_order_of_simultaneous_events_matters() -> None:
    with virtual_time(), pytest.raises(AssertionError):
        assert_marbles(timed(CALL, MESSAGE), "(cl|)")


@pytest.mark.parametrize("line", ["l-(c|)", "l 500ms (c|) m", "l 500ms c", "l 500ms (|)", "(lc|)", "", "l 500ms (c#)"])
def test_other_times_events_or_ends_are_differences(line: str) -> None:
    with virtual_time(), pytest.raises(AssertionError):
        assert_marbles(timed(CALL, 0.5, MESSAGE), line)


def test_difference_shows_both_lines_the_position_and_the_events() -> None:
    with virtual_time(), pytest.raises(AssertionError) as caught:
        assert_marbles(timed(CALL, 0.5, MESSAGE, 0.01, FINAL), "l 500ms (cF|)")
    assert str(caught.value).splitlines() == [
        "the marbles differ at 500ms",
        "expected  l 500ms (cF|)",
        "happened  l 500ms c 10ms (F|)",
        "                  ^",
        "events at 500ms:",
        f"  c  {MESSAGE!r}",
    ]


def describe_difference(stream: Observable[Event], line: str) -> list[str]:
    with virtual_time(), pytest.raises(AssertionError) as caught:
        assert_marbles(stream, line)
    return str(caught.value).splitlines()


def test_difference_shows_the_next_events() -> None:
    assert describe_difference(timed(CALL, 0.05, MESSAGE, FINAL), "l-(cF|)") == [
        "the marbles differ at 25ms",
        "expected  l-(cF|)",
        "happened  l--(cF|)",
        "            ^",
        "no event at 25ms; next events at 50ms:",
        f"  c  {MESSAGE!r}",
        f"  F  {FINAL!r}",
        "  |  the end",
    ]


def test_difference_shows_where_a_line_ends_too_early() -> None:
    assert describe_difference(timed(CALL, 0.05, MESSAGE), "l--(c|) 1s F") == [
        "the marbles differ at 1.05s",
        "expected  l--(c|) 1s F",
        "happened  l--(c|)",
        "                 ^",
        "no event at 1.05s or later",
    ]
    assert describe_difference(timed(CALL, 0.05, MESSAGE), "l")[1:4] == [
        "expected  l",
        "happened  l--(c|)",
        "           ^",
    ]


def test_difference_marks_the_wrong_one_of_simultaneous_events() -> None:
    assert describe_difference(timed(CALL, MESSAGE, FINAL), "(lFc|)") == [
        "the marbles differ at 0ms",
        "expected  (lFc|)",
        "happened  (lcF|)",
        "            ^",
        "events at 0ms:",
        f"  l  {CALL!r}",
        f"  c  {MESSAGE!r}",
        f"  F  {FINAL!r}",
        "  |  the end",
    ]


def test_stream_error_is_a_hash_sign_and_is_shown() -> None:
    with virtual_time():
        assert_marbles(timed(CALL, 0.025, error=ValueError("no")), "l-#")
        with pytest.raises(AssertionError, match=r"#  ValueError\('no'\)"):
            assert_marbles(timed(CALL, 0.025, error=ValueError("no")), "l-|")


def test_assertion_contains_the_traceback_of_the_operator_that_failed() -> None:
    def fail(event: Event) -> None:
        raise ZeroDivisionError

    with virtual_time(), pytest.raises(AssertionError) as caught:
        assert_marbles(timed(CALL).pipe(ops.map(fail)), "l|")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert traceback.extract_tb(caught.value.__cause__.__traceback__)[-1].name == "fail"


def test_endless_stream_raises_an_error_with_its_events() -> None:
    with virtual_time(), pytest.raises(NothingLeft, match=r"(?s)does not end: no timer.*happened  l--c"):
        assert_marbles(rx.concat(timed(CALL, 0.05, MESSAGE), rx.never()), "l--c|")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("l-Q|", "unknown letter 'Q'"),
        ("(l-c)", "time cannot advance inside"),
        ("(l 5ms c)", "time cannot advance inside"),
        ("(lc", "unclosed parenthesis"),
        ("l)", "letter '\\)'"),
        ("l 5 c", "letter '5'"),
    ],
)
def test_invalid_line_raises_an_error_with_the_reason(line: str, reason: str) -> None:
    with virtual_time(), pytest.raises(ConfigurationError, match=reason):
        assert_marbles(timed(CALL), line)


def test_marbles_need_virtual_time() -> None:
    with pytest.raises(RxloopError, match="virtual_time"):
        assert_marbles(timed(CALL), "l|")


def test_every_kind_has_a_different_marble() -> None:
    names = [get_marble(cls.model_construct(kind=kind, final=False)) for kind, cls in EVENT_TYPES.items()]
    assert len({*names, get_marble(FINAL)}) == len(names) + 1
    assert "?" not in names


def test_marbles_formats_a_short_line() -> None:
    assert marbles([(0, CALL), (0, DELTA), (0.025, MESSAGE), (0.525, FINAL), (2.525, "|")]) == "(ld)-c 500ms F 2s |"


STEPS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.025, 0.05, 0.1, 0.125, 0.0301, 1.0, 90.5]),
        st.sampled_from([CALL, DELTA, MESSAGE, CustomEvent(name="n"), MessageAddedEvent(content="m")]),
    ),
    max_size=8,
)


@given(STEPS)
def test_formatted_line_can_be_parsed(steps: list[tuple[float, Event]]) -> None:
    at = 0.0
    events: list[tuple[float, Event | str]] = []
    for wait, event in steps:
        at += wait
        events.append((at, event))
    line = marbles([*events, (at, "|")])
    with virtual_time():
        assert_marbles(timed(*[part for step in steps for part in step]), line if "d" in line else line + " ")


def test_marbles_of_a_run_can_be_asserted() -> None:
    def start() -> Run[str]:
        return Agent(ScriptedModel(frames("--7 C.|"))).run("Weather?")

    with virtual_time():
        line = marbles(start())
    assert line == "(twl)---(cF|)"
    with virtual_time():
        assert_marbles(start(), line)
    with virtual_time():
        assert marbles(start().events) == line


def make_counts() -> Observable[int]:
    return rx.from_marbles("-a-b--a|", lookup={"a": 1, "b": 2}, timespan=0.025)


def test_values_are_compared_by_their_letters() -> None:
    marks = {"x": 1, "y": pytest.approx(2.0000001)}
    with virtual_time():
        assert_marbles(make_counts(), "-x--y---x-|", values=marks)
        assert marbles(make_counts(), values=marks) == "-x--y---x-|"


def test_other_value_is_a_difference() -> None:
    with virtual_time(), pytest.raises(AssertionError) as caught:
        assert_marbles(make_counts(), "-x--x---x-|", values={"x": 1})
    assert str(caught.value).splitlines() == [
        "the marbles differ at 75ms",
        "expected  -x--x---x-|",
        "happened  -x--?---x-|",
        "              ^",
        "events at 75ms:",
        "  ?  2",
        "? is a value without a letter: pass letters, such as values={'a': 1.5}",
    ]


def test_text_has_no_letter_by_default() -> None:
    with virtual_time(), pytest.raises(AssertionError, match=r"happened  \(\?\|\)"):
        assert_marbles(rx.just("l"), "(l|)")


def test_events_keep_their_letters_beside_values() -> None:
    with virtual_time():
        assert_marbles(timed(CALL, DELTA, 0.05, MESSAGE), "(lz)--(c|)", values={"z": DELTA})


@pytest.mark.parametrize("key", ["", "ab", "|", "-", "1", " "])
def test_values_require_single_letters(key: str) -> None:
    with virtual_time(), pytest.raises(ConfigurationError, match="use single letters"):
        assert_marbles(make_counts(), "|", values={key: 1})
