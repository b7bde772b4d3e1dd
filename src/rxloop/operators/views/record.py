"""View that records events."""

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
"""Recorded events or a JSONL file path."""


def record(target: list[Event] | str | os.PathLike[str]) -> EventView:
    """Pass all events, and record them in a list or in a JSONL file.

    Each subscription overwrites the file, writes one line per event, and closes the file at the end, so events of a
    failed run are recorded too. Timestamps are those of the events. The file also contains internal data, so protect it
    like a log. It can be read with `op.compare`, `recorded`, and `recorded_events` of `rxloop.testing`.

    ::

        source          --t--w--l--c--F|
        record(list)    --t--w--l--c--F|      and the list has t, w, l, c, F

    Example:
        >>> await agent.run("Weather?").pipe(op.record("run.jsonl"))

    Args:
        target: List to append to, or path of the file.

    Returns:
        View of all events, in order. If the file cannot be written, the view fails with a `ConfigurationError`, but the
        run continues.
    """

    def start_recording(out: ViewOutput[Event]) -> Callable[[Event], None]:
        if not isinstance(target, list):
            return _write(out, Path(target))
        append = target.append

        def handle(event: Event) -> None:
            append(event)
            out.emit(event)

        return handle

    return cast("EventView", make_view(start_recording))


def _write(out: ViewOutput[Event], path: Path) -> Callable[[Event], None]:
    """Open a file, and return a function to write and emit events."""
    file = _open_file(path)

    def close() -> None:
        # If the disk is full, flushing the buffer fails, but the file is closed anyway.
        with suppress(OSError):
            file.close()

    def write(event: Event) -> None:
        if file.closed:
            return  # the disk is full, but the failure has yet to reach the subscriber
        try:
            file.write(event.to_json() + b"\n")
            if event.durable:
                # This also flushes earlier transient events. After a crash, every line is complete and no durable event
                # is missing.
                file.flush()
        except OSError as error:
            out.fail(_make_write_error(path, error))
        else:
            out.emit(event)

    out.on_end(close, also_on_error=True)
    out.on_dispose(close)
    return write


def _open_file(path: Path) -> IO[bytes]:
    try:
        return path.open("wb")
    except OSError as error:
        raise _make_write_error(path, error) from error


def _make_write_error(path: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(f"record cannot write to {str(path)!r}: {error.strerror}")


def read_recording(recording: Recording) -> list[Event]:
    """Load events from a recording.

    Raises:
        ConfigurationError: Unreadable file or invalid event.
    """
    if not isinstance(recording, str | os.PathLike):
        return list(recording)
    path = Path(recording)
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigurationError(
            f"cannot read recording {str(path)!r} ({error.strerror}); create it with op.record({str(path)!r})"
        ) from error
    events: list[Event] = []
    for number, data in enumerate(lines, 1):
        if data.strip():
            try:
                events.append(Event.from_json(data))
            except ConfigurationError as error:
                raise ConfigurationError(f"{path}, line {number}: {error}") from error
    return events
