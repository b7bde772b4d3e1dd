"""Answers of the model to sampling requests of MCP servers."""

from __future__ import annotations

from typing import Any

import mcp_types as types
import pytest

from rxloop import Agent, RunContext, tool
from rxloop.testing import ScriptedModel, call, turn
from rxloop.tools.mcp.client_requests import sample


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("stop", "endTurn"),
        ("pause", "endTurn"),
        ("length", "maxTokens"),
        ("content_filter", "content_filter"),
        ("unknown", "unknown"),
    ],
)
async def test_stop_reason_of_a_sample_says_how_the_message_ended(finish: str, reason: str) -> None:  # P15
    @tool
    async def ask(ctx: RunContext[Any]) -> str | None:
        """Send a sampling request."""
        text = types.TextContent(type="text", text="Rhyme.")
        message = types.SamplingMessage(role="user", content=text)
        result = await sample(ctx, types.CreateMessageRequestParams(messages=[message], max_tokens=9), 20, 1)
        assert isinstance(result, types.CreateMessageResult)
        return result.stop_reason

    model = ScriptedModel(call("ask"), turn("Roses are", finish_reason=finish), "Done.")
    result = await Agent(model, tools=[ask], thoughts=False).run("?")
    assert result.messages[2].text == reason
