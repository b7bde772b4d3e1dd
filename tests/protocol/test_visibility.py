"""What clients get of an event: field by field, by one list."""

# The models are frozen, which the type checker does not see: a `kind` may be narrower than the `str` of the base.
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
SHOWN = ToolCall(id="1", name="look", arguments={"at": "sky"})
HIDDEN = ToolCall(id=f"{MARK}-id", name=f"{MARK}_tool", arguments={MARK: MARK}, raw=MARK, error=MARK, hidden=True)


class Mine(Event):
    kind: Literal["mine-of-visibility"] = "mine-of-visibility"
    mine: str = ""
    other: str = ""
    public_fields = ("mine",)


# Not known by its kind, for the tests that go over all kinds.
EVENT_TYPES.pop("mine-of-visibility")


def models() -> dict[str, type[BaseModel]]:
    """Every class of events, by its kind, and every model that stands in one, by its name."""
    found: dict[str, type[BaseModel]] = dict(EVENT_TYPES)
    waiting: list[Any] = [field.annotation for cls in EVENT_TYPES.values() for field in cls.model_fields.values()]
    while waiting:
        each = waiting.pop()
        waiting += typing.get_args(each)
        if isinstance(each, type) and issubclass(each, Wire) and each.__name__ not in found:
            found[each.__name__] = each
            waiting += [field.annotation for field in each.model_fields.values()]
    return found


PRIVATE = {
    "task": {"owner", "options"},
    "llm-call": {"problems"},
    "content-complete": {"provider_state", "offered"},
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
"""What is not for clients, so that nobody forgets to decide about a new field."""

NESTED = {
    "Message": "role content reasoning tool_calls tool_call_id pinned message_id",
    "TextPart": "type text",
    "ImagePart": "type url data media_type",
    "FilePart": "type url data media_type filename",
    "Citation": "url title text start end",
    "ToolCall": "id name arguments raw error hidden",
    "Usage": "input_tokens output_tokens cached_tokens cache_write_tokens reasoning_tokens",
    "PendingInput": "input_id prompt input_kind options answer_schema call index step task_id agent_path hidden "
    "provider url public_key",
    "ErrorInfo": "code message retryable",
    "SessionLink": "session_id number total next_thought_needed revises revises_id branch_id branch_from merges "
    "merges_id stage",
}
"""What is for clients of the models that stand in events."""


@pytest.mark.parametrize(("name", "cls"), models().items(), ids=lambda each: each if isinstance(each, str) else "")
def test_every_field_is_listed_as_public_or_as_private(name: str, cls: type[BaseModel]) -> None:
    if issubclass(cls, Event):
        classes = [base for base in cls.__mro__ if issubclass(base, Event)]
        public = {name for base in classes for name in (*vars(base).get("public_fields", ()), *base.public_parts)}
        assert public_form(cls).private.keys() == PRIVATE.get(name, set())
    else:
        public = set(NESTED[name].split())
    private = PRIVATE.get(name, set())

    assert cls.model_fields.keys() - public - private == set(), "decide in its class whether clients get it"
    assert public & private == set()
    assert (public | private) - cls.model_fields.keys() == set(), "there is no such field any more"


@pytest.mark.parametrize("cls", EVENT_TYPES.values(), ids=lambda cls: cls.__name__)
def test_what_may_differ_is_a_field(cls: type[Event]) -> None:
    assert set(cls.incidental_fields) <= cls.model_fields.keys()


def test_an_event_with_nothing_to_hide_is_its_own_public_form() -> None:
    for event in (
        ContentDeltaEvent(delta="a"),
        CustomEvent(name="a", data=[1]),
        ToolStartEvent(call=SHOWN, idempotency_key="k"),
    ):
        assert event.to_public() is event


def test_the_public_form_is_made_once_and_is_its_own_public_form() -> None:
    event = CustomEvent(name="a", metadata={"tenant": MARK}, attempt=1, task_id="t")
    shown = event.to_public()

    assert shown is not None
    assert shown is not event
    assert event.to_public() is shown
    assert shown.to_public() is shown
    assert encode_frame(shown) is encode_frame(shown)


def test_what_was_shown_before_it_was_published_is_not_kept() -> None:
    event = CustomEvent(name="a", metadata={"tenant": MARK})
    assert event.to_public() is not event
    vars(event).update(attempt=1, seq=7)
    shown = event.to_public()
    assert shown is not None
    assert shown.seq == 7


def test_only_the_public_part_of_metadata_leaves() -> None:
    event = CustomEvent(name="a", metadata={"tenant": MARK, "root_task_id": MARK, "public": {"title": "Oslo"}})
    shown = event.to_public()
    assert shown is not None
    assert shown.metadata == {"public": {"title": "Oslo"}}


def test_the_root_of_a_nested_run_stays_in_its_metadata_for_the_cursor() -> None:
    event = CustomEvent(name="a", task_id="c", parent_task_id="b", metadata={"root_task_id": "a", "tenant": MARK})
    shown = event.to_public()
    assert shown is not None
    assert shown.cursor == event.cursor == "a/0.0.0"


def test_hidden_calls_leave_a_message_that_tells_their_places() -> None:
    event = ContentCompleteEvent(tool_calls=[HIDDEN, SHOWN, HIDDEN], finish_reason="tool_calls")
    shown = event.to_public()
    assert isinstance(shown, ContentCompleteEvent)
    assert shown.tool_calls == [SHOWN]
    assert shown.left_out == [0, 2]
    back = Event.from_json(event.to_json(public=True), strict=True)
    assert back == shown


def test_a_run_is_started_with_messages_that_are_shown_without_what_is_hidden() -> None:
    answers = [Message.tool(HIDDEN.id, MARK), Message.tool("1", "blue")]
    event = TaskEvent(
        messages=[
            Message.system(MARK),
            Message.user("Hi", message_id="mine"),
            Message(role="assistant", content="I look.", tool_calls=(HIDDEN, SHOWN), provider_state={"s": MARK}),
            *answers,
            Message(role="assistant", tool_calls=(HIDDEN,)),
            Message.tool(HIDDEN.id, MARK),
        ],
        model="m",
        agent_name="a",
    )
    shown = event.to_public()
    assert isinstance(shown, TaskEvent)
    assert [(message.role, message.text) for message in shown.messages] == [
        ("user", "Hi"),
        ("assistant", "I look."),
        ("tool", "blue"),
    ]
    assert shown.messages[0].message_id == "mine"
    assert shown.messages[1].tool_calls == (SHOWN,)


def test_ids_that_vendors_use_twice_do_not_mix_the_answers_up() -> None:
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
    shown = event.to_public()
    assert isinstance(shown, TaskEvent)
    assert [message.text for message in shown.messages] == ["a", "blue", "b", "c", "green"]


def test_a_question_of_a_hidden_tool_is_told_without_its_words() -> None:
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
def test_an_error_is_told_by_its_code_and_not_in_the_words_of_others(code: str) -> None:
    event = StatusUpdateEvent(state="failed", reason="error", error=ErrorInfo(code=code, message=MARK))
    shown = event.to_public()
    assert isinstance(shown, StatusUpdateEvent)
    assert shown.error is not None
    assert shown.error.code == code
    assert shown.error.message.endswith(".")
    assert MARK not in shown.error.message


def test_who_follows_an_attempt_that_was_overtaken_is_told_that_the_run_goes_on() -> None:
    event = StatusUpdateEvent(state="working", reason="error", error=ErrorInfo(code="conflict", message=MARK))
    shown = event.to_public()
    assert isinstance(shown, StatusUpdateEvent)
    assert shown.error is not None
    assert shown.error.message == "Another process continues the run."


@pytest.mark.parametrize("reason", ["max_iterations", "tool_failures", "tokens", "timeout", "canceled"])
def test_limits_and_cancels_are_told_in_their_own_words(reason: str) -> None:
    error = ErrorInfo(code=reason, message="3 of 2 tokens are spent")
    event = StatusUpdateEvent(state="failed", reason=reason, error=error)
    assert event.to_public() is event


def test_a_timeout_of_the_provider_is_not_the_limit_of_that_name() -> None:
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
def test_of_an_internal_event_nothing_but_the_envelope_is_shown(event: Event) -> None:
    assert event.to_public() is None
    assert public_events([event]) == []
    assert MARK.encode() not in event.to_json(public=True)
    assert MARK not in repr(event)


def test_an_answer_is_no_part_of_what_clients_get_and_the_event_can_be_read_back() -> None:
    data = InputReceivedEvent(input_id="1", value=MARK).to_json(public=True)
    assert b"value" not in data
    assert Event.from_json(data, strict=True) == InputReceivedEvent(input_id="1")


def test_why_the_thinking_phase_failed_is_not_told_in_the_words_of_a_vendor() -> None:
    assert MARK.encode() not in ThinkingFailedEvent(reason=MARK).to_json(public=True)


def test_a_thought_does_not_name_a_hidden_call() -> None:
    event = ThoughtStreamEvent(
        thought_id="a", content="a", related_to=HIDDEN.id, tool_call_id=HIDDEN.id, hidden_calls=[HIDDEN.id]
    )
    shown = event.to_public()
    assert isinstance(shown, ThoughtStreamEvent)
    assert (shown.related_to, shown.tool_call_id) == (None, None)
    assert MARK.encode() not in event.to_json(public=True)


def test_of_a_kind_that_is_not_known_only_the_envelope_leaves() -> None:
    event = Event.from_json(b'{"kind":"later","taskId":"t","secret":"' + MARK.encode() + b'"}')
    assert isinstance(event, UnknownEvent)
    assert MARK.encode() in event.to_json()
    assert MARK.encode() not in event.to_json(public=True)
    assert MARK not in repr(event)


def test_of_a_class_of_ones_own_the_fields_that_it_names_leave() -> None:
    event = Mine.model_validate({"mine": "yes", "other": MARK})
    assert b'"mine":"yes"' in event.to_json(public=True)
    assert MARK.encode() not in event.to_json(public=True)
    assert MARK not in repr(event)


def test_a_variant_of_a_kind_shows_what_that_kind_shows() -> None:
    class Longer(CustomEvent):
        more: str = ""

    data = Longer(name="a", more=MARK).to_json(public=True)
    assert b'"name":"a"' in data
    assert MARK.encode() not in data


@pytest.mark.parametrize("text", ["a\nb", "a\rb", "a\x00", "a\x85b", "a\u2028b", "a\x1b[31m"])
@pytest.mark.parametrize("name", ["kind", "taskId", "contextId", "step", "branch", "parentTaskId"])
def test_an_id_or_a_kind_that_breaks_a_line_is_no_event(name: str, text: str) -> None:
    import orjson

    data = {"kind": "custom", "name": "a", "taskId": "t", name: text}
    with pytest.raises(ConfigurationError, match="line ends"):
        Event.from_json(orjson.dumps(data))


def test_an_id_of_letters_of_any_kind_is_one() -> None:
    for text in ("Åse", "会話", "a b", "👩‍🚀", "a\u00a0b"):
        assert Event.from_json(CustomEvent(name="a", context_id=text).to_json()).context_id == text


def test_a_kind_of_ones_own_is_one_line() -> None:
    with pytest.raises(ConfigurationError, match="line ends"):
        type("Forger", (Event,), {"__annotations__": {"kind": str}, "kind": "a\nb", "__module__": __name__})

    with pytest.raises(ValueError, match="line ends"):
        UnknownEvent(kind="a\nb")


def test_a_frame_is_one_frame_whatever_the_ids_are() -> None:
    event = CustomEvent(name="a").model_copy(update={"task_id": "t\n\nevent: x", "kind": "a\r\ndata: {}", "attempt": 1})
    assert encode_frame(event).count(b"\n") == 4
    assert b"\r" not in encode_frame(event)


plain = st.sampled_from(["", "a", "b\n"])


def test_the_rules_of_one_kind_do_not_need_the_others() -> None:
    complete = ToolCompleteEvent(call=SHOWN, success=True, result=1, content="1", metadata={"a": MARK})
    shown = complete.to_public()
    assert isinstance(shown, ToolCompleteEvent)
    assert (shown.call, shown.result, shown.metadata) == (SHOWN, 1, {})


def test_whose_run_it_is_and_what_it_was_begun_with_stay_on_the_server() -> None:
    begun = TaskEvent(messages=[], model="m", agent_name="a", owner=MARK, options={"settings": {MARK: MARK}})
    plain = TaskEvent(messages=[], model="m", agent_name="a")

    assert MARK not in begun.to_json(public=True).decode() + repr(begun)
    assert Event.from_json(begun.to_json()) == begun
    assert plain.to_json().count(b"owner") + plain.to_json().count(b"options") == 0
