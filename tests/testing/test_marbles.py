from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
import reactivex as rx
from hypothesis import given
from hypothesis import strategies as st
from reactivex import Observable

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
from rxloop.testing import NothingLeft, assert_marbles, marbles, virtual_time
from rxloop.testing.marbles import letter

CALL = LLMCallEvent(iteration=1, model="m", message_count=1, tool_count=0, estimated_input_tokens=1)
DELTA = ContentDeltaEvent(delta="hi")
MESSAGE = ContentCompleteEvent(content="hi")
FINAL = StatusUpdateEvent(state="completed", final=True)


def timed(*steps: Event | float, error: Exception | None = None) -> Observable[Event]:
    """A stream of the events, with waits for the numbers between them."""

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
def test_one_thing_can_be_written_in_several_ways(line: str) -> None:
    with virtual_time():
        assert_marbles(timed(CALL, 0.15, MESSAGE, FINAL), line)


def test_the_length_of_a_frame_can_be_set() -> None:
    with virtual_time():
        assert_marbles(timed(CALL, 2.0, MESSAGE), "l--(c|)", frame=1)


def test_a_run_gives_its_events() -> None:
    with virtual_time():
        assert_marbles(RunLike(timed(CALL, MESSAGE)), "(lc|)")


def test_time_counts_from_the_subscription() -> None:
    with virtual_time() as time:
        time.advance(3)
        assert_marbles(timed(CALL, 0.5, MESSAGE), "l 500ms (c|)")


def test_deltas_usage_and_checkpoints_count_only_when_they_are_named() -> None:
    checkpoint = CheckpointEvent(iteration=1, message_count=1, usage=Usage(), durable_seq=None)
    everything = (CALL, DELTA, UsageEvent(), MESSAGE, checkpoint)
    with virtual_time():
        assert_marbles(timed(*everything), "(lc|)")
        assert_marbles(timed(*everything), "(ldc|)")
        assert_marbles(timed(*everything), "(luck|)")
        with pytest.raises(AssertionError):
            assert_marbles(timed(CALL, MESSAGE), "(lck|)")


def test_order_within_an_instant_counts() -> None:
    with virtual_time(), pytest.raises(AssertionError):
        assert_marbles(timed(CALL, MESSAGE), "(cl|)")


@pytest.mark.parametrize("line", ["l-(c|)", "l 500ms (c|) m", "l 500ms c", "l 500ms (|)", "(lc|)", "", "l 500ms (c#)"])
def test_another_time_or_event_or_end_is_a_difference(line: str) -> None:
    with virtual_time(), pytest.raises(AssertionError):
        assert_marbles(timed(CALL, 0.5, MESSAGE), line)


def test_a_failure_shows_both_lines_the_place_and_the_events() -> None:
    with virtual_time(), pytest.raises(AssertionError) as caught:
        assert_marbles(timed(CALL, 0.5, MESSAGE, 0.01, FINAL), "l 500ms (cF|)")
    assert str(caught.value).splitlines() == [
        "the marbles part at 500ms",
        "expected  l 500ms (cF|)",
        "happened  l 500ms c 10ms (F|)",
        "                  ^",
        "events at 500ms:",
        f"  c  {MESSAGE!r}",
    ]


def failure(stream: Observable[Event], line: str) -> list[str]:
    with virtual_time(), pytest.raises(AssertionError) as caught:
        assert_marbles(stream, line)
    return str(caught.value).splitlines()


def test_a_failure_shows_what_came_instead_of_nothing() -> None:
    assert failure(timed(CALL, 0.05, MESSAGE, FINAL), "l-(cF|)") == [
        "the marbles part at 25ms",
        "expected  l-(cF|)",
        "happened  l--(cF|)",
        "            ^",
        "no event at 25ms; next, at 50ms:",
        f"  c  {MESSAGE!r}",
        f"  F  {FINAL!r}",
        "  |  the end",
    ]


def test_a_failure_shows_where_a_line_ends_too_early() -> None:
    assert failure(timed(CALL, 0.05, MESSAGE), "l--(c|) 1s F") == [
        "the marbles part at 1.05s",
        "expected  l--(c|) 1s F",
        "happened  l--(c|)",
        "                 ^",
        "nothing happened at 1.05s or later",
    ]
    assert failure(timed(CALL, 0.05, MESSAGE), "l")[1:4] == [
        "expected  l",
        "happened  l--(c|)",
        "           ^",
    ]


def test_a_failure_marks_the_wrong_one_of_several_at_an_instant() -> None:
    assert failure(timed(CALL, MESSAGE, FINAL), "(lFc|)") == [
        "the marbles part at 0ms",
        "expected  (lFc|)",
        "happened  (lcF|)",
        "            ^",
        "events at 0ms:",
        f"  l  {CALL!r}",
        f"  c  {MESSAGE!r}",
        f"  F  {FINAL!r}",
        "  |  the end",
    ]


def test_an_error_of_the_stream_is_a_cross_and_shown() -> None:
    with virtual_time():
        assert_marbles(timed(CALL, 0.025, error=ValueError("no")), "l-#")
        with pytest.raises(AssertionError, match=r"#  ValueError\('no'\)"):
            assert_marbles(timed(CALL, 0.025, error=ValueError("no")), "l-|")


def test_a_stream_without_end_is_an_error_that_shows_what_there_was() -> None:
    with virtual_time(), pytest.raises(NothingLeft, match=r"(?s)does not end: nothing left .*happened  l--c"):
        assert_marbles(rx.concat(timed(CALL, 0.05, MESSAGE), rx.never()), "l--c|")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("l-Q|", "no event has the letter 'Q'"),
        ("(l-c)", "no time passes inside"),
        ("(l 5ms c)", "no time passes inside"),
        ("(lc", "not closed"),
        ("l)", "letter '\\)'"),
        ("l 5 c", "letter '5'"),
    ],
)
def test_a_line_that_cannot_be_read_is_an_error_that_points_at_the_place(line: str, why: str) -> None:
    with virtual_time(), pytest.raises(ConfigurationError, match=why):
        assert_marbles(timed(CALL), line)


def test_marbles_need_virtual_time() -> None:
    with pytest.raises(RxloopError, match="virtual_time"):
        assert_marbles(timed(CALL), "l|")


def test_every_kind_has_a_letter_of_its_own() -> None:
    letters = [letter(cls.model_construct(kind=kind, final=False)) for kind, cls in EVENT_TYPES.items()]
    assert len({*letters, letter(FINAL)}) == len(letters) + 1
    assert "?" not in letters


def test_a_line_is_written_as_people_write_it() -> None:
    assert marbles([(0, CALL), (0, DELTA), (0.025, MESSAGE), (0.525, FINAL), (2.525, "|")]) == "(ld)-c 500ms F 2s |"


STEPS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.025, 0.05, 0.1, 0.125, 0.0301, 1.0, 90.5]),
        st.sampled_from([CALL, DELTA, MESSAGE, CustomEvent(name="n"), MessageAddedEvent(content="m")]),
    ),
    max_size=8,
)


@given(STEPS)
def test_what_is_written_can_be_read_back(steps: list[tuple[float, Event]]) -> None:
    at = 0.0
    happened: list[tuple[float, Event | str]] = []
    for wait, event in steps:
        at += wait
        happened.append((at, event))
    line = marbles([*happened, (at, "|")])
    with virtual_time():
        assert_marbles(timed(*[part for step in steps for part in step]), line if "d" in line else line + " ")
