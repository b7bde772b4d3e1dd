"""Request validation for vendors that continue conversations."""

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
from support.vendors.vendor_rules import check_chat, check_gemini, check_messages, check_responses

LOOK = ToolDefinition("look", "Look.", {"type": "object", "properties": {"at": {"type": "string"}}})


@dataclass(frozen=True)
class OtherVendor:
    """Vendor that continues a conversation."""

    make: CodecFactory
    model: str
    preset: str
    check: Callable[[dict[str, Any]], None]

    def make_codec(self) -> Codec:
        wire = self.make(self.model, PRESETS[self.preset], stream=True)
        wire.url("https://api.example.com/v1")
        return wire


def _make_chat_check(*extensions: str) -> Callable[[dict[str, Any]], None]:
    return partial(check_chat, extensions=extensions, id_length=200)


OTHER_VENDORS = {
    "claude": OtherVendor(AnthropicCodec, "claude-sonnet-4-5", "anthropic", check_messages),
    "claude newest": OtherVendor(AnthropicCodec, "claude-opus-4-8", "anthropic", check_messages),
    "another behind claude's protocol": OtherVendor(AnthropicCodec, "MiniMax-M2", "anthropic", check_messages),
    "gemini 3": OtherVendor(GeminiCodec, "gemini-3-flash-preview", "google", check_gemini),
    "gemini 2": OtherVendor(GeminiCodec, "gemini-2.5-flash", "google", partial(check_gemini, has_signatures=False)),
    "gemini on vertex": OtherVendor(GeminiCodec, "gemini-3-flash-preview", "vertex", check_gemini),
    "gpt": OtherVendor(ResponsesCodec, "gpt-5", "openai_responses", check_responses),
    "gpt that does not reason": OtherVendor(ResponsesCodec, "gpt-4o", "openai_responses", check_responses),
    "openai chat": OtherVendor(ChatCodec, "gpt-4o", "openai", check_chat),
    "mistral": OtherVendor(ChatCodec, "m", "mistral", partial(check_chat, short_ids=True)),
    "deepseek": OtherVendor(ChatCodec, "m", "deepseek", _make_chat_check("reasoning_content")),
    "google chat": OtherVendor(ChatCodec, "m", "google_chat", _make_chat_check("extra_content")),
    "openrouter": OtherVendor(ChatCodec, "m", "openrouter", _make_chat_check("reasoning_details")),
}


def encode_request(
    codec: Codec, history: Sequence[Message], notices: list[str] | None = None, **request: Any
) -> dict[str, Any]:
    """Encode a request and return its body."""
    collected = [] if notices is None else notices
    encoded = codec.encode(ModelRequest(messages=history, **request), lambda code, text: collected.append(text))
    return orjson.loads(encoded)
