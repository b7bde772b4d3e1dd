"""Where the durable events of runs, their artifacts and thinking sessions are kept: in memory, in SQLite, in files."""

from typing import TYPE_CHECKING

from rxloop._lazy import import_later

__all__: list[str]
import_later(__name__)

# Not before they are asked for: most programs that import rxloop have no use for SQLite and its threads.
if TYPE_CHECKING:
    from rxloop.eventlog.folder_artifacts import FolderArtifacts as FolderArtifacts
    from rxloop.eventlog.memory import MemoryEventLog as MemoryEventLog
    from rxloop.eventlog.memory_artifacts import MemoryArtifacts as MemoryArtifacts
    from rxloop.eventlog.opening import open_log as open_log
    from rxloop.eventlog.postgres import PostgresEventLog as PostgresEventLog
    from rxloop.eventlog.postgres_artifacts import PostgresArtifacts as PostgresArtifacts
    from rxloop.eventlog.postgres_sessions import PostgresSessionStore as PostgresSessionStore
    from rxloop.eventlog.sqlite import SqliteEventLog as SqliteEventLog
    from rxloop.eventlog.sqlite_artifacts import SqliteArtifacts as SqliteArtifacts
    from rxloop.eventlog.sqlite_sessions import SqliteSessionStore as SqliteSessionStore
