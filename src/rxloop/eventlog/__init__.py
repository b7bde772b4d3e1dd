"""Where the durable events of runs and thinking sessions are kept: in memory, in SQLite."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rxloop.eventlog.memory import MemoryEventLog

if TYPE_CHECKING:
    from rxloop.eventlog.sqlite import SqliteEventLog
    from rxloop.eventlog.sqlite_sessions import SqliteSessionStore

__all__ = ["MemoryEventLog", "SqliteEventLog", "SqliteSessionStore"]

# Not before they are asked for: most programs that import rxloop have no use for SQLite and its threads.
_LATER = {"SqliteEventLog": "rxloop.eventlog.sqlite", "SqliteSessionStore": "rxloop.eventlog.sqlite_sessions"}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)
