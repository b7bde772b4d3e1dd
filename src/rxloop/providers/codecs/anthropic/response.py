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
from rxloop.providers.codecs.fields import object_of, objects, text_of
from rxloop.providers.codecs.tool_calls import dumped
from rxloop.providers.error_responses import from_error_object

_CALL = frozenset(("type", "id", "name", "input"))

_KNOWN = frozenset(("redacted_thinking", "container_upload", "compaction", "fallback", "mcp_tool_listing"))
"""Block types that are sent back unchanged and publish no event."""

_BLOCK = 200
"""Size charged for a block in addition to its content, in characters."""

_PIECE = 20
"""Size charged for a JSON fragment in addition to its characters."""


class _Block:
    """Unfinished block of the answer."""

    __slots__ = ("begun", "call", "citations", "extra", "json", "lost", "opened", "raw", "size", "type")

    def __init__(self, type: str, raw: dict[str, Any]) -> None:
        self.type = type
        self.raw = raw
        self.extra: dict[str, Any] = {}
        self.begun = 0
        """Start index in the message text."""
        self.call = -1
        """Index of the call."""
        self.citations: list[dict[str, Any]] = []
        self.json: list[str] = []
        self.size = 0
        """Number of argument fragments, or size of a raw block in characters."""
        self.opened = False
        self.lost = False
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

    def event(self, event: dict[str, Any]) -> None:
        """Read one stream event."""
        kind: Any = event.get("type")
        if kind == "content_block_delta":
            index, delta = event.get("index"), event.get("delta")
            block = self._blocks.get(index if index.__class__ is int else None)
            if block is not None and delta.__class__ is dict:
                self._delta(block, delta)
            else:
                self.pass_over("a fragment of a block that has not begun")
        elif kind == "content_block_start":
            self._start(_key(event.get("index")), object_of(event.get("content_block")))
        elif kind == "content_block_stop":
            block = self._blocks.pop(_key(event.get("index")), None)
            if block is not None:
                self._stop(block)
        elif kind == "message_start":
            message = object_of(event.get("message"))
            self.draft.count(message.get("usage"), cache_apart=True)
            self._keep_container(message)
        elif kind == "message_delta":
            self.draft.count(event.get("usage"), cache_apart=True)
            delta = object_of(event.get("delta"))
            self._keep_container(delta)
            self._finish(delta)
        elif kind == "message_stop":
            self._stop_all()
            self.done = True
        elif kind == "error" or (kind is None and "error" in event):
            raise from_error_object(event, self.draft.where)
        elif kind != "ping":
            self.pass_over(f"an event {_shown(kind)}")

    def answer(self, answer: dict[str, Any]) -> None:
        """Read a non-streaming response."""
        if answer.get("type") == "error" or "error" in answer:
            raise from_error_object(answer, self.draft.where)
        content = answer.get("content")
        if not isinstance(content, list) and not isinstance(answer.get("stop_reason"), str):
            raise ProviderProtocolError(f"{self.draft.where} returned no content")
        for place, block in enumerate(objects(content)):
            self._start(place, block)
            self._stop(self._blocks.pop(place))
        self.draft.count(answer.get("usage"), cache_apart=True)
        self._keep_container(answer)
        self._finish(answer)

    def complete(self) -> None:
        """Push the final events; see `ResponseReader`."""
        if self.ended:
            self._stop_all()
        super().complete()

    def _start(self, index: Any, raw: dict[str, Any]) -> None:
        if index in self._blocks:
            self._stop(self._blocks.pop(index))
        kind = text_of(raw.get("type"))
        self.draft.other += _BLOCK
        block = self._blocks[index] = _Block(kind, {} if kind in ("text", "thinking") else raw)
        if kind == "text":
            self._open(block)
            for citation in objects(raw.get("citations")):
                self._cite(block, citation)
            if text := text_of(raw.get("text")):
                self.draft.write(text)
        elif kind == "thinking":
            self._open(block)
            if text := text_of(raw.get("thinking")):
                self.draft.think(text)
            self._sign(block, raw.get("signature"))
        elif kind == "tool_use":
            self._call(block)
        else:
            self._newest = None
            # Charged again when stored.
            block.size = len(dumped(raw))
            self.draft.other += block.size
            if not (kind in _KNOWN or kind.endswith(("_tool_use", "_tool_result"))):
                self.pass_over(f"a block {_shown(raw.get('type'))}")

    def _delta(self, block: _Block, delta: Any) -> None:
        kind = delta.get("type")
        if kind == "text_delta" and block.type == "text":
            text = delta.get("text")
            if text.__class__ is str and text:
                if block is not self._newest:
                    self._open(block)
                self.draft.write(text)
        elif kind == "input_json_delta":
            fragment = delta.get("partial_json")
            if fragment.__class__ is str and fragment:
                if block.call >= 0:
                    block.size += 1
                    self.draft.call(block.call, fragment=fragment)
                else:
                    self._gather(block, fragment)
        elif kind == "thinking_delta" and block.type == "thinking":
            text = delta.get("thinking")
            if text.__class__ is str and text:
                if block is not self._newest:
                    self._open(block)
                self.draft.think(text)
        elif kind == "signature_delta" and block.type == "thinking":
            self._sign(block, delta.get("signature"))
        elif kind == "citations_delta" and block.type == "text":
            self._cite(block, object_of(delta.get("citation")))
        elif kind == "compaction_delta" and block.type == "compaction":
            block.size += (size := len(dumped(delta)))
            self.draft.other += size
            block.raw |= {name: value for name, value in delta.items() if name != "type"}
        else:
            block.lost = True
            self.pass_over(f"a fragment {_shown(kind)} of a block {_shown(block.type)}")

    def _stop(self, block: _Block) -> None:
        """End a block."""
        draft = self.draft
        if block.type == "text":
            end = draft.text.written
            for citation in block.citations:
                draft.cite(_citation(citation, block.begun, end))
        elif block.type == "tool_use":
            given = object_of(block.raw.get("input"))
            if not block.size and given:
                draft.call(block.call, arguments=given)
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
                block.lost = True
                self.pass_over(f"arguments of {_shown(raw.get('name'))} that are not JSON")
        if block.type and not block.lost:
            draft.raw(raw)
        if block.type.endswith("_tool_use"):
            call_id, name = text_of(raw.get("id")), text_of(raw.get("name"))
            self._server_tools[call_id] = name
            draft.server_tool(call_id, name, "start", arguments=raw.get("input"))
        elif block.type.endswith("_tool_result"):
            call_id = text_of(raw.get("tool_use_id"))
            name = self._server_tools.get(call_id) or block.type.removesuffix("_tool_result")
            content = raw.get("content")
            failed = raw.get("is_error") is True or text_of(object_of(content).get("type")).endswith("_error")
            draft.server_tool(call_id, name, "complete", result=content, success=not failed)

    def _stop_all(self) -> None:
        """Finish incomplete blocks."""
        while self._blocks:
            self._stop(self._blocks.pop(next(iter(self._blocks))))

    def _open(self, block: _Block) -> None:
        """Begin a text or thinking piece, or continue after an interruption."""
        draft = self.draft
        again, block.opened = block.opened, True
        draft.other += _BLOCK * again
        extra = draft.begin_text() if block.type == "text" else draft.begin_reasoning()
        if again and block.type == "thinking":
            # The signature does not match thinking that is split into two pieces.
            block.extra.clear()
            block.lost = True
        if not again and block.type == "text":
            block.begun = draft.text.written
        block.extra = extra
        self._newest = block

    def _call(self, block: _Block) -> None:
        raw = block.raw
        self._newest = None
        block.call = self._calls
        self._calls += 1
        extra = {name: value for name, value in raw.items() if name not in _CALL and value is not None}
        if extra or raw.get("input"):
            self.draft.other += len(dumped(raw))
        self.draft.begin_call(block.call).update(extra)
        self.draft.call(block.call, id=text_of(raw.get("id")), name=text_of(raw.get("name")))

    def _sign(self, block: _Block, signature: Any) -> None:
        if isinstance(signature, str) and signature and not block.lost:
            self.draft.other += len(signature) - len(block.extra.get("signature", ""))
            block.extra["signature"] = replace_surrogates(signature)

    def _cite(self, block: _Block, citation: dict[str, Any]) -> None:
        if citation:
            self.draft.other += _BLOCK + len(dumped(citation))
            block.citations.append(citation)
            block.extra["citations"] = block.citations

    def _gather(self, block: _Block, fragment: str) -> None:
        block.json.append(fragment)
        self.draft.other += len(fragment) + _PIECE

    def _keep_container(self, fields: dict[str, Any]) -> None:
        container = object_of(fields.get("container")).get("id")
        if isinstance(container, str) and container:
            self.draft.keep(CONTAINER, container[:1000])

    def _finish(self, fields: dict[str, Any]) -> None:
        reason = fields.get("stop_reason")
        if isinstance(reason, str) and reason:
            self.draft.finish(normalise_finish_reason(reason), reason)
        details = object_of(fields.get("stop_details"))
        if details.get("type") == "refusal":
            category = text_of(details.get("category"))
            named = f"The model refused to answer (category {category})." if category else ""
            self.draft.explanation = text_of(details.get("explanation")) or named


def _citation(citation: dict[str, Any], start: int, end: int) -> Citation:
    source = text_of(citation.get("url")) or text_of(citation.get("source"))
    title = text_of(citation.get("title")) or text_of(citation.get("document_title"))
    is_address = source.startswith(("http://", "https://"))
    return Citation(
        url=replace_surrogates(source) if is_address else None,
        title=replace_surrogates(title or ("" if is_address else source)) or None,
        text=replace_surrogates(text_of(citation.get("cited_text"))) or None,
        start=start,
        end=end,
    )


def _key(index: Any) -> Any:
    """Return a valid block index, or None."""
    return index if index.__class__ is int else None


def _shown(value: Any) -> str:
    return repr(value)[:100]
