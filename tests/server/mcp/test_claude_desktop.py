"""Documented configuration of Claude Desktop."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from support.cli_workspace import SOURCE

DOCUMENT = Path(__file__).parents[3] / "docs/mcp.md"
FOLDER = "/home/ann/agents"
"""Folder in the documented configuration."""


def find_block(language: str, word: str) -> str:
    """Return the first code block that contains the word."""
    blocks: list[str] = re.findall(rf"```{language}\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    return next(block for block in blocks if word in block)


async def test_documented_command_serves_the_documented_agent(tmp_path: Path) -> None:
    (tmp_path / "travel.py").write_text(find_block("python", "planner = Agent("), encoding="utf-8")
    configuration: Any = json.loads(find_block("json", "planner").replace(FOLDER, str(tmp_path)))
    [server] = configuration["mcpServers"].values()
    assert set(server) == {"command", "args", "env"}
    # The desktop does not pass our environment. The key in the document is invalid, so the offline model answers.
    environment = {
        "HOME": str(tmp_path),
        "PYTHONPATH": str(SOURCE),
        "PATH": f"{Path(sys.executable).parent}:{os.defpath}",
    }
    command = StdioServerParameters(command=server["command"], args=server["args"], env=environment, cwd="/")
    with (tmp_path / "log").open("w") as log:
        async with Client(stdio_client(command, errlog=log)) as client:
            assert [each.name for each in (await client.list_tools()).tools] == ["planner", "continue_run"]
            result = await client.call_tool("planner", {"prompt": "What is 17 * 23?"})
    assert not result.is_error
    assert "391" in str(result.content[0])
