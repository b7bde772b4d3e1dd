"""Commands `export` and `import`: run transfer in JSONL format."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from rxloop.cli import options
from rxloop.cli.database import find_run, opened, short_id
from rxloop.cli.render import many
from rxloop.cli.terminal import running, say, write_json
from rxloop.errors import ConfigurationError, ConflictError, RxloopError, UnknownRun
from rxloop.pipeline.event_log import EventLog
from rxloop.protocol.envelope import PROTOCOL_VERSION
from rxloop.protocol.events import Event, TaskEvent, normalise
from rxloop.state.fold import fold_all
from rxloop.storage import SqliteEventLog


def export(
    run: options.RunId,
    full: options.Full = False,
    skip_corrupt: options.SkipCorrupt = False,
    db: options.Database = None,
) -> None:
    """Write the events of a run as JSON, one a line.

    Without --full it is what others may see: good to show, and too little for 'rxloop import'.
    """

    async def main() -> None:
        async with opened(db, skip_corrupt=skip_corrupt) as log:
            record = await find_run(log, run)
            for event in await log.read(record.task_id):
                write_json(event, full=full)

    running(main())


def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What 'rxloop export --full' wrote; '-' is stdin.")],
    db: options.Database = None,
) -> None:
    """Take runs over from a file.

    All of it is checked before anything is written, and the ids stay as they are.
    """

    async def main() -> None:
        name = "stdin" if str(file) == "-" else str(file)
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        runs = read_runs(data, name)
        await _rehearse(runs)
        async with opened(db, write=True) as log:
            for task_id in runs:
                await _must_be_new(log, task_id)
            for task_id, events in runs.items():
                await log.append(task_id, events, expected_seq=0)
                say(f"run {await short_id(log, task_id)}: {many(len(events), 'event')}")

    running(main())


def read_runs(data: bytes, name: str) -> dict[str, list[Event]]:
    """Parse durable events and group them by run.

    Raises:
        ConfigurationError: A line is not a valid event, or a run is incomplete.
    """
    runs: dict[str, list[Event]] = {}
    # `splitlines` would also split at other characters.
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            event = _read(line, f"{name}, line {number}")
            # Complete messages include the content of transient events.
            if event.durable:
                # Nested runs are stored in the log of the outermost run.
                run = runs.setdefault(event.root_task_id, [])
                _check(event, run, f"{name}, line {number}")
                run.append(event)
    if not runs:
        raise ConfigurationError(f"{name} holds no events")
    # Sort by creation time, because runs are listed in insertion order.
    return dict(sorted(runs.items(), key=lambda run: run[1][0].timestamp))


def _read(line: bytes, where: str) -> Event:
    try:
        event = Event.from_json(line)
        normalise(event)
    except (RxloopError, ValueError, ArithmeticError, RecursionError) as error:
        raise ConfigurationError(f"{where}: {error}") from error
    if event.version > PROTOCOL_VERSION:
        raise ConfigurationError(f"{where}: version {event.version} of the protocol is newer than this rxloop")
    return event


def _check(event: Event, before: list[Event], where: str) -> None:
    if isinstance(event, TaskEvent) and event.public_form:
        raise ConfigurationError(
            f"{where}: this is the public form of a run, with much left out, and cannot be imported: "
            "write one with 'rxloop export --full'"
        )
    if not event.task_id or not event.context_id:
        raise ConfigurationError(f"{where}: the event has no taskId, or no contextId")
    if event.seq != len(before) + 1:
        raise ConfigurationError(
            f"{where}: the run {event.task_id} has the seq {event.seq} where {len(before) + 1} comes next"
        )
    if not before and not isinstance(event, TaskEvent):
        raise ConfigurationError(f"{where}: the first event of a run is a task, not a {event.kind}")
    if before and event.context_id != before[0].context_id:
        raise ConfigurationError(f"{where}: the run {event.task_id} has changed its conversation")


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
                    raise ConfigurationError(f"the run {task_id} cannot be kept in a database: {error}") from error
        finally:
            await log.aclose()


async def _must_be_new(log: EventLog, task_id: str) -> None:
    try:
        await log.read(task_id)
    except UnknownRun:
        return
    raise ConflictError(f"the database has the run {task_id} already; nothing was imported")
