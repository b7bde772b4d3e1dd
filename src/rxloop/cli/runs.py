"""`rxloop runs`: the runs in the database."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, NamedTuple

import orjson
import typer
from rich.text import Text

from rxloop.cli import options
from rxloop.cli.store import find_context, first_event, opened, short_ids
from rxloop.cli.table import table
from rxloop.cli.terminal import running, say, write
from rxloop.pipeline.logs import EventLog
from rxloop.pipeline.values import RunRecord
from rxloop.thoughts.drawing import one_line

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
            found = list(await log.runs(context_id=context_id, unfinished=unfinished))[::-1]
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
    short = short_ids([record.task_id for record in await log.runs()])
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
            one_line(row.record.agent_name, 20),
            one_line(row.model, 32),
            one_line(row.question, 200),
        )
        for row in rows
    ]
    return table(head, cells, lambda place, cell: _COLOURS.get(cell, "yellow") if place == 2 else "")


def ago(timestamp: int, now: float | None = None) -> str:
    """Say how long ago a time was, in milliseconds since 1970; an old day by its date."""
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
