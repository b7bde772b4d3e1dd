"""Files made from a recorded run: JSON lines, Markdown, a pytest file, and a case of an experiment."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import orjson

from rxloop.errors import ConfigurationError
from rxloop.protocol.events import (
    ContentCompleteEvent,
    Event,
    InputRequiredEvent,
    StatusUpdateEvent,
    TaskEvent,
    ToolCompleteEvent,
)
from rxloop.protocol.messages import Message
from rxloop.protocol.visibility import select_public_messages
from rxloop.recorded.transcript import format_transcript
from rxloop.state.fold import fold_all

Form = Literal["html", "jsonl", "otlp", "pytest", "case", "markdown"]
"""Form of an exported run."""

EXTENSIONS: Mapping[Form, str] = {
    "html": "html",
    "jsonl": "jsonl",
    "otlp": "otlp.json",
    "pytest": "py",
    "case": "case.jsonl",
    "markdown": "md",
}
"""End of the file name of each form."""


def make_file_name(task_id: str, form: Form) -> str:
    """Return the name of the file of a run. A pytest file has a name that pytest finds."""
    name = re.sub(r"[^A-Za-z0-9]+", "_" if form == "pytest" else "-", task_id[-12:]).strip("-_") or "run"
    return f"test_run_{name}.py" if form == "pytest" else f"run-{name}.{EXTENSIONS[form]}"


def export_text(form: Form, task_id: str, events: Sequence[Event], *, internal: bool) -> bytes:
    """Return the file of a run in a form other than `html` and `otlp`.

    Args:
        form: Form of the file.
        task_id: Id of the run.
        events: Durable events of the run.
        internal: Whether to include data that clients must not receive.

    Raises:
        ConfigurationError: The form does not support this run.
    """
    return _WRITERS[form](task_id, events, internal)


def select_events(events: Sequence[Event], *, internal: bool) -> list[Event]:
    """Return the events, or the public form of the events that have one."""
    if internal:
        return list(events)
    return [public for event in events if (public := event.to_public()) is not None]


def _write_jsonl(task_id: str, events: Sequence[Event], internal: bool) -> bytes:
    return b"".join(event.to_json(public=not internal) + b"\n" for event in select_events(events, internal=internal))


def _write_markdown(task_id: str, events: Sequence[Event], internal: bool) -> bytes:
    messages: Sequence[Message] = fold_all(events).messages
    shown = messages if internal else list(select_public_messages(messages))
    return f"# Run {task_id}\n\n{format_transcript(shown)}".encode("utf-8", "replace")


def _write_case(task_id: str, events: Sequence[Event], internal: bool) -> bytes:
    case: dict[str, Any] = {"id": task_id, "input": _find_prompt(events)}
    answer = _find_answer(events)
    if answer:
        case["expected"] = answer
    return orjson.dumps(case) + b"\n"


def _find_prompt(events: Sequence[Event]) -> str:
    """Return the text that started a run.

    Raises:
        ConfigurationError: The prompt is not a text.
    """
    first = events[0] if events else None
    messages = first.messages if isinstance(first, TaskEvent) else []
    users = [message for message in messages if message.role == "user"]
    if not users or any(message.media for message in users):
        raise ConfigurationError("only runs that were started with a text can be exported as a case or a test")
    return "\n\n".join(message.text for message in users)


def _find_answer(events: Sequence[Event]) -> str:
    ends = [event for event in events if isinstance(event, StatusUpdateEvent) and event.final]
    return (ends[-1].content or "") if ends and ends[-1].parent_task_id is None else ""


# -- pytest


def _write_pytest(task_id: str, events: Sequence[Event], internal: bool) -> bytes:
    _check_replayable(events, internal)
    shown = select_events(events, internal=internal)
    lines = _write_jsonl(task_id, events, internal).decode()
    results: dict[str, list[tuple[bool, str]]] = {}
    calls: list[tuple[str, Any]] = []
    for event in shown:
        if isinstance(event, ToolCompleteEvent):
            results.setdefault(event.name, []).append((event.success, event.error or event.content))
        elif isinstance(event, ContentCompleteEvent):
            calls += [(call.name, dict(call.arguments)) for call in event.tool_calls]
    values = {
        # The id is part of a docstring, and an imported run can have any id.
        "TASK": re.sub(r"[^A-Za-z0-9._-]", "_", task_id),
        "PROMPT": repr(_find_prompt(shown)),
        "EVENTS": "\n".join(f"    {line!r}," for line in lines.split("\n") if line),
        "RESULTS": "\n".join(f"    {name!r}: {values!r}," for name, values in results.items()),
        "CALLS": "\n".join(f"    {call!r}," for call in calls),
        "ANSWER": repr(_find_answer(shown)),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], _PYTEST).encode("utf-8", "backslashreplace")


def _check_replayable(events: Sequence[Event], internal: bool) -> None:
    """Check that a test can repeat the run without its agent.

    Raises:
        ConfigurationError: It cannot.
    """
    last = events[-1] if events else None
    messages = [event for event in events if isinstance(event, ContentCompleteEvent)]
    reasons = {
        "is not completed": not (isinstance(last, StatusUpdateEvent) and last.state == "completed"),
        "has several attempts": any(event.attempt > 1 for event in events),
        "has nested runs or branches": any(event.parent_task_id or event.branch for event in events),
        "has questions": any(isinstance(event, InputRequiredEvent) for event in events),
        "is a fork": any(isinstance(event, TaskEvent) and event.fork_of for event in events),
        "has hidden calls, which are only exported together with internal data": not internal
        and any(call.hidden for message in messages for call in message.tool_calls),
    }
    reason = next((text for text, applies in reasons.items() if applies), None)
    if reason is not None:
        raise ConfigurationError(f"this run cannot be exported as a test, because it {reason}")


_PYTEST = '''"""Test of the recorded run {{TASK}}. Needs pytest and rxloop, but neither a key nor a network.

Replace `RecordedTool` by your tools, and `recorded(path)` by your model, to test changes.
"""

import asyncio
import json

from rxloop import Agent, ContentCompleteEvent, ToolError
from rxloop.pipeline.requests import ToolDefinition
from rxloop.testing import recorded

PROMPT = {{PROMPT}}
EVENTS = [
{{EVENTS}}
]
RESULTS = {
{{RESULTS}}
}
CALLS = [
{{CALLS}}
]
ANSWER = {{ANSWER}}


class RecordedTool:
    """Tool that returns the recorded results in order."""

    timeout, idempotent, approve = None, False, False

    def __init__(self, name, results):
        self.definition = ToolDefinition(name=name, description="", parameters={"type": "object"})
        self._results = iter(results)

    def enabled(self, ctx):
        return True

    async def call(self, arguments, ctx):
        success, text = next(self._results)
        if not success:
            raise ToolError(text)
        return text


def test_run_repeats_the_recorded_calls_and_answer(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text("\\n".join(EVENTS), encoding="utf-8")
    tools = [RecordedTool(name, results) for name, results in RESULTS.items()]

    async def main():
        run = Agent(recorded(path), tools=tools, thoughts=False).run(PROMPT)
        events = [event async for event in run]
        return (await run).content, events

    answer, events = asyncio.run(main())
    messages = [event for event in events if isinstance(event, ContentCompleteEvent)]
    calls = [(call.name, call.arguments) for message in messages for call in message.tool_calls]
    assert json.loads(json.dumps(calls)) == json.loads(json.dumps(CALLS))
    assert answer == ANSWER
'''

_WRITERS: Mapping[str, Callable[[str, Sequence[Event], bool], bytes]] = {
    "jsonl": _write_jsonl,
    "markdown": _write_markdown,
    "case": _write_case,
    "pytest": _write_pytest,
}
