"""Boundaries between streamed tool calls of servers that share indices or repeat keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from rxloop.pipeline.requests import ToolDefinition
from rxloop.protocol.events import ContentCompleteEvent, Event, ToolCallDeltaEvent
from rxloop.providers.codecs.chat.response import ChatReader
from rxloop.providers.codecs.draft import MessageDraft
from support.http_server import delta
from support.processes.counters import count_operations
from support.vendors.chat_chunks import WHERE, call_delta, call_deltas, read_chunks, read_message

OSLO = '{"city": "Oslo"}'
ROME = '{"city": "Rome"}'


def join_deltas(events: list[Event]) -> list[tuple[str, str, str]]:
    """Return the calls of the joined deltas, ordered by index."""
    streamed: dict[tuple[int, str], tuple[str, str]] = {}
    for event in events:
        if isinstance(event, ToolCallDeltaEvent):
            _, fragments = streamed.get((event.index, event.tool_call_id), ("", ""))
            streamed[event.index, event.tool_call_id] = event.name, fragments + event.fragment
    return [(call_id, name, fragments) for (_, call_id), (name, fragments) in sorted(streamed.items())]


def read_calls(*chunks: Any, tools: Sequence[ToolDefinition] = ()) -> list[tuple[str, str]]:
    """Read the final calls, and check that the deltas match."""
    events = read_chunks(*chunks, delta("tool_calls"), tools=tools)
    done = events[-1]
    assert isinstance(done, ContentCompleteEvent)
    assert join_deltas(events) == [(call.id, call.name, call.raw or "") for call in done.tool_calls]
    assert len({call.id for call in done.tool_calls}) == len(done.tool_calls)
    return [(call.name, call.raw or "") for call in done.tool_calls]


def make_streams(*pieces: dict[str, Any]) -> list[dict[str, Any]]:
    return [call_deltas(each) for each in pieces]


# P4
@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        pytest.param([call_delta(0, "a", "see", OSLO), call_delta(0, "", "see", ROME)], [OSLO, ROME], id="empty id"),
        pytest.param([call_delta(0, "a", "see", OSLO), call_delta(0, None, "see", ROME)], [OSLO, ROME], id="no id"),
        pytest.param([call_delta(0, "a", "see", OSLO), call_delta(0, "a", "see", ROME)], [OSLO, ROME], id="equal id"),
        pytest.param([call_delta(0, "a", "see", OSLO), call_delta(0, "b", "see", ROME)], [OSLO, ROME], id="new id"),
        pytest.param(
            [call_delta(0, "a", "see", OSLO), call_delta(0, "b", "see", OSLO)],
            [OSLO, OSLO],
            id="new id, same arguments",
        ),
        pytest.param(
            [call_delta(0, None, "see", OSLO), call_delta(0, None, "see", ROME)], [OSLO, ROME], id="neither has an id"
        ),
        pytest.param(
            [call_delta(0, None, "see", OSLO), call_delta(0, "b", "see", ROME)], [OSLO, ROME], id="only the second id"
        ),
        pytest.param(
            [{**call_delta(0, "a", "see", OSLO), "index": "0"}, {**call_delta(0, "", "see", ROME), "index": "0"}],
            [OSLO, ROME],
            id="index as text",
        ),
        pytest.param(
            [call_delta(None, "a", "see", OSLO), call_delta(None, "b", "see", ROME)], [OSLO, ROME], id="no index"
        ),
        pytest.param(
            [call_delta(None, None, "see", OSLO), call_delta(None, None, "see", ROME)], [OSLO, ROME], id="no keys"
        ),
        pytest.param(
            [{**call_delta(0, "a", "see", OSLO), "index": 0.0}, {**call_delta(0, "", "see", ROME), "index": 0.0}],
            [OSLO, ROME],
            id="index as a float",
        ),
        pytest.param(
            [{**call_delta(0, "a", "see", OSLO), "index": None}, {**call_delta(0, "b", "see", ROME), "index": None}],
            [OSLO, ROME],
            id="index null",
        ),
        pytest.param(
            [call_delta(None, "a", "see", OSLO), call_delta(None, "a", "see", ROME)],
            [OSLO, ROME],
            id="no index, equal id",
        ),
        pytest.param(
            [call_delta(0, "a", "see", "{}"), call_delta(0, "", "see", ROME)], ["{}", ROME], id="empty object first"
        ),
        pytest.param(
            [call_delta(0, "a", "see", "[]"), call_delta(0, "", "see", ROME)], ["[]", ROME], id="empty list first"
        ),
        pytest.param(
            [call_delta(0, "a", "see", {}), call_delta(0, "", "see", {"city": "Rome"})],
            ["{}", '{"city":"Rome"}'],
            id="objects",
        ),
        pytest.param(
            [call_delta(0, "a", "see", OSLO + " \n"), call_delta(0, "", "see", ROME)],
            [OSLO + " \n", ROME],
            id="white space after",
        ),
        pytest.param(
            [call_delta(0, "a", "see", OSLO), call_delta(0, None, None, "\n"), call_delta(0, "", "see", ROME)],
            [OSLO + "\n", ROME],
            id="white space in a chunk of its own",
        ),
        pytest.param(
            [call_delta(0, "a", "see", OSLO), call_delta(0, "", "see", " " + ROME)],
            [OSLO, " " + ROME],
            id="white space before",
        ),
        pytest.param(
            [
                call_delta(0, "a", "see", OSLO),
                call_delta(0, "b", "see", ""),
                call_delta(0, None, None, ROME[:5]),
                call_delta(0, None, None, ROME[5:]),
            ],
            [OSLO, ROME],
            id="new id opens without arguments",
        ),
        pytest.param(
            [
                call_delta(0, "a", "see", OSLO),
                call_delta(0, "", "see", ""),
                call_delta(0, None, None, ROME[:5]),
                call_delta(0, None, None, ROME[5:]),
            ],
            [OSLO, ROME],
            id="name opens without arguments",
        ),
        pytest.param(
            [
                call_delta(0, "a", "see", OSLO),
                call_delta(0, "a", "see", None),
                call_delta(0, "a", None, ROME[:5]),
                call_delta(0, "a", None, ROME[5:]),
            ],
            [OSLO, ROME],
            id="equal id opens without arguments",
        ),
        pytest.param(
            [
                call_delta(0, "a", "see", OSLO[:4]),
                call_delta(0, None, None, OSLO[4:]),
                call_delta(0, "", "see", ROME[:4]),
                call_delta(0, None, None, ROME[4:]),
            ],
            [OSLO, ROME],
            id="in pieces",
        ),
        pytest.param(
            [
                call_delta(0, "a", "see", '{"s": "}{\\"'),
                call_delta(0, None, None, '}"}'),
                call_delta(0, "", "see", ROME),
            ],
            ['{"s": "}{\\"}"}', ROME],
            id="braces and quotes in a string",
        ),
        pytest.param(
            [call_delta(0, "a", "see", '{"s": "\\'), call_delta(0, None, None, '"}"}'), call_delta(0, "", "see", ROME)],
            ['{"s": "\\"}"}', ROME],
            id="escape between two pieces",
        ),
        pytest.param(
            [call_delta(0, "a", "see", '"{}"'), call_delta(0, "", "see", '"{}" ')],
            ['"{}"'],
            id="a repeated document in a string",
        ),
        pytest.param(
            [
                call_delta(0, "a", "see", '{"city":'),
                call_delta(0, None, "see", '"Oslo"}'),
                call_delta(0, None, "see", ROME),
            ],
            ['{"city":"Oslo"}', ROME],
            id="name in every chunk",
        ),
    ],
)
def test_calls_of_one_tool_with_one_index_are_separate(pieces: list[dict[str, Any]], expected: list[str]) -> None:
    assert read_calls(*make_streams(*pieces)) == [("see", arguments) for arguments in expected]


# P4
@pytest.mark.parametrize("index", [0, None])
@pytest.mark.parametrize("second_id", ["", None, "a", "b"])
@pytest.mark.parametrize("first", ["", "{}", OSLO, '{"city": "Os', "[]"])
def test_another_name_starts_another_call(index: int | None, second_id: str | None, first: str) -> None:
    chunks = make_streams(call_delta(index, "a", "see", first), call_delta(index, second_id, "go", ROME))
    assert read_calls(*chunks) == [("see", first), ("go", ROME)]


# P4
@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param(
            [
                call_delta(0, "a", "see", OSLO[:3]),
                call_delta(0, "a", "see", OSLO[3:8]),
                call_delta(0, "a", "see", OSLO[8:]),
            ],
            id="name and id in every chunk",
        ),
        pytest.param(
            [call_delta(0, "a", "see", ""), call_delta(0, "a", "see", OSLO[:3]), call_delta(0, "a", "see", OSLO[3:])],
            id="name and id in every chunk, first without arguments",
        ),
        pytest.param(
            [
                call_delta(0, None, "see", OSLO[:3]),
                call_delta(0, None, "see", OSLO[3:8]),
                call_delta(0, None, "see", OSLO[8:]),
            ],
            id="name in every chunk",
        ),
        pytest.param(
            [call_delta(None, None, "see", OSLO[:3]), call_delta(None, None, "see", OSLO[3:])],
            id="name in every chunk, no index",
        ),
        pytest.param(
            [call_delta(None, None, "see", ""), call_delta(None, None, "see", OSLO)],
            id="name in every chunk, no index, first without arguments",
        ),
        pytest.param(
            [
                call_delta(0, "a", "see", OSLO[:3]),
                call_delta(0, "a", None, OSLO[3:8]),
                call_delta(0, "a", None, OSLO[8:]),
            ],
            id="id in every chunk",
        ),
        pytest.param(
            [call_delta(None, "a", "see", OSLO[:3]), call_delta(None, "a", "see", OSLO[3:])],
            id="id in every chunk, no index",
        ),
        pytest.param(
            [call_delta(0, "r1", "see", ""), call_delta(0, "r2", None, OSLO[:3]), call_delta(0, "r3", None, OSLO[3:])],
            id="another id in every chunk",
        ),
        pytest.param(
            [
                call_delta(0, "r1", "see", OSLO[:3]),
                call_delta(0, "r2", "see", OSLO[3:8]),
                call_delta(0, "r3", "see", OSLO[8:]),
            ],
            id="another id and the name in every chunk",
        ),
        pytest.param(
            [
                call_delta(None, "r1", "see", OSLO[:3]),
                call_delta(None, "r2", None, OSLO[3:8]),
                call_delta(None, "r3", None, OSLO[8:]),
            ],
            id="another id in every chunk, no index",
        ),
        pytest.param(
            [call_delta(None, "r1", "see", OSLO[:3]), call_delta(None, "r2", "see", OSLO[3:])],
            id="another id and the name in every chunk, no index",
        ),
        pytest.param([call_delta(0, "a", "see", OSLO[:3]), call_delta(0, "", "", OSLO[3:])], id="empty name and id"),
        pytest.param([call_delta(0, "", "see", OSLO[:3]), call_delta(0, "late", None, OSLO[3:])], id="late id"),
        pytest.param([call_delta(0, "a", None, None), call_delta(0, None, "see", OSLO)], id="late name"),
        pytest.param([call_delta(0, "a", "see", OSLO), call_delta(0, None, "see", None)], id="name again at the end"),
        pytest.param(
            [call_delta(0, "a", "see", OSLO), call_delta(0, "a", "see", "")], id="name and id again at the end"
        ),
        pytest.param(
            [call_delta(0, "a", "see", OSLO), call_delta(0, "a", "see", OSLO)], id="everything again at the end"
        ),
        pytest.param([call_delta(0, "a", "see", OSLO), call_delta(0, "a", None, OSLO)], id="arguments and id again"),
        pytest.param(
            [call_delta(0, "a", "see", OSLO), call_delta(0, None, "see", OSLO)], id="arguments and name again"
        ),
        pytest.param(
            [
                call_delta(0, "a", "see", OSLO[:3]),
                call_delta(0, None, None, OSLO[3:]),
                call_delta(0, "a", "see", OSLO.replace(" ", "")),
            ],
            id="arguments again in other spacing",
        ),
        pytest.param(
            [call_delta(None, "a", "see", OSLO), call_delta(None, "a", "see", OSLO)], id="everything again, no index"
        ),
        pytest.param(
            [call_delta(0, "a", "see", OSLO[:3]), call_delta(1, "a", None, OSLO[3:])], id="index counts the chunks"
        ),
        pytest.param(
            [
                call_delta(0, "a", "see", OSLO[:3]),
                call_delta(1, None, None, OSLO[3:8]),
                call_delta(2, None, None, OSLO[8:]),
            ],
            id="index counts the chunks, no id",
        ),
    ],
)
def test_call_with_repeated_keys_is_one_call(pieces: list[dict[str, Any]]) -> None:
    assert read_calls(*make_streams(*pieces)) == [("see", OSLO)]


# P4
@pytest.mark.parametrize("name", ["see", None])
@pytest.mark.parametrize("call_id", ["a", "", None])
def test_arguments_repeated_in_the_last_chunk_are_read_once(name: str | None, call_id: str | None) -> None:
    end = delta("tool_calls", tool_calls=[call_delta(0, call_id, name, OSLO)])
    events = read_chunks(
        call_deltas(call_delta(0, "a", "see", OSLO[:5])), call_deltas(call_delta(0, None, None, OSLO[5:])), end
    )
    assert join_deltas(events) == [("a", "see", OSLO)]
    done = events[-1]
    assert isinstance(done, ContentCompleteEvent)
    assert [(call.id, call.arguments) for call in done.tool_calls] == [("a", {"city": "Oslo"})]


# P4
def test_arguments_that_start_in_the_last_chunk_are_read() -> None:
    end = delta("tool_calls", tool_calls=[call_delta(0, None, None, OSLO[5:])])
    assert read_message(call_deltas(call_delta(0, "a", "see", OSLO[:5])), end).tool_calls[0].arguments == {
        "city": "Oslo"
    }


# P4
def test_nested_objects_do_not_start_another_call_when_the_name_is_repeated() -> None:
    parts = ['{"a":', '{"b":[', '{"c":1}', ',{"d":2}', "]}", "}"]
    assert read_calls(*make_streams(*(call_delta(0, None, "see", part) for part in parts))) == [("see", "".join(parts))]
    inside = ['{"code": "x}', "{y", "}", '{"', "}"]
    assert read_calls(*make_streams(*(call_delta(0, "a", "see", part) for part in inside))) == [
        ("see", "".join(inside))
    ]


# P4
@pytest.mark.parametrize("placeholder", ["{}", "null", " {} "])
@pytest.mark.parametrize("index", [0, None])
@pytest.mark.parametrize("call_id", ["a", None])
@pytest.mark.parametrize("again", [None, "", "a"])
def test_placeholder_before_the_arguments_is_ignored(
    placeholder: str, index: int | None, call_id: str | None, again: str | None
) -> None:
    opening = call_delta(index, call_id, "see", placeholder)
    again = again and call_id
    assert read_calls(*make_streams(opening, call_delta(index, again, None, OSLO))) == [("see", OSLO)]
    parts = [call_delta(index, again, None, part) for part in (" ", "{", OSLO[1:5], OSLO[5:])]
    assert read_calls(*make_streams(opening, *parts)) == [("see", OSLO)]


# P4
@pytest.mark.parametrize(
    "end", [[], [call_delta(0, None, None, "")], [call_delta(0, None, None, "{}")], [call_delta(0, "a", "see")]]
)
def test_empty_object_without_later_arguments_is_used(end: list[dict[str, Any]]) -> None:
    assert read_calls(*make_streams(call_delta(0, "a", "see", "{}"), *end)) == [("see", "{}")]
    other = call_delta(1, "b", "go", "{}")
    assert read_calls(*make_streams(call_delta(0, "a", "see", "{}"), *end, other)) == [("see", "{}"), ("go", "{}")]


# P4
def test_placeholders_of_several_calls_are_replaced() -> None:
    openings = call_deltas(call_delta(0, "a", "see", "{}"), call_delta(1, "b", "see", "{}"))
    by_index = make_streams(
        call_delta(0, None, None, OSLO[:4]), call_delta(1, None, None, ROME), call_delta(0, None, None, OSLO[4:])
    )
    assert read_calls(openings, *by_index) == [("see", OSLO), ("see", ROME)]
    one_index = make_streams(
        call_delta(0, "a", "see", "{}"),
        call_delta(0, None, None, OSLO),
        call_delta(0, "b", "see", "{}"),
        call_delta(0, None, None, ROME),
    )
    assert read_calls(*one_index) == [("see", OSLO), ("see", ROME)]


# P4
@pytest.mark.parametrize("index", [0, None])
@pytest.mark.parametrize("again", [None, "", "a"])
@pytest.mark.parametrize(
    "names", [["get_", "weather"], ["get", "_weather"], ["g", "et", "_w", "eather"], ["get_weather", "_week"]]
)
def test_name_in_fragments_is_joined(index: int | None, again: str | None, names: list[str]) -> None:
    tools = [
        ToolDefinition(name=name, description="", parameters={}) for name in ("get", "get_weather", "get_weather_week")
    ]
    more = [call_delta(index, again, name, "") for name in names[1:]]
    chunks = make_streams(
        call_delta(index, "a", names[0], ""),
        *more,
        call_delta(index, None, None, OSLO[:4]),
        call_delta(index, None, None, OSLO[4:]),
    )
    assert read_calls(*chunks, tools=tools) == [("".join(names), OSLO)]
    together = make_streams(call_delta(index, "a", names[0]), *more[:-1], call_delta(index, again, names[-1], OSLO))
    assert read_calls(*together, tools=tools) == [("".join(names), OSLO)]


# P4
def test_names_of_two_tools_are_not_joined() -> None:
    tools = [
        ToolDefinition(name=name, description="", parameters={}) for name in ("get", "set", "getset", "get_weather")
    ]
    for call_id in (None, "a", "b"):
        chunks = make_streams(call_delta(0, "a", "get", ""), call_delta(0, call_id, "set", OSLO))
        assert read_calls(*chunks, tools=tools) == [("get", ""), ("set", OSLO)]
    assert read_calls(
        *make_streams(call_delta(0, "a", "get", "{}"), call_delta(0, "a", "_weather", OSLO)), tools=tools
    ) == [
        ("get", "{}"),
        ("_weather", OSLO),
    ]
    repeated = make_streams(
        call_delta(0, "a", "get", ""), call_delta(0, "a", "get", OSLO[:4]), call_delta(0, "a", "get", OSLO[4:])
    )
    assert read_calls(*repeated, tools=tools) == [("get", OSLO)]
    assert read_calls(*make_streams(call_delta(0, "a", "get", "")), tools=tools) == [("get", "")]


# P4
def test_interleaved_calls_are_identified_by_index_or_id() -> None:
    by_index = make_streams(
        call_delta(0, "a", "see", ""),
        call_delta(1, "b", "see", ""),
        call_delta(1, None, None, ROME[:4]),
        call_delta(0, None, None, OSLO),
        call_delta(1, None, None, ROME[4:]),
    )
    assert read_calls(*by_index) == [("see", OSLO), ("see", ROME)]
    by_id = make_streams(
        call_delta(0, "a", "see", ""),
        call_delta(0, "b", "see", ""),
        call_delta(0, "a", None, OSLO[:4]),
        call_delta(0, "b", None, ROME[:4]),
        call_delta(0, "a", None, OSLO[4:]),
        call_delta(0, "b", None, ROME[4:]),
    )
    assert read_calls(*by_id) == [("see", OSLO), ("see", ROME)]
    equal_ids = make_streams(
        call_delta(0, "0", "see", OSLO[:4]),
        call_delta(1, "0", "see", ROME[:4]),
        call_delta(0, "0", None, OSLO[4:]),
        call_delta(1, "0", None, ROME[4:]),
    )
    assert [call.raw for call in read_message(*equal_ids, delta("tool_calls")).tool_calls] == [OSLO, ROME]


# P4
def test_many_calls_with_index_zero_keep_their_order() -> None:
    chunks = make_streams(*(call_delta(0, "", "see", f'{{"n":{n}}}') for n in range(20)))
    assert read_calls(*chunks) == [("see", f'{{"n":{n}}}') for n in range(20)]
    mixed = make_streams(call_delta(0, "", "see", OSLO), call_delta(0, "", "go", "{}"), call_delta(1, "", "see", ROME))
    assert read_calls(*mixed) == [("see", OSLO), ("go", "{}"), ("see", ROME)]


# P4
def test_legacy_function_call_is_read_as_a_tool_call() -> None:
    chunks = [
        delta(function_call={"name": "see", "arguments": ""}),
        delta(function_call={"arguments": OSLO[:5]}),
        delta(function_call={"name": "see", "arguments": OSLO[5:]}),
        delta("function_call"),
    ]
    events = read_chunks(*chunks)
    assert join_deltas(events) == [("call_1_0", "see", OSLO)]
    done = events[-1]
    assert isinstance(done, ContentCompleteEvent)
    assert (done.finish_reason, [call.arguments for call in done.tool_calls]) == ("tool_calls", [{"city": "Oslo"}])


# P4
@pytest.mark.parametrize("legacy", [None, {}, {"name": None}, {"name": "see", "arguments": OSLO}])
def test_legacy_function_call_next_to_tool_calls_is_ignored(legacy: Any) -> None:
    call = call_delta(0, "a", "see", OSLO)
    assert read_calls(delta(tool_calls=[call], function_call=legacy)) == [("see", OSLO)]
    assert read_calls(delta(tool_calls=[call]), delta(function_call=legacy)) == [("see", OSLO)]


# P4
@pytest.mark.parametrize("fragment", ["x", "}{", '{"'])
def test_repeated_names_have_linear_cost(fragment: str) -> None:
    def count_steps(count: int) -> int:
        reader = ChatReader(MessageDraft(lambda _: None, "1", WHERE))
        payloads = [orjson.dumps(call_deltas(call_delta(0, "a", "see", '{"text": "')))]
        payloads += [orjson.dumps(call_deltas(call_delta(0, "a", "see", fragment)))] * count
        return count_operations(lambda: reader.feed(payloads))

    assert count_steps(400) < 2.2 * count_steps(200)
