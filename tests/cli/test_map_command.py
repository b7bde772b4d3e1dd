"""Batches of `rxloop map`."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import orjson
import pytest

from rxloop.demo.conversation import Conversation, Reply
from rxloop.testing import OfflineModel
from support.cli_workspace import Workspace
from support.offline_server import serve_offline
from support.terminals import Terminal


def echo_question(conversation: Conversation) -> Reply:
    if "break" in conversation.question:
        raise KeyError("broken")
    return Reply(text=f"You ask: {conversation.question}")


@pytest.fixture
def echo_model(workspace: Workspace) -> Any:
    """Separate offline model for the command."""
    model = OfflineModel(rules=[echo_question])
    with serve_offline(model) as url:
        workspace.env["RXLOOP_MODEL"] = f"{url}#demo"
        yield model


def write_lines(path: Path, *lines: Any) -> str:
    path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    return path.name


def read_answers(path: Path) -> dict[str, Any]:
    lines = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    assert len({line["key"] for line in lines}) == len(lines)
    return {line["key"]: line.get("output", line.get("error")) for line in lines}


def count_questions(model: OfflineModel) -> list[str]:
    return [body["messages"][-1]["content"] for body in model.requests]


OUT = ("--out", "out.jsonl")


def test_every_line_is_answered(workspace: Workspace, echo_model: OfflineModel) -> None:
    done = workspace.run("map", write_lines(workspace.folder / "in.jsonl", "One?", {"prompt": "Two?"}), *OUT)
    assert read_answers(workspace.folder / "out.jsonl") == {"One?": "You ask: One?", "Two?": "You ask: Two?"}
    assert re.search(r"2 answered, \d+ tokens", done.stderr)
    assert done.stdout == ""


def test_template_formats_prompts_and_a_field_is_the_key(workspace: Workspace, echo_model: OfflineModel) -> None:
    file = write_lines(workspace.folder / "in.jsonl", {"id": 7, "text": "Hello!"})
    workspace.run("map", file, *OUT, "--prompt", "Sum up: {text}", "--key", "id")
    assert read_answers(workspace.folder / "out.jsonl") == {"7": "You ask: Sum up: Hello!"}


def test_answered_lines_are_skipped(workspace: Workspace, echo_model: OfflineModel) -> None:
    workspace.run("map", write_lines(workspace.folder / "in.jsonl", "One?"), *OUT)
    done = workspace.run("map", write_lines(workspace.folder / "in.jsonl", "One?", "Two?"), *OUT)
    assert "1 answered previously" in done.stderr
    assert sorted(count_questions(echo_model)) == ["One?", "Two?"]
    assert len(read_answers(workspace.folder / "out.jsonl")) == 2


def test_answer_missing_from_the_file_is_read_from_the_log(workspace: Workspace, echo_model: OfflineModel) -> None:
    file, out = write_lines(workspace.folder / "in.jsonl", "One?"), workspace.folder / "out.jsonl"
    workspace.run("map", file, *OUT)
    out.write_bytes(out.read_bytes()[:-9])
    workspace.run("map", file, *OUT)
    assert read_answers(out) == {"One?": "You ask: One?"}
    assert count_questions(echo_model) == ["One?"]


def test_failed_line_is_reported_and_retried(workspace: Workspace, echo_model: OfflineModel) -> None:
    file = write_lines(workspace.folder / "in.jsonl", "One?", "break")
    done = workspace.run("map", file, *OUT, code=1)
    assert "1 answered, 1 failed" in done.stderr
    assert read_answers(workspace.folder / "out.jsonl")["break"]["code"]
    workspace.run("map", file, *OUT, code=1)
    assert count_questions(echo_model).count("One?") == 1
    assert len(read_answers(workspace.folder / "out.jsonl")) == 2


@pytest.mark.parametrize(
    ("content", "arguments", "expected"),
    [
        (b"{", (), "in.jsonl, line 1 is not JSON"),
        (b'"a"\n\n[1]\n', (), "line 3 must have a string field 'prompt', got [1]"),
        (b'"a"\n"a"\n', (), "contains the key 'a' twice"),
        (b'{"a": 1}\n', ("--prompt", "{b}"), "cannot format --prompt '{b}' with {\"a\":1}: KeyError('b')"),
        (b'""\n', (), "line 1: the prompt must not be empty"),
    ],
)
def test_invalid_input_file_is_rejected_before_model_calls(
    workspace: Workspace, echo_model: OfflineModel, content: bytes, arguments: tuple[str, ...], expected: str
) -> None:
    (workspace.folder / "in.jsonl").write_bytes(content)
    done = workspace.run("map", "in.jsonl", *OUT, *arguments, code=2)
    assert expected in done.stderr
    assert echo_model.requests == []
    assert not (workspace.folder / "out.jsonl").exists()


def test_foreign_output_file_is_not_overwritten(workspace: Workspace, echo_model: OfflineModel) -> None:
    (workspace.folder / "out.jsonl").write_text("My diary.\n", encoding="utf-8")
    done = workspace.run("map", write_lines(workspace.folder / "in.jsonl", "One?"), *OUT, code=2)
    assert "was not written by rxloop map" in done.stderr
    assert (workspace.folder / "out.jsonl").read_text(encoding="utf-8") == "My diary.\n"


def test_output_file_is_locked(workspace: Workspace, echo_model: OfflineModel) -> None:
    file, out = write_lines(workspace.folder / "in.jsonl", "One?"), workspace.folder / "out.jsonl"
    with out.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        done = workspace.run("map", file, *OUT, code=2)
    assert "out.jsonl is locked by another rxloop map" in done.stderr
    assert echo_model.requests == []
    workspace.run("map", file, *OUT)


def test_unknown_model_creates_no_file(workspace: Workspace) -> None:
    workspace.run("map", write_lines(workspace.folder / "in.jsonl", "One?"), *OUT, "--model", "nobody:knows", code=2)
    assert not (workspace.folder / "out.jsonl").exists()


def test_ctrl_c_waits_for_active_runs_and_prints_the_remaining_number(
    workspace: Workspace, echo_model: OfflineModel
) -> None:
    started = threading.Semaphore(0)

    def slow(conversation: Conversation) -> Reply:
        started.release()
        return echo_question(conversation)

    echo_model._rules = (slow,)
    echo_model._delay = 0.2
    file = write_lines(workspace.folder / "in.jsonl", *(f"Question {number}" for number in range(10)))
    process = workspace.process("map", file, *OUT, "--concurrency", "2")
    assert started.acquire(timeout=20)
    assert started.acquire(timeout=20)
    os.kill(process.pid, signal.SIGINT)
    _, output = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"waiting for active runs" in output
    assert b"8 remaining; repeat the command to continue" in output
    assert len(read_answers(workspace.folder / "out.jsonl")) == 2
    echo_model._delay = 0
    workspace.run("map", file, *OUT)
    assert len(read_answers(workspace.folder / "out.jsonl")) == 10
    assert len(count_questions(echo_model)) == 10


def test_output_after_ctrl_c_does_not_overlap_the_progress_bar(workspace: Workspace, echo_model: OfflineModel) -> None:
    echo_model._delay = 0.1
    file = write_lines(workspace.folder / "in.jsonl", *(f"Question {number}" for number in range(10)))
    terminal = Terminal(workspace, "map", file, *OUT, "--concurrency", "2")
    terminal.expect("2/10 2 answered")
    terminal.press("\x03")
    terminal.expect("waiting for active runs; press Ctrl-C again to exit immediately")
    code, _ = terminal.wait()
    assert code == 130
    # The cursor is restored, and the note follows the bar.
    assert re.search(r"\x1b\[\?25h.*[2-8] remaining; repeat the command to continue", terminal.written, re.DOTALL)
