"""The same work with langgraph: a graph of a model and its tools, streamed, without tracing and checkpoints."""

# Measured in an environment of its own, which the type checker does not see.
# pyright: reportMissingImports=false, reportUnknownParameterType=false, reportUnknownArgumentType=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

os.environ["LANGSMITH_TRACING"] = "false"

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Client:
    """An agent with one tool."""

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

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Its HTTP client is shared by the process and closed with it."""

    async def stream(self) -> dict[str, int]:
        """One answer, its text seen as it comes."""
        return await self._run("Tell me a story.", lambda text: None)

    async def tools(self) -> dict[str, int]:
        """A run of tool calls, until there is a text."""
        return await self._run("Count.", lambda text: None)

    async def hold(self, count: int, reached: Callable[[], None]) -> None:
        """An answer without an end; tells when that many pieces are there."""
        seen = 0

        def see(text: str) -> None:
            nonlocal seen
            seen += 1
            if seen == count:
                reached()

        await self._run("Tell me a story.", see)

    async def _run(self, prompt: str, see: Callable[[str], None]) -> dict[str, int]:
        characters = 0
        given = {"messages": [("user", prompt)]}
        async for chunk, about in self._graph.astream(given, {"recursion_limit": 10_000}, stream_mode="messages"):
            if about["langgraph_node"] == "model" and chunk.content:
                see(chunk.content)
                characters += len(chunk.content)
        return {"characters": characters}
