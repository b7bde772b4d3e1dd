"""Conversion of event data to JSON, as specified in docs/protocol.md."""

import copy
import math
import pickle
import sys
from collections import OrderedDict, deque
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from pathlib import PurePosixPath
from types import FrameType
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from rxloop import ContentCompleteEvent, CustomEvent, Event, Message, TaskEvent, ToolCall, ToolCompleteEvent
from rxloop.errors import InvalidEvent
from rxloop.protocol.envelope import EVENT_TYPES
from rxloop.protocol.events import UsageEvent, normalise
from rxloop.protocol.json_data import MAX_DEPTH, freeze_json, replace_surrogates
from rxloop.protocol.model import EMPTY_DICT, FrozenDict, FrozenList, thaw


class Color(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class City(BaseModel):
    name: str
    tags: set[str] = set()


@dataclass
class Point:
    x: float


def nest(depth: int, innermost: Any = 1) -> Any:
    value = innermost
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "data"),
    [
        ({"a": [1, 2.5, True, None, "é"]}, {"a": [1, 2.5, True, None, "é"]}),
        ("a\udcffb", "a\ufffdb"),
        ("\ud83d\ude00", "\U0001f600"),
        ({"\udcff": ["\udcff"]}, {"\ufffd": ["\ufffd"]}),
        ([math.nan, math.inf, -math.inf], ["NaN", "Infinity", "-Infinity"]),
        ([2**64 - 1, -(2**63)], [2**64 - 1, -(2**63)]),
        ([2**64, -(2**63) - 1], [str(2**64), str(-(2**63) - 1)]),
        (b"\xff\x00", "_wA="),
        (bytearray(b"ab"), "YWI="),
        ((1, (2,)), [1, [2]]),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset({"b", "a"}), ["a", "b"]),
        (deque([1, 2]), [1, 2]),
        (range(3), [0, 1, 2]),
        (OrderedDict(a=1), {"a": 1}),
        ([Color.RED, Level.HIGH], ["red", 3]),
        (datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC), "2025-01-02T03:04:05Z"),
        (Decimal("1.50"), "1.50"),
        (PurePosixPath("/tmp/x"), "/tmp/x"),
        (City(name="\udcff", tags={"a"}), {"name": "\ufffd", "tags": ["a"]}),
        ([Point(math.nan)], [{"x": "NaN"}]),
        ({date(2025, 1, 2): 1, 5: 2, None: 3}, {"2025-01-02": 1, "5": 2, "None": 3}),
        ({True: 4, 2.5: 5}, {"true": 4, "2.5": 5}),
    ],
)
def test_value_is_converted_by_its_rule(value: Any, data: Any) -> None:
    converted = freeze_json(value, "data")
    assert converted == data
    assert orjson.loads(orjson.dumps(converted)) == data


def make_cycle() -> list[Any]:
    items: list[Any] = []
    items.append(items)
    return items


def make_exponential() -> list[Any]:
    items: list[Any] = []
    for _ in range(60):
        items = [items, items]
    return items


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object(), "data: must be .* got type object"),
        ({"rows": [1, {"x": object()}]}, r"data\['rows'\]\[1\]\['x'\]: must be .* got type object"),
        (nest(MAX_DEPTH + 1), "nested more than 100 deep"),
        (make_cycle(), "or in itself"),
        (nest(100_000), "nested more than 100 deep"),
        (make_exponential(), "more than 1,000,000 values"),
        (iter([1]), "must not be an iterator, got type list_iterator"),
        ({(1, 2): 3}, "keys must be strings, got type tuple"),
        ({1: "a", "1": "b"}, "keys that are equal in JSON"),
        (10**5000, "fewer digits"),
        (Point, "got type type"),
    ],
    ids=["object", "path", "deep", "circle", "very deep", "bomb", "iterator", "key", "keys", "digits", "class"],
)
def test_unsupported_value_is_an_error_with_path_and_type(value: Any, message: str) -> None:
    with pytest.raises(InvalidEvent, match=message) as raised:
        freeze_json(value, "data")
    assert len(str(raised.value)) < 300


def test_value_may_be_nested_up_to_the_limit() -> None:
    assert freeze_json(nest(MAX_DEPTH), "data") == nest(MAX_DEPTH)


CHANGES = [
    lambda value: value.update(a=1),
    lambda value: value.__setitem__("a", 1),
    lambda value: value.pop("a"),
    lambda value: value.popitem(),
    lambda value: value.clear(),
    lambda value: value.setdefault("b", 1),
    lambda value: value.__delitem__("a"),
    lambda value: value.__ior__({}),
    lambda value: value["l"].append(1),
    lambda value: value["l"].extend([1]),
    lambda value: value["l"].insert(0, 1),
    lambda value: value["l"].pop(),
    lambda value: value["l"].remove(1),
    lambda value: value["l"].sort(),
    lambda value: value["l"].reverse(),
    lambda value: value["l"].clear(),
    lambda value: value["l"].__setitem__(0, 1),
    lambda value: value["l"].__delitem__(0),
    lambda value: value["l"].__iadd__([1]),
    lambda value: value["l"].__imul__(2),
]


@pytest.mark.parametrize("change", CHANGES)
def test_change_of_a_frozen_value_is_refused_with_a_remedy(change: Any) -> None:
    value = freeze_json({"a": {}, "l": [1, 2]}, "data")
    with pytest.raises(TypeError, match=r"copy\.deepcopy\(\)"):
        change(value)
    assert value == {"a": {}, "l": [1, 2]}


def test_frozen_value_is_not_converted_again() -> None:
    value = freeze_json({"a": [1]}, "data")
    assert freeze_json(value, "data") is value
    event = CustomEvent(name="x", data=value)
    normalise(event)
    assert event.data is value


def test_depth_of_a_frozen_value_counts_when_it_is_nested() -> None:
    deep = freeze_json(nest(MAX_DEPTH), "data")
    with pytest.raises(InvalidEvent, match="100 deep"):
        freeze_json([deep], "data")


def test_copies_are_mutable_and_pickles_stay_frozen() -> None:
    value = freeze_json({"a": [{"b": 1}]}, "data")
    for copied in (copy.deepcopy(value), thaw(value), orjson.loads(orjson.dumps(value))):
        copied["a"][0]["b"] = 2
        assert type(copied) is dict
    assert type(copy.copy(value)) is dict
    assert type(copy.copy(value["a"])) is list
    again = pickle.loads(pickle.dumps(value))
    assert type(again) is FrozenDict
    assert type(again["a"]) is FrozenList
    assert again == value
    assert value == {"a": [{"b": 1}]}


def test_only_lists_and_dicts_are_copied_with_a_call() -> None:
    value = freeze_json({"a": [1, "x", None, [2.5]], "b": {"c": True}}, "data")
    calls = 0

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code is thaw.__code__

    sys.setprofile(profile)
    try:
        copied = thaw(value)
    finally:
        sys.setprofile(None)
    assert copied == value
    assert calls == 4


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner),
    max_leaves=10,
)
ANY_TEXT = st.text(st.characters(exclude_categories=()))


@given(JSON | ANY_TEXT)
def test_event_with_any_data_survives_json(data: Any) -> None:
    event = CustomEvent(name="x", data=data)
    normalise(event)
    assert Event.from_json(event.to_json()) == event
    assert orjson.loads(event.to_json(public=True))["data"] == event.data  # type: ignore[attr-defined]


@given(ANY_TEXT)
def test_event_contains_no_lone_surrogates(text: str) -> None:
    event = ToolCompleteEvent(
        call=ToolCall(id=text, name=text, raw=text), success=False, error=text, content=text, step="1"
    )
    normalise(event)
    assert Event.from_json(event.to_json()) == event
    assert event.content == event.call.name == event.call.raw == replace_surrogates(text)


def test_normalise_does_not_change_foreign_objects() -> None:
    message = Message(role="assistant", content="a\udcff", provider_state={"signed": {"a": [1]}})
    event = TaskEvent(messages=[message], model="m", agent_name="a")
    normalise(event)
    assert event.messages[0].content == "a\ufffd"
    assert isinstance(event.messages[0].provider_state, FrozenDict)
    assert message.content == "a\udcff"
    assert type(message.provider_state) is dict


def test_lists_of_an_event_are_frozen_deeply() -> None:
    event = ContentCompleteEvent(tool_calls=[ToolCall(id="1", name="f", arguments={"a": {"b": 1}})])
    normalise(event)
    for change in (
        event.tool_calls.clear,
        event.tool_calls[0].arguments.clear,
        event.tool_calls[0].arguments["a"].clear,
        event.metadata.clear,
    ):
        with pytest.raises(TypeError, match="events are immutable"):
            change()
    assert event.model_copy(update={"content": "x"}).tool_calls is event.tool_calls
    assert Event.from_json(event.to_json()) == event


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (
            ToolCompleteEvent(call=ToolCall(id="1", name="f"), success=True, content="", duration=math.nan),
            "duration of tool-complete must be a finite number",
        ),
        (UsageEvent(input_tokens=10**30), "input_tokens of usage must be a finite number"),
        (ContentCompleteEvent().model_copy(update={"content": None}), "content: must be str, got None"),
        (ContentCompleteEvent().model_copy(update={"kind": "text"}), "must be one of content-complete, got 'text'"),
        (ContentCompleteEvent.model_construct(), None),
        (CustomEvent.model_construct(data=1), "CustomEvent has no 'name'"),
        (CustomEvent(name="x", step="1\n"), "the step of an event of kind 'custom' must not .* got '1.n'"),
        (CustomEvent(name="x", branch="a\x1fb"), "the branch of an event of kind 'custom'"),
        (CustomEvent(name="x", parent_task_id="a\u2028"), "the parent_task_id of an event"),
        (
            CustomEvent(name="x", data={"f": open}),
            r"custom: data\['f'\]: must be .* got type builtin_func",
        ),
    ],
)
def test_field_that_could_not_be_read_again_is_named(event: Event, message: str | None) -> None:
    if message is None:
        normalise(event)
        return
    with pytest.raises(InvalidEvent, match=message):
        normalise(event)


class Measured(Event):
    kind: str = "test-measured"
    at: datetime
    made_by: Any = None


class Odd(Event):
    kind: str = "test-odd"
    what: type


# Registered only in their own test, since other tests iterate over all kinds.
for _kind in ("test-measured", "test-odd"):
    EVENT_TYPES.pop(_kind)


def test_custom_kind_with_custom_types_is_checked_by_writing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EVENT_TYPES, "test-measured", Measured)
    event = Measured(at=datetime(2025, 1, 2, tzinfo=UTC), made_by=Point(1.0))
    normalise(event)
    assert Event.from_json(event.to_json()) == event
    with pytest.raises(InvalidEvent, match="events of kind 'test-odd' cannot be encoded"):
        normalise(Odd(what=int))


def test_copy_of_a_call_is_normalised_again() -> None:
    event = ContentCompleteEvent(tool_calls=[ToolCall(id="1", name="f", arguments={"a": [1]})])
    normalise(event)
    call = event.tool_calls[0].model_copy(update={"arguments": {"a": ["\udcff"]}})
    copied = ContentCompleteEvent(tool_calls=[call])
    normalise(copied)
    assert copied.tool_calls[0].arguments == {"a": ["\ufffd"]}
    with pytest.raises(TypeError, match="events are immutable"):
        copied.tool_calls[0].arguments["a"].clear()


class Step(StrEnum):
    FIRST = "first"


@pytest.mark.parametrize("step", [Step.FIRST, ["first"], 1])
def test_id_that_equals_a_normalised_one_must_be_a_string(step: Any) -> None:
    normalise(CustomEvent(name="x", step="first").model_copy(update={"metadata": EMPTY_DICT}))
    event = CustomEvent(name="x").model_copy(update={"step": step, "metadata": EMPTY_DICT})
    with pytest.raises(InvalidEvent, match=r"custom: step: must be NoneType or str"):
        normalise(event)
