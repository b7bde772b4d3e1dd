"""Typed answers and arguments with one JSON value inside other text.  # P16"""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from rxloop import Agent, Event, tool
from rxloop.protocol.events import LLMNoticeEvent
from rxloop.testing import ScriptedModel
from support.http_server import start_server
from support.runs import collect
from support.vendors.vendor_answers import APIS, NORMAL, ModelAnswer, model, reply

FENCE = "`" * 3
STRING_ARGUMENT_APIS = [case for case in APIS if case[0] in ("chat", "responses") or case == ("messages", True)]
"""APIs with string arguments."""


class City(BaseModel):
    name: str
    note: str = ""


def repairs(events: list[Event]) -> list[str]:
    return [event.message for event in events if isinstance(event, LLMNoticeEvent) and event.code == "repaired"]


@pytest.mark.parametrize(
    "text",
    [
        'Here it is: {"name": "Oslo"}. Enjoy!',
        f'Sure!\n{FENCE}json\n{{"name": "Oslo"}}\n{FENCE}\nDone.',
        '~~~\n{"name": "Oslo"}\n~~~',
        '{"name": "Oslo", "note": "two\nlines"}',
    ],
)
@pytest.mark.parametrize(("api", "stream"), APIS)
async def test_typed_answer_inside_text_is_repaired_with_a_notice(api: str, stream: bool, text: str) -> None:  # P16
    async with start_server() as server:
        server.answer(reply(api, ModelAnswer(text, finish=NORMAL[api]), stream=stream))
        provider = model(api, server, stream=stream)
        run = Agent(provider, output_type=City, output_mode="prompted").run("?")
        events = await collect(run)
        result = await run
        await provider.aclose()
        await server.all_closed.wait()

    assert result.output.name == "Oslo"
    assert len(server.requests) == 1
    assert len(repairs(events)) == 1


@pytest.mark.parametrize("text", ['{"name": "Oslo"}', f'{FENCE}json\n{{"name": "Oslo"}}\n{FENCE}'])
async def test_plain_typed_answer_has_no_notice(text: str) -> None:  # P16
    events = await collect(Agent(ScriptedModel(text), output_type=City).run("?"))
    assert repairs(events) == []


async def test_ambiguous_typed_answer_is_sent_back() -> None:  # P16
    scripted = ScriptedModel('{"name": "Oslo"} or {"name": "Bergen"}', '{"name": "Bergen"}')
    result = await Agent(scripted, output_type=City).run("?")
    assert result.output.name == "Bergen"
    assert len(scripted.requests) == 2


@pytest.mark.parametrize(
    "arguments", ['{"text": "one\ntwo"}', f'{FENCE}json\n{{"text": "one\ntwo"}}\n{FENCE}', 'With {"text": "one\ntwo"}']
)
@pytest.mark.parametrize(("api", "stream"), STRING_ARGUMENT_APIS)
async def test_arguments_inside_text_are_repaired_with_a_notice(api: str, stream: bool, arguments: str) -> None:  # P16
    written: list[str] = []

    @tool
    def write(text: str) -> str:
        """Write."""
        written.append(text)
        return "ok"

    finish = {"chat": "tool_calls", "messages": "tool_use", "responses": "completed"}[api]
    async with start_server() as server:
        answers: list[Any] = [
            ModelAnswer(calls=[("write", arguments)], finish=finish),
            ModelAnswer("Done.", finish=NORMAL[api]),
        ]
        server.answer(*(reply(api, answer, stream=stream) for answer in answers))
        provider = model(api, server, stream=stream)
        run = Agent(provider, tools=[write]).run("?")
        events = await collect(run)
        result = await run
        await provider.aclose()
        await server.all_closed.wait()

    assert result.output == "Done."
    assert written == ["one\ntwo"]
    assert ["write" in message for message in repairs(events)] == [True]
