"""Response reader of the Messages API."""

from __future__ import annotations

from typing import Any

import orjson

from rxloop.errors import ProviderProtocolError
from rxloop.protocol.json_data import replace_surrogates
from rxloop.protocol.messages import Citation
from rxloop.providers.bounds import check_document
from rxloop.providers.codecs import JSONReader
from rxloop.providers.codecs.answer_end import normalise_finish_reason
from rxloop.providers.codecs.anthropic.messages import CONTAINER, KEY
from rxloop.providers.codecs.draft import MessageDraft
from rxloop.providers.codecs.fields import as_object, as_text, list_objects
from rxloop.providers.codecs.tool_calls import encode_json
from rxloop.providers.error_responses import from_error_object

_CALL_FIELDS = frozenset(("type", "id", "name", "input"))

_SILENT_TYPES = frozenset(("redacted_thinking", "container_upload", "compaction", "fallback", "mcp_tool_listing"))
"""Block types that are sent back unchanged and publish no event."""

_BLOCK_WEIGHT = 200
"""Size charged for a block in addition to its content, in characters."""

_FRAGMENT_WEIGHT = 20
"""Size charged for a JSON fragment in addition to its characters."""


class _Block:
    """Unfinished block of the answer."""

    __slots__ = ("call", "citations", "extra", "is_incomplete", "is_open", "json", "raw", "size", "text_start", "type")

    def __init__(self, type: str, raw: dict[str, Any]) -> None:
        self.type = type
        self.raw = raw
        self.extra: dict[str, Any] = {}
        self.text_start = 0
        """Start index in the message text."""
        self.call = -1
        """Index of the call."""
        self.citations: list[dict[str, Any]] = []
        self.json: list[str] = []
        self.size = 0
        """Number of argument fragments, or size of a raw block in characters."""
        self.is_open = False
        self.is_incomplete = False
        """True if the block cannot be sent back because some data was not understood."""


class MessagesReader(JSONReader):
    """Response reader. Blocks may be interleaved."""

    def __init__(self, draft: MessageDraft, key: str = KEY) -> None:
        super().__init__(draft)
        self.key = key
        self._blocks: dict[Any, _Block] = {}
        self._calls = 0
        self._newest: _Block | None = None
        """Text or thinking block of the newest fragment."""
        self._server_tools: dict[str, str] = {}
        """Called server tools by call id."""

    def read_event(self, event: dict[str, Any]) -> None:
        """Read one stream event."""
        kind: Any = event.get("type")
        if kind == "content_block_delta":
            index, delta = event.get("index"), event.get("delta")
            block = self._blocks.get(index if index.__class__ is int else None)
            if block is not None and delta.__class__ is dict:
                self._delta(block, delta)
            else:
                self.report_unknown("a fragment of a block that has not begun")
        elif kind == "content_block_start":
            self._start(_block_key(event.get("index")), as_object(event.get("content_block")))
        elif kind == "content_block_stop":
            block = self._blocks.pop(_block_key(event.get("index")), None)
            if block is not None:
                self._stop(block)
        elif kind == "message_start":
            message = as_object(event.get("message"))
            self.draft.origin.identify(message.get("id"), message.get("model"))
            self.draft.count(message.get("usage"), cache_apart=True)
            self._keep_container(message)
        elif kind == "message_delta":
            self.draft.count(event.get("usage"), cache_apart=True)
            delta = as_object(event.get("delta"))
            self._keep_container(delta)
            self._finish(delta)
        elif kind == "message_stop":
            self._stop_all()
            self.done = True
        elif kind == "error" or (kind is None and "error" in event):
            raise from_error_object(event, self.draft.endpoint)
        elif kind != "ping":
            self.report_unknown(f"an event {_quote(kind)}")

    def read_answer(self, answer: dict[str, Any]) -> None:
        """Read a non-streaming response."""
        if answer.get("type") == "error" or "error" in answer:
            raise from_error_object(answer, self.draft.endpoint)
        content = answer.get("content")
        if not isinstance(content, list) and not isinstance(answer.get("stop_reason"), str):
            raise ProviderProtocolError(f"{self.draft.endpoint} returned no content")
        for index, block in enumerate(list_objects(content)):
            self._start(index, block)
            self._stop(self._blocks.pop(index))
        self.draft.origin.identify(answer.get("id"), answer.get("model"))
        self.draft.count(answer.get("usage"), cache_apart=True)
        self._keep_container(answer)
        self._finish(answer)

    def complete(self) -> None:
        """Push the final events; see `ResponseReader`."""
        if self.is_complete:
            self._stop_all()
        super().complete()

    def _start(self, index: Any, raw: dict[str, Any]) -> None:
        if index in self._blocks:
            self._stop(self._blocks.pop(index))
        kind = as_text(raw.get("type"))
        self.draft.other += _BLOCK_WEIGHT
        block = self._blocks[index] = _Block(kind, {} if kind in ("text", "thinking") else raw)
        if kind == "text":
            self._begin_piece(block)
            for citation in list_objects(raw.get("citations")):
                self._cite(block, citation)
            if text := as_text(raw.get("text")):
                self.draft.write(text)
        elif kind == "thinking":
            self._begin_piece(block)
            if text := as_text(raw.get("thinking")):
                self.draft.think(text)
            self._sign(block, raw.get("signature"))
        elif kind == "tool_use":
            self._call(block)
        else:
            self._newest = None
            # Charged again when stored.
            block.size = len(encode_json(raw))
            self.draft.other += block.size
            if not (kind in _SILENT_TYPES or kind.endswith(("_tool_use", "_tool_result"))):
                self.report_unknown(f"a block {_quote(raw.get('type'))}")

    def _delta(self, block: _Block, delta: Any) -> None:
        kind = delta.get("type")
        if kind == "text_delta" and block.type == "text":
            text = delta.get("text")
            if text.__class__ is str and text:
                if block is not self._newest:
                    self._begin_piece(block)
                self.draft.write(text)
        elif kind == "input_json_delta":
            fragment = delta.get("partial_json")
            if fragment.__class__ is str and fragment:
                if block.call >= 0:
                    block.size += 1
                    self.draft.call(block.call, fragment=fragment)
                else:
                    self._add_json(block, fragment)
        elif kind == "thinking_delta" and block.type == "thinking":
            text = delta.get("thinking")
            if text.__class__ is str and text:
                if block is not self._newest:
                    self._begin_piece(block)
                self.draft.think(text)
        elif kind == "signature_delta" and block.type == "thinking":
            self._sign(block, delta.get("signature"))
        elif kind == "citations_delta" and block.type == "text":
            self._cite(block, as_object(delta.get("citation")))
        elif kind == "compaction_delta" and block.type == "compaction":
            block.size += (size := len(encode_json(delta)))
            self.draft.other += size
            block.raw |= {name: value for name, value in delta.items() if name != "type"}
        else:
            block.is_incomplete = True
            self.report_unknown(f"a fragment {_quote(kind)} of a block {_quote(block.type)}")

    def _stop(self, block: _Block) -> None:
        """End a block."""
        draft = self.draft
        if block.type == "text":
            end = draft.text.content_length
            for citation in block.citations:
                draft.cite(_to_citation(citation, block.text_start, end))
        elif block.type == "tool_use":
            input_ = as_object(block.raw.get("input"))
            if not block.size and input_:
                draft.call(block.call, arguments=input_)
        elif block.type != "thinking":
            self._stop_raw(block)

    def _stop_raw(self, block: _Block) -> None:
        """End a raw block, and publish an event if it belongs to a server tool."""
        draft, raw = self.draft, block.raw
        draft.other -= block.size
        if block.json:
            written = "".join(block.json).encode("utf-8", "replace")
            check_document(written, draft.bounds)
            try:
                raw["input"] = orjson.loads(written)
            except orjson.JSONDecodeError:
                block.is_incomplete = True
                self.report_unknown(f"arguments of {_quote(raw.get('name'))} that are not JSON")
        if block.type and not block.is_incomplete:
            draft.raw(raw)
        if block.type.endswith("_tool_use"):
            call_id, name = as_text(raw.get("id")), as_text(raw.get("name"))
            self._server_tools[call_id] = name
            draft.server_tool(call_id, name, "start", arguments=raw.get("input"))
        elif block.type.endswith("_tool_result"):
            call_id = as_text(raw.get("tool_use_id"))
            name = self._server_tools.get(call_id) or block.type.removesuffix("_tool_result")
            content = raw.get("content")
            failed = raw.get("is_error") is True or as_text(as_object(content).get("type")).endswith("_error")
            draft.server_tool(call_id, name, "complete", result=content, success=not failed)

    def _stop_all(self) -> None:
        """Finish incomplete blocks."""
        while self._blocks:
            self._stop(self._blocks.pop(next(iter(self._blocks))))

    def _begin_piece(self, block: _Block) -> None:
        """Begin a text or thinking piece, or continue after an interruption."""
        draft = self.draft
        is_continued, block.is_open = block.is_open, True
        draft.other += _BLOCK_WEIGHT * is_continued
        extra = draft.begin_text() if block.type == "text" else draft.begin_reasoning()
        if is_continued and block.type == "thinking":
            # The signature does not match thinking that is split into two pieces.
            block.extra.clear()
            block.is_incomplete = True
        if not is_continued and block.type == "text":
            block.text_start = draft.text.content_length
        block.extra = extra
        self._newest = block

    def _call(self, block: _Block) -> None:
        raw = block.raw
        self._newest = None
        block.call = self._calls
        self._calls += 1
        extra = {name: value for name, value in raw.items() if name not in _CALL_FIELDS and value is not None}
        if extra or raw.get("input"):
            self.draft.other += len(encode_json(raw))
        self.draft.begin_call(block.call).update(extra)
        self.draft.call(block.call, id=as_text(raw.get("id")), name=as_text(raw.get("name")))

    def _sign(self, block: _Block, signature: Any) -> None:
        if isinstance(signature, str) and signature and not block.is_incomplete:
            self.draft.other += len(signature) - len(block.extra.get("signature", ""))
            block.extra["signature"] = replace_surrogates(signature)

    def _cite(self, block: _Block, citation: dict[str, Any]) -> None:
        if citation:
            self.draft.other += _BLOCK_WEIGHT + len(encode_json(citation))
            block.citations.append(citation)
            block.extra["citations"] = block.citations

    def _add_json(self, block: _Block, fragment: str) -> None:
        block.json.append(fragment)
        self.draft.other += len(fragment) + _FRAGMENT_WEIGHT

    def _keep_container(self, fields: dict[str, Any]) -> None:
        container = as_object(fields.get("container")).get("id")
        if isinstance(container, str) and container:
            self.draft.keep(CONTAINER, container[:1000])

    def _finish(self, fields: dict[str, Any]) -> None:
        reason = fields.get("stop_reason")
        if isinstance(reason, str) and reason:
            self.draft.finish(normalise_finish_reason(reason), reason)
        details = as_object(fields.get("stop_details"))
        if details.get("type") == "refusal":
            category = as_text(details.get("category"))
            named = f"The model refused to answer (category {category})." if category else ""
            self.draft.explanation = as_text(details.get("explanation")) or named


def _to_citation(citation: dict[str, Any], start: int, end: int) -> Citation:
    source = as_text(citation.get("url")) or as_text(citation.get("source"))
    title = as_text(citation.get("title")) or as_text(citation.get("document_title"))
    is_address = source.startswith(("http://", "https://"))
    return Citation(
        url=replace_surrogates(source) if is_address else None,
        title=replace_surrogates(title or ("" if is_address else source)) or None,
        text=replace_surrogates(as_text(citation.get("cited_text"))) or None,
        start=start,
        end=end,
    )


def _block_key(index: Any) -> Any:
    """Return a valid block index, or None."""
    return index if index.__class__ is int else None


def _quote(value: Any) -> str:
    return repr(value)[:100]
