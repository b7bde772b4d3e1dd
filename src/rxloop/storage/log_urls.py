"""Event logs opened by URL or file path."""

from __future__ import annotations

import os
import re
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, cast

from rxloop.errors import ConfigurationError
from rxloop.pipeline.event_log import EventLog

if TYPE_CHECKING:
    from rxloop.storage.postgres_log import PostgresEventLog
    from rxloop.storage.sqlite_log import SqliteEventLog

_POSTGRES = ("postgresql://", "postgres://")

_KEYWORDS = re.compile(r"\s*(?:host|hostaddr|port|dbname|user|password|passfile|service|sslmode)\s*=")
"""Pattern of a libpq keyword/value string. Such a string could contain a password, so it must not become a file
name."""


def open_log(address: str | PathLike[str], **options: Any) -> SqliteEventLog | PostgresEventLog:
    """Create the event log for an address, without opening it.

    Args:
        address: A URL such as `postgresql://user@host:5432/database` creates a `PostgresEventLog`. A URL such as
            `sqlite:///folder/runs.db`, or a file path, creates a `SqliteEventLog`.
        **options: Keyword arguments of the log class.

    Raises:
        ConfigurationError: If the URL scheme or an option is not supported.

    Example:
        >>> log = open_log(os.environ["DATABASE_URL"])
    """
    text = fspath(address)
    scheme, sign, rest = text.partition("://")
    try:
        if is_postgres(address):
            from rxloop.storage.postgres_log import PostgresEventLog

            return PostgresEventLog(text, **options)
        from rxloop.storage.sqlite_log import SqliteEventLog

        if _KEYWORDS.match(text):
            raise ConfigurationError(
                "open_log does not accept libpq keywords (host=... dbname=...). Use a URL such as "
                "postgresql://user@host:5432/database."
            )
        if not sign:
            return SqliteEventLog(text, **options)
        if scheme == "sqlite" and rest[:1] == "/" and len(rest) > 1:
            # As in SQLAlchemy URLs, three slashes start a relative path and four slashes start an absolute path.
            return SqliteEventLog(rest[1:], **options)
    except TypeError as error:
        raise ConfigurationError(f"open_log received invalid options: {error}") from error
    raise ConfigurationError(
        f"open_log does not support URLs with the scheme {scheme}. Use postgresql://user@host:5432/database, "
        "sqlite:///folder/runs.db or a file path."
    )


def is_postgres(address: str | PathLike[str] | None) -> bool:
    """Return True if an address is a Postgres URL."""
    return address is not None and os.fspath(address).startswith(_POSTGRES)


def check_log(log: Any) -> None:
    """Validate an event log.

    Raises:
        ConfigurationError: If the type is invalid.
    """
    if isinstance(log, EventLog):
        return
    if isinstance(log, str | PathLike):
        example = f"an EventLog, such as open_log({fspath(cast('str | PathLike[str]', log))!r})"
    else:
        example = "an instance of a subclass of EventLog, such as MemoryEventLog()"
    raise ConfigurationError(f"log must be {example}, got {log!r}")
