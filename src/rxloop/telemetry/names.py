"""Names of attributes of the GenAI semantic conventions, and the formats of their values.

The conventions are still in development, and have no release. Their names are strings here, because the constants in
`opentelemetry-semantic-conventions` are deprecated. Names without a convention start with `rxloop.`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any

import orjson

from rxloop.protocol.events import UsageEvent
from rxloop.protocol.messages import Message

SCOPE_ATTRIBUTES = {"rxloop.semantic_conventions": "gen_ai 1.42 (development)"}
"""Attributes of the instrumentation scope."""

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
AGENT = "gen_ai.agent.name"
WORKFLOW = "gen_ai.workflow.name"
REQUEST_MODEL = "gen_ai.request.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
TOOL = "gen_ai.tool.name"
TOOL_TYPE = "gen_ai.tool.type"
OUTPUT_MESSAGES = "gen_ai.output.messages"
TOKEN_TYPE = "gen_ai.token.type"
ERROR_TYPE = "error.type"
TASK = "rxloop.task_id"
STEP = "rxloop.step"
STATE = "rxloop.state"

TokenCounts = tuple[int, ...]
"""Input, output, cached, cache write and reasoning tokens."""
get_counts: Callable[[UsageEvent], TokenCounts] = attrgetter(
    "input_tokens", "output_tokens", "cached_tokens", "cache_write_tokens", "reasoning_tokens"
)
"""Return the token counts of an event. Adding them is faster than adding `Usage` objects."""
USAGE = (
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.output_tokens",
    "gen_ai.usage.cache_read.input_tokens",
    "gen_ai.usage.cache_creation.input_tokens",
    "gen_ai.usage.reasoning.output_tokens",
)
"""Attributes of `TokenCounts`."""
AGGREGATED_USAGE = tuple(name.replace("usage", "aggregated_usage") for name in USAGE)

_PROVIDERS = {
    "azure": "azure.ai.openai",
    "azure_responses": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "google": "gcp.gemini",
    "google_chat": "gcp.gemini",
    "mistral": "mistral_ai",
    "moonshot": "moonshot_ai",
    "openai_chat": "openai",
    "openai_responses": "openai",
    "vertex": "gcp.vertex_ai",
    "vertex_anthropic": "gcp.vertex_ai",
    "xai": "x_ai",
}
"""Names of the conventions for vendors that rxloop names differently."""


def captures_content() -> bool:
    """Return True if the environment variable of the conventions allows content in spans."""
    value = os.environ.get("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "")
    return value.strip().upper() in ("SPAN_ONLY", "SPAN_AND_EVENT", "TRUE")


@lru_cache(maxsize=256)
def split_model(model: str) -> Mapping[str, str]:
    """Return the attributes for a model string. Without a prefix, the provider and the model have the same name.

    Models at a custom address, such as `http://localhost:8000/v1#qwen3`, have an API that is compatible with OpenAI.
    Combinations of models, such as `fallback(openai:gpt-5, zai:glm-4.7)`, are named until one of them has answered.
    """
    prefix, _, name = model.partition(":")
    if "(" in prefix:
        prefix, name = prefix.partition("(")[0], model
    elif "://" in model:
        prefix, name = "openai", model.partition("#")[2]
    return {PROVIDER: _PROVIDERS.get(prefix, prefix), REQUEST_MODEL: name or model}


def usage_attributes(counts: TokenCounts, names: Sequence[str]) -> dict[str, int]:
    """Return attributes for token counts, omitting optional counts that are 0."""
    return {name: count for name, count in zip(names, counts, strict=True) if count or name in names[:2]}


def format_messages(messages: Iterable[Message], **fields: Any) -> str:
    """Return messages as JSON in the format of the conventions, with further fields. Media are omitted."""
    return to_json([{"role": message.role, "parts": _format_parts(message), **fields} for message in messages])


def _format_parts(message: Message) -> list[Mapping[str, Any]]:
    if message.role == "tool":
        return [{"type": "tool_call_response", "id": message.tool_call_id, "response": message.text}]
    texts = {"reasoning": message.reasoning, "text": message.text}
    return [
        *({"type": kind, "content": text} for kind, text in texts.items() if text),
        *(
            {"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments}
            for call in message.tool_calls
        ),
    ]


def to_json(value: Any) -> str:
    """Encode event data as JSON."""
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
