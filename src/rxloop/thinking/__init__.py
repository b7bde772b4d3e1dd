"""Data structures for sequential thinking and staged strategies, usable without a model.

`ThinkingSessions` holds sessions of sequential thoughts; `StageManager` walks through the stages of a strategy.
"""

from typing import TYPE_CHECKING

from rxloop._lazy import import_later

__all__: list[str]
import_later(__name__)

# Public names of the package, read by type checkers and by `import_later`.
if TYPE_CHECKING:
    from rxloop.thinking.sessions import ThinkingSessions as ThinkingSessions
    from rxloop.thinking.sessions.result import ThoughtResult as ThoughtResult
    from rxloop.thinking.sessions.session import Session as Session
    from rxloop.thinking.sessions.thought import SequentialThought as SequentialThought
    from rxloop.thinking.sessions.thought import ThoughtInput as ThoughtInput
    from rxloop.thinking.stages import Stage as Stage
    from rxloop.thinking.stages import StrategyDefinition as StrategyDefinition
    from rxloop.thinking.stages.stage_manager import StageManager as StageManager
