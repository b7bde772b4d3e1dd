"""Server-sent events: one frame for each event, and a comment line now and then while there is none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from rxloop.events import Event

HEARTBEAT = b": heartbeat\n\n"


def frame(event: Event) -> bytes:
    """An event as a frame: its cursor as the id, its kind as the event name, its public JSON as the data.

    Encoded once, however many readers there are.
    """
    encoded: bytes | None = getattr(event, "_wire", None)
    if encoded is None:
        # JSON escapes line ends, so that the data is one line whatever is in it.
        encoded = b"id: %b\nevent: %b\ndata: %b\n\n" % (
            event.cursor.encode(),
            event.kind.encode(),
            event.to_json(public=True),
        )
        object.__setattr__(event, "_wire", encoded)
    return encoded


async def frames(events: AsyncIterator[Event], heartbeat: float | None) -> AsyncIterator[bytes]:
    """Frames for the events, and a heartbeat after each `heartbeat` seconds of silence (None: no heartbeat)."""
    pending: asyncio.Future[Event] | None = None
    try:
        while True:
            pending = asyncio.ensure_future(anext(events))
            while not (await asyncio.wait([pending], timeout=heartbeat))[0]:
                yield HEARTBEAT
            yield frame(pending.result())
    except StopAsyncIteration:
        return
    finally:
        if pending is not None and not pending.done():
            pending.cancel()
        close = getattr(events, "aclose", None)
        if close is not None:
            await close()
