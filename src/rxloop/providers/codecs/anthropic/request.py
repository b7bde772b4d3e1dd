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
"""The beta by which thinking that does not fit any more is dropped, and not refused."""

_BREAKPOINTS = 4
"""The most places in one request up to which it may be kept."""

_SCHEMA = "Answer with JSON alone, without a word or a fence around it, that fits this JSON Schema:\n"

_BY_DEFAULT = PromptCache()


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Where Claude is served, as far as it changes the body of a request."""

    version: str | None = None
    """What `anthropic_version` in the body says, where that stands there and not in a header."""
    named: bool = True
    """The body names the model."""
    says_stream: bool = True
    """The body says whether the answer is streamed."""
    betas_in_body: bool = False
    """Betas stand in the body, and not in a header."""
    fetches: bool = True
    """It fetches images and documents by their URL."""
    late_system: bool = True
    """It takes system messages in the middle of a conversation, if the model does."""
    schemas: bool = True
    """It holds answers to a JSON Schema, if the model can be held to one."""


class MessagesEncoder:
    """Encodes the requests for one model.

    A message keeps the blocks it became, and so do the tools, so that a request costs what is new in it.

    Args:
        model: The vendor's name of the model.
        stream: Whether answers are streamed.
        host: Where the model is served.
        able: What the model takes.
        betas: What is not for everybody yet and is to be switched on.
        citations: The model is to say what in the documents of the conversation its words rest on.
        key: Under which name the pieces of its own messages are kept.
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
        """The body of the request; what the model does not take is left out, and told to `notice`.

        Raises:
            BadRequest: Several answers are asked for.
        """
        settings, extra = request.settings, request.settings.extra_body
        tell = partial(self._tell, notice)

        def lost(code: NoticeCode, what: str) -> None:
            notice(code, f"{self._name} does not get {what}")

        check(settings)
        first = tuple(takewhile(lambda message: message.role == "system", request.messages))
        schema, words = self._schema(request)
        thinking, effort = thinking_of(settings, self._able, tell)
        cache = _Breakpoints(request, len(first))
        if cache.left:
            tell(f"the places of the cache after the first {_BREAKPOINTS}")
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
        """The format of the answer, or words in its place where its schema cannot be put so."""
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
        """What of the schema of the answer is not sent as it is."""
        sent = self.keeps_to_schema and request.response_schema is not None
        return self._format[2] if sent else None

    def _conversation(self, request: ModelRequest, first: int, cache: _Breakpoints, notice: Notice) -> Conversation:
        """What the messages make, from the first one that is no system prompt."""
        messages, late = request.messages, self._able.late_system and self._host.late_system
        fixed = self._marked(messages, cache.fixed, first, notice)
        moving = self._marked(messages, cache.moving, first, notice)

        def new() -> Conversation:
            return Conversation(self._forms, late_system=late)

        def add(conversation: Conversation, place: int, message: Message) -> None:
            control = cache.control if place in fixed or place in moving else b""
            conversation.add(Place(message, self._forms.form(message, notice), control))

        # What moves on with each request stands behind what is kept for the next one.
        end = min(moving, default=len(messages))
        key = (self._forms.key, late, *((cache.control, *sorted(fixed)) if fixed else ()))
        conversation = built(messages, key, new, add, first=first, end=end)
        for place in range(end, len(messages)):
            add(conversation, place, messages[place])
        for message in request.tail:
            conversation.add(Place(message, self._forms.form(message, notice)))
        return conversation

    def _marked(self, messages: Sequence[Message], wanted: Iterable[int], first: int, notice: Notice) -> set[int]:
        """The places that get a breakpoint: those that are wanted, or the nearest ones before that may have it."""
        form = self._forms.form
        nearest = ((n for n in range(place, first - 1, -1) if form(messages[n], notice).cut >= 0) for place in wanted)
        return {place for places in nearest if (place := next(places, None)) is not None}

    def _fitting(
        self, request: ModelRequest, thinking: dict[str, Any] | None, conversation: Conversation, tell: Tell
    ) -> dict[str, Any] | None:
        """The thinking that the conversation allows."""
        if thinking is not None and thinking["type"] == "enabled":
            working = conversation.working
            if working.begun and not working.thinks:
                tell("thinking, since this turn was begun without it")
                return None
        if BINDING in self._switched_on(request) and self._able.binds_thinking and conversation.has_thinking:
            # What was thought before a prompt or a tool has changed is dropped, and not refused.
            binding = {"block_binding": {"prefix_mismatch_behavior": "drop_block"}}
            return {**(thinking or {"type": "adaptive"}), **binding}
        return thinking

    def _switched_on(self, request: ModelRequest) -> Sequence[str]:
        """The betas of a request: those of its own headers stand in the place of the others."""
        for name, value in request.settings.headers.items():
            if name.lower() == "anthropic-beta":
                return [beta.strip() for beta in value.split(",")]
        return self._betas

    def _interleaves(self, request: ModelRequest) -> bool:
        """Whether the thinking between calls of tools shares one budget."""
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
        """The tools, and what was changed in them."""
        server_tools, foreign = own_tools(request.settings.server_tools, "anthropic")
        for tool in foreign:
            tell(tool)
        # Some are defined by the vendor and carried out by us, such as its `bash`: then its definition stands for ours.
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
            notice("left_out", f"{self._name} does not take {what}")


class _Breakpoints:
    """Up to where a request is to be kept in the cache."""

    def __init__(self, request: ModelRequest, first: int) -> None:
        settings = request.settings
        cache = settings.prompt_cache
        if cache is None:
            # Somebody who places them, or leaves it to the vendor, needs none of ours.
            cache = PromptCache(points=[]) if "cache_control" in settings.extra_body else _BY_DEFAULT
        ttl = {} if cache.ttl == "5m" else {"ttl": cache.ttl}
        self.control = b'"cache_control":' + dumps({"type": "ephemeral", **ttl})
        taken = sum("cache_control" in tool for tool in settings.server_tools)
        taken += "cache_control" in settings.extra_body
        points = cache.points[: max(0, _BREAKPOINTS - taken)]
        self.left = len(points) < len(cache.points)
        """There are more of them than the vendor takes."""
        self.tools = "tools" in points
        self.system = "system" in points
        count = len(request.messages)
        places = [-1 if point == "newest" else int(point) for point in points if point not in ("tools", "system")]
        self.fixed = {place for place in places if first <= place < count}
        """Places among the messages that are no system prompt, counted from the first message."""
        self.moving = {count + place for place in places if first - count <= place < 0}
        """Those that are counted from the newest message."""


def _container(conversation: Conversation, server_tools: Sequence[Mapping[str, Any]]) -> str | None:
    """Where the code of this turn runs, so that it goes on there."""
    if not any(str(tool.get("type")).startswith("code_execution") for tool in server_tools):
        return None
    return conversation.working.container


def _betas_of(settings: ModelSettings) -> list[str]:
    """What the headers of a request switch on."""
    values = (value for name, value in settings.headers.items() if name.lower() == "anthropic-beta")
    return [beta.strip() for value in values for beta in value.split(",") if beta.strip()]


def _object(value: Any) -> dict[str, Any] | None:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


_STRICT, _OPTIONAL, _UNIONS = 20, 24, 16
"""The most strict tools of a request, and the optional arguments and unions in all of them."""

_REMEMBERED = 50


class HeldTools(NamedTuple):
    """The definitions of tools, with commas between them."""

    encoded: bytes
    notes: tuple[str, ...]
    """What was changed in them."""


def encoded_tools(tools: VendorTools, adapter: ToolAdapter) -> HeldTools:
    """Encode the definitions; the vendor enforces only so many of them."""
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
    """Bare definitions of the tools that are called in messages: calls are refused where no tool is defined."""
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
