"""Fold that lists the model requests of a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rxloop.protocol.events import ContentCompleteEvent, Event, LLMCallEvent, LLMFailedEvent, UsageEvent
from rxloop.protocol.http_api.requests import Edit, RequestRow, RequestTokens, RequestTry
from rxloop.protocol.messages import Message
from rxloop.recorded.request_items import ChangedMessage, RequestItems, RequestItemsReader
from rxloop.state.fold import fold, fold_other_branch
from rxloop.state.run_state import RunState, initial_state

MAX_RANGES = 200_000
"""Number of ranges of messages after which a page ends. If an operator edits each result of a tool, each request has
more ranges than the one before."""

Track = tuple[str | None, str | None]
"""Task id of a nested run, or None, and branch."""


class TrackStates:
    """Current state of each branch, including nested runs."""

    def __init__(self, before: RunState) -> None:
        """Start before the first event.

        Args:
            before: State after the earlier runs of the conversation.
        """
        self._states: dict[Track, RunState] = {(None, None): before}

    def get(self, track: Track) -> RunState:
        """Return the state of a branch. New branches start from the state of the main branch."""
        state = self._states.get(track)
        if state is not None:
            return state
        if track[1] is None:
            return initial_state()
        return self.get((track[0], None)).create_branch()

    def add(self, event: Event) -> None:
        """Fold the next event."""
        track = get_track(event)
        own = event
        if track[0] is not None:
            self._states[None, None] = fold(self._states[None, None], event)
            own = event.model_copy(update={"parent_task_id": None, "agent_path": ()})
        self._states[track] = fold(self.get(track), own)
        if track[1] is not None:
            main = (track[0], None)
            self._states[main] = fold_other_branch(self.get(main), own)


def get_track(event: Event) -> Track:
    """Return the nested run and the branch of an event."""
    return (None if event.parent_task_id is None else event.task_id), event.branch


@dataclass(slots=True)
class OpenRequest:
    """Pending model request, with its failures and usage so far."""

    event: LLMCallEvent
    tries: list[RequestTry] = field(default_factory=list[RequestTry])
    usage: UsageEvent | None = None
    answer: int | None = None
    _since: int = 0

    def __post_init__(self) -> None:
        self._since = self.event.timestamp

    def add(self, event: Event) -> None:
        """Add an event of the same step."""
        match event:
            case LLMFailedEvent():
                retry = event.retry_in
                seconds = max(0, event.timestamp - self._since) / 1000
                self._since = event.timestamp + round((retry or 0) * 1000)
                self.tries.append(
                    RequestTry(
                        seq=event.seq,
                        status=event.status,
                        code=event.error.code,
                        message=event.error.message,
                        seconds=seconds,
                        retry_in=retry,
                    )
                )
            case UsageEvent():
                self.usage = event
            case ContentCompleteEvent():
                self.answer = event.seq
            case _:
                pass

    @property
    def tokens(self) -> RequestTokens:
        """Size of the request."""
        estimated, usage = self.event.estimated_input_tokens, self.usage
        if usage is None:
            return RequestTokens(estimated=estimated)
        return RequestTokens(
            estimated=estimated,
            counted=usage.input_tokens,
            cached=usage.cached_tokens,
            output=usage.output_tokens,
        )


class RequestListFold:
    """Fold that lists all model requests of a run."""

    def __init__(self, before: RunState, *, internal: bool, after: int = 0, limit: int) -> None:
        """Start before the first event.

        Args:
            before: State after the earlier runs of the conversation.
            internal: Whether to include requests that clients must not receive.
            after: Skip requests up to this `seq`.
            limit: Maximum number of requests.
        """
        self._states, self._reader = TrackStates(before), RequestItemsReader()
        self._internal, self._after, self._limit = internal, after, limit
        self._open: dict[tuple[str, str | None], OpenRequest] = {}
        self._rows: list[tuple[OpenRequest, dict[str, Any]]] = []
        self._ranges = 0
        self.is_full = False
        """True if there are more requests on the next page."""

    def add(self, events: Iterable[Event]) -> None:
        """Add durable events in order."""
        for event in events:
            key = event.task_id, event.step
            if isinstance(event, LLMCallEvent):
                self._add_request(event)
            elif (request := self._open.get(key)) is not None:
                request.add(event)
                if isinstance(event, ContentCompleteEvent):
                    del self._open[key]
            self._states.add(event)

    def _add_request(self, event: LLMCallEvent) -> None:
        state = self._states.get(get_track(event))
        items = self._reader.read(event, state)
        if event.seq <= self._after or (not self._internal and event.to_public() is None):
            return
        if len(self._rows) >= self._limit or self._ranges >= MAX_RANGES:
            self.is_full = True
            return
        request = self._open[event.task_id, event.step] = OpenRequest(event)
        coverage: dict[str, Any] = {
            "history": len(state.messages),
            "sent": [item for item in items.items if not isinstance(item, ChangedMessage)],
            "edited": _list_edits(items, state.messages),
            "exact": items.exact,
        }
        self._ranges += len(coverage["sent"]) + len(coverage["edited"])
        self._rows.append((request, coverage))

    def make_rows(self) -> list[RequestRow]:
        """Return the requests."""
        return [
            RequestRow(
                seq=event.seq,
                run=None if event.parent_task_id is None else event.task_id,
                step=event.step,
                branch=event.branch,
                agent_path=list(event.agent_path),
                model=event.model,
                tokens=request.tokens,
                parts=event.parts,
                window=find_window(event),
                saved=_find_saved(request),
                **coverage,
            )
            for request, coverage in self._rows
            for event in (request.event,)
        ]


def compare_texts(message: Message, original: Message) -> Edit:
    """Return how a message differs from the original. Tool calls are compared by their arguments."""
    return "shortened" if _measure(message) < _measure(original) else "rewritten"


def _measure(message: Message) -> int:
    media = 0 if isinstance(message.content, str) else len(message.media)
    return len(message.text_with_placeholders) + 1_000 * media + sum(len(call.raw or "") for call in message.tool_calls)


def _list_edits(items: RequestItems, history: Sequence[Message]) -> list[tuple[int, int, Edit]]:
    edits: list[tuple[int, int, Edit]] = []
    for item in items.items:
        if not isinstance(item, ChangedMessage) or item.index is None or not 0 <= item.index < len(history):
            continue
        edit: Edit = "rewritten" if item.message is None else compare_texts(item.message, history[item.index])
        if edits and edits[-1][1] == item.index - 1 and edits[-1][2] == edit:
            edits[-1] = edits[-1][0], item.index, edit
        else:
            edits.append((item.index, item.index, edit))
    return edits


def find_window(event: LLMCallEvent) -> int | None:
    """Return the context window of a model in tokens, or None if it is unknown."""
    if event.window is not None:
        return event.window
    # Imported here, because the catalog is only needed for events of earlier versions.
    from rxloop.providers.catalog import find_model

    known = find_model(event.model)
    return None if known is None else known.window


def _find_saved(request: OpenRequest) -> float | None:
    """Return the cost that the cache has saved, or None if the price is unknown."""
    from rxloop.providers.catalog import count_long_kept, find_price

    event = request.usage
    if event is None:
        return None
    price = find_price(event.metadata.get("model") or request.event.model)
    if price is None:
        return None
    uncached = event.usage.model_copy(update={"cached_tokens": 0, "cache_write_tokens": 0})
    return price.of(uncached) - price.of(event.usage, count_long_kept(event))
