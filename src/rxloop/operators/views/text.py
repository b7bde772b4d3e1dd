"""The view of the answer as text."""

from __future__ import annotations

from collections.abc import Callable

from rxloop.operators.views import View
from rxloop.operators.views.make_view import ViewOutput, make_view
from rxloop.protocol.events import ContentCompleteEvent, ContentDeltaEvent, Event


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
