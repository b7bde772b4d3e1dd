"""Public and private fields of events."""

# The models are frozen, so a `kind` may be narrower than the `str` of the base. The type checker does not know this.
# pyright: reportIncompatibleVariableOverride=false

from __future__ import annotations

import typing
from typing import Any, Literal

import pytest
from hypothesis import strategies as st
from pydantic import BaseModel

from rxloop.errors import ConfigurationError
from rxloop.protocol.envelope import EVENT_TYPES, Event, UnknownEvent, public_form
from rxloop.protocol.events import (
    ContentCompleteEvent,
    ContentDeltaEvent,
    CustomEvent,
    InputReceivedEvent,
    InputRequiredEvent,
    LLMFailedEvent,
    MessageAddedEvent,
    PendingInput,
    StatusUpdateEvent,
    TaskEvent,
    ThinkingFailedEvent,
    ThoughtStreamEvent,
    ToolCompleteEvent,
    ToolStartEvent,
    ToolVoidedEvent,
    public_events,
)
from rxloop.protocol.messages import ErrorInfo, Message, ToolCall, Wire
from rxloop.stream.readers import encode_frame

MARK = "PLANTED"
VISIBLE = ToolCall(id="1", name="look", arguments={"at": "sky"})
HIDDEN = ToolCall(id=f"{MARK}-id", name=f"{MARK}_tool", arguments={MARK: MARK}, raw=MARK, error=MARK, hidden=True)


class Mine(Event):
    kind: Literal["mine-of-visibility"] = "mine-of-visibility"
    mine: str = ""
    other: str = ""
    public_fields = ("mine",)


# Not registered, since other tests iterate over all kinds.
EVENT_TYPES.pop("mine-of-visibility")


def list_models() -> dict[str, type[BaseModel]]:
    """Return all event classes by kind, and all models inside events by name."""
    result: dict[str, type[BaseModel]] = dict(EVENT_TYPES)
    pending: list[Any] = [field.annotation for cls in EVENT_TYPES.values() for field in cls.model_fields.values()]
    while pending:
        each = pending.pop()
        pending += typing.get_args(each)
        if isinstance(each, type) and issubclass(each, Wire) and each.__name__ not in result:
            result[each.__name__] = each
            pending += [field.annotation for field in each.model_fields.values()]
    return result


PRIVATE = {
    "task": {"owner", "options"},
    "llm-call": {"problems", "settings", "request"},
    "content-complete": {"provider_state", "offered", "response"},
    "thought-stream": {"hidden_calls"},
    "tool-complete": {"messages"},
    "context-compressed": {"summary", "problems", "view"},
    "tools-unavailable": {"reason"},
    "input-received": {"value"},
    "auth-required": {"call", "index"},
    "llm-failed": {"error", "retryable", "retry_in", "status", "tries", "refused"},
    "llm-notice": {"code", "message"},
    "subtask": {"hidden_calls"},
    "tool-voided": {"call", "index"},
    "Message": {"provider_state"},
}
"""Private fields, listed so that every new field requires a decision."""

NESTED = {
    "Message": "role content reasoning tool_calls tool_call_id pinned message_id",
    "TextPart": "type text",
    "ImagePart": "type url data media_type",
    "FilePart": "type url data media_type filename",
    "Goal": "id title status parent depends_on",
    "Citation": "url title text start end",
    "ToolCall": "id name arguments raw error hidden",
    "Usage": "input_tokens output_tokens cached_tokens cache_write_tokens reasoning_tokens",
    "PendingInput": "input_id prompt input_kind options answer_schema call index step task_id agent_path hidden "
    "provider url public_key",
    "ErrorInfo": "code message retryable",
    "SessionLink": "session_id number total next_thought_needed revises revises_id branch_id branch_from merges "
    "merges_id stage",
    "PartTokens": "system tools task summary history workspace memory note",
    # The origin of a message and the record of a request are private as a whole.
    "ResponseInfo": "id model server_address server_port streamed",
    "RequestRecord": "base same messages system tail tools answer_schema settings texts",
    "RecordedPart": "text index origin",
}
"""Public fields of the models inside events."""


@pytest.mark.parametrize(("name", "cls"), list_models().items(), ids=lambda each: each if isinstance(each, str) else "")
def test_every_field_is_listed_as_public_or_private(name: str, cls: type[BaseModel]) -> None:
    if issubclass(cls, Event):
        classes = [base for base in cls.__mro__ if issubclass(base, Event)]
        public = {name for base in classes for name in (*vars(base).get("public_fields", ()), *base.public_parts)}
        assert public_form(cls).private.keys() == PRIVATE.get(name, set())
    else:
        public = set(NESTED[name].split())
    private = PRIVATE.get(name, set())

    assert cls.model_fields.keys() - public - private == set(), "decide in its class whether clients get it"
    assert public & private == set()
    assert (public | private) - cls.model_fields.keys() == set(), "the field does not exist"


@pytest.mark.parametrize("cls", EVENT_TYPES.values(), ids=lambda cls: cls.__name__)
def test_incidental_fields_exist(cls: type[Event]) -> None:
    assert set(cls.incidental_fields) <= cls.model_fields.keys()


def test_event_without_private_data_is_its_own_public_form() -> None:
    for event in (
        ContentDeltaEvent(delta="a"),
        CustomEvent(name="a", data=[1]),
        ToolStartEvent(call=VISIBLE, idempotency_key="k"),
    ):
        assert event.to_public() is event


def test_public_form_is_created_once_and_is_its_own_public_form() -> None:
    event = CustomEvent(name="a", metadata={"tenant": MARK}, attempt=1, task_id="t")
    public_event = event.to_public()

    assert public_event is not None
    assert public_event is not event
    assert event.to_public() is public_event
    assert public_event.to_public() is public_event
    assert encode_frame(public_event) is encode_frame(public_event)


def test_public_form_of_an_unpublished_event_is_not_cached() -> None:
    event = CustomEvent(name="a", metadata={"tenant": MARK})
    assert event.to_public() is not event
    vars(event).update(attempt=1, seq=7)
    public_event = event.to_public()
    assert public_event is not None
    assert public_event.seq == 7


def test_only_public_metadata_is_in_the_public_form() -> None:
    event = CustomEvent(name="a", metadata={"tenant": MARK, "root_task_id": MARK, "public": {"title": "Oslo"}})
    public_event = event.to_public()
    assert public_event is not None
    assert public_event.metadata == {"public": {"title": "Oslo"}}


def test_root_of_a_nested_run_stays_in_the_metadata_for_the_cursor() -> None:
    event = CustomEvent(name="a", task_id="c", parent_task_id="b", metadata={"root_task_id": "a", "tenant": MARK})
    public_event = event.to_public()
    assert public_event is not None
    assert public_event.cursor == event.cursor == "a/0.0.0"


def test_public_message_contains_the_indexes_of_hidden_calls() -> None:
    event = ContentCompleteEvent(tool_calls=[HIDDEN, VISIBLE, HIDDEN], finish_reason="tool_calls")
    public_event = event.to_public()
    assert isinstance(public_event, ContentCompleteEvent)
    assert public_event.tool_calls == [VISIBLE]
    assert public_event.left_out == [0, 2]
    back = Event.from_json(event.to_json(public=True), strict=True)
    assert back == public_event


def test_public_task_omits_hidden_content_of_its_messages() -> None:
    answers = [Message.tool(HIDDEN.id, MARK), Message.tool("1", "blue")]
    event = TaskEvent(
        messages=[
            Message.system(MARK),
            Message.user("Hi", message_id="mine"),
            Message(role="assistant", content="I look.", tool_calls=(HIDDEN, VISIBLE), provider_state={"s": MARK}),
            *answers,
            Message(role="assistant", tool_calls=(HIDDEN,)),
            Message.tool(HIDDEN.id, MARK),
        ],
        model="m",
        agent_name="a",
    )
    public_event = event.to_public()
    assert isinstance(public_event, TaskEvent)
    assert [(message.role, message.text) for message in public_event.messages] == [
        ("user", "Hi"),
        ("assistant", "I look."),
        ("tool", "blue"),
    ]
    assert public_event.messages[0].message_id == "mine"
    assert public_event.messages[1].tool_calls == (VISIBLE,)


def test_repeated_call_ids_do_not_mix_up_hidden_and_visible_answers() -> None:
    visible, hidden = ToolCall(id="0", name="look"), ToolCall(id="0", name="peek", hidden=True)
    event = TaskEvent(
        messages=[
            Message.assistant("a", tool_calls=[visible]),
            Message.tool("0", "blue"),
            Message.assistant("b", tool_calls=[hidden]),
            Message.tool("0", MARK),
            Message.assistant("c", tool_calls=[hidden, visible]),
            Message.tool("0", MARK),
            Message.tool("0", "green"),
        ],
        model="m",
        agent_name="a",
    )
    public_event = event.to_public()
    assert isinstance(public_event, TaskEvent)
    assert [message.text for message in public_event.messages] == ["a", "blue", "b", "c", "green"]


def test_question_of_a_hidden_tool_is_public_without_its_content() -> None:
    question = PendingInput(
        input_id="1.0.1", prompt=MARK, input_kind="selection", options=[MARK], answer_schema={"x": MARK}, call=HIDDEN
    )
    for event in (InputRequiredEvent(input=question), StatusUpdateEvent(state="input-required", pending=[question])):
        data = event.to_json(public=True)
        assert b'"inputId":"1.0.1"' in data
        assert MARK.encode() not in data
        Event.from_json(data, strict=True)
    assert MARK not in repr(question)


@pytest.mark.parametrize("code", ["server", "authentication", "log", "pipeline", "output", "error", "new"])
def test_public_error_has_its_code_and_a_general_message(code: str) -> None:
    event = StatusUpdateEvent(state="failed", reason="error", error=ErrorInfo(code=code, message=MARK))
    public_event = event.to_public()
    assert isinstance(public_event, StatusUpdateEvent)
    assert public_event.error is not None
    assert public_event.error.code == code
    assert public_event.error.message.endswith(".")
    assert MARK not in public_event.error.message


def test_overtaken_attempt_reports_that_another_process_continues() -> None:
    event = StatusUpdateEvent(state="working", reason="error", error=ErrorInfo(code="conflict", message=MARK))
    public_event = event.to_public()
    assert isinstance(public_event, StatusUpdateEvent)
    assert public_event.error is not None
    assert public_event.error.message == "Another process continues the run."


@pytest.mark.parametrize("reason", ["max_iterations", "tool_failures", "tokens", "timeout", "canceled"])
def test_limits_and_cancels_keep_their_messages(reason: str) -> None:
    error = ErrorInfo(code=reason, message="3 of 2 tokens are spent")
    event = StatusUpdateEvent(state="failed", reason=reason, error=error)
    assert event.to_public() is event


def test_provider_timeout_is_not_mistaken_for_the_timeout_of_the_run() -> None:
    event = StatusUpdateEvent(state="failed", reason="error", error=ErrorInfo(code="timeout", message=MARK))
    assert MARK.encode() not in event.to_json(public=True)


@pytest.mark.parametrize(
    "event",
    [
        MessageAddedEvent(role="system", content=MARK),
        MessageAddedEvent(content=MARK, cause="strategy"),
        MessageAddedEvent(content=MARK, cause="retry"),
        LLMFailedEvent(error=ErrorInfo(code="server", message=MARK), retryable=True),
        ToolVoidedEvent(call=HIDDEN.model_copy(update={"hidden": False})),
        ToolStartEvent(call=HIDDEN, idempotency_key="k"),
        ToolStartEvent(call=HIDDEN.model_copy(update={"hidden": False}), hidden=True, idempotency_key="k"),
    ],
    ids=lambda event: event.kind,
)
def test_internal_event_has_no_public_form(event: Event) -> None:
    assert event.to_public() is None
    assert public_events([event]) == []
    assert MARK.encode() not in event.to_json(public=True)
    assert MARK not in repr(event)


def test_answer_is_omitted_from_the_public_form() -> None:
    data = InputReceivedEvent(input_id="1", value=MARK).to_json(public=True)
    assert b"value" not in data
    assert Event.from_json(data, strict=True) == InputReceivedEvent(input_id="1")


def test_reason_of_a_thinking_failure_is_not_public() -> None:
    assert MARK.encode() not in ThinkingFailedEvent(reason=MARK).to_json(public=True)


def test_public_thought_does_not_name_a_hidden_call() -> None:
    event = ThoughtStreamEvent(
        thought_id="a", content="a", related_to=HIDDEN.id, tool_call_id=HIDDEN.id, hidden_calls=[HIDDEN.id]
    )
    public_event = event.to_public()
    assert isinstance(public_event, ThoughtStreamEvent)
    assert public_event.related_to is None
    assert public_event.tool_call_id is None
    assert MARK.encode() not in event.to_json(public=True)


def test_public_form_of_an_unknown_kind_has_only_the_envelope() -> None:
    event = Event.from_json(b'{"kind":"later","taskId":"t","secret":"' + MARK.encode() + b'"}')
    assert isinstance(event, UnknownEvent)
    assert MARK.encode() in event.to_json()
    assert MARK.encode() not in event.to_json(public=True)
    assert MARK not in repr(event)


def test_custom_kind_names_its_public_fields() -> None:
    event = Mine.model_validate({"mine": "yes", "other": MARK})
    assert b'"mine":"yes"' in event.to_json(public=True)
    assert MARK.encode() not in event.to_json(public=True)
    assert MARK not in repr(event)


def test_subclass_of_a_kind_has_the_public_fields_of_its_base() -> None:
    class Longer(CustomEvent):
        more: str = ""

    data = Longer(name="a", more=MARK).to_json(public=True)
    assert b'"name":"a"' in data
    assert MARK.encode() not in data


@pytest.mark.parametrize("text", ["a\nb", "a\rb", "a\x00", "a\x85b", "a\u2028b", "a\x1b[31m"])
@pytest.mark.parametrize("name", ["kind", "taskId", "contextId", "step", "branch", "parentTaskId"])
def test_id_or_kind_with_a_line_break_is_refused(name: str, text: str) -> None:
    import orjson

    data = {"kind": "custom", "name": "a", "taskId": "t", name: text}
    with pytest.raises(ConfigurationError, match="line ends"):
        Event.from_json(orjson.dumps(data))


def test_id_may_contain_any_printable_characters() -> None:
    for text in ("Åse", "会話", "a b", "👩‍🚀", "a\u00a0b"):
        assert Event.from_json(CustomEvent(name="a", context_id=text).to_json()).context_id == text


def test_kind_with_a_line_break_is_refused_for_classes() -> None:
    with pytest.raises(ConfigurationError, match="line ends"):
        type("Forger", (Event,), {"__annotations__": {"kind": str}, "kind": "a\nb", "__module__": __name__})

    with pytest.raises(ValueError, match="line ends"):
        UnknownEvent(kind="a\nb")


def test_sse_frame_stays_intact_for_any_ids() -> None:
    event = CustomEvent(name="a").model_copy(update={"task_id": "t\n\nevent: x", "kind": "a\r\ndata: {}", "attempt": 1})
    assert encode_frame(event).count(b"\n") == 4
    assert b"\r" not in encode_frame(event)


plain = st.sampled_from(["", "a", "b\n"])


def test_public_form_of_a_tool_result_drops_private_metadata() -> None:
    complete = ToolCompleteEvent(call=VISIBLE, success=True, result=1, content="1", metadata={"a": MARK})
    public_event = complete.to_public()
    assert isinstance(public_event, ToolCompleteEvent)
    assert public_event.call == VISIBLE
    assert public_event.result == 1
    assert public_event.metadata == {}


def test_owner_and_options_of_a_run_are_not_public() -> None:
    task_event = TaskEvent(messages=[], model="m", agent_name="a", owner=MARK, options={"settings": {MARK: MARK}})
    plain = TaskEvent(messages=[], model="m", agent_name="a")

    assert MARK not in task_event.to_json(public=True).decode() + repr(task_event)
    assert Event.from_json(task_event.to_json()) == task_event
    assert plain.to_json().count(b"owner") + plain.to_json().count(b"options") == 0
