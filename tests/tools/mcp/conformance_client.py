"""Client program for the MCP conformance suite: `conformance_client.py URL`.

A scripted agent calls all tools of the server, or those requested by the suite.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from rxloop import Agent, Limits
from rxloop.pipeline.requests import ToolDefinition
from rxloop.testing import ScriptedModel, call
from rxloop.tools.mcp import mcp

SAMPLES: dict[str, Any] = {"integer": 5, "number": 3, "string": "x", "boolean": True, "array": [], "object": {}}


def make_arguments(tool: ToolDefinition, offered: tuple[ToolDefinition, ...]) -> dict[str, Any]:
    properties: dict[str, Any] = tool.parameters.get("properties", {})
    values = {name: field.get("default", SAMPLES.get(field.get("type"), "x")) for name, field in properties.items()}
    if tool.name == "json_schema_echo":
        # The suite expects the schema of its other tool.
        values["schema"] = next(each.parameters for each in offered if each.name != tool.name)
    return values


async def main(url: str) -> None:
    context: dict[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    probe = ScriptedModel("Listed.")
    async with Agent(probe, tools=[mcp(url, prefix="")], thoughts=False) as agent:
        await agent.run("What is there?")
        offered = probe.requests[0].tools
        calls = [call(each["name"], **each.get("arguments", {})) for each in context.get("toolCalls", ())]
        calls = calls or [call(tool.name, **make_arguments(tool, offered)) for tool in offered]
        model = ScriptedModel(*calls, "done")
        await agent.run(
            "Go.", model=model, on_input=lambda question: {}, limits=Limits(iterations=100, tool_failures=None)
        )


asyncio.run(main(sys.argv[-1]))
