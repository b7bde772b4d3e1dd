"""Generated runs through the official client, which must accept the stream and have the messages of the log.

`RXLOOP_AGUI_RUNS=1000` sets the number of runs, which is 15 by default.
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
"""Maximum number of answers per run."""


@pytest.fixture(scope="module")
def loop() -> Generator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def clients(loop: asyncio.Runner) -> Generator[Node]:
    stack = AsyncExitStack()
    yield loop.run(stack.enter_async_context(node()))
    loop.run(stack.aclose())


def answer_interrupt(kind: RandomRun, interrupt: dict[str, Any]) -> dict[str, Any]:
    about = interrupt["metadata"]["rxloop"]
    question = PendingInput(
        input_id="", prompt=interrupt["message"], input_kind=about["kind"], options=about.get("options")
    )
    return {"interruptId": interrupt["id"], "status": "resolved", "payload": kind.answer(question)}


async def disturb(kind: RandomRun, served: AgUiEndpoint) -> None:
    """Cancel the run or send messages to it at the generated event."""
    number = 0
    async for event in served.runtime.events:
        number += 1
        if number == kind.cancel_after:
            with suppress(ConflictError):
                await served.runtime.cancel(event.root_task_id, "enough")
        elif number == kind.send_after:
            await send_message(served.runtime, event.root_task_id)


async def answer_all(kind: RandomRun, client: Client, stream: ClientResult) -> ClientResult:
    """Answer the questions of a run until it ends."""
    for _ in range(ROUNDS):
        stream.check()
        outcome = stream.last.get("outcome", {})
        pending = outcome.get("pendingToolCallIds", [])
        waits = [each["id"] for each in outcome.get("interrupts", [])]
        if stream.last["type"] == "RUN_FINISHED":
            assert [each["id"] for each in stream.pendingInterrupts] == waits
        if not pending and not waits:
            return stream
        content = '{"error": "no map here"}' if kind.declines else '{"shown": true}'
        results = [
            {"id": f"{call}-by-hand", "role": "tool", "toolCallId": call, "content": content} for call in pending
        ]
        resume = [answer_interrupt(kind, each) for each in outcome.get("interrupts", [])]
        more: dict[str, Any] = {"resume": resume} if resume else {}
        stream = await client.run(say=results, tools=[SHOW_MAP], **more)
    return stream


def log_shape(messages: list[Message]) -> list[Any]:
    """Return the essential parts of the messages in the log."""
    return sort_results(
        [
            (each.role, each.text, [(call.name, call.raw or "{}") for call in each.tool_calls])
            for each in messages
            if each.role != "system"
            # A message that has only reasoning is not a separate message for a client.
            and (each.role != "assistant" or each.text or each.tool_calls)
        ]
    )


def normalise_result(text: str) -> str:
    """Convert a result to one form, since clients may format JSON differently."""
    return orjson.dumps(value_of(text)).decode()


def sort_results(messages: list[Any]) -> list[Any]:
    """Sort the results of each batch, since a client gets them in the order of completion."""
    sorted_messages: list[Any] = []
    for tools, batch in groupby(messages, key=lambda message: message[0] == "tool"):
        together = list(batch)
        sorted_messages += (
            sorted(((role, normalise_result(text), calls) for role, text, calls in together)) if tools else together
        )
    return sorted_messages


def client_shape(messages: list[dict[str, Any]]) -> list[Any]:
    """Return the essential parts of the messages of a client, without reasoning, activities and nested agents."""
    return sort_results(
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


def stable_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages that a reconnected client also gets, without the ids of tool results."""
    results: dict[str, list[Any]] = {}
    for each in messages:
        if each["role"] == "tool":
            normalised = {**each, "id": "", "content": normalise_result(each["content"])}
            results.setdefault(each["toolCallId"], []).append(normalised)
    stable_messages: list[dict[str, Any]] = []
    for each in messages:
        if each["role"] != "tool" and each.get("activityType") != "rxloop.tool-progress":
            stable_messages.append(each)
            for call in each.get("toolCalls", []):
                stable_messages += results.pop(call["id"], [])
    assert results == {}
    return stable_messages


def sort_by_agent(messages: list[dict[str, Any]], kind: RandomRun) -> list[dict[str, Any]]:
    """Sort messages by agent, because a log without deltas has parallel agents in the order of their ends."""
    if kind.keeps_deltas:
        return messages
    return sorted(messages, key=lambda message: message.get("subagentRunId", ""))


def assert_equal(actual: list[Any], expected: list[Any]) -> None:
    """Assert that two lists are equal, and name the first difference."""
    for index, (one, other) in enumerate(zip(actual, expected, strict=False)):
        assert one == other, f"at {index}: {one!r} is not {other!r}"
    assert len(actual) == len(expected), f"{actual[len(expected) :]!r} is there, {expected[len(actual) :]!r} is not"


async def check(kind: RandomRun, clients: Node) -> None:
    log = kind.log()
    async with serve_agui(kind.agent(), log=log) as served:
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
            # The run was cancelled while it waited, and then got an answer.
            assert stream.last["code"] == "not_waiting", stream.last
        # Otherwise it was cancelled later, without a reader.
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
"""Run with events of all kinds."""


@pytest.mark.parametrize("keeps_deltas", [True, False])
def test_official_client_accepts_a_run_that_is_cancelled_at_any_event(
    keeps_deltas: bool, loop: asyncio.Runner, clients: Node
) -> None:
    # All positions if there is enough time, and a sample otherwise.
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
