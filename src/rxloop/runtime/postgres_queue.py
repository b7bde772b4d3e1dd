"""Job queue in Postgres, by procrastinate."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Generator
from contextlib import contextmanager
from datetime import datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rxloop.errors import ConfigurationError
from rxloop.storage.postgres.address import Address

if TYPE_CHECKING:
    from procrastinate import App, JobContext
    from procrastinate.jobs import Job
    from psycopg import AsyncConnection

    from rxloop.runtime.tenant_slots import Places

log = logging.getLogger("rxloop")

_TASK = "rxloop.settle"

_ANSWERS_IN = 5.0
"""Seconds in which a connection is there."""

_POLL = 1.0
"""Seconds between two looks for a bell that was delayed, or whose tenant had no room: nothing tells of those."""

_HEARTBEAT, _STALLED = 2.0, 8.0
"""Seconds between two signs of life, and without one."""

_RESCUED = 10
"""What a rescued bell has more of priority: otherwise its run waits once more behind all others."""

_AGAIN_AT = "SELECT now() + interval '1 second' AS at"

_RING = """
INSERT INTO procrastinate_jobs (queue_name, task_name, priority, queueing_lock, args, scheduled_at)
VALUES (%(queue)s, %(task)s, %(priority)s, %(run)s, %(said)s, %(at)s)
ON CONFLICT (queueing_lock) WHERE status = 'todo' DO NOTHING
"""
"""A bell, unless one rings that nobody has answered yet: that one has all that is new still to read. procrastinate lets
such an insert fail, and understands that only where the server speaks English."""

_WAITING = """
SELECT count(*) AS waiting FROM procrastinate_jobs
WHERE status = 'todo' AND queue_name = ANY(%(queues)s) AND (scheduled_at IS NULL OR scheduled_at <= now())
"""

_NO_RIGHTS = ("42501", "3F000")
"""What Postgres answers who may not do something, or sees no schema at all."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,23}")

_LONGEST = 40
"""Characters of the name of a queue: Postgres tells nobody of what has a longer one."""

_LOCK = 7_213_904_115
"""The number of the advisory lock under which the tables are made: any would do, if all take the same."""


class PostgresQueue:
    """Rings for runs by way of a Postgres database, with procrastinate.

    Its tables are those of procrastinate, in the first schema of the search path; they are made at the first use where
    there are none. A web replica has one connection, and a worker two. They have to be sessions: where a PgBouncer
    gives connections for one transaction at a time, take the address of the server itself.

    Example:
        >>> queue = PostgresQueue("postgresql://app@db.internal/app")
        >>> runtime = Runtime({"support": support}, log=log, queue=queue)
    """

    def __init__(self, dsn: str, *, name: str = "rxloop", tenant_limit: int | None = None) -> None:
        """Describe a queue; nothing is connected yet.

        Args:
            dsn: The database, as for `PostgresEventLog`.
            name: The name of the queue, of at most 23 letters, digits, `_`, `.` and `-`; a database may have several.
            tenant_limit: How many runs of one tenant go on at once in all workers, of whatever version; None is no
                limit. Workers look at it, and those that only ring do not. Those that were taken up from a worker that
                died do not count.

        Raises:
            ConfigurationError: An argument cannot be used, or procrastinate is not installed.
        """
        if find_spec("procrastinate") is None:
            raise ConfigurationError(
                "a queue in Postgres needs procrastinate, which is not installed: pip install 'rxloop[postgres]'"
            )
        if not _NAME.fullmatch(name):
            raise ConfigurationError(f"the name of a queue has 1 to 23 letters, digits, _, . and -: not {name!r}")
        if tenant_limit is not None and tenant_limit < 1:
            raise ConfigurationError(f"tenant_limit must be at least 1, or None for no limit, not {tenant_limit!r}")
        self._address = Address(dsn, dsn, "public")
        self._name, self._tenant_limit = name, tenant_limit
        self._app: App | None = None
        self._opening = asyncio.Lock()
        self._settle: Callable[[str], Awaitable[None]] | None = None

    def __repr__(self) -> str:
        return f"<PostgresQueue {self._name}>"

    async def enqueue(
        self,
        task_id: str,
        *,
        priority: int = 0,
        at: datetime | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        version: str | None = None,
    ) -> None:
        """Enqueue a job for a run, as `Queue.enqueue` says. Workers get it at once; a crash of the server may lose it.

        Raises:
            procrastinate.exceptions.ConnectorException: The server does not take it.
        """
        said = {"task_id": task_id, "tenant": tenant, "agent": agent}
        await self._ring(await self._opened(), said, priority, at, self._queue_of(version))

    async def _ring(self, app: App, said: dict[str, Any], priority: int, at: datetime | None, queue: str) -> None:
        values = {"queue": queue, "task": _TASK, "priority": priority, "run": said["task_id"], "said": said, "at": at}
        with _saying_why():
            await app.connector.execute_query_async(_RING, **values)

    async def serve(
        self,
        settle: Callable[[str], Awaitable[None]],
        *,
        concurrency: int,
        agents: Collection[str] | None = None,
        version: str | None = None,
    ) -> None:
        """Answer bells until it is cancelled, as `Queue.serve` says.

        A worker that was frozen, or whose server was restarted, is no worker any more: then another one is begun.

        Raises:
            procrastinate.exceptions.ConnectorException: The server cannot be reached.
        """
        app = await self._opened()
        _places(app).agents = None if agents is None else [*agents]
        self._settle = settle
        queues = self._queues_of(version)
        rescuing = asyncio.create_task(self._rescue_on(app), name="rxloop-queue-rescue")
        try:
            with _cancelled_all_the_same(), _saying_why():
                await app.run_worker_async(
                    queues=queues,
                    name=self._name,
                    concurrency=concurrency,
                    fetch_job_polling_interval=_POLL,
                    update_heartbeat_interval=_HEARTBEAT,
                    stalled_worker_timeout=_STALLED,
                    shutdown_graceful_timeout=0,
                    delete_jobs="always",
                    install_signal_handlers=False,
                )
        finally:
            while not rescuing.done():
                # The pool may take a cancellation for a broken connection.
                rescuing.cancel()
                await asyncio.wait([rescuing], timeout=0.5)

    async def waiting(self, version: str | None = None) -> int:
        """Count the bells that wait for a worker of this version, as `Queue.waiting` says.

        Raises:
            procrastinate.exceptions.ConnectorException: The server cannot be asked.
        """
        app = await self._opened()
        with _saying_why():
            row = await app.connector.execute_query_one_async(_WAITING, queues=self._queues_of(version))
        return row["waiting"]

    async def aclose(self) -> None:
        """Close the connections; may be called more than once."""
        async with self._opening:
            app, self._app = self._app, None
        if app is not None:
            await app.close_async()

    # -- how it is done

    def _queue_of(self, version: str | None) -> str:
        if version is None:
            return self._name
        queue = f"{self._name}:{version}"
        if len(queue.encode()) <= _LONGEST:
            return queue
        # Such as the name of a commit, which has 40 characters alone.
        return f"{self._name}:{hashlib.sha256(version.encode()).hexdigest()[:16]}"

    def _queues_of(self, version: str | None) -> list[str]:
        """Those that a worker of this version serves."""
        return list(dict.fromkeys([self._queue_of(version), self._name]))

    async def _opened(self) -> App:
        async with self._opening:
            if self._app is None:
                self._app = await self._open()
            return self._app

    async def _open(self) -> App:
        # Imported here: the extra may be missing.
        from procrastinate import App, PsycopgConnector

        from rxloop.runtime.tenant_slots import Places

        connector = PsycopgConnector(
            conninfo=self._address.session_dsn,
            kwargs=self._address.options(session=True, application_name="rxloop-queue"),
            configure=self._tune,
            min_size=1,
            max_size=1,
            timeout=_ANSWERS_IN,
            reconnect_timeout=0,
        )
        app = App(connector=connector)
        app.job_manager = Places(connector, self._name, self._tenant_limit)
        app.task(name=_TASK, pass_context=True)(self._answer)
        # With no periodic task at all, procrastinate stops watching over its listener, which may die unseen.
        app.periodic(cron="0 0 29 2 *")(app.task(name="rxloop.nothing")(_nothing))
        # First, as a pool asks for half a minute whether a server that is not there has come.
        await self._make_tables(app)
        try:
            await app.open_async()
        except BaseException:
            await app.close_async()
            raise
        return app

    async def _tune(self, connection: AsyncConnection[Any]) -> None:
        # All that is asked is of one statement: there is no transaction to begin and to end.
        await connection.set_autocommit(True)
        await self._address.tuned(connection, keeps_plans=False)
        # What a crash of the server takes of the last moment is rung for again: nobody waits for the disk.
        await connection.execute("SET synchronous_commit = off")

    async def _make_tables(self, app: App) -> None:
        from procrastinate.exceptions import ConnectorException
        from psycopg import Error

        try:
            async with await self._address.connect(session=True) as connection, connection.transaction():
                await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
                found = await connection.execute("SELECT to_regclass('procrastinate_jobs')")
                row = await found.fetchone()
                if row is None or row[0] is None:
                    # Of several statements, and so without parameters.
                    await connection.execute(app.schema_manager.get_schema().encode())
        except Error as error:
            raise ConnectorException(_said(error)) from error

    async def _answer(self, context: JobContext, task_id: str, **_: Any) -> None:
        """Answer one bell, whatever else it says; one that cannot be answered here rings once more."""
        job, app = context.job, await self._opened()
        assert self._settle is not None
        try:
            await self._settle(task_id)
        except BaseException as error:
            if isinstance(error, Exception):
                log.debug("the bell for the run %s rings once more: %s", task_id, error)
            await asyncio.shield(self._again(app, job, job.priority, later=isinstance(error, Exception)))
            if not isinstance(error, Exception):
                raise

    async def _again(self, app: App, job: Job, priority: int, *, later: bool = False) -> bool:
        """Ring once more, maybe in a moment; say whether that went. A run whose bell is lost is found without."""
        said: dict[str, Any] = job.task_kwargs
        try:
            # By the clock of the server, which says when a bell rings: by that of a worker it may be hours.
            at = (await app.connector.execute_query_one_async(_AGAIN_AT))["at"] if later else None
            await self._ring(app, said, priority, at, job.queue)
        except Exception as error:
            log.debug("the bell for the run %s does not ring once more: %s", said["task_id"], error)
            return False
        return True

    async def _rescue_on(self, app: App) -> None:
        """Ring once more for the bells that dead workers had, of whatever version: they have places of tenants.

        In a plain loop: a job of the queue would not be begun as long as all places are taken.
        """
        while True:
            await asyncio.sleep(_STALLED / 4)
            try:
                with _saying_why():
                    await self._rescue(app)
            except Exception as error:
                log.warning("the bells of dead workers cannot be looked for: %s; trying again", error)

    async def _rescue(self, app: App) -> None:
        from procrastinate.jobs import Status

        bells = _places(app)
        await bells.tell_again()
        await bells.prune_stalled_workers(_STALLED)
        for job in await bells.get_stalled_jobs(task_name=_TASK, seconds_since_heartbeat=_STALLED):
            ours = job.queue.partition(":")[0] == self._name
            # One that does not ring now is kept for the next look.
            if ours and await self._again(app, job, max(job.priority, 0) + _RESCUED):
                await bells.finish_job(job, Status.ABORTED, delete_job=True)


def _places(app: App) -> Places:
    from rxloop.runtime.tenant_slots import Places

    assert isinstance(app.job_manager, Places)
    return app.job_manager


@contextmanager
def _saying_why() -> Generator[None]:
    """Have the errors of procrastinate say what Postgres has said, and not only that there is one."""
    from procrastinate.exceptions import ConnectorException

    try:
        yield
    except ConnectorException as error:
        if error.__cause__ is None:
            raise
        raise ConnectorException(_said(error.__cause__)) from error.__cause__


def _said(error: BaseException) -> str:
    """What Postgres has said, in one line, and what to do where a role lacks rights."""
    said = " ".join(str(error).split())
    if getattr(error, "sqlstate", None) in _NO_RIGHTS:
        return f"{said}; the role needs the tables of the queue and rights on them (docs/machines.md, Rights)"
    return said


@contextmanager
def _cancelled_all_the_same() -> Generator[None]:
    """Have a worker that was cancelled end as that, though the server was not there to hear that it ends."""
    from procrastinate.exceptions import ConnectorException

    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    try:
        yield
    except ConnectorException as error:
        if task.cancelling() > before:
            raise asyncio.CancelledError from error
        raise


async def _nothing(timestamp: int) -> None:
    """Do nothing, now and then."""
