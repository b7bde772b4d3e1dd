"""Official MCP conformance suite for servers, with agents as tools."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from support.processes.services import MCP_SERVERS

SERVER = Path(__file__).with_name("conformance_server.py")
NOT_FOR_AGENTS = Path(__file__).with_name("not_for_agents.yml")


@pytest.mark.service("mcp-conformance")
@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_server_passes_all_scenarios_for_agents(version: str, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipe = asyncio.subprocess.PIPE
    server = await asyncio.create_subprocess_exec(sys.executable, str(SERVER), stdout=pipe, env=env)
    assert server.stdout is not None
    try:
        url = (await server.stdout.readline()).decode().strip()
        packages = MCP_SERVERS / "node_modules"
        suite = await asyncio.create_subprocess_exec(
            str(packages / "node/bin/node"),
            str(packages / "@modelcontextprotocol/conformance/dist/index.js"),
            *("server", "--url", url, "--suite", "all", "--spec-version", version),
            *("--expected-failures", str(NOT_FOR_AGENTS)),
            stdout=pipe,
            stderr=asyncio.subprocess.STDOUT,
            cwd=tmp_path,
        )
        output, _ = await suite.communicate()
    finally:
        server.kill()
        await server.wait()
    text = output.decode()
    assert suite.returncode == 0, text[text.find("=== SUMMARY") :]
    assert "tools-call-elicitation" in text or version == "2026-07-28"
