"""Fair scheduling of the requests of MCP clients."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rxloop import Agent, ModelRequest, tool
from rxloop.server.core.account import Account
from rxloop.server.core.request_slots import LARGE_BODY, SHARE, RequestSlots
from rxloop.testing import ScriptedModel, call
from support.clients.mcp import ERAS, accept, result_text, serve_mcp

each_protocol = pytest.mark.parametrize("mode", ERAS)


@each_protocol
async def test_requests_wait_for_a_slot_of_their_principal(mode: str) -> None:
    agent = Agent(ScriptedModel("Hello."), thoughts=False, name="clerk")
    async with asyncio.timeout(20), serve_mcp(agent, users=True) as endpoint:
        log = endpoint.runtime.log.local
        async with endpoint.client(mode, token="ann-key") as ann, log.get(RequestSlots).acquire("bob"):
            async with log.get(RequestSlots).acquire("ann", LARGE_BODY):
                listing = asyncio.create_task(ann.list_tools())
                calling = asyncio.create_task(ann.call_tool("clerk", {"prompt": "Hi"}))
                while log.get(Account).count("ann", "requests") < SHARE:  # noqa: ASYNC110
                    await asyncio.sleep(0)
                done, _ = await asyncio.wait([listing, calling], timeout=0.1)
                assert not done
            assert (await listing).tools
            assert result_text(await calling) == "Hello."


@each_protocol
async def test_calls_that_wait_for_runs_and_forms_hold_no_slots(mode: str) -> None:
    everyone = asyncio.Barrier(SHARE + 2)

    @tool(approve=True)
    async def meet() -> str:
        """Wait until all runs have called this tool."""
        await everyone.wait()
        return "met"

    def answer(request: ModelRequest) -> Any:
        return "Hello." if request.messages[-1].role == "tool" else call("meet")

    agent = Agent(ScriptedModel(*[answer] * 12), tools=[meet], thoughts=False, name="clerk")
    async with serve_mcp(agent, users=True) as endpoint, asyncio.timeout(20):
        async with (
            endpoint.client(mode, accept(answer=True), token="ann-key") as ann,
            endpoint.client(mode, accept(answer=True), token="bob-key") as bob,
        ):
            clients = [bob, *[ann] * (SHARE + 1)]
            results = await asyncio.gather(*(each.call_tool("clerk", {"prompt": "Hi"}) for each in clients))
    assert [result_text(each) for each in results] == ["Hello."] * (SHARE + 2)
