"""Server-sent events: one frame for each event, and a comment line now and then while there is none."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable

from rxloop.protocol.events import Event, GapEvent
from rxloop.stream.buffer import Silence
from rxloop.stream.stream import Reader

HEARTBEAT = b": heartbeat\n\n"
_wire_of: Callable[[Event], bytes] = vars(Event)["_wire"].__get__


def frame(event: Event) -> bytes:
    """Write an event as a frame: its cursor as the id, its kind as the event name, its public JSON as the data.

    Encoded once, however many readers there are.
    """
    try:
        # The slot itself: where it is empty, pydantic would look for the name in other places first.
        return _wire_of(event)
    except AttributeError:
        pass
    encoded = framed(event, event.to_json(public=True))
    object.__setattr__(event, "_wire", encoded)
    return encoded


def framed(event: Event, data: bytes) -> bytes:
    """Put the JSON of an event into a frame; it is one line whatever is in it, since JSON escapes line ends."""
    place, kind = event.cursor, event.kind
    if not (place + kind).isprintable():
        place, kind = _one_line(place), _one_line(kind)
    # A gap is not a place to come back to: with an id it would move the client's cursor.
    head = f"event: {kind}\n" if isinstance(event, GapEvent) else f"id: {place}\nevent: {kind}\n"
    return b"%bdata: %b\n\n" % (head.encode(), data)


def _one_line(text: str) -> str:
    """Put a text on one line: ids and kinds are checked where they come in, and a frame is safe by itself, too."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text)


async def frames(events: Reader[Event], heartbeat: float | None) -> AsyncGenerator[bytes]:
    """Write each event as a frame, and a heartbeat after each `heartbeat` seconds of silence (None: no heartbeat)."""
    try:
        while True:
            try:
                event = await events.within(heartbeat)
            except StopAsyncIteration:
                return
            except Silence:
                yield HEARTBEAT
            else:
                yield frame(event)
    finally:
        await events.aclose()
