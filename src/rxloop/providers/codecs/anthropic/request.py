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
from rxloop.providers.codecs.anthropic.conversation import Conversation, Place
from rxloop.providers.codecs.anthropic.messages import KEY, Forms, MediaRules
from rxloop.providers.codecs.anthropic.settings import (
    Abilities,
    Tell,
    check,
    plain_fields,
    thinking_of,
    tool_choice,
    with_room,
)
from rxloop.providers.codecs.fields import dumps, own_tools
from rxloop.providers.codecs.message_cache import built
from rxloop.providers.codecs.schemas import adapt_answer
from rxloop.providers.codecs.schemas.dialects import CLAUDE
from rxloop.providers.codecs.schemas.strict_forms import demands
from rxloop.providers.codecs.tools import ToolAdapter, VendorTool, VendorTools

BINDING = "thinking-binding-controls-2026-08-01"
"""Beta feature that drops thinking which no longer matches its context, instead of rejecting the request."""

_BREAKPOINTS = 4
"""Maximum number of cache breakpoints in a request."""

_SCHEMA = "Answer with JSON alone, without a word or a fence around it, that fits this JSON Schema:\n"

_BY_DEFAULT = PromptCache()


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
        able: Abilities of the model.
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
        able: Abilities,
        betas: Sequence[str],
        citations: bool,
        key: str = KEY,
    ) -> None:
        self._model = model
        self._name = name
        self._stream = stream
        self._host = host
        self._betas = betas
        self._able = able
        self.keeps_to_schema = able.schemas and host.schemas and not citations
        self._forms = Forms(MediaRules(fetches=host.fetches, citations=citations), key)
        self._told: set[str] = set()
        self._format: tuple[dict[str, Any] | None, dict[str, Any] | None, str | None] = (None, None, None)
        self.tools = ToolAdapter(CLAUDE, strict=able.schemas and host.schemas)
        self._tools: tuple[VendorTools | None, HeldTools] = (None, HeldTools(b"", ()))

    def encode(self, request: ModelRequest, notice: Notice) -> bytes:
        """Encode the request body. `notice` is called if unsupported parts are dropped.

        Raises:
            BadRequest: Multiple answers were requested.
        """
        settings, extra = request.settings, request.settings.extra_body
        tell = partial(self._tell, notice)

        def lost(code: NoticeCode, what: str) -> None:
            notice(code, f"{self._name} does not receive {what}")

        check(settings)
        first = tuple(takewhile(lambda message: message.role == "system", request.messages))
        schema, words = self._schema(request)
        thinking, effort = thinking_of(settings, self._able, tell)
        cache = _Breakpoints(request, len(first))
        if cache.left:
            tell(f"more than {_BREAKPOINTS} cache breakpoints")
        conversation = self._conversation(request, len(first), cache, lost)
        ends_alone = self._able.prefill and (thinking or {}).get("type") != "enabled" and schema is None
        conversation.end(prefill=ends_alone)
        thinking = self._fitting(request, thinking, conversation, tell)
        tools, notes = self._all_tools(request, conversation, cache, tell)
        self.tools.tell(notes, self._changes(request), self._name, notice)
        most, thinking = with_room(
            settings.max_tokens, thinking, self._able, stream=self._stream, shared=self._interleaves(request), tell=tell
        )
        thinking = extra.get("thinking", thinking)
        fields = self._head(settings)
        fields["max_tokens"] = most
        if thinking is not None:
            fields["thinking"] = thinking
        fields |= plain_fields(settings, self._able, _object(thinking), tell)
        if config := {name: value for name, value in (("effort", effort), ("format", schema)) if value}:
            fields["output_config"] = config
        if tools and (request.tools or settings.server_tools):
            if choice := tool_choice(settings, self._able, _object(thinking), tell, self._sent_name):
                fields["tool_choice"] = choice
        elif tools:
            fields["tool_choice"] = {"type": "none"}
        if container := _container(conversation, settings.server_tools):
            fields["container"] = container
        for name, value in extra.items():
            config = fields.get(name) if name == "output_config" else None
            both = isinstance(config, dict) and isinstance(value, dict)
            fields[name] = {**cast("dict[str, Any]", config), **cast("dict[str, Any]", value)} if both else value
        parts = [dumps(fields)[:-1]]
        if "system" not in extra and (system := self._system((*request.system, *first), words, cache, lost)):
            parts += (b',"system":[', system, b"]")
        if "tools" not in extra and tools:
            parts += (b',"tools":[', tools, b"]")
        if "messages" not in extra:
            parts += (b',"messages":[', conversation.encoded, b"]")
        parts.append(b"}")
        return b"".join(parts)

    def _head(self, settings: ModelSettings) -> dict[str, Any]:
        host = self._host
        fields: dict[str, Any] = {} if host.version is None else {"anthropic_version": host.version}
        if host.betas_in_body and (betas := _betas_of(settings) or self._betas):
            fields["anthropic_beta"] = list(betas)
        if host.named:
            fields["model"] = self._model
        if host.says_stream:
            fields["stream"] = self._stream
        return fields

    def _schema(self, request: ModelRequest) -> tuple[dict[str, Any] | None, str | None]:
        """Return the answer format, or an instruction if the schema cannot be enforced."""
        schema = request.response_schema
        if schema is None or not self.keeps_to_schema:
            return None, None
        if self._format[0] is not schema:
            answer, changes = adapt_answer(schema, CLAUDE, strict=True)
            self._format = (schema, answer.schema if answer.strict else None, changes)
        found = self._format[1]
        if found is None:
            return None, _SCHEMA + dumps(schema).decode()
        return {"type": "json_schema", "schema": found}, None

    def _changes(self, request: ModelRequest) -> str | None:
        """Describe response schema changes, if any."""
        sent = self.keeps_to_schema and request.response_schema is not None
        return self._format[2] if sent else None

    def _conversation(self, request: ModelRequest, first: int, cache: _Breakpoints, notice: Notice) -> Conversation:
        """Build the conversation without the leading system prompt."""
        messages, late = request.messages, self._able.late_system and self._host.late_system
        fixed = self._marked(messages, cache.fixed, first, notice)
        moving = self._marked(messages, cache.moving, first, notice)

        def new() -> Conversation:
            return Conversation(self._forms, late_system=late)

        def add(conversation: Conversation, place: int, message: Message) -> None:
            control = cache.control if place in fixed or place in moving else b""
            conversation.add(Place(message, self._forms.form(message, notice), control))

        # Moving breakpoints must not affect the cached prefix.
        end = min(moving, default=len(messages))
        key = (self._forms.key, late, *((cache.control, *sorted(fixed)) if fixed else ()))
        conversation = built(messages, key, new, add, first=first, end=end)
        for place in range(end, len(messages)):
            add(conversation, place, messages[place])
        for message in request.tail:
            conversation.add(Place(message, self._forms.form(message, notice)))
        return conversation

    def _marked(self, messages: Sequence[Message], wanted: Iterable[int], first: int, notice: Notice) -> set[int]:
        """Find breakpoint indexes, moving each one back to a message that supports it."""
        form = self._forms.form
        nearest = ((n for n in range(place, first - 1, -1) if form(messages[n], notice).cut >= 0) for place in wanted)
        return {place for places in nearest if (place := next(places, None)) is not None}

    def _fitting(
        self, request: ModelRequest, thinking: dict[str, Any] | None, conversation: Conversation, tell: Tell
    ) -> dict[str, Any] | None:
        """Return the thinking settings that the conversation allows."""
        if thinking is not None and thinking["type"] == "enabled":
            working = conversation.working
            if working.begun and not working.thinks:
                tell("thinking, because this turn began without it")
                return None
        if BINDING in self._switched_on(request) and self._able.binds_thinking and conversation.has_thinking:
            # Thinking that precedes a change of the prompt or the tools is dropped instead of rejected.
            binding = {"block_binding": {"prefix_mismatch_behavior": "drop_block"}}
            return {**(thinking or {"type": "adaptive"}), **binding}
        return thinking

    def _switched_on(self, request: ModelRequest) -> Sequence[str]:
        """Return enabled beta features. Request headers replace the configured ones."""
        for name, value in request.settings.headers.items():
            if name.lower() == "anthropic-beta":
                return [beta.strip() for beta in value.split(",")]
        return self._betas

    def _interleaves(self, request: ModelRequest) -> bool:
        """Return True if the thinking between tool calls shares one budget."""
        asked = any(beta.startswith("interleaved-thinking") for beta in self._switched_on(request))
        return asked and bool(request.tools or request.settings.server_tools)

    def _system(self, messages: Sequence[Message], words: str | None, cache: _Breakpoints, notice: Notice) -> bytes:
        forms = [form for message in messages if (form := self._forms.form(message, notice)).blocks]
        blocks = [form.marked(cache.control) if cache.system and form is forms[-1] else form.blocks for form in forms]
        if words is not None:
            blocks.append(dumps({"type": "text", "text": words}))
        return b",".join(blocks)

    def _all_tools(
        self, request: ModelRequest, conversation: Conversation, cache: _Breakpoints, tell: Tell
    ) -> tuple[bytes, tuple[str, ...]]:
        """Encode tools, and also describe the changes."""
        server_tools, foreign = own_tools(request.settings.server_tools, "anthropic")
        for tool in foreign:
            tell(tool)
        # Vendor-defined client tools such as `bash` replace our definition.
        theirs = {tool.get("name") for tool in server_tools}
        tools = tuple(tool for tool in request.tools if tool.name not in theirs) if theirs else request.tools
        adapted = self.tools.adapt(tools)
        if self._tools[0] is not adapted:
            self._tools = (adapted, encoded_tools(adapted, self.tools))
        ours, notes = self._tools[1]
        if not ours and not server_tools and conversation.has_calls:
            return remembered_tools(chain(request.messages, request.tail)), notes
        if ours and cache.tools:
            ours = b"%b,%b}" % (ours[:-1], cache.control)
        return b",".join(filter(None, (ours, dumps(server_tools)[1:-1] if server_tools else b""))), notes

    def _sent_name(self, name: str) -> str:
        return name if self._tools[0] is None else self._tools[0].name_of(name)

    def _tell(self, notice: Notice, what: str) -> None:
        if what not in self._told and len(self._told) < 100:
            self._told.add(what)
            notice("left_out", f"{self._name} does not accept {what}")


class _Breakpoints:
    """Cache breakpoints for a request."""

    def __init__(self, request: ModelRequest, first: int) -> None:
        settings = request.settings
        cache = settings.prompt_cache
        if cache is None:
            # Breakpoints are managed by the caller when using `cache_control`.
            cache = PromptCache(points=[]) if "cache_control" in settings.extra_body else _BY_DEFAULT
        ttl = {} if cache.ttl == "5m" else {"ttl": cache.ttl}
        self.control = b'"cache_control":' + dumps({"type": "ephemeral", **ttl})
        taken = sum("cache_control" in tool for tool in settings.server_tools)
        taken += "cache_control" in settings.extra_body
        points = cache.points[: max(0, _BREAKPOINTS - taken)]
        self.left = len(points) < len(cache.points)
        """True if more breakpoints were requested than the vendor accepts."""
        self.tools = "tools" in points
        self.system = "system" in points
        count = len(request.messages)
        places = [-1 if point == "newest" else int(point) for point in points if point not in ("tools", "system")]
        self.fixed = {place for place in places if first <= place < count}
        """Message indexes from the start, without the system prompt."""
        self.moving = {count + place for place in places if first - count <= place < 0}
        """Message indexes relative to the end."""


def _container(conversation: Conversation, server_tools: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the container to reuse for this turn."""
    if not any(str(tool.get("type")).startswith("code_execution") for tool in server_tools):
        return None
    return conversation.working.container


def _betas_of(settings: ModelSettings) -> list[str]:
    """Return beta features from request headers."""
    values = (value for name, value in settings.headers.items() if name.lower() == "anthropic-beta")
    return [beta.strip() for value in values for beta in value.split(",") if beta.strip()]


def _object(value: Any) -> dict[str, Any] | None:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


_STRICT, _OPTIONAL, _UNIONS = 20, 24, 16
"""Limits for strict tools, their optional arguments and unions."""

_REMEMBERED = 50


class HeldTools(NamedTuple):
    """Encoded definitions of tools, separated by commas."""

    encoded: bytes
    notes: tuple[str, ...]
    """Descriptions of the changes."""


def encoded_tools(tools: VendorTools, adapter: ToolAdapter) -> HeldTools:
    """Encode tool definitions, enforcing only as many as allowed."""
    made: list[bytes] = []
    notes = list(tools.notes)
    held = optional = unions = 0
    for tool in tools.tools:
        if tool.strict:
            more = demands(tool.schema)
            if held < _STRICT and optional + more[0] <= _OPTIONAL and unions + more[1] <= _UNIONS:
                held, optional, unions = held + 1, optional + more[0], unions + more[1]
            else:
                why = "there are too many strict tools, or they have too many optional arguments"
                notes.append(f"the tool {tool.definition.name!r} (it is sent without strict: {why})")
                tool = adapter.loosened(tool)
        made.append(dumps(_tool(tool)))
    return HeldTools(b",".join(made), tuple(notes))


def remembered_tools(messages: Iterable[Message]) -> bytes:
    """Encode minimal definitions of the called tools, because calls of undefined tools are rejected."""
    names: dict[str, None] = {}
    for message in messages:
        for call in message.tool_calls:
            if len(names) < _REMEMBERED:
                names[CLAUDE.fitting_tool_name(call.name)] = None
    return b",".join(dumps({"name": name, "input_schema": {"type": "object"}}) for name in names)


def _tool(tool: VendorTool) -> dict[str, Any]:
    made: dict[str, Any] = {"name": tool.name}
    if tool.description:
        made["description"] = tool.description
    made["input_schema"] = tool.schema
    if tool.strict:
        made["strict"] = True
    return made
