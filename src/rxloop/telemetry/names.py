"""Names of attributes and metrics, and the attributes of each kind of span.

The GenAI semantic conventions are still in development, and have no release. Their names are strings here, because the
constants in `opentelemetry-semantic-conventions` are deprecated. Names without a convention start with `rxloop.`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import orjson

from rxloop.protocol.events import ToolCompleteEvent, UsageEvent
from rxloop.protocol.messages import Message, ResponseInfo, ToolCall

OPEN_CALLS = "rxloop_open_calls"
"""Attribute of the views created by `op.spans`, with their open calls."""

SCOPE = "rxloop"
"""Name of the instrumentation scope."""
SCOPE_ATTRIBUTES = {"rxloop.semantic_conventions": "gen_ai 1.42 (development)"}
"""Attributes of the instrumentation scope."""

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
AGENT = "gen_ai.agent.name"
CONVERSATION = "gen_ai.conversation.id"
WORKFLOW = "gen_ai.workflow.name"
REQUEST_MODEL = "gen_ai.request.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
TOOL = "gen_ai.tool.name"
TOOL_TYPE = "gen_ai.tool.type"
TOOL_CALL = "gen_ai.tool.call.id"
TOOL_ARGUMENTS = "gen_ai.tool.call.arguments"
TOOL_RESULT = "gen_ai.tool.call.result"
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
TOKEN_TYPE = "gen_ai.token.type"
ERROR_TYPE = "error.type"
STATUS_CODE = "http.response.status_code"
TASK, ATTEMPT, STATE, REASON = "rxloop.task_id", "rxloop.attempt", "rxloop.state", "rxloop.reason"
STEP, BRANCH, ITERATION, RETRIES = "rxloop.step", "rxloop.branch", "rxloop.iteration", "rxloop.retries"

INTERRUPTED = "interrupted"
"""Error type of spans without a recorded end, for example after a crash."""

TokenCounts = tuple[int, ...]
"""Input, output, cached, cache write and reasoning tokens."""
get_counts: Callable[[UsageEvent], TokenCounts] = attrgetter(
    "input_tokens", "output_tokens", "cached_tokens", "cache_write_tokens", "reasoning_tokens"
)
"""Return the token counts of an event. Adding them is faster than adding `Usage` objects."""
_CACHE = ("cache_read.input_tokens", "cache_creation.input_tokens")
_USAGE = ("input_tokens", "output_tokens", *_CACHE, "reasoning.output_tokens")
USAGE, AGGREGATED_USAGE = (
    tuple(f"gen_ai.{prefix}.{name}" for name in _USAGE) for prefix in ("usage", "aggregated_usage")
)
"""Attributes of `TokenCounts`."""

CAPTURE_CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"

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
    return os.environ.get(CAPTURE_CONTENT, "").strip().upper() in ("SPAN_ONLY", "SPAN_AND_EVENT", "TRUE")


def split_model(model: str) -> tuple[str, str]:
    """Return the provider and the model name of a model string. Without a prefix, both are the model string."""
    prefix, _, name = model.partition(":")
    return _PROVIDERS.get(prefix, prefix), name or model


def tool_error(event: ToolCompleteEvent) -> str:
    """Return the error type of a failed tool call. Events of earlier versions have no code."""
    code = "canceled" if event.error == "canceled" else event.code or "error"
    return "tool_error" if code == "error" else code


def settings_attributes(settings: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return attributes for the settings of a model call."""
    attributes = {f"gen_ai.request.{name}": value for name, value in (settings or {}).items()}
    if "gen_ai.request.stop" in attributes:
        attributes["gen_ai.request.stop_sequences"] = tuple(attributes.pop("gen_ai.request.stop"))
    return attributes


def response_attributes(response: ResponseInfo) -> dict[str, Any]:
    """Return attributes for the origin of a message, omitting unknown values."""
    attributes = {
        "gen_ai.response.id": response.id,
        "gen_ai.response.model": response.model,
        "gen_ai.request.stream": response.streamed or None,
        "server.address": response.server_address,
        "server.port": response.server_port,
    }
    return {name: value for name, value in attributes.items() if value is not None}


def usage_attributes(counts: TokenCounts, attributes: tuple[str, ...] = USAGE) -> dict[str, int]:
    """Return attributes for token counts, omitting optional counts that are 0."""
    return {name: count for name, count in zip(attributes, counts, strict=True) if count or name in attributes[:2]}


def format_messages(messages: Iterable[Message]) -> str:
    """Return messages as JSON in the format of the conventions. Media are named by their type only."""
    return to_json([_format_message(message) for message in messages])


def format_answer(content: str, reasoning: str | None, calls: Sequence[ToolCall], finish_reason: str) -> str:
    """Return the message of a model as JSON in the format of the conventions."""
    parts: list[dict[str, Any]] = []
    if reasoning:
        parts.append({"type": "reasoning", "content": reasoning})
    if content:
        parts.append({"type": "text", "content": content})
    parts += map(_format_call, calls)
    return to_json([{"role": "assistant", "parts": parts, "finish_reason": finish_reason}])


def _format_message(message: Message) -> dict[str, Any]:
    if message.role == "tool":
        part = {"type": "tool_call_response", "id": message.tool_call_id, "response": message.text}
        return {"role": "tool", "parts": [part]}
    text: list[Mapping[str, Any]] = [{"type": "text", "content": message.text}] if message.text else []
    return {"role": message.role, "parts": [*text, *map(_format_call, message.tool_calls)]}


def _format_call(call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments}


def to_json(value: Any) -> str:
    """Encode event data as JSON."""
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
