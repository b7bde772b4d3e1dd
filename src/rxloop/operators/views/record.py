"""The view that writes down what passes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, cast

from rxloop.errors import ConfigurationError
from rxloop.operators.views import EventView
from rxloop.operators.views.make_view import ViewOutput, make_view
from rxloop.protocol.events import Event

Recording = str | os.PathLike[str] | Iterable[Event]
"""Recorded events, or the JSONL file that holds them."""


def record(target: list[Event] | str | os.PathLike[str]) -> EventView:
    """Pass all events, and keep them: in a list, or in a file with the JSON of one event on each line.

    Each subscription begins the file anew, writes it line by line, and closes it at its end, so that it also holds what
    a broken run has left. The times are those of the events. The file has everything that is not for clients, too: keep
    it as you would a log. `recorded_events` of `rxloop.testing` reads it; so do `op.compare` and `recorded`.

    ::

        source          --t--w--l--c--F|
        record(list)    --t--w--l--c--F|      and the list has t, w, l, c, F

    Example:
        >>> await agent.run("Weather?").pipe(op.record("run.jsonl"))

    Args:
        target: The list to append to, or the path of the file.

    Returns:
        A view of all events, in order. A file that cannot be written is a `ConfigurationError` of its stream, and
        leaves the run alone.
    """

    def keep(out: ViewOutput[Event]) -> Callable[[Event], None]:
        if not isinstance(target, list):
            return _write(out, Path(target))
        append = target.append

        def take(event: Event) -> None:
            append(event)
            out.emit(event)

        return take

    return cast("EventView", make_view(keep))


def _write(out: ViewOutput[Event], path: Path) -> Callable[[Event], None]:
    """Open a file, and return the function that writes each event and passes it on."""
    file = _opened(path)

    def close() -> None:
        # With a full disk the rest of the buffer cannot be written, and the file is closed all the same.
        with suppress(OSError):
            file.close()

    def write(event: Event) -> None:
        if file.closed:
            return  # the disk is full: what came before is still delivered
        try:
            file.write(event.to_json() + b"\n")
            if event.durable:
                # With the transient events before it: a crash leaves whole lines, and no durable event out.
                file.flush()
        except OSError as error:
            out.fail(_unwritable(path, error))
        else:
            out.emit(event)

    out.on_end(close, also_on_error=True)
    out.on_dispose(close)
    return write


def _opened(path: Path) -> IO[bytes]:
    try:
        return path.open("wb")
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(f"record cannot write to {str(path)!r}: {error.strerror}")


def read_recording(recording: Recording) -> list[Event]:
    """The events of a recording.

    Raises:
        ConfigurationError: The file is not there, or a line of it is not an event.
    """
    if not isinstance(recording, str | os.PathLike):
        return list(recording)
    path = Path(recording)
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigurationError(
            f"there is no recording {str(path)!r} ({error.strerror}): make one with op.record({str(path)!r})"
        ) from error
    events: list[Event] = []
    for number, data in enumerate(lines, 1):
        if data.strip():
            try:
                events.append(Event.from_json(data))
            except ConfigurationError as error:
                raise ConfigurationError(f"{path}, line {number}: {error}") from error
    return events
