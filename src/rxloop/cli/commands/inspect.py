"""Commands `runs`, `show`, `replay`, `diff` and `graph`: access to stored runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NamedTuple

import orjson
import reactivex.operators as rx
import typer
from rich.text import Text

from rxloop.cli import options
from rxloop.cli.database import find_context, find_run, first_event, opened, short_ids
from rxloop.cli.options import RunDisplay, ThoughtLevel
from rxloop.cli.terminal import running, say, table, write, write_json, write_plain
from rxloop.errors import ConfigurationError
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import Event
from rxloop.support.text import to_one_line
from rxloop.thinking.graph import ThoughtGraph

_COLOURS = {"completed": "green", "failed": "red", "canceled": "yellow", "working": "cyan"}
_UNITS = ((60, "second"), (3_600, "minute"), (86_400, "hour"), (7 * 86_400, "day"))


class _Row(NamedTuple):
    record: RunRecord
    short: str
    model: str
    question: str


def runs(
    context: Annotated[
        str | None, typer.Option("--context", metavar="ID", help="Only those of this conversation.")
    ] = None,
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="Only those that are neither completed nor failed.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="How many, at most; 0 is all.")] = 20,
    json: Annotated[bool, typer.Option("--json", help="Write each run as JSON, one a line.")] = False,
    db: options.Database = None,
) -> None:
    """List the runs, newest first."""

    async def main() -> None:
        async with opened(db) as log:
            context_id = await find_context(log, context) if context is not None else None
            found = list(await log.list_runs(context_id=context_id, unfinished=unfinished))[::-1]
            rows = await _rows(log, found[:limit] if limit else found)
        if json:
            for row in rows:
                write(_as_json(row))
        elif rows:
            write(_table(rows))
            if limit and len(found) > limit:
                say(f"and {len(found) - limit} more: --limit 0 lists all")
        else:
            say("there are no such runs" if unfinished or context_id else "there are no runs yet")

    running(main())


async def _rows(log: EventLog, records: Sequence[RunRecord]) -> list[_Row]:
    short = short_ids([record.task_id for record in await log.list_runs()])
    rows: list[_Row] = []
    for record in records:
        first = await first_event(log, record.task_id)
        model, question = (first.model, first.messages[-1].text) if first and first.messages else ("", "")
        rows.append(_Row(record, short[record.task_id], model, question))
    return rows


def _as_json(row: _Row) -> str:
    record = row.record
    fields = {
        "taskId": record.task_id,
        "contextId": record.context_id,
        "agentName": record.agent_name,
        "model": row.model,
        "state": record.state,
        "attempt": record.attempt,
        "seq": record.seq,
        "created": datetime.fromtimestamp(record.created / 1000, UTC).isoformat(timespec="milliseconds"),
        "updated": datetime.fromtimestamp(record.updated / 1000, UTC).isoformat(timespec="milliseconds"),
        "question": row.question,
    }
    return orjson.dumps(fields).decode() + "\n"


def _table(rows: Sequence[_Row]) -> Text:
    head = ("RUN", "STARTED", "STATE", "AGENT", "MODEL", "QUESTION")
    cells = [
        (
            row.short,
            ago(row.record.created),
            row.record.state,
            to_one_line(row.record.agent_name, 20),
            to_one_line(row.model, 32),
            to_one_line(row.question, 200),
        )
        for row in rows
    ]
    return table(head, cells, lambda place, cell: _COLOURS.get(cell, "yellow") if place == 2 else "")


def ago(timestamp: int, now: float | None = None) -> str:
    """Format a timestamp (milliseconds since 1970) relative to the current time, or as a date for older ones."""
    seconds = max(int((time.time() if now is None else now) - timestamp / 1000), 0)
    if seconds < 5:
        return "just now"
    size = 1
    for end, unit in _UNITS:
        if seconds < end:
            number = seconds // size
            return f"{number} {unit}{'' if number == 1 else 's'} ago"
        size = end
    return f"{datetime.fromtimestamp(timestamp / 1000, UTC).astimezone():%Y-%m-%d}"


def show(
    run: options.RunId,
    thoughts: options.Thoughts = ThoughtLevel.all,
    after: Annotated[int, typer.Option("--after", metavar="SEQ", min=0, help="Only what comes after this event.")] = 0,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what comes, until the attempt ends.")
    ] = False,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="With --follow, go on over pauses and attempts until the run is over.")
    ] = False,
    json: options.Json = False,
    full: options.Full = False,
    skip_corrupt: options.SkipCorrupt = False,
    db: options.Database = None,
) -> None:
    """Show what is on record of a run.

    A line for each event, with its number and the seconds since the attempt began.
    """
    # Imported lazily because `rxloop runs` and `rxloop graph` do not need these modules.
    from rxloop.cli.live_view import numbered
    from rxloop.recorded.follow import follow as following
    from rxloop.recorded.replay import replay as replaying

    if full and not json:
        raise ConfigurationError("--full changes what --json writes: give both")

    def comes_later(event: Event) -> bool:
        return event.seq > after

    async def main() -> None:
        async with opened(db, skip_corrupt=skip_corrupt) as log:
            record = await find_run(log, run)
            first = await first_event(log, record.task_id)
            if first is not None and not json and not after:
                ids = f"run {record.task_id}, conversation {record.context_id}\n"
                who = f"{to_one_line(record.agent_name)} with {to_one_line(first.model)}, {record.state}\n"
                write(Text(ids + who, "dim"))
            if follow or until_end:
                stream = following(log, record.task_id, until="end" if until_end else "attempt")
            else:
                stream = replaying(log, record.task_id, deltas=False)
            events = stream.pipe(rx.filter(comes_later))
            if json:
                async for event in events:
                    write_json(event, full=full)
            else:
                async for text in events.pipe(numbered(thoughts)):
                    write(text)

    running(main())


def replay(
    run: options.RunId,
    speed: Annotated[
        float | None,
        typer.Option("--speed", metavar="FACTOR", help="1 is the recorded pace; without it, all at once."),
    ] = None,
    until: Annotated[int | None, typer.Option("--until", metavar="SEQ", min=1, help="Stop after this event.")] = None,
    *,
    display: RunDisplay,
    skip_corrupt: options.SkipCorrupt = False,
    db: options.Database = None,
) -> None:
    """Show a run once more as it was seen live.

    No model is asked, and no tool is called.
    """
    from rxloop.cli.live_run import show as write_live
    from rxloop.recorded.replay import replay as replaying

    async def main() -> None:
        async with opened(db, skip_corrupt=skip_corrupt) as log:
            record = await find_run(log, run)
            events = replaying(log, record.task_id, speed=speed)
            await write_live(events if until is None else events.until(until), display)

    running(main())


def diff(
    a: options.RunId,
    b: Annotated[str, typer.Argument(metavar="RUN", help="The other run.")],
    db: options.Database = None,
) -> None:
    """Show where two runs first differ, and what each cost."""
    from rxloop.recorded.diff import diff as compare

    async def main() -> None:
        async with opened(db) as log:
            left, right = await find_run(log, a), await find_run(log, b)
            write(f"{await compare(log, left.task_id, right.task_id)}\n")

    running(main())


class GraphFormat(StrEnum):
    """Output format for thought graphs."""

    tree = "tree"
    mermaid = "mermaid"
    dot = "dot"
    json = "json"
    html = "html"


_WRITERS: dict[GraphFormat, Callable[[ThoughtGraph], str]] = {
    GraphFormat.tree: ThoughtGraph.tree,
    GraphFormat.mermaid: ThoughtGraph.to_mermaid,
    GraphFormat.dot: ThoughtGraph.to_dot,
    GraphFormat.json: lambda graph: graph.to_json().decode(),
    GraphFormat.html: ThoughtGraph.to_html,
}


def graph(
    run: options.RunId,
    format: Annotated[GraphFormat, typer.Option("--format", "-f", help="How to write it.")] = GraphFormat.tree,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write it.")] = None,
    db: options.Database = None,
) -> None:
    """Draw the thoughts of a run."""

    async def main() -> None:
        async with opened(db) as log:
            record = await find_run(log, run)
            thoughts = ThoughtGraph.of(await log.read(record.task_id))
        text = _WRITERS[format](thoughts).rstrip("\n") + "\n"
        if output is not None:
            output.write_text(text, encoding="utf-8")
            say(f"{output} has {len(thoughts)} thoughts")
        elif len(thoughts) or format is not GraphFormat.tree:
            write_plain(text)
        else:
            say("this run has no thoughts")

    running(main())
