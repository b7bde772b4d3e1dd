import json
from typing import Any, cast, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from rxloop.errors import ConfigurationError
from rxloop.protocol.envelope import UnknownEvent
from rxloop.protocol.events import (
    AnyEvent,
    ArtifactUpdateEvent,
    AuthRequiredEvent,
    CheckpointEvent,
    ContentCompleteEvent,
    ContentDeltaEvent,
    ContextCompressedEvent,
    CustomEvent,
    Event,
    GapEvent,
    GoalsUpdatedEvent,
    InputReceivedEvent,
    InputRequiredEvent,
    LLMCallEvent,
    LLMFailedEvent,
    LLMNoticeEvent,
    MemoryForgottenEvent,
    MemoryNotedEvent,
    MemoryRecalledEvent,
    MessageAddedEvent,
    PendingInput,
    ServerToolEvent,
    StageEvent,
    StatusUpdateEvent,
    SubtaskEvent,
    TaskEvent,
    ThinkingFailedEvent,
    ThinkingNotedEvent,
    ThoughtDeltaEvent,
    ThoughtStreamEvent,
    ToolCallDeltaEvent,
    ToolCompleteEvent,
    ToolProgressEvent,
    ToolStartEvent,
    ToolsUnavailableEvent,
    ToolVoidedEvent,
    UsageEvent,
    protocol_schema,
    public_events,
)
from rxloop.protocol.messages import Citation, ErrorInfo, FilePart, ImagePart, Message, TextPart, ToolCall, Usage
from rxloop.protocol.tool_events import Goal
from rxloop.providers.codecs.text import make_text_delta

KINDS: dict[str, type[Event]] = {cls.model_fields["kind"].default: cls for cls in get_args(get_args(AnyEvent)[0])}
CALL = ToolCall(id="0", name="get_weather", arguments={"city": "Oslo", "days": [1, 2]}, raw='{"city": "Oslo"}')
IMAGE = ImagePart(data=b"\xff\x00", media_type="image/png")
FILE = FilePart(url="https://example.org/a.pdf", filename="a.pdf")
STAMPS: dict[str, Any] = {
    "context_id": "c",
    "task_id": "t",
    "seq": 7,
    "sub": 2,
    "attempt": 3,
    "timestamp": 1_767_225_600_123,
    "parent_task_id": "p",
    "agent_path": ("outer", "inner"),
    "step": "tot/1/2",
    "branch": "tot/1",
    "metadata": {"a": {"snake_key": None}},
}
EVENTS: list[Event] = [
    TaskEvent(messages=[Message.user([TextPart(text="Hi"), IMAGE])],
              model="m", agent_name="a", fork_of="u", fork_seq=3),
    StatusUpdateEvent(state="failed", final=True, reason="error", error=ErrorInfo(code="server", message="500"),
                      content="par", finish_reason="stop", usage=Usage(input_tokens=1),
                      pending=[PendingInput(input_id="1.0.1", prompt="Sure?", options=[0, False, None])]),
    LLMCallEvent(iteration=1, model="m", message_count=2, tool_count=3, estimated_input_tokens=4),
    ContentDeltaEvent(delta=" é\n\u2028", index=3),
    ContentCompleteEvent(content="  ", reasoning="r", tool_calls=[CALL, CALL], finish_reason="tool_calls",
                         raw_finish_reason="stop", provider_state={"signature": "s"}),
    ContentCompleteEvent(content="Here.", files=[IMAGE, FILE],
                         citations=[Citation(url="https://example.org", title="A page", text="words", start=0, end=4)]),
    ToolCallDeltaEvent(index=1, tool_call_id="0", name="f", fragment='{"', hidden=True),
    ThoughtDeltaEvent(delta="hm", index=1),
    ThoughtStreamEvent(thought_id="plan", thought_type="planning", content="p", index=0, verbosity="brief",
                       confidence=0.5, related_to="0", alternatives=["b", "a"], source="tag", tool_call_id="0",
                       incomplete=True),
    ToolStartEvent(call=CALL, index=1, hidden=True, idempotency_key="t:1:1"),
    ToolProgressEvent(call=CALL, message="half", fraction=0.5),
    ToolCompleteEvent(call=CALL, success=True, result=[0, False, "", None, {"s_k": 1}], content="0", duration=1.5),
    ToolCompleteEvent(call=CALL, success=True, content="A picture.", parts=[IMAGE, FILE]),
    ToolCompleteEvent(call=CALL, success=False, error="boom", content="boom"),
    ToolVoidedEvent(call=CALL, index=1),
    UsageEvent(input_tokens=10, output_tokens=3, cached_tokens=8, reasoning_tokens=1),
    MessageAddedEvent(role="system", content=[TextPart(text="Be brief.")], cause="tool"),
    CheckpointEvent(iteration=2, message_count=5, usage=Usage(output_tokens=3), durable_seq=None),
    ContextCompressedEvent(tokens_before=100, tokens_after=50, folded=[1, 2], summary="s", reason="window"),
    ThinkingNotedEvent(note="Go on.", position=3, thinking=Usage(input_tokens=9), seconds=0.5, published=True),
    ThinkingFailedEvent(reason="timeout", tokens_before=100),
    ThinkingFailedEvent(reason="timeout", thinking=True),
    ToolsUnavailableEvent(toolset="github", reason="OSError: refused"),
    MemoryNotedEvent(note_id="n1", note_kind="preference", text="Prefers trains.", origin="model", replaces="n0"),
    GoalsUpdatedEvent(goals=[Goal(id="a", title="Travel"),
                             Goal(id="b", title="Pack", status="active", parent="a", depends_on=[])]),
    MemoryRecalledEvent(note_ids=["n1", "n2"], foreign=True),
    MemoryForgottenEvent(note_ids=["n1"], run_id="r", before=1_767_225_600_123),
    InputRequiredEvent(input=PendingInput(input_id="1.0.1", prompt="Sure?", call=CALL, index=1, step="1",
                                          input_kind="confirmation", answer_schema={"type": "boolean"})),
    InputReceivedEvent(input_id="1.0.1", value=False),
    StageEvent(strategy="tot", from_stage=None, to_stage="propose", accepted=False, reason="too early"),
    LLMNoticeEvent(code="left_out", message="an image", step="1"),
    ServerToolEvent(tool_call_id="s1", name="web_search", phase="complete", result=[1], step="1"),
    LLMFailedEvent(error=ErrorInfo(code="rate_limited", message="429"), retryable=True, retry_in=0.5),
    AuthRequiredEvent(input_id="1.0.1", provider="github", url="https://example.org", public_key="k"),
    ArtifactUpdateEvent(artifact_id="a", index=0, data={"rows": [[1]]}, name="n", last=True),
    SubtaskEvent(subtask_id="s", agent_name="b", tool_call_id="0"),
    CustomEvent(name="mine", data={"snake_key": [1, {"a": None}]}),
    GapEvent(reason="dropped", count=3, after="t/1.2.0"),
]  # fmt: skip


def add_envelope(event: Event) -> Event:
    return event.model_copy(update=STAMPS)


def test_every_kind_of_event_is_covered_here() -> None:
    assert {event.kind for event in EVENTS} == KINDS.keys()
    assert all(KINDS[event.kind] is type(event) for event in EVENTS)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("event", [*EVENTS, *map(add_envelope, EVENTS)], ids=lambda event: event.kind)
def test_event_of_any_kind_survives_json(event: Event, strict: bool) -> None:  # L6
    back = Event.from_json(event.to_json(), strict=strict)

    assert type(back) is type(event)
    assert back == event
    assert back.to_json() == event.to_json()


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.kind)
def test_event_is_one_line_of_json_with_camel_case_names(event: Event) -> None:
    encoded = add_envelope(event).to_json()
    fields = json.loads(encoded)

    assert b"\n" not in encoded
    assert fields["kind"] == event.kind
    assert fields["contextId"] == "c"
    assert fields["agentPath"] == ["outer", "inner"]
    assert fields["timestamp"] == "2026-01-01T00:00:00.123Z"
    own = set(fields)
    assert not any("_" in name for name in own)
    # Keys in user data keep their case.
    assert fields["metadata"] == {"a": {"snake_key": None}}


def test_empty_envelope_fields_are_omitted() -> None:
    fields = json.loads(CustomEvent(name="mine").to_json())

    assert not fields.keys() & {"parentTaskId", "agentPath", "step", "branch", "metadata"}


def test_empty_files_parts_and_citations_are_omitted() -> None:
    complete = json.loads(ContentCompleteEvent(content="Hi").to_json())
    answered = json.loads(ToolCompleteEvent(call=CALL, success=True, content="Hi").to_json())

    assert not {"files", "citations"} & complete.keys()
    assert "parts" not in answered


def test_files_parts_and_citations_are_public() -> None:
    message = ContentCompleteEvent(content="Hi", files=[IMAGE], citations=[Citation(title="A page")])
    answer = ToolCompleteEvent(call=CALL, success=True, content="Hi", parts=[FILE])

    assert {"files", "citations"} <= json.loads(message.to_json(public=True)).keys()
    assert json.loads(answer.to_json(public=True))["parts"][0]["filename"] == "a.pdf"
    hidden = answer.model_copy(update={"hidden": True})
    assert b"a.pdf" not in hidden.to_json(public=True)


@given(st.integers(0, 250_000_000_000_000))
@settings(max_examples=50)
def test_timestamp_survives_json(millis: int) -> None:
    event = CustomEvent(name="a", timestamp=millis)

    assert Event.from_json(event.to_json()).timestamp == millis


def test_timestamp_with_another_time_zone_is_converted() -> None:
    data = b'{"kind": "custom", "name": "a", "timestamp": "2026-01-01T02:00:00+02:00"}'

    assert Event.from_json(data).timestamp == 1_767_225_600_000


def test_unknown_kind_is_read_leniently_with_all_fields() -> None:  # L7
    data = b'{"kind": "hologram", "seq": 4, "taskId": "t", "depthMap": [1, {"a": 2}]}'

    event = Event.from_json(data)

    assert type(event) is UnknownEvent
    assert event.kind == "hologram"
    assert event.seq == 4
    assert event.task_id == "t"
    assert event.model_extra == {"depthMap": [1, {"a": 2}]}
    assert json.loads(event.to_json())["depthMap"] == [1, {"a": 2}]


def test_unknown_kind_is_refused_in_strict_mode() -> None:  # L7
    with pytest.raises(ConfigurationError, match="hologram"):
        Event.from_json(b'{"kind": "hologram"}', strict=True)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"kind": "custom"}', "name"),
        (b'{"kind": "content-delta", "delta": 7}', "delta"),
        (b'{"kind": "tool-start", "call": {"id": "1"}, "idempotencyKey": "k"}', "call.name"),
        (b'{"kind": "status-update", "state": "happy"}', "state"),
        (b'{"name": "a"}', "kind"),
        (b'{"kind": 7}', "kind"),
        (b"{", "JSON object"),
        (b"[]", "an event must be a JSON object with a kind"),
        (b"", "JSON object"),
    ],
)
def test_invalid_event_is_refused_with_its_field(data: bytes, message: str, strict: bool) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Event.from_json(data, strict=strict)


def test_unknown_field_is_ignored_leniently_and_refused_strictly() -> None:
    data = b'{"kind": "custom", "name": "a", "colour": "red"}'

    assert Event.from_json(data) == CustomEvent(name="a")
    with pytest.raises(ConfigurationError, match="colour"):
        Event.from_json(data, strict=True)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.kind)
def test_event_is_immutable(event: Event) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        event.seq = 9  # type: ignore[misc]


def test_external_events_omit_internal_kinds_and_hidden_tools() -> None:  # L8
    visible = public_events(EVENTS)

    assert not any(isinstance(event, LLMFailedEvent) for event in visible)
    assert not any(getattr(event, "hidden", False) for event in visible)
    omitted = {"llm-failed", "llm-notice", "tool-voided", "tool-call-delta", "tool-start", "message-added"}
    assert [event.kind for event in visible] == [event.kind for event in EVENTS if event.kind not in omitted]


def test_provider_state_is_not_public() -> None:
    message = Message(role="assistant", content="a", provider_state={"signature": "secret"})
    events = [
        ContentCompleteEvent(content="a", provider_state={"signature": "secret"}),
        TaskEvent(messages=[message, message], model="m", agent_name="a"),
    ]

    for event in events:
        assert b"secret" in event.to_json()
        assert b"secret" not in event.to_json(public=True)


def test_transient_kinds_are_the_streaming_kinds() -> None:
    assert {kind for kind, cls in KINDS.items() if not cls.durable} == {
        "content-delta",
        "tool-call-delta",
        "thought-delta",
        "tool-progress",
        "gap",
    }


@pytest.mark.parametrize(("fraction", "text"), [(None, "c: shelf 3"), (0.25, "c: shelf 3 (25%)")])
def test_progress_is_described_by_its_message(fraction: float | None, text: str) -> None:
    call = ToolCall(id="c", name="count", arguments={})
    assert ToolProgressEvent(call=call, message="shelf 3", fraction=fraction).describe() == text


def test_cursor_contains_the_root_run_the_attempt_and_the_position() -> None:  # L10
    event = add_envelope(EVENTS[0])
    assert event.model_copy(update={"parent_task_id": None}).cursor == "t/3.7.2"
    assert event.model_copy(update={"parent_task_id": "p"}).cursor == "p/3.7.2"
    deeper = event.model_copy(update={"parent_task_id": "p", "metadata": {"root_task_id": "r"}})
    assert deeper.cursor == "r/3.7.2"
    assert Event.from_json(deeper.to_json()).cursor == "r/3.7.2"


@pytest.mark.parametrize(
    ("event", "earlier", "current"),
    [
        (ToolsUnavailableEvent(toolset="github"), '"family":', '"toolset":'),
        (LLMNoticeEvent(code="skipped", message="unknown block"), '"passed_over"', '"skipped"'),
        (MessageAddedEvent(content="Stop", metadata={"command_id": 7, "tenant": "t"}), '"mail_id"', '"command_id"'),
    ],
    ids=["field", "value", "metadata"],
)
def test_name_of_an_earlier_version_is_read(event: Event, earlier: str, current: str) -> None:
    data = event.to_json().decode()
    assert current in data
    assert Event.from_json(data.replace(current, earlier), strict=True) == event


@pytest.mark.parametrize("cls", [ContentDeltaEvent, ThoughtDeltaEvent])
def test_unvalidated_delta_equals_a_validated_one(cls: Any) -> None:
    fast = make_text_delta(cls, "a", 3, "1")
    slow = cls(delta="a", index=3, step="1")

    assert fast == slow
    assert fast.to_json() == slow.to_json()
    assert fast.model_copy(update={"seq": 2}).seq == 2
    assert repr(fast) == repr(slow)
    with pytest.raises(TypeError, match="events are immutable"):
        fast.metadata["seen"] = True


@pytest.mark.parametrize("confidence", [-0.1, 1.1])
def test_confidence_outside_0_to_1_is_refused(confidence: float) -> None:
    with pytest.raises(ValidationError, match="confidence"):
        ThoughtStreamEvent(thought_id="a", content="a", confidence=confidence)


@pytest.mark.parametrize("event", [*EVENTS, *map(add_envelope, EVENTS)], ids=lambda event: event.kind)
def test_event_repr_is_one_line(event: Event) -> None:
    text = repr(event)

    assert text.startswith(f"<{event.kind} ")
    assert "\n" not in text


def test_internal_event_is_described_but_its_repr_contains_only_its_position() -> None:
    # From docs/protocol.md.
    event = add_envelope(LLMNoticeEvent(code="left_out", message="the image of the secret tool"))

    assert event.describe() == "left_out: the image of the secret tool"
    assert str(event) == repr(event) == f"<llm-notice 3.7.2 step={event.step} branch={event.branch}>"


def test_failed_thinking_phase_is_described_by_its_reason() -> None:
    assert ThinkingFailedEvent(reason="the summary is empty").describe() == "the summary is empty"


def test_schema_covers_every_kind_with_wire_names() -> None:
    schema = protocol_schema()

    assert schema["discriminator"]["mapping"].keys() == KINDS.keys()
    start = cast("dict[str, Any]", schema["$defs"])["ToolStartEvent"]
    assert {"idempotencyKey", "taskId", "contextId"} <= start["properties"].keys()
    assert start["properties"]["timestamp"]["type"] == "string"


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.kind)
def test_schema_requires_the_envelope_and_only_fields_that_are_always_written(event: Event) -> None:
    required = protocol_schema()["$defs"][type(event).__name__]["required"]
    assert required[:8] == ["version", "kind", "contextId", "taskId", "seq", "sub", "attempt", "timestamp"]
    assert len(required) == len(set(required))
    assert set(required) <= json.loads(event.to_json()).keys()


def test_usage_of_events_can_be_added() -> None:
    event = UsageEvent(input_tokens=10, output_tokens=3, cached_tokens=6, cache_write_tokens=2, reasoning_tokens=1)

    twice = Usage(input_tokens=20, output_tokens=6, cached_tokens=12, cache_write_tokens=4, reasoning_tokens=2)
    assert event.usage + event.usage == twice


@pytest.mark.parametrize("year", [1, 42, 999, 1000, 1969, 9999])
def test_timestamp_of_any_year_survives_json(year: int) -> None:
    at = f"{year:04}-06-15T12:00:00.123Z"
    event = Event.from_json(CustomEvent(name="x").to_json().replace(b"1970-01-01T00:00:00.000Z", at.encode()))
    assert at.encode() in event.to_json()
    assert Event.from_json(event.to_json()) == event


@pytest.mark.parametrize("timestamp", [10**15, -(10**15), "0001-01-01T00:00:00+14:00", "10000-01-01T00:00:00Z"])
def test_timestamp_that_cannot_be_written_is_refused(timestamp: Any) -> None:
    with pytest.raises(ValidationError, match="timestamp"):
        CustomEvent(name="x", timestamp=timestamp)
