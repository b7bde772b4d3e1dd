"""Conversion of messages to contents and parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from rxloop.protocol.media import resolve
from rxloop.protocol.messages import FilePart, ImagePart, Message, TextPart, ToolCall
from rxloop.providers.codecs import Notice, foreign_state, pieces_of
from rxloop.providers.codecs.fields import text_of
from rxloop.providers.codecs.gemini.model_rules import ModelRules, fits_results, media_part
from rxloop.providers.codecs.media import add_change, describe, text_with_files
from rxloop.providers.codecs.message_cache import built, keep, kept
from rxloop.providers.codecs.schemas.dialects import GEMINI
from rxloop.providers.codecs.tool_calls import dumped

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


class _Sent(NamedTuple):
    """Encoded message."""

    parts: tuple[bytes, ...]
    calls: tuple[_Call, ...] = ()
    beside: tuple[bytes, ...] = ()
    """Parts added after tool results."""


class Contents:
    """Encoder of conversations for one model. Encoded messages are cached."""

    def __init__(self, rules: ModelRules, key: str, vendor: str) -> None:
        self._rules = rules
        self._state = key
        self._vendor = vendor
        self._key = (key, rules.signs, rules.shows_results)

    def encode(self, messages: Sequence[Message], first: int, tail: Iterable[Message], notice: Notice) -> bytes:
        """Encode contents as JSON without the enclosing brackets.

        Args:
            messages: Message history.
            first: Index after the leading system prompt.
            tail: Additional messages.
            notice: Called if unsupported parts are dropped.
        """

        def add(turns: _Turns, place: int, message: Message) -> None:
            self._add(turns, message, notice)

        turns = built(messages, self._key, _Turns, add, first=first)
        for message in tail:
            self._add(turns, message, notice)
        return turns.joined()

    def _add(self, turns: _Turns, message: Message, notice: Notice) -> None:
        if message.role != "tool":
            turns.end_calls()
        if message.role == "assistant":
            sent = self._assistant(message, notice)
            turns.add("model", sent.parts)
            turns.calls = sent.calls
        elif message.role == "tool":
            place = turns.answered(message.tool_call_id)
            if place is None:
                turns.beside += self._orphan(message, notice).parts
            else:
                sent = self._result(message, turns.calls[place], notice)
                turns.results[place] = sent.parts[0]
                turns.beside += sent.beside
        elif message.role == "system":
            # Gemini has no system role in the contents, so send the text as a user message.
            text, left = text_with_files(message)
            self._tell(left, notice)
            turns.add("user", (_text(f"<system>\n{text}\n</system>"),) if text else ())
        else:
            turns.add("user", self._user(message, notice).parts)

    def _user(self, message: Message, notice: Notice) -> _Sent:
        key = (*self._key, "user")
        return kept(message, key, _Sent) or keep(message, key, _Sent(tuple(self._content(message, notice))))

    def _content(self, message: Message, notice: Notice) -> list[bytes]:
        """Encode nonempty content parts."""
        content = message.content
        left: list[str] = []
        changes: list[str] = []
        parts: list[bytes] = []
        for part in [TextPart(text=content)] if isinstance(content, str) else content:
            if isinstance(part, TextPart):
                parts += [_text(part.text)] if part.text else []
            else:
                parts.append(self._shown(part, left, changes))
        self._tell(left, notice, changes)
        return parts

    def _shown(self, part: ImagePart | FilePart, left: list[str], changes: list[str]) -> bytes:
        media = resolve(part)
        shown = media_part(media)
        if shown is None:
            left.append(describe(part, media))
            return _text(part.placeholder)
        add_change(changes, part, media)
        return _bytes(shown)

    def _tell(self, left: list[str], notice: Notice, changes: Sequence[str] = ()) -> None:
        if left:
            notice("left_out", f"{self._vendor} does not accept {', '.join(left)}; placeholders are sent")
        if changes:
            notice("changed", f"{self._vendor} receives {', '.join(changes)}")

    def _assistant(self, message: Message, notice: Notice) -> _Sent:
        key = (*self._key, "model")
        return kept(message, key, _Sent) or keep(message, key, self._made(message, notice))

    def _made(self, message: Message, notice: Notice) -> _Sent:
        own = self._state in (message.provider_state or {})
        parts: list[dict[str, Any]] = []
        calls: list[_Call] = []
        left: list[str] = []
        unsigned = False
        for piece in pieces_of(message, self._state):
            signature = text_of(piece.extra.get("thoughtSignature"))
            signed = {"thoughtSignature": signature} if signature else {}
            value = piece.value
            if isinstance(value, str):
                # Unsigned thoughts are not sent back.
                thought = {"thought": True} if piece.kind == "reasoning" else {}
                if signed or (value and not thought):
                    parts.append({"text": value, **thought, **signed})
            elif isinstance(value, ToolCall):
                call = _Call(value.id, GEMINI.fitting_tool_name(value.name), text_of(piece.extra.get("id")))
                if self._rules.signs and not calls and not signed:
                    signed, unsigned = {"thoughtSignature": UNSIGNED}, True
                calls.append(call)
                parts.append({"functionCall": _function_call(call, value), **signed})
            elif isinstance(value, dict):
                parts.append(value)
            else:
                shown = media_part(resolve(value)) if own else None
                if shown is None:
                    left.append(value.placeholder)
                parts.append({"text": value.placeholder} if shown is None else {**shown, **signed})
        self._tell(left, notice)
        if unsigned:
            notice("left_out", f"calls without a signature; {self._vendor} is asked to skip the check")
        if others := foreign_state(message, self._state):
            notice(
                "left_out",
                f"{self._vendor} does not receive the provider state of {', '.join(sorted(others))}",
            )
        return _Sent(tuple(map(_bytes, parts)), tuple(calls))

    def _result(self, message: Message, call: _Call, notice: Notice) -> _Sent:
        key = (*self._key, call)
        return kept(message, key, _Sent) or keep(message, key, self._answer(message, call, notice))

    def _answer(self, message: Message, call: _Call, notice: Notice) -> _Sent:
        left: list[str] = []
        changes: list[str] = []
        inside: list[dict[str, Any]] = []
        beside: list[bytes] = []
        for part in message.media:
            media = resolve(part)
            shown = media_part(media)
            if shown is None:
                left.append(describe(part, media))
                continue
            add_change(changes, part, media)
            if self._rules.shows_results and fits_results(shown):
                inside.append(shown)
            else:
                beside.append(_bytes(shown))
        self._tell(left, notice, changes)
        if beside:
            beside.insert(0, _text(f"The result of {call.name} has:"))
        answer: dict[str, Any] = {
            "name": call.name,
            "response": {"output": message.text_with_placeholders if left else message.text},
        }
        if call.own_id:
            answer["id"] = call.own_id
        if inside:
            answer["parts"] = inside
        return _Sent((_bytes({"functionResponse": answer}),), beside=tuple(beside))

    def _orphan(self, message: Message, notice: Notice) -> _Sent:
        """Convert a result without a call to a user message."""
        key = (*self._key, "orphan")
        if (sent := kept(message, key, _Sent)) is not None:
            return sent
        notice(
            "left_out",
            f"{self._vendor} receives the result of the missing call {message.tool_call_id!r} as text",
        )
        parts = [_text("The result of a call that is not shown:"), *self._content(message, notice)]
        return keep(message, key, _Sent(tuple(parts)))


class _Turns:
    """Builds alternating turns with complete tool results."""

    def __init__(self) -> None:
        self.calls: tuple[_Call, ...] = ()
        """Unanswered calls in the latest model turn."""
        self.results: dict[int, bytes] = {}
        """Results by call index."""
        self.beside: tuple[bytes, ...] = ()
        self._ended: list[bytes] = []
        """Completed turns."""
        self._kind = ""
        """Current turn kind, initially empty."""
        self._parts: list[bytes] = []

    def copy(self) -> _Turns:
        """Return an independent copy. Completed turns are joined in both objects, so that a copy is cheap."""
        if len(self._ended) > 1:
            self._ended = [b",".join(self._ended)]
        other = _Turns()
        other.calls, other.results, other.beside = self.calls, self.results.copy(), self.beside
        other._ended, other._kind, other._parts = self._ended.copy(), self._kind, self._parts.copy()
        return other

    def add(self, kind: str, parts: tuple[bytes, ...]) -> None:
        """Add parts to the newest turn if it has this kind, otherwise to a new one."""
        if not parts:
            return
        if self._kind != kind:
            if self._kind:
                self._ended.append(_turn(self._kind, self._parts))
            elif kind == "model":
                self._ended.append(_turn("user", [_BEGIN]))
            self._kind, self._parts = kind, []
        self._parts.extend(parts)

    def answered(self, call_id: str | None) -> int | None:
        """Return the index of an unanswered call."""
        places = (place for place, call in enumerate(self.calls) if call.id == call_id and place not in self.results)
        return next(places, None)

    def end_calls(self) -> None:
        """Add tool results in call order."""
        parts = [self.results.get(place) or _missing(call) for place, call in enumerate(self.calls)]
        self.add("results", tuple(parts))
        self.add("user", self.beside)
        self.calls, self.results, self.beside = (), {}, ()

    def joined(self) -> bytes:
        """Return all turns, starting and ending with the user."""
        self.end_calls()
        if not self._kind:
            return _turn("user", [_BEGIN])
        if self._kind == "model":
            self.add("user", (_GO_ON,))
        return b",".join([*self._ended, _turn(self._kind, self._parts)])


def _turn(kind: str, parts: list[bytes]) -> bytes:
    return b'{"role":"%b","parts":[%b]}' % (_ROLES[kind], b",".join(parts))


def _function_call(call: _Call, given: ToolCall) -> dict[str, Any]:
    # Vendors reject invalid JSON. The tool result explains the error.
    fields: dict[str, Any] = {"name": call.name, "args": {} if given.error is not None else given.arguments}
    return {**fields, "id": call.own_id} if call.own_id else fields


def _missing(call: _Call) -> bytes:
    answer: dict[str, Any] = {"name": call.name, "response": {"error": "There is no result."}}
    return _bytes({"functionResponse": {**answer, "id": call.own_id} if call.own_id else answer})


def _text(text: str) -> bytes:
    return _bytes({"text": text})


def _bytes(part: dict[str, Any]) -> bytes:
    # Copy, because orjson keeps a buffer of at least 4 kB alive.
    return b"%b" % dumped(part)
