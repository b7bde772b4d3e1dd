"""Parsing of client tool results."""

import pytest
from ag_ui.core import ToolMessage

from rxloop.server.agui.requests import parse_result


@pytest.mark.parametrize(
    ("content", "error", "result"),
    [
        ('{"shown": true}', None, {"shown": True}),
        ("", "closed", {"error": "closed"}),
        ("the door is 7", "closed", {"error": "closed\nthe door is 7"}),
        ("closed", "closed", {"error": "closed"}),
    ],
)
def test_error_of_a_client_tool_keeps_its_content(content: str, error: str | None, result: object) -> None:  # P6
    message = ToolMessage(id="m", role="tool", tool_call_id="c", content=content, error=error)
    assert parse_result(message) == result
