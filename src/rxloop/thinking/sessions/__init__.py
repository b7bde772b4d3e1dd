"""Sequential thinking: thoughts in sessions, with revisions and branches."""

from rxloop.thinking.sessions.result import ThoughtResult
from rxloop.thinking.sessions.session import BranchOrigin, Placed, Rules, Session
from rxloop.thinking.sessions.sessions import ThinkingSessions
from rxloop.thinking.sessions.thought import SequentialThought, ThoughtInput, ThoughtWarning

__all__ = [
    "BranchOrigin",
    "Placed",
    "Rules",
    "SequentialThought",
    "Session",
    "ThinkingSessions",
    "ThoughtInput",
    "ThoughtResult",
    "ThoughtWarning",
]
