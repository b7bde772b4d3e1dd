"""Long-term memory of the owners of runs: notes and episodes, computed from the runs in an event log."""

from typing import TYPE_CHECKING

from rxloop._lazy import import_later

__all__: list[str]
import_later(__name__)

# Public names of the package, read by type checkers and by `import_later`.
if TYPE_CHECKING:
    from rxloop.memory.experience import Experience as Experience
    from rxloop.memory.experience import Lesson as Lesson
    from rxloop.memory.memory import Memory as Memory
    from rxloop.memory.notes import ImportedMessage as ImportedMessage
    from rxloop.memory.notes import Note as Note
    from rxloop.memory.tool_history import RunCalls as RunCalls
    from rxloop.memory.tool_history import ToolHistory as ToolHistory
    from rxloop.memory.tool_history import ToolStats as ToolStats
    from rxloop.protocol.tool_events import MemoryForgottenEvent as MemoryForgottenEvent
    from rxloop.protocol.tool_events import MemoryNotedEvent as MemoryNotedEvent
    from rxloop.protocol.tool_events import MemoryRecalledEvent as MemoryRecalledEvent
    from rxloop.protocol.tool_events import NoteKind as NoteKind
    from rxloop.protocol.tool_events import NoteOrigin as NoteOrigin
