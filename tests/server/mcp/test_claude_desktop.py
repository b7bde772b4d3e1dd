"""The configuration of Claude Desktop in the documents starts a server that works."""

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
"""Where the document has the file with the agent."""


def written(language: str, with_word: str) -> str:
    """The block of the document in which a word stands."""
    blocks: list[str] = re.findall(rf"```{language}\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    return next(block for block in blocks if with_word in block)


async def test_the_command_of_the_document_serves_the_agent_of_the_document(tmp_path: Path) -> None:
    (tmp_path / "travel.py").write_text(written("python", "planner = Agent("), encoding="utf-8")
    configuration: Any = json.loads(written("json", "planner").replace(FOLDER, str(tmp_path)))
    [server] = configuration["mcpServers"].values()
    assert set(server) == {"command", "args", "env"}
    # The desktop has no environment of ours: the key of the document is none, so the offline model answers.
    beside = {"HOME": str(tmp_path), "PYTHONPATH": str(SOURCE), "PATH": f"{Path(sys.executable).parent}:{os.defpath}"}
    command = StdioServerParameters(command=server["command"], args=server["args"], env=beside, cwd="/")
    with (tmp_path / "log").open("w") as log:
        async with Client(stdio_client(command, errlog=log)) as client:
            assert [each.name for each in (await client.list_tools()).tools] == ["planner", "continue_run"]
            result = await client.call_tool("planner", {"prompt": "What is 17 * 23?"})
    assert not result.is_error
    assert "391" in str(result.content[0])
