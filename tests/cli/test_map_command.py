"""`rxloop map`: a file of questions, a file of answers."""

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


def echo(conversation: Conversation) -> Reply:
    if "break" in conversation.question:
        raise KeyError("broken")
    return Reply(text=f"You ask: {conversation.question}")


@pytest.fixture
def echoing(workspace: Workspace) -> Any:
    """An offline model of its own, that the command asks."""
    model = OfflineModel(rules=[echo])
    with serve_offline(model) as url:
        workspace.env["RXLOOP_MODEL"] = f"{url}#demo"
        yield model


def written(path: Path, *lines: Any) -> str:
    path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    return path.name


def answers(path: Path) -> dict[str, Any]:
    lines = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    assert len({line["key"] for line in lines}) == len(lines)
    return {line["key"]: line.get("output", line.get("error")) for line in lines}


def asked(model: OfflineModel) -> list[str]:
    return [body["messages"][-1]["content"] for body in model.requests]


OUT = ("--out", "out.jsonl")


def test_each_line_gets_its_answer(workspace: Workspace, echoing: OfflineModel) -> None:
    done = workspace.run("map", written(workspace.folder / "in.jsonl", "One?", {"prompt": "Two?"}), *OUT)
    assert answers(workspace.folder / "out.jsonl") == {"One?": "You ask: One?", "Two?": "You ask: Two?"}
    assert re.search(r"2 answered, \d+ tokens", done.stderr)
    assert done.stdout == ""


def test_a_template_makes_the_prompts_and_a_field_is_the_key(workspace: Workspace, echoing: OfflineModel) -> None:
    file = written(workspace.folder / "in.jsonl", {"id": 7, "text": "Hello!"})
    workspace.run("map", file, *OUT, "--prompt", "Sum up: {text}", "--key", "id")
    assert answers(workspace.folder / "out.jsonl") == {"7": "You ask: Sum up: Hello!"}


def test_what_is_answered_is_not_asked_again(workspace: Workspace, echoing: OfflineModel) -> None:
    workspace.run("map", written(workspace.folder / "in.jsonl", "One?"), *OUT)
    done = workspace.run("map", written(workspace.folder / "in.jsonl", "One?", "Two?"), *OUT)
    assert "1 were answered before" in done.stderr
    assert sorted(asked(echoing)) == ["One?", "Two?"]
    assert len(answers(workspace.folder / "out.jsonl")) == 2


def test_an_answer_that_a_crash_kept_from_the_file_comes_out_of_the_log(
    workspace: Workspace, echoing: OfflineModel
) -> None:
    file, out = written(workspace.folder / "in.jsonl", "One?"), workspace.folder / "out.jsonl"
    workspace.run("map", file, *OUT)
    out.write_bytes(out.read_bytes()[:-9])
    workspace.run("map", file, *OUT)
    assert answers(out) == {"One?": "You ask: One?"}
    assert asked(echoing) == ["One?"]


def test_what_failed_is_said_and_tried_once_more(workspace: Workspace, echoing: OfflineModel) -> None:
    file = written(workspace.folder / "in.jsonl", "One?", "break")
    done = workspace.run("map", file, *OUT, code=1)
    assert "1 answered, 1 failed" in done.stderr
    assert answers(workspace.folder / "out.jsonl")["break"]["code"]
    workspace.run("map", file, *OUT, code=1)
    assert asked(echoing).count("One?") == 1
    assert len(answers(workspace.folder / "out.jsonl")) == 2


@pytest.mark.parametrize(
    ("content", "arguments", "said"),
    [
        (b"{", (), "in.jsonl, line 1 is not JSON"),
        (b'"a"\n\n[1]\n', (), "line 3 is [1], without a text 'prompt'"),
        (b'"a"\n"a"\n', (), "two lines of the key 'a'"),
        (b'{"a": 1}\n', ("--prompt", "{b}"), "cannot be filled in from {\"a\":1}: KeyError('b')"),
        (b'""\n', (), "line 1 has an empty prompt"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_before_a_model_is_asked(
    workspace: Workspace, echoing: OfflineModel, content: bytes, arguments: tuple[str, ...], said: str
) -> None:
    (workspace.folder / "in.jsonl").write_bytes(content)
    done = workspace.run("map", "in.jsonl", *OUT, *arguments, code=2)
    assert said in done.stderr
    assert echoing.requests == []
    assert not (workspace.folder / "out.jsonl").exists()


def test_a_file_of_something_else_is_not_written_over(workspace: Workspace, echoing: OfflineModel) -> None:
    (workspace.folder / "out.jsonl").write_text("My diary.\n", encoding="utf-8")
    done = workspace.run("map", written(workspace.folder / "in.jsonl", "One?"), *OUT, code=2)
    assert "was not written by rxloop map" in done.stderr
    assert (workspace.folder / "out.jsonl").read_text(encoding="utf-8") == "My diary.\n"


def test_two_at_once_do_not_write_one_file(workspace: Workspace, echoing: OfflineModel) -> None:
    file, out = written(workspace.folder / "in.jsonl", "One?"), workspace.folder / "out.jsonl"
    with out.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        done = workspace.run("map", file, *OUT, code=2)
    assert "out.jsonl is being written by another rxloop map" in done.stderr
    assert echoing.requests == []
    workspace.run("map", file, *OUT)


def test_a_mistyped_model_leaves_no_file(workspace: Workspace) -> None:
    workspace.run("map", written(workspace.folder / "in.jsonl", "One?"), *OUT, "--model", "nobody:knows", code=2)
    assert not (workspace.folder / "out.jsonl").exists()


def test_ctrl_c_waits_for_what_was_begun_and_says_what_is_left(workspace: Workspace, echoing: OfflineModel) -> None:
    begun = threading.Semaphore(0)

    def slow(conversation: Conversation) -> Reply:
        begun.release()
        return echo(conversation)

    echoing._rules = (slow,)
    echoing._delay = 0.2
    file = written(workspace.folder / "in.jsonl", *(f"Question {number}" for number in range(10)))
    process = workspace.process("map", file, *OUT, "--concurrency", "2")
    assert begun.acquire(timeout=20)
    assert begun.acquire(timeout=20)
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"waiting for what was begun" in said
    assert b"8 left: the same command goes on with them" in said
    assert len(answers(workspace.folder / "out.jsonl")) == 2
    echoing._delay = 0
    workspace.run("map", file, *OUT)
    assert len(answers(workspace.folder / "out.jsonl")) == 10
    assert len(asked(echoing)) == 10


def test_a_terminal_shows_a_bar_which_ctrl_c_leaves_readable(workspace: Workspace, echoing: OfflineModel) -> None:
    echoing._delay = 0.1
    file = written(workspace.folder / "in.jsonl", *(f"Question {number}" for number in range(10)))
    terminal = Terminal(workspace, "map", file, *OUT, "--concurrency", "2")
    terminal.expect("2/10 2 answered")
    terminal.press("\x03")
    terminal.expect("waiting for what was begun; Ctrl-C once more leaves at once")
    code, _ = terminal.wait()
    assert code == 130
    # The cursor is there again, and what is left is said below the bar.
    assert re.search(r"\x1b\[\?25h.*[2-8] left: the same command goes on with them", terminal.written, re.DOTALL)
