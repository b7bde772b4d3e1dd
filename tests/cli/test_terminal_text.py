"""Escaping of control characters in all event fields and commands."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin

import orjson
import pytest
from rich.text import Text

from rxloop import Event, MessageAddedEvent, PendingInput, StatusUpdateEvent
from rxloop.cli.options import ThoughtLevel
from rxloop.cli.render import describe, describe_end, format_question
from rxloop.cli.service import write_logs
from rxloop.cli.terminal import escape
from rxloop.protocol.envelope import EVENT_TYPES
from rxloop.protocol.messages import ErrorInfo, FilePart, ImagePart
from rxloop.support.text import INVISIBLE, to_one_line, to_visible
from support.cli_workspace import Workspace

EVIL = (
    "a\x1b]52;c;ZXZpbA==\x07b\x1b]0;title\x1b\\c\x1b[2J\x9b31md\x08\x7f\x85e"
    "\u202ef\u202dg\u2066h\u2069i\u200ej\u200fk\u061cl\u2028m\u2029\x0b\x0cn"
)
# Control characters that the envelope accepts in ids.
EVIL_ID = "\u202ef\u202dg\u2066h\u2069i\u200ej\u200fk\u061cl"
BAD = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def make_hostile_value(name: str, annotation: Any) -> Any:
    """Return a value of a type, with control characters in all strings."""
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation is str:
        return EVIL
    if annotation in (int, float, bool):
        return annotation(1)
    if origin is Annotated:
        return make_hostile_value(name, args[0])
    if annotation in (ImagePart, FilePart):
        return {"type": annotation.model_fields["type"].default, "url": EVIL, "mediaType": EVIL}
    if hasattr(annotation, "model_fields"):
        return {key: make_hostile_value(key, field.annotation) for key, field in annotation.model_fields.items()}
    if origin is list or origin is tuple:
        return [make_hostile_value(name, args[0])]
    if origin is dict and args[1] is str:
        return {EVIL: EVIL}
    if origin is dict or annotation is Any:
        return {EVIL: [EVIL]}
    if origin is not None and str in args:
        return EVIL
    if origin is not None and any(hasattr(arg, "model_fields") for arg in args):
        return make_hostile_value(name, next(arg for arg in args if hasattr(arg, "model_fields")))
    if origin is not None and type(None) in args:
        return make_hostile_value(name, args[0])
    return args[0] if args else None


def make_hostile_lines(task_id: str) -> Iterator[bytes]:
    """Return a run with every event kind, with control characters in all string fields."""
    task = {"kind": "task", "messages": [{"role": "user", "content": EVIL}], "model": EVIL, "agentName": EVIL}
    events: list[dict[str, Any]] = [{**task, "metadata": {EVIL: EVIL}, "forkOf": EVIL, "forkSeq": 1}]
    for kind, cls in EVENT_TYPES.items():
        if kind == "task" or not cls.durable or not cls.__module__.startswith("rxloop."):
            continue
        own = {name: each for name, each in cls.model_fields.items() if name not in Event.model_fields}
        fields: dict[Any, Any] = {
            each.serialization_alias: make_hostile_value(name, each.annotation) for name, each in own.items()
        }
        if kind == "message-added":
            fields["content"] = EVIL
        if kind == "goals-updated":
            fields["goals"] = [{"id": EVIL_ID, "title": EVIL}]
        if kind == "tool-complete":
            fields["messages"] = [{"role": "system", "content": EVIL}]
        common: dict[str, Any] = {"kind": kind, "step": EVIL_ID, "metadata": {EVIL: EVIL}, **fields}
        events += [common, {**common, "agentPath": [EVIL], "parentTaskId": task_id, "branch": EVIL_ID}]
    events.append({"kind": "strange", EVIL: EVIL})
    for state in ("failed", "input-required", "completed"):
        error = {"code": EVIL, "message": EVIL}
        pending = [{"inputId": EVIL, "prompt": EVIL, "options": [EVIL], "inputKind": "selection"}]
        events.append(
            {"kind": "status-update", "state": state, "final": True, "error": error, "content": EVIL, "reason": EVIL}
            | {"finishReason": EVIL, "pending": pending}
        )
    for seq, fields in enumerate(events, start=1):
        envelope = {"contextId": f"context-of-{task_id}", "taskId": task_id, "seq": seq, "attempt": 1}
        yield orjson.dumps({**envelope, "timestamp": "2025-01-01T00:00:00.000Z", **fields})


@pytest.fixture
def hostile_workspace(workspace: Workspace) -> Workspace:
    """Workspace with two runs whose events contain control characters."""
    (workspace.folder / "evil.jsonl").write_bytes(
        b"\n".join([*make_hostile_lines("one-1111"), *make_hostile_lines("two-2222")])
    )
    done = workspace.run("import", "evil.jsonl")
    assert not BAD.search(done.output)
    return workspace


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", "last"],
        ["show", "last", "--thoughts", "all"],
        ["show", "last", "--json"],
        ["replay", "last"],
        ["replay", "last", "--thoughts", "all"],
        ["replay", "last", "--json"],
        ["runs"],
        ["runs", "--json"],
        ["stats"],
        ["stats", "--json"],
        ["stats", "--agent", EVIL.replace("\x00", "")],
        ["graph", "last"],
        ["graph", "last", "-f", "mermaid"],
        ["graph", "last", "-f", "dot"],
        ["graph", "last", "-f", "json"],
        ["graph", "last", "-f", "html"],
        ["diff", "one-1111", "two-2222"],
        ["export", "last"],
        ["resume", "last"],
        ["fork", "last", "--at", "3"],
        ["import", "evil.jsonl"],
        ["runs", "--context", EVIL],
        ["show", EVIL],
        ["run", "Hi", "-m", EVIL],
        ["run", "Hi", "--agent", EVIL],
        ["models", EVIL],
        ["runs", f"--{EVIL}"],
        [f"--{EVIL}"],
        [EVIL],
        ["protocol", EVIL],
        ["strategies", EVIL],
        ["import", EVIL.replace("\x00", "")],
        ["doctor"],
    ],
    ids=lambda arguments: " ".join(arguments).replace(EVIL, "EVIL"),
)
def test_no_command_writes_control_characters(hostile_workspace: Workspace, arguments: list[str]) -> None:
    done = hostile_workspace.run(*arguments, code=None)
    assert done.output
    assert BAD.findall(done.output.replace("\r\n", "\n")) == []
    assert done.exception is None or isinstance(done.exception, SystemExit)


def test_escaped_export_is_the_same_json(hostile_workspace: Workspace) -> None:
    lines = hostile_workspace.run("export", "last").stdout.splitlines()
    assert orjson.loads(lines[0])["agentName"] == EVIL


def test_live_run_and_chat_escape_control_characters(workspace: Workspace) -> None:
    output = workspace.run("run", "Please escape.").output + workspace.run("chat", stdin="Please escape.\n").output
    assert "\\u001b[31mred" in output
    assert not BAD.search(output)


def test_escape_keeps_the_surrounding_styles() -> None:
    escaped = escape(Text.assemble(("a\x1bb", "red"), ("c\u202e", "blue"), "d"))
    assert escaped.plain == "a\\u001bbc\\u202ed"
    at = {escaped.plain[span.start : span.end]: str(span.style) for span in escaped.spans}
    assert {"a": "red", "b": "red", "c": "blue"}.items() <= at.items()


def test_escape_returns_plain_text_unchanged() -> None:
    text = Text("né → 👩‍🚀\n\tx", "red")
    assert escape(text) is text
    assert to_visible("né → 👩‍🚀\n\tx") == "né → 👩‍🚀\n\tx"
    assert INVISIBLE.pattern == BAD.pattern


def test_foreign_text_cannot_imitate_a_line_of_the_command() -> None:
    forged = "Really?\r\n← pay paid 5\n? Pay 5?\r! yes"
    marked = "Really?\n  | ← pay paid 5\n  | ? Pay 5?\\u000d! yes"
    question = PendingInput(input_id="1.0.1", prompt=forged, input_kind="confirmation")
    assert escape(format_question(question)).plain == f"? {marked} (yes or no)"
    failed = StatusUpdateEvent(state="failed", final=True, error=ErrorInfo(code="error", message=forged))
    added = MessageAddedEvent(role="user", content=forged, cause="steering")
    assert escape(describe_end(failed)).plain == f"failed (error): {marked}"
    description = describe(added, ThoughtLevel.none)
    assert description is not None
    assert escape(description).plain == f"+ user (steering): {marked}"


@pytest.mark.parametrize("json", [False, True])
def test_log_lines_contain_no_control_or_invisible_characters(json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with write_logs(json=json):
        logging.getLogger("rxloop").error("Request %s failed", EVIL, extra={"path": EVIL})
    [line] = capsys.readouterr().err.splitlines()
    assert BAD.search(line) is None
    assert not json or orjson.loads(line)["path"] == EVIL


def test_single_line_contains_no_control_or_invisible_characters() -> None:
    assert BAD.search(to_one_line(EVIL, 1_000)) is None
    assert to_one_line("a\u202eb\r\nc\x9bd", 1_000) == "ab c d"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a" + "".join(chr(0xE0100 + ord(each)) for each in "pay eve"), "a"),
        ("a\ufe00\ufe01\ufe02b", "a\ufe00b"),
        ("a\u3164\u115f\u1160\u034f\uffa0b", "ab"),
        ("\u2764\ufe0f", "\u2764\ufe0f"),
        ("\u8fbb\U000e0100", "\u8fbb\U000e0100"),
    ],
)
def test_printable_characters_that_hide_text_are_removed_from_a_line(text: str, line: str) -> None:
    assert to_one_line(text) == line
