"""The turns of a script, and how they are played."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import orjson

from rxloop.errors import ProviderError
from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.events import (
    ContentCompleteEvent,
    ContentDeltaEvent,
    Event,
    ThoughtDeltaEvent,
    ThoughtStreamEvent,
    ToolCallDeltaEvent,
    UsageEvent,
)
from rxloop.protocol.messages import Citation, FilePart, ImagePart, ToolCall, Usage
from rxloop.protocol.storable import storable
from rxloop.providers.reading._gate import gate_of
from rxloop.providers.reading._text import text_delta
from rxloop.stream.bridges import Push


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """A tool call of a script; `call` makes one."""

    name: str
    arguments: dict[str, Any]
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Frames:
    """A text that takes time; `frames` makes one."""

    symbols: tuple[str, ...]
    frame: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedTurn:
    """One whole answer of a script; `turn` makes one."""

    text: str | Frames = ""
    calls: tuple[ScriptedCall, ...] = ()
    reasoning: str | None = None
    usage: Usage | None = None
    finish_reason: str | None = None
    raw_finish_reason: str | None = None
    files: tuple[ImagePart | FilePart, ...] = ()
    citations: tuple[Citation, ...] = ()


def push_reasoning(answer: ScriptedTurn, number: int, push: Push[Event]) -> None:
    """Push what a turn thinks before its text."""
    if answer.reasoning:
        push(text_delta(ThoughtDeltaEvent, answer.reasoning, 0, None))
        thought_id = f"reasoning_{number}"
        push(ThoughtStreamEvent(thought_id=thought_id, content=answer.reasoning, source="reasoning"))


async def push_frames(text: Frames, request: ModelRequest, push: Push[Event]) -> str:
    """Push the deltas, each in its frame, and return the content once it is complete."""
    gate = gate_of(request)
    content: list[str] = []
    pause = 0
    for symbol in text.symbols:
        if symbol == "-":
            pause += 1
            continue
        if pause:
            await asyncio.sleep(pause * text.frame)
        pause = 1
        if symbol == "|":
            return "".join(content)
        if symbol == "#":
            raise ProviderError("the script fails here: '#'")
        push(text_delta(ContentDeltaEvent, symbol, len(content), None))
        content.append(symbol)
        if gate.closed:
            await gate.wait()
    await asyncio.get_running_loop().create_future()
    raise AssertionError("unreachable: nothing resolves the future")


def hidden_tools(request: ModelRequest) -> set[str]:
    """The names of the tools that clients do not see."""
    return {tool.name for tool in request.tools if tool.hidden}


def push_end(answer: ScriptedTurn, content: str, request: ModelRequest, push: Push[Event]) -> None:
    """Push the calls of a turn, its usage, and the whole message."""
    hidden = hidden_tools(request)
    calls: list[ToolCall] = []
    for index, item in enumerate(answer.calls):
        arguments = storable(item.arguments, f"the arguments of {item.name}")
        raw = orjson.dumps(arguments).decode()
        made = ToolCall(id=item.id or "", name=item.name, arguments=arguments, raw=raw)
        calls.append(made)
        push(
            ToolCallDeltaEvent(
                index=index, tool_call_id=made.id, name=made.name, fragment=raw, hidden=made.name in hidden
            )
        )
    if answer.usage is not None:
        push(UsageEvent(**answer.usage.model_dump(by_alias=False)))
    push(
        ContentCompleteEvent(
            content=content,
            files=list(answer.files),
            citations=list(answer.citations),
            reasoning=answer.reasoning,
            tool_calls=calls,
            finish_reason=answer.finish_reason or ("tool_calls" if calls else "stop"),
            raw_finish_reason=answer.raw_finish_reason,
        )
    )


async def stay_open(push: Push[Event]) -> None:
    """Wait until the stream is closed."""
    await asyncio.get_running_loop().create_future()
