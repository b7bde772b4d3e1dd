"""What the failures of Postgres mean: which ones pass, and what to do about the others."""

from __future__ import annotations

import psycopg

from rxloop.errors import EventLogError, LogUnreachable

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
