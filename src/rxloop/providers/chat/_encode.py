"""A model request as the JSON of `/chat/completions`, in which everything is encoded once."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from mimetypes import guess_extension
from typing import Any, cast

from rxloop.errors import BadRequest
from rxloop.pipeline.requests import ModelRequest, ToolDefinition
from rxloop.protocol.messages import FilePart, ImagePart, Message, Part, TextPart, ToolCall
from rxloop.protocol.settings import ModelSettings
from rxloop.providers.chat._order import Ordered, unique_ids
from rxloop.providers.presets import Preset
from rxloop.providers.reading._fields import own_tools
from rxloop.providers.wire import Notice
from rxloop.providers.writing._built import built
from rxloop.providers.writing._json import dumps
from rxloop.providers.writing._kept import keep, kept
from rxloop.providers.writing._schemas import response_format

_WireKey = tuple[str | int | bool | None, ...]
_NOTHING = "(No answer.)"
"""What stands for a message of the model without text and calls, which some endpoints refuse."""
_STRAY = "The result of a call that is not shown:"
_OURS = {"reasoning_details", "extra_content"}
_SHORT_ID = re.compile("[0-9A-Za-z]{9}")
_NOT_IN_A_NAME = re.compile("[^0-9A-Za-z_-]")


class RequestEncoder:
    """Encodes the requests for one model at one endpoint.

    A message keeps the bytes it became, and so do the tools, so that a request costs what is new in it and not the
    whole history.
    """

    def __init__(self, model: str, preset: Preset, stream: bool) -> None:
        self._model = model
        self._preset = preset
        self._stream = stream
        self._key: _WireKey = (
            "openai-chat",
            preset.reasoning_field,
            preset.reasoning_details,
            preset.extra_content,
            preset.short_call_ids,
            preset.longest_call_id,
            preset.file_part,
            preset.file_urls,
        )
        self._format: tuple[dict[str, Any] | None, dict[str, Any] | None] = (None, None)
        self._tools: tuple[tuple[ToolDefinition, ...], bytes] = ((), b"")
        self._name = model if preset.nameless else f"{preset.name}:{model}"
        self._told: set[str] = set()

    def encode(self, request: ModelRequest, notice: Notice) -> bytes:
        """The body of the request; what the endpoint does not take is left out, and told to `notice`."""
        extra = request.settings.extra_body
        fields = self._fields(request)
        self._tell_unsent(request, notice)
        for name, value in extra.items():
            mine = fields.get(name) if name != "response_format" else None
            both = isinstance(mine, dict) and isinstance(value, dict)
            fields[name] = {**cast("dict[str, Any]", mine), **cast("dict[str, Any]", value)} if both else value
        parts = [dumps(fields)[:-1]]
        if "messages" not in extra:
            parts.append(b',"messages":[')
            parts += (self._all_messages(request, notice), b"]")
        server_tools = self._server_tools(request.settings)[0]
        if (request.tools or server_tools) and "tools" not in extra:
            tools = self._tool_list(request.tools)
            if server_tools:
                tools = b"[" + b",".join(filter(None, (tools[1:-1], dumps(server_tools)[1:-1]))) + b"]"
            parts += (b',"tools":', tools)
        parts.append(b"}")
        return b"".join(parts)

    def _fields(self, request: ModelRequest) -> dict[str, Any]:
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
            answer_format = self._response_format(request.response_schema)
            if answer_format is not None:
                fields["response_format"] = answer_format
        if request.tools:
            if settings.tool_choice is not None:
                fields["tool_choice"] = _tool_choice(settings.tool_choice)
            if settings.parallel_tool_calls is not None and preset.parallel_tool_calls:
                fields["parallel_tool_calls"] = settings.parallel_tool_calls
        return fields

    def _server_tools(self, settings: ModelSettings) -> tuple[list[dict[str, Any]], list[str]]:
        """The tools that the endpoint may carry out, and words for those that are another vendor's."""
        if self._preset.nameless:
            # A gateway of one's own may know the tools of any vendor.
            return settings.server_tools, []
        return own_tools(settings.server_tools, "openai")

    def _tell_unsent(self, request: ModelRequest, notice: Notice) -> None:
        """Tell, once for all requests, which settings and tools the endpoint does not take."""
        settings, preset = request.settings, self._preset
        unsent: list[str] = []
        if settings.thinking_budget is not None:
            unsent.append("thinking_budget: reasoning_effort says how much")
        if settings.reasoning_effort is not None and preset.effort is None:
            unsent.append("reasoning_effort")
        if request.tools and settings.parallel_tool_calls is False and not preset.parallel_tool_calls:
            unsent.append("parallel_tool_calls=False")
        for what in (*unsent, *self._server_tools(settings)[1]):
            if what not in self._told:
                self._told.add(what)
                notice("left_out", f"{self._name} does not take {what}")

    def _response_format(self, schema: dict[str, Any]) -> dict[str, Any] | None:
        if self._preset.response_format != "json_schema":
            return None if self._preset.response_format is None else {"type": "json_object"}
        if self._format[0] is not schema:
            self._format = (schema, response_format(schema, self._preset.strict))
        return self._format[1]

    def _all_messages(self, request: ModelRequest, notice: Notice) -> bytes:
        def encode(message: Message) -> bytes:
            return self._message(message, notice)

        def as_text(message: Message) -> Message:
            return self._stray(message, notice)

        def add(ordered: Ordered, place: int, message: Message) -> None:
            ordered.add(message, encode, as_text)

        def new() -> Ordered:
            return Ordered(in_turns=in_turns)

        in_turns = self._preset.assistant_after_tool
        system, messages = request.system, request.messages
        if not all(message.role == "system" for message in system):
            # What comes behind them may depend on them.
            system, messages = (), [*system, *messages]
        ordered = built(messages, (*self._key, in_turns), new, add)
        for message in request.tail:
            ordered.add(message, encode, as_text)
        return b",".join([*map(encode, system), *ordered.ended(encode)])

    def _stray(self, message: Message, notice: Notice) -> Message:
        """The result of a call that is not there, as words of the user."""
        key = (*self._key, "stray")
        found = kept(message, key, Message)
        if found is not None:
            return found
        notice(
            "left_out", f"{self._name} gets the result of call {message.tool_call_id!r}, which is not there, as a text"
        )
        return keep(message, key, Message.user(f"{_STRAY}\n{message.text_alone}"))

    def _message(self, message: Message, notice: Notice) -> bytes:
        found = kept(message, self._key, bytes)
        if found is not None:
            return found
        # What orjson returns holds the whole buffer that it was written to, 4 kB at least: a copy has its own length.
        encoded = b"%b" % dumps(self._plain_message(message))
        lost: list[str] = []
        if message.provider_state is not None and (others := message.provider_state.keys() - _OURS):
            lost.append(f"what {', '.join(sorted(others))} wants back with its own message")
        if message.role in ("tool", "assistant") and message.media:
            placeholders = ", ".join(part.placeholder for part in message.media)
            lost.append(f"{placeholders}, since only text of tools and models is sent in this protocol")
        if lost:
            notice("left_out", f"{self._name} does not get {'; '.join(lost)}")
        return keep(message, self._key, encoded)

    def _plain_message(self, message: Message) -> dict[str, Any]:
        content = message.content
        if message.role == "tool":
            # Vendors of this protocol take nothing but text from tools and models.
            answered = self._call_id(message.tool_call_id or "")
            return {"role": "tool", "tool_call_id": answered, "content": message.text_alone}
        if message.role == "assistant":
            content = message.text or message.text_alone or ("" if message.tool_calls else _NOTHING)
        plain: dict[str, Any] = {
            "role": message.role,
            "content": content if isinstance(content, str) else [self._part(part) for part in content],
        }
        if message.role == "assistant":
            if message.tool_calls:
                plain["content"] = plain["content"] or None
                ids = map(self._call_id, unique_ids(message.tool_calls))
                plain["tool_calls"] = list(map(_tool_call, message.tool_calls, ids))
                extra = (message.provider_state or {}).get("extra_content")
                if self._preset.extra_content and extra:
                    _add_extra(plain["tool_calls"], extra)
            if self._preset.reasoning_field and message.reasoning:
                plain[self._preset.reasoning_field] = message.reasoning
            details = (message.provider_state or {}).get("reasoning_details")
            if self._preset.reasoning_details and details:
                plain["reasoning_details"] = details
        return plain

    def _call_id(self, call_id: str) -> str:
        most = self._preset.longest_call_id
        if self._preset.short_call_ids:
            if _SHORT_ID.fullmatch(call_id):
                return call_id
            most = 9
        elif most is None or 0 < len(call_id) <= most:
            return call_id
        return sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:most]

    def _part(self, part: Part) -> dict[str, Any]:
        if isinstance(part, TextPart):
            return {"type": "text", "text": part.text}
        url = part.url or f"data:{part.media_type};base64,{b64encode(part.data or b'').decode()}"
        if isinstance(part, ImagePart):
            return {"type": "image_url", "image_url": {"url": url}}
        preset = self._preset
        if part.url is not None and not preset.file_urls and not part.url.startswith("data:"):
            raise BadRequest(
                f"{preset.name}:{self._model} takes no file by its URL, such as {part.url}: "
                "fetch it, and pass FilePart(data=..., media_type=...)"
            )
        if preset.file_part == "document_url":
            name = {} if part.filename is None else {"document_name": part.filename}
            return {"type": "document_url", "document_url": url, **name}
        return {"type": "file", "file": _file(part, url)}

    def _tool_list(self, tools: tuple[ToolDefinition, ...]) -> bytes:
        # Equal definitions are nearly always the same objects, which a comparison of tuples sees at once.
        if self._tools[0] != tools:
            self._tools = (tools, dumps([_tool(tool, self._preset.strict) for tool in tools]))
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


def _tool_choice(choice: str) -> Any:
    if choice in ("auto", "none", "required"):
        return choice
    return {"type": "function", "function": {"name": choice}}


def _tool(tool: ToolDefinition, can_be_strict: bool) -> dict[str, Any]:
    function: dict[str, Any] = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
    }
    if tool.strict and can_be_strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _tool_call(call: ToolCall, call_id: str) -> dict[str, Any]:
    if call.error is not None:
        # What the model wrote is not JSON, which vendors refuse. The result of the call says what was wrong.
        arguments = "{}"
    elif call.raw is not None:
        arguments = call.raw
    else:
        arguments = dumps(call.arguments).decode()
    # A model may call what is no name; the result of the call says that there is no such tool.
    name = _NOT_IN_A_NAME.sub("_", call.name)[:128] or "unknown"
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _add_extra(calls: list[dict[str, Any]], extra: dict[str, Any]) -> None:
    """Put what the vendor sent beside the calls back beside them, by the place of the call."""
    for place, call in enumerate(calls):
        if str(place) in extra:
            call["extra_content"] = extra[str(place)]


def _file(part: FilePart, url: str) -> dict[str, Any]:
    name = part.filename
    if name is None and part.data is not None:
        # OpenAI takes no bytes without a name.
        name = "file" + (guess_extension(part.media_type or "") or "")
    return {"file_data": url} if name is None else {"filename": name, "file_data": url}
