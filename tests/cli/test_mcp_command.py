"""`rxloop mcp` as a process, over its pipes and by HTTP."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from support.cli_workspace import SOURCE, Workspace

LIMIT = 30


def message(number: int | None, method: str, **params: Any) -> bytes:
    told: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
    return json.dumps(told if number is None else {**told, "id": number}).encode() + b"\n"


def thought(number: int, text: str = "So.", **fields: Any) -> bytes:
    arguments = {"thought": text, "nextThoughtNeeded": True, "thoughtNumber": number, "totalThoughts": 3, **fields}
    return message(number, "tools/call", name="sequentialthinking", arguments=arguments)


CLIENT = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
HELLO = message(0, "initialize", **CLIENT) + message(None, "notifications/initialized")


def answers(out: bytes) -> dict[int, dict[str, Any]]:
    """The answers by the ids of their requests; every line has to be one."""
    told = [json.loads(line) for line in out.splitlines()]
    assert all(each["jsonrpc"] == "2.0" for each in told)
    return {each["id"]: each["result"] for each in told}


def lengths(out: bytes) -> list[int]:
    """How long the history was with each thought, in the order of the thoughts."""
    told = sorted((number, each) for number, each in answers(out).items() if number)
    return [each["structuredContent"]["thoughtHistoryLength"] for _, each in told]


def talk(workspace: Workspace, given: bytes, *options: str, **env: str) -> tuple[bytes, str]:
    """What the server says over stdout and stderr until its stdin has ended."""
    workspace.env |= env
    process = workspace.process("mcp", "sequential-thinking", *options)
    out, err = process.communicate(given, timeout=LIMIT)
    assert process.returncode == 0, err
    text = err.decode()
    assert "Traceback" not in text
    return out, text


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A folder for the command, with no model: none is called."""
    monkeypatch.chdir(tmp_path)
    return Workspace(tmp_path, "http://127.0.0.1:9/v1")


def test_what_came_before_the_end_is_answered_and_thoughts_are_boxes_on_stderr(alone: Workspace) -> None:
    out, err = talk(
        alone,
        HELLO + b"".join(thought(number, f"number {number}") for number in range(1, 51)).rstrip(),
        DISABLE_THOUGHT_LOGGING="1",
    )
    assert lengths(out) == list(range(1, 51))
    # T22
    assert "💭 Thought 50/50" in err
    assert "│ number 50 " in err
    assert "\x1b" not in err


def test_what_is_no_message_is_passed_over_and_the_log_can_be_turned_off(alone: Workspace) -> None:
    garbage = b"\n   \nhello\n{\n[]\nnull\n\xff\xfe\x00\n" + b'{"jsonrpc": "2.0"}\n{"id": 9}\n' + b"x" * 200_000 + b"\n"
    halves = thought(2, "\ud800", branchFromThought=1, branchId="\udc00")
    out, err = talk(alone, garbage + HELLO + thought(1) + garbage + halves, DISABLE_THOUGHT_LOGGING="True")
    assert lengths(out) == [1, 2]
    assert answers(out)[2]["structuredContent"]["branches"] == ["\ufffd"]
    # T22
    assert err == ""


def test_with_nothing_to_do_the_server_ends(alone: Workspace) -> None:
    assert talk(alone, b"") == (b"", "")


def test_a_stderr_that_nobody_reads_holds_nothing_up(alone: Workspace) -> None:
    process = alone.process("mcp", "sequential-thinking")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(HELLO + b"".join(thought(number, "long " * 300) for number in range(1, 201)))
    process.stdin.flush()
    told = [json.loads(process.stdout.readline()) for _ in range(201)]
    assert sorted(each["id"] for each in told) == list(range(201))
    process.communicate(timeout=LIMIT)
    assert process.returncode == 0


def test_an_interrupt_is_quiet(alone: Workspace) -> None:
    process = alone.process("mcp", "sequential-thinking")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(HELLO)
    process.stdin.flush()
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    # Stdin stays open: nothing but the signal ends the process.
    assert process.wait(LIMIT) == 130
    _, err = process.communicate()
    assert err == b""


def test_a_client_that_leaves_without_reading_is_no_error(alone: Workspace) -> None:
    process = alone.process("mcp", "sequential-thinking")
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate(HELLO + thought(1), timeout=LIMIT)
    assert process.returncode == 0
    assert b"Traceback" not in err


def test_a_session_with_a_name_goes_on_after_a_restart(alone: Workspace) -> None:
    kept = ("--session", "plan", "--path", "thoughts.db")
    first, _ = talk(alone, HELLO + thought(1, "one") + thought(2, "two", branchFromThought=1, branchId="b"), *kept)
    history = message(4, "tools/call", name="thinking_history", arguments={})
    wrong = thought(5, isRevision=True, revisesThought=77)
    again, _ = talk(alone, HELLO + thought(3, "three") + history + wrong, *kept, "--strict")
    assert answers(first)[2]["structuredContent"]["sessionId"] == "plan"
    # T41
    told = answers(again)[3]["structuredContent"]
    assert (told["thoughtHistoryLength"], told["branches"], told["sessionId"]) == (3, ["b"], "plan")
    assert [each["thought"] for each in answers(again)[4]["structuredContent"]["thoughts"]] == ["one", "two", "three"]
    assert "dangling_revision" in answers(again)[5]["content"][0]["text"]


async def test_the_official_client_gets_along_with_it(alone: Workspace) -> None:
    command = StdioServerParameters(
        command=sys.executable, args=["-m", "rxloop", "mcp", "sequential-thinking"], env=alone.env
    )
    with (alone.folder / "log").open("w") as log:
        async with Client(stdio_client(command, errlog=log)) as client:
            for number in (1, 2):
                arguments = {"thought": "a", "nextThoughtNeeded": True, "thoughtNumber": number, "totalThoughts": 2}
                result = await client.call_tool("sequentialthinking", arguments)
    assert result.structured_content is not None
    assert result.structured_content["thoughtHistoryLength"] == 2


def listening(workspace: Workspace, *options: str) -> tuple[subprocess.Popen[bytes], str]:
    """A server by HTTP, and its URL, which it says when it listens."""
    process = workspace.process("mcp", "sequential-thinking", "--http", "--port", "0", *options)
    assert process.stderr is not None
    line = process.stderr.readline().decode()
    found = re.fullmatch(r"(http://127\.0\.0\.1:\d+/mcp)\n", line)
    assert found is not None, line
    return process, found[1]


async def test_by_http_the_server_says_where_it_is_and_ends_when_it_is_interrupted(alone: Workspace) -> None:
    alone.env["DISABLE_THOUGHT_LOGGING"] = "true"
    process, url = listening(alone)
    async with Client(url) as one, Client(url) as other:
        for client in (one, other, one):
            arguments = {"thought": "a", "nextThoughtNeeded": True, "thoughtNumber": 1, "totalThoughts": 2}
            result = await client.call_tool("sequentialthinking", arguments)
        assert result.structured_content is not None
        assert result.structured_content["thoughtHistoryLength"] == 2
        # Two clients are there still.
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT) == 130
    out, err = process.communicate()
    assert (out, err) == (b"", b"")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--path", "a.db"], "--path keeps a session for later, and later it needs a name: add --session NAME"),
        (["--session", " "], "--session is blank: give it a name, or leave it out"),
        (["--session", "a\nb"], "session='a\\nb' has a line end or another control character in it"),
        (["--ttl", "0"], "--ttl 0: give more than 0 seconds, or leave it out"),
        (["--http", "--host", "203.0.113.1"], "cannot listen on 203.0.113.1, port 8000: "),
    ],
)
def test_options_that_do_not_go_together_are_said_in_one_line(alone: Workspace, options: list[str], told: str) -> None:
    result = alone.run("mcp", "sequential-thinking", *options, code=2)
    assert told in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_file_that_cannot_be_used_is_said_at_the_beginning(alone: Workspace) -> None:
    result = alone.run("mcp", "sequential-thinking", "--path", "none/a.db", "--session", "a", code=1)
    assert "none/a.db" in result.stderr
    assert result.stderr.count("\n") == 1


def test_the_help_tells_what_can_be_served(alone: Workspace) -> None:
    assert "sequential-thinking" in alone.run("mcp", "--help").output


def test_without_the_extra_the_command_names_it() -> None:
    code = "import sys; sys.modules['mcp_types'] = None; from rxloop.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "mcp", "sequential-thinking"],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )
    assert done.returncode == 2
    assert done.stderr == "rxloop: the MCP server needs mcp, which is not installed: pip install 'rxloop[mcp]'\n"
