"""Every run that the grammar knows, through the official client: it accepts the stream, and has what the log has.

`RXLOOP_AGUI_RUNS=1000` tries that many; by default there are 15.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from itertools import groupby
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from rxloop import Limits, Message
from rxloop.errors import ConflictError
from rxloop.protocol.events import PendingInput
from rxloop.providers.script import Frames
from rxloop.recorded.replay import history
from rxloop.server.agui.requests import value_of
from rxloop.testing import call, turn
from support.clients.agui import AgUiEndpoint, Client, ClientResult, Node, node, serve_agui
from support.faulty_components import PLANTED
from support.random_runs import FRAME, SHOW_MAP, InterruptedAnswer, RandomRun, random_run, send_message

pytestmark = pytest.mark.service("node-clients")

RUNS = int(os.environ.get("RXLOOP_AGUI_RUNS", "15"))
ROUNDS = 6
"""How often a run is answered, before nobody asks any more."""


@pytest.fixture(scope="module")
def loop() -> Generator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def clients(loop: asyncio.Runner) -> Generator[Node]:
    stack = AsyncExitStack()
    yield loop.run(stack.enter_async_context(node()))
    loop.run(stack.aclose())


def answer_to(kind: RandomRun, interrupt: dict[str, Any]) -> dict[str, Any]:
    about = interrupt["metadata"]["rxloop"]
    question = PendingInput(
        input_id="", prompt=interrupt["message"], input_kind=about["kind"], options=about.get("options")
    )
    return {"interruptId": interrupt["id"], "status": "resolved", "payload": kind.answer(question)}


async def meddle(kind: RandomRun, served: AgUiEndpoint) -> None:
    """Do from elsewhere what is to be done to the run in the middle."""
    number = 0
    async for event in served.runtime.events:
        number += 1
        if number == kind.cancel_after:
            with suppress(ConflictError):
                await served.runtime.cancel(event.root_task_id, "enough")
        elif number == kind.send_after:
            await send_message(served.runtime, event.root_task_id)


async def answered(kind: RandomRun, client: Client, told: ClientResult) -> ClientResult:
    """Answer what a run asks, until it is over."""
    for _ in range(ROUNDS):
        told.check()
        outcome = told.last.get("outcome", {})
        pending = outcome.get("pendingToolCallIds", [])
        waits = [each["id"] for each in outcome.get("interrupts", [])]
        if told.last["type"] == "RUN_FINISHED":
            assert [each["id"] for each in told.pendingInterrupts] == waits
        if not pending and not waits:
            return told
        content = '{"error": "no map here"}' if kind.declines else '{"shown": true}'
        results = [
            {"id": f"{call}-by-hand", "role": "tool", "toolCallId": call, "content": content} for call in pending
        ]
        resume = [answer_to(kind, each) for each in outcome.get("interrupts", [])]
        more: dict[str, Any] = {"resume": resume} if resume else {}
        told = await client.run(say=results, tools=[SHOW_MAP], **more)
    return told


def shape(messages: list[Message]) -> list[Any]:
    """The history of the log, in short."""
    return in_call_order(
        [
            (each.role, each.text, [(call.name, call.raw or "{}") for call in each.tool_calls])
            for each in messages
            if each.role != "system"
            # What has nothing but reasoning is no message of its own for a client.
            and (each.role != "assistant" or each.text or each.tool_calls)
        ]
    )


def written(text: str) -> str:
    """A result in one form, since a client may have written its JSON otherwise."""
    return orjson.dumps(value_of(text)).decode()


def in_call_order(messages: list[Any]) -> list[Any]:
    """Messages with the results of each batch in one order: a client has them as they come."""
    made: list[Any] = []
    for tools, batch in groupby(messages, key=lambda message: message[0] == "tool"):
        together = list(batch)
        made += sorted(((role, written(text), calls) for role, text, calls in together)) if tools else together
    return made


def shape_of_client(messages: list[dict[str, Any]]) -> list[Any]:
    """The conversation that a client has, in short: without reasoning, activities and nested agents."""
    return in_call_order(
        [
            (
                each["role"],
                each.get("content", ""),
                [(call["function"]["name"], call["function"]["arguments"]) for call in each.get("toolCalls", [])],
            )
            for each in messages
            if each["role"] in ("user", "assistant", "tool") and "subagentRunId" not in each
        ]
    )


def lasting(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a client has that comes back; the results of its own tools have ids of its own, wherever it puts them."""
    results: dict[str, list[Any]] = {}
    for each in messages:
        if each["role"] == "tool":
            made = {**each, "id": "", "content": written(each["content"])}
            results.setdefault(each["toolCallId"], []).append(made)
    lasting: list[dict[str, Any]] = []
    for each in messages:
        if each["role"] != "tool" and each.get("activityType") != "rxloop.tool-progress":
            lasting.append(each)
            for call in each.get("toolCalls", []):
                lasting += results.pop(call["id"], [])
    assert results == {}
    return lasting


def by_agent(messages: list[dict[str, Any]], kind: RandomRun) -> list[dict[str, Any]]:
    """Messages in an order that the log tells: without deltas it has those of agents side by side as they end."""
    if kind.keeps_deltas:
        return messages
    return sorted(messages, key=lambda message: message.get("subagentRunId", ""))


def same(found: list[Any], expected: list[Any]) -> None:
    """See that two lists are the same; says where they are not."""
    for place, (one, other) in enumerate(zip(found, expected, strict=False)):
        assert one == other, f"at {place}: {one!r} is not {other!r}"
    assert len(found) == len(expected), f"{found[len(expected) :]!r} is there, {expected[len(found) :]!r} is not"


async def check(kind: RandomRun, clients: Node) -> None:
    log = kind.log()
    async with serve_agui(kind.agent(), log=log) as served:
        meddling = asyncio.create_task(meddle(kind, served))
        client = clients.agent(served.url, "t")
        try:
            told = await answered(kind, client, await client.send("Go.", tools=[SHOW_MAP]))
        finally:
            meddling.cancel()
            await asyncio.wait([meddling])
        [record] = await log.list_runs(context_id="t")
        stored = await history(log, "t", public=True)
        fresh = (await clients.agent(served.url, "t").connect()).check()
        again = (await client.connect()).check()
        assert PLANTED not in str(told)
        assert PLANTED not in str(fresh)
        same(lasting(again.messages), lasting(fresh.messages))
        if "metadata" not in told.last:
            # It was cancelled while it waited, and then got an answer.
            assert told.last["code"] == "not_waiting", told.last
        # Otherwise it was cancelled after that, when nobody read it.
        elif told.last["metadata"]["rxloop"]["cursor"] == fresh.last["metadata"]["rxloop"]["cursor"]:
            same(by_agent(lasting(fresh.messages), kind), by_agent(lasting(told.messages), kind))
            if record.state == "completed":
                same(shape_of_client(lasting(told.messages)), shape(stored))


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
"""Has something of every kind."""


@pytest.mark.parametrize("keeps_deltas", [True, False])
def test_the_official_client_accepts_a_run_that_is_cancelled_at_any_event(
    keeps_deltas: bool, loop: asyncio.Runner, clients: Node
) -> None:
    # All places where there is time for it, and otherwise some of them.
    for place in range(1, 150, max(1, 500 // RUNS)):
        loop.run(check(replace(RICH, cancel_after=place, keeps_deltas=keeps_deltas), clients))


# Not shrunk: each try takes a server.
@settings(
    max_examples=RUNS,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@given(kind=random_run())
def test_the_official_client_accepts_every_run(kind: RandomRun, loop: asyncio.Runner, clients: Node) -> None:
    loop.run(check(kind, clients))
