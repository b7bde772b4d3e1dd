"""A queue in Postgres: procrastinate, as a doorbell."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from rxloop.errors import ConfigurationError

if TYPE_CHECKING:
    from procrastinate import App, JobContext
    from procrastinate.jobs import Job

log = logging.getLogger("rxloop")

_TASK = "rxloop.settle"
_ANSWERS_IN = 5.0
"""Seconds in which a connection is there."""
_POLL = 1.0
"""Seconds between two looks for a bell that was delayed, or whose tenant had no room: nothing tells of those."""
_HEARTBEAT, _STALLED = 5.0, 20.0
"""Seconds between two signs of life, and without one."""
_RESCUED = 10
"""What a rescued bell has more of priority: otherwise its run waits once more behind all others."""
_AGAIN_IN = timedelta(seconds=1)
_WAITING = """
SELECT count(*) AS waiting FROM procrastinate_jobs
WHERE status = 'todo' AND (queue_name = %(name)s OR queue_name LIKE %(versions)s)
AND (scheduled_at IS NULL OR scheduled_at <= now())
"""
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
            dsn: The database, as `postgresql://user@host:5432/database`.
            name: The name of the queue; several may be in one database.
            tenant_limit: How many runs of one tenant go on at once; None is no limit. The same in all processes. Those
                that were taken up from a worker that died do not count.

        Raises:
            ConfigurationError: `tenant_limit` is less than one.
        """
        if tenant_limit is not None and tenant_limit < 1:
            raise ConfigurationError(f"tenant_limit must be at least 1, or None for no limit, not {tenant_limit!r}")
        self._dsn, self._name, self._tenant_limit = dsn, name, tenant_limit
        self._app: App | None = None
        self._opening = asyncio.Lock()
        self._settle: Callable[[str], Awaitable[None]] | None = None

    def __repr__(self) -> str:
        return f"<PostgresQueue {self._name}>"

    async def ring(
        self,
        task_id: str,
        *,
        priority: int = 0,
        at: datetime | None = None,
        tenant: str | None = None,
        version: str | None = None,
    ) -> None:
        """Ring for a run, as `Queue.ring` says; durable when it returns.

        Raises:
            procrastinate.exceptions.ConnectorException: The server does not take it.
        """
        await self._ring(await self._opened(), task_id, priority, at, tenant, self._queue_of(version))

    async def _ring(
        self, app: App, task_id: str, priority: int, at: datetime | None, tenant: str | None, queue: str
    ) -> None:
        from procrastinate.exceptions import AlreadyEnqueued

        # One that is delayed would keep all those behind it from its lock.
        lock = self._slot(tenant, task_id) if at is None else None
        job = app.configure_task(
            _TASK, queue=queue, lock=lock, queueing_lock=task_id, priority=priority, schedule_at=at
        )
        # The lock counts for bells that nobody has answered yet, and each of those has all that is new still to read.
        with suppress(AlreadyEnqueued):
            await job.defer_async(task_id=task_id, tenant=tenant)

    async def serve(
        self, settle: Callable[[str], Awaitable[None]], *, concurrency: int, version: str | None = None
    ) -> None:
        """Answer bells until it is cancelled, as `Queue.serve` says.

        A worker that was frozen, or whose server was restarted, is no worker any more: then another one is begun.

        Raises:
            procrastinate.exceptions.ConnectorException: The server cannot be reached.
        """
        app = await self._opened()
        self._settle = settle
        queues = list(dict.fromkeys([self._queue_of(version), self._name]))
        rescuing = asyncio.create_task(self._rescue_on(app, queues), name="rxloop-queue-rescue")
        try:
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

    async def waiting(self) -> int:
        """Count the bells that ring, and that nobody has answered yet.

        Raises:
            procrastinate.exceptions.ConnectorException: The server cannot be asked.
        """
        app = await self._opened()
        row = await app.connector.execute_query_one_async(_WAITING, name=self._name, versions=f"{self._name}:%")
        return row["waiting"]

    async def aclose(self) -> None:
        """Close the connections; may be called more than once."""
        app, self._app = self._app, None
        if app is not None:
            await app.close_async()

    # -- how it is done

    def _queue_of(self, version: str | None) -> str:
        return self._name if version is None else f"{self._name}:{version}"

    def _slot(self, tenant: str | None, task_id: str) -> str | None:
        """The lock of one of the places that a tenant has."""
        if tenant is None or self._tenant_limit is None:
            return None
        return f"{self._name}:{tenant}:{zlib.crc32(task_id.encode()) % self._tenant_limit}"

    async def _opened(self) -> App:
        async with self._opening:
            if self._app is None:
                self._app = await self._open()
            return self._app

    async def _open(self) -> App:
        # Imported here: the extra may be missing.
        try:
            from procrastinate import App, PsycopgConnector
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                "a queue in Postgres needs procrastinate, which is not installed: pip install 'rxloop[postgres]'"
            ) from error

        # A server that does not answer is gone after a few seconds, and not after the minutes of the system.
        connection = {"connect_timeout": 5, "tcp_user_timeout": 5000, "application_name": "rxloop-queue"}
        connector = PsycopgConnector(
            conninfo=self._dsn, min_size=1, max_size=1, timeout=_ANSWERS_IN, kwargs=connection, reconnect_timeout=0
        )
        app = App(connector=connector)
        app.task(name=_TASK, pass_context=True)(self._answer)
        # With no periodic task at all, procrastinate stops watching over its listener, which may die unseen.
        app.periodic(cron="0 0 29 2 *")(app.task(name="rxloop.nothing")(_nothing))
        await app.open_async()
        try:
            await self._make_tables(app)
        except BaseException:
            await app.close_async()
            raise
        return app

    async def _make_tables(self, app: App) -> None:
        import psycopg

        async with await psycopg.AsyncConnection.connect(self._dsn, connect_timeout=5) as connection:
            await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            found = await connection.execute("SELECT to_regclass('procrastinate_jobs')")
            row = await found.fetchone()
            if row is None or row[0] is None:
                # Of several statements, and so without parameters.
                await connection.execute(app.schema_manager.get_schema().encode())

    async def _answer(self, context: JobContext, task_id: str, tenant: str | None) -> None:
        """Answer one bell; one that cannot be answered here rings once more."""
        job, app = context.job, await self._opened()
        assert self._settle is not None
        if job.lock is None and self._slot(tenant, task_id) is not None:
            # It was delayed, and takes its place only now.
            await self._ring(app, task_id, job.priority, None, tenant, job.queue)
            return
        try:
            await self._settle(task_id)
        except BaseException as error:
            at = datetime.now(UTC) + _AGAIN_IN if isinstance(error, Exception) else None
            if isinstance(error, Exception):
                log.debug("the bell for the run %s rings once more: %s", task_id, error)
            await asyncio.shield(self._again(app, job, at, job.priority))
            if not isinstance(error, Exception):
                raise

    async def _again(self, app: App, job: Job, at: datetime | None, priority: int) -> None:
        """Ring once more. If that fails, the run is found without."""
        kwargs: dict[str, Any] = job.task_kwargs
        try:
            await self._ring(app, kwargs["task_id"], priority, at, kwargs["tenant"], job.queue)
        except Exception as error:
            log.debug("the bell for the run %s is lost: %s", kwargs["task_id"], error)

    async def _rescue_on(self, app: App, queues: list[str]) -> None:
        """Ring once more for the bells that dead workers had.

        In a plain loop: a job of the queue would not be begun as long as all places are taken.
        """
        while True:
            await asyncio.sleep(_STALLED / 4)
            try:
                await app.job_manager.prune_stalled_workers(_STALLED)
                for queue in queues:
                    for job in await app.job_manager.get_stalled_jobs(queue=queue, seconds_since_heartbeat=_STALLED):
                        await self._rescue(app, job)
            except Exception as error:
                log.warning("the bells of dead workers cannot be looked for: %s; trying again", error)

    async def _rescue(self, app: App, job: Job) -> None:
        from procrastinate.exceptions import ConnectorException
        from procrastinate.jobs import Status

        await self._again(app, job, None, max(job.priority, 0) + _RESCUED)
        # Another worker may have been quicker.
        with suppress(ConnectorException):
            await app.job_manager.finish_job(job, Status.ABORTED, delete_job=True)


async def _nothing(timestamp: int) -> None:
    """Do nothing, now and then."""
