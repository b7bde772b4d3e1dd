"""Logs by the addresses that people write."""

from __future__ import annotations

import os
import re
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from rxloop.errors import ConfigurationError

if TYPE_CHECKING:
    from rxloop.storage.postgres_log import PostgresEventLog
    from rxloop.storage.sqlite_log import SqliteEventLog

_POSTGRES = ("postgresql://", "postgres://")

_WORDS = re.compile(r"\s*(?:host|hostaddr|port|dbname|user|password|passfile|service|sslmode)\s*=")
"""How libpq also takes an address: a file that is called like that would be a mistake, with a password in its name."""


def open_log(address: str | PathLike[str], **options: Any) -> SqliteEventLog | PostgresEventLog:
    """Make the log that an address names, with the options of its class; nothing is opened yet.

    Args:
        address: `postgresql://user@host:5432/database` is a `PostgresEventLog`; `sqlite:///folder/runs.db`, and
            everything else that is not an address, is the file of a `SqliteEventLog`.
        **options: Those of the class.

    Raises:
        ConfigurationError: There is no log for such an address, or an option cannot be used.

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

        if _WORDS.match(text):
            raise ConfigurationError(
                "open_log takes no address of Postgres in words (host=... dbname=...): write "
                "postgresql://user@host:5432/database"
            )
        if not sign:
            return SqliteEventLog(text, **options)
        if scheme == "sqlite" and rest[:1] == "/" and len(rest) > 1:
            # As in the addresses of others: after three strokes comes a file from here, after four one from the root.
            return SqliteEventLog(rest[1:], **options)
    except TypeError as error:
        raise ConfigurationError(f"open_log cannot take these options: {error}") from error
    raise ConfigurationError(
        f"there is no log for an address that begins with {scheme}://: write postgresql://user@host:5432/database, "
        "sqlite:///folder/runs.db or the path of a file"
    )


def is_postgres(address: str | PathLike[str] | None) -> bool:
    """Tell whether an address is that of a Postgres database."""
    return address is not None and os.fspath(address).startswith(_POSTGRES)
