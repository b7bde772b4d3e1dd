"""Views for streamed text."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from rxloop.operators.views import EventView, View
from rxloop.operators.views.make_view import ViewOutput, make_view
from rxloop.protocol.events import ContentCompleteEvent, ContentDeltaEvent, Event
from rxloop.stream.deltas import are_mergeable, delta_text, merge_deltas
from rxloop.support.misuse import check_positive


def text(*, nested: bool = False) -> View[Event, str]:
    """Emit the text of the answer while it is streamed, from the deltas of the main branch.

    The deltas of a complete message are not retained, so late subscribers get its text as one string.

    Text of strategy branches is omitted. If a model call is retried, its text starts again. Use the events instead to
    detect this.

    ::

        source     --d(He)--u--d(y)--c--|      d content-delta
        text()     --He--------y--------|

    Args:
        nested: Whether to include the text of nested agents. Concurrent answers are interleaved. Use the events, which
            have an `agent_path`, to separate them.

    Returns:
        View of text fragments. Joined, they are the text of the messages.
    """

    def write(out: ViewOutput[str]) -> Callable[[Event], None]:
        emit = out.emit
        streamed = False
        streamed_tasks: set[str] = set()

        def handle(event: Event) -> None:
            nonlocal streamed
            if event.branch is not None or event.parent_task_id is not None:
                if nested and event.branch is None:
                    take_nested(event)
                return
            if isinstance(event, ContentDeltaEvent):
                streamed = True
                emit(event.delta)
            elif isinstance(event, ContentCompleteEvent):
                if event.content and not streamed:
                    emit(event.content)
                streamed = False

        def take_nested(event: Event) -> None:
            if isinstance(event, ContentDeltaEvent):
                streamed_tasks.add(event.task_id)
                emit(event.delta)
            elif isinstance(event, ContentCompleteEvent):
                if event.content and event.task_id not in streamed_tasks:
                    emit(event.content)
                streamed_tasks.discard(event.task_id)

        return handle

    return make_view(write, joins=True)


def coalesce_deltas(window: float | None = None) -> EventView:
    """Merge consecutive deltas of the same kind, step, branch and tool call.

    No text is lost, and the order is preserved. Other events are passed immediately, after the deltas before them. A
    merged delta has the joined text, and the `seq`, `sub`, `index` and time of its last delta.

    ::

        source                  --a-b-c-X-----d-e--|
        coalesce_deltas()       --------(abc,X)----(de|)
        coalesce_deltas(8)      --a-----(bc,X)d----(e|)

    Args:
        window: Minimum time between two deltas in seconds. The first delta is passed immediately, later ones are
            collected until the time is over. The default collects deltas until another event or the end.

    Returns:
        View of all events, with fewer deltas.

    Raises:
        ConfigurationError: The window is not positive. Raised immediately.
    """
    check_positive(optional=True, window=window)

    def merge(out: ViewOutput[Event]) -> Callable[[Event], None]:
        buffer = _DeltaBuffer()
        is_pending = window is None

        def release() -> None:
            nonlocal is_pending
            is_pending = buffer.flush(out)
            if is_pending and window is not None:
                out.schedule(window, release)

        def handle(event: Event) -> None:
            if not buffer.can_merge(event):
                buffer.flush(out)
            text = delta_text(event)
            if text is None:
                out.emit(event)
                return
            buffer.add(event, text)
            if not is_pending:
                release()

        def end() -> None:
            buffer.flush(out)

        out.on_end(end, also_on_error=True)
        return handle

    return cast("EventView", make_view(merge))


class _DeltaBuffer:
    """Consecutive deltas that can be merged."""

    def __init__(self) -> None:
        self._newest: Event | None = None
        self._texts: list[str] = []

    def can_merge(self, event: Event) -> bool:
        """Return True if the event can be merged with the collected deltas."""
        return self._newest is not None and are_mergeable(self._newest, event)

    def add(self, event: Event, text: str) -> None:
        """Add a delta."""
        self._newest = event
        self._texts.append(text)

    def flush(self, out: ViewOutput[Event]) -> bool:
        """Emit collected deltas as one event. Returns True if there were any."""
        newest, texts = self._newest, self._texts
        if newest is None:
            return False
        self._newest, self._texts = None, []
        out.emit(newest if len(texts) == 1 else merge_deltas(newest, texts))
        return True
