"""Agent of LangGraph with a SQLite checkpointer.

Modes: `` (each effect in a task, as recommended) and `key` (the bank also receives a key). Resumed as in
https://docs.langchain.com/oss/python/langgraph/durable-execution: the same thread id, with None as the input. The page
also recommends to wrap effects in tasks, and `durability="sync"` is its most durable mode.
"""

# Measured in a separate environment, which is unknown to the type checker.
# pyright: reportMissingImports=false, reportUnknownParameterType=false, reportUnknownArgumentType=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["LANGSMITH_TRACING"] = "false"

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.func import task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from worker import PROMPT, Job, call_bank


async def run(job: Job, ready: Callable[[], None]) -> str:
    key = job.run if job.mode == "key" else None

    @task
    async def call(name: str) -> str:
        return await call_bank(job, name, key)

    @tool
    async def lookup_order(order: str) -> str:
        """Look up an order."""
        return await call("lookup_order")

    @tool
    async def refund(order: str, amount: int) -> str:
        """Refund an order."""
        return await call("refund")

    @tool
    async def write_note(order: str, text: str) -> str:
        """Write a note about an order."""
        return await call("write_note")

    tools = [lookup_order, refund, write_note]
    model: Any = ChatOpenAI(model="bench", base_url=job.url, api_key="none", max_retries=0).bind_tools(tools)

    async def think(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    builder: Any = StateGraph(MessagesState)
    builder.add_node("model", think)
    builder.add_node("tools", ToolNode(tools))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    async with AsyncSqliteSaver.from_conn_string(str(Path(job.folder) / "checkpoints.db")) as saver:
        graph: Any = builder.compile(checkpointer=saver)
        config = {"configurable": {"thread_id": job.run}}
        recorded = job.resume and (await graph.aget_state(config)).created_at is not None
        ready()
        state = await graph.ainvoke(None if recorded else {"messages": [("user", PROMPT)]}, config, durability="sync")
        return state["messages"][-1].content
