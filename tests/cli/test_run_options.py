"""Options of `run` for attachments, instructions, schemas, conversations, costs, approvals and quiet output."""

from __future__ import annotations

import base64
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from rxloop.cli.arguments import inputs
from rxloop.cli.arguments.inputs import Attachments, make_prompt
from rxloop.cli.arguments.schemas import load_schema
from rxloop.testing import OfflineModel
from support.cli_workspace import Workspace
from support.terminals import LIMIT, Terminal

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
WEATHER = ("run", "Compare the weather in Oslo and Bergen.", "--tools", "kit:get_weather")


@pytest.fixture(autouse=True)
def fresh_modules() -> None:
    """Import the `kit` module separately for each test."""
    sys.modules.pop("kit", None)


@pytest.fixture
def priced(workspace: Workspace) -> tuple[str, ...]:
    """Options selecting a priced model."""
    return ("--model", "zai:glm-4.7", "--base-url", workspace.url)


def parts_of(message: dict[str, Any]) -> list[str]:
    return [part["type"] for part in message["content"]]


# -- attachments


def test_attached_image_and_text_are_sent_after_the_question(workspace: Workspace, offline: OfflineModel) -> None:
    # Type detection uses the content despite a misleading name.
    (workspace.folder / "picture.txt").write_bytes(PNG)
    (workspace.folder / "notes.md").write_text("# Notes\n")
    workspace.run("run", "What is this?", "-a", "picture.txt", "--attach", "notes.md")
    message = offline.requests[-1]["messages"][-1]
    assert parts_of(message)[:2] == ["text", "image_url"]
    assert "# Notes" in orjson.dumps(message).decode()
    assert workspace.rows()[0]["question"] == "What is this?"


def test_bytes_of_stdin_are_attached(workspace: Workspace, offline: OfflineModel) -> None:
    (workspace.folder / "picture").write_bytes(PNG)
    done = workspace.shell("rxloop run 'What is this?' -a - < picture")
    assert done.returncode == 0
    assert parts_of(offline.requests[-1]["messages"][-1]) == ["text", "image_url"]


def test_attachment_needs_no_question(workspace: Workspace, offline: OfflineModel) -> None:
    (workspace.folder / "notes.md").write_text("2 + 2")
    workspace.run("run", "-a", "notes.md")
    assert "2 + 2" in orjson.dumps(offline.requests[-1]["messages"][-1]).decode()


def test_too_large_attachment_is_rejected(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "MAX_ATTACHMENT", 10)
    (workspace.folder / "large.txt").write_text("a" * 11)
    done = workspace.run("run", "Hi", "-a", "large.txt", code=2)
    assert done.stderr == (
        "rxloop: --attach 'large.txt' must have at most 10 bytes; reduce it, or pass a URL of the file\n"
    )
    assert not workspace.database.exists()


def test_attachments_of_chat_are_sent_with_the_first_question(workspace: Workspace, offline: OfflineModel) -> None:
    (workspace.folder / "picture.png").write_bytes(PNG)
    workspace.run("chat", "-a", "picture.png", stdin="What is this?\nAnd 2 + 2?\n")
    contents = [each["content"] for each in offline.requests[-1]["messages"] if each["role"] == "user"]
    assert [isinstance(content, str) for content in contents] == [False, True]


# -- stdin


def test_document_from_a_file_follows_the_question(workspace: Workspace) -> None:
    (workspace.folder / "notes.txt").write_text("a text\n")
    assert workspace.shell("rxloop run Summarise < notes.txt").returncode == 0
    assert workspace.rows()[0]["question"] == "Summarise\n\na text"


@pytest.mark.parametrize("stdin", ["< /dev/null", "<&-"])
def test_stdin_without_data_is_ignored(workspace: Workspace, stdin: str) -> None:
    assert workspace.shell(f"rxloop run '2 + 2' {stdin}").returncode == 0
    assert workspace.rows()[0]["question"] == "2 + 2"


def test_endless_input_is_rejected(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rxloop.cli.terminal.MAX_INPUT", 10)
    done = workspace.run("run", "Summarise", code=2, stdin="a" * 11)
    assert done.stderr == "rxloop: stdin must contain at most 10 bytes; pass a shorter text\n"
    assert workspace.run("run", "Hi", stdin="a" * 10).exit_code == 0


def test_open_socket_without_data_does_not_block_the_run(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "_SOCKET_SECONDS", 0.01)
    remote, local = socket.socketpair()
    with remote, local, local.makefile() as stdin, monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", stdin)
        assert not inputs.has_input()
        remote.send(b"text")
        assert inputs.has_input()


def test_document_that_arrives_after_the_notice_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    source, end = os.pipe()
    notices: list[str] = []

    def answer(notice: str) -> None:
        notices.append(notice)
        os.write(end, b"a text")
        os.close(end)

    monkeypatch.setattr(inputs, "_NOTICE_SECONDS", 0)
    monkeypatch.setattr(inputs, "notify", answer)
    with os.fdopen(source) as stdin, monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", stdin)
        assert make_prompt(["Summarise"], Attachments()) == "Summarise\n\na text"
    assert notices == ["waiting for the end of stdin; use < /dev/null if there is no input"]


def test_ctrl_c_ends_the_announced_wait_for_an_open_pipe(workspace: Workspace) -> None:
    process = workspace.process("run", "Summarise")
    assert process.stderr is not None
    assert process.stderr.readline().startswith(b"waiting for the end of stdin")
    process.send_signal(signal.SIGINT)
    assert process.wait(LIMIT) == 130
    assert process.communicate() == (b"", b"")


# -- instructions and schemas


def test_system_option_sends_instructions(workspace: Workspace, offline: OfflineModel) -> None:
    workspace.run("run", "2 + 2", "--system", "Answer in French.")
    assert "Answer in French." in offline.requests[-1]["messages"][0]["content"]
    (workspace.folder / "rules.txt").write_text("Answer in Latin.\n")
    workspace.run("run", "2 + 2", "--system", "@rules.txt")
    assert "Answer in Latin." in offline.requests[-1]["messages"][0]["content"]


def test_schema_option_prints_only_valid_json(workspace: Workspace, offline: OfflineModel) -> None:
    done = workspace.run("run", "2 + 2", "--schema", "city, population int, cold bool, tags str[]: short words")
    answer = orjson.loads(done.stdout)
    assert {name: type(value) for name, value in answer.items()} == {
        "city": str,
        "population": int,
        "cold": bool,
        "tags": list,
    }
    assert done.stdout.count("\n") == 1
    assert '"description":"short words"' in offline.requests[-1]["messages"][0]["content"]
    assert "completed" in done.stderr


def test_schema_is_read_from_a_file(workspace: Workspace, tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 3}}, "required": ["n"]}
    (tmp_path / "answer.json").write_bytes(orjson.dumps(schema))
    assert load_schema("answer.json") == load_schema(orjson.dumps(schema).decode()) == schema
    done = workspace.run("run", "2 + 2", "--schema", "answer.json", "-q")
    assert orjson.loads(done.stdout)["n"] >= 3
    assert done.stderr == ""


# -- conversations


def test_continue_uses_the_conversation_of_the_last_run(workspace: Workspace, offline: OfflineModel) -> None:
    workspace.run("run", "2 + 2")
    workspace.run("run", "And 3 + 3?", "-c", RXLOOP_MODEL="")
    assert [message["role"] for message in offline.requests[-1]["messages"]] == ["user", "assistant", "user"]
    assert len({row["contextId"] for row in workspace.rows()}) == 1


# -- costs


def test_run_ends_when_the_cost_limit_is_reached(workspace: Workspace, priced: tuple[str, ...]) -> None:
    done = workspace.run(*WEATHER, *priced, "--max-cost", "0.000001", code=1, ZAI_API_KEY="k")
    assert "failed (cost): $0.0" in done.stderr
    assert "of $1e-06 are spent (--max-cost)" in done.stderr
    assert done.stdout == ""
    assert workspace.run(*WEATHER, *priced, "--max-cost", "1", ZAI_API_KEY="k").exit_code == 0


def test_answer_that_exceeds_the_cost_limit_is_kept(workspace: Workspace, priced: tuple[str, ...]) -> None:
    done = workspace.run("run", "2 + 2", *priced, "--max-cost", "0.000001", ZAI_API_KEY="k")
    assert done.stdout != ""


def test_resumed_run_has_its_own_cost_limit(workspace: Workspace, priced: tuple[str, ...]) -> None:
    workspace.run("run", "Please pay.", "--tools", "kit:tools", *priced, code=3, ZAI_API_KEY="k")
    arguments = ("--tools", "kit:tools", "--base-url", workspace.url, "--model", "zai:glm-4.7")
    done = workspace.run("resume", "last", "--approve", "always", "--max-cost", "1", *arguments, ZAI_API_KEY="k")
    assert done.stdout.endswith("Done: paid 5.\n")


# -- approvals


@pytest.mark.parametrize(("approve", "expected"), [("always", "paid 5"), ("never", "not approved")])
def test_approve_option_answers_approvals(workspace: Workspace, approve: str, expected: str) -> None:
    done = workspace.run("run", "Please pay.", "--tools", "kit:tools", "--approve", approve)
    assert expected in done.stdout


def test_approve_option_does_not_answer_other_questions(workspace: Workspace) -> None:
    done = workspace.run("run", "Please pay and book.", "--tools", "kit:tools", "--approve", "always", code=3)
    assert "is waiting for an answer:\n" in done.stderr
    assert "In whose name?" in done.stderr


def test_other_questions_are_asked_on_a_terminal(workspace: Workspace) -> None:
    terminal = Terminal(workspace, "run", "Please pay and book.", "--tools", "kit:tools", "--approve", "always")
    terminal.expect("In whose name?")
    terminal.expect("> ")
    terminal.send("Ann\n")
    code, output = terminal.wait()
    assert code == 0
    assert "paid 5, booked for Ann" in output


def test_approvals_are_answered_with_json_output(workspace: Workspace) -> None:
    done = workspace.run("run", "Please pay.", "--tools", "kit:tools", "--approve", "always", "--json")
    assert orjson.loads(done.stdout.splitlines()[-1])["state"] == "completed"


# -- quiet output


def test_quiet_run_writes_only_the_answer(workspace: Workspace) -> None:
    done = workspace.run(*WEATHER, "-q")
    assert done.stdout.startswith("Oslo is warmer than Bergen")
    assert done.stderr == ""


def test_quiet_run_reports_its_failure_on_one_line(workspace: Workspace) -> None:
    done = workspace.run("run", "Please break.", "-q", code=1)
    assert done.stdout == ""
    assert done.stderr.startswith("rxloop: the run failed (bad_request): ")
    assert done.stderr.count("\n") == 1


def test_quiet_run_lists_open_questions(workspace: Workspace) -> None:
    done = workspace.run("run", "Please pay.", "--tools", "kit:tools", "-q", code=3)
    assert "continue with: rxloop resume " in done.stderr
