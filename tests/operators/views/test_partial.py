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


def emit_values(*events: Event, output_type: Any = City) -> list[Any]:
    """Return the emitted values after checking that they arrive at 210, 220 and so on."""
    scheduler = TestScheduler()
    messages = [on_next(210 + 10 * n, event) for n, event in enumerate(events)]
    source = scheduler.create_hot_observable(*messages, on_completed(990))
    result = scheduler.start(lambda: op.partial(output_type)(source))
    assert source.subscriptions == [ReactiveTest.subscribe(200, 990)]
    recorded: list[Any] = result.messages[:-1]
    return [message.value.value for message in recorded]


def content_events(*pieces: str, **fields: Any) -> list[Event]:
    deltas = [ContentDeltaEvent(delta=piece, **fields) for piece in pieces]
    return [*deltas, ContentCompleteEvent(content="".join(pieces), **fields)]


def argument_deltas(*pieces: str, index: int = 0, name: str = "final_answer") -> list[Event]:
    return [ToolCallDeltaEvent(index=index, tool_call_id="a", name=name, fragment=piece) for piece in pieces]


def test_each_delta_yields_a_snapshot_and_the_end_yields_the_value() -> None:
    scheduler = TestScheduler()
    pieces = ['{"na', 'me": "Os', 'lo", "popu', 'lation": 7', "17710}"]
    messages = [on_next(210 + 10 * n, event) for n, event in enumerate(content_events(*pieces))]
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


def test_code_fence_around_the_answer_is_ignored() -> None:
    assert emit_values(*content_events("```js", 'on\n{"name":', ' "Oslo"', ', "population": 1}', "\n```")) == [
        {},
        {"name": "Oslo"},
        {"name": "Oslo", "population": 1},
        City(name="Oslo", population=1),
    ]


def test_arguments_of_the_answer_tool_yield_snapshots() -> None:
    with_text = [
        ContentDeltaEvent(delta="Here it is:"),
        *argument_deltas('{"name": "Os', 'lo"}'),
        *argument_deltas("{", name="f"),
    ]
    assert emit_values(*with_text) == [{"name": "Os"}, {"name": "Oslo"}]
    assert emit_values(*argument_deltas('{"value": [1', ", 2", "]}"), output_type=list[int]) == [[1], [1, 2]]


def test_snapshots_of_two_answer_calls_are_not_mixed() -> None:
    assert emit_values(*argument_deltas('{"name": "A'), *argument_deltas('{"name": "B', index=1)) == [
        {"name": "A"},
        {"name": "B"},
    ]


def test_invalid_answer_yields_no_value_and_the_next_answer_starts_again() -> None:
    assert emit_values(*content_events('{"name": 7}'), *content_events('{"name": "Os')) == [{"name": 7}, {"name": "Os"}]


def test_text_before_tool_calls_or_a_retry_is_discarded() -> None:
    tool_message = ContentCompleteEvent(content="[", tool_calls=[ToolCall(id="a", name="f")])
    again = LLMCallEvent(iteration=1, model="m", message_count=1, tool_count=0, estimated_input_tokens=1)
    cut_off = [ContentCompleteEvent(content="[1]", finish_reason=reason) for reason in ("canceled", "interrupted")]
    for between in (tool_message, again, *cut_off):
        assert emit_values(ContentDeltaEvent(delta="["), between, *content_events("[2]"), output_type=list[int]) == [
            [],
            [2],
            [2],
        ]


def test_branches_and_nested_agents_are_ignored() -> None:
    assert emit_values(*content_events(OSLO, branch="b"), *content_events(OSLO, parent_task_id="p")) == []


def test_text_that_is_not_json_yields_nothing() -> None:
    assert emit_values(*content_events("I do ", "not know.")) == []


def test_equal_snapshots_are_emitted_once() -> None:
    assert emit_values(*content_events('{"name": "Oslo"', " ", " ", " ")) == [{"name": "Oslo"}]


def test_work_is_proportional_to_the_length_of_the_answer() -> None:
    parsed = 0
    real = from_json

    def count_characters(text: str, **options: Any) -> Any:
        nonlocal parsed
        parsed += len(text)
        return real(text, **options)

    answer = '["' + "x" * 20_000
    values: list[Any] = []
    with patch("rxloop.operators.views.partial.from_json", count_characters):
        deltas = emit(*(ContentDeltaEvent(delta=each) for each in answer))
        op.partial(list[str])(cast("Observable[Event]", deltas)).subscribe(values.append)

    assert 0 < parsed < 25 * len(answer)
    assert len(values[-1][0]) > 0.9 * len(answer)


@pytest.mark.parametrize("mode", ["prompted", "tool"])
async def test_run_yields_snapshots_and_a_late_reader_gets_the_value_only(mode: Any) -> None:
    answer = call("final_answer", name="Oslo", population=7) if mode == "tool" else OSLO
    run = Agent(ScriptedModel(answer), output_type=City, output_mode=mode, log=MemoryEventLog()).run("?")
    values = [value async for value in run.pipe(op.partial(City))]
    result = await run

    assert isinstance(values[0], dict)
    assert values[-1] == result.output
    await collect(run)
    assert [value async for value in run.pipe(op.partial(City))][-1] == result.output


@pytest.mark.parametrize("finish", ["length", "content_filter", "unknown", "weird", "canceled", "interrupted", "pause"])
def test_text_of_an_incomplete_message_yields_no_value(finish: str) -> None:  # P1
    assert emit_values(ContentCompleteEvent(content="12", finish_reason=finish), output_type=int) == []
