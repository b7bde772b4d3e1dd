"""Statements for appending events, sending commands and deleting runs."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import orjson

from rxloop.errors import EventLogError
from rxloop.pipeline.records import FINISHED, compute_state, find_creation_time, find_last_end, get_conversation
from rxloop.protocol.commands import Command
from rxloop.protocol.envelope import COMMAND_ID
from rxloop.protocol.events import Event, State, TaskEvent, ends_attempt
from rxloop.protocol.json_data import canonical_json
from rxloop.storage.postgres.address import Address, Connection, can_store
from rxloop.storage.rules import check_finished, make_unknown_run_error
from rxloop.stream.deltas import are_mergeable, delta_text, merge_deltas
from rxloop.support.threads import Threads, compute

_PREPARING = Threads(max_running=4)
"""Threads for preparing large batches. They must wait neither for long reads nor for user functions."""

_FRAGMENT_CHARACTERS = 1_800
"""Fragment size in characters, because notifications are limited to 8,000 bytes."""

_COLUMNS = """
    task text, context text, expected int, writer text, has_lease boolean, durable boolean,
    seq int, attempt int, state text, idle boolean, updated bigint, last_command bigint, ends boolean, usage text,
    error text, conversation text, agent text, model text, owner text, metadata text, labels text[], created bigint
"""

_NAMES = ", ".join(part.split()[0] for part in _COLUMNS.split(","))

_APPEND = f"""
WITH batch AS MATERIALIZED (
    SELECT * FROM ROWS FROM (jsonb_to_recordset(%(heads)s::jsonb) AS ({_COLUMNS})) WITH ORDINALITY AS b({_NAMES}, ord)
), locked AS MATERIALIZED (
    SELECT b.ord, r.number, r.seq, r.writer, coalesce(r.holder_id <> %(holder)s, b.has_lease) AS fenced
    FROM batch b JOIN $s.runs r ON r.task_id = b.task WHERE b.durable
    ORDER BY r.number FOR NO KEY UPDATE OF r
), unlocked AS MATERIALIZED (
    SELECT b.ord, r.number, r.seq, r.writer, coalesce(r.holder_id <> %(holder)s, b.has_lease) AS fenced
    FROM batch b JOIN $s.runs r ON r.task_id = b.task WHERE NOT b.durable
), existing AS (
    SELECT * FROM locked UNION ALL SELECT * FROM unlocked
), new AS MATERIALIZED (
    SELECT b.*, l.holder_id, coalesce(l.holder_id <> %(holder)s, b.has_lease) AS fenced
    FROM batch b LEFT JOIN $s.leases l ON l.context_id = b.conversation AND l.task_id = b.task
    WHERE b.expected = 0 AND b.durable AND NOT EXISTS (SELECT FROM locked h WHERE h.ord = b.ord)
), created AS (
    INSERT INTO $s.runs (task_id, context_id, agent_name, state, idle, attempt, seq, created, updated, writer,
        holder_id, last_command, model, owner, metadata, labels, usage, error)
    SELECT task, context, agent, coalesce(state, 'submitted'), idle, attempt, seq, created, updated, writer, holder_id,
        last_command, model, owner, metadata, labels, usage, error
    FROM new WHERE NOT fenced ORDER BY ord
    ON CONFLICT (task_id) DO NOTHING RETURNING number, task_id
), updated AS (
    UPDATE $s.runs r SET seq = b.seq, attempt = b.attempt, updated = b.updated, writer = b.writer, idle = b.idle,
        state = coalesce(b.state, r.state), last_command = greatest(b.last_command, r.last_command),
        usage = CASE WHEN b.ends THEN b.usage ELSE r.usage END, error = CASE WHEN b.ends THEN b.error ELSE r.error END
    FROM locked h JOIN batch b ON b.ord = h.ord
    WHERE r.number = h.number AND r.seq = b.expected AND NOT h.fenced
    RETURNING h.ord, r.number
), accepted AS (
    SELECT ord, number FROM updated
    UNION ALL SELECT b.ord, n.number FROM created n JOIN batch b ON b.task = n.task_id
    UNION ALL SELECT a.ord, a.number FROM unlocked a JOIN batch b ON b.ord = a.ord
        WHERE a.seq = b.expected AND NOT a.fenced
), written AS (
    INSERT INTO $s.events (run, seq, sub, json)
    SELECT d.number, e.seq, e.sub, substring(%(data)b::bytea FROM e.start FOR e.length)
    FROM unnest(%(batches)s::int[], %(seqs)s::int[], %(subs)s::int[], %(starts)s::int[], %(lengths)s::int[])
        AS e(ord, seq, sub, start, length) JOIN accepted d ON d.ord = e.ord
    ON CONFLICT (run, seq, sub) DO UPDATE SET json = EXCLUDED.json
), event_notification AS (
    SELECT pg_notify((SELECT channel FROM $s.version), 'e' || string_agg(number::text, ',')) FROM accepted
    WHERE ord = ANY (%(batches)s::int[]) HAVING count(*) > 0
), delta_notifications AS (
    SELECT pg_notify((SELECT channel FROM $s.version), 'd' || number || text) FROM (
        SELECT d.number, p.text FROM unnest(%(fragment_batches)s::int[], %(fragments)s::text[])
            WITH ORDINALITY AS p(ord, text, index) JOIN accepted d ON d.ord = p.ord ORDER BY p.index
    ) AS fragments
)
SELECT b.ord::int, d.number, f.seq, f.writer, coalesce(f.fenced, n.fenced, false),
    (SELECT count(*) FROM event_notification), (SELECT count(*) FROM delta_notifications)
FROM batch b LEFT JOIN accepted d ON d.ord = b.ord LEFT JOIN existing f ON f.ord = b.ord
LEFT JOIN new n ON n.ord = b.ord
"""

_APPEND_NEW = _APPEND.replace("ON CONFLICT (run, seq, sub) DO UPDATE SET json = EXCLUDED.json", "")


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of appending a batch."""

    number: int | None
    """Run number if the batch was stored."""
    last_seq: int | None
    """Last stored `seq` before appending, or None for a new run."""
    writer: str | None
    """Writer of the last stored batch."""
    fenced: bool


class Batch:
    """Events to append to a run."""

    def __init__(
        self, task_id: str, events: Sequence[Event], expected_seq: int, writer: str, *, has_lease: bool, live: bool
    ) -> None:
        """Create a batch from validated events.

        Args:
            task_id: Run ID.
            events: One or more events.
            expected_seq: Last stored `seq` expected by the writer.
            writer: Writer name. An empty name is replaced by a random one, so that a retry can be recognised.
            has_lease: True if this log object believes that it holds the lease.
            live: Send transient events as notifications instead of storing them.

        Raises:
            EventLogError: If Postgres cannot store an identifier.
        """
        self.task_id, self.events, self.expected_seq = task_id, tuple(events), expected_seq
        self.writer = writer or f"~{secrets.token_hex(8)}"
        self.has_lease, self.live = has_lease, live
        durable = [event for event in events if event.durable]
        self.rows = [(event.seq, event.sub, event.to_json()) for event in (durable if live else events)]
        self.size = sum(len(data) for _, _, data in self.rows)
        transient = merge_transient(events) if live else []
        self.fragments = [fragment for event in transient for fragment in _to_fragments(event)]
        self.head = _encode_head(task_id, self.events, durable, expected_seq, self.writer, has_lease)


def _encode_head(
    task_id: str, events: Sequence[Event], durable: Sequence[Event], expected_seq: int, writer: str, has_lease: bool
) -> bytes:
    head: dict[str, Any] = {
        "task": task_id,
        "context": events[0].context_id,
        "expected": expected_seq,
        "writer": writer,
        "has_lease": has_lease,
        "durable": bool(durable),
        "ends": False,
    }
    if durable:
        last = durable[-1]
        head |= {"seq": last.seq, "attempt": last.attempt, "updated": last.timestamp, "idle": ends_attempt(last)}
        head |= {"state": _get_state(durable), "last_command": _find_last_command(durable)}
    if final := find_last_end(durable):
        usage, error = (None if part is None else part.model_dump_json() for part in (final.usage, final.error))
        head |= {"ends": True, "usage": usage, "error": error}
    if expected_seq == 0:
        first = events[0]
        task = first if isinstance(first, TaskEvent) else None
        head |= {
            "conversation": get_conversation(first),
            "agent": task.agent_name if task else "",
            "model": task.model if task else "",
            "owner": task.owner if task else None,
            "created": find_creation_time(events),
            "labels": hash_labels(first.metadata),
            "metadata": orjson.dumps(first.metadata, option=orjson.OPT_SORT_KEYS).decode() if first.metadata else None,
        }
    written = orjson.dumps(head)
    if b"\\u0000" in written and any("\0" in value for value in head.values() if isinstance(value, str)):
        raise EventLogError(
            f"run {task_id}: Postgres cannot store a NUL character in an ID, or in the name of an agent, a model or an "
            "owner.",
            retryable=False,
        )
    return written


def _get_state(events: Sequence[Event]) -> State | None:
    """Return the run state after some events, or None if they do not change it."""
    after = compute_state("submitted", events)
    return after if after != "submitted" or compute_state("working", events) == "submitted" else None


def _find_last_command(events: Iterable[Event]) -> int:
    """Return the number of the last command applied by some events."""
    numbers = (event.metadata.get(COMMAND_ID) for event in events if event.metadata and event.parent_task_id is None)
    return max((number for number in numbers if isinstance(number, int)), default=0)


def hash_labels(metadata: Mapping[str, Any]) -> list[str]:
    """Return searchable metadata labels. Each label is a hash of a key and value, because values may be long."""
    texts = (canonical_json([key, value]) for key, value in metadata.items())
    return [hashlib.blake2b(text.encode(), digest_size=16).hexdigest() for text in texts]


def merge_transient(events: Iterable[Event]) -> list[Event]:
    """Return transient events, merging consecutive fragments of a text."""
    out: list[Event] = []
    for event in events:
        if event.durable:
            continue
        text = delta_text(event)
        if out and text is not None and are_mergeable(out[-1], event):
            out[-1] = merge_deltas(event, [delta_text(out[-1]) or "", text])
        else:
            out.append(event)
    return out


def _to_fragments(event: Event) -> list[str]:
    """Return an event as notification payloads with `sub`, fragment index, fragment count and data."""
    text = event.to_json().decode()
    parts = [text[at : at + _FRAGMENT_CHARACTERS] for at in range(0, len(text), _FRAGMENT_CHARACTERS)]
    # Postgres drops duplicate notifications within a transaction, so each payload must be unique.
    return [f":{event.seq}.{event.sub}:{index}:{len(parts)}:{part}" for index, part in enumerate(parts)]


async def write(connection: Connection, address: Address, holder_id: str, batches: Sequence[Batch]) -> list[Outcome]:
    """Append batches of different runs. Each batch is stored completely or not at all.

    Args:
        connection: Database connection.
        address: Database address.
        holder_id: Holder ID of this log object.
        batches: The batches.
    """
    steps = sum(len(each.rows) for each in batches)
    values, has_transient = await compute(partial(_make_values, batches), steps=steps, threads=_PREPARING)
    values["holder"] = holder_id
    # Only transient events can already exist, and conflict handling has a cost on the server.
    statement = _APPEND if has_transient else _APPEND_NEW
    cursor = await connection.execute(address.sql(statement), values)
    outcomes = {row[0]: Outcome(*row[1:5]) for row in await cursor.fetchall()}
    return [outcomes[ord_] for ord_ in range(1, len(batches) + 1)]


def _make_values(batches: Sequence[Batch]) -> tuple[dict[str, Any], bool]:
    """Return the parameters of a write, and True if they contain transient events."""
    rows = [(ord_, *row) for ord_, batch in enumerate(batches, start=1) for row in batch.rows]
    lengths = [len(json) for *_, json in rows]
    fragments = [(ord_, fragment) for ord_, batch in enumerate(batches, start=1) for fragment in batch.fragments]
    values = {
        "heads": f"[{','.join(batch.head.decode() for batch in batches)}]",
        "data": b"".join([json for *_, json in rows]),
        "batches": to_array(row[0] for row in rows),
        "seqs": to_array(row[1] for row in rows),
        "subs": to_array(row[2] for row in rows),
        "starts": to_array(accumulate(lengths[:-1], initial=1)) if rows else "{}",
        "lengths": to_array(lengths),
        "fragment_batches": to_array([ord_ for ord_, _ in fragments]),
        "fragments": [fragment for _, fragment in fragments],
    }
    return values, any(row[2] for row in rows)


def to_array(values: Iterable[int]) -> str:
    """Return a Postgres array literal for integers."""
    return f"{{{','.join(map(str, values))}}}"


_SEND = """
WITH run AS MATERIALIZED (
    SELECT number FROM $s.runs WHERE task_id = %(task)s FOR NO KEY UPDATE
), inserted AS (
    INSERT INTO $s.commands (run, kind, key, json) SELECT number, %(kind)s, %(key)s, %(json)b FROM run
    ON CONFLICT (key) DO NOTHING RETURNING number
)
SELECT coalesce((SELECT number FROM inserted), (SELECT number FROM $s.commands WHERE key = %(key)s)),
    (SELECT pg_notify((SELECT channel FROM $s.version), 'c' || %(task)s) FROM inserted WHERE length(%(task)s) < 2000)
FROM run
"""

# Locking the run row ensures that commands are committed in numerical order. A run that has applied a command
# has therefore applied all previous commands.


async def insert_command(connection: Connection, address: Address, task_id: str, key: str, command: Command) -> int:
    """Store a command and return its number.

    Args:
        connection: Database connection.
        address: Database address.
        task_id: Run ID.
        key: Unique key, which prevents duplicates after retries.
        command: The command.

    Raises:
        UnknownRun: If the run does not exist.
    """
    values = {"task": task_id, "kind": command.kind, "key": key, "json": command.to_json()}
    row = await (await connection.execute(address.sql(_SEND), values)).fetchone() if can_store(task_id) else None
    if row is None:
        raise make_unknown_run_error(task_id)
    return row[0]


RUNS_PER_TRANSACTION = 200
"""Number of runs deleted per transaction. Concurrent appends wait for the transaction."""

_DELETE_RUNS = (
    "DELETE FROM $s.folds f USING $s.runs r WHERE r.number = ANY (%(runs)s::bigint[])"
    " AND f.context_id = r.conversation AND r.number BETWEEN f.first AND f.last",
    "DELETE FROM $s.commands WHERE run = ANY (%(runs)s::bigint[])",
    "DELETE FROM $s.events WHERE run = ANY (%(runs)s::bigint[])",
    "DELETE FROM $s.runs WHERE number = ANY (%(runs)s::bigint[])",
)

_DELETE_DELTAS = "DELETE FROM $s.events WHERE run = ANY (%(runs)s::bigint[]) AND sub > 0"


async def remove_run(connection: Connection, address: Address, task_id: str) -> None:
    """Delete a finished run.

    Raises:
        UnknownRun: If the run does not exist.
        EventLogError: If the run is not finished.
    """
    if not can_store(task_id):
        raise make_unknown_run_error(task_id)
    async with connection.transaction():
        query = address.sql("SELECT number, state FROM $s.runs WHERE task_id = %s FOR UPDATE")
        row = await (await connection.execute(query, (task_id,))).fetchone()
        if row is None:
            raise make_unknown_run_error(task_id)
        check_finished(task_id, row[1])
        await _remove(connection, address, [row[0]], deltas_only=False)


async def trim(
    connection: Connection, address: Address, before: int, states: Sequence[str], deltas_only: bool, after: int
) -> list[tuple[int, str]]:
    """Delete the next old runs in the given states, or only their transient events.

    Args:
        connection: Database connection.
        address: Database address.
        before: Timestamp in milliseconds. Only runs last updated earlier are deleted.
        states: Run states.
        deltas_only: Delete only transient events.
        after: Run number at which the previous call ended.

    Returns:
        Numbers and IDs of up to `AT_ONCE` runs.
    """
    having = " AND EXISTS (SELECT FROM $s.events WHERE run = number AND sub > 0)" if deltas_only else ""
    query = address.sql(
        f"SELECT number, task_id FROM $s.runs WHERE number > %s AND updated < %s AND state = ANY (%s){having}"
        f" ORDER BY number LIMIT {RUNS_PER_TRANSACTION} FOR UPDATE"
    )
    async with connection.transaction():
        rows = await (await connection.execute(query, (after, before, [*states]))).fetchall()
        await _remove(connection, address, [number for number, _ in rows], deltas_only=deltas_only)
    return [(number, task_id) for number, task_id in rows]


async def _remove(connection: Connection, address: Address, runs: Sequence[int], *, deltas_only: bool) -> None:
    if runs:
        for statement in (_DELETE_DELTAS,) if deltas_only else _DELETE_RUNS:
            await connection.execute(address.sql(statement), {"runs": to_array(runs)})


async def count_runs(connection: Connection, address: Address, state: State) -> int:
    """Return the number of runs in a state."""
    # The partial index requires this exact condition.
    condition = "" if state in FINISHED else " AND state NOT IN ('completed', 'failed')"
    query = address.sql(f"SELECT count(*) FROM $s.runs WHERE state = %s{condition}")
    row = await (await connection.execute(query, (state,))).fetchone()
    return 0 if row is None else row[0]
