from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rxloop.protocol.events import (
    ContentDeltaEvent,
    CustomEvent,
    Event,
    ThoughtDeltaEvent,
    ToolCallDeltaEvent,
    ToolProgressEvent,
)
from rxloop.protocol.messages import ToolCall
from rxloop.stream.deltas import (
    MergedDeltas,
    PackedDeltas,
    are_mergeable,
    delta_text,
    merge_deltas,
    pack_deltas,
    trim_known,
)
from support.processes.counters import measure_peak_memory
from support.run_checks import positions


def content(text: str, step: str = "1", **fields: object) -> ContentDeltaEvent:
    return ContentDeltaEvent.model_validate({"delta": text, "step": step, "task_id": "t", **fields})


def thought(text: str, step: str = "1") -> ThoughtDeltaEvent:
    return ThoughtDeltaEvent(delta=text, step=step, task_id="t")


def arguments(text: str, index: int = 0) -> ToolCallDeltaEvent:
    return ToolCallDeltaEvent(index=index, tool_call_id=f"c{index}", name="tool", fragment=text, step="1", task_id="t")


def texts(events: list[Event]) -> list[str | None]:
    return [delta_text(event) for event in events]


def merge_all(*deltas: Event) -> MergedDeltas:
    merged_deltas = MergedDeltas()
    for each in pack_deltas(deltas):
        merged_deltas.add(each)
    return merged_deltas


def test_merged_deltas_have_the_position_of_the_newest() -> None:
    first = content("a", seq=3, sub=1, index=0)
    second = content("b", seq=3, sub=2, index=1, timestamp=7)
    third = content("c", seq=4, sub=5, index=2)
    assert merge_all(first, second).event() == content("ab", seq=3, sub=2, index=1, timestamp=7)
    both = merge_all(first, second, third)
    assert both.text == "abc"
    assert both.event() == content("abc", seq=4, sub=5, index=2)
    assert both.event().to_json() == content("abc", seq=4, sub=5, index=2).to_json()
    assert first.delta == "a", "the events themselves stay as they are"
    assert second.delta == "b"


def test_rest_of_a_merged_delta_starts_after_the_position_of_the_reader() -> None:
    # Every second delta starts a new position, as if a durable event preceded it.
    pieces = [content(character, seq=1 + n // 2, sub=n % 2, index=n) for n, character in enumerate("abcdef")]
    whole = merge_all(*pieces).event()
    for count, piece in enumerate(pieces, 1):
        for sub in (piece.sub, *((8, 9) if piece.sub else ())):
            remaining = trim_known(whole, piece.seq, sub)
            assert (delta_text(remaining) if remaining is not None else "") == "abcdef"[count:]
    assert trim_known(whole, 0, 7) == whole


def test_merged_text_needs_little_memory_besides_its_characters() -> None:
    packs = [
        pack_deltas([content("x", seq=1, sub=n, index=n) for n in range(at, at + 64)]) for at in range(0, 64_000, 64)
    ]
    merged_deltas = MergedDeltas()

    def add_all() -> None:
        for [pack] in packs:
            merged_deltas.add(pack)

    assert measure_peak_memory(add_all) < 10 * 64_000


def test_arguments_and_thoughts_are_merged_like_text() -> None:
    whole = merge_all(arguments("{"), arguments('"a"'), arguments(": 1}")).event()
    assert isinstance(whole, ToolCallDeltaEvent)
    assert whole.fragment == '{"a": 1}'
    whole = merge_all(thought("Let me "), thought("see.")).event()
    assert isinstance(whole, ThoughtDeltaEvent)
    assert whole.delta == "Let me see."


def test_deltas_of_different_kinds_steps_branches_runs_and_calls_are_not_merged() -> None:
    separate: list[Event] = [
        content("a"),
        thought("b"),
        content("c"),
        content("d", step="2"),
        content("e", step="2", branch="x"),
        content("f", step="2", branch="x", task_id="other"),
        arguments("g", 0),
        arguments("h", 1),
    ]
    assert not any(are_mergeable(first, second) for first, second in pairwise(separate))
    assert pack_deltas(separate) == separate


def test_deltas_around_a_durable_event_are_not_merged() -> None:
    first, second = content("a", seq=1, sub=1), content("b", seq=2, sub=1)
    assert not are_mergeable(first, second), "even where the durable event was filtered out"


def test_changed_copy_of_a_merged_delta_is_not_split() -> None:
    whole = merge_all(content("secret", seq=1, sub=1), content(" word", seq=1, sub=2, index=1)).event()
    assert trim_known(whole, 1, 1) == content(" word", seq=1, sub=2, index=1)
    other = whole.model_copy(update={"delta": "***"})
    assert trim_known(other, 1, 1) is other


def test_progress_is_not_merged() -> None:
    progress = ToolProgressEvent(call=ToolCall(id="c", name="tool"), message="half")
    assert delta_text(progress) is None
    assert delta_text("text") is None
    assert pack_deltas([progress, progress]) == [progress, progress]


def test_merged_delta_has_its_own_frame() -> None:
    from rxloop.stream.readers import encode_frame

    one = content("a", seq=1, sub=1)
    assert b'"a"' in encode_frame(one)
    assert b'"ab"' in encode_frame(merge_deltas(one, ["a", "b"]))


@given(
    st.lists(
        st.tuples(st.sampled_from(["next", "next", "next", "left out", "durable"]), st.text(max_size=3)), min_size=1
    )
)
def test_reader_gets_the_part_of_merged_deltas_after_its_position(pieces: list[tuple[str, str]]) -> None:  # L132
    deltas: list[Event] = []
    seq = sub = 1
    for number, (how, text) in enumerate(pieces):
        seq, sub = (seq + 1, 1) if how == "durable" else (seq, sub + (3 if how == "left out" else 1))
        deltas.append(content(text, seq=seq, sub=sub, index=number))
    whole = merge_all(*deltas).event()
    assert delta_text(whole) == "".join(text for _, text in pieces)

    assert trim_known(whole, 1, 0) == whole
    for place, known in enumerate(deltas, 1):
        remaining = trim_known(whole, known.seq, known.sub)
        expected = deltas[place:]
        assert (remaining is not None) == bool(expected)
        if remaining is not None:
            assert delta_text(remaining) == "".join(delta_text(each) or "" for each in expected)
            assert positions([remaining]) == positions([deltas[-1]])


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
def test_unpacked_deltas_equal_the_packed_ones(pieces: list[tuple[str, str, str, int]]) -> None:  # L12
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
    for each in pack_deltas(events):
        unpacked += each.events() if isinstance(each, PackedDeltas) else [each]
    assert unpacked == events


def test_consecutive_deltas_are_packed() -> None:
    deltas: list[Event] = [
        content(text, sub=number, index=number, timestamp=number) for number, text in enumerate("abc")
    ]
    [pack] = pack_deltas(deltas)
    assert isinstance(pack, PackedDeltas)
    assert len(pack) == 3
    assert pack.text == "abc"
    assert pack.kind == "content-delta"
    assert pack.newest == deltas[-1]


def test_consecutive_packs_are_joined_up_to_the_limit() -> None:
    deltas: list[Event] = [content("x", sub=number, index=number, timestamp=number) for number in range(400)]
    packs = [each for start in range(0, 400, 16) for each in pack_deltas(deltas[start : start + 16])]
    joined: list[PackedDeltas] = []
    for each in packs:
        assert isinstance(each, PackedDeltas)
        if not (joined and joined[-1].extend(each)):
            joined.append(each)
    assert [len(each) for each in joined] == [256, 144]
    assert [event for each in joined for event in each.events()] == deltas


def test_packs_of_different_texts_or_with_a_gap_are_not_joined() -> None:
    def make_pack(**fields: Any) -> PackedDeltas:
        start = int(fields.pop("start", 0))
        [pack] = pack_deltas([content("x", sub=index, index=index, **fields) for index in (start, start + 1)])
        assert isinstance(pack, PackedDeltas)
        return pack

    assert make_pack().extend(make_pack(start=2))
    assert not make_pack().extend(make_pack(start=3))
    assert not make_pack().extend(make_pack(start=2, step="2"))
    assert not make_pack().extend(make_pack(start=2, seq=1))
