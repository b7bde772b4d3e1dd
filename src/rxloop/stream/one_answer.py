"""One answer of a model, beside the stream of the run."""

from __future__ import annotations

import asyncio

from rxloop.pipeline.requests import ModelRequest
from rxloop.pipeline.seams import Provider
from rxloop.protocol.events import ContentCompleteEvent, Event, UsageEvent
from rxloop.protocol.messages import Usage


async def one_answer(model: Provider, request: ModelRequest) -> tuple[ContentCompleteEvent, Usage]:
    """Get one answer of a model, and the tokens that it used; cancelling closes the connection.

    Raises:
        ProviderError: The model failed.
    """
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    answer, used = ContentCompleteEvent(), Usage()

    def on_next(event: Event) -> None:
        nonlocal answer, used
        if isinstance(event, ContentCompleteEvent):
            answer = event
        elif isinstance(event, UsageEvent):
            used = used + event.usage

    def on_error(error: Exception) -> None:
        if not done.done():
            done.set_exception(error)

    def on_completed() -> None:
        if not done.done():
            done.set_result(None)

    subscription = model.call(request).subscribe(on_next, on_error, on_completed)
    try:
        await done
    finally:
        subscription.dispose()
    return answer, used
