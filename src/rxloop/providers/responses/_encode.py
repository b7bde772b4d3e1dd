"""A model request as the JSON of `/responses`, in which every message is encoded once."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from mimetypes import guess_extension
from typing import Any, cast

from rxloop.pipeline.requests import ModelRequest, ToolDefinition
from rxloop.protocol.messages import FilePart, ImagePart, Message, Part, TextPart
from rxloop.protocol.step_events import NoticeCode
from rxloop.providers.reading._calls import dumped
from rxloop.providers.reading._fields import own_tools
from rxloop.providers.reading._pieces import foreign_state
from rxloop.providers.responses._answers import answer_of
from rxloop.providers.responses._chain import Chain, Form
from rxloop.providers.responses._pairs import Items, call_id_of, copied, item_bytes, result_of, with_form
from rxloop.providers.responses._settings import SettingsEncoder
from rxloop.providers.wire import Notice
from rxloop.providers.writing._built import built
from rxloop.providers.writing._kept import keep, kept

_NOT_IN_A_NAME = re.compile("[^0-9A-Za-z_-]")
_IMAGES = frozenset(("image/png", "image/jpeg", "image/jpg", "image/webp", "image/gif"))
_MOST_TOLD = 100


class RequestEncoder:
    """Encodes the requests for one model at one endpoint."""

    def __init__(self, settings: SettingsEncoder, chain: Chain | None) -> None:
        self._settings = settings
        self._chain = chain
        self._tools: tuple[tuple[ToolDefinition, ...], bytes] = ((), b"")
        self._told: set[str] = set()

    def encode(self, request: ModelRequest, key: str, notice: Notice) -> bytes:
        """The body of the request.

        Args:
            request: What the model is asked.
            key: Under which name the pieces of the endpoint's own messages are kept.
            notice: Told of what is left out.
        """
        extra = request.settings.extra_body
        fields, left_out = self._settings.fields(request)
        for what in (*left_out, *own_tools(request.settings.server_tools, "openai")[1]):
            self._tell(f"{self._settings.name} does not take {what}", notice)
        system = request.system if all(message.role == "system" for message in request.system) else ()
        if instructions := "\n\n".join(text for message in system if (text := message.text)):
            fields["instructions"] = instructions
        items: bytes | None = None
        if "input" not in extra:
            messages = request.messages if system or not request.system else [*request.system, *request.messages]
            previous, items = self._items(messages, request.tail, key, notice)
            if previous is not None:
                fields["previous_response_id"] = previous
        for name, value in extra.items():
            mine = fields.get(name)
            both = isinstance(mine, dict) and isinstance(value, dict)
            fields[name] = {**cast("dict[str, Any]", mine), **cast("dict[str, Any]", value)} if both else value
        parts = [dumped(fields)[:-1]]
        if items is not None:
            parts += (b',"input":[', items, b"]")
        if (tools := self._tool_list(request)) and "tools" not in extra:
            parts += (b',"tools":[', tools, b"]")
        parts.append(b"}")
        return b"".join(parts)

    def _items(
        self, messages: Sequence[Message], tail: Sequence[Message], key: str, notice: Notice
    ) -> tuple[str | None, bytes]:
        """The items, or those that are new since an answer that the vendor has; and the id of that."""
        chain = self._chain

        def form_of(message: Message) -> tuple[Message, Form]:
            return message, self._form(message, key, notice)

        def add(items: Items, place: int, message: Message) -> None:
            items.add(*form_of(message), self._renamed, tell, hashed=chain is not None)

        def tell(code: NoticeCode, what: str) -> None:
            self._tell(f"{self._settings.name} {what}", notice)

        stored = None if chain is None else self._stored(messages, key, notice)
        end = len(messages) if stored is None else stored
        items = built(messages, (*self._form_key(key), chain is not None), Items, add, end=end)
        rest, previous = list(map(form_of, (*messages[end:], *tail))), None
        if chain is not None:
            whole = items.digest
            for message, form in rest:
                whole = with_form(whole, message, form)
            if stored is None:
                chain.note(whole)
            elif not chain.goes_on(items.digest if len(rest) > 1 else None, whole):
                why = "previous_response_id: the conversation is not the one that was sent, and goes whole"
                notice("left_out", f"{self._settings.name} does not get {why}")
            else:
                (message, form), *rest = rest
                items, previous = items.only_new(), form.response
                items.add(message, form, self._renamed, tell, hashed=False, known=True)
        for message, form in rest:
            items.add(message, form, self._renamed, tell, hashed=False)
        return previous, items.joined(tell) or item_bytes({"role": "user", "content": ""})

    def _stored(self, messages: Sequence[Message], key: str, notice: Notice) -> int | None:
        """The place of the newest answer that the vendor has stored."""
        for place in reversed(range(len(messages))):
            if messages[place].role == "assistant" and self._form(messages[place], key, notice).response:
                return place
        return None

    def _renamed(self, message: Message) -> bytes:
        return self._made(message, "", unheard).data

    def _tell(self, what: str, notice: Notice) -> None:
        """Tell, once for all requests, what is left out."""
        if what not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(what)
            notice("left_out", what)

    def _form_key(self, key: str) -> tuple[object, ...]:
        return "openai-responses", key, self._settings.takes_reasoning

    def _form(self, message: Message, key: str, notice: Notice) -> Form:
        name = self._form_key(key)
        return kept(message, name, Form) or keep(message, name, self._made(message, key, notice))

    def _made(self, message: Message, key: str, notice: Notice) -> Form:
        if left := [part.placeholder for part in message.media if message.role != "assistant" and not _is_taken(part)]:
            notice("left_out", f"{self._settings.name} takes no {', '.join(left)}: words stand for it")
        if message.role == "tool":
            call_id = call_id_of(message.tool_call_id or "")
            return Form(result_of(call_id, _output(message.content)), (call_id,))
        if message.role != "assistant":
            content = message.content if isinstance(message.content, str) else _parts(message.content)
            return Form(item_bytes({"role": message.role, "content": content}) if content else b"")
        if others := foreign_state(message, key):
            notice(
                "left_out",
                f"{self._settings.name} does not get what {', '.join(sorted(others))} wants back with its own message",
            )
        answer = answer_of(message, key, self._settings.takes_reasoning)
        if answer.left_out is not None:
            notice("left_out", f"{self._settings.name} does not get {answer.left_out}")
        for item in answer.items:
            if "call_id" in item and item.get("type") in ("function_call", "custom_tool_call"):
                item["call_id"] = call_id_of(item["call_id"])
                item["name"] = _NOT_IN_A_NAME.sub("_", item["name"])[:128] or "unknown"
        calls = tuple(call_id_of(call.id) for call in message.tool_calls)
        data = b",".join(item_bytes(item) for item in answer.items)
        return Form(copied(data), calls, frozenset(map(call_id_of, answer.custom)), answer.response)

    def _tool_list(self, request: ModelRequest) -> bytes:
        tools = request.tools
        # Equal definitions are nearly always the same objects, which a comparison of tuples sees at once.
        if self._tools[0] != tools:
            self._tools = (tools, b",".join(dumped(self._settings.tool(tool)) for tool in tools))
        return b",".join(
            filter(None, (self._tools[1], *map(dumped, own_tools(request.settings.server_tools, "openai")[0])))
        )


def _output(content: str | Sequence[Part]) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    if all(isinstance(part, TextPart) for part in content):
        return "".join(part.text for part in content if isinstance(part, TextPart))
    return _parts(content)


def _parts(content: Sequence[Part]) -> list[dict[str, Any]]:
    return [_part(part) for part in content if not isinstance(part, TextPart) or part.text]


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "input_text", "text": part.text}
    if not _is_taken(part):
        return {"type": "input_text", "text": part.placeholder}
    url = part.url or f"data:{part.media_type};base64,{b64encode(part.data or b'').decode()}"
    if isinstance(part, ImagePart):
        return {"type": "input_image", "image_url": url, "detail": "auto"}
    return _file(part, url)


def _is_taken(part: ImagePart | FilePart) -> bool:
    """Whether it is of a type that OpenAI reads, as far as that is said."""
    kind = (part.media_type or "").partition(";")[0].strip().lower()
    if isinstance(part, ImagePart) or kind.startswith("image/"):
        return not kind or kind in _IMAGES
    return not kind.startswith(("audio/", "video/"))


def _file(part: FilePart, url: str) -> dict[str, Any]:
    if not url.startswith("data:"):
        return {"type": "input_file", "file_url": url}
    # OpenAI takes no bytes without a name.
    name = part.filename or "file" + (guess_extension(part.media_type or "") or "")
    return {"type": "input_file", "filename": name, "file_data": url}


def unheard(code: str, what: str) -> None:
    """Tells nobody what has been told before."""
