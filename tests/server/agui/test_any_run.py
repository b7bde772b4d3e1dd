"""Generated runs with the official client, which must accept the stream and show the messages of the log.

`RXLOOP_AGUI_RUNS` sets the number of runs (default: 15).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from rxloop import Limits
from rxloop.providers.script import Frames
from rxloop.recorded.replay import history
from rxloop.testing import call, turn
from support.api_server import TRUSTED
from support.clients.agui import Client, ClientResult, Node, node, serve_agui
from support.clients.agui_threads import (
    answer_interrupt,
    assert_equal,
    client_shape,
    disturb,
    log_shape,
    stable_messages,
)
from support.faulty_components import PLANTED
from support.processes.services import CLIENTS, COPILOTKIT
from support.random_runs import FRAME, SHOW_MAP, InterruptedAnswer, RandomRun, random_run

pytestmark = pytest.mark.service("node-clients")

RUNS = int(os.environ.get("RXLOOP_AGUI_RUNS", "15"))
ROUNDS = 6
"""Maximum number of answers per run."""


@pytest.fixture(scope="module")
def loop() -> Generator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module", params=[CLIENTS, COPILOTKIT], ids=["1.0", "before-1.0"])
def clients(loop: asyncio.Runner, request: pytest.FixtureRequest) -> Generator[Node]:
    stack = AsyncExitStack()
    yield loop.run(stack.enter_async_context(node(request.param)))
    loop.run(stack.aclose())


async def answer_all(kind: RandomRun, client: Client, stream: ClientResult) -> ClientResult:
    for _ in range(ROUNDS):
        stream.check()
        outcome = stream.last.get("outcome", {})
        pending = stream.pending_calls("show_map")
        interrupt_ids = [each["id"] for each in outcome.get("interrupts", [])]
        if stream.last["type"] == "RUN_FINISHED":
            assert [each["id"] for each in stream.pendingInterrupts] == interrupt_ids
        if not pending and not interrupt_ids:
            return stream
        content = '{"error": "no map here"}' if kind.declines else '{"shown": true}'
        results = [
            {"id": f"{call}-by-hand", "role": "tool", "toolCallId": call, "content": content} for call in pending
        ]
        resume = [answer_interrupt(kind, each) for each in outcome.get("interrupts", [])]
        options: dict[str, Any] = {"resume": resume} if resume else {}
        stream = await client.run(say=results, tools=[SHOW_MAP], **options)
    return stream


def sort_by_agent(messages: list[dict[str, Any]], kind: RandomRun) -> list[dict[str, Any]]:
    """Sort messages by agent. A log without deltas contains parallel agents in order of completion."""
    if kind.keeps_deltas:
        return messages
    return sorted(messages, key=lambda message: message.get("subagentRunId", ""))


async def check(kind: RandomRun, clients: Node) -> None:
    log = kind.log()
    async with serve_agui(kind.agent(), log=log, auth=TRUSTED) as served:
        disturbing = asyncio.create_task(disturb(kind, served))
        client = clients.agent(served.url, "t")
        try:
            stream = await answer_all(kind, client, await client.send("Go.", tools=[SHOW_MAP]))
        finally:
            disturbing.cancel()
            await asyncio.wait([disturbing])
        [record] = await log.list_runs(context_id="t")
        stored = await history(log, "t", public=True)
        fresh = (await clients.agent(served.url, "t").connect()).check()
        again = (await client.connect()).check()
        assert PLANTED not in str(stream)
        assert PLANTED not in str(fresh)
        assert_equal(stable_messages(again.messages), stable_messages(fresh.messages))
        if "metadata" not in stream.last:
            # The cancel arrived before the answer, or at the same time.
            assert stream.last["code"] in ("not_waiting", "conflict"), stream.last
            assert record.state == "canceled"
        # Otherwise, the run was canceled after the stream ended.
        elif stream.last["metadata"]["rxloop"]["cursor"] == fresh.last["metadata"]["rxloop"]["cursor"]:
            assert_equal(
                sort_by_agent(stable_messages(fresh.messages), kind),
                sort_by_agent(stable_messages(stream.messages), kind),
            )
            if record.state == "completed":
                assert_equal(client_shape(stable_messages(stream.messages)), log_shape(stored))


RICH = RandomRun(
    turns=(
        turn(
            Frames(("So", "-", "!", "|"), FRAME),
            calls=[
                call("work", "0"),
                call("child", "0", prompt="deep ask"),
                call("planted_secret", "0", planted=PLANTED),
                call("show_map", "0", city="Oslo"),
            ],
            reasoning="Let me\nsee.",
        ),
        InterruptedAnswer("Hm.", "So ", turn("Well.", calls=[call("child", "0", prompt="stumble"), call("muse", "0")])),
        turn(Frames(("a", "-", "b", "|"), FRAME), calls=[call("sure", "0")]),
    ),
    last=turn(Frames(tuple("D-o-n-e-.|"), FRAME), reasoning="Is it?"),
    limits=Limits(tool_failures=None),
)
"""Run containing all event kinds."""


@pytest.mark.parametrize("keeps_deltas", [True, False])
def test_official_client_accepts_a_run_that_is_cancelled_at_any_event(
    keeps_deltas: bool, loop: asyncio.Runner, clients: Node
) -> None:
    # Check every position in long test runs and a sample in short ones.
    for index in range(1, 150, max(1, 500 // RUNS)):
        loop.run(check(replace(RICH, cancel_after=index, keeps_deltas=keeps_deltas), clients))


# Examples are not shrunk because each one starts a server.
@settings(
    max_examples=RUNS,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@given(kind=random_run())
def test_official_client_accepts_generated_runs(kind: RandomRun, loop: asyncio.Runner, clients: Node) -> None:
    loop.run(check(kind, clients))
