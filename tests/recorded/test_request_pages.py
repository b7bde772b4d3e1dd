"""Pages of the model requests of a run."""

from __future__ import annotations

from typing import Any

import pytest

from rxloop.protocol.events import ContentCompleteEvent, Event, LLMCallEvent, TaskEvent, ToolCompleteEvent
from rxloop.protocol.http_api.requests import RequestRow
from rxloop.protocol.messages import Message, ToolCall
from rxloop.protocol.step_events import RecordedPart, RequestRecord
from rxloop.recorded import requests
from rxloop.recorded.requests import RequestListFold
from rxloop.state.run_state import initial_state

MASKED = {"role": "tool", "content": "[removed]", "toolCallId": "1"}


def make_masked_run(count: int) -> list[Event]:
    """Return a run in which each request replaces all results of tools, so that every message is a separate range."""
    envelope: dict[str, Any] = {"task_id": "a", "context_id": "c", "attempt": 1, "timestamp": 0}
    events: list[Event] = [TaskEvent(seq=1, messages=[Message.user("Go")], model="m", agent_name="a", **envelope)]
    base: int | None = None
    for number in range(count):
        messages: list[Any] = [(0, 0)] if base is None else []
        if number:
            messages += [(2 * number - 1, 2 * number - 1), RecordedPart(text="d", index=2 * number)]
        same = 0 if base is None else 2 * number - 1
        record = RequestRecord(base=base, same=same, messages=messages, texts={"d": MASKED} if base is None else {})
        sizes: dict[str, Any] = {"message_count": 2 * number + 1, "tool_count": 0, "estimated_input_tokens": 0}
        step: dict[str, Any] = {**envelope, "step": str(number + 1)}
        base = len(events) + 1
        call = ToolCall(id="1", name="look", arguments={})
        events += [
            LLMCallEvent(seq=base, iteration=number + 1, model="m", request=record, **sizes, **step),
            ContentCompleteEvent(seq=base + 1, tool_calls=[call], **step),
            ToolCompleteEvent(seq=base + 2, call=call, success=True, result="", content="A long result.", **step),
        ]
    return events


def list_page(events: list[Event], after: int) -> tuple[list[RequestRow], bool]:
    fold = RequestListFold(initial_state(), internal=False, after=after, limit=1_000)
    fold.add(events)
    return fold.make_rows(), fold.is_full


def test_page_ends_after_a_limited_number_of_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    events = make_masked_run(60)
    whole, is_full = list_page(events, 0)
    assert (len(whole), is_full) == (60, False)
    assert (len(whole[-1].sent), len(whole[-1].edited), whole[-1].exact) == (60, 59, True)
    monkeypatch.setattr(requests, "MAX_RANGES", 500)
    pages: list[list[RequestRow]] = []
    while is_full or not pages:
        rows, is_full = list_page(events, pages[-1][-1].seq if pages else 0)
        pages.append(rows)
        assert sum(len(row.sent) + len(row.edited) for row in rows[:-1]) < 500
    assert len(pages) > 5
    assert [row for page in pages for row in page] == whole
