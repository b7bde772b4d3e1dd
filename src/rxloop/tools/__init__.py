"""What a model may call: functions, `think_aloud`, questions, answers, client tools, files, skills, MCP (`mcp/`)."""

from rxloop.tools.agent_tools import AgentTools, AnyTool, nearest
from rxloop.tools.function import FunctionTool, ToolOptions, as_tool, tool
from rxloop.tools.output import FINAL_ANSWER, FinalAnswer
from rxloop.tools.result import ToolResult, encode_result
from rxloop.tools.think_aloud import ThinkAloud, Thoughts, think_aloud

__all__ = [
    "FINAL_ANSWER",
    "AgentTools",
    "AnyTool",
    "FinalAnswer",
    "FunctionTool",
    "ThinkAloud",
    "Thoughts",
    "ToolOptions",
    "ToolResult",
    "as_tool",
    "encode_result",
    "nearest",
    "think_aloud",
    "tool",
]
