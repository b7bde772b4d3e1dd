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
from rxloop.providers.codecs import Codec, CodecFactory
from rxloop.providers.codecs.anthropic import AnthropicCodec
from rxloop.providers.codecs.chat import ChatCodec
from rxloop.providers.codecs.gemini import GeminiCodec
from rxloop.providers.codecs.responses import ResponsesCodec
from support.vendors.vendor_rules import judge_chat, judge_gemini, judge_messages, judge_responses

LOOK = ToolDefinition("look", "Look.", {"type": "object", "properties": {"at": {"type": "string"}}})


@dataclass(frozen=True)
class Other:
    """A vendor with whom a conversation goes on."""

    make: CodecFactory
    model: str
    preset: str
    judge: Callable[[dict[str, Any]], None]

    def wire(self) -> Codec:
        wire = self.make(self.model, PRESETS[self.preset], stream=True)
        wire.url("https://api.example.com/v1")
        return wire


def _looser(*extensions: str) -> Callable[[dict[str, Any]], None]:
    return partial(judge_chat, extensions=extensions, longest=200)


OTHERS = {
    "claude": Other(AnthropicCodec, "claude-sonnet-4-5", "anthropic", judge_messages),
    "claude newest": Other(AnthropicCodec, "claude-opus-4-8", "anthropic", judge_messages),
    "another behind claude's protocol": Other(AnthropicCodec, "MiniMax-M2", "anthropic", judge_messages),
    "gemini 3": Other(GeminiCodec, "gemini-3-flash-preview", "google", judge_gemini),
    "gemini 2": Other(GeminiCodec, "gemini-2.5-flash", "google", partial(judge_gemini, signs=False)),
    "gemini on vertex": Other(GeminiCodec, "gemini-3-flash-preview", "vertex", judge_gemini),
    "gpt": Other(ResponsesCodec, "gpt-5", "openai_responses", judge_responses),
    "gpt that does not reason": Other(ResponsesCodec, "gpt-4o", "openai_responses", judge_responses),
    "openai chat": Other(ChatCodec, "gpt-4o", "openai", judge_chat),
    "mistral": Other(ChatCodec, "m", "mistral", partial(judge_chat, short_ids=True)),
    "deepseek": Other(ChatCodec, "m", "deepseek", _looser("reasoning_content")),
    "google chat": Other(ChatCodec, "m", "google_chat", _looser("extra_content")),
    "openrouter": Other(ChatCodec, "m", "openrouter", _looser("reasoning_details")),
}


def sent(wire: Codec, history: Sequence[Message], told: list[str] | None = None, **request: Any) -> dict[str, Any]:
    """The body of a request."""
    notices = [] if told is None else told
    encoded = wire.encode(ModelRequest(messages=history, **request), lambda code, text: notices.append(text))
    return orjson.loads(encoded)
