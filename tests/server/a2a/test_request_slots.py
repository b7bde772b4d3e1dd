"""Fair scheduling of the requests of A2A clients."""

from __future__ import annotations

import asyncio

from rxloop import Agent
from rxloop.server.core.account import Account
from rxloop.server.core.request_slots import LARGE_BODY, SHARE, RequestSlots
from rxloop.testing import ScriptedModel
from support.clients.a2a import message_request, read_task, serve_a2a


async def test_requests_wait_for_a_slot_of_their_principal_without_losing_their_body() -> None:
    agent = Agent(ScriptedModel(*["Hello."] * SHARE), thoughts=False, name="clerk")
    async with asyncio.timeout(20), serve_a2a(agent) as served:
        log = served.runtime.log.local
        async with served.client(streaming=False) as ann, log.get(RequestSlots).acquire("bob"):
            async with log.get(RequestSlots).acquire("ann", LARGE_BODY):
                calls = [asyncio.create_task(read_task(ann.send_message(message_request()))) for _ in range(SHARE)]
                while log.get(Account).count("ann", "requests") < SHARE:  # noqa: ASYNC110 (no notification exists)
                    await asyncio.sleep(0)
                done, _ = await asyncio.wait(calls, timeout=0.1)
                assert not done
            tasks = await asyncio.gather(*calls)
    assert [task.artifacts[0].parts[0].text for task in tasks] == ["Hello."] * SHARE
