from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from run_checks import places
from rxloop.events import (
    ContentDeltaEvent,
    CustomEvent,
    Event,
    ThoughtDeltaEvent,
    ToolCallDeltaEvent,
    ToolProgressEvent,
)
from rxloop.messages import ToolCall
from rxloop.stream.deltas import PackedDeltas, delta_text, merge_adjacent, merged, packed, same_run_of_deltas


def content(text: str, step: str = "1", **fields: object) -> ContentDeltaEvent:
    return ContentDeltaEvent.model_validate({"delta": text, "step": step, "task_id": "t", **fields})


def thought(text: str, step: str = "1") -> ThoughtDeltaEvent:
    return ThoughtDeltaEvent(delta=text, step=step, task_id="t")


def arguments(text: str, index: int = 0) -> ToolCallDeltaEvent:
    return ToolCallDeltaEvent(index=index, tool_call_id=f"c{index}", name="tool", fragment=text, step="1", task_id="t")


def texts(events: list[Event]) -> list[str | None]:
    return [delta_text(event) for event in events]


def test_adjacent_deltas_become_one_with_the_place_of_the_newest() -> None:
    first = content("a", seq=3, sub=1, index=0)
    second = content("b", seq=3, sub=2, index=1)
    [only] = merge_adjacent([first, second])
    assert isinstance(only, ContentDeltaEvent)
    assert (only.delta, only.seq, only.sub, only.index) == ("ab", 3, 2, 1)
    assert first.delta == "a", "the events themselves stay as they are"
    assert second.delta == "b"


def test_deltas_of_other_kinds_steps_branches_runs_and_calls_stay_apart() -> None:
    apart: list[Event] = [
        content("a"),
        thought("b"),
        content("c"),
        content("d", step="2"),
        content("e", step="2", branch="x"),
        content("f", step="2", branch="x", task_id="other"),
        arguments("g", 0),
        arguments("h", 1),
    ]
    assert merge_adjacent(apart) == apart


def test_a_durable_event_between_two_deltas_keeps_them_apart() -> None:
    events: list[Event] = [content("a", seq=1, sub=1), CustomEvent(name="x", seq=2), content("b", seq=2, sub=1)]
    assert merge_adjacent(events) == events
    assert not same_run_of_deltas(events[0], events[2]), "even where the durable event was filtered out"


def test_arguments_of_one_call_are_merged() -> None:
    [only] = merge_adjacent([arguments("{"), arguments('"a"'), arguments(": 1}")])
    assert isinstance(only, ToolCallDeltaEvent)
    assert only.fragment == '{"a": 1}'


def test_progress_is_no_text_that_could_be_merged() -> None:
    progress = ToolProgressEvent(call=ToolCall(id="c", name="tool"), message="half")
    assert delta_text(progress) is None
    assert delta_text("text") is None
    assert merge_adjacent([progress, progress]) == [progress, progress]


def test_the_frame_of_a_merged_delta_is_its_own() -> None:
    from rxloop.stream.sse import frame

    one = content("a", seq=1, sub=1)
    assert b'"a"' in frame(one)
    assert b'"ab"' in frame(merged(one, ["a", "b"]))


PIECES = st.sampled_from(["content 1", "content 2", "thought", "call 0", "call 1", "custom"])


@given(st.lists(st.tuples(PIECES, st.text(max_size=3)), max_size=30))
def test_merging_keeps_the_text_of_everything_and_the_order(pieces: list[tuple[str, str]]) -> None:
    events: list[Event] = []
    seq = sub = 0
    for kind, text in pieces:
        sub += 1
        event: Event
        if kind == "custom":
            seq, sub = seq + 1, 0
            event = CustomEvent(name=text, task_id="t")
        elif kind == "thought":
            event = thought(text)
        elif kind.startswith("call"):
            event = arguments(text, int(kind[-1]))
        else:
            event = content(text, step=kind[-1])
        events.append(event.model_copy(update={"seq": seq, "sub": sub}))

    fewer = merge_adjacent(events)

    def transcript(of: list[Event]) -> dict[tuple[object, ...], str]:
        whole: dict[tuple[object, ...], str] = {}
        for event in of:
            key = (event.kind, event.step, getattr(event, "index", None) if event.kind == "tool-call-delta" else None)
            whole[key] = whole.get(key, "") + (delta_text(event) or "")
        return whole

    assert transcript(fewer) == transcript(events)
    assert [event for event in fewer if event.durable] == [event for event in events if event.durable]
    assert places(fewer) == sorted(set(places(fewer)))
    for first, second in pairwise(fewer):
        assert not (delta_text(second) is not None and same_run_of_deltas(first, second))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["text", "text", "thought", "call", "custom"]),
            st.text(max_size=3),
            st.sampled_from("112"),
            st.integers(0, 1).map(lambda more: 1 + more * 7),
        )
    )
)
def test_packed_deltas_are_the_same_when_they_are_unpacked(pieces: list[tuple[str, str, str, int]]) -> None:  # L12
    events: list[Event] = []
    index = {"text": 0, "thought": 0}
    sub = 0
    for kind, text, step, more in pieces:
        sub += more
        event: Event
        if kind == "custom":
            event = CustomEvent(name=text, task_id="t")
        elif kind == "call":
            event = arguments(text)
        else:
            event = (content if kind == "text" else thought)(text, step)
            event = event.model_copy(update={"index": index[kind]})
            index[kind] += more
        events.append(event.model_copy(update={"sub": sub, "seq": 4, "timestamp": 1_000 + sub}))

    unpacked: list[Event] = []
    for each in packed(events):
        unpacked += each.events() if isinstance(each, PackedDeltas) else [each]
    assert unpacked == events


def test_a_run_of_deltas_is_packed_and_merged_into_its_newest() -> None:
    run: list[Event] = [content(text, sub=number, index=number, timestamp=number) for number, text in enumerate("abc")]
    [pack] = packed(run)
    assert isinstance(pack, PackedDeltas)
    assert (len(pack), pack.text, pack.kind) == (3, "abc", "content-delta")
    assert [pack.merged()] == merge_adjacent(run)
