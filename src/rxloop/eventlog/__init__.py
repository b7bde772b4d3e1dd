"""Event logs: where the durable events of runs are kept."""

from rxloop.eventlog.memory import MemoryEventLog

__all__ = ["MemoryEventLog"]
