"""Requests remain valid, whatever operators and compressors do to the messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from random import Random
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rxloop import Agent, Limits, MemoryEventLog, Message, ModelRequest, Signal, op, tool
from rxloop.pipeline.interfaces import Budget
from rxloop.protocol.messages import ToolCall
from rxloop.providers import PRESETS
from rxloop.providers.codecs.chat.request import RequestEncoder
from rxloop.testing import ScriptedModel, call, turn, virtual_time
from support.vendors.codecs import ignore_notice

ENCODER = RequestEncoder("m", PRESETS["openai"], stream=True)
Make = Callable[[Random, Sequence[Message]], Any]


def drop_message(random: Random, messages: Sequence[Message]) -> Any:
    return [message for message in messages if random.random() < 0.6]


def truncate_history(random: Random, messages: Sequence[Message]) -> Any:
    return list(messages)[random.randint(0, len(messages)) : random.randint(0, len(messages)) or None]


def shuffle_messages(random: Random, messages: Sequence[Message]) -> Any:
    return random.sample(list(messages), len(messages))


def double_message(random: Random, messages: Sequence[Message]) -> Any:
    return [message for message in messages for _ in range(random.choice([1, 1, 2]))]


def drop_results(random: Random, messages: Sequence[Message]) -> Any:
    return [message for message in messages if message.role != "tool"]


def drop_user_messages(random: Random, messages: Sequence[Message]) -> Any:
    return [message for message in messages if message.role != "user"]


def add_messages(random: Random, messages: Sequence[Message]) -> Any:
    more = [
        Message.assistant("", tool_calls=[ToolCall(id="call_1", name="look"), ToolCall(id="x", name="look")]),
        Message.tool("nobody", "result"),
        Message.tool("call_1", "again"),
        Message.assistant("I think."),
        Message.assistant("long " * 2_000),
    ]
    out = list(messages)
    out.insert(random.randint(0, len(out)), random.choice(more))
    return out


def replace_by_garbage(random: Random, messages: Sequence[Message]) -> Any:
    return random.choice([None, 5, "text", [], [None], [{"role": "user"}], {"a": 1}, iter(messages), [messages]])


def keep_messages(random: Random, messages: Sequence[Message]) -> Any:
    return messages


MAKES: list[Make] = [
    drop_message,
    truncate_history,
    shuffle_messages,
    double_message,
    drop_results,
    drop_user_messages,
    add_messages,
    replace_by_garbage,
    keep_messages,
]


class HostileCompressor:
    """Compressor that damages the history."""

    max_tokens = 1

    def __init__(self, random: Random, makes: Sequence[Make]) -> None:
        self._random = random
        self._makes = makes

    async def compress(self, messages: Sequence[Message], budget: Budget) -> Any:
        if self._random.random() < 0.1:
            await asyncio.Event().wait()
        if self._random.random() < 0.1:
            raise KeyError("broken")
        return self._random.choice(self._makes)(self._random, messages)


def damage_requests(random: Random, makes: Sequence[Make]) -> Any:
    @op.on(ModelRequest)
    async def damage_request(request: ModelRequest, ctx: Any) -> AsyncIterator[Signal]:
        made = random.choice(makes)(random, request.messages)
        system = () if random.random() < 0.2 else request.system
        yield request.replace(messages=made, system=system)

    return damage_request


@tool
def look(n: int) -> str:
    """Look."""
    return f"seen {n}"


def encode_messages(request: ModelRequest) -> list[dict[str, Any]]:
    """Return the encoded messages."""
    return orjson.loads(ENCODER.encode(request, ignore_notice))["messages"]


def check_messages(messages: list[dict[str, Any]], question: str) -> None:
    assert messages[0] == {"role": "system", "content": "Be brief."}
    assert question in [message["content"] for message in messages if message["role"] == "user"]
    due: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            assert due, f"a result of no call: {messages}"
            assert message["tool_call_id"] == due.pop(0), messages
        else:
            assert not due, f"a call without its result: {messages}"
            due = [each["id"] for each in message.get("tool_calls") or ()]
    assert not due, f"a call without its result: {messages}"


@pytest.mark.parametrize("kind", ["operator", "compress", "thinking_phase", "both"])
@settings(max_examples=40, deadline=None)
@given(
    random=st.randoms(use_true_random=False),
    makes=st.lists(st.sampled_from(MAKES), min_size=1, max_size=3),
    turns=st.lists(st.lists(st.integers(1, 3), max_size=4), min_size=1, max_size=3),
)
def test_every_request_is_a_valid_conversation_and_the_run_continues(
    kind: str, random: Random, makes: list[Make], turns: list[list[int]]
) -> None:
    operators = {
        "operator": [damage_requests(random, makes)],
        "compress": [op.compress(HostileCompressor(random, makes))],
        "thinking_phase": [op.thinking_phase(HostileCompressor(random, makes))],
        "both": [op.compress(HostileCompressor(random, makes)), damage_requests(random, makes)],
    }[kind]
    script = [
        each
        for number, steps in enumerate(turns)
        for each in (*(turn("", calls=[call("look", n=n) for n in range(count)]) for count in steps), f"Done {number}.")
    ]
    model = ScriptedModel(*script)
    agent = Agent(
        model,
        tools=[look],
        thoughts=False,
        instructions="Be brief.",
        log=MemoryEventLog(),
        limits=Limits(iterations=None),
        loop=op.standard(before_model=operators),
    )
    with virtual_time() as time:
        for number, steps in enumerate(turns):
            first = len(model.requests)
            result = time.run(agent.run(f"Question {number}?", context_id="c"))
            assert result.output == f"Done {number}."
            for request in model.requests[first:]:
                check_messages(encode_messages(request), f"Question {number}?")
            assert len(model.requests) - first == len(steps) + 1
