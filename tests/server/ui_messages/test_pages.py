"""A page with `useChat` of the AI SDK, by its official packages, over a real server."""

from __future__ import annotations

from typing import Any

import pytest

from rxloop import Agent, RunContext, client_tool, tool
from rxloop.testing import ScriptedModel, call, frames
from ui_pages import parts_of, site, text_of

pytestmark = pytest.mark.service("node-clients")


@tool
async def weather(city: str) -> dict[str, Any]:
    """Current weather."""
    return {"city": city, "celsius": 7}


@tool(approve=True)
async def refund(order: str) -> str:
    """Refund an order."""
    return f"refunded {order}"


def agent(*turns: Any, **options: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(*turns), tools=[weather, refund], name="clerk", **options)


async def test_a_page_shows_text_and_tool_calls_as_one_message_whose_id_is_the_run() -> None:
    async with site(agent(call("weather", city="Oslo"), frames("-It is -7 C.|", 0.001))) as made:
        page = await made.page()
        shown = await page.send("Weather?")
        [run] = await made.runtime.log.runs()
    assert shown["status"] == "ready"
    assert [message["role"] for message in shown["messages"]] == ["user", "assistant"]
    message = shown["messages"][-1]
    assert message["id"] == run.task_id
    assert message["metadata"]["rxloop"]["state"] == "completed"
    assert text_of(shown) == "It is7 C."
    [part] = parts_of(shown, "dynamic-tool")
    assert (part["toolName"], part["state"], part["input"]) == ("weather", "output-available", {"city": "Oslo"})
    assert part["output"] == {"city": "Oslo", "celsius": 7}
    assert shown["finished"] == [{"finishReason": "stop", "isError": False, "isDisconnect": False}]
