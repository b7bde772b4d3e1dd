"""Workers: replicas that carry out what others start, and the queue that calls them."""

from typing import TYPE_CHECKING

from rxloop._lazy import import_later

__all__: list[str]
import_later(__name__)

# The list of the public names: type checkers read it, and `import_later` does.
if TYPE_CHECKING:
    from rxloop.pipeline.queues import Queue as Queue
    from rxloop.workers.periodic import Periodic as Periodic
    from rxloop.workers.postgres import PostgresQueue as PostgresQueue
    from rxloop.workers.work import work as work
