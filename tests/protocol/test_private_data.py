"""Property tests of the public form of events."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rxloop.protocol.envelope import EVENT_TYPES, Event
from rxloop.protocol.events import (
    PendingInput,
)
from rxloop.protocol.messages import Citation, Content, ErrorInfo, FilePart, ImagePart, Message, ToolCall, Usage
from rxloop.protocol.step_events import PartTokens, RecordedPart, RequestRecord
from rxloop.protocol.tool_events import Goal
from rxloop.stream.readers import encode_frame

MARK = "PLANTED"
HIDDEN = ToolCall(id=f"{MARK}-id", name=f"{MARK}_tool", arguments={MARK: MARK}, raw=MARK, error=MARK, hidden=True)


marks = st.sampled_from([MARK, f"a {MARK}", f"{MARK}\n"])
plain = st.sampled_from(["", "a", "b\n"])
private_calls = st.just(HIDDEN)
public_calls = st.builds(ToolCall, id=st.sampled_from(["0", "1"]), name=plain, arguments=st.just({"a": 1}))
calls = st.one_of(private_calls, public_calls)


@st.composite
def draw_messages(draw: st.DrawFn) -> list[Message]:
    """Draw a history with markers in its private fields, and with any number of results per call."""
    messages: list[Message] = []
    for _ in range(draw(st.integers(0, 4))):
        role = draw(st.sampled_from(["system", "user", "assistant", "orphan"]))
        if role == "system":
            messages.append(Message.system(draw(marks)))
        elif role == "user":
            state = draw(st.sampled_from([None, {"s": MARK}]))
            messages.append(Message(role="user", content=draw(plain), provider_state=state))
        elif role == "orphan":
            messages.append(Message.tool(draw(st.sampled_from(["2", MARK])), MARK))
        else:
            tool_calls = draw(st.lists(calls, max_size=3))
            messages.append(
                Message(role="assistant", content=draw(plain), tool_calls=tuple(tool_calls), provider_state={"s": MARK})
            )
            answered = [call for call in tool_calls if draw(st.booleans())]
            messages += [Message.tool(call.id, MARK if call.hidden else "fine") for call in answered]
    return messages


questions = st.builds(
    lambda call, text: PendingInput(
        input_id="1.0.1",
        prompt=text if call is HIDDEN else "a?",
        options=[text] if call is HIDDEN else None,
        answer_schema={"title": text} if call is HIDDEN else {},
        call=call,
    ),
    st.one_of(st.none(), calls),
    marks,
)
metadatas = st.fixed_dictionaries({}, optional={"tenant": marks, MARK: plain, "public": st.just({"title": "x"})})
names = st.sampled_from([None, "1", HIDDEN.id])
files = st.sampled_from([ImagePart(data=b"\xff", media_type="image/png"), FilePart(url="https://example.org/a.pdf")])
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "messages": draw_messages(),
    "tool_calls": st.lists(calls, max_size=3),
    "provider_state": st.one_of(st.none(), st.dictionaries(marks, marks, max_size=1)),
    "pending": st.lists(questions, max_size=2),
    "input": questions,
    "error": st.builds(ErrorInfo, code=st.sampled_from(["server", "timeout", "log", "error", "x"]), message=marks),
    "summary": marks,
    "problems": st.lists(marks),
    "view": st.dictionaries(marks, marks),
    "value": marks,
    "retryable": st.booleans(),
    "retry_in": st.none(),
    "related_to": names,
    "hidden_calls": st.just([HIDDEN.id]),
    "left_out": st.just([]),
    "usage": st.just(Usage(input_tokens=3)),
    "files": st.lists(files, max_size=2),
    "parts": st.lists(files, max_size=2),
    "goals": st.just([Goal(id="a", title="A")]),
    "citations": st.lists(st.builds(Citation, title=plain, start=st.integers(0, 9)), max_size=2),
}


@st.composite
def draw_event(draw: st.DrawFn) -> Event:
    """Draw an event of any kind with markers in its private fields."""
    kind = draw(st.sampled_from(sorted(EVENT_TYPES)))
    cls = EVENT_TYPES[kind]
    values: dict[str, Any] = {"metadata": draw(metadatas), "task_id": "t", "attempt": draw(st.sampled_from([0, 1]))}
    for name, field in cls.model_fields.items():
        if kind in ("thinking-failed", "tools-unavailable") and name == "reason":
            values[name] = draw(marks)
        elif kind in ("thought-stream", "subtask") and name == "tool_call_id":
            values[name] = draw(names)
        elif name == "call":
            values[name] = draw(calls)
        elif kind == "llm-call" and name == "parts":
            values[name] = draw(st.one_of(st.none(), st.builds(PartTokens, system=st.integers(0, 9))))
        elif kind == "llm-call" and name == "request":
            part = RecordedPart(text=MARK)
            values[name] = RequestRecord(system=[part], tools=MARK, settings={MARK: MARK}, texts={MARK: {"role": MARK}})
        elif name in FIELDS and (kind, name) != ("tool-complete", "error"):
            values[name] = draw(FIELDS[name])
        elif kind == "message-added" and name == "role":
            values[name] = draw(st.sampled_from(["user", "system"]))
        elif kind == "message-added" and name == "cause":
            values[name] = draw(st.sampled_from(["steering", "fork", "retry", "strategy", "tool", "else"]))
        elif field.is_required():
            annotation: Any = field.annotation
            values[name] = draw(plain if annotation in (str, Any, Content) else st.from_type(annotation))
    if kind == "tool-complete" and values["call"] is HIDDEN:
        values |= {"result": MARK, "content": MARK, "error": MARK, "parts": [FilePart(url=MARK)]}
    if kind == "tool-progress" and values["call"] is HIDDEN:
        values |= {"message": MARK}
    if kind == "tool-call-delta":
        hidden = draw(st.booleans())
        values |= {"hidden": hidden, "name": MARK if hidden else "a", "fragment": MARK if hidden else "{"}
    if kind == "message-added" and (values["role"] == "system" or values["cause"] not in ("steering", "fork")):
        values["content"] = MARK
    return cls.model_validate(values)


@given(draw_event())
@settings(max_examples=300)
def test_private_fields_of_any_event_are_in_no_public_form(event: Event) -> None:
    public_event = event.to_public()

    assert MARK not in repr(event)
    assert MARK not in str(event)
    assert MARK.encode() not in event.to_json(public=True)
    assert MARK.encode() not in encode_frame(event)
    if public_event is not None:
        assert MARK.encode() not in public_event.to_json()
        assert public_event.cursor == event.cursor
        again = Event.from_json(event.to_json(public=True), strict=True)
        assert again.to_json(public=True) == event.to_json(public=True)
