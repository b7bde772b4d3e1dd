"""Comparison of AG-UI clients with the log, for random runs."""

from __future__ import annotations

from contextlib import suppress
from itertools import groupby
from typing import Any

import orjson

from rxloop import Message
from rxloop.errors import ConflictError
from rxloop.protocol.events import PendingInput
from rxloop.server.core.bodies import parse_text
from support.clients.agui import AgUiEndpoint
from support.random_runs import RandomRun, send_message


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


def log_shape(messages: list[Message]) -> list[Any]:
    """Return the essential parts of the messages in the log."""
    return sort_results(
        [
            (each.role, each.text, [(call.name, call.raw or "{}") for call in each.tool_calls])
            for each in messages
            if each.role != "system"
            # Clients do not store messages that contain only reasoning.
            and (each.role != "assistant" or each.text or each.tool_calls)
        ]
    )


def normalise_result(text: str) -> str:
    """Convert a result to one form, since clients may format JSON differently."""
    return orjson.dumps(parse_text(text)).decode()


def sort_results(messages: list[Any]) -> list[Any]:
    """Sort the results of each batch, because clients receive them in order of completion."""
    sorted_messages: list[Any] = []
    for tools, batch in groupby(messages, key=lambda message: message[0] == "tool"):
        together = list(batch)
        sorted_messages += (
            sorted(((role, normalise_result(text), calls) for role, text, calls in together)) if tools else together
        )
    return sorted_messages


def client_shape(messages: list[dict[str, Any]]) -> list[Any]:
    """Return client messages without reasoning, activities and nested agents."""
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
    """Return messages without tool progress and result ids, which may change after a reconnect."""
    results: dict[str, list[Any]] = {}
    for each in messages:
        if each["role"] == "tool":
            normalised = {**each, "id": "", "content": normalise_result(each["content"])}
            results.setdefault(each["toolCallId"], []).append(normalised)
    stable_messages: list[dict[str, Any]] = []
    for each in messages:
        # Clients before 1.0 keep discarded reasoning messages, but without content.
        is_discarded = each["role"] == "reasoning" and not each["content"]
        if each["role"] != "tool" and each.get("activityType") != "rxloop.tool-progress" and not is_discarded:
            stable_messages.append(each)
            for call in each.get("toolCalls", []):
                stable_messages += results.pop(call["id"], [])
    assert results == {}
    return stable_messages


def assert_equal(actual: list[Any], expected: list[Any]) -> None:
    """Assert that two lists are equal, reporting the first difference."""
    for index, (found, other) in enumerate(zip(actual, expected, strict=False)):
        assert found == other, f"at {index}: expected {other!r}, got {found!r}"
    assert len(actual) == len(expected), f"unexpected {actual[len(expected) :]!r}, missing {expected[len(actual) :]!r}"
