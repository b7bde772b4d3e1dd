"""Commands `export` and `import`: run transfer in JSONL format."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from rxloop.cli import options
from rxloop.cli.database import find_run, find_short_id, open_database
from rxloop.cli.render import format_count
from rxloop.cli.terminal import notify, run_main, write_json
from rxloop.errors import ConfigurationError, ConflictError, RxloopError, UnknownRun
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.envelope import PROTOCOL_VERSION
from rxloop.protocol.events import (
    CustomEvent,
    Event,
    StatusUpdateEvent,
    TaskEvent,
    normalise,
)
from rxloop.protocol.model import FrozenDict
from rxloop.protocol.visibility import HIDDEN, IMPORTED_RUN
from rxloop.recorded.export import export_text
from rxloop.state.fold import fold_all
from rxloop.storage import SqliteEventLog
from rxloop.storage.conversation import conversation

_MAX_GAP = 100_000
"""Maximum number of hidden events between two public events, which limits the memory for a damaged file."""


class ExportForm(StrEnum):
    """Forms of exported runs."""

    html = "html"
    jsonl = "jsonl"
    otlp = "otlp"
    pytest = "pytest"
    case = "case"
    markdown = "markdown"


def export(
    run: options.RunId,
    full: options.Full = False,
    skip_corrupt: options.SkipCorrupt = False,
    otel: Annotated[
        bool,
        typer.Option("--otel", help="Send OpenTelemetry spans to OTEL_EXPORTER_OTLP_ENDPOINT instead of writing JSON."),
    ] = False,
    form: Annotated[
        ExportForm | None, typer.Option("--form", help="Form of the file, which is written to standard output.")
    ] = None,
    html: Annotated[
        bool, typer.Option("--html", help="Write the viewer page with this run, as with --form html.")
    ] = False,
    db: options.Database = None,
) -> None:
    """Write a run as JSON lines or another file, or send its OpenTelemetry spans.

    Without --full, only public data is written. Imported into another database, such a run can be viewed but not
    resumed. Spans have no content.
    """
    chosen = ExportForm.html if html else form

    async def main() -> None:
        if otel and chosen is not None:
            raise ConfigurationError("--otel sends spans and writes no file; omit it, or omit --form and --html")
        async with open_database(db, skip_corrupt=skip_corrupt) as log:
            record = await find_run(log, run)
            events = await log.read(record.task_id)
            if otel:
                count = await asyncio.to_thread(_load_exporter(), record.task_id, events, content=full or None)
                notify(f"run {await find_short_id(log, record.task_id)}: {format_count(count, 'span')}")
                return
            if chosen is not None:
                sys.stdout.buffer.write(await _make_file(chosen, log, record, events, full=full))
                sys.stdout.flush()
                return
            for event in events:
                write_json(event, full=full)

    run_main(main())


async def _make_file(
    form: ExportForm, log: EventLog, record: RunRecord, events: Sequence[Event], *, full: bool
) -> bytes:
    if form in (ExportForm.html, ExportForm.otlp):
        # Other forms do not require the package of the server.
        from rxloop.server.viewer.document import export_run

        before = await conversation(log, record.conversation, before=record.task_id)
        return export_run(form.value, record, events, before=before, internal=full)
    return export_text(form.value, record.task_id, events, internal=full)


def _load_exporter() -> Callable[..., int]:
    try:
        from rxloop.telemetry.export import export_spans
    except ImportError as error:
        raise ConfigurationError(
            f"--otel requires {error.name}; install it with pip install opentelemetry-exporter-otlp-proto-http"
        ) from error
    return export_spans


def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Output of 'rxloop export', or '-' for stdin.")],
    trusted: Annotated[
        bool,
        typer.Option("--trusted", help="Let memories use the notes and messages of the runs. For your own exports."),
    ] = False,
    db: options.Database = None,
) -> None:
    """Import runs from a file.

    The entire file is checked before the database is changed. Ids and owners are preserved. Memories ignore the runs,
    unless --trusted is given. Runs that were exported without --full can be viewed, but not resumed or forked.
    """

    async def main() -> None:
        name = "stdin" if str(file) == "-" else str(file)
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        runs = read_runs(data, name)
        await _rehearse(runs)
        if not trusted:
            runs = {task_id: [_mark_imported(first), *rest] for task_id, (first, *rest) in runs.items()}
        async with open_database(db, write=True) as log:
            for task_id in runs:
                await _check_new(log, task_id)
            for task_id, events in runs.items():
                await log.append(task_id, events, expected_seq=0)
                form = ", public form" if _is_public(events) else ""
                notify(f"run {await find_short_id(log, task_id)}: {format_count(len(events), 'event')}{form}")

    run_main(main())


def read_runs(data: bytes, name: str) -> dict[str, list[Event]]:
    """Parse durable events and group them by run.

    Raises:
        ConfigurationError: Events are invalid or incomplete.
    """
    runs: dict[str, list[Event]] = {}
    # `splitlines` would also split at other characters.
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            event = _parse_event(line, f"{name}, line {number}")
            # Complete messages include the content of transient events.
            if event.durable:
                # Nested runs are stored in the log of the outermost run.
                run = runs.setdefault(event.root_task_id, [])
                if _is_public(run):
                    run += _make_placeholders(run[-1], event.seq)
                _check_event(event, run, f"{name}, line {number}")
                run.append(event)
    if not runs:
        raise ConfigurationError(f"{name} contains no events; pass the output of rxloop export")
    for events in runs.values():
        if _is_public(events):
            _check_public_run(events, name)
    # Sort by creation time, because runs are listed in insertion order.
    return dict(sorted(runs.items(), key=lambda run: run[1][0].timestamp))


def _parse_event(line: bytes, location: str) -> Event:
    try:
        event = Event.from_json(line)
        normalise(event)
    except (RxloopError, ValueError, ArithmeticError, RecursionError) as error:
        raise ConfigurationError(f"{location}: {error}") from error
    if event.version > PROTOCOL_VERSION:
        raise ConfigurationError(
            f"{location}: protocol version {event.version} is not supported, the latest is {PROTOCOL_VERSION}"
        )
    return event


def _check_event(event: Event, previous: list[Event], location: str) -> None:
    if not event.task_id or not event.context_id:
        raise ConfigurationError(f"{location}: the event must have a taskId and a contextId")
    if event.seq != len(previous) + 1:
        raise ConfigurationError(
            f"{location}: the next seq of the run {event.task_id} must be {len(previous) + 1}, got {event.seq}"
        )
    if not previous and not isinstance(event, TaskEvent):
        raise ConfigurationError(f"{location}: the first event of a run must be a task, got {event.kind}")
    if previous and event.context_id != previous[0].context_id:
        raise ConfigurationError(f"{location}: the run {event.task_id} must have the same contextId in all events")


# -- runs without internal data


def _is_public(events: Sequence[Event]) -> bool:
    first = events[0] if events else None
    return isinstance(first, TaskEvent) and first.public_form


def _make_placeholders(previous: Event, seq: int) -> list[Event]:
    """Return events for the numbers between two events, because the events of a log have no gaps."""
    if seq - previous.seq > _MAX_GAP:
        raise ConfigurationError(f"seq must be at most {previous.seq + _MAX_GAP} after {previous.seq}, got {seq}")
    return [
        CustomEvent(
            name="hidden",
            data="not part of the public form",
            context_id=previous.context_id,
            task_id=previous.root_task_id,
            seq=missing,
            attempt=previous.attempt,
            timestamp=previous.timestamp,
            metadata={HIDDEN: True},
        )
        for missing in range(previous.seq + 1, seq)
    ]


def _check_public_run(events: Sequence[Event], name: str) -> None:
    """Check that a run without internal data is over.

    Raises:
        ConfigurationError: The run is not over. Workers would resume it, although its options are missing.
    """
    last = next((event for event in reversed(events) if not isinstance(event, CustomEvent)), events[0])
    if not (isinstance(last, StatusUpdateEvent) and last.final and last.state in ("completed", "failed", "canceled")):
        raise ConfigurationError(
            f"{name}: the run {events[0].task_id} is not over, and its public form cannot be resumed; create the file "
            f"with 'rxloop export --full'"
        )


def _mark_imported(task: Event) -> Event:
    # Otherwise, the file could place notes into the memory of any owner, in the name of the program.
    return task.model_copy(update={"metadata": FrozenDict({**task.metadata, IMPORTED_RUN: True})})


async def _rehearse(runs: Mapping[str, Sequence[Event]]) -> None:
    """Write all runs to a temporary database and read them, to detect errors before the actual import.

    Raises:
        ConfigurationError: A run cannot be written or read.
    """
    with TemporaryDirectory(prefix="rxloop-import-") as folder:
        log = SqliteEventLog(Path(folder) / "rehearsal.db")
        try:
            for task_id, events in runs.items():
                try:
                    await log.append(task_id, events, expected_seq=0)
                    fold_all(await log.read(task_id))
                except Exception as error:
                    raise ConfigurationError(f"cannot store the run {task_id}: {error}") from error
        finally:
            await log.aclose()


async def _check_new(log: EventLog, task_id: str) -> None:
    try:
        await log.read(task_id)
    except UnknownRun:
        return
    raise ConflictError(f"the run {task_id} already exists; nothing was imported")
