"""Address of a database, and errors of its driver."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from typing_extensions import override

from rxloop.errors import ConfigurationError, EventLogError, LogUnreachable

Row = tuple[Any, ...]

Connection = psycopg.AsyncConnection[Row]

_DEFAULTS: dict[str, Any] = {
    # A server that does not answer is gone after a few seconds, and not after the minutes of the system.
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 8_000,
    "application_name": "rxloop",
}

KEEPALIVES = "SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 3"
"""Has the server ask for the host of a silent session: it would keep that of a host that is gone for two hours."""

_SILENT_IN_TRANSACTION = 5_000
"""Milliseconds for which a process may be silent in the middle of a transaction: it may be frozen, and others wait."""

_SCHEMA = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,40}")


@dataclass(frozen=True)
class Address:
    """A database, and the schema in it that the tables are in.

    Attributes:
        dsn: What is connected to; maybe a PgBouncer that gives a connection for the time of a transaction.
        session_dsn: What keeps a connection as long as it is wanted, for turns and LISTEN.
        schema: The schema.
    """

    # They may have a password in them.
    dsn: str = field(repr=False)
    session_dsn: str = field(repr=False)
    schema: str

    def __post_init__(self) -> None:
        if not _SCHEMA.fullmatch(self.schema):
            raise ConfigurationError(f"schema is a plain name of at most 41 letters, digits and _, not {self.schema!r}")
        for name, dsn in (("dsn", self.dsn), ("session_dsn", self.session_dsn)):
            try:
                conninfo_to_dict(dsn)
            except (psycopg.Error, AttributeError, TypeError):
                # Not with the text, which may have a password in it, and so without the error, which has the text.
                raise ConfigurationError(
                    f"{name} is no address of a Postgres database: write postgresql://user@host:5432/database, with "
                    "nothing but parameters of libpq behind a ?"
                ) from None
            # A password with @ or / in it is read as the beginning of what follows, which messages show.
            server, _, database = dsn.partition("://")[2].partition("?")[0].partition("/")
            if server.count("@") > 1 or "@" in database:
                raise ConfigurationError(
                    f"{name} has an @ too many: in a user, a password and a database write %40 for it, and %2F for /"
                )

    @cached_property
    def _parts(self) -> dict[str, Any]:
        return conninfo_to_dict(self.session_dsn)

    @override
    def __str__(self) -> str:
        """The database as it is called in messages: without a password."""
        parts = self._parts
        host = parts.get("host") or parts.get("hostaddr") or parts.get("service") or "localhost"
        return f"postgresql://{host}:{parts.get('port') or 5432}/{parts.get('dbname') or ''} ({self.schema})"

    @property
    def channel(self) -> str:
        """Where it is told what is new."""
        return f"rxloop_{self.schema}"

    def sql(self, text: str) -> bytes:
        """Write a statement, with the schema for `$s`."""
        return _statement(text, self.schema)

    def options(self, *, session: bool = False, **others: Any) -> dict[str, Any]:
        """What a connection is made with, where the address does not say another thing; `others` go before our own."""
        given = conninfo_to_dict(self.session_dsn if session else self.dsn)
        return {name: value for name, value in (_DEFAULTS | others).items() if name not in given}

    async def connect(self, *, session: bool = False) -> Connection:
        """Make a connection.

        Args:
            session: One that is not shared, and knows what was said to it before.

        Raises:
            psycopg.Error: There is no server, or it lets nobody in.
        """
        dsn = self.session_dsn if session else self.dsn
        options = self.options(session=session)
        # What PgBouncer shares does not know the statements that were prepared before.
        options |= {} if self.dsn == self.session_dsn or session else {"prepare_threshold": None}
        try:
            return await psycopg.AsyncConnection.connect(dsn, autocommit=True, client_encoding="utf8", **options)
        except psycopg.InterfaceError as error:
            if "ProactorEventLoop" in str(error):
                raise ConfigurationError(
                    "psycopg does not work in the event loop that Windows takes by itself: "
                    "run it with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop)"
                ) from error
            raise

    async def tuned(self, connection: Connection, *, keeps_plans: bool) -> None:
        """Have a transaction end in whose middle this process falls silent; and say how statements are planned.

        And have it end once its host is gone, or takes nothing any more.

        Args:
            connection: The connection.
            keeps_plans: Plan a statement once, whatever its values: its plan has to be discarded when the tables have
                grown, since it may be one for empty tables. Otherwise it is planned each time, for its values.
        """
        # Where connections are shared, nothing is prepared, and so nothing kept; a pooler has time-outs of its own.
        if self.dsn == self.session_dsn:
            plans = "force_generic_plan" if keeps_plans else "force_custom_plan"
            settings = (f"plan_cache_mode = {plans}", "jit = off", "tcp_user_timeout = 5000")
            settings += (f"idle_in_transaction_session_timeout = {_SILENT_IN_TRANSACTION}",)
            await connection.execute("; ".join([KEEPALIVES, *(f"SET {setting}" for setting in settings)]).encode())


@lru_cache(maxsize=512)
def _statement(text: str, schema: str) -> bytes:
    return text.replace("$s", sql.Identifier(schema).as_string(None)).encode()


def can_keep(*texts: object) -> bool:
    """Tell whether Postgres can have these texts: it has no NUL character, and no half of a surrogate pair."""
    try:
        return not any(isinstance(text, str) and b"\0" in text.encode() for text in texts)
    except UnicodeEncodeError:
        return False


_PASSING = ("08", "40", "53", "55", "57", "25006", "25P03")
"""The classes of errors, and two errors, that another try may not meet: connections, deadlocks, no room, a shutdown, a
server that is a standby still, and a process that was silent in the middle of a transaction."""

_REFUSED = ("authentication failed", "pg_hba.conf", "does not exist", "no password supplied", "not permitted to log in")
"""What stands in the message of a server that answers, and lets nobody in: such an error has no code."""

_SILENT = ("timeout expired", "timed out", "unreachable", "No route to host")
"""What stands in the message if not even the machine of the server has answered."""

_HINTS = {
    "42501": "the role may not do that: let a role that may call `migrate(grant=...)` once (docs/durability.md)",
    "42P01": "its tables are not there: let a role that may make them call `migrate()` once (docs/durability.md)",
    "3F000": "its schema is not there: let a role that may make it call `migrate()` once (docs/durability.md)",
    "53100": "the disk of the server is full: make room",
    "53200": "the server has no memory left, or too few locks: raise max_locks_per_transaction",
    "53300": "the server takes no more connections: raise max_connections, or put PgBouncer in between",
    "25006": "this server only reads: it is a standby, or its disk is full",
}


def passes(error: psycopg.Error) -> bool:
    """Tell whether the server may do in a moment what it does not do now."""
    if error.sqlstate is not None:
        return error.sqlstate.startswith(_PASSING)
    return isinstance(error, psycopg.OperationalError) and not any(word in str(error) for word in _REFUSED)


def lacks(error: psycopg.Error) -> bool:
    """Tell whether the server lacks something, such as room on its disk, and so waits for somebody to do something."""
    return (error.sqlstate or "").startswith("53")


def silent(error: psycopg.Error) -> bool:
    """Tell whether nothing came back: the server may be alive, and this process be cut off from it."""
    waited_in_vain = isinstance(error, psycopg.errors.ConnectionTimeout)
    return error.sqlstate is None and (waited_in_vain or any(word in str(error) for word in _SILENT))


def failure(error: psycopg.Error, place: str) -> EventLogError:
    """Make an error of Postgres one that names the database and says what to do.

    Args:
        error: What psycopg raised.
        place: How the database is called, without passwords.
    """
    said = " ".join(str(error).split()) or type(error).__name__
    hint = _HINTS.get(error.sqlstate or "")
    text = f"the event log {place}: {said}" + (f"; {hint}" if hint else "")
    return LogUnreachable(text) if passes(error) else EventLogError(text, retryable=False)
