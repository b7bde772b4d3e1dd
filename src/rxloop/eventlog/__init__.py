"""Where the durable events of runs, their artifacts and thinking sessions are kept: in memory, in SQLite, in files."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rxloop.eventlog.memory import MemoryEventLog

if TYPE_CHECKING:
    from rxloop.eventlog.folder_artifacts import FolderArtifacts
    from rxloop.eventlog.memory_artifacts import MemoryArtifacts
    from rxloop.eventlog.sqlite import SqliteEventLog
    from rxloop.eventlog.sqlite_artifacts import SqliteArtifacts
    from rxloop.eventlog.sqlite_sessions import SqliteSessionStore

__all__ = [
    "FolderArtifacts",
    "MemoryArtifacts",
    "MemoryEventLog",
    "SqliteArtifacts",
    "SqliteEventLog",
    "SqliteSessionStore",
]

# Not before they are asked for: most programs that import rxloop have no use for SQLite and its threads.
_LATER = {
    "FolderArtifacts": "rxloop.eventlog.folder_artifacts",
    "MemoryArtifacts": "rxloop.eventlog.memory_artifacts",
    "SqliteArtifacts": "rxloop.eventlog.sqlite_artifacts",
    "SqliteEventLog": "rxloop.eventlog.sqlite",
    "SqliteSessionStore": "rxloop.eventlog.sqlite_sessions",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)
