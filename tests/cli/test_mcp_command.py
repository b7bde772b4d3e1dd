"""`rxloop mcp` with pipes and HTTP, tested with a separate process."""

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


def make_message(number: int | None, method: str, **params: Any) -> bytes:
    fields: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
    return json.dumps(fields if number is None else {**fields, "id": number}).encode() + b"\n"


def make_thought(number: int, text: str = "So.", **fields: Any) -> bytes:
    arguments = {"thought": text, "nextThoughtNeeded": True, "thoughtNumber": number, "totalThoughts": 3, **fields}
    return make_message(number, "tools/call", name="sequentialthinking", arguments=arguments)


CLIENT = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
HELLO = make_message(0, "initialize", **CLIENT) + make_message(None, "notifications/initialized")


def parse_responses(out: bytes) -> dict[int, dict[str, Any]]:
    """Return responses by request id, requiring a response on every line."""
    responses = [json.loads(line) for line in out.splitlines()]
    assert all(each["jsonrpc"] == "2.0" for each in responses)
    return {each["id"]: each["result"] for each in responses}


def find_history_lengths(out: bytes) -> list[int]:
    """Return the history length after each thought."""
    responses = sorted((number, each) for number, each in parse_responses(out).items() if number)
    return [each["structuredContent"]["thoughtHistoryLength"] for _, each in responses]


def exchange(workspace: Workspace, data: bytes, *options: str, **env: str) -> tuple[bytes, str]:
    """Return stdout and stderr of a server that receives the given input."""
    workspace.env |= env
    process = workspace.process("mcp", "sequential-thinking", *options)
    out, err = process.communicate(data, timeout=LIMIT)
    assert process.returncode == 0, err
    text = err.decode()
    assert "Traceback" not in text
    return out, text


@pytest.fixture
def empty_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """Workspace without a model."""
    monkeypatch.chdir(tmp_path)
    return Workspace(tmp_path, "http://127.0.0.1:9/v1")


def test_requests_before_the_end_of_stdin_are_answered_and_thoughts_are_printed_to_stderr(
    empty_workspace: Workspace,
) -> None:
    out, err = exchange(
        empty_workspace,
        HELLO + b"".join(make_thought(number, f"number {number}") for number in range(1, 51)).rstrip(),
        DISABLE_THOUGHT_LOGGING="1",
    )
    assert find_history_lengths(out) == list(range(1, 51))
    # T22
    assert "💭 Thought 50/50" in err
    assert "│ number 50 " in err
    assert "\x1b" not in err


def test_strategies_add_a_tool(empty_workspace: Workspace) -> None:
    options = ("--strategy", "react", "--strategy", "rewoo")
    out, _ = exchange(empty_workspace, HELLO + make_message(1, "tools/list"), *options)
    tools = {tool["name"]: tool for tool in parse_responses(out)[1]["tools"]}
    assert tools["strategic_thinking"]["inputSchema"]["properties"]["strategy"]["enum"] == ["react", "rewoo"]


def test_invalid_message_is_skipped_and_the_thought_log_can_be_disabled(empty_workspace: Workspace) -> None:
    garbage = b"\n   \nhello\n{\n[]\nnull\n\xff\xfe\x00\n" + b'{"jsonrpc": "2.0"}\n{"id": 9}\n' + b"x" * 200_000 + b"\n"
    halves = make_thought(2, "\ud800", branchFromThought=1, branchId="\udc00")
    out, err = exchange(
        empty_workspace, garbage + HELLO + make_thought(1) + garbage + halves, DISABLE_THOUGHT_LOGGING="True"
    )
    assert find_history_lengths(out) == [1, 2]
    assert parse_responses(out)[2]["structuredContent"]["branches"] == ["\ufffd"]
    # T22
    assert err == ""


def test_server_ends_with_empty_stdin(empty_workspace: Workspace) -> None:
    assert exchange(empty_workspace, b"") == (b"", "")


def test_blocked_stderr_does_not_delay_responses(empty_workspace: Workspace) -> None:
    process = empty_workspace.process("mcp", "sequential-thinking")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(HELLO + b"".join(make_thought(number, "long " * 300) for number in range(1, 201)))
    process.stdin.flush()
    responses = [json.loads(process.stdout.readline()) for _ in range(201)]
    assert sorted(each["id"] for each in responses) == list(range(201))
    process.communicate(timeout=LIMIT)
    assert process.returncode == 0


def test_interrupt_prints_nothing(empty_workspace: Workspace) -> None:
    process = empty_workspace.process("mcp", "sequential-thinking")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(HELLO)
    process.stdin.flush()
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    # Stdin remains open, so that only the signal ends the process.
    assert process.wait(LIMIT) == 130
    _, err = process.communicate()
    assert err == b""


def test_client_that_disconnects_without_reading_causes_no_error(empty_workspace: Workspace) -> None:
    process = empty_workspace.process("mcp", "sequential-thinking")
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate(HELLO + make_thought(1), timeout=LIMIT)
    assert process.returncode == 0
    assert b"Traceback" not in err


def test_named_session_continues_after_a_restart(empty_workspace: Workspace) -> None:
    options = ("--session", "plan", "--path", "thoughts.db")
    first, _ = exchange(
        empty_workspace,
        HELLO + make_thought(1, "one") + make_thought(2, "two", branchFromThought=1, branchId="b"),
        *options,
    )
    history = make_message(4, "tools/call", name="thinking_history", arguments={})
    wrong = make_thought(5, isRevision=True, revisesThought=77)
    again, _ = exchange(empty_workspace, HELLO + make_thought(3, "three") + history + wrong, *options, "--strict")
    assert parse_responses(first)[2]["structuredContent"]["sessionId"] == "plan"
    # T41
    content = parse_responses(again)[3]["structuredContent"]
    assert (content["thoughtHistoryLength"], content["branches"], content["sessionId"]) == (3, ["b"], "plan")
    assert [each["thought"] for each in parse_responses(again)[4]["structuredContent"]["thoughts"]] == [
        "one",
        "two",
        "three",
    ]
    assert "dangling_revision" in parse_responses(again)[5]["content"][0]["text"]


async def test_official_client_can_use_the_server(empty_workspace: Workspace) -> None:
    command = StdioServerParameters(
        command=sys.executable, args=["-m", "rxloop", "mcp", "sequential-thinking"], env=empty_workspace.env
    )
    with (empty_workspace.folder / "log").open("w") as log:
        async with Client(stdio_client(command, errlog=log)) as client:
            for number in (1, 2):
                arguments = {"thought": "a", "nextThoughtNeeded": True, "thoughtNumber": number, "totalThoughts": 2}
                result = await client.call_tool("sequentialthinking", arguments)
    assert result.structured_content is not None
    assert result.structured_content["thoughtHistoryLength"] == 2


def start_http_server(workspace: Workspace, *options: str) -> tuple[subprocess.Popen[bytes], str]:
    """Yield an HTTP server and the URL that it prints."""
    process = workspace.process("mcp", "sequential-thinking", "--http", "--port", "0", *options)
    assert process.stderr is not None
    line = process.stderr.readline().decode()
    match = re.fullmatch(r"(http://127\.0\.0\.1:\d+/mcp)\n", line)
    assert match is not None, line
    return process, match[1]


async def test_http_server_prints_its_url_and_ends_on_an_interrupt(empty_workspace: Workspace) -> None:
    empty_workspace.env["DISABLE_THOUGHT_LOGGING"] = "true"
    process, url = start_http_server(empty_workspace)
    async with Client(url) as one, Client(url) as other:
        for client in (one, other, one):
            arguments = {"thought": "a", "nextThoughtNeeded": True, "thoughtNumber": 1, "totalThoughts": 2}
            result = await client.call_tool("sequentialthinking", arguments)
        assert result.structured_content is not None
        assert result.structured_content["thoughtHistoryLength"] == 2
        # Two clients are still connected.
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT) == 130
    out, err = process.communicate()
    assert (out, err) == (b"", b"")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--path", "a.db"], "--path requires a session name; add --session NAME"),
        (["--session", " "], "--session must not be blank"),
        (["--session", "a\nb"], "session='a\\nb' has a line end or another control character in it"),
        (["--strategy", "socratic"], "'socratic'"),
        (["--ttl", "0"], "--ttl must be a positive number of seconds, got 0"),
        (["--http", "--host", "203.0.113.1"], "cannot listen on 203.0.113.1, port 8000: "),
    ],
)
def test_incompatible_options_are_reported_on_one_line(
    empty_workspace: Workspace, options: list[str], expected: str
) -> None:
    result = empty_workspace.run("mcp", "sequential-thinking", *options, code=2)
    assert expected in result.stderr
    assert result.stderr.count("\n") == 1


def test_unusable_file_is_reported_at_startup(empty_workspace: Workspace) -> None:
    result = empty_workspace.run("mcp", "sequential-thinking", "--path", "none/a.db", "--session", "a", code=1)
    assert "none/a.db" in result.stderr
    assert result.stderr.count("\n") == 1


def test_help_lists_the_server_commands(empty_workspace: Workspace) -> None:
    assert "sequential-thinking" in empty_workspace.run("mcp", "--help").output


def test_command_names_the_missing_extra() -> None:
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
