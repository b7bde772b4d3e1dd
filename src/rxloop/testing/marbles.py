"""Marble diagrams: single-line text representations of events over time.

    (twlcs) 500ms (xl) 150ms (cF|)

Each letter represents an event. `|` is the end of the stream and `#` an error. Parentheses group events that occur at
the same time. A `-` advances the time by a single frame, and `500ms` or `1.5s` by the given duration. Blanks are
ignored.

The letters are listed in docs/protocol.md and are available as the `marble` attribute of event classes. `F` is the
final status-update.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from reactivex import Observable

from rxloop.errors import ConfigurationError
from rxloop.operators.views.record import read_recording
from rxloop.protocol.envelope import EVENT_TYPES
from rxloop.protocol.events import CheckpointEvent, Event, StatusUpdateEvent, UsageEvent
from rxloop.providers.script import ScriptedModel
from rxloop.testing.virtual_time import SECOND, NothingLeft, current_time

FRAME = 0.025
"""Duration of a `-` in seconds."""
END = "|"
ERROR = "#"
_FINAL = "F"
_TOKEN = re.compile(r"\s+|(?P<number>\d+(?:\.\d+)?)(?P<unit>ms|s)|(?P<one>.)")

Instant = tuple[int, str]
"""Time in nanoseconds and marble."""


class HasEvents(Protocol):
    """Protocol for objects with an event stream, such as runs."""

    @property
    def events(self) -> Observable[Event]:
        """Event stream."""
        ...


def letter(event: Event) -> str:
    """Return the marble letter for an event."""
    if isinstance(event, StatusUpdateEvent) and event.final:
        return _FINAL
    return event.marble


def assert_marbles(run: HasEvents | Observable[Any], expected: str, *, frame: float = FRAME) -> None:
    """Assert the events of a stream and their timing, using virtual time.

    The function subscribes to the stream and runs the event loop until the stream ends. Transient events, usage and
    checkpoints are ignored unless their letters are part of the expected line.

    Args:
        run: Run or Observable of events.
        expected: Marble line, starting at the time of the subscription. See the module documentation for the syntax.
        frame: Duration of a `-` in seconds.

    Raises:
        AssertionError: The stream was different. The message contains both lines and the first different events.
        RxloopError: `virtual_time()` is not active, or the stream never ends.
    """
    __tracebackhide__ = True
    wanted = _parse(expected, frame)
    named = {mark for _, mark in wanted}
    happened = [(at, what) for at, what in _record(run) if isinstance(what, Exception) or _compared(what, named)]
    found = [(at, _mark(what)) for at, what in happened]
    if found == wanted:
        return
    lines = _render(wanted, frame), _render(found, frame)
    column = _difference(*lines)
    place = _difference(wanted, found)
    at = min(line[place][0] for line in (wanted, found) if place < len(line))
    message = [
        f"the marbles part at {_duration(at)}",
        f"expected  {lines[0]}",
        f"happened  {lines[1]}",
        " " * (len("expected  ") + column) + "^",
        *_around(at, happened),
    ]
    raise AssertionError("\n".join(message))


def _around(at: int, happened: Sequence[tuple[int, Event | Exception | str]]) -> list[str]:
    """Describe events at the given time, or the next events after it."""
    shown = min((when for when, _ in happened if when >= at), default=None)
    if shown is None:
        return [f"nothing happened at {_duration(at)} or later"]
    when = (
        f"events at {_duration(at)}:" if shown == at else f"no event at {_duration(at)}; next, at {_duration(shown)}:"
    )
    there = [what for then, what in happened if then == shown]
    return [when, *(f"  {_mark(what)}  {'the end' if isinstance(what, str) else repr(what)}" for what in there)]


def marbles(events: Iterable[tuple[float, Event | str]], *, frame: float = FRAME) -> str:
    """Format events as a marble line.

    Args:
        events: Pairs of time (seconds since the start) and event, where `"|"` is the end of the stream and `"#"` an
            error.
        frame: Duration of a `-` in seconds.
    """
    return _render([(round(at * SECOND), _mark(what)) for at, what in events], frame)


def _difference(one: Sequence[object], other: Sequence[object]) -> int:
    """Return the first index at which two sequences are different."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _mark(what: Event | Exception | str) -> str:
    if isinstance(what, Event):
        return letter(what)
    return ERROR if isinstance(what, Exception) else what


def _compared(what: Event | str, named: set[str]) -> bool:
    if isinstance(what, str) or letter(what) in named:
        return True
    return what.durable and not isinstance(what, UsageEvent | CheckpointEvent)


def _record(run: HasEvents | Observable[Any]) -> list[tuple[int, Event | Exception | str]]:
    """Subscribe and run the event loop until the stream has finished."""
    time = current_time()
    seen: list[tuple[int, Event | Exception | str]] = []

    async def follow() -> None:
        start = time.now
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def record(what: Any) -> None:
            seen.append((round((time.now - start) * SECOND), what))

        def end(what: Exception | str) -> None:
            record(what)
            if not ended.done():
                ended.set_result(None)

        stream: Observable[Any] = run if isinstance(run, Observable) else run.events
        with stream.subscribe(record, end, lambda: end(END)):
            await ended

    try:
        time.run(follow())
    except NothingLeft as error:
        line = _render([(at, _mark(what)) for at, what in seen], FRAME)
        raise NothingLeft(f"the stream does not end: {error}\nhappened  {line}") from error
    time.advance(0)
    return seen


def _parse(line: str, frame: float) -> list[Instant]:
    """Parse a marble line."""
    at = 0
    instants: list[Instant] = []
    grouped = False
    known = {Event.marble, *(cls.marble for cls in EVENT_TYPES.values()), _FINAL, END, ERROR}
    for token in _TOKEN.finditer(line):
        number, unit, one = token.group("number", "unit", "one")
        if number is not None:
            passed = round(float(number) * (SECOND if unit == "s" else SECOND // 1000))
        elif one == "-":
            passed = round(frame * SECOND)
        else:
            passed = 0
        if passed and grouped:
            raise _unreadable(line, token.start(), "no time passes inside parentheses")
        at += passed
        if one == "(" and not grouped:
            grouped = True
        elif one == ")" and grouped:
            grouped = False
        elif one in known:
            instants.append((at, one))
        elif one is not None and one != "-":
            raise _unreadable(line, token.start(), f"no event has the letter {one!r}")
    if grouped:
        raise _unreadable(line, len(line), "a parenthesis is not closed")
    return instants


def _unreadable(line: str, column: int, why: str) -> ConfigurationError:
    return ConfigurationError(f"{why}:\n  {line}\n  {' ' * column}^")


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
        pieces.append(_gap(at - now, round(frame * SECOND)))
        pieces.append(group if len(group) == 1 else f"({group})")
        now = at
    return "".join(pieces).strip()


def _gap(passed: int, frame: int) -> str:
    if passed % frame == 0 and passed // frame <= 4:
        return "-" * (passed // frame)
    return f" {_duration(passed)} "


def _duration(passed: int) -> str:
    """Format a duration for a marble line."""
    value, unit = (passed / SECOND, "s") if passed >= SECOND else (passed * 1000 / SECOND, "ms")
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
