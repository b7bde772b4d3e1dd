"""Request body of `generateContent`."""

from __future__ import annotations

from itertools import chain, takewhile
from typing import Any, cast

from rxloop.errors import BadRequest
from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.messages import Message
from rxloop.protocol.settings import ModelSettings
from rxloop.providers.codecs import Notice
from rxloop.providers.codecs.gemini.contents import Contents
from rxloop.providers.codecs.gemini.model_rules import ModelRules
from rxloop.providers.codecs.media import flatten_message
from rxloop.providers.codecs.schemas import adapt_answer_schema
from rxloop.providers.codecs.schemas.dialects import GEMINI
from rxloop.providers.codecs.tool_calls import encode_json
from rxloop.providers.codecs.tools import ToolAdapter, VendorTool, VendorTools
from rxloop.providers.vendors import Preset

_TIERS = ("flex", "standard", "priority")

_MAX_STOPS = 5

_MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY"}

_REPLACED = frozenset(("responseJsonSchema", "responseSchema"))
"""Objects replaced instead of merged."""

_CACHED_FIELDS = ("systemInstruction", "tools", "toolConfig")
"""Fields that must not be combined with cached content."""


class RequestEncoder:
    """Request encoder for one model, caching encoded messages, tools and schemas."""

    def __init__(self, rules: ModelRules, preset: Preset, key: str) -> None:
        self._rules = rules
        self._name = f"{preset.name}:{rules.model}"
        self._on_vertex = preset.name == "vertex"
        self._contents = Contents(rules, key, self._name)
        self._reported: set[str] = set()
        self.tools = ToolAdapter(GEMINI, strict=False)
        self._tools: tuple[VendorTools | None, bytes] = (None, b"")
        self._schema: tuple[dict[str, Any] | None, dict[str, Any], str | None] = (None, {}, None)

    def encode(self, request: ModelRequest, notice: Notice) -> bytes:
        """Encode the request body. `notice` is called if unsupported parts are dropped.

        Raises:
            BadRequest: Multiple answers were requested.
        """
        extra = request.settings.extra_body
        adapted = self.tools.adapt(request.tools)
        fields = _merge_fields(self._make_fields(request, adapted, notice), extra)
        self._check_count(fields.get("generationConfig"))
        cached = extra.get("cachedContent") is not None
        if not cached:
            self._report_changes(request, adapted, notice)
        tools = b"" if "tools" in extra else self._encode_tools(request, adapted, notice)
        if cached and (tools or any(name in fields for name in _CACHED_FIELDS)):
            self._report("the system prompt and the tools, which the cached content includes", notice)
            fields = {name: value for name, value in fields.items() if name not in _CACHED_FIELDS or name in extra}
            tools = b""
        parts = [encode_json(fields)[:-1]] if fields else [b"{"]
        if "contents" not in extra:
            first = sum(1 for _ in takewhile(_is_system, request.messages))
            contents = self._contents.encode(request.messages, first, request.tail, notice)
            parts += (b',"contents":[' if fields else b'"contents":[', contents, b"]")
            fields = fields or {"contents": None}
        if tools:
            parts.append(b'%b"tools":%b' % (b"," if fields else b"", tools))
        parts.append(b"}")
        return b"".join(parts)

    def _make_fields(self, request: ModelRequest, tools: VendorTools, notice: Notice) -> dict[str, Any]:
        settings = request.settings
        fields: dict[str, Any] = {}
        first = chain(request.system, takewhile(_is_system, request.messages))
        system = [{"text": text} for message in first if (text := flatten_message(message)[0])]
        if system:
            fields["systemInstruction"] = {"parts": system}
        config = self._make_generation_config(request, notice)
        if config:
            fields["generationConfig"] = config
        if choice := self._make_tool_config(request, tools):
            fields["toolConfig"] = choice
        if settings.service_tier in _TIERS:
            fields["serviceTier"] = settings.service_tier
        elif settings.service_tier is not None:
            self._report(f"the service tier {settings.service_tier!r}; use {', '.join(map(repr, _TIERS))}", notice)
        if request.tools and settings.parallel_tool_calls is False:
            self._report("parallel_tool_calls=False", notice)
        return fields

    def _make_tool_config(self, request: ModelRequest, tools: VendorTools) -> dict[str, Any]:
        settings = request.settings
        config: dict[str, Any] = {}
        include = (
            any("type" not in tool for tool in settings.server_tools) and self._rules.signs and not self._on_vertex
        )
        if include:
            # Server tools then report their calls, and can be combined with functions.
            config["includeServerSideToolInvocations"] = True
        # With server tools, Gemini rejects the explicit value of the default mode.
        if request.tools and settings.tool_choice is not None and not (include and settings.tool_choice == "auto"):
            config["functionCallingConfig"] = _make_choice(settings.tool_choice, tools)
        return config

    def _make_generation_config(self, request: ModelRequest, notice: Notice) -> dict[str, Any]:
        settings = request.settings
        config: dict[str, Any] = {
            "temperature": settings.temperature,
            "topP": settings.top_p,
            "maxOutputTokens": settings.max_tokens,
            "seed": settings.seed,
            "stopSequences": settings.stop or None,
            "thinkingConfig": self._make_thinking_config(settings, notice),
        }
        if settings.stop and len(settings.stop) > _MAX_STOPS:
            self._report(f"more than {_MAX_STOPS} stop sequences", notice)
            config["stopSequences"] = settings.stop[:_MAX_STOPS]
        if settings.seed is not None and not -(2**31) <= settings.seed < 2**31:
            self._report(f"the seed {settings.seed}, which exceeds 32 bits", notice)
            config["seed"] = None
        schema = request.response_schema
        if schema is not None and self._accepts_schema(request):
            if self._schema[0] is not schema:
                answer, changes = adapt_answer_schema(schema, GEMINI)
                self._schema = (schema, answer.schema, changes)
            config |= {"responseMimeType": "application/json", "responseJsonSchema": self._schema[1]}
        return {name: value for name, value in config.items() if value is not None}

    def _report_changes(self, request: ModelRequest, tools: VendorTools, notice: Notice) -> None:
        """Publish a notice about the changed schemas and descriptions of this request."""
        schema = request.response_schema
        is_sent = schema is not None and self._schema[0] is schema and self._accepts_schema(request)
        self.tools.tell(tools.notes, self._schema[2] if is_sent else None, self._name, notice)

    def _accepts_schema(self, request: ModelRequest) -> bool:
        if request.tools or request.settings.server_tools:
            return self._rules.schema_with_tools
        return self._rules.answers_json

    def _make_thinking_config(self, settings: ModelSettings, notice: Notice) -> dict[str, Any] | None:
        effort, budget, rules = settings.reasoning_effort, settings.thinking_budget, self._rules
        if effort is None and budget is None:
            return None
        if rules.thinks is None:
            self._report("reasoning_effort and thinking_budget, since the model's thinking is unknown", notice)
            return None
        if budget is not None:
            valid = rules.fit_budget(budget)
            if valid != budget:
                self._report(f"thinking_budget={budget}; {valid} is used", notice)
        elif rules.thinks == "budget":
            valid = rules.find_budget(effort or "")
            if valid and effort == "none":
                self._report("reasoning_effort='none', since the model always thinks", notice)
        else:
            level = rules.find_level(effort or "")
            if level != effort:
                self._report(f"reasoning_effort={effort!r}; {level!r} is used", notice)
            return {"thinkingLevel": level.upper(), "includeThoughts": effort != "none"}
        return {"thinkingBudget": valid, "includeThoughts": valid != 0}

    def _encode_tools(self, request: ModelRequest, adapted: VendorTools, notice: Notice) -> bytes:
        tools: list[bytes] = []
        if request.tools:
            if self._tools[0] is not adapted:
                self._tools = (adapted, encode_json({"functionDeclarations": list(map(_declare, adapted.tools))}))
            tools.append(self._tools[1])
        for tool in request.settings.server_tools:
            if "type" in tool:
                self._report(f"the tool {tool['type']!r} of another vendor", notice)
            else:
                tools.append(encode_json(tool))
        return b"[%b]" % b",".join(tools) if tools else b""

    def _check_count(self, config: Any) -> None:
        for name in ("candidateCount", "candidate_count"):
            count = cast("dict[str, Any]", config).get(name) if isinstance(config, dict) else None
            if count not in (None, 1):
                raise BadRequest(f"{self._name}: {name} must be 1, got {count!r}; remove it from extra_body")

    def _report(self, omission: str, notice: Notice) -> None:
        """Publish a notice about an omission, once for all requests."""
        if omission not in self._reported and len(self._reported) < 100:
            self._reported.add(omission)
            notice("left_out", f"{self._name} does not accept {omission}")


def _is_system(message: Message) -> bool:
    return message.role == "system"


def _make_choice(choice: str, tools: VendorTools) -> dict[str, Any]:
    if choice in _MODES:
        return {"mode": _MODES[choice]}
    return {"mode": "ANY", "allowedFunctionNames": [tools.find_vendor_name(choice)]}


def _declare(tool: VendorTool) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parametersJsonSchema": tool.schema}


def _merge_fields(fields: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    """Merge fields, preferring `extra_body`."""
    merged = dict(fields)
    for name, value in extra.items():
        field = fields.get(name)
        if isinstance(field, dict) and isinstance(value, dict) and name not in _REPLACED:
            value = _merge_fields(cast("dict[str, Any]", field), cast("dict[str, Any]", value))
        merged[name] = value
    return merged
