"""Commands `resume`, `fork` and `chat` in this process."""

from __future__ import annotations

import re
import sys

import pytest

from rxloop.testing import OfflineModel
from support.cli_workspace import Workspace


@pytest.fixture(autouse=True)
def fresh_modules() -> None:
    """Import the `kit` module separately for each test."""
    sys.modules.pop("kit", None)


@pytest.fixture
def waiting_run(workspace: Workspace) -> Workspace:
    """Workspace with a run that is waiting for two answers."""
    workspace.run("run", "Please pay and book.", "--tools", "kit:tools", code=3)
    return workspace


def pending_ids(workspace: Workspace) -> dict[str, str]:
    """Return the ids of pending questions by tool name."""
    return {each["call"]["name"]: each["inputId"] for each in workspace.events()[-1]["pending"]}


def test_resume_without_a_terminal_lists_missing_answers(waiting_run: Workspace) -> None:
    done = waiting_run.run("resume", "last", "--tools", "kit:tools", code=3)
    assert re.search(
        r"is waiting for 2 answers:\n .*\? Call pay .*\n .*\? In whose name\?\ncontinue with: rxloop resume ",
        done.stderr,
    )
    assert "--tools kit:tools --input " in done.stderr
    assert waiting_run.rows()[0]["attempt"] == 1


def test_resume_accepts_some_of_the_answers(waiting_run: Workspace) -> None:
    ids = pending_ids(waiting_run)
    done = waiting_run.run("resume", "last", "--tools", "kit:tools", "--input", f"{ids['pay']}=true", code=3)
    assert "is waiting for an answer:\n" in done.stderr
    assert list(pending_ids(waiting_run)) == ["book"]
    name = f'{ids["book"]}="Ann"'
    done = waiting_run.run("resume", "last", "--tools", "kit:tools", "--input", name)
    assert done.stdout == "Done: paid 5, booked for Ann.\n"


@pytest.mark.parametrize(
    ("given", "expected", "code"),
    [
        ("{pay}=maybe", "'maybe' is not JSON; for a string, use --input '{pay}=\"maybe\"'", 2),
        ("{pay}", "must have the form NAME=JSON", 2),
        ("nobody=1", "not waiting for 'nobody'", 2),
        ('{pay}="yes"', "JSON boolean", 2),
    ],
)
def test_invalid_answer_is_reported_on_one_line_and_changes_nothing(
    waiting_run: Workspace, given: str, expected: str, code: int
) -> None:
    ids = pending_ids(waiting_run)
    done = waiting_run.run("resume", "last", "--tools", "kit:tools", "--input", given.format(**ids), code=code)
    assert expected.format(**ids) in done.stderr
    assert done.stderr.startswith("rxloop: ")
    assert waiting_run.rows()[0]["attempt"] == 1


def test_run_that_failed_without_a_model_can_be_resumed(workspace: Workspace, offline_url: str) -> None:
    workspace.run("run", "2 + 2", "--base-url", "http://127.0.0.1:9/v1", code=1)
    assert workspace.rows()[0]["state"] == "failed"
    done = workspace.run("resume", "last", "--base-url", offline_url)
    assert "4" in done.stdout
    assert "is over" not in done.stderr
    assert [(row["state"], row["attempt"]) for row in workspace.rows()] == [("completed", 2)]


def test_resume_of_a_finished_run_shows_its_end_without_model_calls(
    workspace: Workspace, offline: OfflineModel
) -> None:
    live = workspace.run("run", "2 + 2")
    request_count = len(offline.requests)
    done = workspace.run("resume", "last", RXLOOP_MODEL="")
    assert done.stdout == live.stdout
    assert "this run ended" in done.stderr
    assert len(offline.requests) == request_count
    workspace.run("run", "Please break.", code=1)
    workspace.run("resume", "last", code=1)


def test_resume_with_an_unavailable_model_suggests_the_model_option(waiting_run: Workspace) -> None:
    lines = waiting_run.run("export", "last", "--full").stdout.replace(f"{waiting_run.url}#demo", "unknown:demo")
    waiting_run.run("import", "-", "--db", "other.db", stdin=lines)
    ids = pending_ids(waiting_run)
    answer = ("--input", f"{ids['pay']}=true", "--tools", "kit:tools", "--db", "other.db")
    done = waiting_run.run("resume", "last", *answer, code=2)
    assert "cannot use the recorded model: " in done.stderr
    assert done.stderr.endswith("add --model, or --agent for a model defined in a file\n")
    waiting_run.run("resume", "last", *answer, "--model", f"{waiting_run.url}#demo", code=3)


def test_resume_uses_the_recorded_offline_model(workspace: Workspace) -> None:
    (workspace.folder / "asking.py").write_text(
        "from rxloop import tool\n\n\n@tool(approve=True)\ndef get_weather(city: str) -> str:\n"
        '    """Return the weather."""\n    return "It is 7 C."\n'
    )
    workspace.run("run", "Weather in Oslo?", "--model", "offline:demo", "--tools", "asking:get_weather", code=3)
    [question] = workspace.events()[-1]["pending"]
    done = workspace.run(
        "resume", "last", "--tools", "asking:get_weather", "--input", f"{question['inputId']}=true", RXLOOP_MODEL=""
    )
    assert "7 C" in done.stdout


def test_fork_replaces_a_tool_result(workspace: Workspace) -> None:
    workspace.run("run", "Please book.", "--tools", "kit:tools", code=3)
    call = workspace.events()[-1]["pending"][0]["call"]["id"]
    at = next(event["seq"] for event in workspace.events() if event["kind"] == "content-complete")
    done = workspace.run("fork", "last", "--at", str(at), "--result", f'{call}="nothing free"', "--tools", "kit:tools")
    assert done.stdout == "Done: nothing free.\n"
    fork, origin = workspace.rows()
    assert workspace.events()[0]["forkOf"] == origin["taskId"]
    assert fork["contextId"] != origin["contextId"]
    assert origin["state"] == "input-required"
    assert f"(fork of {origin['taskId']} at {at})" in workspace.run("show", "last").stdout


def test_fork_replaces_the_question_and_the_model(workspace: Workspace, offline: OfflineModel) -> None:
    workspace.run("run", "2 + 2")
    done = workspace.run("fork", "last", "--at", "1", "--prompt", "3 + 4", "--model", f"{workspace.url}#other")
    assert "7" in done.stdout
    assert offline.requests[-1]["model"] == "other"
    assert workspace.rows()[0]["question"] == "3 + 4"


def test_duration_excludes_the_time_between_attempts(workspace: Workspace) -> None:
    workspace.run("run", "2 + 2")
    # Move the run to the previous day.
    lines = workspace.run("export", "last", "--full").stdout
    yesterday = re.sub(r'"timestamp":"(\d{4})', lambda match: f'"timestamp":"{int(match[1]) - 1}', lines)
    (workspace.folder / "old.jsonl").write_text(yesterday, encoding="utf-8")
    workspace.run("import", "old.jsonl", "--db", "old.db")
    done = workspace.run("fork", "last", "--at", "1", "--db", "old.db")
    (seconds,) = re.findall(r"(\S+) s$", done.stderr, re.MULTILINE)
    assert float(seconds) < 60


def test_fork_after_the_end_of_a_run_is_reported_on_one_line(workspace: Workspace) -> None:
    workspace.run("run", "2 + 2")
    done = workspace.run("fork", "last", "--at", "99", code=2)
    assert done.stderr.startswith("rxloop: ")
    assert len(workspace.rows()) == 1


def test_chat_questions_share_a_conversation(workspace: Workspace, offline: OfflineModel) -> None:
    done = workspace.run("chat", stdin="2 + 2\n\nAnd 3 + 3?\n/quit\n5 + 5\n")
    assert [row["question"] for row in workspace.rows()] == ["And 3 + 3?", "2 + 2"]
    assert len({row["contextId"] for row in workspace.rows()}) == 1
    assert [message["role"] for message in offline.requests[-1]["messages"]] == ["user", "assistant", "user"]
    assert len(done.stdout.splitlines()) == 2


def test_chat_continues_with_the_printed_command(workspace: Workspace) -> None:
    done = workspace.run("chat", stdin="2 + 2\n")
    arguments = done.stderr.splitlines()[-1].removeprefix("continue with: rxloop ").split()
    again = workspace.run(*arguments, stdin="And 3 + 3?\n", RXLOOP_MODEL="")
    assert f"{workspace.url}#demo; /help lists commands" in again.stderr
    assert "2 messages so far; last answer: " in again.stderr
    assert len({row["contextId"] for row in workspace.rows()}) == 1


def test_chat_continues_after_a_failed_run(workspace: Workspace) -> None:
    done = workspace.run("chat", stdin="Please break.\n2 + 2\n")
    assert "failed (bad_request)" in done.stderr
    assert "4" in done.stdout
    assert [row["state"] for row in workspace.rows()] == ["completed", "failed"]


def test_chat_without_a_log_keeps_its_history_until_it_ends(workspace: Workspace, offline: OfflineModel) -> None:
    done = workspace.run("chat", "--no-log", stdin="2 + 2\nAnd 3 + 3?\n")
    assert len(offline.requests[-1]["messages"]) == 3
    assert "continue with" not in done.stderr
    assert not workspace.database.exists()


def test_chat_without_a_model_is_invalid_usage(workspace: Workspace) -> None:
    assert "no model selected" in workspace.run("chat", stdin="Hi\n", code=2, RXLOOP_MODEL="").stderr
    assert "with the id 'x'" not in workspace.run("chat", stdin="", RXLOOP_MODEL=f"{workspace.url}#demo").stderr
