"""Request body of chat completions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from mimetypes import guess_extension
from typing import Any, NamedTuple, cast

from rxloop.pipeline.requests import ModelRequest, ToolDefinition
from rxloop.protocol.media import ResolvedMedia, resolve
from rxloop.protocol.messages import Message, Part, TextPart, ToolCall
from rxloop.protocol.settings import ModelSettings
from rxloop.providers.codecs import Notice
from rxloop.providers.codecs.chat.message_order import OrderedMessages, make_unique_ids
from rxloop.providers.codecs.fields import dumps, split_tools
from rxloop.providers.codecs.media import (
    IMAGES,
    add_change,
    describe_omitted,
    flatten_answer,
    flatten_message,
    format_file,
)
from rxloop.providers.codecs.message_cache import build_messages, get_form, store_form
from rxloop.providers.codecs.schemas import make_response_format
from rxloop.providers.codecs.schemas.dialects import OPENAI
from rxloop.providers.codecs.tools import ToolAdapter, VendorTool, VendorTools
from rxloop.providers.vendors import Preset

_CodecKey = tuple[str | int | bool | tuple[str, ...] | None, ...]

_NO_ANSWER = "(No answer.)"
"""Replaces empty assistant messages, which some endpoints reject."""

_STRAY = "The result of a call that is not shown:"

_OWN_STATES = {"reasoning_details", "extra_content"}

_AUDIO_FORMATS = {"audio/wav": "wav", "audio/mpeg": "mp3"}

_SHORT_ID = re.compile("[0-9A-Za-z]{9}")


class _Frame(NamedTuple):
    """Encoded request without messages, cached for further requests of the run."""

    settings: ModelSettings
    tools: tuple[ToolDefinition, ...]
    response_schema: dict[str, Any] | None
    start: bytes
    """Encoded text before the messages."""
    end: bytes
    """Body after the messages."""
    remainder: str | None
    """Text about the tools for a system message. None if the settings replace the messages."""


class RequestEncoder:
    """Request encoder for one model.

    Encoded messages, settings and tools are cached, so only new messages need to be processed.
    """

    def __init__(self, model: str, preset: Preset, stream: bool) -> None:
        self._model = model
        self._preset = preset
        self._stream = stream
        self._accepts_audio = preset.audio_models is not None and re.search(preset.audio_models, model) is not None
        self._key: _CodecKey = (
            "openai-chat",
            preset.reasoning_field,
            preset.reasoning_details,
            preset.extra_content,
            preset.short_call_ids,
            preset.longest_call_id,
            preset.file_part,
            preset.file_urls,
            preset.files,
            preset.image_urls,
            self._accepts_audio,
        )
        self._format: tuple[dict[str, Any] | None, dict[str, Any] | None, str | None] = (None, None, None)
        self.tools = ToolAdapter(OPENAI, strict=preset.strict, longest_description=preset.longest_description)
        self._frame: _Frame | None = None
        self._tools: tuple[VendorTools | None, bytes] = (None, b"")
        self._name = model if preset.nameless else f"{preset.name}:{model}"
        self._reported: set[str] = set()

    def encode(self, request: ModelRequest, notice: Notice) -> bytes:
        """Encode the request body. `notice` is called if unsupported parts are dropped."""
        frame = self._frame
        if (
            frame is None
            or frame.settings is not request.settings
            or frame.tools is not request.tools
            or frame.response_schema is not request.response_schema
        ):
            frame = self._frame = self._make_frame(request, notice)
        if frame.remainder is None:
            return frame.start + frame.end
        return b"".join((frame.start, self._encode_messages(request, frame.remainder, notice), frame.end))

    def _make_frame(self, request: ModelRequest, notice: Notice) -> _Frame:
        extra = request.settings.extra_body
        tools = self.tools.adapt(request.tools)
        fields = self._make_fields(request, tools)
        self._report_unsent(request, notice)
        self._report_changes(fields, tools, notice)
        for name, value in extra.items():
            mine = fields.get(name) if name != "response_format" else None
            both = isinstance(mine, dict) and isinstance(value, dict)
            fields[name] = {**cast("dict[str, Any]", mine), **cast("dict[str, Any]", value)} if both else value
        start, end = dumps(fields)[:-1], b"}"
        server_tools = self._split_server_tools(request.settings)[0]
        if (request.tools or server_tools) and "tools" not in extra:
            listed = self._encode_tools(tools)
            if server_tools:
                listed = b"[" + b",".join(filter(None, (listed[1:-1], dumps(server_tools)[1:-1]))) + b"]"
            end = b"".join((b',"tools":', listed, end))
        remainder = None
        if "messages" not in extra:
            start, end, remainder = start + b',"messages":[', b"]" + end, tools.rest
        return _Frame(request.settings, request.tools, request.response_schema, start, end, remainder)

    def _make_fields(self, request: ModelRequest, tools: VendorTools) -> dict[str, Any]:
        settings, preset = request.settings, self._preset
        fields: dict[str, Any] = {"model": self._model, "stream": self._stream}
        if self._stream and preset.stream_options:
            fields["stream_options"] = {"include_usage": True}
        plain = {
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            preset.max_tokens_field: settings.max_tokens,
            preset.seed_field: settings.seed,
            "stop": settings.stop,
            "service_tier": settings.service_tier,
        }
        fields.update({name: value for name, value in plain.items() if value is not None})
        _add_effort(fields, settings, preset)
        if request.response_schema is not None and (preset.response_format_with_tools or not request.tools):
            answer_format = self._make_response_format(request.response_schema)
            if answer_format is not None:
                fields["response_format"] = answer_format
        if request.tools:
            if settings.tool_choice is not None:
                fields["tool_choice"] = _make_choice(settings.tool_choice, tools)
            if settings.parallel_tool_calls is not None and preset.parallel_tool_calls:
                fields["parallel_tool_calls"] = settings.parallel_tool_calls
        return fields

    def _split_server_tools(self, settings: ModelSettings) -> tuple[list[dict[str, Any]], list[str]]:
        """Return supported server tools, and descriptions of foreign ones."""
        if self._preset.nameless:
            # Custom gateways may support any server tool.
            return settings.server_tools, []
        return split_tools(settings.server_tools, "openai")

    def _report_unsent(self, request: ModelRequest, notice: Notice) -> None:
        """Report unsupported settings and tools, once per model."""
        settings, preset = request.settings, self._preset
        unsent: list[str] = []
        if settings.thinking_budget is not None:
            unsent.append("thinking_budget; use reasoning_effort instead")
        if settings.reasoning_effort is not None and preset.effort is None:
            unsent.append("reasoning_effort")
        if request.tools and settings.parallel_tool_calls is False and not preset.parallel_tool_calls:
            unsent.append("parallel_tool_calls=False")
        for subject in (*unsent, *self._split_server_tools(settings)[1]):
            if subject not in self._reported:
                self._reported.add(subject)
                notice("left_out", f"{self._name} does not accept {subject}")

    def _make_response_format(self, schema: dict[str, Any]) -> dict[str, Any] | None:
        if self._preset.response_format != "json_schema":
            return None if self._preset.response_format is None else {"type": "json_object"}
        if self._format[0] is not schema:
            self._format = (schema, *make_response_format(schema, OPENAI, self._preset.strict))
        return self._format[1]

    def _report_changes(self, fields: dict[str, Any], tools: VendorTools, notice: Notice) -> None:
        """Publish a notice about the changed schemas and descriptions of this request."""
        answer = self._format[2] if fields.get("response_format") is self._format[1] else None
        self.tools.tell(tools.notes, answer, self._name, notice)

    def _encode_messages(self, request: ModelRequest, remainder: str, notice: Notice) -> bytes:
        def encode(message: Message) -> bytes:
            return self._encode_message(message, notice)

        def as_text(message: Message) -> Message:
            return self._convert_stray(message, notice)

        def add(ordered: OrderedMessages, index: int, message: Message) -> None:
            ordered.add(message, encode, as_text)

        def new() -> OrderedMessages:
            return OrderedMessages(in_turns=in_turns)

        in_turns = self._preset.assistant_after_tool
        system, messages = request.system, request.messages
        if not all(message.role == "system" for message in system):
            # Later messages may depend on the system prompt.
            system, messages = (), [*system, *messages]
        ordered = build_messages(messages, (*self._key, in_turns), new, add)
        for message in request.tail:
            ordered.add(message, encode, as_text)
        more = [dumps({"role": "system", "content": remainder})] if remainder else []
        return b",".join([*map(encode, system), *more, *ordered.finish(encode)])

    def _convert_stray(self, message: Message, notice: Notice) -> Message:
        """Convert a result without a call to a user message."""
        key = (*self._key, "stray")
        cached = get_form(message, key, Message)
        if cached is not None:
            return cached
        notice("left_out", f"{self._name} receives the result of the missing call {message.tool_call_id!r} as text")
        return store_form(message, key, Message.user(f"{_STRAY}\n{flatten_message(message)[0]}"))

    def _encode_message(self, message: Message, notice: Notice) -> bytes:
        cached = get_form(message, self._key, bytes)
        if cached is not None:
            return cached
        # Copy, because orjson keeps a buffer of at least 4 kB alive.
        omitted: list[str] = []
        changes: list[str] = []
        encoded = b"%b" % dumps(self._encode_fields(message, omitted, changes))
        if message.provider_state is not None and (others := message.provider_state.keys() - _OWN_STATES):
            omitted.insert(0, f"the provider state of {', '.join(sorted(others))}")
        if omitted:
            notice("left_out", f"{self._name} does not receive {'; '.join(omitted)}")
        if changes:
            notice("changed", f"{self._name} receives {', '.join(changes)}")
        return store_form(message, self._key, encoded)

    def _encode_fields(self, message: Message, omitted: list[str], changes: list[str]) -> dict[str, Any]:
        content = message.content
        if not isinstance(content, str) and message.role != "user":
            # Vendors of this protocol accept only text in other messages.
            content, skipped = flatten_message(message)
            if message.role == "assistant":
                content = flatten_answer(message)
            if skipped:
                omitted.append(f"{', '.join(skipped)}, since this protocol accepts only text from tools and models")
        if message.role == "tool":
            call_id = self._make_call_id(message.tool_call_id or "")
            return {"role": "tool", "tool_call_id": call_id, "content": content}
        if message.role == "assistant" and not content:
            content = "" if message.tool_calls else _NO_ANSWER
        fields: dict[str, Any] = {
            "role": message.role,
            "content": content if isinstance(content, str) else self._encode_parts(content, omitted, changes),
        }
        if message.role == "assistant":
            if message.tool_calls:
                fields["content"] = fields["content"] or None
                ids = map(self._make_call_id, make_unique_ids(message.tool_calls))
                fields["tool_calls"] = list(map(_encode_tool_call, message.tool_calls, ids))
                extra = (message.provider_state or {}).get("extra_content")
                if self._preset.extra_content and extra:
                    _add_extra(fields["tool_calls"], extra)
            if self._preset.reasoning_field and message.reasoning:
                fields[self._preset.reasoning_field] = message.reasoning
            details = (message.provider_state or {}).get("reasoning_details")
            if self._preset.reasoning_details and details:
                fields["reasoning_details"] = details
        return fields

    def _make_call_id(self, call_id: str) -> str:
        max_length = self._preset.longest_call_id
        if self._preset.short_call_ids:
            if _SHORT_ID.fullmatch(call_id):
                return call_id
            max_length = 9
        elif max_length is None or 0 < len(call_id) <= max_length:
            return call_id
        return sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:max_length]

    def _encode_parts(self, content: Sequence[Part], omitted: list[str], changes: list[str]) -> list[dict[str, Any]]:
        parts: list[dict[str, Any]] = []
        unsupported: list[str] = []
        for part in content:
            if isinstance(part, TextPart):
                parts.append({"type": "text", "text": part.text})
                continue
            media = resolve(part)
            form = self._encode_media(media)
            if form is None:
                unsupported.append(describe_omitted(part, media))
                form = {"type": "text", "text": part.placeholder}
            else:
                add_change(changes, part, media)
            parts.append(form)
        if unsupported:
            omitted.append(f"{', '.join(unsupported)}, replaced by placeholders")
        return parts

    def _encode_media(self, media: ResolvedMedia) -> dict[str, Any] | None:
        """Encode an image or file. Return None if unsupported."""
        preset, kind = self._preset, media.media_type
        if media.problem is not None:
            return None
        if media.text is not None and media.kind == "text":
            return {"type": "text", "text": format_file(media)}
        if media.store is not None:
            if media.store != preset.file_store or media.kind == "image":
                return None
            return {"type": "file", "file": {"file_id": media.url}}
        if media.kind == "image":
            if (kind is not None and kind not in IMAGES) or (media.url is not None and not preset.image_urls):
                return None
            return {"type": "image_url", "image_url": {"url": media.url or media.data_url}}
        if media.kind == "audio" and self._accepts_audio and media.data is not None and kind in _AUDIO_FORMATS:
            return {"type": "input_audio", "input_audio": {"data": media.base64, "format": _AUDIO_FORMATS[kind]}}
        if media.url is not None:
            if not preset.file_urls or (kind is not None and kind not in preset.files):
                return None
        elif kind not in preset.files:
            return None
        url = media.url or media.data_url
        if preset.file_part == "document_url":
            name = {} if media.name is None else {"document_name": media.name}
            return {"type": "document_url", "document_url": url, **name}
        if preset.file_part == "file_with_type":
            file = {"data": media.base64, "media_type": kind, "filename": media.name or _make_file_name(media)}
            return {"type": "file", "file": file}
        return {"type": "file", "file": _encode_file(media, url)}

    def _encode_tools(self, tools: VendorTools) -> bytes:
        if self._tools[0] is not tools:
            self._tools = (tools, dumps([_encode_tool(tool) for tool in tools.tools]))
        return self._tools[1]


def _add_effort(fields: dict[str, Any], settings: ModelSettings, preset: Preset) -> None:
    effort = settings.reasoning_effort
    if effort is None or preset.effort is None:
        return
    if preset.effort == "reasoning_effort":
        fields["reasoning_effort"] = effort
    elif preset.effort == "reasoning":
        fields["reasoning"] = {"effort": effort} if effort != "none" else {"enabled": False}
    else:
        fields["thinking"] = {"type": "disabled" if effort == "none" else "enabled"}


def _make_choice(choice: str, tools: VendorTools) -> Any:
    if choice in ("auto", "none", "required"):
        return choice
    return {"type": "function", "function": {"name": tools.find_vendor_name(choice)}}


def _encode_tool(tool: VendorTool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "description": tool.description, "parameters": tool.schema}
    if tool.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _encode_tool_call(call: ToolCall, call_id: str) -> dict[str, Any]:
    if call.error is not None:
        # Vendors reject invalid JSON. The tool result explains the error.
        arguments = "{}"
    elif call.raw is not None:
        arguments = call.raw
    else:
        arguments = dumps(call.arguments).decode()
    # Models may call invalid names. The tool result explains the error.
    name = OPENAI.to_tool_name(call.name)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _add_extra(calls: list[dict[str, Any]], extra: dict[str, Any]) -> None:
    """Add the vendor's extra content to the calls by their position."""
    for index, call in enumerate(calls):
        if str(index) in extra:
            call["extra_content"] = extra[str(index)]


def _make_file_name(media: ResolvedMedia) -> str:
    return "file" + (guess_extension(media.media_type or "") or "")


def _encode_file(media: ResolvedMedia, url: str) -> dict[str, Any]:
    name = media.name
    if name is None and media.data is not None:
        # OpenAI does not accept file data without a name.
        name = _make_file_name(media)
    return {"file_data": url} if name is None else {"filename": name, "file_data": url}
