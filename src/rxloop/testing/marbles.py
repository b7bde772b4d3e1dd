"""Marble diagrams: single-line text representations of events over time.

    (twlcs) 500ms (xl) 150ms (cF|)

Each letter represents an event. `|` is the end of the stream and `#` an error. Parentheses group events that occur at
the same time. A `-` advances the time by a single frame, and `500ms` or `1.5s` by the given duration. Blanks are
ignored.

The letters are listed in docs/protocol.md and are available as the `marble` attribute of event classes. `F` is the
final status-update. Letters take no time. In the lines of `frames` and `reactivex.from_marbles`, each letter takes a
frame.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from reactivex import Observable

from rxloop.errors import ConfigurationError
from rxloop.operators.views.record import read_recording
from rxloop.protocol.envelope import EVENT_TYPES
from rxloop.protocol.events import CheckpointEvent, Event, StatusUpdateEvent, UsageEvent
from rxloop.providers.script import ScriptedModel
from rxloop.stream.rx import resolve_scheduler
from rxloop.testing.virtual_time import SECOND, NothingLeft, current_time

FRAME = 0.025
"""Duration of a `-` in seconds."""
END = "|"
ERROR = "#"
UNKNOWN = "?"
"""Mark of a value without a letter."""
_FINAL = "F"
_TOKEN = re.compile(r"\s+|(?P<number>\d+(?:\.\d+)?)(?P<unit>ms|s)|(?P<one>.)")

Instant = tuple[int, str]
"""Time in nanoseconds and marble."""

_Record = tuple[int, str, object]
"""Time in nanoseconds, marble, and the event, value or error. The end of the stream has the item None."""


@runtime_checkable
class HasEvents(Protocol):
    """Protocol for objects with an event stream, such as runs."""

    @property
    def events(self) -> Observable[Event]:
        """Event stream."""
        ...


def get_marble(event: Event) -> str:
    """Return the marble letter for an event."""
    if isinstance(event, StatusUpdateEvent) and event.final:
        return _FINAL
    return event.marble


def assert_marbles(
    run: HasEvents | Observable[Any],
    expected: str,
    *,
    values: Mapping[str, object] | None = None,
    frame: float = FRAME,
) -> None:
    """Assert the events or values of a stream and their timing, using virtual time.

    The function subscribes to the stream and runs the event loop until the stream ends. Transient events, usage and
    checkpoints are ignored unless their letters are part of the expected line.

    Example:
        >>> with virtual_time():
        ...     source = reactivex.from_marbles("-a-a-b|", lookup={"a": 1, "b": 2}, timespan=0.025)
        ...     assert_marbles(source.pipe(rx.distinct_until_changed()), "-a 100ms b-|", values={"a": 1, "b": 2})

    Args:
        run: Run or Observable of events or values.
        expected: Marble line, starting at the time of the subscription. See the module documentation for the syntax.
        values: Letters for the items of the stream. An item has the first letter with an equal value. Other events keep
            their own letters, and all other items are shown as `?`.
        frame: Duration of a `-` in seconds.

    Raises:
        AssertionError: The stream was different. The message contains both lines and the first different items.
        RxloopError: `virtual_time()` is not active, the stream never ends, or a letter is invalid.
    """
    __tracebackhide__ = True
    marks = _check_marks(values)
    expected_marbles = _parse(expected, frame, marks)
    requested = {mark for _, mark in expected_marbles}
    records = [each for each in _record(run, marks) if _is_compared(each, requested)]
    actual_marbles = [(at, mark) for at, mark, _ in records]
    if actual_marbles == expected_marbles:
        return
    lines = _render(expected_marbles, frame), _render(actual_marbles, frame)
    column = _find_difference(*lines)
    index = _find_difference(expected_marbles, actual_marbles)
    at = min(line[index][0] for line in (expected_marbles, actual_marbles) if index < len(line))
    message = [
        f"the marbles differ at {_format_duration(at)}",
        f"expected  {lines[0]}",
        f"happened  {lines[1]}",
        " " * (len("expected  ") + column) + "^",
        *_describe_around(at, records),
    ]
    if any(mark == UNKNOWN and not isinstance(item, Event) for _, mark, item in records):
        message.append(f"{UNKNOWN} is a value without a letter: pass letters, such as values={{'a': 1.5}}")
    errors = [item for _, mark, item in records if mark == ERROR and isinstance(item, Exception)]
    # The traceback of the error shows which operator failed.
    raise AssertionError("\n".join(message)) from next(iter(errors), None)


def _describe_around(at: int, records: Sequence[_Record]) -> list[str]:
    """Describe items at the given time, or the next items after it."""
    shown_at = min((time for time, _, _ in records if time >= at), default=None)
    if shown_at is None:
        return [f"no event at {_format_duration(at)} or later"]
    gap = "" if shown_at == at else f"no event at {_format_duration(at)}; next "
    heading = f"{gap}events at {_format_duration(shown_at)}:"
    items = [(mark, item) for time, mark, item in records if time == shown_at]
    return [heading, *(f"  {mark}  {'the end' if mark == END else repr(item)}" for mark, item in items)]


def marbles(
    events: HasEvents | Observable[Any] | Iterable[tuple[float, Event | str]],
    *,
    values: Mapping[str, object] | None = None,
    frame: float = FRAME,
) -> str:
    """Format events or values as a marble line.

    For a run, print the line in virtual time and copy it to `assert_marbles`.

    Args:
        events: Run or Observable of events or values, which the function reads until its end, as `assert_marbles` does.
            Or pairs of time (seconds since the start) and event, where `"|"` is the end of the stream and `"#"` an
            error.
        values: Letters for the items of a stream, as in `assert_marbles`.
        frame: Duration of a `-` in seconds.
    """
    marks = _check_marks(values)
    if isinstance(events, HasEvents | Observable):
        return _render([each[:2] for each in _record(events, marks) if _is_compared(each, set())], frame)
    pairs = [(at, item if isinstance(item, str) else get_marble(item)) for at, item in events]
    return _render([(round(at * SECOND), mark) for at, mark in pairs], frame)


def _find_difference(one: Sequence[object], other: Sequence[object]) -> int:
    """Return the first index at which two sequences are different."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))


def _check_marks(values: Mapping[str, object] | None) -> Mapping[str, object]:
    for mark in values or {}:
        if len(mark) != 1 or not mark.isalpha():
            raise ConfigurationError(f"values has the key {mark!r}: use single letters, such as values={{'a': 1.5}}")
    return values or {}


def _mark(item: object, marks: Mapping[str, object]) -> str:
    for mark, value in marks.items():
        if value == item:
            return mark
    return get_marble(item) if isinstance(item, Event) else UNKNOWN


def _is_compared(record: _Record, requested: set[str]) -> bool:
    _, mark, item = record
    if not isinstance(item, Event) or mark in requested:
        return True
    return item.durable and not isinstance(item, UsageEvent | CheckpointEvent)


def _record(run: HasEvents | Observable[Any], marks: Mapping[str, object]) -> list[_Record]:
    """Subscribe and run the event loop until the stream has finished."""
    time = current_time()
    records: list[_Record] = []

    async def follow() -> None:
        start = time.now
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def record(mark: str, item: object) -> None:
            records.append((round((time.now - start) * SECOND), mark, item))

        def end(mark: str, error: Exception | None) -> None:
            record(mark, error)
            if not ended.done():
                ended.set_result(None)

        stream: Observable[Any] = run if isinstance(run, Observable) else run.events
        with stream.subscribe(
            lambda item: record(_mark(item, marks), item),
            lambda error: end(ERROR, error),
            lambda: end(END, None),
            scheduler=resolve_scheduler(None),
        ):
            await ended

    try:
        time.run(follow())
    except NothingLeft as error:
        line = _render([each[:2] for each in records], FRAME)
        raise NothingLeft(f"the stream does not end: {error}\nhappened  {line}") from error
    time.advance(0)
    return records


def _parse(line: str, frame: float, marks: Iterable[str]) -> list[Instant]:
    """Parse a marble line."""
    at = 0
    instants: list[Instant] = []
    grouped = False
    known = {Event.marble, *(cls.marble for cls in EVENT_TYPES.values()), _FINAL, END, ERROR, *marks}
    for token in _TOKEN.finditer(line):
        number, unit, one = token.group("number", "unit", "one")
        if number is not None:
            elapsed = round(float(number) * (SECOND if unit == "s" else SECOND // 1000))
        elif one == "-":
            elapsed = round(frame * SECOND)
        else:
            elapsed = 0
        if elapsed and grouped:
            raise _make_error(line, token.start(), "time cannot advance inside parentheses")
        at += elapsed
        if one == "(" and not grouped:
            grouped = True
        elif one == ")" and grouped:
            grouped = False
        elif one in known:
            instants.append((at, one))
        elif one is not None and one != "-":
            raise _make_error(line, token.start(), f"unknown letter {one!r}")
    if grouped:
        raise _make_error(line, len(line), "unclosed parenthesis")
    return instants


def _make_error(line: str, column: int, reason: str) -> ConfigurationError:
    return ConfigurationError(f"{reason}:\n  {line}\n  {' ' * column}^")


def _render(instants: Iterable[Instant], frame: float) -> str:
    groups: list[tuple[int, str]] = []
    for at, mark in instants:
        if groups and groups[-1][0] == at:
            groups[-1] = (at, groups[-1][1] + mark)
        else:
            groups.append((at, mark))
    pieces: list[str] = []
    now = 0
    for at, group in groups:
        pieces.append(_format_gap(at - now, round(frame * SECOND)))
        pieces.append(group if len(group) == 1 else f"({group})")
        now = at
    return "".join(pieces).strip()


def _format_gap(elapsed: int, frame: int) -> str:
    if elapsed % frame == 0 and elapsed // frame <= 4:
        return "-" * (elapsed // frame)
    return f" {_format_duration(elapsed)} "


def _format_duration(elapsed: int) -> str:
    """Format a duration for a marble line."""
    value, unit = (elapsed / SECOND, "s") if elapsed >= SECOND else (elapsed * 1000 / SECOND, "ms")
    return f"{value:.9f}".rstrip("0").rstrip(".") + unit


def recorded(path: str | os.PathLike[str], *, task_id: str | None = None) -> ScriptedModel:
    """Create a model from a recorded run. See `ScriptedModel.from_events`.

    This can be used to create offline tests from successful runs, without API keys.

    Example:
        >>> await Agent(recorded("run.jsonl"), tools=tools).run("Weather?").pipe(op.compare("run.jsonl"))

    Args:
        path: File created with `op.record`, `rxloop run --json` or `rxloop export --full`.
        task_id: Run id, if the file also contains nested runs. Defaults to the outermost run.

    Raises:
        ConfigurationError: The file cannot be read, or is not a valid recording.
    """
    events = recorded_events(path)
    try:
        return ScriptedModel.from_events(events, task_id=task_id)
    except ConfigurationError as error:
        raise ConfigurationError(f"{os.fspath(path)}: {error}") from error


def recorded_events(path: str | os.PathLike[str]) -> list[Event]:
    """Read all events from a recorded run, for use with views and folds.

    Args:
        path: JSONL file with a single event per line.

    Raises:
        ConfigurationError: The file cannot be read, or contains an invalid event.
    """
    return read_recording(path)
