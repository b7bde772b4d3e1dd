"""What the hints of a server make of its tools."""

from typing import Any

import mcp_types as types
import pytest

from rxloop.pipeline.requests import ToolDefinition
from rxloop.tools.mcp.options import taken
from rxloop.tools.mcp.tool import MCPTool


def with_hints(*, reads: bool | None, open_world: bool | None) -> MCPTool:
    unused: Any = None
    definition = ToolDefinition(name="look", description="Looks.", parameters={})
    hints = types.ToolAnnotations(read_only_hint=reads, open_world_hint=open_world)
    return MCPTool(unused, taken("shop", {}), "look", definition, hints, None)


@pytest.mark.parametrize("open_world", [True, None])
def test_a_tool_that_looks_out_into_the_world_may_be_repeated_but_not_started_early(open_world: bool | None) -> None:
    tool = with_hints(reads=True, open_world=open_world)
    assert tool.idempotent
    assert not tool.read_only


def test_a_tool_that_only_reads_what_the_server_has_may_start_early() -> None:
    assert with_hints(reads=True, open_world=False).read_only
    assert not with_hints(reads=None, open_world=False).read_only
