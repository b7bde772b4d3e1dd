"""Fold that rebuilds model requests as they were sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from rxloop.protocol.events import Event, LLMCallEvent, StatusUpdateEvent, TaskEvent
from rxloop.protocol.http_api.requests import OmittedMessage, PartChange, RequestTool, SentPart, SentRequest
from rxloop.protocol.messages import Message
from rxloop.protocol.step_events import PartOrigin
from rxloop.protocol.visibility import list_public_forms
from rxloop.recorded.request_items import ChangedMessage, RequestItems, RequestItemsReader
from rxloop.recorded.requests import OpenRequest, TrackStates, compare_texts, find_window, get_track
from rxloop.state.history import measure_message
from rxloop.state.run_state import RunState

_CHARACTERS_PER_TOKEN = 4
_MAX_TEXT = 600
"""Maximum number of characters of an omitted message."""


class _Found(NamedTuple):
    """Matching `llm-call`, its state, and the previous call of the branch."""

    event: LLMCallEvent
    items: RequestItems
    state: RunState
    tools: list[tuple[str, dict[str, Any]]]
    schema: dict[str, Any] | None
    previous: _Previous | None


class _Previous(NamedTuple):
    """Parts of the previous request, used to find changes."""

    seq: int
    whole: Sequence[tuple[int, int]]
    """Ranges of messages that were sent unchanged."""
    edited: dict[int, ChangedMessage]
    keys: set[str]
    """Digests of messages outside the history."""
    origins: set[str]
    tools: dict[str, str]
    """Digests of tools by name."""


class RequestFold:
    """Fold that rebuilds model requests. It keeps branch states and recorded texts, but no events."""

    def __init__(self, before: RunState, seq: int | None, *, internal: bool) -> None:
        """Start before the first event.

        Args:
            before: State after the earlier runs of the conversation.
            seq: `seq` of the only `llm-call` event to rebuild. None rebuilds the requests of all of them.
            internal: Whether to include data that clients must not receive.
        """
        self._states, self._reader = TrackStates(before), RequestItemsReader()
        self._seq, self._internal = seq, internal
        self._previous: dict[tuple[str, str | None], _Previous] = {}
        self._task: dict[str | None, range] = {}
        self._found: dict[int, tuple[_Found, OpenRequest]] = {}
        self._open: dict[tuple[str, str | None], OpenRequest] = {}
        self.is_complete = False
        """True if later events cannot change the only request."""

    @property
    def is_found(self) -> bool:
        """True if a request was found."""
        return bool(self._found)

    @property
    def sizes(self) -> dict[int, int]:
        """Number of messages in the history of each request, by `seq`."""
        return {seq: len(found.state.messages) for seq, (found, _) in self._found.items()}

    def add(self, events: Iterable[Event]) -> None:
        """Add durable events in order."""
        is_single = self._seq is not None
        for event in events:
            self._add_later(event)
            if self.is_complete:
                return
            # Later states cannot change a single request.
            if is_single and self._found:
                continue
            if isinstance(event, LLMCallEvent):
                self._add_request(event)
            if is_single and self._found:
                continue
            self._states.add(event)
            if isinstance(event, TaskEvent):
                run, _ = get_track(event)
                end = len(self._states.get((run, None)).messages)
                self._task[run] = range(end - len(event.messages), end)

    def _add_later(self, event: Event) -> None:
        key, is_end = (event.task_id, event.step), False
        request = self._open.get(key)
        if isinstance(event, StatusUpdateEvent) and event.final and event.parent_task_id is None:
            is_end = bool(self._open)
        elif isinstance(event, LLMCallEvent):
            is_end = self._open.pop(key, None) is not None
        elif request is not None:
            request.add(event)
            is_end = request.answer is not None
            if is_end:
                del self._open[key]
        self.is_complete = is_end and self._seq is not None

    def _add_request(self, event: LLMCallEvent) -> None:
        track = get_track(event)
        state, key = self._states.get(track), (event.task_id, event.branch)
        items = self._reader.read(event, state)
        tools = self._reader.get_tools(event.request)
        if self._seq in (None, event.seq):
            record = event.request
            schema = None if record is None else self._reader.texts.get(record.answer_schema or "")
            found = _Found(event, items, state, tools, schema, self._previous.get(key))
            request = self._open[event.task_id, event.step] = OpenRequest(event)
            self._found[event.seq] = found, request
        changed = [item for item in items.items if isinstance(item, ChangedMessage)]
        others = [*items.system, *items.tail, *(item for item in changed if item.index is None)]
        self._previous[key] = _Previous(
            event.seq,
            [item for item in items.items if not isinstance(item, ChangedMessage)],
            {item.index: item for item in changed if item.index is not None},
            {item.key for item in others},
            {_find_origin(item, items) for item in others},
            {tool.get("name", ""): digest for digest, tool in tools},
        )

    def make_request(self, task_id: str, seq: int) -> SentRequest | None:
        """Return a request, or None if the event is not an `llm-call` or clients must not receive it."""
        found, request = self._found.get(seq, (None, None))
        if found is None or request is None or (not self._internal and found.event.to_public() is None):
            return None
        event, internal = found.event, self._internal
        builder = _Builder(found, self._task.get(get_track(event)[0], range(0)), internal=internal)
        parts, tools, left_out = builder.make_parts(), builder.make_tools(), builder.list_omitted()
        tokens = builder.divide_tokens()
        sent = list(zip(parts, tokens.parts, strict=True))
        settings = {**(event.settings or {}), **(event.request.settings if event.request is not None else {})}
        return SentRequest(
            task_id=task_id,
            seq=event.seq,
            step=event.step,
            branch=event.branch,
            model=event.model,
            provider=event.model.partition(":")[0] if ":" in event.model else "",
            exact=found.items.exact,
            settings=settings if internal else {},
            answer_schema=found.schema if internal else None,
            tools=[tool.model_copy(update={"tokens": count}) for tool, count in zip(tools, tokens.tools, strict=True)],
            parts=[part.model_copy(update={"tokens": count}) for part, count in sent],
            left_out=left_out,
            tokens=request.tokens,
            window=find_window(event),
            problems=event.problems if internal else [],
            tries=request.tries if internal else [],
            answer=request.answer,
            previous=None if found.previous is None else found.previous.seq,
        )


def _find_origin(item: ChangedMessage, items: RequestItems) -> PartOrigin:
    if item.origin is not None:
        return item.origin
    return "system" if item in items.system else "note" if item.index is None else "history"


class _Tokens(NamedTuple):
    tools: list[int]
    parts: list[int]


class _Builder:
    """Conversion of a request to its response body."""

    def __init__(self, found: _Found, task: range, *, internal: bool) -> None:
        self._found, self._task, self._internal = found, task, internal
        self._history = list(found.state.messages)
        self._public = list_public_forms(self._history)
        self._groups: list[str] = []
        """Field of `PartTokens` for each part."""
        self._sizes: list[int] = []
        """Size of each part in characters."""
        self._is_unknown = found.event.request is None
        """True if the system prompt and the tools were not recorded."""

    # -- messages

    def make_parts(self) -> list[SentPart]:
        """Return all parts, with zero tokens."""
        found, parts = self._found, list[SentPart]()
        if self._is_unknown:
            parts.append(SentPart(role="system", origin="system", tokens=0, change="new", hidden=not self._internal))
            self._groups.append("system")
            self._sizes.append(0)
        parts += [self._make_layer(item, item.origin or "system", "system") for item in found.items.system]
        for ref in found.items.iter_refs():
            if isinstance(ref, int):
                parts.append(self._make_history_part(ref))
            elif ref.index is None or not 0 <= ref.index < len(self._history):
                parts.append(self._make_layer(ref, ref.origin or "note", "user"))
            else:
                parts.append(self._make_edited_part(ref, ref.index))
        parts += [self._make_layer(item, item.origin or "note", "user") for item in found.items.tail]
        return parts

    def _measure(self, origin: str, size: int) -> None:
        self._groups.append(origin)
        self._sizes.append(size)

    def _make_layer(self, item: ChangedMessage, origin: PartOrigin, role: str) -> SentPart:
        message, previous = item.message, self._found.previous
        self._measure(origin, 0 if message is None else len(message.text))
        change: PartChange = "new"
        if previous is not None:
            change = "same" if item.key in previous.keys else "rewritten" if origin in previous.origins else "new"
        return SentPart(
            role=role if message is None else message.role,
            origin=origin,
            message=message if self._internal else None,
            tokens=0,
            change=change,
            hidden=not self._internal,
        )

    def _make_history_part(self, index: int) -> SentPart:
        message, previous = self._history[index], self._found.previous
        shown = message if self._internal else self._public[index]
        origin: PartOrigin = "task" if index in self._task else "history"
        self._measure(origin, measure_message(message))
        change: PartChange = "new"
        if previous is not None:
            if index in previous.edited:
                change = "rewritten"
            elif any(first <= index <= last for first, last in previous.whole):
                change = "same"
        return SentPart(
            role=message.role,
            origin=origin,
            index=index,
            message=shown,
            tokens=0,
            change=change,
            hidden=shown is None,
        )

    def _make_edited_part(self, item: ChangedMessage, index: int) -> SentPart:
        original, message, previous = self._history[index], item.message, self._found.previous
        origin: PartOrigin = "task" if index in self._task else "history"
        self._measure(origin, measure_message(message or original))
        change: PartChange = "new"
        if previous is not None:
            earlier = previous.edited.get(index)
            if earlier is not None and earlier.key == item.key:
                change = "same"
            elif earlier is not None or any(first <= index <= last for first, last in previous.whole):
                before = original if earlier is None or earlier.message is None else earlier.message
                change = "rewritten" if message is None else compare_texts(message, before)
        return SentPart(
            role=original.role if message is None else message.role,
            origin=origin,
            index=index,
            message=message if self._internal else None,
            original=original if self._internal else self._public[index],
            tokens=0,
            change=change,
            hidden=not self._internal,
        )

    # -- tools and omitted messages

    def make_tools(self) -> list[RequestTool]:
        """Return the tools without their tokens. Clients only receive the names of tools that are not hidden."""
        previous = self._found.previous
        tools: list[RequestTool] = []
        for digest, tool in self._found.tools:
            name, change = tool.get("name", ""), "new"
            if previous is not None and name in previous.tools:
                change = "same" if previous.tools[name] == digest else "rewritten"
            fields = {"description": tool.get("description"), "parameters": tool.get("parameters")}
            is_named = self._internal or not tool.get("hidden")
            tools.append(
                RequestTool.model_validate(
                    {
                        "name": name if is_named else "",
                        "tokens": 0,
                        "change": change,
                        "hidden": not self._internal,
                        **(fields if self._internal else {}),
                    }
                )
            )
        return tools

    def list_omitted(self) -> list[OmittedMessage]:
        """Return the omitted history messages."""
        sent = {ref if isinstance(ref, int) else ref.index for ref in self._found.items.iter_refs()}
        compressed = self._found.state.compressed
        folded = set(compressed.folded) if compressed is not None else set[int]()
        reason = compressed.reason if compressed is not None else ""
        omitted: list[OmittedMessage] = []
        for index, message in enumerate(self._history):
            if index in sent:
                continue
            shown = message if self._internal else self._public[index]
            omitted.append(
                OmittedMessage(
                    index=index,
                    role=message.role,
                    tokens=measure_message(message) // _CHARACTERS_PER_TOKEN,
                    why=(reason or "overflow") if index in folded else "operator",
                    text=None if shown is None else _describe(shown),
                )
            )
        return omitted

    # -- tokens

    def divide_tokens(self) -> _Tokens:
        """Divide the estimated tokens among the tools and parts by their sizes."""
        event = self._found.event
        tools = [_measure_tool(tool) for _, tool in self._found.tools]
        if self._is_unknown:
            # The first part stands for the unknown system prompt and tools.
            known = min(sum(self._sizes) // _CHARACTERS_PER_TOKEN, event.estimated_input_tokens)
            return _Tokens([], [event.estimated_input_tokens - known, *_divide(known, self._sizes[1:])])
        if event.parts is None:
            tokens = _divide(event.estimated_input_tokens, [*tools, *self._sizes])
            return _Tokens(tokens[: len(tools)], tokens[len(tools) :])
        parts, tool_tokens = [0] * len(self._sizes), _divide(event.parts.tools, tools)
        for group, total in event.parts:
            indexes = [index for index, name in enumerate(self._groups) if name == group]
            for index, count in zip(indexes, _divide(total, [self._sizes[each] for each in indexes]), strict=True):
                parts[index] = count
        if parts:
            # A custom log may have returned events without some texts.
            parts[0] += event.estimated_input_tokens - sum(tool_tokens) - sum(parts)
        return _Tokens(tool_tokens, parts)


def _describe(message: Message) -> str:
    text = message.text_with_placeholders or ", ".join(call.describe() for call in message.tool_calls)
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "\u2026"


def _measure_tool(tool: dict[str, Any]) -> int:
    return len(str(tool.get("name", ""))) + len(str(tool.get("description", ""))) + len(str(tool.get("parameters", "")))


def _divide(total: int, sizes: Sequence[int]) -> list[int]:
    """Divide a number of tokens by sizes, so that the sum is the number."""
    whole = sum(sizes)
    if not sizes:
        return []
    if not whole:
        return [total, *[0] * (len(sizes) - 1)]
    reached = [total * size // whole for size in accumulate(sizes, initial=0)]
    return [after - before for before, after in pairwise(reached)]
