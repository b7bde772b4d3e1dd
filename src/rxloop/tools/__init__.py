"""Types of tools and their options. Use `rxloop.tool` to create tools from functions."""

from typing import TYPE_CHECKING

from rxloop._lazy import import_later

__all__: list[str]
import_later(__name__)

# Public names of the package, read by type checkers and by `import_later`.
if TYPE_CHECKING:
    from rxloop.protocol.tool_events import Goal as Goal
    from rxloop.protocol.tool_events import GoalChange as GoalChange
    from rxloop.protocol.tool_events import GoalsUpdatedEvent as GoalsUpdatedEvent
    from rxloop.tools.agent_tools import AnyTool as AnyTool
    from rxloop.tools.client_tool import ClientTool as ClientTool
    from rxloop.tools.function import FunctionTool as FunctionTool
    from rxloop.tools.function import ToolOptions as ToolOptions
    from rxloop.tools.goals import goal_tool as goal_tool
    from rxloop.tools.goals import update_goals as update_goals
    from rxloop.tools.redaction import redact as redact
