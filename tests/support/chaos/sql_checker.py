"""Independent checker, based on SQL queries and the fold of events.

Checks the documented guarantees: sequence numbers have no gaps; an attempt has at most one final event; completed and
failed runs have ended; a call has one result; a tool that is not idempotent starts once; acknowledged events are kept;
the runs of a conversation execute in order; a follower sees the complete log.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import psycopg

from rxloop import Event
from rxloop.state.fold import fold_all
from rxloop.testing.chaos.report import Witness

Violations = set[tuple[str, str]]
"""Pairs of violation kind and run id."""

_EVENTS = """
CREATE TEMP TABLE e AS SELECT r.number, r.task_id, r.context_id, e.seq, e.json AS raw, j->>'kind' AS kind, j,
    (j->>'attempt')::int AS attempt, j->>'timestamp' AS at, coalesce((j->>'final')::boolean, false) AS final,
    j->>'state' AS state, j->>'kind' IN ('llm-call', 'tool-start') AS act
FROM rxloop.runs r JOIN rxloop.events e ON e.run = r.number,
    LATERAL (SELECT convert_from(e.json, 'UTF8')::jsonb) AS t(j)
WHERE e.sub = 0 AND r.task_id = ANY (%s)
"""
_RULES = {
    "broken": [
        "SELECT task_id FROM e GROUP BY task_id HAVING count(*) <> max(seq) OR min(seq) <> 1",
        "SELECT task_id FROM e JOIN rxloop.runs r USING (task_id) GROUP BY task_id, r.seq HAVING max(e.seq) <> r.seq",
        "SELECT task_id FROM e WHERE final GROUP BY task_id, attempt HAVING count(*) > 1",
        "SELECT a.task_id FROM e a JOIN e b USING (task_id) WHERE a.final AND b.seq > a.seq"
        " AND (b.attempt = a.attempt OR a.state IN ('completed', 'failed', 'canceled'))",
        "SELECT a.task_id FROM e a JOIN e b ON b.task_id = a.task_id AND b.seq = a.seq + 1"
        " WHERE b.attempt <> a.attempt + coalesce((b.j->>'resumed')::boolean, false)::int",
        # Messages require requests, and results require messages.
        "SELECT task_id FROM e a WHERE kind = 'content-complete' AND NOT EXISTS (SELECT FROM e b WHERE"
        " b.task_id = a.task_id AND b.seq < a.seq AND b.kind = 'llm-call' AND b.j->>'step' = a.j->>'step')",
        "SELECT task_id FROM e a WHERE kind = 'tool-complete' AND NOT EXISTS (SELECT FROM e b WHERE"
        " b.task_id = a.task_id AND b.seq < a.seq AND b.kind = 'content-complete' AND b.j->>'step' = a.j->>'step')",
        "SELECT task_id FROM e WHERE kind = 'content-complete' GROUP BY task_id, j->>'step' HAVING count(*) > 1",
    ],
    "stuck": [
        "SELECT task_id FROM rxloop.runs a WHERE state = 'input-required' AND task_id IN (SELECT task_id FROM e)"
        " AND NOT EXISTS (SELECT FROM rxloop.runs b WHERE b.context_id = a.context_id AND b.number > a.number"
        " AND b.state <> 'submitted')",
    ],
    "result": [
        "SELECT task_id FROM e WHERE kind = 'tool-complete'"
        " GROUP BY task_id, j->>'taskId', j->>'step', j->>'index' HAVING count(*) > 1",
        "SELECT task_id FROM e WHERE kind = 'input-received' GROUP BY task_id, j->>'inputId' HAVING count(*) > 1",
    ],
    "order": [
        "SELECT b.task_id FROM e a JOIN e b ON a.context_id = b.context_id AND a.number < b.number AND a.act AND b.act"
        " WHERE a.at > b.at",
        # The earlier run must be idle when the later run starts.
        "SELECT b.task_id FROM (SELECT number, task_id, context_id, min(at) AS at FROM e WHERE act GROUP BY 1, 2, 3) b"
        " JOIN rxloop.runs a ON a.context_id = b.context_id AND a.number < b.number WHERE NOT coalesce((SELECT final"
        " FROM e s WHERE s.task_id = a.task_id AND s.kind = 'status-update' AND s.at <= b.at ORDER BY s.seq DESC"
        " LIMIT 1), false)",
    ],
}


def find_violations(dsn: str, folder: Path, witnesses: Sequence[Witness]) -> Violations:
    """Check runs, comparing tables, worker notes and client observations."""
    violations: Violations = set()
    with psycopg.connect(dsn) as connection:
        connection.execute(_EVENTS.encode(), ([witness.task_id for witness in witnesses],))
        for kind, rules in _RULES.items():
            for rule in rules:
                violations |= {(kind, row[0]) for row in connection.execute(rule.encode())}
        query = b"SELECT task_id, raw, kind, attempt, j FROM e ORDER BY number, seq"
        logs: dict[str, list[Any]] = defaultdict(list)
        for task_id, *event in connection.execute(query):
            logs[task_id].append(event)
        states = dict(connection.execute(b"SELECT task_id, state FROM rxloop.runs").fetchall())
    unfinished = {w.task_id for w in witnesses if w.unfinished or states.get(w.task_id) in ("submitted", "working")}
    violations = {(kind, task_id) for kind, task_id in violations if kind != "stuck" or task_id not in unfinished}
    violations |= {("unfinished", task_id) for task_id in unfinished if logs[task_id]}
    for witness in witnesses:
        violations |= {(kind, witness.task_id) for kind in _check_run(witness, logs[witness.task_id], states)}
    return violations | _check_effects(folder, logs) | _check_checkpoints(folder, logs)


def _check_run(witness: Witness, log: Sequence[Any], states: dict[str, str]) -> set[str]:
    if not log:
        return {"lost"}
    kinds: set[str] = set()
    state = fold_all([Event.from_json(raw) for raw, *_ in log]).state
    over = state in ("completed", "failed", "canceled")
    if states[witness.task_id] != state:
        kinds.add("broken")
    if state == "failed" or (state == "completed" and log[-1][3]["content"] != "Done."):
        kinds.add("output")
    stored = [(j["seq"], attempt, kind, crc32(raw)) for raw, kind, attempt, j in log]
    is_idle = not witness.unfinished and (over or state == "input-required")
    if witness.received != (stored if is_idle else stored[: len(witness.received)]) or (
        is_idle and over and not witness.reached_end
    ):
        kinds.add("follower")
    applied = [j["inputId"] for _, kind, _, j in log if kind == "input-received"]
    if is_idle and state not in ("canceled", "failed") and set(witness.answered) - set(applied):
        kinds.add("answer")
    # A later run of the conversation ends runs that wait for an answer.
    is_superseded = log[-1][3].get("reason") == "superseded"
    if state == "canceled" and not witness.cancel_requested and not is_superseded:
        kinds.add("cancel")
    if (cancelled_at := witness.cancelled_at) is not None:
        times = [Event.from_json(raw).timestamp for raw, kind, *_ in log if kind in ("llm-call", "tool-start")]
        ended = Event.from_json(log[-1][0]).timestamp
        if (state != "canceled" and not (over and ended <= cancelled_at)) or any(at > cancelled_at for at in times):
            kinds.add("cancel")
    return kinds


def _check_effects(folder: Path, logs: dict[str, list[Any]]) -> Violations:
    violations: Violations = set()
    lines = [line["key"] for line in _read_notes(folder, "effects")]
    starts = [j["idempotencyKey"] for log in logs.values() for _, kind, _, j in log if kind == "tool-start"]
    for key in set(lines):
        if lines.count(key) != 1 or starts.count(key) != 1:
            violations.add(("effect", key.rsplit(":", 2)[0]))
    return violations


def _check_checkpoints(folder: Path, logs: dict[str, list[Any]]) -> Violations:
    violations: Violations = set()
    for line in _read_notes(folder, "acknowledged"):
        # Checksum over the stored bytes of the attempt, starting at its first status update.
        digest, found = 0, None
        for raw, kind, attempt, j in logs[line["task"]]:
            if attempt == line["attempt"] and kind != "task":
                digest = crc32(raw, digest)
                if j["seq"] == line["seq"]:
                    found = digest
        if found != line["digest"]:
            violations.add(("lost", line["task"]))
    return violations


def _read_notes(folder: Path, name: str) -> list[dict[str, Any]]:
    file = folder / name
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
