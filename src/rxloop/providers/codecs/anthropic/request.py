"""Request body of the Messages API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, takewhile
from typing import Any, NamedTuple, cast

from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.messages import Message
from rxloop.protocol.settings import ModelSettings, PromptCache
from rxloop.protocol.step_events import NoticeCode
from rxloop.providers.codecs import Notice
from rxloop.providers.codecs.anthropic.conversation import Conversation, PlacedMessage
from rxloop.providers.codecs.anthropic.messages import KEY, FormEncoder, MediaRules
from rxloop.providers.codecs.anthropic.settings import (
    Abilities,
    Warn,
    check_settings,
    find_choice,
    fit_limit,
    make_plain_fields,
    make_thinking,
)
from rxloop.providers.codecs.fields import dumps, split_tools
from rxloop.providers.codecs.message_cache import build_messages
from rxloop.providers.codecs.schemas import adapt_answer_schema
from rxloop.providers.codecs.schemas.dialects import CLAUDE
from rxloop.providers.codecs.schemas.strict_forms import count_demands
from rxloop.providers.codecs.tools import ToolAdapter, VendorTool, VendorTools

BINDING = "thinking-binding-controls-2026-08-01"
"""Beta feature that drops thinking which no longer matches its context, instead of rejecting the request."""

_BREAKPOINTS = 4
"""Maximum number of cache breakpoints in a request."""

_SCHEMA = "Answer with JSON alone, without a word or a fence around it, that fits this JSON Schema:\n"

_DEFAULT_CACHE = PromptCache()


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Claude host, with its request differences."""

    version: str | None = None
    """`anthropic_version` in the body; None if using a header."""
    named: bool = True
    """True if the body contains the model name."""
    says_stream: bool = True
    """True if the body contains the `stream` flag."""
    betas_in_body: bool = False
    """True if beta features are listed in the body instead of a header."""
    fetches: bool = True
    """True if the host fetches images and documents by their URL."""
    late_system: bool = True
    """True if system messages are accepted in the middle of a conversation, if the model supports it."""
    schemas: bool = True
    """True if the host enforces JSON Schemas, if the model supports it."""


class MessagesEncoder:
    """Encoder of requests for one model.

    The encoded form of messages and tools is cached, so that the cost of a request depends on its new messages.

    Args:
        model: The vendor's name of the model.
        stream: True if answers are streamed.
        host: Host of the model.
        abilities: Abilities of the model.
        betas: Beta features to enable.
        citations: True if the model should cite the documents of the conversation.
        key: Key of the model's own pieces in `provider_state`.
    """

    def __init__(
        self,
        model: str,
        name: str,
        stream: bool,
        host: Host,
        abilities: Abilities,
        betas: Sequence[str],
        citations: bool,
        key: str = KEY,
    ) -> None:
        self._model = model
        self._name = name
        self._stream = stream
        self._host = host
        self._betas = betas
        self._rules = abilities
        self.enforces_schema = abilities.schemas and host.schemas and not citations
        self._form_encoder = FormEncoder(MediaRules(fetches=host.fetches, citations=citations), key)
        self._reported: set[str] = set()
        self._format: tuple[dict[str, Any] | None, dict[str, Any] | None, str | None] = (None, None, None)
        self.tools = ToolAdapter(CLAUDE, strict=abilities.schemas and host.schemas)
        self._tools: tuple[VendorTools | None, EncodedTools] = (None, EncodedTools(b"", ()))

    def encode(self, request: ModelRequest, notice: Notice) -> bytes:
        """Encode the request body. `notice` is called if unsupported parts are dropped.

        Raises:
            BadRequest: Multiple answers were requested.
        """
        settings, extra = request.settings, request.settings.extra_body
        warn = partial(self._report, notice)

        def note(code: NoticeCode, omission: str) -> None:
            notice(code, f"{self._name} does not receive {omission}")

        check_settings(settings)
        first = tuple(takewhile(lambda message: message.role == "system", request.messages))
        schema, hint = self._make_schema(request)
        thinking, effort = make_thinking(settings, self._rules, warn)
        cache = _Breakpoints(request, len(first))
        if cache.is_truncated:
            warn(f"more than {_BREAKPOINTS} cache breakpoints")
        conversation = self._build_conversation(request, len(first), cache, note)
        ends_alone = self._rules.prefill and (thinking or {}).get("type") != "enabled" and schema is None
        conversation.end(prefill=ends_alone)
        thinking = self._fit_thinking(request, thinking, conversation, warn)
        tools, notes = self._encode_tools(request, conversation, cache, warn)
        self.tools.tell(notes, self._find_changes(request), self._name, notice)
        max_tokens, thinking = fit_limit(
            settings.max_tokens, thinking, self._rules, stream=self._stream, shared=self._is_shared(request), warn=warn
        )
        thinking = extra.get("thinking", thinking)
        fields = self._make_head(settings)
        fields["max_tokens"] = max_tokens
        if thinking is not None:
            fields["thinking"] = thinking
        fields |= make_plain_fields(settings, self._rules, _as_dict(thinking), warn)
        if config := {name: value for name, value in (("effort", effort), ("format", schema)) if value}:
            fields["output_config"] = config
        if tools and (request.tools or settings.server_tools):
            if choice := find_choice(settings, self._rules, _as_dict(thinking), warn, self._to_name):
                fields["tool_choice"] = choice
        elif tools:
            fields["tool_choice"] = {"type": "none"}
        if container := _find_container(conversation, settings.server_tools):
            fields["container"] = container
        for name, value in extra.items():
            config = fields.get(name) if name == "output_config" else None
            both = isinstance(config, dict) and isinstance(value, dict)
            fields[name] = {**cast("dict[str, Any]", config), **cast("dict[str, Any]", value)} if both else value
        parts = [dumps(fields)[:-1]]
        if "system" not in extra and (system := self._encode_system((*request.system, *first), hint, cache, note)):
            parts += (b',"system":[', system, b"]")
        if "tools" not in extra and tools:
            parts += (b',"tools":[', tools, b"]")
        if "messages" not in extra:
            parts += (b',"messages":[', conversation.encoded, b"]")
        parts.append(b"}")
        return b"".join(parts)

    def _make_head(self, settings: ModelSettings) -> dict[str, Any]:
        host = self._host
        fields: dict[str, Any] = {} if host.version is None else {"anthropic_version": host.version}
        if host.betas_in_body and (betas := _find_betas(settings) or self._betas):
            fields["anthropic_beta"] = list(betas)
        if host.named:
            fields["model"] = self._model
        if host.says_stream:
            fields["stream"] = self._stream
        return fields

    def _make_schema(self, request: ModelRequest) -> tuple[dict[str, Any] | None, str | None]:
        """Return the answer format, or an instruction if the schema cannot be enforced."""
        schema = request.response_schema
        if schema is None or not self.enforces_schema:
            return None, None
        if self._format[0] is not schema:
            answer, changes = adapt_answer_schema(schema, CLAUDE, strict=True)
            self._format = (schema, answer.schema if answer.strict else None, changes)
        enforced = self._format[1]
        if enforced is None:
            return None, _SCHEMA + dumps(schema).decode()
        return {"type": "json_schema", "schema": enforced}, None

    def _find_changes(self, request: ModelRequest) -> str | None:
        """Describe response schema changes, if any."""
        is_sent = self.enforces_schema and request.response_schema is not None
        return self._format[2] if is_sent else None

    def _build_conversation(
        self, request: ModelRequest, first: int, cache: _Breakpoints, notice: Notice
    ) -> Conversation:
        """Build the conversation without the leading system prompt."""
        messages, late = request.messages, self._rules.late_system and self._host.late_system
        fixed = self._find_breakpoints(messages, cache.fixed, first, notice)
        moving = self._find_breakpoints(messages, cache.moving, first, notice)

        def new() -> Conversation:
            return Conversation(self._form_encoder, late_system=late)

        def add(conversation: Conversation, index: int, message: Message) -> None:
            control = cache.control if index in fixed or index in moving else b""
            conversation.add(PlacedMessage(message, self._form_encoder.form(message, notice), control))

        # Moving breakpoints must not affect the cached prefix.
        end = min(moving, default=len(messages))
        key = (self._form_encoder.key, late, *((cache.control, *sorted(fixed)) if fixed else ()))
        conversation = build_messages(messages, key, new, add, first=first, end=end)
        for index in range(end, len(messages)):
            add(conversation, index, messages[index])
        for message in request.tail:
            conversation.add(PlacedMessage(message, self._form_encoder.form(message, notice)))
        return conversation

    def _find_breakpoints(
        self, messages: Sequence[Message], indexes: Iterable[int], first: int, notice: Notice
    ) -> set[int]:
        """Find breakpoint indexes, moving each one back to a message that supports it."""
        form = self._form_encoder.form
        nearest = (
            (n for n in range(index, first - 1, -1) if form(messages[n], notice).offset >= 0) for index in indexes
        )
        return {index for candidates in nearest if (index := next(candidates, None)) is not None}

    def _fit_thinking(
        self, request: ModelRequest, thinking: dict[str, Any] | None, conversation: Conversation, warn: Warn
    ) -> dict[str, Any] | None:
        """Return the thinking settings that the conversation allows."""
        if thinking is not None and thinking["type"] == "enabled":
            turn = conversation.unfinished
            if turn.exists and not turn.thinks:
                warn("thinking, because this turn began without it")
                return None
        if BINDING in self._find_betas(request) and self._rules.binds_thinking and conversation.has_thinking:
            # Thinking that precedes a change of the prompt or the tools is dropped instead of rejected.
            binding = {"block_binding": {"prefix_mismatch_behavior": "drop_block"}}
            return {**(thinking or {"type": "adaptive"}), **binding}
        return thinking

    def _find_betas(self, request: ModelRequest) -> Sequence[str]:
        """Return enabled beta features. Request headers replace the configured ones."""
        for name, value in request.settings.headers.items():
            if name.lower() == "anthropic-beta":
                return [beta.strip() for beta in value.split(",")]
        return self._betas

    def _is_shared(self, request: ModelRequest) -> bool:
        """Return True if the thinking between tool calls shares one budget."""
        is_requested = any(beta.startswith("interleaved-thinking") for beta in self._find_betas(request))
        return is_requested and bool(request.tools or request.settings.server_tools)

    def _encode_system(
        self, messages: Sequence[Message], hint: str | None, cache: _Breakpoints, notice: Notice
    ) -> bytes:
        forms = [form for message in messages if (form := self._form_encoder.form(message, notice)).blocks]
        blocks = [form.mark(cache.control) if cache.system and form is forms[-1] else form.blocks for form in forms]
        if hint is not None:
            blocks.append(dumps({"type": "text", "text": hint}))
        return b",".join(blocks)

    def _encode_tools(
        self, request: ModelRequest, conversation: Conversation, cache: _Breakpoints, warn: Warn
    ) -> tuple[bytes, tuple[str, ...]]:
        """Encode tools, and also describe the changes."""
        server_tools, foreign = split_tools(request.settings.server_tools, "anthropic")
        for tool in foreign:
            warn(tool)
        # Vendor-defined client tools such as `bash` replace our definition.
        names = {tool.get("name") for tool in server_tools}
        tools = tuple(tool for tool in request.tools if tool.name not in names) if names else request.tools
        adapted = self.tools.adapt(tools)
        if self._tools[0] is not adapted:
            self._tools = (adapted, encode_tools(adapted, self.tools))
        encoded, notes = self._tools[1]
        if not encoded and not server_tools and conversation.has_calls:
            return encode_remembered_tools(chain(request.messages, request.tail)), notes
        if encoded and cache.tools:
            encoded = b"%b,%b}" % (encoded[:-1], cache.control)
        return b",".join(filter(None, (encoded, dumps(server_tools)[1:-1] if server_tools else b""))), notes

    def _to_name(self, name: str) -> str:
        return name if self._tools[0] is None else self._tools[0].find_vendor_name(name)

    def _report(self, notice: Notice, omission: str) -> None:
        if omission not in self._reported and len(self._reported) < 100:
            self._reported.add(omission)
            notice("left_out", f"{self._name} does not accept {omission}")


class _Breakpoints:
    """Cache breakpoints for a request."""

    def __init__(self, request: ModelRequest, first: int) -> None:
        settings = request.settings
        cache = settings.prompt_cache
        if cache is None:
            # Breakpoints are managed by the caller when using `cache_control`.
            cache = PromptCache(points=[]) if "cache_control" in settings.extra_body else _DEFAULT_CACHE
        ttl = {} if cache.ttl == "5m" else {"ttl": cache.ttl}
        self.control = b'"cache_control":' + dumps({"type": "ephemeral", **ttl})
        used = sum("cache_control" in tool for tool in settings.server_tools)
        used += "cache_control" in settings.extra_body
        points = cache.points[: max(0, _BREAKPOINTS - used)]
        self.is_truncated = len(points) < len(cache.points)
        """True if more breakpoints were requested than the vendor accepts."""
        self.tools = "tools" in points
        self.system = "system" in points
        count = len(request.messages)
        indexes = [-1 if point == "newest" else int(point) for point in points if point not in ("tools", "system")]
        self.fixed = {index for index in indexes if first <= index < count}
        """Message indexes from the start, without the system prompt."""
        self.moving = {count + index for index in indexes if first - count <= index < 0}
        """Message indexes relative to the end."""


def _find_container(conversation: Conversation, server_tools: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the container to reuse for this turn."""
    if not any(str(tool.get("type")).startswith("code_execution") for tool in server_tools):
        return None
    return conversation.unfinished.container


def _find_betas(settings: ModelSettings) -> list[str]:
    """Return beta features from request headers."""
    values = (value for name, value in settings.headers.items() if name.lower() == "anthropic-beta")
    return [beta.strip() for value in values for beta in value.split(",") if beta.strip()]


def _as_dict(value: Any) -> dict[str, Any] | None:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


_STRICT, _OPTIONAL, _UNIONS = 20, 24, 16
"""Limits for strict tools, their optional arguments and unions."""

_MAX_REMEMBERED = 50


class EncodedTools(NamedTuple):
    """Encoded definitions of tools, separated by commas."""

    encoded: bytes
    notes: tuple[str, ...]
    """Descriptions of the changes."""


def encode_tools(tools: VendorTools, adapter: ToolAdapter) -> EncodedTools:
    """Encode tool definitions, enforcing only as many as allowed."""
    encoded: list[bytes] = []
    notes = list(tools.notes)
    strict = optional = unions = 0
    for tool in tools.tools:
        if tool.strict:
            required = count_demands(tool.schema)
            if strict < _STRICT and optional + required[0] <= _OPTIONAL and unions + required[1] <= _UNIONS:
                strict, optional, unions = strict + 1, optional + required[0], unions + required[1]
            else:
                why = "there are too many strict tools, or they have too many optional arguments"
                notes.append(f"the tool {tool.definition.name!r} (it is sent without strict: {why})")
                tool = adapter.make_lenient(tool)
        encoded.append(dumps(_encode_tool(tool)))
    return EncodedTools(b",".join(encoded), tuple(notes))


def encode_remembered_tools(messages: Iterable[Message]) -> bytes:
    """Encode minimal definitions of the called tools, because calls of undefined tools are rejected."""
    names: dict[str, None] = {}
    for message in messages:
        for call in message.tool_calls:
            if len(names) < _MAX_REMEMBERED:
                names[CLAUDE.to_tool_name(call.name)] = None
    return b",".join(dumps({"name": name, "input_schema": {"type": "object"}}) for name in names)


def _encode_tool(tool: VendorTool) -> dict[str, Any]:
    fields: dict[str, Any] = {"name": tool.name}
    if tool.description:
        fields["description"] = tool.description
    fields["input_schema"] = tool.schema
    if tool.strict:
        fields["strict"] = True
    return fields
