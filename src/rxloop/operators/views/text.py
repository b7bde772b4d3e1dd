"""Views of text that streams: the answer as text, and merged deltas."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from rxloop.errors import ConfigurationError
from rxloop.operators.views import EventView, View
from rxloop.operators.views.make_view import ViewOutput, make_view
from rxloop.protocol.events import ContentCompleteEvent, ContentDeltaEvent, Event
from rxloop.stream.deltas import are_mergeable, delta_text, merge_deltas


def text(*, nested: bool = False) -> View[Event, str]:
    """Give the text of the answer as it streams: the deltas of the main line.

    The deltas of a message that is complete are not kept: late subscribers get its text in one piece.

    The lines of a strategy are left out, and so is the text of nested agents, unless it is asked for. When a model call
    is sent a second time, its text starts again. To notice that, follow the events themselves.

    ::

        source     --d(He)--u--d(y)--c--|      d content-delta
        text()     --He--------y--------|

    Args:
        nested: Give the text of nested agents, too. Where several answer side by side, their pieces mix: to tell them
            apart, follow the events, which have an `agent_path`.

    Returns:
        A view of the pieces of text, as they are: joined, they are the text of the messages.
    """

    def write(out: ViewOutput[str]) -> Callable[[Event], None]:
        emit = out.emit
        streamed = False
        below: set[str] = set()

        def take(event: Event) -> None:
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
                below.add(event.task_id)
                emit(event.delta)
            elif isinstance(event, ContentCompleteEvent):
                if event.content and event.task_id not in below:
                    emit(event.content)
                below.discard(event.task_id)

        return take

    return make_view(write, joins=True)


def coalesce_deltas(window: float | None = None) -> EventView:
    """Merge neighbouring deltas of one kind, step and branch, and of one tool call.

    Nothing is lost and the order is kept: any other event comes after the deltas before it, and is passed on at once.
    A merged delta has the joined text, and the numbers (`seq`, `sub`, `index`) and the time of the newest.

    ::

        source                  --a-b-c-X-----d-e--|
        coalesce_deltas()       --------(abc,X)----(de|)
        coalesce_deltas(8)      --a-----(bc,X)d----(e|)

    Args:
        window: Pass on at most one delta in this many seconds: the first at once, then what has gathered when the time
            is over. Only another event, or the end, brings out what has gathered before. None gathers until then.

    Returns:
        A view of all events, with fewer deltas.

    Raises:
        ConfigurationError: The window is not positive; raised at once.
    """
    if window is not None and window <= 0:
        raise ConfigurationError(f"coalesce_deltas needs a window above 0, not {window}")

    def gather(out: ViewOutput[Event]) -> Callable[[Event], None]:
        gathered = _Gathered()
        waiting = window is None

        def release() -> None:
            nonlocal waiting
            waiting = gathered.flush(out)
            if waiting and window is not None:
                out.schedule(window, release)

        def take(event: Event) -> None:
            if not gathered.fits(event):
                gathered.flush(out)
            text = delta_text(event)
            if text is None:
                out.emit(event)
                return
            gathered.add(event, text)
            if not waiting:
                release()

        def end() -> None:
            gathered.flush(out)

        out.on_end(end, also_on_error=True)
        return take

    return cast("EventView", make_view(gather))


class _Gathered:
    """Deltas that follow each other and belong together."""

    def __init__(self) -> None:
        self._newest: Event | None = None
        self._texts: list[str] = []

    def fits(self, event: Event) -> bool:
        """Whether an event continues what is gathered."""
        return self._newest is not None and are_mergeable(self._newest, event)

    def add(self, event: Event, text: str) -> None:
        """Take in a delta that fits."""
        self._newest = event
        self._texts.append(text)

    def flush(self, out: ViewOutput[Event]) -> bool:
        """Emit what is gathered, as one event, and keep nothing; whether there was anything."""
        newest, texts = self._newest, self._texts
        if newest is None:
            return False
        self._newest, self._texts = None, []
        out.emit(newest if len(texts) == 1 else merge_deltas(newest, texts))
        return True
