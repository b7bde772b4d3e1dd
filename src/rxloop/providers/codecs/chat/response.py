"""Response reader of chat completions."""

from __future__ import annotations

from collections.abc import Mapping
from io import StringIO
from typing import Any, cast

import orjson

from rxloop.errors import ProviderError, ProviderProtocolError
from rxloop.providers.bounds import SMALL, check_document
from rxloop.providers.codecs.answer_end import MALFORMED_CALL, normalise_finish_reason
from rxloop.providers.codecs.draft import MessageDraft
from rxloop.providers.codecs.fields import as_object, as_text, list_objects, parse_lenient_json, unwrap_list
from rxloop.providers.codecs.tool_calls import encode_json
from rxloop.providers.error_responses import error_from_response, from_error_object
from rxloop.providers.failures import make_truncation_error


class ReasoningDetails:
    """Collects `reasoning_details`, joining block fragments."""

    __slots__ = ("_blocks", "_text", "other_size", "text_size")

    def __init__(self) -> None:
        self.text_size = 0
        """Total characters of text in all blocks."""
        self.other_size = 0
        """Approximate size without text."""
        self._blocks: list[dict[str, Any]] = []
        self._text = StringIO()
        """Text of the newest block."""

    def add(self, detail: dict[str, Any]) -> None:
        """Add a block or block fragment."""
        last = self._blocks[-1] if self._blocks else None
        field = _find_text_field(detail)
        if (
            last is None
            or detail.get("type") == "reasoning.encrypted"
            or (last.get("type"), last.get("index")) != (detail.get("type"), detail.get("index"))
        ):
            self._join()
            self._blocks.append(dict(detail))
            self.other_size += len(encode_json(detail))
        else:
            # Fragments repeat block fields that are longer than the text.
            changed = {name: value for name, value in detail.items() if value is not None and last.get(name) != value}
            last.update(changed)
            changed.pop(field, None)
            self.other_size += len(encode_json(changed)) if changed else 0
        if piece := as_text(detail.get(field)):
            self._text.write(piece)
            self.text_size += len(piece)

    def finish(self) -> list[dict[str, Any]]:
        """Return the complete blocks."""
        self._join()
        return self._blocks

    def _join(self) -> None:
        """Set the text of the newest block. Appending each fragment to a string would copy the text every time."""
        text = self._text.getvalue()
        if text:
            self._blocks[-1][_find_text_field(self._blocks[-1])] = text
            self._text = StringIO()


def _find_text_field(detail: dict[str, Any]) -> str:
    return "summary" if detail.get("type") == "reasoning.summary" else "text"


DONE = b"[DONE]"

_PLAIN_FIELDS = frozenset(("role", "content", "reasoning_content", "tool_calls"))

# Fields of a notice chunk, which is an error if nothing follows.
_NOTICE = frozenset(("message", "msg", "detail"))

# Native finish reasons that override the gateway's own finish reason.
_OVERRIDING = frozenset(("length", "content_filter", MALFORMED_CALL))


class ChatReader:
    """Reads response chunks and pushes events.

    Non-streaming responses are read as a single large chunk.
    """

    __slots__ = (
        "_bounds",
        "_calls",
        "_details",
        "_draft",
        "_endpoint",
        "_finish",
        "_has_legacy_call",
        "_notice",
        "_small_size",
        "_text",
        "done",
    )
    accepts_arrays = False

    def __init__(self, draft: MessageDraft) -> None:
        self.done = False
        """True if the vendor reported the end with `[DONE]`, or the answer was not streamed."""
        self._draft = draft
        self._endpoint = draft.endpoint
        self._bounds = draft.bounds
        self._text = draft.text
        self._calls = draft.calls
        self._calls.splits_names = True
        self._details = ReasoningDetails()
        self._small_size = min(SMALL, draft.bounds.document)
        self._finish: str | None = None
        self._has_legacy_call = False
        """True if the answer uses `function_call`, the predecessor of `tool_calls`."""
        self._notice: dict[str, Any] | None = None

    @property
    def is_complete(self) -> bool:
        """True if a complete answer was read."""
        return self.done or bool(self._finish)

    def feed(self, payloads: list[bytes]) -> None:
        """Read a batch of event payloads.

        Raises:
            ProviderError: The vendor reported an error or violated the protocol.
            OutOfBounds: The response is too large.
        """
        size = sum(map(len, payloads))
        if size > self._small_size and max(map(len, payloads)) > self._small_size:
            for payload in payloads:
                check_document(payload, self._bounds)
        self._feed(payloads)
        self._charge_details()
        self._draft.read(size)

    def _feed(self, payloads: list[bytes]) -> None:
        loads, write, think = orjson.loads, self._text.write, self._text.think
        for payload in payloads:
            if self.done:
                return
            if payload == DONE:
                self.done = True
                return
            try:
                chunk: Any = loads(payload)
            except orjson.JSONDecodeError:
                chunk = self._parse_leniently(payload)
                if chunk is None:
                    continue
            # Fast path: most chunks only contain text or a call fragment.
            try:
                choice = chunk["choices"][0]
                delta = choice["delta"]
                text = delta.get("content")
                thought = delta.get("reasoning_content")
                calls = delta.get("tool_calls")
                plain = (
                    _PLAIN_FIELDS.issuperset(delta)
                    and (text is None or text.__class__ is str)
                    and (thought is None or thought.__class__ is str)
                    and (calls is None or (calls.__class__ is list and _is_plain_chunk(chunk)))
                    and choice.get("finish_reason") is None
                    and not choice.get("index")
                    and "usage" not in choice
                    and not chunk.get("usage")
                    and "error" not in chunk
                    and "x_groq" not in chunk
                )
            except (KeyError, IndexError, TypeError, AttributeError):
                plain, text, thought, calls, choice = False, "", "", None, {}
            if not plain:
                if payload.count(b"{") + payload.count(b"[") > self._bounds.depth:
                    check_document(payload, self._bounds)
                self._read_chunk(chunk)
                continue
            if thought:
                think(thought)
            if text:
                write(text)
            if calls:
                for call in calls:
                    if call.__class__ is dict:
                        self._calls.feed(call)

    def feed_last(self, payloads: list[bytes]) -> None:
        """Read trailing data, such as an event without a blank line.

        Raises:
            ProviderError: The response is incomplete or contains an error.
        """
        try:
            self.feed(payloads)
        except ProviderProtocolError:
            if not self.is_complete:
                raise make_truncation_error(self._endpoint) from None

    def read_body(self, body: bytes) -> None:
        """Read a non-streaming response."""
        check_document(body, self._bounds)
        try:
            answer: Any = orjson.loads(body)
        except orjson.JSONDecodeError:
            answer = parse_lenient_json(body)
            self._text.expect_split_surrogates()
        answer = unwrap_list(answer)
        if not isinstance(answer, dict):
            raise ProviderProtocolError(
                f"{self._endpoint} sent an answer that is not a JSON object: {self._quote(body)}"
            )
        answer = cast("dict[str, Any]", answer)
        choices: list[Any] = []
        for choice in list_objects(answer.get("choices")):
            message = dict(as_object(choice.get("message")))
            # Without streaming, each entry is a separate call, regardless of its id.
            message["tool_calls"] = [
                {**call, "index": index} for index, call in enumerate(list_objects(message.get("tool_calls")))
            ]
            choices.append({**choice, "delta": message})
        if not choices and not answer.get("error"):
            raise from_error_object(answer, self._endpoint)
        self._read_chunk({**answer, "choices": choices})
        self._charge_details()
        self._draft.check_size()
        self.done = True

    def complete(self) -> None:
        """Publish held-back text, reasoning, usage and the complete message.

        Raises:
            ProviderError: The response is incomplete or contains an error.
        """
        if self._notice is not None and not self._finish:
            raise from_error_object(self._notice, self._endpoint)
        if not self.is_complete:
            raise make_truncation_error(self._endpoint)
        draft = self._draft
        if details := self._details.finish():
            draft.keep("reasoning_details", details)
        if extra := self._calls.extra_content():
            draft.keep("extra_content", extra)
        if self._finish == "":
            draft.raw_finish_reason = ""
        draft.complete("openai_chat")

    def make_error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        """Return the error for a response with an HTTP error status."""
        return error_from_response(status, headers, body, self._endpoint)

    def _charge_details(self) -> None:
        details = self._details
        if details.other_size:
            # Opaque reasoning repeats the readable reasoning.
            self._draft.other = max(details.text_size - self._text.reasoning_length, 0) + details.other_size

    def _parse_leniently(self, payload: bytes) -> Any:
        text = payload.strip()
        if text == DONE:
            self.done = True
            return None
        if not text:
            return None
        check_document(text, self._bounds)
        chunk = parse_lenient_json(text)
        if chunk is None:
            raise ProviderProtocolError(f"{self._endpoint} sent a chunk that is not JSON: {self._quote(text)}")
        # A gateway that splits strings in JavaScript sends an emoji as surrogates in two chunks.
        self._text.expect_split_surrogates()
        return chunk

    def _quote(self, data: bytes) -> str:
        return repr(self._endpoint.clean(data[:2000].decode("utf-8", "replace"))[:200])

    def _read_chunk(self, chunk: Any) -> None:
        """Read any chunk."""
        if chunk.__class__ is not dict:
            chunk = unwrap_list(chunk)
        if not isinstance(chunk, dict):
            raise ProviderProtocolError(f"{self._endpoint} sent a chunk that is not a JSON object")
        chunk = cast("dict[str, Any]", chunk)
        self._draft.origin.identify(chunk.get("id"), chunk.get("model"))
        if "x_groq" in chunk:
            self._draft.count(as_object(chunk["x_groq"]).get("usage"))
        if "usage" in chunk:
            self._draft.count(chunk["usage"])
        for choice in list_objects(chunk.get("choices")):
            if not choice.get("index"):
                self._read_choice(choice)
        if chunk.get("error") or chunk.get("object") == "error":
            raise from_error_object(chunk, self._endpoint)
        if "choices" not in chunk and _NOTICE.intersection(chunk):
            self._notice = chunk

    def _read_choice(self, choice: dict[str, Any]) -> None:
        finish = choice.get("finish_reason")
        # Final choices have an empty delta.
        if delta := as_object(choice.get("delta")):
            self._read_delta(delta, bool(finish))
        if isinstance(finish, str) and (finish or self._finish is None):
            self._finish = finish
        if "usage" in choice:
            # Moonshot reports usage here.
            self._draft.count(choice["usage"])
        if choice.get("error"):
            raise from_error_object(choice["error"], self._endpoint)
        if finish and isinstance(finish, str):
            self._draft.finish(normalise_finish_reason(finish), finish)
            native = choice.get("native_finish_reason")
            if isinstance(native, str) and normalise_finish_reason(native) in _OVERRIDING:
                # OpenRouter may report `stop`.
                self._draft.finish(normalise_finish_reason(native), native)

    def _read_delta(self, delta: dict[str, Any], last: bool) -> None:
        self._read_reasoning(delta)
        content = delta.get("content")
        if isinstance(content, str):
            self._text.write(content)
        else:
            self._read_parts(content)
        if refusal := as_text(delta.get("refusal")):
            self._draft.refused = True
            self._text.write(refusal)
        calls = list_objects(delta.get("tool_calls"))
        for call in calls:
            self._calls.feed(call, last)
        if not calls and "function_call" in delta:
            self._read_legacy_call(as_object(delta["function_call"]), last)

    def _read_legacy_call(self, function: dict[str, Any], last: bool) -> None:
        """Read a deprecated `function_call`. Some servers also repeat their first tool call there."""
        if (function.get("name") or function.get("arguments")) and (self._has_legacy_call or self._calls.empty):
            self._has_legacy_call = True
            self._calls.feed({"index": 0, "function": function}, last)

    def _read_reasoning(self, delta: dict[str, Any]) -> None:
        """Read reasoning from the first nonempty field, because some vendors send it twice."""
        details = list_objects(delta["reasoning_details"]) if "reasoning_details" in delta else ()
        for detail in details:
            self._details.add(detail)
        for name in ("reasoning_content", "reasoning"):
            if text := as_text(delta.get(name)):
                self._text.think(text)
                return
        for detail in details:
            self._text.think(as_text(detail.get("text") or detail.get("summary")))

    def _read_parts(self, content: Any) -> None:
        """Read content that is a list of typed parts, as sent by Mistral's reasoning models."""
        for part in list_objects(content):
            if part.get("type") == "thinking":
                inner = part.get("thinking")
                texts = [inner] if isinstance(inner, str) else [item.get("text") for item in list_objects(inner)]
                for text in texts:
                    self._text.think(as_text(text))
            else:
                self._text.write(as_text(part.get("text")))


def _is_plain_chunk(chunk: dict[str, Any]) -> bool:
    """Return True if a chunk with calls has exactly one choice and is not an error."""
    return len(chunk["choices"]) == 1 and chunk.get("object") != "error"
