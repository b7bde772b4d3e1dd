"""Signals, pipes, terminals and missing packages, tested with a separate process."""

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


def read_until(read: Callable[[], bytes], text: str) -> str:
    """Read output until it contains a text."""
    got = b""
    while text not in got.decode(errors="replace"):
        more = read()
        assert more, got.decode(errors="replace")
        got += more
    return got.decode(errors="replace")


def make_reader(pipe: IO[bytes] | None) -> Callable[[], bytes]:
    assert pipe is not None
    return lambda: os.read(pipe.fileno(), 4096)


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    return subprocess.run(
        command, env=env, capture_output=True, text=True, check=False, timeout=LIMIT, stdin=subprocess.DEVNULL
    )


@pytest.mark.parametrize(
    ("missing", "command"), [("typer", "runs"), ("rich", "runs"), ("platformdirs", "runs"), ("packaging", "doctor")]
)
def test_command_names_the_missing_extra(missing: str, command: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from rxloop.cli import main; main()"
    done = run_python(code, command)
    assert done.returncode == 1
    assert done.stderr == f'The command needs {missing}, which is not installed: pip install "rxloop[cli]"\n'


def test_help_and_piped_chats_do_not_import_packages_for_screens() -> None:
    code = (
        "import sys; sys.modules['prompt_toolkit'] = None; from rxloop.cli.app import app; "
        "app(sys.argv[1:], standalone_mode=False); print('rich' in sys.modules)"
    )
    assert run_python(code, "--help").stdout.splitlines()[-1] == "False"
    chat = run_python(code, "chat", "--model", "ollama:none", "--no-log")
    assert "ollama:none; /help lists commands and keys" in chat.stderr


def test_missing_core_package_is_not_reported_as_a_missing_extra() -> None:
    done = run_python("import sys; sys.modules['pydantic'] = None; from rxloop.cli import main; main()")
    assert "rxloop[cli]" not in done.stderr


def test_version_option_prints_the_package_version(workspace: Workspace) -> None:
    process = workspace.process("--version")
    out, err = process.communicate(timeout=LIMIT)
    assert re.fullmatch(rb"rxloop \d+\.\d+\S*\n", out)
    assert (err, process.returncode) == (b"", 0)


def test_piped_question_writes_only_the_answer_to_stdout(workspace: Workspace) -> None:
    process = workspace.process("run")
    out, err = process.communicate(b"Please pay.\n", timeout=LIMIT)
    assert (out.count(b"\n"), process.returncode) == (1, 0)
    assert b"completed" in err
    assert b"\x1b" not in out + err


def test_invalid_usage_exits_with_code_2(workspace: Workspace) -> None:
    process = workspace.process("run", "--nonsense")
    _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 2
    assert b"--nonsense" in err


def start_run(workspace: Workspace, question: str, tool: str) -> subprocess.Popen[bytes]:
    """Start a run and wait until its tool is active."""
    process = workspace.process("run", question, "--tools", "kit:tools", stdin=subprocess.DEVNULL)
    # The tool prints this. Previous events are stored at this point.
    read_until(make_reader(process.stderr), f"… {tool}: begun\n")
    return process


def test_ctrl_c_cancels_the_run_and_prints_the_resume_command(workspace: Workspace) -> None:
    process = start_run(workspace, "Please wait.", "wait")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 130
    assert out.decode() == "Let me see. \n"
    assert re.search(r"\ncancelled · 1 model call · 1 tool call · .*\n", err.decode())
    assert "Traceback" not in err.decode()
    [row] = workspace.rows()
    assert row["state"] == "canceled"
    (workspace.folder / "go").touch()
    arguments = shlex.split(err.decode().splitlines()[-1].removeprefix("continue with: rxloop "))
    workspace.run(*arguments)
    assert [row["state"] for row in workspace.rows()] == ["completed"]


def test_second_ctrl_c_exits_immediately_and_the_run_can_be_resumed(workspace: Workspace) -> None:
    process = start_run(workspace, "Please resist.", "resist")
    process.send_signal(signal.SIGINT)
    read_until(make_reader(process.stderr), "cancelling; press Ctrl-C again to exit immediately\n")
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=LIMIT)
    assert time.monotonic() - started < 2
    assert (process.returncode, err) == (130, b"exited without waiting\n")
    workspace.run("resume", "last", "--tools", "kit:tools")
    assert workspace.rows()[0]["state"] == "completed"


def test_killed_run_can_be_resumed(workspace: Workspace) -> None:
    process = start_run(workspace, "Please wait.", "wait")
    process.kill()
    process.communicate(timeout=LIMIT)
    [row] = workspace.rows("--unfinished")
    assert row["state"] == "working"
    (workspace.folder / "go").touch()
    workspace.run("resume", row["taskId"][-6:], "--tools", "kit:tools")
    assert [row["state"] for row in workspace.rows()] == ["completed"]


def test_show_follows_a_run_of_another_process(workspace: Workspace) -> None:
    process = start_run(workspace, "Please wait.", "wait")
    follower = workspace.process("show", "last", "--follow")
    output = read_until(make_reader(follower.stdout), "→ wait()\n")
    (workspace.folder / "go").touch()
    output += follower.communicate(timeout=LIMIT)[0].decode()
    process.communicate(timeout=LIMIT)
    assert follower.returncode == process.returncode == 0
    assert output.splitlines()[2:] == workspace.run("show", "last").stdout.splitlines()[2:]


def test_closed_pipe_ends_the_run_silently(workspace: Workspace) -> None:
    process = workspace.process("run", "Please wait.", "--tools", "kit:tools", "--json", stdin=subprocess.DEVNULL)
    read_until(make_reader(process.stdout), '"tool-start"')
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    (workspace.folder / "go").touch()
    _, err = process.communicate(timeout=LIMIT)
    assert (process.returncode, err) == (1, b"")
    assert workspace.rows()[0]["state"] == "canceled"


def test_question_is_asked_on_the_terminal(workspace: Workspace) -> None:
    terminal = Terminal(workspace, "run", "Please pay and book.", "--tools", "kit:tools")
    terminal.expect("(yes or no)\r\n> ")
    terminal.send("maybe\n")
    terminal.expect("the answer must be yes or no\r\n> ")
    terminal.send("yes\n")
    terminal.expect("In whose name?\r\n> ")
    terminal.send("Ann\n")
    code, output = terminal.wait()
    assert code == 0
    assert "Done: paid 5, booked for Ann.\r\n" in output
    assert "".join(terminal.screen()).count("Call pay with amount: 5?") == 1
    assert terminal.has_colours
    assert [event["value"] for event in workspace.events() if event["kind"] == "input-received"] == [True, "Ann"]


def test_question_is_repeated_after_an_invalid_answer(workspace: Workspace) -> None:
    terminal = Terminal(workspace, "run", "Please rate.", "--tools", "kit:tools")
    terminal.expect("How many stars?\r\n> ")
    for answer, output in (
        ("many", "'many' is not JSON; example: 1"),
        ("", "example: 1"),
        ("3.5", "the value must be a JSON integer, got 3.5"),
        ("9", "the value must be at most 5, got 9"),
    ):
        terminal.send(f"{answer}\n")
        terminal.expect(output)
        terminal.expect("> ")
    terminal.send("4\n")
    code, output = terminal.wait()
    assert code == 0
    assert "Done: 4 stars." in output


def test_unanswered_run_can_be_resumed_later(workspace: Workspace) -> None:
    terminal = Terminal(workspace, "run", "Please pay.", "--tools", "kit:tools")
    terminal.expect("> ")
    terminal.send("\x04")
    code, output = terminal.wait()
    assert code == 3
    assert "continue with: rxloop resume " in output
    terminal = Terminal(workspace, "resume", "last", "--tools", "kit:tools")
    terminal.expect("> ")
    terminal.send("n\n")
    code, output = terminal.wait()
    assert code == 0
    assert "was not approved" in output


def test_credential_is_requested_and_never_shown(workspace: Workspace) -> None:  # L107
    terminal = Terminal(workspace, "run", "Please enter.", "--tools", "kit:tools")
    terminal.expect("Sign in to the bank. https://bank.example/codes\r\n(hidden input; press Enter to decline) > ")
    terminal.send("00724913\n")
    code, output = terminal.wait()
    assert code == 0
    assert "Done: in with 8 characters." in output
    assert "724913" not in terminal.written
    assert not any(b"724913" in path.read_bytes() for path in workspace.folder.rglob("*") if path.is_file())


def test_empty_input_declines_a_credential(workspace: Workspace) -> None:  # L107
    terminal = Terminal(workspace, "run", "Please enter.", "--tools", "kit:tools")
    terminal.expect("to decline) > ")
    terminal.send("\n")
    code, output = terminal.wait()
    assert code == 0
    assert "The user declined to sign in to the bank." in output


def test_resume_command_does_not_suggest_a_credential_as_an_option(workspace: Workspace) -> None:  # L107
    output = workspace.run("run", "Please enter.", "--tools", "kit:tools", code=3).output
    assert "Sign in to the bank. https://bank.example/codes" in output
    assert "continue with: rxloop resume " in output
    assert "--input" not in output
    terminal = Terminal(workspace, "resume", "last", "--tools", "kit:tools")
    terminal.expect("to decline) > ")
    terminal.send("true\n")
    code, output = terminal.wait()
    assert code == 0
    assert "Done: in with 4 characters." in output


def test_redirected_answer_has_no_colours_and_other_output_stays_on_the_terminal(workspace: Workspace) -> None:
    with Path("answer.txt").open("wb") as file:
        weather = ("run", "Compare the weather in Oslo and Bergen.", "--tools", "kit:tools")
        terminal = Terminal(workspace, *weather, stdout=file)
        code, output = terminal.wait()
    assert code == 0
    assert Path("answer.txt").read_text(encoding="utf-8").startswith("Oslo is warmer than Bergen")
    assert terminal.has_colours
    assert "Oslo is warmer than Bergen, by 5 °C. In Oslo" not in output


def test_terminal_without_colours_gets_plain_text(workspace: Workspace) -> None:
    workspace.env["NO_COLOR"] = "1"
    terminal = Terminal(workspace, "run", "2 + 2")
    _, output = terminal.wait()
    assert "completed" in output
    assert not terminal.has_colours


def test_run_without_a_question_on_a_terminal_is_an_error(workspace: Workspace) -> None:
    code, output = Terminal(workspace, "run").wait()
    assert code == 2
    assert "no question given" in output


def test_json_lines_are_flushed_immediately(workspace: Workspace) -> None:
    process = workspace.process("run", "Please wait.", "--tools", "kit:tools", "--json", stdin=subprocess.DEVNULL)
    lines = read_until(make_reader(process.stdout), '"tool-start"').splitlines()
    assert orjson.loads(lines[0])["kind"] == "task"
    (workspace.folder / "go").touch()
    process.communicate(timeout=LIMIT)
    assert process.returncode == 0


def test_chat_reports_an_unknown_strategy_before_the_first_question(workspace: Workspace) -> None:
    code, output = Terminal(workspace, "chat", "--strategy", "magic").wait()
    assert code == 2
    assert "unknown strategy 'magic'" in output


def test_ctrl_c_before_the_first_token_cancels_the_run(workspace: Workspace) -> None:
    # The server accepts connections without responding.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1#m"
        terminal = Terminal(workspace, "run", "Hi", "--model", url)
        while "waiting for the model" not in "".join(terminal.statuses):
            terminal.expect_output()
        terminal.send("\x03")
        code, output = terminal.wait()
    assert code == 130
    assert "cancelled" in output
    assert "Traceback" not in output


@pytest.mark.parametrize("stream", ["<&-", ">&-", "2>&-"])
def test_command_runs_with_closed_standard_streams(workspace: Workspace, stream: str) -> None:
    done = workspace.shell(f'rxloop run "2 + 2" {stream}')
    assert done.returncode == 0
    assert b"Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    "line",
    ["export last", "show last"],
)
def test_output_to_head_ends_without_an_error(workspace: Workspace, line: str) -> None:
    workspace.run("run", "2 + 2")
    done = workspace.shell(f"rxloop {line} | head -1")
    assert done.stdout.count(b"\n") == 1
    assert done.stderr.count(b"\n") <= 1
    assert b"Traceback" not in done.stderr


def test_full_disk_is_reported_on_one_line(workspace: Workspace) -> None:
    done = workspace.shell("rxloop models > /dev/full")
    assert done.returncode == 1
    assert done.stderr == b"rxloop: input or output failed: No space left on device\n"


def test_invalid_bytes_of_a_question_are_replaced(workspace: Workspace) -> None:
    done = workspace.shell("rxloop run $'caf\\xe9 2 + 2'")
    assert done.returncode == 0
    assert workspace.rows()[0]["question"] == "caf\ufffd 2 + 2"


@pytest.mark.parametrize("env", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}])
def test_unsupported_characters_are_replaced_in_the_output_only(workspace: Workspace, env: dict[str, str]) -> None:
    workspace.env |= {"PYTHONUTF8": "0", **env}
    done = workspace.shell("rxloop run 'Compare the weather in Oslo and Bergen. (café)' --tools kit:get_weather")
    assert done.returncode == 0
    assert b"Oslo is warmer than Bergen, by 5 'C." in done.stdout
    assert b'> get_weather(city="Oslo")' in done.stderr
    (done.stdout + done.stderr).decode("ascii")
    assert workspace.rows()[0]["question"] == "Compare the weather in Oslo and Bergen. (café)"


def test_invalid_utf_8_on_stdin_is_rejected_with_its_position(workspace: Workspace) -> None:
    done = workspace.shell("printf 'abc\\xff' | rxloop run")
    assert done.returncode == 2
    assert done.stderr == b"rxloop: stdin must be UTF-8 text, got byte 0xff at 3; convert it with iconv\n"


def test_tool_failure_is_reported_with_its_location_and_without_a_traceback(workspace: Workspace) -> None:
    (workspace.folder / "broken.py").write_text(
        'def get_weather(city: str) -> str:\n    """The weather in a city."""\n    raise RuntimeError("no service")\n'
    )
    done = workspace.shell("rxloop run 'Weather in Oslo?' --tools broken:get_weather")
    assert done.returncode == 0
    assert b"! Tool get_weather failed: RuntimeError: no service (" in done.stderr
    assert b"broken.py, line 3)\n" in done.stderr
    assert b"Traceback" not in done.stderr
