"""Postgres addresses and driver errors."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

from typing_extensions import override

from rxloop.errors import ConfigurationError, EventLogError, LogUnreachable
from rxloop.storage.postgres import conninfo, psycopg, sql

Row = tuple[Any, ...]

Connection: TypeAlias = "psycopg.AsyncConnection[Row]"
Cursor: TypeAlias = "psycopg.AsyncCursor[Row]"

_DEFAULTS: dict[str, Any] = {
    # Detect an unresponsive server within seconds, because system defaults take minutes.
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 8_000,
    "application_name": "rxloop",
}

KEEPALIVES = "SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 3"
"""Server-side keepalive settings. By default, the server would keep sessions of a dead host for two hours."""

_TRANSACTION_TIMEOUT = 5_000
"""Timeout in milliseconds for idle transactions, because a frozen process would block others."""

_SCHEMA = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,40}")


@dataclass(frozen=True)
class Address:
    """Database and schema of an event log.

    Attributes:
        dsn: Database URL for regular connections, possibly through PgBouncer with transaction pooling.
        session_dsn: Database URL for long-lived sessions, used by leases and `LISTEN`.
        schema: Schema of the tables.
    """

    # URLs may contain passwords.
    dsn: str = field(repr=False)
    session_dsn: str = field(repr=False)
    schema: str

    def __post_init__(self) -> None:
        if not _SCHEMA.fullmatch(self.schema):
            raise ConfigurationError(f"schema must be a name of at most 41 letters, digits and _, got {self.schema!r}.")
        for name, dsn in (("dsn", self.dsn), ("session_dsn", self.session_dsn)):
            try:
                conninfo.conninfo_to_dict(dsn)
            except (psycopg.Error, AttributeError, TypeError):
                # Suppress the driver error, because it contains the URL and possibly a password.
                raise ConfigurationError(
                    f"{name} must be a Postgres URL such as postgresql://user@host:5432/database. After a ?, only "
                    "parameters of libpq are allowed."
                ) from None
            # An unescaped @ or / in the password is parsed as part of the host or database, which appear in messages.
            server, _, database = dsn.partition("://")[2].partition("?")[0].partition("/")
            if server.count("@") > 1 or "@" in database:
                raise ConfigurationError(
                    f"{name} contains an unescaped @ or / in the user, password or database. Write %40 and %2F instead."
                )

    @cached_property
    def _parts(self) -> dict[str, Any]:
        return conninfo.conninfo_to_dict(self.session_dsn)

    @override
    def __str__(self) -> str:
        """Return the database URL without credentials, for messages."""
        parts = self._parts
        host = parts.get("host") or parts.get("hostaddr") or parts.get("service") or "localhost"
        return f"postgresql://{host}:{parts.get('port') or 5432}/{parts.get('dbname') or ''} ({self.schema})"

    def sql(self, text: str) -> bytes:
        """Return a statement with `$s` replaced by the schema."""
        return _encode_statement(text, self.schema)

    def options(self, *, session: bool = False, **others: Any) -> dict[str, Any]:
        """Return connection options that the URL does not contain. `others` override the defaults."""
        specified = conninfo.conninfo_to_dict(self.session_dsn if session else self.dsn)
        return {name: value for name, value in (_DEFAULTS | others).items() if name not in specified}

    async def connect(self, *, session: bool = False) -> Connection:
        """Open a connection.

        Args:
            session: Open a dedicated session that bypasses the pooler.

        Raises:
            psycopg.Error: If the server is unreachable or rejects the connection.
        """
        dsn = self.session_dsn if session else self.dsn
        options = self.options(session=session)
        # Prepared statements do not work across pooled connections.
        options |= {} if self.dsn == self.session_dsn or session else {"prepare_threshold": None}
        try:
            return await psycopg.AsyncConnection.connect(dsn, autocommit=True, client_encoding="utf8", **options)
        except psycopg.InterfaceError as error:
            if "ProactorEventLoop" in str(error):
                raise ConfigurationError(
                    "psycopg does not support the default event loop of Windows. "
                    "Use asyncio.Runner(loop_factory=asyncio.SelectorEventLoop)."
                ) from error
            raise

    async def configure(self, connection: Connection, *, keeps_plans: bool) -> None:
        """Set timeouts and the plan cache mode of a connection.

        The server ends transactions of a silent process, and connections to an unreachable host.

        Args:
            connection: Connection to configure.
            keeps_plans: Use generic plans. The caller must discard the plans regularly, because plans for empty tables
                are inefficient for large tables. Otherwise, statements are planned for their values.
        """
        # Poolers have their own timeouts and do not support prepared statements.
        if self.dsn == self.session_dsn:
            plans = "force_generic_plan" if keeps_plans else "force_custom_plan"
            settings = (f"plan_cache_mode = {plans}", "jit = off", "tcp_user_timeout = 5000")
            settings += (f"idle_in_transaction_session_timeout = {_TRANSACTION_TIMEOUT}",)
            await connection.execute("; ".join([KEEPALIVES, *(f"SET {setting}" for setting in settings)]).encode())


@lru_cache(maxsize=512)
def _encode_statement(text: str, schema: str) -> bytes:
    return text.replace("$s", sql.Identifier(schema).as_string(None)).encode()


def can_store(*texts: object) -> bool:
    """Return True if Postgres can store the values. Strings must not contain NUL characters or unpaired surrogates."""
    try:
        return not any(isinstance(text, str) and b"\0" in text.encode() for text in texts)
    except UnicodeEncodeError:
        return False


_TEMPORARY_CODES = ("08", "40", "53", "55", "57", "25006", "25P03")
"""SQLSTATE prefixes of temporary errors, such as connection failures, deadlocks, insufficient resources, shutdowns,
standby servers and idle transaction timeouts."""

_REFUSED = ("authentication failed", "pg_hba.conf", "does not exist", "no password supplied", "not permitted to log in")
"""Message fragments of rejected connections, which have no SQLSTATE."""

_TIMEOUT_MESSAGES = ("timeout expired", "timed out", "unreachable", "No route to host")
"""Message fragments of connection attempts without any response from the host."""

_HINTS = {
    "42501": "the role lacks permissions: call `migrate(grant=...)` once with another role (docs/durability.md)",
    "42P01": "its tables are missing: call `migrate()` once with a role that can create them (docs/durability.md)",
    "42703": "another version of rxloop has changed the tables: restart this program with that version",
    "3F000": "its schema is missing: call `migrate()` once with a role that can create it (docs/durability.md)",
    "53100": "the disk of the server is full: free some space",
    "53200": "the server is out of memory or locks: raise max_locks_per_transaction",
    "53300": "the server is out of connections: raise max_connections or use PgBouncer",
    "25006": "the server is read-only: it is a standby, or its disk is full",
}

_MISSING_DATABASE = re.compile(r'FATAL: database ".*" does not exist$')
"""Message of a rejected connection, which has no SQLSTATE."""


def is_temporary(error: psycopg.Error) -> bool:
    """Return True if a retry may succeed."""
    if error.sqlstate is not None:
        return error.sqlstate.startswith(_TEMPORARY_CODES)
    return isinstance(error, psycopg.OperationalError) and not any(word in str(error) for word in _REFUSED)


def lacks_resources(error: psycopg.Error) -> bool:
    """Return True if the server lacks resources, such as disk space, and an operator needs to act."""
    return (error.sqlstate or "").startswith("53")


def is_unanswered(error: psycopg.Error) -> bool:
    """Return True if the server did not respond. The server may be running but unreachable from this process."""
    timed_out = isinstance(error, psycopg.errors.ConnectionTimeout)
    return error.sqlstate is None and (timed_out or any(word in str(error) for word in _TIMEOUT_MESSAGES))


def to_error(error: psycopg.Error, database_name: str) -> EventLogError:
    """Convert a Postgres error to an `EventLogError`, with the database name and a hint.

    Args:
        error: Driver error.
        database_name: Database name without credentials.
    """
    message = " ".join(str(error).split()) or type(error).__name__
    hint = _HINTS.get(error.sqlstate or "")
    if _MISSING_DATABASE.search(message):
        hint = "create it, for example with createdb, or correct the URL"
    text = f"the event log {database_name}: {message}" + (f"; {hint}" if hint else "")
    return LogUnreachable(text) if is_temporary(error) else EventLogError(text, retryable=False)
