"""`llm-call` events, with records from which the requests can be rebuilt exactly."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any, NamedTuple, cast

from rxloop.pipeline.requests import ModelRequest, ToolDefinition
from rxloop.pipeline.sent.messages import record_messages
from rxloop.pipeline.sent.requests import RequestFrame, SentRequests
from rxloop.pipeline.sent.texts import PARTS, dump_message, get_origin, make_digest
from rxloop.protocol.events import LLMCallEvent
from rxloop.protocol.json_data import MAX_INTEGER, freeze_json
from rxloop.protocol.messages import Message
from rxloop.protocol.model import FrozenDict, FrozenList, make_unchecked
from rxloop.protocol.settings import ModelSettings
from rxloop.protocol.step_events import PartOrigin, PartTokens, RecordedPart, RequestRecord
from rxloop.state.run_state import RunState
from rxloop.support.redaction import redact_values

CHARACTERS_PER_TOKEN = 4
_TOOLS, _TASK, _HISTORY = (PARTS.index(name) for name in ("tools", "task", "history"))
_SHOWN_SETTINGS = ("temperature", "top_p", "max_tokens", "seed", "stop")
"""Settings in the field `settings` of the event."""
_llm_call = make_unchecked(LLMCallEvent, normalised=True)
_make_record = make_unchecked(RequestRecord, normalised=True)
_make_part = make_unchecked(RecordedPart)
_make_tokens = make_unchecked(PartTokens, normalised=True)


class RequestRecorder:
    """Creates `llm-call` events. It keeps the encoded tools, because they rarely differ between requests."""

    def __init__(self) -> None:
        self._tools: tuple[ToolDefinition, ...] = ()
        self._encoded_tools = _EncodedTools(None, {}, 0)
        self._window: tuple[object, int | None] = (None, None)

    def describe(
        self, request: ModelRequest, problems: Sequence[str], state: RunState, sent: SentRequests
    ) -> LLMCallEvent:
        """Create the `llm-call` event for a request.

        After its publication, call `SentRequests.confirm` if there is a pending request.

        Args:
            request: Prepared request.
            problems: Descriptions of repaired problems.
            state: State of the branch.
            sent: Earlier requests of the run.
        """
        frame = sent.frame
        if (
            frame is None
            or request.system is not frame.system
            or request.tools is not frame.tools
            or request.tail is not frame.tail
            or request.settings is not frame.settings
            or request.response_schema is not frame.response_schema
        ):
            frame = sent.frame = self._make_frame(request)
        if sent.task is not state.initial_messages:
            sent.set_task(state.initial_messages)
        if request.messages is state.messages:
            newest, record = None, frame.record
            sizes, size = list(frame.sizes), state.messages.size
            sizes[_TASK] = task_size = min(size, sent.task_size)
            sizes[_HISTORY] = size - task_size
            if not frame.is_stored:
                record = _make_record(**frame.fields, texts=sent.select_new(frame.texts))
        else:
            newest, changes, texts = record_messages(request, state, sent)
            record = _make_record(**frame.fields, **changes, texts=sent.select_new({**frame.texts, **texts}))
            sizes = [one + other for one, other in zip(frame.sizes, newest.sizes, strict=True)]
        event = self._make_event(request, frame, problems, sizes, record if sent.is_recorded else None)
        if record is not frame.record and sent.is_recorded:
            sent.pending = event, frame, newest
        return event

    def _make_event(
        self,
        request: ModelRequest,
        frame: RequestFrame,
        problems: Sequence[str],
        sizes: list[int],
        record: RequestRecord | None,
    ) -> LLMCallEvent:
        optional: dict[str, Any] = {"problems": list(problems)} if problems else {}
        if frame.shown_settings is not None:
            optional["settings"] = frame.shown_settings
        model, iteration, total = request.ctx.model, request.iteration, sum(sizes)
        estimate = total // CHARACTERS_PER_TOKEN if request.estimate is None else request.estimate
        if self._window[0] is not model:
            self._window = model, _find_window(model)
        name = model.name
        # Custom providers, strategies and counters may use unsupported types.
        is_count = estimate.__class__ is int and 0 <= estimate <= MAX_INTEGER
        is_plain = is_count and iteration.__class__ is int and name.__class__ is str and name.isascii()
        make = _llm_call if is_plain and not optional else LLMCallEvent
        return make(
            step=request.step,
            branch=request.branch,
            iteration=iteration,
            model=name,
            message_count=frame.layer_count + len(request.messages),
            tool_count=frame.tool_count,
            estimated_input_tokens=estimate,
            parts=_divide(estimate, total, sizes) if is_count else None,
            window=self._window[1],
            request=record,
            **optional,
        )

    def _make_frame(self, request: ModelRequest) -> RequestFrame:
        tools = self._encode_tools(request.tools)
        texts, sizes = dict(tools.texts), [0] * len(PARTS)
        sizes[_TOOLS] = tools.size
        fields: dict[str, Any] = {"tools": tools.digest}
        if request.system:
            fields["system"] = _record_layers(request.system, "system", texts, sizes)
        if request.tail:
            fields["tail"] = _record_layers(request.tail, "note", texts, sizes)
        if request.response_schema is not None:
            schema = freeze_json(request.response_schema, "the JSON Schema of the answer")
            fields["answer_schema"] = digest = make_digest(schema)
            texts[digest] = schema
        if request.settings.model_fields_set and (settings := _select_other_settings(request.settings)):
            fields["settings"] = settings
        shown_settings = _select_settings(request.settings) if request.settings.model_fields_set else None
        return RequestFrame(request, fields, _make_record(**fields), texts, sizes, shown_settings)

    def _encode_tools(self, tools: tuple[ToolDefinition, ...]) -> _EncodedTools:
        if tools is not self._tools:
            texts: dict[str, Any] = {}
            digests: list[str] = []
            for tool in tools:
                data = freeze_json(_dump_tool(tool), f"the tool {tool.name!r}")
                digests.append(make_digest(data))
                texts[digests[-1]] = data
            digest = make_digest(digests) if digests else None
            if digest is not None:
                texts[digest] = FrozenList(digests)
            self._tools, self._encoded_tools = tools, _EncodedTools(digest, texts, sum(tool.size for tool in tools))
        return self._encoded_tools


class _EncodedTools(NamedTuple):
    digest: str | None
    """Digest of the list of tools, or None if there are no tools."""
    texts: dict[str, Any]
    """List and definitions by digest."""
    size: int
    """Size in characters."""


def _dump_tool(tool: ToolDefinition) -> dict[str, Any]:
    flags = {name: True for name in ("strict", "hidden", "answer") if getattr(tool, name)}
    return {"name": tool.name, "description": tool.description, "parameters": tool.parameters, **flags}


def _record_layers(
    layers: Sequence[Message], default: PartOrigin, texts: dict[str, Any], sizes: list[int]
) -> list[RecordedPart]:
    """Record system or tail messages, and collect their texts and sizes."""
    parts: list[RecordedPart] = []
    for message in layers:
        digest, data = dump_message(message)
        origin = get_origin(message) or default
        if origin != "memory":
            texts[digest] = data
        sizes[PARTS.index(origin)] += len(message.text)
        parts.append(_make_part(text=digest, origin=None if origin == "system" else origin))
    return FrozenList(parts)


def _select_settings(settings: ModelSettings) -> dict[str, Any] | None:
    """Return the settings recorded in the field `settings` of the event, or None."""
    values = {name: getattr(settings, name) for name in _SHOWN_SETTINGS}
    return {name: value for name, value in values.items() if value is not None} or None


def _select_other_settings(settings: ModelSettings) -> FrozenDict | None:
    """Return the other settings without headers and additional fields, which may contain secrets."""
    excluded = {*_SHOWN_SETTINGS, "headers", "extra_body"}
    values = settings.model_dump(mode="json", by_alias=False, exclude_defaults=True, exclude=excluded)
    return freeze_json(redact_values(values), "the settings") if values else None


def _find_window(model: object) -> int | None:
    """Return the context window of a model in tokens, or None if it is unknown."""
    if not type(model).__module__.startswith("rxloop.providers."):
        return None
    # Imported here because custom models are not in the catalog.
    from rxloop.providers.catalog import find_model

    known = find_model(cast("Any", model).name)
    return None if known is None else known.window


def _divide(estimate: int, total: int, sizes: Sequence[int]) -> PartTokens:
    """Divide the estimate among the parts in proportion to their sizes. The sum is exact."""
    tokens: dict[str, int] = {}
    rest = estimate
    # Most requests have only three parts.
    for name, size in compress(zip(PARTS, sizes, strict=True), sizes):
        tokens[name] = part = rest * size // total
        rest -= part
        total -= size
    return _make_tokens(**tokens)
