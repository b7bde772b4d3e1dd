"""MCP servers of the `--mcp` option."""

from __future__ import annotations

import sys
from pathlib import Path

import orjson
import pytest

from rxloop.cli.agent_loader import AgentOptions
from rxloop.errors import ConfigurationError
from rxloop.tools.mcp.options import Http, Stdio
from support.cli_workspace import Workspace

SHOP = Path(__file__).parents[1] / "support/mcp_servers/shop.py"


def test_mcp_option_accepts_a_command_a_url_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text('{"mcpServers": {"a": {"command": "x"}, "b": {"url": "https://b.example/mcp"}}}')
    options = AgentOptions(mcp=["npx -y 'some server'", "https://c.example/mcp", str(file)])
    servers = options._make_servers()
    addresses = [getattr(server, "address", None) for server in servers]
    assert addresses == [
        Stdio("npx", ("-y", "some server")),
        Http("https://c.example/mcp"),
        Stdio("x"),
        Http("https://b.example/mcp"),
    ]
    assert "--mcp https://c.example/mcp" in options.to_flags()
    with pytest.raises(ConfigurationError, match="cannot parse the command"):
        AgentOptions(mcp=["npx 'x"])._make_servers()
    with pytest.raises(ConfigurationError, match="--mcp cannot be used with --agent"):
        AgentOptions(agent="a:b", mcp=["x"]).make()


def test_tools_of_the_server_are_offered(workspace: Workspace) -> None:
    done = workspace.run("run", "Why?", "--mcp", f"{sys.executable} {SHOP}", "--json")
    events = [orjson.loads(line) for line in done.stdout.splitlines()]
    counts = [event["toolCount"] for event in events if event["kind"] == "llm-call"]
    assert counts[0] > 8


def test_unavailable_server_is_reported_and_the_run_completes(workspace: Workspace) -> None:
    done = workspace.run("run", "Why?", "--mcp", "no-such-program-0451")
    assert "! no tools from no-such-program-0451: mcp no-such-program-0451 is not available: " in done.stderr
    assert "completed" in done.stderr
