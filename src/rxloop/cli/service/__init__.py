"""Runtime and process log of `rxloop serve` and `rxloop worker`."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import AsyncGenerator, Collection, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import orjson
from typing_extensions import override

from rxloop.agents.agent import Agent
from rxloop.cli.agent_loader import call_factory, load, to_agents
from rxloop.cli.database import open_database
from rxloop.cli.terminal import format_error
from rxloop.errors import ConfigurationError
from rxloop.runtime.runtime import Runtime
from rxloop.storage.log_urls import is_postgres
from rxloop.support.text import to_one_line, to_visible

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


_RUNTIME_OPTIONS = {
    "db": "Runtime(log=PostgresEventLog(...))",
    "session_db": "PostgresEventLog(session_dsn=...) and the URL of PostgresQueue",
    "concurrency": "Runtime(concurrency=...)",
    "tenant_limit": "PostgresQueue(tenant_limit=...)",
    "program_version": "Runtime(version=...)",
    "adopt_every": "Runtime(adopt_every=...)",
    "grace": "Runtime(grace=...)",
}
"""Python equivalents of the `rxloop worker` options."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Shared Postgres database with its event log and queue.

    Attributes:
        db: Database URL.
        session_db: Direct database URL, if `db` refers to a PgBouncer.
        tenant_limit: Maximum number of concurrent runs per owner, enforced by workers.
        version: Application version.
    """

    # URLs may contain passwords.
    db: str | None = field(repr=False)
    session_db: str | None = field(default=None, repr=False)
    tenant_limit: int | None = None
    version: str | None = None

    @asynccontextmanager
    async def runtime(self, agents: Mapping[str, Agent[Any, Any]], **options: Any) -> AsyncGenerator[Runtime]:
        """Create a runtime using this database. Its resources are closed on exit.

        Raises:
            ConfigurationError: The database is not Postgres.
            EventLogError: The database is unavailable.
        """
        if self.db is None or not is_postgres(self.db):
            reason = "" if self.db is None else f", got {_redact_url(self.db)!r}"
            raise ConfigurationError(
                f"a queue requires a Postgres database{reason}; set --db postgresql://user@host/database, or RXLOOP_DB"
            )
        # Imported lazily because the extra is optional.
        from rxloop.runtime.postgres_queue import PostgresQueue
        from rxloop.storage.postgres_log import PostgresEventLog

        log = PostgresEventLog(self.db, session_dsn=self.session_db)
        queue = PostgresQueue(self.session_db or self.db, tenant_limit=self.tenant_limit)
        try:
            await log.list_runs(limit=1)
            yield Runtime(agents, log=log, queue=queue, version=self.version, **options)
        finally:
            await queue.aclose()
            await log.aclose()


def _redact_url(address: str) -> str:
    """Return a URL's scheme or a file path, because other parts may contain passwords."""
    scheme, separator, _ = address.partition("://")
    if separator:
        return scheme + separator
    # Postgres also accepts `host=... password=...`, and the scheme is sometimes omitted.
    return "..." if "@" in address or "=" in address else address


@asynccontextmanager
async def open_runtime(
    reference: str, db: str | None, *, is_explicit: bool = False, cluster: Cluster | None = None
) -> AsyncGenerator[Runtime]:
    """Create the runtime for a `module:object` path and close its log on exit.

    Args:
        reference: Import path of agents or a runtime.
        db: Database for the runs of agents.
        is_explicit: True if `db` was passed explicitly, which is an error for a runtime.
        cluster: Database and queue for workers. None executes runs in this process.

    Raises:
        ConfigurationError: The object cannot be served.
    """
    value = call_factory(load(reference, "rxloop serve"), reference, "rxloop serve")
    if isinstance(value, Runtime):
        if is_explicit or cluster is not None:
            option = "--db" if is_explicit else "--queue"
            raise ConfigurationError(f"{option} cannot be used with {reference!r}, because the runtime has its own log")
        yield value
        return
    agents = to_agents(value, reference)
    if agents is None:
        raise ConfigurationError(
            f"rxloop serve {reference!r} must be an Agent, a dict of agents, a Runtime, or a function that returns "
            f"one, got {value!r}"
        )
    if cluster is not None:
        async with cluster.runtime(agents) as runtime:
            yield runtime
        return
    async with open_database(db, write=True) as log:
        yield Runtime(agents, log=log)


@asynccontextmanager
async def open_worker(
    reference: str, cluster: Cluster, typed: Collection[str], **options: Any
) -> AsyncGenerator[Runtime]:
    """Create a worker runtime for a `module:object` path and close its resources on exit.

    Args:
        reference: Import path of agents or a worker runtime.
        cluster: Database and queue.
        typed: Options passed on the command line, which are not allowed for a runtime.
        **options: Runtime options.

    Raises:
        ConfigurationError: The object cannot be used as a worker.
    """
    value = call_factory(load(reference, "rxloop worker"), reference, "rxloop worker")
    if isinstance(value, Runtime):
        if not (value.is_worker and value.queue):
            raise ConfigurationError(
                f"{value!r} in {reference!r} must be a worker, created with Runtime(..., queue=queue, is_worker=True)"
            )
        if redundant := [name for name in _RUNTIME_OPTIONS if name in typed]:
            raise ConfigurationError(
                f"--{redundant[0].replace('_', '-')} cannot be used with the Runtime {reference!r}; use "
                f"{_RUNTIME_OPTIONS[redundant[0]]}"
            )
        yield value
        return
    agents = to_agents(value, reference)
    if agents is None:
        raise ConfigurationError(
            f"rxloop worker {reference!r} must be an Agent, a dict of agents, a worker Runtime, or a function that "
            f"returns one, got {value!r}"
        )
    async with cluster.runtime(agents, is_worker=True, **options) as runtime:
        yield runtime


requests = logging.getLogger("rxloop.requests")

_MAX_LENGTH = 2_000
_HEALTH_CHECKS = ("/healthz", "/readyz")
"""Health check paths, which are requested frequently."""
_STANDARD_FIELDS = {*vars(logging.LogRecord("", 0, "", 0, "", (), None)), "message", "asctime", "taskName"}


@contextmanager
def write_logs(*, json: bool) -> Generator[None]:
    """Write log records to stderr, with level `info` for rxloop and `warning` for other loggers."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if json else _TextFormatter())
    root_logger, logger = logging.getLogger(), logging.getLogger("rxloop")
    previous_level = logger.level
    root_logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(previous_level)
        root_logger.removeHandler(handler)


class _JsonFormatter(logging.Formatter):
    """JSON formatter with one object per line, including `extra` fields."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": to_one_line(record.getMessage(), _MAX_LENGTH),
            **{name: value for name, value in vars(record).items() if name not in _STANDARD_FIELDS},
        }
        if record.exc_info and record.exc_info[1] is not None:
            fields["error"] = to_one_line(format_error(record.exc_info[1]), _MAX_LENGTH)
        return to_visible(orjson.dumps(fields, default=str).decode())


class _TextFormatter(logging.Formatter):
    """Plain text formatter. Tracebacks are reduced to their last location."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            message += f": {format_error(record.exc_info[1])}"
        mark = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        return f"{time.strftime('%H:%M:%S', time.localtime(record.created))} {mark}{to_one_line(message, _MAX_LENGTH)}"


def log_requests(app: ASGIApp) -> ASGIApp:
    """Log completed requests with their paths but without content."""

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _HEALTH_CHECKS:
            await app(scope, receive, send)
            return
        started, status = time.perf_counter(), 0

        async def record_status(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await app(scope, receive, record_status)
        finally:
            seconds = round(time.perf_counter() - started, 3)
            data = {"method": scope["method"], "path": scope["path"], "status": status, "seconds": seconds}
            requests.info("%(method)s %(path)s %(status)d, %(seconds).3f s", data, extra=data)

    return handle
