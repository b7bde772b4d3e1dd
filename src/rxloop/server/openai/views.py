"""Views of a run for clients of the OpenAI adapter."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from reactivex import compose

from rxloop.operators.views import View
from rxloop.operators.views.make_view import ViewOutput, make_view
from rxloop.protocol.events import Event
from rxloop.server.core.chat_changes import Change
from rxloop.server.core.chat_fold import chat
from rxloop.server.openai.completion_fold import CompletionFold
from rxloop.server.openai.response_fold import About, ResponseFold
from rxloop.server.openai.response_items import Json, ResponseId

Fold = ResponseFold | CompletionFold
T = TypeVar("T", bound=Fold)


def response_events(about: About, id: ResponseId, *, after: int = -1) -> View[Event, Json]:
    """Give one response of a run as the events of the Responses API, from `response.created` to its end.

    ::

        source               --t--w--l--d(He)--d(y)--c--w--      t task, w status-update, d content-delta
        response_events()    --C--P-----(A,D)--D-----E--(F|)     C created, P in_progress, A output_item.added, D delta,
                                                                 E output_item.done, F completed

    Args:
        about: What the response says of itself.
        id: The response.
        after: The `sequence_number` of the last event that the client has.
    """

    def fold(emit: Callable[[Json], None]) -> ResponseFold:
        return ResponseFold(about, id, lambda event: emit(event) if event["sequence_number"] > after else None)

    return _folded(fold)


def completion_chunks(fold: Callable[[Callable[[Json], None]], CompletionFold]) -> View[Event, Json]:
    """Give a run as the chunks of a chat completion, up to its end.

    ::

        source                 --t--w--l--d(He)--d(y)--c--w--    t task, w status-update, d content-delta
        completion_chunks()    --R--------T------T--------(F|)   R the role, T text, F the finish reason
    """
    return _folded(fold)


def _folded(fold: Callable[[Callable[[Json], None]], Fold]) -> View[Event, Json]:
    def write(out: ViewOutput[Json]) -> Callable[[Change | Event], None]:
        folding = fold(out.emit)

        def take(change: Change | Event) -> None:
            folding.take(change)
            if folding.over:
                out.complete()

        return take

    return compose(chat(), make_view(write))
