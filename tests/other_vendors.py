"""The vendors with whom a conversation goes on, and what judges the requests to each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from rxloop.pipeline.requests import ModelRequest, ToolDefinition
from rxloop.protocol.messages import Message
from rxloop.providers import PRESETS
from rxloop.providers.anthropic._wire import MessagesWire
from rxloop.providers.chat._wire import ChatWire
from rxloop.providers.google._wire import GeminiWire
from rxloop.providers.responses._wire import ResponsesWire
from rxloop.providers.wire import MakesWire, Wire
from vendor_rules import judge_chat, judge_gemini, judge_messages, judge_responses

LOOK = ToolDefinition("look", "Look.", {"type": "object", "properties": {"at": {"type": "string"}}})


@dataclass(frozen=True)
class Other:
    """A vendor with whom a conversation goes on."""

    make: MakesWire
    model: str
    preset: str
    judge: Callable[[dict[str, Any]], None]

    def wire(self) -> Wire:
        wire = self.make(self.model, PRESETS[self.preset], stream=True)
        wire.url("https://api.example.com/v1")
        return wire


def _looser(*extensions: str) -> Callable[[dict[str, Any]], None]:
    return partial(judge_chat, extensions=extensions, longest=200)


OTHERS = {
    "claude": Other(MessagesWire, "claude-sonnet-4-5", "anthropic", judge_messages),
    "claude newest": Other(MessagesWire, "claude-opus-4-8", "anthropic", judge_messages),
    "another behind claude's protocol": Other(MessagesWire, "MiniMax-M2", "anthropic", judge_messages),
    "gemini 3": Other(GeminiWire, "gemini-3-flash-preview", "google", judge_gemini),
    "gemini 2": Other(GeminiWire, "gemini-2.5-flash", "google", partial(judge_gemini, signs=False)),
    "gemini on vertex": Other(GeminiWire, "gemini-3-flash-preview", "vertex", judge_gemini),
    "gpt": Other(ResponsesWire, "gpt-5", "openai_responses", judge_responses),
    "gpt that does not reason": Other(ResponsesWire, "gpt-4o", "openai_responses", judge_responses),
    "openai chat": Other(ChatWire, "gpt-4o", "openai", judge_chat),
    "mistral": Other(ChatWire, "m", "mistral", partial(judge_chat, short_ids=True)),
    "deepseek": Other(ChatWire, "m", "deepseek", _looser("reasoning_content")),
    "google chat": Other(ChatWire, "m", "google_chat", _looser("extra_content")),
    "openrouter": Other(ChatWire, "m", "openrouter", _looser("reasoning_details")),
}


def sent(wire: Wire, history: Sequence[Message], told: list[str] | None = None, **request: Any) -> dict[str, Any]:
    """The body of a request."""
    notices = [] if told is None else told
    encoded = wire.encode(ModelRequest(messages=history, **request), lambda code, text: notices.append(text))
    return orjson.loads(encoded)
