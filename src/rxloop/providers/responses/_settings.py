"""What a request says besides its conversation."""

from __future__ import annotations

from typing import Any

from rxloop.errors import BadRequest
from rxloop.pipeline.requests import ModelRequest, ToolDefinition
from rxloop.protocol.settings import ModelSettings
from rxloop.providers.presets import Preset
from rxloop.providers.vendors._openai_names import never_reasons, wants_responses
from rxloop.providers.writing._schemas import response_format

_LEAST_TOKENS = 16
"""OpenAI refuses to be held to fewer."""


class SettingsEncoder:
    """Encodes the settings for one model; what it was not sent is told once."""

    def __init__(self, model: str, preset: Preset, *, stream: bool, store: bool, summary: str | None) -> None:
        self.name = model if preset.nameless else f"{preset.name}:{model}"
        self._model = model
        self._preset = preset
        self._stream = stream
        self._store = store
        self._summary = summary
        self._reasons = wants_responses(model)
        self._never_reasons = never_reasons(model)
        self._format: tuple[dict[str, Any] | None, dict[str, Any] | None] = (None, None)

    @property
    def takes_reasoning(self) -> bool:
        """Whether the model may be sent what models have reasoned; OpenAI's others refuse it."""
        return not self._never_reasons

    def fields(self, request: ModelRequest) -> tuple[dict[str, Any], list[str]]:
        """The fields of the request, and what of the settings is left out.

        Raises:
            BadRequest: What is asked for has no meaning here.
        """
        settings = request.settings
        self._check(settings)
        fields: dict[str, Any] = {"model": self._model, "stream": self._stream, "store": self._store}
        left_out: list[str] = []
        self._add_reasoning(fields, settings, left_out)
        self._add_sampling(fields, settings, left_out)
        if settings.service_tier is not None:
            fields["service_tier"] = settings.service_tier
        if request.response_schema is not None and (self._preset.response_format_with_tools or not request.tools):
            answer_format = self._text_format(request.response_schema)
            if answer_format is not None:
                fields["text"] = {"format": answer_format}
        if request.tools or settings.server_tools:
            if settings.tool_choice is not None:
                fields["tool_choice"] = _tool_choice(settings.tool_choice, request)
            if settings.parallel_tool_calls is not None:
                fields["parallel_tool_calls"] = settings.parallel_tool_calls
        return fields, left_out

    def tool(self, tool: ToolDefinition) -> dict[str, Any]:
        """The definition of one tool. `strict` is always said: without it the vendor would try to be strict."""
        return {
            "type": "function",
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
            "strict": tool.strict and self._preset.strict,
        }

    def _check(self, settings: ModelSettings) -> None:
        extra = settings.extra_body
        if extra.get("n", 1) != 1:
            raise BadRequest(f"{self.name} gives one answer to a request, not n={extra['n']!r}")
        if extra.get("background") and not self._stream:
            raise BadRequest(
                f"{self.name}: an answer that is made in the background must be streamed "
                "(stream=True), since nobody asks for it again"
            )

    def _add_reasoning(self, fields: dict[str, Any], settings: ModelSettings, left_out: list[str]) -> None:
        effort = settings.reasoning_effort
        if settings.thinking_budget is not None:
            left_out.append("thinking_budget: reasoning_effort says how much")
        if self._never_reasons:
            if effort not in (None, "none"):
                left_out.append("reasoning_effort, since it does not reason")
            return
        reasoning = {"effort": effort, "summary": self._summary}
        if told := {name: value for name, value in reasoning.items() if value is not None}:
            fields["reasoning"] = told
        if self._reasons or effort not in (None, "none"):
            fields["include"] = ["reasoning.encrypted_content"]

    def _add_sampling(self, fields: dict[str, Any], settings: ModelSettings, left_out: list[str]) -> None:
        fixed = self._reasons and settings.reasoning_effort != "none"
        for name in ("temperature", "top_p"):
            if (value := getattr(settings, name)) is None:
                continue
            if fixed:
                left_out.append(f"{name}, since it reasons")
            else:
                fields[name] = value
        left_out += [name for name in ("stop", "seed") if getattr(settings, name) is not None]
        if (most := settings.max_tokens) is not None:
            if most < _LEAST_TOKENS and (self._reasons or self._never_reasons):
                left_out.append(f"max_tokens={most}: it takes no fewer than {_LEAST_TOKENS}")
                most = _LEAST_TOKENS
            fields["max_output_tokens"] = most

    def _text_format(self, schema: dict[str, Any]) -> dict[str, Any] | None:
        if self._preset.response_format != "json_schema":
            return None if self._preset.response_format is None else {"type": "json_object"}
        if self._format[0] is not schema:
            asked = response_format(schema, self._preset.strict)["json_schema"]
            self._format = (schema, {"type": "json_schema", **asked})
        return self._format[1]


def _tool_choice(choice: str, request: ModelRequest) -> Any:
    if choice in ("auto", "none", "required"):
        return choice
    if any(tool.name == choice for tool in request.tools):
        return {"type": "function", "name": choice}
    for tool in request.settings.server_tools:
        if tool.get("type") == "custom" and tool.get("name") == choice:
            return {"type": "custom", "name": choice}
        if tool.get("type") == "mcp" and tool.get("server_label") == choice:
            return {"type": "mcp", "server_label": choice}
        if tool.get("type") == choice:
            return {"type": "allowed_tools", "mode": "required", "tools": [{"type": choice}]}
    return {"type": "function", "name": choice}
