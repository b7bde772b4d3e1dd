"""Responses API requests and settings."""

from __future__ import annotations

from collections.abc import Sequence
from mimetypes import guess_extension
from typing import Any, cast

from rxloop.errors import BadRequest
from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.media import ResolvedMedia, resolve
from rxloop.protocol.messages import Message, Part, TextPart
from rxloop.protocol.settings import ModelSettings
from rxloop.protocol.step_events import NoticeCode
from rxloop.providers.codecs import Notice
from rxloop.providers.codecs.fields import split_tools
from rxloop.providers.codecs.media import IMAGES, add_change, describe_omitted, flatten_message, format_file
from rxloop.providers.codecs.message_cache import build_messages, get_form, store_form
from rxloop.providers.codecs.provider_state import find_foreign_states
from rxloop.providers.codecs.responses.conversation import (
    Chain,
    Form,
    Items,
    copy_bytes,
    encode_item,
    encode_result,
    extend_digest,
    to_answer_items,
    to_call_id,
)
from rxloop.providers.codecs.schemas import make_response_format
from rxloop.providers.codecs.schemas.dialects import OPENAI
from rxloop.providers.codecs.tool_calls import encode_json
from rxloop.providers.codecs.tools import ToolAdapter, VendorTool, VendorTools
from rxloop.providers.vendors import Preset
from rxloop.providers.vendors.model_names import never_reasons, wants_responses

_MIN_TOKENS = 16
"""Minimum output limit that OpenAI accepts."""


class SettingsEncoder:
    """Settings encoder for one model."""

    def __init__(self, model: str, preset: Preset, *, stream: bool, store: bool, summary: str | None) -> None:
        self.name = model if preset.nameless else f"{preset.name}:{model}"
        self._model = model
        self._preset = preset
        self._stream = stream
        self._store = store
        self._summary = summary
        self._reasons = wants_responses(model)
        self._never_reasons = never_reasons(model)
        self._format: tuple[dict[str, Any] | None, dict[str, Any] | None, str | None] = (None, None, None)
        self.tools = ToolAdapter(OPENAI, strict=preset.strict, longest_description=preset.longest_description)

    @property
    def takes_reasoning(self) -> bool:
        """True if the model accepts reasoning items. OpenAI's models without reasoning reject them."""
        return not self._never_reasons

    @property
    def preset(self) -> Preset:
        """Settings of the vendor."""
        return self._preset

    def make_fields(self, request: ModelRequest) -> tuple[dict[str, Any], list[str]]:
        """Return request fields, and descriptions of dropped settings.

        Raises:
            BadRequest: Multiple answers or an unstreamed background response were requested.
        """
        settings = request.settings
        self._check(settings)
        fields: dict[str, Any] = {"model": self._model, "stream": self._stream, "store": self._store}
        omitted: list[str] = []
        self._add_reasoning(fields, settings, omitted)
        self._add_sampling(fields, settings, omitted)
        if settings.service_tier is not None:
            fields["service_tier"] = settings.service_tier
        if request.response_schema is not None and (self._preset.response_format_with_tools or not request.tools):
            answer_format = self._make_text_format(request.response_schema)
            if answer_format is not None:
                fields["text"] = {"format": answer_format}
        if request.tools or settings.server_tools:
            if settings.tool_choice is not None:
                fields["tool_choice"] = _make_choice(settings.tool_choice, request, self.tools.adapt(request.tools))
            if settings.parallel_tool_calls is not None:
                fields["parallel_tool_calls"] = settings.parallel_tool_calls
        return fields, omitted

    def find_changes(self, fields: dict[str, Any]) -> str | None:
        """Describe response schema changes, if any."""
        is_sent = "text" in fields and fields["text"].get("format") is self._format[1]
        return self._format[2] if is_sent else None

    def encode_tool(self, tool: VendorTool) -> dict[str, Any]:
        """Return the definition of a tool. `strict` is always sent, because the vendor's default is to try it."""
        return {
            "type": "function",
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.schema,
            "strict": tool.strict,
        }

    def _check(self, settings: ModelSettings) -> None:
        extra = settings.extra_body
        if extra.get("n", 1) != 1:
            raise BadRequest(f"{self.name} returns one answer per request, got n={extra['n']!r}")
        if extra.get("background") and not self._stream:
            raise BadRequest(
                f"{self.name}: a background response must be streamed (stream=True), since it is not polled"
            )

    def _add_reasoning(self, fields: dict[str, Any], settings: ModelSettings, omitted: list[str]) -> None:
        effort = settings.reasoning_effort
        if settings.thinking_budget is not None:
            omitted.append("thinking_budget; use reasoning_effort instead")
        if self._never_reasons:
            if effort not in (None, "none"):
                omitted.append("reasoning_effort, since it does not reason")
            return
        reasoning = {"effort": effort, "summary": self._summary}
        if present := {name: value for name, value in reasoning.items() if value is not None}:
            fields["reasoning"] = present
        if self._reasons or effort not in (None, "none"):
            fields["include"] = ["reasoning.encrypted_content"]

    def _add_sampling(self, fields: dict[str, Any], settings: ModelSettings, omitted: list[str]) -> None:
        ignores_sampling = self._reasons and settings.reasoning_effort != "none"
        for name in ("temperature", "top_p"):
            if (value := getattr(settings, name)) is None:
                continue
            if ignores_sampling:
                omitted.append(f"{name}, since it reasons")
            else:
                fields[name] = value
        omitted += [name for name in ("stop", "seed") if getattr(settings, name) is not None]
        if (max_tokens := settings.max_tokens) is not None:
            if max_tokens < _MIN_TOKENS and (self._reasons or self._never_reasons):
                omitted.append(f"max_tokens={max_tokens}; the minimum is {_MIN_TOKENS}")
                max_tokens = _MIN_TOKENS
            fields["max_output_tokens"] = max_tokens

    def _make_text_format(self, schema: dict[str, Any]) -> dict[str, Any] | None:
        if self._preset.response_format != "json_schema":
            return None if self._preset.response_format is None else {"type": "json_object"}
        if self._format[0] is not schema:
            fields, changes = make_response_format(schema, OPENAI, self._preset.strict)
            self._format = (schema, {"type": "json_schema", **fields["json_schema"]}, changes)
        return self._format[1]


def _make_choice(choice: str, request: ModelRequest, tools: VendorTools) -> Any:
    if choice in ("auto", "none", "required"):
        return choice
    if any(tool.name == choice for tool in request.tools):
        return {"type": "function", "name": tools.find_vendor_name(choice)}
    for tool in request.settings.server_tools:
        if tool.get("type") == "custom" and tool.get("name") == choice:
            return {"type": "custom", "name": choice}
        if tool.get("type") == "mcp" and tool.get("server_label") == choice:
            return {"type": "mcp", "server_label": choice}
        if tool.get("type") == choice:
            return {"type": "allowed_tools", "mode": "required", "tools": [{"type": choice}]}
    return {"type": "function", "name": choice}


_MAX_REPORTED = 100


class RequestEncoder:
    """Request encoder for one model."""

    def __init__(self, settings: SettingsEncoder, chain: Chain | None) -> None:
        self._settings = settings
        self._chain = chain
        self.tools = settings.tools
        self._tools: tuple[VendorTools | None, bytes] = (None, b"")
        self._reported: set[str] = set()

    def encode(self, request: ModelRequest, key: str, notice: Notice) -> bytes:
        """Encode the request body.

        Args:
            request: Model request.
            key: Key in `provider_state`.
            notice: Called if unsupported parts are dropped.
        """
        extra = request.settings.extra_body
        fields, omitted = self._settings.make_fields(request)
        for omission in (*omitted, *split_tools(request.settings.server_tools, "openai")[1]):
            self._report(f"{self._settings.name} does not accept {omission}", notice)
        tools = self.tools.adapt(request.tools)
        self.tools.tell(tools.notes, self._settings.find_changes(fields), self._settings.name, notice)
        system = request.system if all(message.role == "system" for message in request.system) else ()
        texts = [message.text for message in system]
        if instructions := "\n\n".join(filter(None, (*texts, tools.rest))):
            fields["instructions"] = instructions
        items: bytes | None = None
        if "input" not in extra:
            messages = request.messages if system or not request.system else [*request.system, *request.messages]
            previous, items = self._encode_items(messages, request.tail, key, notice)
            if previous is not None:
                fields["previous_response_id"] = previous
        for name, value in extra.items():
            mine = fields.get(name)
            both = isinstance(mine, dict) and isinstance(value, dict)
            fields[name] = {**cast("dict[str, Any]", mine), **cast("dict[str, Any]", value)} if both else value
        parts = [encode_json(fields)[:-1]]
        if items is not None:
            parts += (b',"input":[', items, b"]")
        if (listed := self._encode_tools(request, tools)) and "tools" not in extra:
            parts += (b',"tools":[', listed, b"]")
        parts.append(b"}")
        return b"".join(parts)

    def _encode_items(
        self, messages: Sequence[Message], tail: Sequence[Message], key: str, notice: Notice
    ) -> tuple[str | None, bytes]:
        """Return the previous response id and the items after it, or None and all items."""
        chain = self._chain

        def encode(message: Message) -> tuple[Message, Form]:
            return message, self._get_form(message, key, notice)

        def add(items: Items, index: int, message: Message) -> None:
            items.add(*encode(message), self._encode_renamed, report, updates_digest=chain is not None)

        def report(code: NoticeCode, omission: str) -> None:
            self._report(f"{self._settings.name} {omission}", notice)

        stored = None if chain is None else self._find_stored(messages, key, notice)
        end = len(messages) if stored is None else stored
        items = build_messages(messages, (*self._form_key(key), chain is not None), Items, add, end=end)
        new, previous = list(map(encode, (*messages[end:], *tail))), None
        if chain is not None:
            digest = items.digest
            for message, form in new:
                digest = extend_digest(digest, message, form)
            if stored is None:
                chain.record(digest)
            elif not chain.continues(items.digest if len(new) > 1 else None, digest):
                reason = "previous_response_id, since the conversation was changed; all of it is sent"
                notice("left_out", f"{self._settings.name} does not receive {reason}")
            else:
                (message, form), *new = new
                items, previous = items.create_continuation(), form.response
                items.add(message, form, self._encode_renamed, report, updates_digest=False, is_stored=True)
        for message, form in new:
            items.add(message, form, self._encode_renamed, report, updates_digest=False)
        return previous, items.finish(report) or encode_item({"role": "user", "content": ""})

    def _find_stored(self, messages: Sequence[Message], key: str, notice: Notice) -> int | None:
        """Return the last stored message's index."""
        for index in reversed(range(len(messages))):
            if messages[index].role == "assistant" and self._get_form(messages[index], key, notice).response:
                return index
        return None

    def _encode_renamed(self, message: Message) -> bytes:
        return self._encode_message(message, "", ignore_notice).data

    def _report(self, subject: str, notice: Notice) -> None:
        """Publish a notice about an omission, once for all requests."""
        if subject not in self._reported and len(self._reported) < _MAX_REPORTED:
            self._reported.add(subject)
            notice("left_out", subject)

    def _form_key(self, key: str) -> tuple[object, ...]:
        preset = self._settings.preset
        return "openai-responses", key, self._settings.takes_reasoning, preset.files, preset.file_store

    def _get_form(self, message: Message, key: str, notice: Notice) -> Form:
        name = self._form_key(key)
        return get_form(message, name, Form) or store_form(message, name, self._encode_message(message, key, notice))

    def _encode_message(self, message: Message, key: str, notice: Notice) -> Form:
        if message.role in ("user", "tool"):
            content = self._encode_content(message.content, notice)
            if message.role == "tool":
                call_id = to_call_id(message.tool_call_id or "")
                return Form(encode_result(call_id, content), (call_id,))
            return Form(encode_item({"role": message.role, "content": content}) if content else b"")
        if message.role == "system":
            text, omitted = flatten_message(message)
            if omitted:
                notice("left_out", f"{self._settings.name} does not accept {', '.join(omitted)} in a system message")
            return Form(encode_item({"role": message.role, "content": text}) if text else b"")
        if foreign := find_foreign_states(message, key):
            notice(
                "left_out", f"{self._settings.name} does not receive the provider state of {', '.join(sorted(foreign))}"
            )
        answer = to_answer_items(message, key, self._settings.takes_reasoning)
        if answer.omission is not None:
            notice("left_out", f"{self._settings.name} does not receive {answer.omission}")
        for item in answer.items:
            if "call_id" in item and item.get("type") in ("function_call", "custom_tool_call"):
                item["call_id"] = to_call_id(item["call_id"])
                item["name"] = OPENAI.to_tool_name(item["name"])
        calls = tuple(to_call_id(call.id) for call in message.tool_calls)
        data = b",".join(encode_item(item) for item in answer.items)
        return Form(copy_bytes(data), calls, frozenset(map(to_call_id, answer.custom)), answer.response)

    def _encode_content(self, content: str | Sequence[Part], notice: Notice) -> str | list[dict[str, Any]]:
        if isinstance(content, str):
            return content
        if all(isinstance(part, TextPart) for part in content):
            return "".join(part.text for part in content if isinstance(part, TextPart))
        parts: list[dict[str, Any]] = []
        omitted: list[str] = []
        changes: list[str] = []
        for part in content:
            if isinstance(part, TextPart):
                parts += [{"type": "input_text", "text": part.text}] if part.text else []
                continue
            media = resolve(part)
            form = _encode_media(media, self._settings.preset)
            if form is None:
                omitted.append(describe_omitted(part, media))
                form = {"type": "input_text", "text": part.placeholder}
            else:
                add_change(changes, part, media)
            parts.append(form)
        if omitted:
            notice("left_out", f"{self._settings.name} does not accept {', '.join(omitted)}; placeholders are sent")
        if changes:
            notice("changed", f"{self._settings.name} receives {', '.join(changes)}")
        return parts

    def _encode_tools(self, request: ModelRequest, tools: VendorTools) -> bytes:
        if self._tools[0] is not tools:
            self._tools = (tools, b",".join(encode_json(self._settings.encode_tool(tool)) for tool in tools.tools))
        return b",".join(
            filter(None, (self._tools[1], *map(encode_json, split_tools(request.settings.server_tools, "openai")[0])))
        )


def _encode_file(media: ResolvedMedia) -> dict[str, Any]:
    if media.url is not None:
        return {"type": "input_file", "file_url": media.url}
    # OpenAI does not accept file data without a name.
    name = media.name or "file" + (guess_extension(media.media_type or "") or "")
    return {"type": "input_file", "filename": name, "file_data": media.data_url}


def _encode_media(media: ResolvedMedia, preset: Preset) -> dict[str, Any] | None:
    """Encode an image or file. Return None if unsupported."""
    kind = media.media_type
    if media.problem is not None or media.store not in (None, preset.file_store):
        return None
    if media.text is not None and media.kind == "text":
        return {"type": "input_text", "text": format_file(media)}
    if media.kind == "image":
        if kind is not None and kind not in IMAGES:
            return None
        key = "image_url" if media.store is None else "file_id"
        return {"type": "input_image", key: media.url or media.data_url, "detail": "auto"}
    if media.store is not None:
        return {"type": "input_file", "file_id": media.url}
    if kind not in preset.files and (media.url is None or kind is not None):
        return None
    return _encode_file(media)


def ignore_notice(code: str, message: str) -> None:
    """Ignore already published notices."""
