"""Chunks of UI messages for single events."""

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
from rxloop.server.ui_messages.frames import DONE, Chunk, assemble_message

CALL = ToolCall(id="0", name="weather", arguments={"city": "Oslo"}, raw='{"city": "Oslo"}')


def make_event(cls: type[Event], /, step: str | None = "1", **fields: Any) -> Event:
    values: dict[str, Any] = {"task_id": "t", "context_id": "c", "attempt": 1, "seq": 1, "step": step, **fields}
    return cls(**values)


def llm_call(step: str = "1", **fields: Any) -> Event:
    counts = {"iteration": 1, "message_count": 1, "tool_count": 0, "estimated_input_tokens": 1}
    return make_event(LLMCallEvent, step, model="m", **counts, **fields)


def end_run(state: str = "completed", **fields: Any) -> Event:
    return make_event(StatusUpdateEvent, None, state=state, final=True, **fields)


def list_chunks(*events: Event) -> list[Chunk]:
    collected: list[Chunk] = []
    from_iterable(events).pipe(chat(), chunks("t", "c")).subscribe(collected.append)
    return collected


def list_types(collected: list[Chunk]) -> list[str]:
    return [each["type"] for each in collected]


def test_repeated_step_is_one_step_with_a_void_note() -> None:
    collected = list_chunks(
        llm_call(),
        make_event(ContentDeltaEvent, delta="wrong"),
        llm_call(),
        make_event(ContentCompleteEvent, content="right"),
        end_run(),
    )
    text = ["text-start", "text-delta", "text-end"]
    assert list_types(collected) == ["start", "start-step", *text, "data-rxloop-void", *text, "finish-step", "finish"]
    assert collected[5]["data"] == {"step": "1"}


def test_call_repeated_by_the_second_try_is_one_part() -> None:
    delta = make_event(ToolCallDeltaEvent, index=0, tool_call_id="0", name="weather", fragment='{"ci')
    answered = make_event(ToolCompleteEvent, call=CALL, success=True, result=7, content="7")
    message = assemble_message(
        list_chunks(
            llm_call(), delta, llm_call(), make_event(ContentCompleteEvent, tool_calls=[CALL]), answered, end_run()
        )
    )
    [part] = [part for part in message["parts"] if "toolCallId" in part]
    assert part["toolCallId"] == "t:1:0"
    assert part["state"] == "output-available"
    assert part["output"] == 7
    assert [part["type"] for part in message["parts"]] == ["step-start", "dynamic-tool"]


def test_result_is_kept_when_the_text_before_its_call_is_replaced() -> None:
    answered = make_event(ToolCompleteEvent, call=CALL, success=True, result=7, content="7")
    torn, whole = (
        make_event(ContentDeltaEvent, delta="look."),
        make_event(ContentCompleteEvent, content="I look.", tool_calls=[CALL]),
    )
    message = assemble_message(list_chunks(llm_call(), answered, torn, whole, end_run()))
    [part] = [part for part in message["parts"] if "toolCallId" in part]
    assert part["state"] == "output-available"
    assert part.get("output") == 7


def test_call_that_is_not_repeated_ends_with_an_error() -> None:
    delta = make_event(ToolCallDeltaEvent, index=0, tool_call_id="0", name="weather", fragment='{"ci')
    message = assemble_message(
        list_chunks(llm_call(), delta, llm_call(), make_event(ContentCompleteEvent, content="7 C."), end_run())
    )
    assert [part.get("state") for part in message["parts"]] == [None, "output-error", "done"]


def test_text_of_nested_agents_and_branches_is_left_out() -> None:
    nested: dict[str, Any] = {"task_id": "n", "parent_task_id": "t", "agent_path": ("child",)}
    collected = list_chunks(
        llm_call(**nested),
        make_event(ContentDeltaEvent, delta="nested", **nested),
        make_event(ContentCompleteEvent, content="nested", **nested),
        llm_call("tot/1", branch="b"),
        make_event(ContentCompleteEvent, "tot/1", content="branch", branch="b"),
        end_run(),
    )
    assert list_types(collected) == ["start", "finish"]


def test_unreadable_arguments_are_an_error_of_the_call() -> None:
    call = ToolCall.parse("0", "weather", '{"city"')
    collected = list_chunks(llm_call(), make_event(ContentCompleteEvent, tool_calls=[call]), end_run())
    [wrong] = [each for each in collected if each["type"] == "tool-input-error"]
    assert wrong["input"] == '{"city"'
    assert "not valid JSON" in wrong["errorText"]


def test_artifact_is_one_part_and_its_pieces_are_transient() -> None:
    pieces = [
        make_event(
            ArtifactUpdateEvent, artifact_id="a", index=0, size=3, data="abc", name="a.txt", media_type="text/plain"
        ),
        make_event(ArtifactUpdateEvent, artifact_id="a", index=1, offset=3, size=2, data="de", last=True),
    ]
    message = assemble_message(list_chunks(*pieces, end_run()))
    about = {"artifactId": "a", "version": 1, "name": "a.txt", "mediaType": "text/plain", "size": 5, "complete": True}
    assert message["parts"] == [{"type": "data-artifact", "id": "a:1", "data": about}]


def test_link_is_a_part_with_its_url() -> None:
    link: dict[str, Any] = {
        "artifact_id": "a.pdf",
        "name": "a.pdf",
        "media_type": "application/pdf",
        "index": 0,
        "last": True,
    }
    event = make_event(ArtifactUpdateEvent, size=19, data={"url": "https://example.org"}, **link)
    collected = list_chunks(event, end_run())
    assert "data-artifact-chunk" not in list_types(collected)
    [part] = assemble_message(collected)["parts"]
    assert part["data"] == {
        "artifactId": "a.pdf",
        "version": 1,
        "name": "a.pdf",
        "mediaType": "application/pdf",
        "url": "https://example.org",
        "size": 19,
        "complete": True,
    }


def test_custom_events_and_thoughts_are_data_parts() -> None:
    message = assemble_message(
        list_chunks(
            make_event(CustomEvent, name="price", data={"euros": 3}),
            make_event(ThoughtStreamEvent, thought_id="plan", thought_type="planning", content="First.", index=0),
            end_run(),
        )
    )
    price, thought = message["parts"]
    assert price == {"type": "data-price", "data": {"euros": 3}}
    assert thought["type"] == "data-thought"
    assert thought["id"] == "plan"
    assert thought["data"]["content"] == "First."


def test_end_of_a_run_determines_the_end_of_its_message() -> None:
    assert list_chunks(end_run(finish_reason="length"))[-1]["finishReason"] == "length"
    assert list_chunks(end_run("failed", reason="tokens"))[-1]["finishReason"] == "other"
    assert list_chunks(end_run("failed", reason="error"))[-1] == {"type": "error", "errorText": "The run failed."}
    assert list_chunks(end_run("canceled", reason="canceled"))[-1]["type"] == "abort"
    assert list_chunks(end_run("input-required", reason="input"))[-1]["finishReason"] == "tool-calls"


def test_failing_source_is_an_error_chunk_and_an_end() -> None:
    collected: list[Chunk | None] = []
    throw(EventLogError("at 10.0.0.1")).pipe(chat(), chunks("t", "c")).subscribe(
        collected.append, on_completed=lambda: collected.append(None)
    )
    assert collected[1] is not None
    assert collected[1]["type"] == "error"
    assert "10.0.0.1" not in collected[1]["errorText"]
    assert collected[2] is None
    assert DONE == b"data: [DONE]\n\n"


def test_cache_tokens_are_reported_when_there_are_any() -> None:
    written = list_chunks(llm_call(), end_run(usage=Usage(input_tokens=9, cached_tokens=4, cache_write_tokens=3)))[-1]
    assert written["messageMetadata"]["usage"]["inputTokenDetails"] == {"cacheReadTokens": 4, "cacheWriteTokens": 3}
    assert (
        "inputTokenDetails"
        not in list_chunks(llm_call(), end_run(usage=Usage(input_tokens=9)))[-1]["messageMetadata"]["usage"]
    )


def test_sources_and_files_of_a_text_follow_it() -> None:
    page, other = "https://example.org", "https://example.org/b"
    citations = [Citation(url=page, title="A page"), Citation(title="a book"), Citation(url=page), Citation(url=other)]
    files = [
        ImagePart(data=b"\xff\xfe", media_type="image/png"),
        FilePart(url="https://example.org/a.pdf", filename="a.pdf"),
    ]
    collected = list_chunks(
        llm_call(), make_event(ContentCompleteEvent, content="See.", citations=citations, files=files), end_run()
    )
    assert collected[5:9] == [
        {"type": "source-url", "sourceId": "t:1:source:0", "url": page, "title": "A page"},
        {"type": "source-url", "sourceId": "t:1:source:1", "url": other},
        {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,//4="},
        {"type": "file", "mediaType": "application/octet-stream", "url": "https://example.org/a.pdf"},
    ]
    assert list_types(collected[9:]) == ["finish-step", "finish"]
    parts = assemble_message(collected)["parts"]
    assert [part["type"] for part in parts] == ["step-start", "text", "source-url", "source-url", "file", "file"]


def test_source_with_an_unsafe_url_is_left_out() -> None:
    urls = (
        "javascript:alert(1)",
        "https://e.org/\r\nhttps://evil.example",
        "https://e.org/\x9b",
        "https://e.org/\u202e",
    )
    collected = list_chunks(
        llm_call(),
        make_event(ContentCompleteEvent, content="x", citations=[Citation(url=url) for url in urls]),
        end_run(),
    )
    assert "source-url" not in list_types(collected)
