"""What a model may call: functions, `think_aloud`, questions, answers, client tools, files, skills, MCP (`mcp/`)."""

from rxloop.tools._result import ToolResult, encode_result
from rxloop.tools.final_answer import FINAL_ANSWER, FinalAnswer
from rxloop.tools.function import FunctionTool, as_tool, tool
from rxloop.tools.think_aloud import ThinkAloud, Thoughts, think_aloud
from rxloop.tools.toolset import AnyTool, Toolset, nearest

__all__ = [
    "FINAL_ANSWER",
    "AnyTool",
    "FinalAnswer",
    "FunctionTool",
    "ThinkAloud",
    "Thoughts",
    "ToolResult",
    "Toolset",
    "as_tool",
    "encode_result",
    "nearest",
    "think_aloud",
    "tool",
]
