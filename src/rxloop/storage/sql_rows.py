"""Conversion of SQL rows to run records, commands and run folds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from zlib import crc32

import orjson

from rxloop.errors import ConfigurationError, EventLogError
from rxloop.pipeline.records import Mark, RunRecord
from rxloop.protocol.commands import Command, read_command
from rxloop.protocol.messages import ErrorInfo, Usage
from rxloop.state.run_state import RunFold

RECORD = "task_id, context_id, agent_name, state, attempt, seq, created, updated, model, owner, metadata, usage, error"
"""Columns for `to_record`."""
FOLD = "last, runs, events, crc, summary, messages"
"""Columns of a `FoldRow`."""

FoldRow = tuple[int, int, int, int, Any, Any]
"""Last run number, run count, event count, checksum, summary and messages of a stored fold."""


class RunRow(NamedTuple):
    """Row of the `runs` table."""

    number: int
    task_id: str
    seq: int
    updated: int
    idle: bool


def to_record(row: Sequence[Any]) -> RunRecord:
    """Return the run record for a row with the columns `RECORD`."""
    *plain, metadata, usage, error = row
    return RunRecord(
        *plain,
        metadata=orjson.loads(metadata) if metadata else {},
        usage=Usage.model_validate_json(usage) if usage else None,
        error=ErrorInfo.model_validate_json(error) if error else None,
    )


def to_commands(task_id: str, rows: Iterable[tuple[int, bytes]]) -> list[tuple[int, Command]]:
    """Return the commands in some rows with their numbers, skipping unknown command kinds.

    Raises:
        EventLogError: If a command cannot be parsed.
    """
    commands: list[tuple[int, Command]] = []
    for number, json in rows:
        try:
            command = read_command(json)
        except ConfigurationError as error:
            raise EventLogError(f"Cannot read command {number} of run {task_id}: {error}", retryable=False) from error
        if command is not None:
            commands.append((number, command))
    return commands


def checksum(summary: Any, messages: Any) -> int | None:
    """Return the checksum of a stored fold, or None if a value is not bytes."""
    return crc32(messages, crc32(summary)) if isinstance(summary, bytes) and isinstance(messages, bytes) else None


def cover_runs(runs: Sequence[RunRow], folds: Mapping[int, FoldRow]) -> list[tuple[RunRow, RunFold | None]]:
    """Return each run with the fold that starts at it. Runs inside an earlier fold are skipped.

    Args:
        runs: Runs of a conversation, in order.
        folds: Stored folds by first run number. A fold is used only if its runs are unchanged.
    """
    covered: list[tuple[RunRow, RunFold | None]] = []
    index = 0
    while index < len(runs):
        row = folds.get(runs[index].number)
        fold = None if row is None else _find_fold(row, runs[index : index + row[1]])
        covered.append((runs[index], fold))
        index += 1 if fold is None else fold.runs
    return covered


def _find_fold(row: FoldRow, runs: Sequence[RunRow]) -> RunFold | None:
    last, count, events, crc, summary, messages = row
    if len(runs) < count or runs[-1].number != last or sum(run.seq for run in runs) != events:
        return None
    if crc != checksum(summary, messages):
        return None
    return RunFold(runs[0].task_id, runs[-1].task_id, count, events, summary, messages)


def extend_mark(mark: Mark | None, runs: Sequence[RunRow]) -> Mark:
    """Return the mark after additional runs. None is the mark before the first run."""
    base = mark or Mark(0, 0, 0, "")
    events, updated = base.events + sum(run.seq for run in runs), base.updated + sum(run.updated for run in runs)
    return Mark(base.runs + len(runs), events, updated, runs[-1].task_id if runs else base.last)
