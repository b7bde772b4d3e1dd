"""Run over AG-UI with the official client."""

from __future__ import annotations

import pytest

from rxloop import Agent
from rxloop.testing import ScriptedModel, frames
from support.clients.agui import node, serve_agui

pytestmark = pytest.mark.service("node-clients")


async def test_answer_is_streamed_to_the_client() -> None:
    agent = Agent(ScriptedModel(frames("It -is -7 C.|", 0.001)), thoughts=False, name="clerk")
    async with node() as clients, serve_agui(agent) as served:
        stream = (await clients.agent(served.url, "t1").send("Weather?")).check()
    assert stream.messages[-1]["content"] == "It is 7 C."
