"""The command as a process: signals, pipes, terminals, and what is not installed."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import orjson
import pytest

from support.cli_workspace import SOURCE, Workspace
from support.terminals import LIMIT, Terminal


def until(read: Callable[[], bytes], wanted: str) -> str:
    """What is written up to some text."""
    got = b""
    while wanted not in got.decode(errors="replace"):
        more = read()
        assert more, got.decode(errors="replace")
        got += more
    return got.decode(errors="replace")


def from_pipe(pipe: IO[bytes] | None) -> Callable[[], bytes]:
    assert pipe is not None
    return lambda: os.read(pipe.fileno(), 4096)


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=LIMIT)


@pytest.mark.parametrize(
    ("missing", "command"), [("typer", "runs"), ("rich", "runs"), ("platformdirs", "runs"), ("packaging", "doctor")]
)
def test_without_the_extra_the_command_names_it(missing: str, command: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from rxloop.cli import main; main()"
    done = python(code, command)
    assert done.returncode == 1
    assert done.stderr == f'The command needs {missing}, which is not installed: pip install "rxloop[cli]"\n'


def test_what_else_is_missing_is_no_matter_of_the_extra() -> None:
    done = python("import sys; sys.modules['pydantic'] = None; from rxloop.cli import main; main()")
    assert "rxloop[cli]" not in done.stderr


def test_the_version_is_that_of_the_package(workspace: Workspace) -> None:
    process = workspace.process("--version")
    out, err = process.communicate(timeout=LIMIT)
    assert re.fullmatch(rb"rxloop \d+\.\d+\S*\n", out)
    assert (err, process.returncode) == (b"", 0)


def test_a_question_through_a_pipe_is_answered_on_stdout_alone(workspace: Workspace) -> None:
    process = workspace.process("run")
    out, err = process.communicate(b"Please pay.\n", timeout=LIMIT)
    assert (out.count(b"\n"), process.returncode) == (1, 0)
    assert b"completed" in err
    assert b"\x1b" not in out + err


def test_wrong_usage_is_exit_code_2(workspace: Workspace) -> None:
    process = workspace.process("run", "--nonsense")
    _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 2
    assert b"--nonsense" in err


def started(workspace: Workspace, question: str, tool: str) -> subprocess.Popen[bytes]:
    """A run that is in the middle of a tool."""
    process = workspace.process("run", question, "--tools", "kit:tools")
    # The tool says so itself: what led to its call is durable by then.
    until(from_pipe(process.stderr), f"… {tool}: begun\n")
    return process


def test_ctrl_c_cancels_shows_what_there_is_and_how_to_go_on(workspace: Workspace) -> None:
    process = started(workspace, "Please wait.", "wait")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 130
    assert out.decode() == "Let me see. \n"
    assert re.search(r"\ncancelled · 1 model call · 1 tool call · .*\n", err.decode())
    assert "Traceback" not in err.decode()
    [row] = workspace.rows()
    assert row["state"] == "canceled"
    (workspace.folder / "go").touch()
    arguments = shlex.split(err.decode().splitlines()[-1].removeprefix("go on with: rxloop "))
    workspace.run(*arguments)
    assert [row["state"] for row in workspace.rows()] == ["completed"]


def test_ctrl_c_twice_leaves_at_once_and_the_run_can_be_resumed(workspace: Workspace) -> None:
    process = started(workspace, "Please resist.", "resist")
    process.send_signal(signal.SIGINT)
    until(from_pipe(process.stderr), "cancelling; Ctrl-C once more leaves at once\n")
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=LIMIT)
    assert time.monotonic() - begun < 2
    assert (process.returncode, err) == (130, b"left without waiting\n")
    workspace.run("resume", "last", "--tools", "kit:tools")
    assert workspace.rows()[0]["state"] == "completed"


def test_a_run_that_was_killed_goes_on(workspace: Workspace) -> None:
    process = started(workspace, "Please wait.", "wait")
    process.kill()
    process.communicate(timeout=LIMIT)
    [row] = workspace.rows("--unfinished")
    assert row["state"] == "working"
    (workspace.folder / "go").touch()
    workspace.run("resume", row["taskId"][-6:], "--tools", "kit:tools")
    assert [row["state"] for row in workspace.rows()] == ["completed"]


def test_a_run_in_another_process_can_be_followed(workspace: Workspace) -> None:
    process = started(workspace, "Please wait.", "wait")
    follower = workspace.process("show", "last", "--follow")
    said = until(from_pipe(follower.stdout), "→ wait()\n")
    (workspace.folder / "go").touch()
    said += follower.communicate(timeout=LIMIT)[0].decode()
    process.communicate(timeout=LIMIT)
    assert follower.returncode == process.returncode == 0
    assert said.splitlines()[2:] == workspace.run("show", "last").stdout.splitlines()[2:]


def test_a_reader_that_leaves_ends_the_run_without_a_word(workspace: Workspace) -> None:
    process = workspace.process("run", "Please wait.", "--tools", "kit:tools", "--json")
    until(from_pipe(process.stdout), '"tool-start"')
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    (workspace.folder / "go").touch()
    _, err = process.communicate(timeout=LIMIT)
    assert (process.returncode, err) == (1, b"")
    assert workspace.rows()[0]["state"] == "canceled"


def test_at_a_terminal_the_person_is_asked(workspace: Workspace) -> None:
    terminal = Terminal(workspace, "run", "Please pay and book.", "--tools", "kit:tools")
    terminal.expect("(yes or no)\r\n> ")
    terminal.send("maybe\n")
    terminal.expect("please answer yes or no\r\n> ")
    terminal.send("yes\n")
    terminal.expect("In whose name?\r\n> ")
    terminal.send("Ann\n")
    code, said = terminal.wait()
    assert code == 0
    assert "Done: paid 5, booked for Ann.\r\n" in said
    assert terminal.has_colours
    assert [event["value"] for event in workspace.events() if event["kind"] == "input-received"] == [True, "Ann"]


def test_an_answer_that_does_not_fit_is_asked_for_again(workspace: Workspace) -> None:
    terminal = Terminal(workspace, "run", "Please rate.", "--tools", "kit:tools")
    terminal.expect("How many stars?\r\n> ")
    for typed, said in (
        ("many", "'many' is not JSON; type something like 1"),
        ("", "type something like 1"),
        ("3.5", "the value must be a JSON integer, got 3.5"),
        ("9", "the value must be at most 5, got 9"),
    ):
        terminal.send(f"{typed}\n")
        terminal.expect(said)
        terminal.expect("> ")
    terminal.send("4\n")
    code, said = terminal.wait()
    assert code == 0
    assert "Done: 4 stars." in said


def test_who_does_not_answer_can_do_it_later(workspace: Workspace) -> None:
    terminal = Terminal(workspace, "run", "Please pay.", "--tools", "kit:tools")
    terminal.expect("> ")
    terminal.send("\x04")
    code, said = terminal.wait()
    assert code == 3
    assert "go on with: rxloop resume " in said
    terminal = Terminal(workspace, "resume", "last", "--tools", "kit:tools")
    terminal.expect("> ")
    terminal.send("n\n")
    code, said = terminal.wait()
    assert code == 0
    assert "was not approved" in said


def test_a_credential_is_asked_for_and_shown_nowhere(workspace: Workspace) -> None:  # L107
    terminal = Terminal(workspace, "run", "Please enter.", "--tools", "kit:tools")
    terminal.expect("Sign in to the bank. https://bank.example/codes\r\n(it is not shown; nothing declines) > ")
    terminal.send("00724913\n")
    code, said = terminal.wait()
    assert code == 0
    assert "Done: in with 8 characters." in said
    assert "724913" not in terminal.written
    assert not any(b"724913" in path.read_bytes() for path in workspace.folder.rglob("*") if path.is_file())


def test_who_declines_a_credential_types_nothing(workspace: Workspace) -> None:  # L107
    terminal = Terminal(workspace, "run", "Please enter.", "--tools", "kit:tools")
    terminal.expect("declines) > ")
    terminal.send("\n")
    code, said = terminal.wait()
    assert code == 0
    assert "The user declined to sign in to the bank." in said


def test_a_credential_does_not_belong_on_the_command_line(workspace: Workspace) -> None:  # L107
    said = workspace.run("run", "Please enter.", "--tools", "kit:tools", code=3).output
    assert "Sign in to the bank. https://bank.example/codes" in said
    assert "go on with: rxloop resume " in said
    assert "--input" not in said
    terminal = Terminal(workspace, "resume", "last", "--tools", "kit:tools")
    terminal.expect("declines) > ")
    terminal.send("true\n")
    code, said = terminal.wait()
    assert code == 0
    assert "Done: in with 4 characters." in said


def test_an_answer_that_goes_to_a_file_has_no_colours_and_the_rest_stays_at_the_terminal(workspace: Workspace) -> None:
    with Path("answer.txt").open("wb") as file:
        weather = ("run", "Compare the weather in Oslo and Bergen.", "--tools", "kit:tools")
        terminal = Terminal(workspace, *weather, stdout=file)
        code, said = terminal.wait()
    assert code == 0
    assert Path("answer.txt").read_text(encoding="utf-8").startswith("Oslo is warmer than Bergen")
    assert terminal.has_colours
    assert "Oslo is warmer than Bergen, by 5 °C. In Oslo" not in said


def test_a_terminal_without_colours_gets_none(workspace: Workspace) -> None:
    workspace.env["NO_COLOR"] = "1"
    terminal = Terminal(workspace, "run", "2 + 2")
    _, said = terminal.wait()
    assert "completed" in said
    assert not terminal.has_colours


def test_a_chat_at_a_terminal_survives_ctrl_c_and_ends_with_ctrl_d(workspace: Workspace) -> None:
    terminal = Terminal(workspace, "chat", "--tools", "kit:tools")
    terminal.expect("> ")
    terminal.send("Please wait.\n")
    terminal.expect("wait()")
    terminal.send("\x03")
    terminal.expect("> ")
    terminal.send("2 + 2\n")
    terminal.expect("completed")
    terminal.expect("> ")
    terminal.send("\x04")
    code, said = terminal.wait()
    assert code == 0
    assert "go on with: rxloop chat --context " in said
    assert [row["state"] for row in workspace.rows()] == ["completed", "canceled"]


def test_ctrl_c_at_the_prompt_of_a_chat_leaves_it(workspace: Workspace) -> None:
    terminal = Terminal(workspace, "chat")
    terminal.expect("> ")
    terminal.press("\x03")
    code, said = terminal.wait()
    assert code == 130
    assert "Traceback" not in said


def test_a_question_is_missed_at_a_terminal(workspace: Workspace) -> None:
    code, said = Terminal(workspace, "run").wait()
    assert code == 2
    assert "there is no question" in said


def test_every_line_of_json_is_written_when_it_comes(workspace: Workspace) -> None:
    process = workspace.process("run", "Please wait.", "--tools", "kit:tools", "--json")
    lines = until(from_pipe(process.stdout), '"tool-start"').splitlines()
    assert orjson.loads(lines[0])["kind"] == "task"
    (workspace.folder / "go").touch()
    process.communicate(timeout=LIMIT)
    assert process.returncode == 0


def test_a_chat_reasons_by_the_strategy_that_it_was_given(workspace: Workspace) -> None:
    terminal = Terminal(workspace, "chat", "--strategy", "chain-of-thought")
    terminal.expect("> ")
    terminal.send("2 + 2\n")
    terminal.expect("completed")
    terminal.expect("> ")
    terminal.send("/quit\n")
    code, said = terminal.wait()
    assert code == 0
    assert "--strategy chain-of-thought" in said
    assert workspace.events()[0]["strategy"] == "chain_of_thought"


def test_a_strategy_that_does_not_exist_is_said_before_the_first_question(workspace: Workspace) -> None:
    code, said = Terminal(workspace, "chat", "--strategy", "magic").wait()
    assert code == 2
    assert "there is no strategy 'magic'" in said


def test_ctrl_c_before_the_first_token_cancels(workspace: Workspace) -> None:
    # Whoever calls is let in, and gets no answer.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1#m"
        terminal = Terminal(workspace, "run", "Hi", "--model", url)
        while "waiting for the model" not in "".join(terminal.statuses):
            terminal.expect_output()
        terminal.send("\x03")
        code, said = terminal.wait()
    assert code == 130
    assert "cancelled" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("stream", ["<&-", ">&-", "2>&-"])
def test_a_stream_that_is_closed_from_the_beginning_is_no_matter(workspace: Workspace, stream: str) -> None:
    done = workspace.shell(f'rxloop run "2 + 2" {stream}')
    assert done.returncode == 0
    assert b"Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    "line",
    ["protocol", "models --json", "strategies", "doctor", "export last", "show last", "--help"],
)
def test_head_gets_its_line_and_nothing_is_said(workspace: Workspace, line: str) -> None:
    workspace.run("run", "2 + 2")
    done = workspace.shell(f"rxloop {line} | head -1")
    assert done.stdout.count(b"\n") == 1
    assert done.stderr.count(b"\n") <= 1
    assert b"Traceback" not in done.stderr


def test_a_full_disk_is_one_line(workspace: Workspace) -> None:
    done = workspace.shell("rxloop models > /dev/full")
    assert done.returncode == 1
    assert done.stderr == b"rxloop: reading or writing failed: No space left on device\n"


def test_a_question_in_another_encoding_is_taken_as_far_as_it_can_be_read(workspace: Workspace) -> None:
    done = workspace.shell("rxloop run $'caf\\xe9 2 + 2'")
    assert done.returncode == 0
    assert workspace.rows()[0]["question"] == "caf\ufffd 2 + 2"


@pytest.mark.parametrize("env", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}])
def test_a_terminal_that_knows_no_umlauts_gets_something_like_them_and_loses_nothing(
    workspace: Workspace, env: dict[str, str]
) -> None:
    workspace.env |= {"PYTHONUTF8": "0", **env}
    done = workspace.shell("rxloop run 'Compare the weather in Oslo and Bergen. (café)' --tools kit:get_weather")
    assert done.returncode == 0
    assert b"Oslo is warmer than Bergen, by 5 'C." in done.stdout
    assert b'> get_weather(city="Oslo")' in done.stderr
    (done.stdout + done.stderr).decode("ascii")
    assert workspace.rows()[0]["question"] == "Compare the weather in Oslo and Bergen. (café)"


def test_what_is_typed_in_a_chat_keeps_its_umlauts_in_any_terminal(workspace: Workspace) -> None:
    workspace.env |= {"PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    terminal = Terminal(workspace, "chat")
    terminal.expect("> ")
    terminal.send("café 2 + 2\n")
    terminal.expect("completed")
    terminal.expect("> ")
    terminal.send("\x04")
    assert terminal.wait()[0] == 0
    assert workspace.rows()[0]["question"] == "café 2 + 2"


def test_what_is_no_text_is_refused_with_the_place_of_it(workspace: Workspace) -> None:
    done = workspace.shell("printf 'abc\\xff' | rxloop run")
    assert done.returncode == 2
    assert done.stderr == b"rxloop: stdin is not UTF-8 text: byte 0xff at 3; convert it first, as iconv does\n"


def test_a_tool_that_fails_is_a_line_with_its_place_and_no_traceback(workspace: Workspace) -> None:
    (workspace.folder / "broken.py").write_text(
        'def get_weather(city: str) -> str:\n    """The weather in a city."""\n    raise RuntimeError("no service")\n'
    )
    done = workspace.shell("rxloop run 'Weather in Oslo?' --tools broken:get_weather")
    assert done.returncode == 0
    assert b"! Tool get_weather failed: RuntimeError: no service (" in done.stderr
    assert b"broken.py, line 3)\n" in done.stderr
    assert b"Traceback" not in done.stderr
