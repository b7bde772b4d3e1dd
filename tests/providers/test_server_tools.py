"""Server tools are sent only to their own vendor."""

from __future__ import annotations

from typing import Any

import pytest

from rxloop.providers.codecs.fields import split_tools

CLAUDES: list[dict[str, Any]] = [
    {"type": "web_search_20250305", "name": "web_search"},
    {"type": "bash_20250124", "name": "bash"},
    {"type": "mcp_toolset", "mcp_server_name": "s"},
]
OPENAIS: list[dict[str, Any]] = [
    {"type": "web_search"},
    {"type": "web_search_preview_2025_03_11"},
    {"type": "file_search", "vector_store_ids": ["v"]},
    {"type": "mcp", "server_label": "s"},
]
NEW: list[dict[str, Any]] = [{"type": "time_machine"}, {"type": "custom", "name": "own"}, {"name": "own"}]
GOOGLES: list[dict[str, Any]] = [{"googleSearch": {}}]


@pytest.mark.parametrize("tool", [*CLAUDES, *NEW])
def test_claude_gets_its_own_and_unknown_tools(tool: dict[str, Any]) -> None:
    assert split_tools([tool], "anthropic") == ([tool], [])


@pytest.mark.parametrize("tool", [*OPENAIS, *NEW])
def test_openai_gets_its_own_and_unknown_tools(tool: dict[str, Any]) -> None:
    assert split_tools([tool], "openai") == ([tool], [])


@pytest.mark.parametrize("tool", [*OPENAIS, *GOOGLES])
def test_claude_gets_no_tool_of_another_vendor(tool: dict[str, Any]) -> None:
    own, told = split_tools([tool], "anthropic")
    assert own == []
    assert told == [f"the tool {tool.get('type', 'googleSearch')!r} of another vendor"]


@pytest.mark.parametrize("tool", [*CLAUDES, *GOOGLES])
def test_openai_gets_no_tool_of_another_vendor(tool: dict[str, Any]) -> None:
    assert split_tools([tool], "openai")[0] == []


@pytest.mark.parametrize("kind", [None, 7, [], {}])
def test_any_type_is_accepted(kind: Any) -> None:
    assert split_tools([{"type": kind}], "openai") == ([{"type": kind}], [])
