"""What becomes of single events in a UI message."""

from __future__ import annotations

from typing import Any

from reactivex import from_iterable, throw

from rxloop.errors import EventLogError
from rxloop.protocol.events import (
    ArtifactUpdateEvent,
    ContentCompleteEvent,
    ContentDeltaEvent,
    CustomEvent,
    Event,
    LLMCallEvent,
    StatusUpdateEvent,
    ThoughtStreamEvent,
    ToolCallDeltaEvent,
    ToolCompleteEvent,
)
from rxloop.protocol.messages import Citation, FilePart, ImagePart, ToolCall, Usage
from rxloop.server.core.chat_fold import chat
from rxloop.server.ui_messages.fold import chunks
from rxloop.server.ui_messages.frames import DONE, Chunk, ui_message

CALL = ToolCall(id="0", name="weather", arguments={"city": "Oslo"}, raw='{"city": "Oslo"}')


def at(cls: type[Event], /, step: str | None = "1", **fields: Any) -> Event:
    given: dict[str, Any] = {"task_id": "t", "context_id": "c", "attempt": 1, "seq": 1, "step": step, **fields}
    return cls(**given)


def llm(step: str = "1", **fields: Any) -> Event:
    counts = {"iteration": 1, "message_count": 1, "tool_count": 0, "estimated_input_tokens": 1}
    return at(LLMCallEvent, step, model="m", **counts, **fields)


def end(state: str = "completed", **fields: Any) -> Event:
    return at(StatusUpdateEvent, None, state=state, final=True, **fields)


def told(*events: Event) -> list[Chunk]:
    found: list[Chunk] = []
    from_iterable(events).pipe(chat(), chunks("t", "c")).subscribe(found.append)
    return found


def types(found: list[Chunk]) -> list[str]:
    return [each["type"] for each in found]


def test_a_step_that_is_tried_again_is_one_step_and_says_what_is_void() -> None:
    found = told(llm(), at(ContentDeltaEvent, delta="wrong"), llm(), at(ContentCompleteEvent, content="right"), end())
    text = ["text-start", "text-delta", "text-end"]
    assert types(found) == ["start", "start-step", *text, "data-rxloop-void", *text, "finish-step", "finish"]
    assert found[5]["data"] == {"step": "1"}


def test_a_call_that_is_made_again_by_the_second_try_is_one_part() -> None:
    delta = at(ToolCallDeltaEvent, index=0, tool_call_id="0", name="weather", fragment='{"ci')
    answered = at(ToolCompleteEvent, call=CALL, success=True, result=7, content="7")
    message = ui_message(told(llm(), delta, llm(), at(ContentCompleteEvent, tool_calls=[CALL]), answered, end()))
    [part] = [part for part in message["parts"] if "toolCallId" in part]
    assert (part["toolCallId"], part["state"], part["output"]) == ("t:1:0", "output-available", 7)
    assert [part["type"] for part in message["parts"]] == ["step-start", "dynamic-tool"]


def test_a_call_that_was_answered_before_a_torn_text_was_taken_back_stays_answered() -> None:
    answered = at(ToolCompleteEvent, call=CALL, success=True, result=7, content="7")
    torn, whole = at(ContentDeltaEvent, delta="look."), at(ContentCompleteEvent, content="I look.", tool_calls=[CALL])
    message = ui_message(told(llm(), answered, torn, whole, end()))
    [part] = [part for part in message["parts"] if "toolCallId" in part]
    assert (part["state"], part.get("output")) == ("output-available", 7)


def test_a_call_that_is_not_made_again_came_to_nothing() -> None:
    delta = at(ToolCallDeltaEvent, index=0, tool_call_id="0", name="weather", fragment='{"ci')
    message = ui_message(told(llm(), delta, llm(), at(ContentCompleteEvent, content="7 C."), end()))
    assert [part.get("state") for part in message["parts"]] == [None, "output-error", "done"]


def test_text_of_nested_agents_and_of_branches_is_not_text_of_the_chat() -> None:
    nested: dict[str, Any] = {"task_id": "n", "parent_task_id": "t", "agent_path": ("child",)}
    found = told(
        llm(**nested),
        at(ContentDeltaEvent, delta="nested", **nested),
        at(ContentCompleteEvent, content="nested", **nested),
        llm("tot/1", branch="b"),
        at(ContentCompleteEvent, "tot/1", content="branch", branch="b"),
        end(),
    )
    assert types(found) == ["start", "finish"]


def test_arguments_that_cannot_be_read_are_an_error_of_the_call() -> None:
    call = ToolCall.parse("0", "weather", '{"city"')
    found = told(llm(), at(ContentCompleteEvent, tool_calls=[call]), end())
    [wrong] = [each for each in found if each["type"] == "tool-input-error"]
    assert wrong["input"] == '{"city"'
    assert "not valid JSON" in wrong["errorText"]


def test_an_artifact_is_one_part_and_its_pieces_are_transient() -> None:
    pieces = [
        at(ArtifactUpdateEvent, artifact_id="a", index=0, size=3, data="abc", name="a.txt", media_type="text/plain"),
        at(ArtifactUpdateEvent, artifact_id="a", index=1, offset=3, size=2, data="de", last=True),
    ]
    message = ui_message(told(*pieces, end()))
    about = {"artifactId": "a", "version": 1, "name": "a.txt", "mediaType": "text/plain", "size": 5, "complete": True}
    assert message["parts"] == [{"type": "data-artifact", "id": "a:1", "data": about}]


def test_events_of_ones_own_and_thoughts_are_data() -> None:
    message = ui_message(
        told(
            at(CustomEvent, name="price", data={"euros": 3}),
            at(ThoughtStreamEvent, thought_id="plan", thought_type="planning", content="First.", index=0),
            end(),
        )
    )
    price, thought = message["parts"]
    assert price == {"type": "data-price", "data": {"euros": 3}}
    assert (thought["type"], thought["id"], thought["data"]["content"]) == ("data-thought", "plan", "First.")


def test_how_a_run_ends_is_how_its_message_does() -> None:
    assert told(end(finish_reason="length"))[-1]["finishReason"] == "length"
    assert told(end("failed", reason="tokens"))[-1]["finishReason"] == "other"
    assert told(end("failed", reason="error"))[-1] == {"type": "error", "errorText": "The run failed."}
    assert told(end("canceled", reason="canceled"))[-1]["type"] == "abort"
    assert told(end("input-required", reason="input"))[-1]["finishReason"] == "tool-calls"


def test_a_source_that_fails_is_an_error_and_an_end() -> None:
    found: list[Chunk | None] = []
    throw(EventLogError("at 10.0.0.1")).pipe(chat(), chunks("t", "c")).subscribe(
        found.append, on_completed=lambda: found.append(None)
    )
    assert found[1] is not None
    assert found[1]["type"] == "error"
    assert "10.0.0.1" not in found[1]["errorText"]
    assert found[2] is None
    assert DONE == b"data: [DONE]\n\n"


def test_what_was_written_to_the_cache_is_told_where_there_was_any() -> None:
    written = told(llm(), end(usage=Usage(input_tokens=9, cached_tokens=4, cache_write_tokens=3)))[-1]
    assert written["messageMetadata"]["usage"]["inputTokenDetails"] == {"cacheReadTokens": 4, "cacheWriteTokens": 3}
    assert "inputTokenDetails" not in told(llm(), end(usage=Usage(input_tokens=9)))[-1]["messageMetadata"]["usage"]


def test_the_pages_that_a_text_rests_on_and_its_files_stand_behind_it() -> None:
    page, other = "https://example.org", "https://example.org/b"
    citations = [Citation(url=page, title="A page"), Citation(title="a book"), Citation(url=page), Citation(url=other)]
    files = [
        ImagePart(data=b"\xff\xfe", media_type="image/png"),
        FilePart(url="https://example.org/a.pdf", filename="a.pdf"),
    ]
    found = told(llm(), at(ContentCompleteEvent, content="See.", citations=citations, files=files), end())
    assert found[5:9] == [
        {"type": "source-url", "sourceId": "t:1:source:0", "url": page, "title": "A page"},
        {"type": "source-url", "sourceId": "t:1:source:1", "url": other},
        {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,//4="},
        {"type": "file", "mediaType": "application/octet-stream", "url": "https://example.org/a.pdf"},
    ]
    assert types(found[9:]) == ["finish-step", "finish"]
    parts = ui_message(found)["parts"]
    assert [part["type"] for part in parts] == ["step-start", "text", "source-url", "source-url", "file", "file"]


def test_a_page_is_nothing_that_a_click_could_run() -> None:
    found = told(llm(), at(ContentCompleteEvent, content="x", citations=[Citation(url="javascript:alert(1)")]), end())
    assert "source-url" not in types(found)
