from __future__ import annotations

from typing import Any, cast
from unittest.mock import patch

import pytest
from pydantic import BaseModel
from pydantic_core import from_json
from reactivex import Observable
from reactivex.testing import ReactiveTest, TestScheduler

from rxloop import Agent, MemoryEventLog, op
from rxloop.protocol.events import ContentCompleteEvent, ContentDeltaEvent, Event, LLMCallEvent, ToolCallDeltaEvent
from rxloop.protocol.messages import ToolCall
from rxloop.stream.sources import emit
from rxloop.testing import ScriptedModel, call
from support.runs import collect

on_next, on_completed = ReactiveTest.on_next, ReactiveTest.on_completed


class City(BaseModel):
    name: str
    population: int


OSLO = '{"name": "Oslo", "population": 717710}'


def seen(*events: Event, output_type: Any = City) -> list[Any]:
    """What the view gives at 210, 220 and so on, without the times."""
    scheduler = TestScheduler()
    messages = [on_next(210 + 10 * n, event) for n, event in enumerate(events)]
    source = scheduler.create_hot_observable(*messages, on_completed(990))
    result = scheduler.start(lambda: op.partial(output_type)(source))
    assert source.subscriptions == [ReactiveTest.subscribe(200, 990)]
    recorded: list[Any] = result.messages[:-1]
    return [message.value.value for message in recorded]


def said(*pieces: str, **fields: Any) -> list[Event]:
    deltas = [ContentDeltaEvent(delta=piece, **fields) for piece in pieces]
    return [*deltas, ContentCompleteEvent(content="".join(pieces), **fields)]


def arguments(*pieces: str, index: int = 0, name: str = "final_answer") -> list[Event]:
    return [ToolCallDeltaEvent(index=index, tool_call_id="a", name=name, fragment=piece) for piece in pieces]


def test_each_piece_gives_what_there_is_and_the_end_gives_the_value() -> None:
    scheduler = TestScheduler()
    pieces = ['{"na', 'me": "Os', 'lo", "popu', 'lation": 7', "17710}"]
    messages = [on_next(210 + 10 * n, event) for n, event in enumerate(said(*pieces))]
    source = scheduler.create_hot_observable(*messages, on_completed(300))

    result = scheduler.start(lambda: op.partial(City)(source))

    assert result.messages == [
        on_next(210, {}),
        on_next(220, {"name": "Os"}),
        on_next(230, {"name": "Oslo"}),
        on_next(240, {"name": "Oslo", "population": 7}),
        on_next(250, {"name": "Oslo", "population": 717710}),
        on_next(260, City(name="Oslo", population=717710)),
        on_completed(300),
    ]


def test_a_code_fence_around_the_answer_is_no_part_of_it() -> None:
    assert seen(*said("```js", 'on\n{"name":', ' "Oslo"', ', "population": 1}', "\n```")) == [
        {},
        {"name": "Oslo"},
        {"name": "Oslo", "population": 1},
        City(name="Oslo", population=1),
    ]


def test_the_arguments_of_the_tool_for_the_answer_grow_in_the_same_way() -> None:
    with_text = [ContentDeltaEvent(delta="Here it is:"), *arguments('{"name": "Os', 'lo"}'), *arguments("{", name="f")]
    assert seen(*with_text) == [{"name": "Os"}, {"name": "Oslo"}]
    assert seen(*arguments('{"value": [1', ", 2", "]}"), output_type=list[int]) == [[1], [1, 2]]


def test_two_calls_for_the_answer_are_not_mixed() -> None:
    assert seen(*arguments('{"name": "A'), *arguments('{"name": "B', index=1)) == [{"name": "A"}, {"name": "B"}]


def test_an_answer_that_does_not_fit_gives_no_value_and_the_next_one_begins_anew() -> None:
    assert seen(*said('{"name": 7}'), *said('{"name": "Os')) == [{"name": 7}, {"name": "Os"}]


def test_what_was_said_before_tool_calls_or_before_a_second_try_is_void() -> None:
    asked = ContentCompleteEvent(content="[", tool_calls=[ToolCall(id="a", name="f")])
    again = LLMCallEvent(iteration=1, model="m", message_count=1, tool_count=0, estimated_input_tokens=1)
    cut_off = [ContentCompleteEvent(content="[1]", finish_reason=reason) for reason in ("canceled", "interrupted")]
    for between in (asked, again, *cut_off):
        assert seen(ContentDeltaEvent(delta="["), between, *said("[2]"), output_type=list[int]) == [[], [2], [2]]


def test_the_lines_of_a_strategy_and_nested_agents_are_left_out() -> None:
    assert seen(*said(OSLO, branch="b"), *said(OSLO, parent_task_id="p")) == []


def test_text_that_is_no_json_gives_nothing() -> None:
    assert seen(*said("I do ", "not know.")) == []


def test_equal_snapshots_come_once() -> None:
    assert seen(*said('{"name": "Oslo"', " ", " ", " ")) == [{"name": "Oslo"}]


def test_the_work_is_in_proportion_to_the_length() -> None:
    read = 0
    real = from_json

    def counted(text: str, **options: Any) -> Any:
        nonlocal read
        read += len(text)
        return real(text, **options)

    answer = '["' + "x" * 20_000
    values: list[Any] = []
    with patch("rxloop.operators.views.partial.from_json", counted):
        deltas = emit(*(ContentDeltaEvent(delta=each) for each in answer))
        op.partial(list[str])(cast("Observable[Event]", deltas)).subscribe(values.append)

    assert 0 < read < 25 * len(answer)
    assert len(values[-1][0]) > 0.9 * len(answer)


@pytest.mark.parametrize("mode", ["prompted", "tool"])
async def test_a_run_shows_its_answer_grow_and_a_late_reader_gets_the_value_alone(mode: Any) -> None:
    answer = call("final_answer", name="Oslo", population=7) if mode == "tool" else OSLO
    run = Agent(ScriptedModel(answer), output_type=City, output_mode=mode, log=MemoryEventLog()).run("?")
    values = [value async for value in run.pipe(op.partial(City))]
    result = await run

    assert isinstance(values[0], dict)
    assert values[-1] == result.output
    await collect(run)
    assert [value async for value in run.pipe(op.partial(City))][-1] == result.output


@pytest.mark.parametrize("finish", ["length", "content_filter", "unknown", "weird", "canceled", "interrupted", "pause"])
def test_text_of_an_incomplete_message_gives_no_value(finish: str) -> None:  # P1
    assert seen(ContentCompleteEvent(content="12", finish_reason=finish), output_type=int) == []
