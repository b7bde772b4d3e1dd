"""Event logs and artifact stores: in memory, SQLite, Postgres and folders. `EventLog` itself is in `pipeline/`."""

from typing import TYPE_CHECKING

from rxloop._lazy import import_later

__all__: list[str]
import_later(__name__)

# Imported lazily, because most programs do not use SQLite and its threads.
if TYPE_CHECKING:
    from rxloop.storage.folder_artifacts import FolderArtifacts as FolderArtifacts
    from rxloop.storage.log_urls import open_log as open_log
    from rxloop.storage.memory import MemoryEventLog as MemoryEventLog
    from rxloop.storage.memory_artifacts import MemoryArtifacts as MemoryArtifacts
    from rxloop.storage.postgres_artifacts import PostgresArtifacts as PostgresArtifacts
    from rxloop.storage.postgres_log import PostgresEventLog as PostgresEventLog
    from rxloop.storage.sqlite_artifacts import SqliteArtifacts as SqliteArtifacts
    from rxloop.storage.sqlite_log import SqliteEventLog as SqliteEventLog
