"""Official MCP conformance suite, with an agent as the client."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from support.processes.services import MCP_SERVERS

CLIENT = Path(__file__).with_name("conformance_client.py")
SCENARIOS = [
    "initialize",
    "tools_call",
    "elicitation-sep1034-client-defaults",
    "sse-retry",
    "request-metadata",
    "sep-2322-client-request-state",
    "http-standard-headers",
    "http-custom-headers",
    "http-invalid-tool-headers",
    "json-schema-ref-no-deref",
    "json-schema-2020-12-preservation",
]


@pytest.mark.service("mcp-conformance")
@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_client_passes_scenario(scenario: str, tmp_path: Path) -> None:
    packages = MCP_SERVERS / "node_modules"
    process = await asyncio.create_subprocess_exec(
        str(packages / "node/bin/node"),
        str(packages / "@modelcontextprotocol/conformance/dist/index.js"),
        "client",
        "--command",
        f"{sys.executable} {CLIENT}",
        "--scenario",
        scenario,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
