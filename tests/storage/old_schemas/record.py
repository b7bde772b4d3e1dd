"""Record small logs of an old schema as SQL statements.

    PYTHONPATH=src:tests python tests/storage/old_schemas/record.py FOLDER DSN

The program records the schemas of the current code. `sqlite_8.sql` and `postgres_2.sql` were recorded at the commit
`4a10aef`, the last one with these schemas. Do not change them. DSN is the URL of an empty Postgres database.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rxloop import Agent, EventLog, PostgresEventLog, SqliteEventLog, history, tool
from rxloop.agents import derive_id
from rxloop.protocol.commands import AnswerCommand
from rxloop.protocol.events import StatusUpdateEvent, TaskEvent
from rxloop.protocol.messages import Message
from rxloop.testing import ScriptedModel, call

SCHEMA = "rxloop"
"""Schema of the Postgres dump."""
FIRST, SECOND, WAITING, LEASED = (derive_id("old schemas", name) for name in ("first", "second", "waiting", "leased"))
"""Run IDs."""


@tool(approve=True)
async def refund(amount: int) -> str:
    """Refund an amount."""
    return f"Refunded {amount}."


def make_agent(log: EventLog, *turns: Any) -> Agent[Any, Any]:
    """Return the agent of the recorded runs."""
    return Agent(ScriptedModel(*turns), name="clerk", tools=[refund], thoughts=False, log=log)


async def write_runs(log: EventLog) -> None:
    """Write two finished runs, a waiting run with a pending answer, and a run that keeps its lease."""
    agent = make_agent(log, "Hello Ann.", "You are Ann.", [call("refund", "r1", amount=5)])
    await agent.run("I am Ann.", task_id=FIRST, context_id="ann", owner="ann", metadata={"tenant": "north"})
    await agent.run("Who am I?", task_id=SECOND, context_id="ann", owner="ann")
    await history(log, "ann")
    result = await agent.run("Refund 5.", task_id=WAITING, context_id="bob")
    await log.send_command(WAITING, AnswerCommand(inputs={result.pending[0].input_id: True}))
    store = log.artifacts
    assert store is not None
    await store.create("ann", "page", name="page.html", media_type="text/html", override=False, key="create", now=1)
    for index, data in enumerate((b"<p>Hello", b" Ann</p>")):
        await store.append("ann", "page", data, version=1, last=index == 1, key=f"chunk {index}", now=2)
    await log.acquire_lease("carl", LEASED, lambda: None)
    task = TaskEvent(
        seq=1, attempt=1, context_id="carl", messages=[Message.user("Work.")], model="m", agent_name="clerk"
    )
    await log.append(LEASED, [task, StatusUpdateEvent(seq=2, state="working")], expected_seq=0, writer="owner")
    # Logs store folds in the background.
    await asyncio.sleep(0.5)


async def record_sqlite(path: Path, folder: Path) -> None:
    """Record a SQLite file, whose leased run still has its owner."""
    log = SqliteEventLog(folder / "runs.db")
    await write_runs(log)
    with closing(sqlite3.connect(log.path)) as connection:
        pragmas = [
            f"PRAGMA {name} = {connection.execute(f'PRAGMA {name}').fetchone()[0]};"
            for name in ("application_id", "user_version")
        ]
        path.write_text("\n".join([*connection.iterdump(), *pragmas, ""]), encoding="utf-8")
    await log.aclose()


async def record_postgres(path: Path, dsn: str) -> None:
    """Record a Postgres schema, whose leased run still has its owner."""
    log = PostgresEventLog(dsn, schema=SCHEMA)
    await write_runs(log)
    process = await asyncio.create_subprocess_exec(
        *("pg_dump", "--no-owner", "--no-privileges", "--inserts", f"--schema={SCHEMA}", dsn),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    lines = [line for line in output.decode().splitlines() if line and not line.startswith(("\\", "--"))]
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    await log.aclose()


async def main(folder: Path, dsn: str) -> None:
    """Record both logs."""
    with TemporaryDirectory() as temporary:
        await record_sqlite(folder / "sqlite.sql", Path(temporary))
    await record_postgres(folder / "postgres.sql", dsn)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
