"""`rxloop resume`, `fork` and `chat`, in this process."""

from __future__ import annotations

import re
import sys

import pytest

from rxloop.testing import OfflineModel
from support.cli_workspace import Workspace


@pytest.fixture(autouse=True)
def fresh_modules() -> None:
    """Each test has a `kit` of its own."""
    sys.modules.pop("kit", None)


@pytest.fixture
def waiting(workspace: Workspace) -> Workspace:
    """A place with a run that waits for two answers."""
    workspace.run("run", "Please pay and book.", "--tools", "kit:tools", code=3)
    return workspace


def pending(workspace: Workspace) -> dict[str, str]:
    """The ids of the questions, by the tools that ask."""
    return {each["call"]["name"]: each["inputId"] for each in workspace.events()[-1]["pending"]}


def test_without_a_terminal_resume_says_which_answers_are_missing(waiting: Workspace) -> None:
    done = waiting.run("resume", "last", "--tools", "kit:tools", code=3)
    assert re.search(
        r"waits for 2 answers:\n .*\? Call pay .*\n .*\? In whose name\?\ngo on with: rxloop resume ", done.stderr
    )
    assert "--tools kit:tools --input " in done.stderr
    assert waiting.rows()[0]["attempt"] == 1


def test_a_part_of_the_answers_may_be_given(waiting: Workspace) -> None:
    ids = pending(waiting)
    done = waiting.run("resume", "last", "--tools", "kit:tools", "--input", f"{ids['pay']}=true", code=3)
    assert "waits for an answer:\n" in done.stderr
    assert list(pending(waiting)) == ["book"]
    name = f'{ids["book"]}="Ann"'
    done = waiting.run("resume", "last", "--tools", "kit:tools", "--input", name)
    assert done.stdout == "Done: paid 5, booked for Ann.\n"


@pytest.mark.parametrize(
    ("given", "said", "code"),
    [
        ("{pay}=maybe", "'maybe' is not JSON; a text is --input '{pay}=\"maybe\"'", 2),
        ("{pay}", "write NAME=JSON", 2),
        ("nobody=1", "not waiting for 'nobody'", 2),
        ('{pay}="yes"', "JSON boolean", 2),
    ],
)
def test_a_wrong_answer_is_one_line_and_changes_nothing(waiting: Workspace, given: str, said: str, code: int) -> None:
    ids = pending(waiting)
    done = waiting.run("resume", "last", "--tools", "kit:tools", "--input", given.format(**ids), code=code)
    assert said.format(**ids) in done.stderr
    assert done.stderr.startswith("rxloop: ")
    assert waiting.rows()[0]["attempt"] == 1


def test_a_run_that_found_no_model_goes_on_when_there_is_one(workspace: Workspace, offline_url: str) -> None:
    workspace.run("run", "2 + 2", "--base-url", "http://127.0.0.1:9/v1", code=1)
    assert workspace.rows()[0]["state"] == "failed"
    done = workspace.run("resume", "last", "--base-url", offline_url)
    assert "4" in done.stdout
    assert "is over" not in done.stderr
    assert [(row["state"], row["attempt"]) for row in workspace.rows()] == [("completed", 2)]


def test_a_run_that_is_over_shows_its_end_and_asks_no_model(workspace: Workspace, offline: OfflineModel) -> None:
    live = workspace.run("run", "2 + 2")
    asked = len(offline.requests)
    done = workspace.run("resume", "last", RXLOOP_MODEL="")
    assert done.stdout == live.stdout
    assert "this run ended" in done.stderr
    assert len(offline.requests) == asked
    workspace.run("run", "Please break.", code=1)
    workspace.run("resume", "last", code=1)


def test_a_model_that_cannot_be_had_asks_for_another_one(waiting: Workspace) -> None:
    lines = waiting.run("export", "last", "--full").stdout.replace(f"{waiting.url}#demo", "offline:demo")
    waiting.run("import", "-", "--db", "other.db", stdin=lines)
    ids = pending(waiting)
    answer = ("--input", f"{ids['pay']}=true", "--tools", "kit:tools", "--db", "other.db")
    done = waiting.run("resume", "last", *answer, code=2)
    assert "the model of the run cannot be used here: " in done.stderr
    assert done.stderr.endswith("add --model\n")
    waiting.run("resume", "last", *answer, "--model", f"{waiting.url}#demo", code=3)


def test_a_fork_goes_on_with_another_result(workspace: Workspace) -> None:
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


def test_a_fork_asks_another_question_of_another_model(workspace: Workspace, offline: OfflineModel) -> None:
    workspace.run("run", "2 + 2")
    done = workspace.run("fork", "last", "--at", "1", "--prompt", "3 + 4", "--model", f"{workspace.url}#other")
    assert "7" in done.stdout
    assert offline.requests[-1]["model"] == "other"
    assert workspace.rows()[0]["question"] == "3 + 4"


def test_the_time_between_attempts_does_not_count(workspace: Workspace) -> None:
    workspace.run("run", "2 + 2")
    # As if the run were from yesterday.
    lines = workspace.run("export", "last", "--full").stdout
    yesterday = re.sub(r'"timestamp":"(\d{4})', lambda found: f'"timestamp":"{int(found[1]) - 1}', lines)
    (workspace.folder / "old.jsonl").write_text(yesterday, encoding="utf-8")
    workspace.run("import", "old.jsonl", "--db", "old.db")
    done = workspace.run("fork", "last", "--at", "1", "--db", "old.db")
    (seconds,) = re.findall(r"(\S+) s$", done.stderr, re.MULTILINE)
    assert float(seconds) < 60


def test_a_fork_behind_the_end_is_one_line(workspace: Workspace) -> None:
    workspace.run("run", "2 + 2")
    done = workspace.run("fork", "last", "--at", "99", code=2)
    assert done.stderr.startswith("rxloop: ")
    assert len(workspace.rows()) == 1


def test_a_chat_is_one_conversation(workspace: Workspace, offline: OfflineModel) -> None:
    done = workspace.run("chat", stdin="2 + 2\n\nAnd 3 + 3?\n/quit\n5 + 5\n")
    assert [row["question"] for row in workspace.rows()] == ["And 3 + 3?", "2 + 2"]
    assert len({row["contextId"] for row in workspace.rows()}) == 1
    assert [message["role"] for message in offline.requests[-1]["messages"]] == ["user", "assistant", "user"]
    assert len(done.stdout.splitlines()) == 2


def test_a_chat_can_be_taken_up_again_by_the_line_that_it_printed(workspace: Workspace) -> None:
    done = workspace.run("chat", stdin="2 + 2\n")
    arguments = done.stderr.splitlines()[-1].removeprefix("go on with: rxloop ").split()
    again = workspace.run(*arguments, stdin="And 3 + 3?\n", RXLOOP_MODEL="")
    assert f"{workspace.url}#demo; Ctrl-D or /quit ends the conversation" in again.stderr
    assert "it has 2 messages; the last one was: " in again.stderr
    assert len({row["contextId"] for row in workspace.rows()}) == 1


def test_a_chat_goes_on_after_a_run_that_failed(workspace: Workspace) -> None:
    done = workspace.run("chat", stdin="Please break.\n2 + 2\n")
    assert "failed (bad_request)" in done.stderr
    assert "4" in done.stdout
    assert [row["state"] for row in workspace.rows()] == ["completed", "failed"]


def test_a_chat_without_a_log_remembers_until_it_ends(workspace: Workspace, offline: OfflineModel) -> None:
    done = workspace.run("chat", "--no-log", stdin="2 + 2\nAnd 3 + 3?\n")
    assert len(offline.requests[-1]["messages"]) == 3
    assert "go on with" not in done.stderr
    assert not workspace.database.exists()


def test_a_chat_with_no_model_is_wrong_usage(workspace: Workspace) -> None:
    assert "no model is named" in workspace.run("chat", stdin="Hi\n", code=2, RXLOOP_MODEL="").stderr
    assert "an id like 'x'" not in workspace.run("chat", stdin="", RXLOOP_MODEL=f"{workspace.url}#demo").stderr
