"""Marble lines: what happened on a stream and when, in one line of text.

    (twlcs) 500ms (xl) 150ms (cF|)

A letter is an event, and `|` the end or `#` the error of the stream. Parentheses hold what happens at one instant, in
order. Time passes only with `-`, which is one frame, and with `500ms` or `1.5s`. Blanks mean nothing.

The letters stand beside the kinds in docs/protocol.md, as `marble` of their classes; `F` is the final status-update.
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
"""The length of one `-` in seconds."""
END = "|"
ERROR = "#"
_FINAL = "F"
_TOKEN = re.compile(r"\s+|(?P<number>\d+(?:\.\d+)?)(?P<unit>ms|s)|(?P<one>.)")

Instant = tuple[int, str]
"""Nanoseconds since the start, and what happened then."""


class HasEvents(Protocol):
    """Something with a stream of events, such as a run."""

    @property
    def events(self) -> Observable[Event]:
        """The stream."""
        ...


def letter(event: Event) -> str:
    """Return the letter that stands for an event in a marble line."""
    if isinstance(event, StatusUpdateEvent) and event.final:
        return _FINAL
    return event.marble


def assert_marbles(run: HasEvents | Observable[Any], expected: str, *, frame: float = FRAME) -> None:
    """Assert what happens on a stream, and when, in virtual time.

    Subscribes, drives the loop until the stream ends, and compares. Transient events, usage and checkpoints are left
    out, unless their letter occurs in the expected line.

    Args:
        run: A run, or any Observable of events.
        expected: A marble line, as the head of this module explains it. It starts when the stream is subscribed.
        frame: The length of one `-` in seconds.

    Raises:
        AssertionError: Something else happened; the message shows both lines and the events where they part.
        RxloopError: There is no `virtual_time()` around the call, or the stream never ends.
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
    """List the events at an instant, or else those that came next."""
    shown = min((when for when, _ in happened if when >= at), default=None)
    if shown is None:
        return [f"nothing happened at {_duration(at)} or later"]
    when = (
        f"events at {_duration(at)}:" if shown == at else f"no event at {_duration(at)}; next, at {_duration(shown)}:"
    )
    there = [what for then, what in happened if then == shown]
    return [when, *(f"  {_mark(what)}  {'the end' if isinstance(what, str) else repr(what)}" for what in there)]


def marbles(events: Iterable[tuple[float, Event | str]], *, frame: float = FRAME) -> str:
    """Write what happened as a marble line.

    Args:
        events: Seconds since the start, and the event; `"|"` is the end of the stream and `"#"` its error.
        frame: The length of one `-` in seconds.
    """
    return _render([(round(at * SECOND), _mark(what)) for at, what in events], frame)


def _difference(one: Sequence[object], other: Sequence[object]) -> int:
    """Find the first place where two sequences differ."""
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
    """Subscribe, and drive the loop until the stream has ended."""
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
    """Read a marble line."""
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
    """Write a length of time as a marble line has it."""
    value, unit = (passed / SECOND, "s") if passed >= SECOND else (passed * 1000 / SECOND, "ms")
    return f"{value:.9f}".rstrip("0").rstrip(".") + unit


def recorded(path: str | os.PathLike[str], *, task_id: str | None = None) -> ScriptedModel:
    """Make a model that answers as the models of a recorded run did; see `ScriptedModel.from_events`.

    So a run that went well once becomes a test, with no model and no key:

    Example:
        >>> await Agent(recorded("run.jsonl"), tools=tools).run("Weather?").pipe(op.compare("run.jsonl"))

    Args:
        path: The file that `op.record`, `rxloop run --json` or `rxloop export --full` made of the run.
        task_id: The run, where the file has a nested one as well; by default the outermost.

    Raises:
        ConfigurationError: The file cannot be read, or is not a recording of a run.
    """
    events = recorded_events(path)
    try:
        return ScriptedModel.from_events(events, task_id=task_id)
    except ConfigurationError as error:
        raise ConfigurationError(f"{os.fspath(path)}: {error}") from error


def recorded_events(path: str | os.PathLike[str]) -> list[Event]:
    """Read the events of a recorded run, in order, for views and folds.

    Args:
        path: The file, with the JSON of one event on each line.

    Raises:
        ConfigurationError: The file cannot be read, or a line of it is not an event.
    """
    return read_recording(path)
