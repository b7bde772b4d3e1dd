"""Event logs: where the durable events of runs are kept."""

from typing import TYPE_CHECKING, Any

from rxloop.eventlog.memory import MemoryEventLog

if TYPE_CHECKING:
    from rxloop.eventlog.sqlite import SqliteEventLog

__all__ = ["MemoryEventLog", "SqliteEventLog"]


def __getattr__(name: str) -> Any:
    # Not before it is asked for: most programs that import rxloop have no use for SQLite and its threads.
    if name == "SqliteEventLog":
        from rxloop.eventlog.sqlite import SqliteEventLog

        return SqliteEventLog
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
