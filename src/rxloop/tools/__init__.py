"""Tools: functions that a model can call, the sets that an agent offers, and the tool by which a model thinks aloud."""

from rxloop.tools._result import encode_result, readable
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
    "Toolset",
    "as_tool",
    "encode_result",
    "nearest",
    "readable",
    "think_aloud",
    "tool",
]
