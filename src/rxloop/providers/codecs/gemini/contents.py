"""Conversion of messages to contents and parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from rxloop.protocol.media import resolve
from rxloop.protocol.messages import FilePart, ImagePart, Message, TextPart, ToolCall
from rxloop.providers.codecs import Notice, find_foreign_states, iter_pieces
from rxloop.providers.codecs.fields import as_text
from rxloop.providers.codecs.gemini.model_rules import ModelRules, is_result_part, make_media_part
from rxloop.providers.codecs.media import add_change, describe_omitted, flatten_message
from rxloop.providers.codecs.message_cache import build_messages, get_form, store_form
from rxloop.providers.codecs.schemas.dialects import GEMINI
from rxloop.providers.codecs.tool_calls import encode_json

UNSIGNED = "skip_thought_signature_validator"
"""Documented placeholder signature for calls by other models."""

_BEGIN = b'{"text":"(The conversation begins with an answer.)"}'

_GO_ON = b'{"text":"Go on."}'

_ROLES = {"user": b"user", "results": b"user", "model": b"model"}


class _Call(NamedTuple):
    """Function call with the ids needed for its result."""

    id: str
    """Id in the history."""
    name: str
    own_id: str
    """Id sent by the vendor, or an empty string."""


class _Form(NamedTuple):
    """Encoded message."""

    parts: tuple[bytes, ...]
    calls: tuple[_Call, ...] = ()
    extra_parts: tuple[bytes, ...] = ()
    """Parts added after tool results."""


class Contents:
    """Encoder of conversations for one model. Encoded messages are cached."""

    def __init__(self, rules: ModelRules, key: str, vendor: str) -> None:
        self._rules = rules
        self._state = key
        self._vendor = vendor
        self._key = (key, rules.signs, rules.accepts_media_results)

    def encode(self, messages: Sequence[Message], first: int, tail: Iterable[Message], notice: Notice) -> bytes:
        """Encode contents as JSON without the enclosing brackets.

        Args:
            messages: Message history.
            first: Index after the leading system prompt.
            tail: Additional messages.
            notice: Called if unsupported parts are dropped.
        """

        def add(turns: _Turns, index: int, message: Message) -> None:
            self._add(turns, message, notice)

        turns = build_messages(messages, self._key, _Turns, add, first=first)
        for message in tail:
            self._add(turns, message, notice)
        return turns.finish()

    def _add(self, turns: _Turns, message: Message, notice: Notice) -> None:
        if message.role != "tool":
            turns.end_calls()
        if message.role == "assistant":
            form = self._get_assistant_form(message, notice)
            turns.add("model", form.parts)
            turns.calls = form.calls
        elif message.role == "tool":
            index = turns.find_call(message.tool_call_id)
            if index is None:
                turns.extra_parts += self._convert_orphan(message, notice).parts
            else:
                form = self._get_result_form(message, turns.calls[index], notice)
                turns.results[index] = form.parts[0]
                turns.extra_parts += form.extra_parts
        elif message.role == "system":
            # Gemini has no system role in the contents, so send the text as a user message.
            text, omitted = flatten_message(message)
            self._report(omitted, notice)
            turns.add("user", (_encode_text(f"<system>\n{text}\n</system>"),) if text else ())
        else:
            turns.add("user", self._get_user_form(message, notice).parts)

    def _get_user_form(self, message: Message, notice: Notice) -> _Form:
        key = (*self._key, "user")
        return get_form(message, key, _Form) or store_form(
            message, key, _Form(tuple(self._list_parts(message, notice)))
        )

    def _list_parts(self, message: Message, notice: Notice) -> list[bytes]:
        """Encode nonempty content parts."""
        content = message.content
        omitted: list[str] = []
        changes: list[str] = []
        parts: list[bytes] = []
        for part in [TextPart(text=content)] if isinstance(content, str) else content:
            if isinstance(part, TextPart):
                parts += [_encode_text(part.text)] if part.text else []
            else:
                parts.append(self._encode_media(part, omitted, changes))
        self._report(omitted, notice, changes)
        return parts

    def _encode_media(self, part: ImagePart | FilePart, omitted: list[str], changes: list[str]) -> bytes:
        media = resolve(part)
        encoded = make_media_part(media)
        if encoded is None:
            omitted.append(describe_omitted(part, media))
            return _encode_text(part.placeholder)
        add_change(changes, part, media)
        return _encode_part(encoded)

    def _report(self, omitted: list[str], notice: Notice, changes: Sequence[str] = ()) -> None:
        if omitted:
            notice("left_out", f"{self._vendor} does not accept {', '.join(omitted)}; placeholders are sent")
        if changes:
            notice("changed", f"{self._vendor} receives {', '.join(changes)}")

    def _get_assistant_form(self, message: Message, notice: Notice) -> _Form:
        key = (*self._key, "model")
        return get_form(message, key, _Form) or store_form(message, key, self._encode_assistant(message, notice))

    def _encode_assistant(self, message: Message, notice: Notice) -> _Form:
        has_own_state = self._state in (message.provider_state or {})
        parts: list[dict[str, Any]] = []
        calls: list[_Call] = []
        omitted: list[str] = []
        unsigned = False
        for piece in iter_pieces(message, self._state):
            signature = as_text(piece.extra.get("thoughtSignature"))
            signed = {"thoughtSignature": signature} if signature else {}
            value = piece.value
            if isinstance(value, str):
                # Unsigned thoughts are not sent back.
                thought = {"thought": True} if piece.kind == "reasoning" else {}
                if signed or (value and not thought):
                    parts.append({"text": value, **thought, **signed})
            elif isinstance(value, ToolCall):
                call = _Call(value.id, GEMINI.to_tool_name(value.name), as_text(piece.extra.get("id")))
                if self._rules.signs and not calls and not signed:
                    signed, unsigned = {"thoughtSignature": UNSIGNED}, True
                calls.append(call)
                parts.append({"functionCall": _make_function_call(call, value), **signed})
            elif isinstance(value, dict):
                parts.append(value)
            else:
                media = make_media_part(resolve(value)) if has_own_state else None
                if media is None:
                    omitted.append(value.placeholder)
                parts.append({"text": value.placeholder} if media is None else {**media, **signed})
        self._report(omitted, notice)
        if unsigned:
            notice("left_out", f"calls without a signature; {self._vendor} is asked to skip the check")
        if others := find_foreign_states(message, self._state):
            notice("left_out", f"{self._vendor} does not receive the provider state of {', '.join(sorted(others))}")
        return _Form(tuple(map(_encode_part, parts)), tuple(calls))

    def _get_result_form(self, message: Message, call: _Call, notice: Notice) -> _Form:
        key = (*self._key, call)
        return get_form(message, key, _Form) or store_form(message, key, self._encode_result(message, call, notice))

    def _encode_result(self, message: Message, call: _Call, notice: Notice) -> _Form:
        omitted: list[str] = []
        changes: list[str] = []
        result_parts: list[dict[str, Any]] = []
        extra_parts: list[bytes] = []
        for part in message.media:
            media = resolve(part)
            encoded = make_media_part(media)
            if encoded is None:
                omitted.append(describe_omitted(part, media))
                continue
            add_change(changes, part, media)
            if self._rules.accepts_media_results and is_result_part(encoded):
                result_parts.append(encoded)
            else:
                extra_parts.append(_encode_part(encoded))
        self._report(omitted, notice, changes)
        if extra_parts:
            extra_parts.insert(0, _encode_text(f"The result of {call.name} has:"))
        answer: dict[str, Any] = {
            "name": call.name,
            "response": {"output": message.text_with_placeholders if omitted else message.text},
        }
        if call.own_id:
            answer["id"] = call.own_id
        if result_parts:
            answer["parts"] = result_parts
        return _Form((_encode_part({"functionResponse": answer}),), extra_parts=tuple(extra_parts))

    def _convert_orphan(self, message: Message, notice: Notice) -> _Form:
        """Convert a result without a call to a user message."""
        key = (*self._key, "orphan")
        if (form := get_form(message, key, _Form)) is not None:
            return form
        notice("left_out", f"{self._vendor} receives the result of the missing call {message.tool_call_id!r} as text")
        parts = [_encode_text("The result of a call that is not shown:"), *self._list_parts(message, notice)]
        return store_form(message, key, _Form(tuple(parts)))


class _Turns:
    """Builds alternating turns with complete tool results."""

    def __init__(self) -> None:
        self.calls: tuple[_Call, ...] = ()
        """Unanswered calls in the latest model turn."""
        self.results: dict[int, bytes] = {}
        """Results by call index."""
        self.extra_parts: tuple[bytes, ...] = ()
        self._completed: list[bytes] = []
        """Completed turns."""
        self._kind = ""
        """Current turn kind, initially empty."""
        self._parts: list[bytes] = []

    def copy(self) -> _Turns:
        """Return an independent copy. Completed turns are joined in both objects, so that a copy is cheap."""
        if len(self._completed) > 1:
            self._completed = [b",".join(self._completed)]
        other = _Turns()
        other.calls, other.results, other.extra_parts = self.calls, self.results.copy(), self.extra_parts
        other._completed, other._kind, other._parts = self._completed.copy(), self._kind, self._parts.copy()
        return other

    def add(self, kind: str, parts: tuple[bytes, ...]) -> None:
        """Add parts to the newest turn if it has this kind, otherwise to a new one."""
        if not parts:
            return
        if self._kind != kind:
            if self._kind:
                self._completed.append(_encode_turn(self._kind, self._parts))
            elif kind == "model":
                self._completed.append(_encode_turn("user", [_BEGIN]))
            self._kind, self._parts = kind, []
        self._parts.extend(parts)

    def find_call(self, call_id: str | None) -> int | None:
        """Return the index of an unanswered call."""
        indexes = (index for index, call in enumerate(self.calls) if call.id == call_id and index not in self.results)
        return next(indexes, None)

    def end_calls(self) -> None:
        """Add tool results in call order."""
        parts = [self.results.get(index) or _encode_missing(call) for index, call in enumerate(self.calls)]
        self.add("results", tuple(parts))
        self.add("user", self.extra_parts)
        self.calls, self.results, self.extra_parts = (), {}, ()

    def finish(self) -> bytes:
        """Return all turns, starting and ending with the user."""
        self.end_calls()
        if not self._kind:
            return _encode_turn("user", [_BEGIN])
        if self._kind == "model":
            self.add("user", (_GO_ON,))
        return b",".join([*self._completed, _encode_turn(self._kind, self._parts)])


def _encode_turn(kind: str, parts: list[bytes]) -> bytes:
    return b'{"role":"%b","parts":[%b]}' % (_ROLES[kind], b",".join(parts))


def _make_function_call(call: _Call, tool_call: ToolCall) -> dict[str, Any]:
    # Vendors reject invalid JSON. The tool result explains the error.
    fields: dict[str, Any] = {"name": call.name, "args": {} if tool_call.error is not None else tool_call.arguments}
    return {**fields, "id": call.own_id} if call.own_id else fields


def _encode_missing(call: _Call) -> bytes:
    answer: dict[str, Any] = {"name": call.name, "response": {"error": "There is no result."}}
    return _encode_part({"functionResponse": {**answer, "id": call.own_id} if call.own_id else answer})


def _encode_text(text: str) -> bytes:
    return _encode_part({"text": text})


def _encode_part(part: dict[str, Any]) -> bytes:
    # Copy, because orjson keeps a buffer of at least 4 kB alive.
    return b"%b" % encode_json(part)
