"""Job queue in Postgres, using procrastinate."""

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

    from rxloop.runtime.tenant_slots import TenantSlots

log = logging.getLogger("rxloop")

_TASK = "rxloop.settle"

_CONNECT_TIMEOUT = 5.0
"""Maximum seconds for connecting."""

_POLL_INTERVAL = 1.0
"""Seconds between polls, used for delayed jobs and tenants at their limit."""

_HEARTBEAT, _STALLED_AFTER = 2.0, 8.0
"""Seconds between heartbeats, and after which a worker is considered dead."""

_RESCUE_PRIORITY = 10
"""Priority added to rescued jobs, so that they don't wait behind all others again."""

_RETRY_TIME = "SELECT now() + interval '1 second' AS at"

_ENQUEUE = """
INSERT INTO procrastinate_jobs (queue_name, task_name, priority, queueing_lock, args, scheduled_at)
VALUES (%(queue)s, %(task)s, %(priority)s, %(run)s, %(args)s, %(at)s)
ON CONFLICT (queueing_lock) WHERE status = 'todo' DO NOTHING
"""
"""Inserts a job unless one is already waiting for the run, because that job will read everything new. procrastinate
would fail on such an insert, and only recognises the error in English."""

_COUNT_WAITING = """
SELECT count(*) AS waiting FROM procrastinate_jobs
WHERE status = 'todo' AND queue_name = ANY(%(queues)s) AND (scheduled_at IS NULL OR scheduled_at <= now())
"""

_MISSING_RIGHTS = ("42501", "3F000")
"""Postgres error codes for missing rights or an invisible schema."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,23}")

_MAX_NAME_LENGTH = 40
"""Maximum queue name length in bytes. Postgres doesn't notify about longer names."""

_LOCK = 7_213_904_115
"""Advisory lock number for creating tables. Any number works if all processes use the same."""


class PostgresQueue:
    """Job queue in a Postgres database, using procrastinate.

    Uses procrastinate's tables in the first schema of the search path, creating them on first use. A web replica uses
    one connection, a worker uses two. Connections must be sessions, so if PgBouncer pools transactions, use the
    server's own address.

    Example:
        >>> queue = PostgresQueue("postgresql://app@db.internal/app")
        >>> runtime = Runtime({"support": support}, log=log, queue=queue)
    """

    def __init__(self, dsn: str, *, name: str = "rxloop", tenant_limit: int | None = None) -> None:
        """Create a queue without connecting.

        Args:
            dsn: Database URL, as for `PostgresEventLog`.
            name: Queue name, up to 23 letters, digits, `_`, `.` and `-`. Allows having several queues in a database.
            tenant_limit: Maximum number of runs per tenant executed at once, across all workers and versions, or None
                for no limit. Only used by workers. Runs adopted from dead workers don't count.

        Raises:
            ConfigurationError: An argument is invalid, or procrastinate isn't installed.
        """
        if find_spec("procrastinate") is None:
            raise ConfigurationError(
                "PostgresQueue requires procrastinate, which is not installed; pip install 'rxloop[postgres]'"
            )
        if not _NAME.fullmatch(name):
            raise ConfigurationError(f"name must have 1 to 23 letters, digits, _, . or -, got {name!r}")
        if tenant_limit is not None and tenant_limit < 1:
            raise ConfigurationError(f"tenant_limit must be at least 1 or None, got {tenant_limit!r}")
        self._address = Address(dsn, dsn, "public")
        self._name, self._tenant_limit = name, tenant_limit
        self._app: App | None = None
        self._opening = asyncio.Lock()
        self._handler: Callable[[str], Awaitable[None]] | None = None

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
        """Enqueue a job for a run; see `Queue.enqueue`. A crash of the server may lose the job.

        Raises:
            procrastinate.exceptions.ConnectorException: The server can't be reached or rejects the job.
        """
        args = {"task_id": task_id, "tenant": tenant, "agent": agent}
        await self._enqueue(await self._get_app(), args, priority, at, self._get_queue_name(version))

    async def _enqueue(self, app: App, args: dict[str, Any], priority: int, at: datetime | None, queue: str) -> None:
        values = {"queue": queue, "task": _TASK, "priority": priority, "run": args["task_id"], "args": args, "at": at}
        with _explain_errors():
            await app.connector.execute_query_async(_ENQUEUE, **values)

    async def serve(
        self,
        execute: Callable[[str], Awaitable[None]],
        *,
        concurrency: int,
        agents: Collection[str] | None = None,
        version: str | None = None,
    ) -> None:
        """Handle jobs until cancelled; see `Queue.serve`.

        Ends when the worker was frozen or its server restarted. Call again to start a new worker.

        Raises:
            procrastinate.exceptions.ConnectorException: The server can't be reached.
        """
        app = await self._get_app()
        _get_job_manager(app).agents = None if agents is None else [*agents]
        self._handler = execute
        queues = self._get_queue_names(version)
        rescuing = asyncio.create_task(self._keep_rescuing(app), name="rxloop-queue-rescue")
        try:
            with _prefer_cancellation(), _explain_errors():
                await app.run_worker_async(
                    queues=queues,
                    name=self._name,
                    concurrency=concurrency,
                    fetch_job_polling_interval=_POLL_INTERVAL,
                    update_heartbeat_interval=_HEARTBEAT,
                    stalled_worker_timeout=_STALLED_AFTER,
                    shutdown_graceful_timeout=0,
                    delete_jobs="always",
                    install_signal_handlers=False,
                )
        finally:
            while not rescuing.done():
                # The pool may mistake the cancellation for a broken connection.
                rescuing.cancel()
                await asyncio.wait([rescuing], timeout=0.5)

    async def waiting(self, version: str | None = None) -> int:
        """Count jobs waiting for workers of this version; see `Queue.waiting`.

        Raises:
            procrastinate.exceptions.ConnectorException: The server can't be reached.
        """
        app = await self._get_app()
        with _explain_errors():
            row = await app.connector.execute_query_one_async(_COUNT_WAITING, queues=self._get_queue_names(version))
        return row["waiting"]

    async def aclose(self) -> None:
        """Close all connections. Can be called more than once."""
        async with self._opening:
            app, self._app = self._app, None
        if app is not None:
            await app.close_async()

    # -- implementation

    def _get_queue_name(self, version: str | None) -> str:
        if version is None:
            return self._name
        queue = f"{self._name}:{version}"
        if len(queue.encode()) <= _MAX_NAME_LENGTH:
            return queue
        # A commit hash already has 40 characters.
        return f"{self._name}:{hashlib.sha256(version.encode()).hexdigest()[:16]}"

    def _get_queue_names(self, version: str | None) -> list[str]:
        """Return the queues served by workers of this version."""
        return list(dict.fromkeys([self._get_queue_name(version), self._name]))

    async def _get_app(self) -> App:
        async with self._opening:
            if self._app is None:
                self._app = await self._open()
            return self._app

    async def _open(self) -> App:
        # Imported here because it is an optional dependency.
        from procrastinate import App, PsycopgConnector

        from rxloop.runtime.tenant_slots import TenantSlots

        connector = PsycopgConnector(
            conninfo=self._address.session_dsn,
            kwargs=self._address.options(session=True, application_name="rxloop-queue"),
            configure=self._configure,
            min_size=1,
            max_size=1,
            timeout=_CONNECT_TIMEOUT,
            reconnect_timeout=0,
        )
        app = App(connector=connector)
        app.job_manager = TenantSlots(connector, self._name, self._tenant_limit)
        app.task(name=_TASK, pass_context=True)(self._handle_job)
        # Without any periodic task, procrastinate stops monitoring its listener, which may die unnoticed.
        app.periodic(cron="0 0 29 2 *")(app.task(name="rxloop.nothing")(_do_nothing))
        # Done first, because the pool retries for half a minute if the server is down.
        await self._make_tables(app)
        try:
            await app.open_async()
        except BaseException:
            await app.close_async()
            raise
        return app

    async def _configure(self, connection: AsyncConnection[Any]) -> None:
        # All queries are single statements, so no transactions are needed.
        await connection.set_autocommit(True)
        await self._address.configure(connection, keeps_plans=False)
        # Jobs lost in a server crash are enqueued again later, so don't wait for the disk.
        await connection.execute("SET synchronous_commit = off")

    async def _make_tables(self, app: App) -> None:
        from procrastinate.exceptions import ConnectorException
        from psycopg import Error

        try:
            async with await self._address.connect(session=True) as connection:
                # Any role that can connect to the database could hold the lock, so existing tables don't require it.
                if not await _has_tables(connection):
                    async with connection.transaction():
                        await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
                        if not await _has_tables(connection):
                            # Contains several statements, so parameters can't be used.
                            await connection.execute(app.schema_manager.get_schema().encode())
        except Error as error:
            raise ConnectorException(_format_error(error)) from error

    async def _handle_job(self, context: JobContext, task_id: str, **_: Any) -> None:
        """Handle a job. If that fails, enqueue the job again."""
        job, app = context.job, await self._get_app()
        assert self._handler is not None
        try:
            await self._handler(task_id)
        except BaseException as error:
            if isinstance(error, Exception):
                log.debug("Enqueuing run %s again: %s", task_id, error)
            await asyncio.shield(self._enqueue_again(app, job, job.priority, delayed=isinstance(error, Exception)))
            if not isinstance(error, Exception):
                raise

    async def _enqueue_again(self, app: App, job: Job, priority: int, *, delayed: bool = False) -> bool:
        """Enqueue a job again, optionally with a delay. Return False on failure."""
        args: dict[str, Any] = job.task_kwargs
        try:
            # Use the server's clock, which decides when jobs are due. The worker's clock may differ by hours.
            at = (await app.connector.execute_query_one_async(_RETRY_TIME))["at"] if delayed else None
            await self._enqueue(app, args, priority, at, job.queue)
        except Exception as error:
            log.debug("Failed to enqueue run %s again: %s", args["task_id"], error)
            return False
        return True

    async def _keep_rescuing(self, app: App) -> None:
        """Enqueue jobs of dead workers again, because they occupy tenant slots. Workers of other versions are included.

        Called in a loop instead of by a job, because no job starts while all slots are taken.
        """
        while True:
            await asyncio.sleep(_STALLED_AFTER / 4)
            try:
                with _explain_errors():
                    await self._rescue(app)
            except Exception as error:
                log.warning("Cannot search for jobs of dead workers: %s; retrying", error)

    async def _rescue(self, app: App) -> None:
        from procrastinate.jobs import Status

        manager = _get_job_manager(app)
        await manager.retry_deletes()
        await manager.prune_stalled_workers(_STALLED_AFTER)
        for job in await manager.get_stalled_jobs(task_name=_TASK, seconds_since_heartbeat=_STALLED_AFTER):
            is_ours = job.queue.partition(":")[0] == self._name
            # If enqueuing fails, the job stays until the next attempt.
            if is_ours and await self._enqueue_again(app, job, max(job.priority, 0) + _RESCUE_PRIORITY):
                await manager.finish_job(job, Status.ABORTED, delete_job=True)


async def _has_tables(connection: AsyncConnection[Any]) -> bool:
    """Return True if the tables exist."""
    # Within a transaction, to_regclass() may repeat an earlier result.
    cursor = await connection.execute(
        "SELECT FROM pg_class WHERE relname = 'procrastinate_jobs' AND pg_table_is_visible(oid)"
    )
    return await cursor.fetchone() is not None


def _get_job_manager(app: App) -> TenantSlots:
    from rxloop.runtime.tenant_slots import TenantSlots

    assert isinstance(app.job_manager, TenantSlots)
    return app.job_manager


@contextmanager
def _explain_errors() -> Generator[None]:
    """Add the message from Postgres to procrastinate's errors."""
    from procrastinate.exceptions import ConnectorException

    try:
        yield
    except ConnectorException as error:
        if error.__cause__ is None:
            raise
        raise ConnectorException(_format_error(error.__cause__)) from error.__cause__


def _format_error(error: BaseException) -> str:
    """Return the Postgres error in one line, with a hint if rights are missing."""
    message = " ".join(str(error).split())
    if getattr(error, "sqlstate", None) in _MISSING_RIGHTS:
        return f"{message}; the role needs the tables of the queue and rights on them (docs/machines.md, Rights)"
    return message


@contextmanager
def _prefer_cancellation() -> Generator[None]:
    """Raise the cancellation even if the worker failed to deregister because the server was down."""
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


async def _do_nothing(timestamp: int) -> None:
    """Do nothing."""
