"""Early tool calls of failed messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from reactivex import Observable

from rxloop import Agent, ContentDeltaEvent, Event, MemoryEventLog, ModelRequest, ToolCallDeltaEvent, op, tool
from rxloop.errors import ContextLengthExceeded
from rxloop.stream.sources import from_async_iter
from rxloop.testing import call, turn
from support.clients.agui import node, serve_agui
from support.random_runs import Model

pytestmark = pytest.mark.service("node-clients")


@tool(read_only=True, idempotent=True)
async def look(n: int) -> str:
    """Look."""
    return f"seen {n}"


class FailingModel(Model):
    """Model with a failing first message."""

    def call(self, request: ModelRequest) -> Observable[Event]:
        if request.pressure or request.step != "1":
            return super().call(request)

        async def answer() -> AsyncIterator[Event]:
            yield ContentDeltaEvent(delta="So ", index=0)
            yield ToolCallDeltaEvent(index=0, tool_call_id="a", name="look", fragment='{"n": 1}')
            yield ToolCallDeltaEvent(index=1, tool_call_id="b", name="look", fragment='{"n": 9')
            await asyncio.sleep(0.01)
            raise ContextLengthExceeded("too long")

        return from_async_iter(answer, request.ctx, name="failing-model")


@pytest.mark.parametrize("keep_deltas", [True, False])
@pytest.mark.parametrize("calls", [[], [call("look", "a", n=2)], [call("look", "a", n=2), call("look", "b", n=3)]])
async def test_results_of_a_failed_message_are_removed(calls: list[Any], keep_deltas: bool) -> None:
    def answer_request(request: ModelRequest) -> Any:
        return "Done." if any(message.role == "tool" for message in request.messages) else turn("Well.", calls=calls)

    agent = Agent(
        FailingModel(answer_request), tools=[look], thoughts=False, name="clerk", loop=op.standard(early=True)
    )
    log = MemoryEventLog(keep_deltas=keep_deltas)
    async with node() as clients, serve_agui(agent, log=log) as served:
        stream = (await clients.agent(served.url, "t").send("Go.")).check()
        fresh = (await clients.agent(served.url, "t").connect()).check()
        [record] = await log.list_runs()
        assert "tool-voided" in [event.kind for event in await log.read(record.task_id)]
    assert "seen 1" not in str(stream.messages)
    assert [each["content"] for each in stream.messages if each["role"] == "tool"] == [
        f"seen {n + 2}" for n in range(len(calls))
    ]
    assert fresh.messages == stream.messages
