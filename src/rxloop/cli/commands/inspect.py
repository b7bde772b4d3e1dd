"""Commands `runs`, `show`, `replay`, `diff` and `graph`: access to stored runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import orjson
import reactivex.operators as rx
import typer
from rich.text import Text

from rxloop.cli import options
from rxloop.cli.database import find_context, find_run, open_database, read_first_event, shorten_ids
from rxloop.cli.options import RunDisplay, ThoughtLevel, decode
from rxloop.cli.suggestions import suggest_runs
from rxloop.cli.terminal import format_table, notify, run_main, write, write_json, write_plain
from rxloop.errors import ConfigurationError
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.records import RunQuery, RunRecord
from rxloop.protocol.events import Event, PendingInput
from rxloop.support.text import to_one_line
from rxloop.thinking.graph import ThoughtGraph

_COLOURS = {"completed": "green", "failed": "red", "canceled": "yellow", "working": "cyan"}
_UNITS = ((60, "second"), (3_600, "minute"), (86_400, "hour"), (7 * 86_400, "day"))


class _Row(NamedTuple):
    record: RunRecord
    short: str
    model: str
    version: str | None
    """Program version that started the run."""
    question: str
    pending: Sequence[PendingInput]
    """Pending questions, if requested."""


def runs(
    context: Annotated[
        str | None, typer.Option("--context", metavar="ID", help="Only runs of this conversation.")
    ] = None,
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="Only runs that have neither completed nor failed.")
    ] = False,
    pending: Annotated[
        bool, typer.Option("--pending", help="Only runs with unanswered questions, such as approvals.")
    ] = False,
    grep: Annotated[
        str | None,
        typer.Option("--grep", metavar="TEXT", help="Only runs with this text in a question, answer or tool name."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="Maximum number of runs. 0 lists all runs.")] = 20,
    json: Annotated[bool, typer.Option("--json", help="Write runs as JSON, one per line.")] = False,
    db: options.Database = None,
) -> None:
    """List runs, newest first."""

    async def main() -> None:
        async with open_database(db) as log:
            context_id = await find_context(log, context) if context is not None else None
            query: RunQuery = {"context_id": context_id, "unfinished": unfinished}
            questions = await _load_questions(log, context_id) if pending else None
            if grep is not None:
                records = await _find_runs(log, decode(grep), limit, query, questions)
            else:
                listed = list(await log.list_runs(**query))[::-1]
                records = [each for each in listed if questions is None or each.task_id in questions]
            rows = await _load_rows(log, records[:limit] if limit else records, questions)
        if json:
            for row in rows:
                write(_to_json(row))
        elif rows:
            write(_format_runs(rows))
            if limit and len(records) > limit:
                # Stop searching after finding an additional run.
                more = "more" if grep is not None else f"{len(records) - limit} more"
                notify(f"and {more}: --limit 0 lists all")
        elif pending and grep is None:
            notify("no pending questions")
        else:
            notify("no matching runs" if unfinished or context_id or grep is not None else "no runs yet")

    run_main(main())


_Questions = Mapping[str, Sequence[PendingInput]]
"""Pending questions by run ID."""


async def _load_questions(log: EventLog, context_id: str | None) -> _Questions:
    # Imported lazily because other listings do not need this module.
    from rxloop.recorded.questions import list_pending

    return {each.record.task_id: each.inputs for each in await list_pending(log, context_id=context_id)}


async def _find_runs(
    log: EventLog, text: str, limit: int, query: RunQuery, questions: _Questions | None
) -> list[RunRecord]:
    """Return matching runs, newest first. An additional run indicates truncated results.

    Raises:
        ConfigurationError: The text is empty.
    """
    from rxloop.recorded.summary import search_runs

    if not text.strip():
        raise ConfigurationError("--grep must not be empty; omit it to list all runs")
    found: list[RunRecord] = []
    async with aclosing(search_runs(log, text, **query)) as matches:
        async for record in matches:
            if questions is None or record.task_id in questions:
                found.append(record)
            if limit and len(found) > limit:
                break
    return found


async def _load_rows(log: EventLog, records: Sequence[RunRecord], questions: _Questions | None) -> list[_Row]:
    # Imported lazily because most commands do not need the runtime.
    from rxloop.runtime.jobs import get_version

    short = shorten_ids([record.task_id for record in await log.list_runs()])
    rows: list[_Row] = []
    for record in records:
        first = await read_first_event(log, record.task_id)
        model, question = (first.model, first.messages[-1].text) if first and first.messages else ("", "")
        pending = () if questions is None else questions.get(record.task_id, ())
        rows.append(_Row(record, short[record.task_id], model, get_version(record), question, pending))
    return rows


def _to_json(row: _Row) -> str:
    record = row.record
    fields: dict[str, Any] = {
        "taskId": record.task_id,
        "contextId": record.context_id,
        "agentName": record.agent_name,
        "version": row.version,
        "model": row.model,
        "state": record.state,
        "attempt": record.attempt,
        "seq": record.seq,
        "created": datetime.fromtimestamp(record.created / 1000, UTC).isoformat(timespec="milliseconds"),
        "updated": datetime.fromtimestamp(record.updated / 1000, UTC).isoformat(timespec="milliseconds"),
        "question": row.question,
    }
    if row.pending:
        fields["pending"] = [
            {"inputId": each.input_id, "inputKind": each.input_kind, "prompt": each.prompt} for each in row.pending
        ]
    return orjson.dumps(fields).decode() + "\n"


def _format_runs(rows: Sequence[_Row]) -> Text:
    head = ("RUN", "STARTED", "STATE", "AGENT", "MODEL", "QUESTION")
    cells = [
        (
            row.short,
            format_age(row.record.created),
            row.record.state,
            to_one_line(row.record.agent_name, 20) + (f" ({to_one_line(row.version, 20)})" if row.version else ""),
            to_one_line(row.model, 32),
            to_one_line("; ".join(each.prompt for each in row.pending) or row.question, 200),
        )
        for row in rows
    ]
    return format_table(head, cells, lambda index, cell: _COLOURS.get(cell, "yellow") if index == 2 else "")


def format_age(timestamp: int, now: float | None = None) -> str:
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
    after: Annotated[int, typer.Option("--after", metavar="SEQ", min=0, help="Only events after this number.")] = 0,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new events until the attempt ends.")] = False,
    until_end: Annotated[
        bool,
        typer.Option("--until-end", help="With --follow, continue through pauses and attempts until the run ends."),
    ] = False,
    json: options.Json = False,
    full: options.Full = False,
    skip_corrupt: options.SkipCorrupt = False,
    db: options.Database = None,
) -> None:
    """Show the recorded events of a run.

    Each line contains an event with its number and the seconds since the attempt started.
    """
    # Imported lazily because `rxloop runs` and `rxloop graph` do not need these modules.
    from rxloop.cli.live_view import render_numbered
    from rxloop.recorded.follow import follow as follow_run
    from rxloop.recorded.replay import replay as replay_run

    def is_later(event: Event) -> bool:
        return event.seq > after

    async def main() -> None:
        if full and not json:
            raise ConfigurationError("--full requires --json, because the text output has no internal data; add --json")
        async with open_database(db, skip_corrupt=skip_corrupt) as log:
            record = await find_run(log, run)
            first = await read_first_event(log, record.task_id)
            if first is not None and not json and not after:
                ids = f"run {record.task_id}, conversation {record.context_id}\n"
                summary = f"{to_one_line(record.agent_name)} with {to_one_line(first.model)}, {record.state}\n"
                write(Text(ids + summary, "dim"))
            if follow or until_end:
                stream = follow_run(log, record.task_id, until="end" if until_end else "attempt")
            else:
                stream = replay_run(log, record.task_id, deltas=False)
            events = stream.pipe(rx.filter(is_later))
            if json:
                async for event in events:
                    write_json(event, full=full)
            else:
                async for text in events.pipe(render_numbered(thoughts)):
                    write(text)

    run_main(main())


def replay(
    run: options.RunId,
    speed: Annotated[
        float | None,
        typer.Option(
            "--speed", metavar="FACTOR", help="Playback speed, 1 for the original pace. Defaults to no delay."
        ),
    ] = None,
    until: Annotated[int | None, typer.Option("--until", metavar="SEQ", min=1, help="Stop after this event.")] = None,
    *,
    display: RunDisplay,
    skip_corrupt: options.SkipCorrupt = False,
    db: options.Database = None,
) -> None:
    """Replay a run with its live output.

    Models and tools are not called.
    """
    from rxloop.cli.live_run import show_events as write_live
    from rxloop.recorded.replay import replay as replay_run

    async def main() -> None:
        if speed is not None and not speed > 0:
            raise ConfigurationError(
                f"--speed must be a positive factor, got {speed:g}; omit it to replay without delays"
            )
        async with open_database(db, skip_corrupt=skip_corrupt) as log:
            record = await find_run(log, run)
            events = replay_run(log, record.task_id, speed=speed)
            await write_live(events if until is None else events.until(until), display)

    run_main(main())


def diff(
    a: options.RunId,
    b: Annotated[str, typer.Argument(metavar="RUN", help="The other run.", autocompletion=suggest_runs)],
    db: options.Database = None,
) -> None:
    """Show the first difference and the costs of two runs."""
    from rxloop.recorded.diff import diff as compare

    async def main() -> None:
        async with open_database(db) as log:
            left, right = await find_run(log, a), await find_run(log, b)
            write(f"{await compare(log, left.task_id, right.task_id)}\n")

    run_main(main())


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
    format: Annotated[GraphFormat, typer.Option("--format", "-f", help="Output format.")] = GraphFormat.tree,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Output file.")] = None,
    db: options.Database = None,
) -> None:
    """Render the thought graph of a run."""

    async def main() -> None:
        async with open_database(db) as log:
            record = await find_run(log, run)
            thoughts = ThoughtGraph.of(await log.read(record.task_id))
        text = _WRITERS[format](thoughts).rstrip("\n") + "\n"
        if output is not None:
            output.write_text(text, encoding="utf-8")
            notify(f"wrote {len(thoughts)} thoughts to {output}")
        elif len(thoughts) or format is not GraphFormat.tree:
            write_plain(text)
        else:
            notify("this run has no thoughts")

    run_main(main())
