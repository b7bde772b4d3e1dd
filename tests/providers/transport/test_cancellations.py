"""Runs over sockets, cancelled at random. No connection stays checked out with any transport."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections import Counter
from collections.abc import Callable

import pytest

from rxloop import Agent, tool
from rxloop.errors import RunCancelled
from rxloop.pipeline.interfaces import Provider
from rxloop.providers import HTTPModel, Retry, fallback, hedge, limited
from support.http_server import Reply, Server, active_connections, chat_model, delta, sse, text_reply
from support.run_checks import other_tasks, wait_until

pytestmark = pytest.mark.usefixtures("transport")

# If the task is cancelled instead of its scope, one run in thirty leaks a connection. Set RXLOOP_CANCELLED=1500 for
# more runs.
RUNS, AT_ONCE = int(os.environ.get("RXLOOP_CANCELLED", "300")), 50
WRAPPED: dict[str, Callable[[HTTPModel, HTTPModel], Provider]] = {
    "hedge": lambda first, second: hedge(first, second, after=0),
    "limited": lambda first, _: limited(first, concurrent=1),
    "fallback": fallback,
}
FUNCTION = {"index": 0, "id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
CALL = Reply(sse(delta(role="assistant", tool_calls=[FUNCTION]), delta("tool_calls")))


@tool
async def look() -> str:
    """Look."""
    await asyncio.sleep(0)
    return "seen"


@pytest.mark.timeout(300)
async def test_cancelled_runs_release_all_connections(server: Server) -> None:
    server.answer(*[CALL, text_reply(*["word "] * 10), text_reply("Hello ", end="hang", finished=False)] * (2 * RUNS))
    provider = chat_model(server, retry=Retry(first=0))
    agent = Agent(provider, tools=[look])
    chance = random.Random(8)
    ended = Counter[str]()

    async def run_once() -> None:
        run = agent.run("Go.")
        waiting = asyncio.ensure_future(run.result())
        for _ in range(chance.randrange(60)):
            await asyncio.sleep(0)
        run.cancel()
        try:
            result = await waiting
        except RunCancelled as error:
            result = error.result
        ended[f"{result.state} after {result.messages[-1].role}"] += 1

    async with asyncio.timeout(280):
        for _ in range(0, RUNS, AT_ONCE):
            await asyncio.gather(*(run_once() for _ in range(AT_ONCE)))
        await wait_until(lambda: not other_tasks() - server.tasks)
    assert active_connections(provider) == []
    # Cancelled before the answer, between two requests, or after the end.
    assert len(+(ended - Counter(dict.fromkeys(ended, RUNS // 75)))) >= 3
    await answers_once_more(agent, server)
    await provider.aclose()
    async with asyncio.timeout(5):
        await server.all_closed.wait()


async def answers_once_more(agent: Agent[None, str], server: Server) -> None:
    server.answer(*[text_reply("Hello")] * (len(server.requests) + 1))
    assert (await agent.run("Go.")).output == "Hello"


@pytest.mark.parametrize("wrapped", WRAPPED)
async def test_combined_models_release_their_connections(server: Server, wrapped: str) -> None:
    server.answer(text_reply(*["word "] * 10), text_reply("Hello ", end="hang", finished=False))
    providers = [chat_model(server), chat_model(server)]
    agent = Agent(WRAPPED[wrapped](*providers))
    for number in range(40):
        run = agent.run("Go.")
        async for event in run:
            if event.kind == "content-delta":
                break
        run.cancel()
        with contextlib.suppress(RunCancelled):
            await run
        del run
        assert [active_connections(provider) for provider in providers] == [[], []], number
    await answers_once_more(agent, server)
    for provider in providers:
        await provider.aclose()
    async with asyncio.timeout(5):
        await server.all_closed.wait()


async def test_sequential_runs_share_one_connection(server: Server) -> None:
    server.answer(*[CALL, text_reply("Hello ", "you.")] * 50)
    provider = chat_model(server)
    agent = Agent(provider, tools=[look])
    for _ in range(50):
        assert (await agent.run("Go.")).output == "Hello you."
    assert (server.connections, len(server.requests)) == (1, 100)
    await provider.aclose()
