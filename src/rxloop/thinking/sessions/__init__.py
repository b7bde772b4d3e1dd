"""Sequential thinking: thoughts in sessions, with revisions and branches."""

from rxloop.thinking.sessions.memory import MemorySessionStore
from rxloop.thinking.sessions.result import ThoughtResult, thought_id
from rxloop.thinking.sessions.rules import Rules
from rxloop.thinking.sessions.session import BranchOrigin, Placed, Session
from rxloop.thinking.sessions.sessions import ThinkingSessions
from rxloop.thinking.sessions.thought import SequentialThought, ThoughtInput, ThoughtWarning

__all__ = [
    "BranchOrigin",
    "MemorySessionStore",
    "Placed",
    "Rules",
    "SequentialThought",
    "Session",
    "ThinkingSessions",
    "ThoughtInput",
    "ThoughtResult",
    "ThoughtWarning",
    "thought_id",
]
