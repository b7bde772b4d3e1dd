"""Workloads with langgraph, without tracing and checkpoints."""

# Measured in a separate environment, which is unknown to the type checker.
# pyright: reportMissingImports=false, reportUnknownParameterType=false, reportUnknownArgumentType=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ["LANGSMITH_TRACING"] = "false"

from contenders.contender import Contender
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Client(Contender):
    """Agent with one tool, which uses the HTTP client of the process."""

    def __init__(self, url: str) -> None:
        model: Any = ChatOpenAI(model="bench", base_url=url, api_key="none", streaming=True).bind_tools([add])

        async def think(state: MessagesState) -> dict[str, Any]:
            return {"messages": [await model.ainvoke(state["messages"])]}

        graph: Any = StateGraph(MessagesState)
        graph.add_node("model", think)
        graph.add_node("tools", ToolNode([add]))
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", tools_condition)
        graph.add_edge("tools", "model")
        self._graph: Any = graph.compile()

    async def run(self, prompt: str, see: Callable[[str], None]) -> dict[str, int]:
        characters = 0
        given = {"messages": [("user", prompt)]}
        async for chunk, about in self._graph.astream(given, {"recursion_limit": 10_000}, stream_mode="messages"):
            if about["langgraph_node"] == "model" and chunk.content:
                see(chunk.content)
                characters += len(chunk.content)
        return {"characters": characters}
