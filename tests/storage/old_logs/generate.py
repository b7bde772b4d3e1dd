"""Write the old logs with the current code.

    PYTHONPATH=src:tests python tests/storage/old_logs/generate.py FOLDER [DSN]

DSN is the address of an empty Postgres database. Without a DSN, no dump is written. The files in this folder must not
be written again. To store logs of a later version, pass another folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import orjson
from typer.testing import CliRunner

from rxloop import (
    Limits,
    Message,
    ModelSettings,
    PostgresEventLog,
    Runtime,
    RxloopError,
    SqliteEventLog,
    TextPart,
    history,
    replay,
)
from rxloop.agents import derive_id
from rxloop.cli.app import app
from rxloop.protocol.commands import CancelCommand
from rxloop.storage import conversation
from rxloop.thinking import ThinkingSessions
from storage.old_logs import observed
from storage.old_logs.agents import IMAGE, SHOW_MAP, Shop

SCHEMA = "rxloop_old"
"""Schema of the Postgres dump."""
FORKS = (("tools", 6), ("tools", 14), ("attempts", 22), ("nested", 20), ("crashed in model", 3))
"""Runs to fork, with the last copied event."""
CONTEXTS = ("bob", "ann", "eve", "reader", "carl", "pages")
"""Conversations to read and continue."""
RUNS: dict[str, str] = {}
"""Run ids by name, oldest first."""


def new_id(name: str) -> str:
    """Derive a run id from a name, and record both in `RUNS`."""
    RUNS[name] = derive_id("old logs", name)
    return RUNS[name]


async def write_runs(log: SqliteEventLog, copy: Callable[[], None]) -> None:
    """Write all runs, and call `copy` while some are unfinished."""
    sessions = ThinkingSessions(log.artifacts)
    shop, broken = Shop(log, sessions=sessions), Shop(log, broken=True, sessions=sessions)
    await write_finished(shop)
    await write_with_several_attempts(shop, broken)
    with_deltas = SqliteEventLog(log.path, keep_deltas=True)
    await Shop(with_deltas).clerk.run("Weather in Oslo and Bergen?", task_id=new_id("deltas"), context_id="dora")
    await with_deltas.aclose()
    await write_conversation(shop)
    await write_waiting(shop)
    await write_submitted(shop)
    crashed = await start_crashed(broken)
    copy()
    for run in crashed:
        run.cancel()
        await run.aclose()
    await shop.aclose()
    await broken.aclose()


async def write_finished(shop: Shop) -> None:
    await shop.clerk.run(
        "Weather in Oslo and Bergen?",
        task_id=new_id("tools"),
        context_id="ann",
        owner="ann",
        metadata={"tenant": "north", "public": {"title": "Weather"}},
        settings=ModelSettings(temperature=0.5),
        limits=Limits(iterations=9, tokens=5000),
    )
    await shop.typist.run("An invoice for Ann.", task_id=new_id("typed"))
    picture = Message.user([TextPart(text="What is in this picture?"), IMAGE])
    await shop.clerk.run(picture, task_id=new_id("media"))
    await shop.clerk.run("Plan the move.", task_id=new_id("sequential thinking"))
    await shop.clerk.run("Write a page.", task_id=new_id("artifacts"), context_id="pages")
    await shop.clerk.run("Break a tool.", task_id=new_id("failed tools"))
    for name, agent in shop.thinkers.items():
        await agent.run("What is it?", task_id=new_id(name), strategy=cast(Any, name))
    await shop.boss.run("Ask around.", task_id=new_id("nested"))
    await shop.reader.run("Read three long pages.", task_id=new_id("compressed"), context_id="reader")
    await shop.reader.run("And the first page?", task_id=new_id("after compressed"), context_id="reader")
    await shop.planner.run("Read two long pages.", task_id=new_id("thinking failed"))
    await shop.clerk.run("Tell a long story.", task_id=new_id("cut short"))
    with contextlib.suppress(RxloopError):
        await shop.early.run("Search the web.", task_id=new_id("broken off"))
    with contextlib.suppress(RxloopError):
        await shop.clerk.run("Search forever.", task_id=new_id("limit reached"), limits=Limits(iterations=2))
    run = shop.clerk.run("Work slowly.", task_id=new_id("cancelled"))
    await wait_for_event(run, "tool-start")
    run.cancel("enough")
    with contextlib.suppress(RxloopError):
        await run
    run = shop.clerk.run("Work slowly.", task_id=new_id("steered"))
    await wait_for_event(run, "tool-start")
    run.send("And quickly.")
    await run
    await shop.clerk.fork(RUNS["tools"], 6, prompt="Say hello.", fork_id=new_id("fork"))
    runtime = Runtime({"clerk": shop.clerk}, log=shop.clerk.log)  # pyright: ignore[reportArgumentType]
    async with runtime:
        record = await runtime.start("clerk", "Say hello.", key="request-17", owner="ann", metadata={"n": 1})
        RUNS["started by key"] = record.task_id
        async for _ in runtime.follow(record.task_id):
            pass


async def write_with_several_attempts(shop: Shop, broken: Shop) -> None:
    """Write runs that were resumed."""
    task_id = new_id("attempts")
    run = shop.clerk.run("Which colour?", task_id=task_id)
    while (result := await run).pending:
        run = shop.clerk.resume(task_id, inputs=observed.answer_questions(result.pending))
    task_id = new_id("busy, then done")
    with contextlib.suppress(RxloopError):
        await broken.clerk.run("Ask a busy model.", task_id=task_id)
    await shop.clerk.resume(task_id)
    with contextlib.suppress(RxloopError):
        await broken.clerk.run("Ask a busy model.", task_id=new_id("busy"))
    await shop.clerk.run("Refund 5.", task_id=new_id("waiting, then cancelled"))
    await shop.clerk.get_run(RUNS["waiting, then cancelled"]).cancel("not needed")


async def write_conversation(shop: Shop) -> None:
    """Write the runs of two conversations, one with stored folds and one with a superseded run."""
    # Merge two folds instead of 64, to need fewer runs.
    fold_size, conversation._RUNS_PER_FOLD = conversation._RUNS_PER_FOLD, 2
    for number, prompt in enumerate(("I am Bob.", "My number is 7.", "My colour is red.", "My dog is Rex."), start=1):
        await shop.clerk.run(prompt, task_id=new_id(f"bob {number}"), context_id="bob", owner="bob")
    await shop.clerk.run("What do you know about me?", task_id=new_id("bob 5"), context_id="bob", owner="bob")
    await history(shop.clerk.log, "reader")  # pyright: ignore[reportArgumentType]
    conversation._RUNS_PER_FOLD = fold_size
    await shop.clerk.run("Refund 5.", task_id=new_id("superseded"), context_id="eve")
    await shop.clerk.run("Forget the refund.", task_id=new_id("superseding"), context_id="eve")


async def write_waiting(shop: Shop) -> None:
    """Write waiting runs."""
    await shop.clerk.run("Refund 6.", task_id=new_id("waiting"), owner="ann")
    await shop.clerk.run("Refund 5.", task_id=new_id("waiting, answer sent"))
    await shop.clerk.run("Refund 5.", task_id=new_id("waiting, refusal sent"))
    await shop.clerk.run("Refund 5.", task_id=new_id("waiting, cancel sent"))
    await shop.clerk.run("Refund 5.", task_id=new_id("waiting, message sent"))
    await shop.clerk.run("Which colour?", task_id=new_id("waiting for text"))
    await shop.clerk.run("Show Oslo on the map.", task_id=new_id("waiting for client"), client_tools=[SHOW_MAP])
    await shop.clerk.run("Sign me in.", task_id=new_id("waiting for credential"))
    await shop.boss.run("Buy it.", task_id=new_id("nested, waiting"))
    await shop.boss.run("Buy it.", task_id=new_id("nested, answer sent"))


async def write_submitted(shop: Shop) -> None:
    """Write submitted runs that were never started."""
    await shop.clerk.submit(
        "Show Oslo on the map.",
        task_id=new_id("submitted"),
        owner="ann",
        metadata={"tenant": "north"},
        settings=ModelSettings(max_tokens=100),
        limits=Limits(iterations=3),
        client_tools=[SHOW_MAP],
    )
    await shop.clerk.submit("Say hello.", task_id=new_id("submitted, cancel sent"))
    await shop.clerk.run("Refund 5.", task_id=new_id("carl waits"), context_id="carl")
    await shop.clerk.submit("Forget the refund.", task_id=new_id("carl submitted"), context_id="carl")


async def start_crashed(broken: Shop) -> list[Any]:
    """Start runs that block at a certain point, and wait until this point is durable."""
    payments = broken.clerk.run("Pay three bills.", task_id=new_id("crashed in tools"), owner="ann")
    await wait_for_event(payments, "tool-complete")
    thought = broken.clerk.run("Think for a long time.", task_id=new_id("crashed in model"))
    await wait_for_event(thought, "llm-call")
    task_id = new_id("crashed in second attempt")
    result = await broken.clerk.run("Refund 7, then think.", task_id=task_id)
    second = broken.clerk.resume(task_id, inputs=observed.answer_questions(result.pending))
    await wait_for_event(second, "tool-complete")
    await wait_for_event(second, "llm-call")
    cancelled = broken.clerk.run("Pay twice.", task_id=new_id("crashed, cancel sent"))
    await wait_for_event(cancelled, "tool-start")
    steered = broken.clerk.run("Pay twice.", task_id=new_id("crashed, message sent"))
    await wait_for_event(steered, "tool-start")
    nested = broken.boss.run("Pay for it.", task_id=new_id("nested, crashed"))
    async for event in nested:
        if event.kind == "tool-start" and event.call.name == "pay":
            break
    # The flusher writes after at most 50 ms.
    await asyncio.sleep(0.5)
    return [payments, thought, second, cancelled, steered, nested]


async def wait_for_event(run: Any, kind: str) -> None:
    """Wait for an event of this kind from a run."""
    async for event in run:
        if event.kind == kind:
            return


async def send_commands(log: Any) -> None:
    """Send commands to runs that no process continues."""
    shop = Shop(log)
    for name, answer in (
        ("waiting, answer sent", True),
        ("waiting, refusal sent", False),
        ("nested, answer sent", True),
    ):
        [question] = (await replay(log, RUNS[name]).result()).pending
        agent = shop.boss if name.startswith("nested") else shop.clerk
        await agent.get_run(RUNS[name]).answer({question.input_id: answer})
    for name in ("waiting, message sent", "crashed, message sent"):
        await shop.clerk.get_run(RUNS[name]).send(observed.MESSAGE)
    for name in ("waiting, cancel sent", "crashed, cancel sent", "submitted, cancel sent"):
        # `cancel` would wait and close the run.
        await log.send_command(RUNS[name], CancelCommand(reason=observed.REASON))
    await shop.aclose()


async def write_sqlite(path: Path, folder: Path) -> None:
    """Write the SQLite file."""
    first = SqliteEventLog(folder / "first.sqlite")

    def copy() -> None:
        with contextlib.closing(sqlite3.connect(first.path)) as source, contextlib.closing(sqlite3.connect(path)) as to:
            source.backup(to)

    await write_runs(first, copy)
    await first.aclose()
    log = SqliteEventLog(path)
    await send_commands(log)
    await log.aclose()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        # Pretend that the owner ran on another machine. Otherwise a current process may count as the owner.
        process = "00000000-0000-0000-0000-000000000000.1 1 1"
        connection.execute("UPDATE lease_holders SET process = ?, heartbeat_at = 1", (process,))
        connection.execute("UPDATE runs SET inserted_at = 1")
        connection.execute("VACUUM")
        for table in ("runs", "events", "folds", "commands", "leases", "lease_holders", "artifacts"):
            print(table, *connection.execute(f"SELECT count(*) FROM {table}").fetchone())
    assert not list(path.parent.glob(f"{path.name}-*"))


def write_export(path: Path, database: Path) -> None:
    """Export all runs with `rxloop export`."""
    lines: list[str] = []
    for task_id in RUNS.values():
        done = CliRunner().invoke(app, ["export", task_id, "--full", "--db", str(database)])
        assert done.exit_code == 0, done.output
        lines.append(done.stdout)
    path.write_bytes(gzip.compress("".join(lines).encode(), mtime=0))


async def write_postgres(path: Path, database: Path, dsn: str) -> None:
    """Write the Postgres dump of the same runs."""
    source, target = SqliteEventLog(database), PostgresEventLog(dsn, schema=SCHEMA)
    for record in await source.list_runs():
        await target.append(record.task_id, await source.read(record.task_id), expected_seq=0)
    for context_id in ("bob", "reader", "eve"):
        await history(target, context_id)
    await copy_artifacts(source, target, "pages")
    await send_commands(target)
    await source.aclose()
    await target.aclose()
    dump = await asyncio.create_subprocess_exec(
        *("pg_dump", "--no-owner", "--no-privileges", "--inserts", "--rows-per-insert=50"),
        *(f"--schema={SCHEMA}", dsn),
        stdout=subprocess.PIPE,
    )
    output, _ = await dump.communicate()
    assert dump.returncode == 0
    # Only psql understands backslash commands.
    statements = "".join(line for line in output.decode().splitlines(keepends=True) if not line.startswith("\\"))
    path.write_bytes(gzip.compress(statements.encode(), mtime=0))


async def copy_artifacts(source: Any, target: Any, context_id: str) -> None:
    for record in await source.artifacts.list(context_id):
        for version in await source.artifacts.versions(context_id, record.artifact_id):
            name, key = record.artifact_id, f"copy {version.version}"
            await target.artifacts.create(
                *(context_id, name),
                name=version.name,
                media_type=version.media_type,
                override=True,
                key=key,
                now=version.created,
            )
            data = await source.artifacts.read(context_id, name, version=version.version)
            await target.artifacts.append(
                context_id, name, data, version=version.version, last=True, key=f"{key} data", now=version.updated
            )


async def expect(database: Path, folder: Path) -> dict[str, Any]:
    """Return the expected results. Each function gets its own copy of the file."""
    number = 0

    async def observe(function: Callable[..., Awaitable[Any]], *arguments: Any, **options: Any) -> Any:
        nonlocal number
        number += 1
        path = folder / f"{number}.sqlite"
        path.write_bytes(database.read_bytes())
        log = SqliteEventLog(path)
        try:
            return await function(log, *arguments, **options)
        finally:
            await log.aclose()

    async def observe_all(function: Callable[..., Awaitable[Any]], names: Any) -> dict[str, Any]:
        return {name: await observe(function, RUNS[name]) for name in names}

    records = await observe_all(observed.read_record, RUNS)
    states = {name: record["state"] for name, record in records.items()}
    waiting = [name for name in RUNS if states[name] in ("input-required", "auth-required")]
    working = [name for name in RUNS if states[name] == "working"]
    submitted = [name for name in RUNS if states[name] == "submitted"]
    asking = [name for name in waiting if "sent" not in name]
    alone = {name: records[name]["contextId"] for name in ("nested, waiting", "crashed in tools", "cancelled", "media")}
    replays = await observe_all(observed.replay_run, RUNS)
    folds = await observe_all(observed.fold_events, RUNS)
    for name, state in folds.items():
        if state["messages"] == replays[name]["messages"]:
            # The replay has the same messages if the conversation has no earlier run.
            del state["messages"]
    session = folder / "session.sqlite"
    session.write_bytes(database.read_bytes())
    return {
        "runs": RUNS,
        "listed": await observe(observed.list_records),
        "unfinished": await observe(observed.list_records, unfinished=True),
        "owned": await observe(observed.list_records, owner="ann"),
        "orphaned": await observe(observed.list_orphaned),
        "records": records,
        "commands": await observe_all(observed.read_commands, RUNS),
        "deltas": await observe(observed.read_events, RUNS["deltas"], deltas=True),
        "folds": folds,
        "replays": replays,
        "histories": {
            context: await observe(observed.read_history, context) for context in [*CONTEXTS, *alone.values()]
        },
        "artifacts": await observe(observed.read_artifacts, "pages"),
        "session": await observed.read_session(session, "move"),
        "settled": await observe_all(observed.execute, [*waiting, *working, *submitted]),
        "resumed": await observe_all(observed.resume, [*working, "busy", "tools", "waiting"]),
        "answered": await observe_all(observed.answer, asking),
        "declined": await observe_all(observed.decline, ["waiting", "nested, waiting", "carl waits"]),
        "cancelled": await observe_all(observed.cancel, [*waiting, *working, "submitted", "tools"]),
        "told": await observe_all(observed.send_message, ["waiting", "crashed in tools", "submitted", "tools"]),
        "forked": [[name, at, await observe(observed.fork_run, RUNS[name], at)] for name, at in FORKS],
        "next": {context: await observe(observed.run_next, context) for context in CONTEXTS},
        "adopted": await observe(observed.adopt),
        "started": await observe(observed.start_again, key="request-17", owner="ann"),
    }


async def main(folder: Path, dsn: str | None) -> None:
    """Write the logs and the expected results to a new folder."""
    assert not list(folder.glob("*.gz")), f"{folder} has old logs already"
    with TemporaryDirectory() as temporary:
        database = Path(temporary) / "runs.sqlite"
        await write_sqlite(database, Path(temporary))
        await asyncio.to_thread(write_export, folder / "runs.jsonl.gz", database)
        (folder / "runs.sqlite.gz").write_bytes(gzip.compress(database.read_bytes(), mtime=0))
        expected = await expect(database, Path(temporary))
        (folder / "expected.json").write_bytes(orjson.dumps(expected, option=orjson.OPT_INDENT_2) + b"\n")
        if dsn:
            await write_postgres(folder / "runs.sql.gz", database, dsn)
    for path in sorted(folder.iterdir()):
        print(path.name, path.stat().st_size)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None))
