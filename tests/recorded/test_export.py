"""Files made from recorded runs."""

from __future__ import annotations

from typing import Any

from rxloop import Event, StatusUpdateEvent, TaskEvent
from rxloop.protocol.messages import Message, Usage
from rxloop.recorded.export import export_text, make_file_name


def test_exported_test_contains_no_code_from_the_run() -> None:
    code = '"""\nraise SystemExit(7)\n"""'
    envelope: dict[str, Any] = {"task_id": code, "context_id": "talk", "attempt": 1}
    end: dict[str, Any] = {"state": "completed", "final": True, "content": f"{code} {{{{CALLS}}}}", "usage": Usage()}
    events: list[Event] = [
        TaskEvent(seq=1, messages=[Message.user(code)], model="m", agent_name="a", **envelope),
        StatusUpdateEvent(seq=2, **end, **envelope),
    ]
    text = export_text("pytest", code, events, internal=False).decode()
    values: dict[str, Any] = {"__name__": "exported"}
    exec(compile(text, "exported", "exec"), values)
    assert values["PROMPT"] == code
    assert values["ANSWER"] == end["content"]
    assert make_file_name(code, "pytest") == "test_run_mExit_7.py"
    assert make_file_name(code, "html") == "run-mExit-7.html"
