"""Runtime for running many agents by id, with workers and job queues."""

from typing import TYPE_CHECKING

from rxloop._lazy import import_later

__all__: list[str]
import_later(__name__)

# Public names, read by both type checkers and `import_later`.
if TYPE_CHECKING:
    from rxloop.pipeline.interfaces import Queue as Queue
    from rxloop.runtime.postgres_queue import PostgresQueue as PostgresQueue
    from rxloop.runtime.runtime import Runtime as Runtime
    from rxloop.runtime.validation import ForkChanges as ForkChanges
    from rxloop.runtime.validation import StartOptions as StartOptions
    from rxloop.runtime.worker import Periodic as Periodic
    from rxloop.runtime.worker import work as work
