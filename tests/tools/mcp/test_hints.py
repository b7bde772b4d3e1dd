"""Use of tool hints from a server."""

from typing import Any

import mcp_types as types
import pytest

from rxloop.pipeline.requests import ToolDefinition
from rxloop.tools.mcp.options import parse_options
from rxloop.tools.mcp.tool import MCPTool


def make_tool(*, read_only: bool | None, open_world: bool | None) -> MCPTool:
    unused: Any = None
    definition = ToolDefinition(name="look", description="Looks.", parameters={})
    hints = types.ToolAnnotations(read_only_hint=read_only, open_world_hint=open_world)
    return MCPTool(unused, parse_options("shop", {}), "look", definition, hints, None)


@pytest.mark.parametrize("open_world", [True, None])
def test_read_only_tool_with_an_open_world_is_idempotent_but_not_started_early(open_world: bool | None) -> None:
    tool = make_tool(read_only=True, open_world=open_world)
    assert tool.idempotent
    assert not tool.read_only


def test_read_only_tool_with_a_closed_world_may_start_early() -> None:
    assert make_tool(read_only=True, open_world=False).read_only
    assert not make_tool(read_only=None, open_world=False).read_only
