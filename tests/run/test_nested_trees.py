"""Random agent trees."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from rxloop import Agent, MemoryEventLog, RunContext, Usage, tool
from rxloop.pipeline.requests import ModelRequest
from rxloop.testing import ScriptedModel, call, turn, virtual_time
from support.nested_agents import check_attempt, check_attempts, total_usage
from support.runs import collect, outcome

Action = Literal["look", "ask", "fail", "hang", "refuse"]


@dataclass
class Node:
    """Agent action, nested agents and timeout."""

    action: Action
    timeout: float | None
    children: list[Node]


NODES = st.recursive(
    st.builds(Node, st.sampled_from(["look", "ask", "fail", "hang", "refuse"]), st.none(), st.just([])),
    lambda subtrees: st.builds(
        Node,
        st.sampled_from(["look", "ask", "refuse"]),
        st.sampled_from([None, 1.0, 20.0]),
        st.lists(subtrees, min_size=1, max_size=3),
    ),
    max_leaves=6,
)


@tool(idempotent=True)
async def look() -> str:
    """Looks."""
    await asyncio.sleep(0.5)
    return "seen"


@tool
async def ask(ctx: RunContext[Any]) -> str:
    """Asks."""
    return f"{await ctx.ask('May I?')}"


@tool
async def hang() -> str:
    """Hangs."""
    await asyncio.Event().wait()
    return "never"


@tool
async def refuse() -> str:
    """Refuses."""
    raise ValueError("no")


def agent(node: Node, name: str, log: Any = None) -> Agent:
    """Create an agent for this node."""
    names = [f"{name}_{index}" for index in range(len(node.children))]
    subtrees = [
        agent(child, child_name).as_tool(timeout=child.timeout)
        for child, child_name in zip(node.children, names, strict=True)
    ]
    calls = [*(call(child_name, prompt="Go.") for child_name in names), call(node.action)]

    def answer(request: ModelRequest) -> Any:
        usage = Usage(input_tokens=1)
        if node.action == "fail":
            raise ValueError("a bug")
        first = all(message.role != "assistant" for message in request.messages)
        return turn(calls=calls, usage=usage) if first else turn("Done.", usage=usage)

    model = ScriptedModel(*[answer] * 9)
    return Agent(model, name=name, tools=[*subtrees, look, ask, hang, refuse], thoughts=False, log=log)


async def run_tree(tree: Node, cancel_after: float | None) -> None:
    log = MemoryEventLog()
    run = agent(tree, "a", log).run("Go.").start()
    if cancel_after is not None:
        asyncio.get_running_loop().call_later(cancel_after, run.cancel)
    events = await collect(run)
    check_attempt(events)
    result = await outcome(run)
    assert result.usage == total_usage(events)
    for _ in range(9):
        if result.state != "input-required":
            break
        assert result.pending
        # Answer one question per attempt, leaving others pending.
        question = result.pending[0]
        resumed = agent(tree, "a", log).resume(run.task_id, inputs={question.input_id: True})
        if cancel_after is not None:
            resumed.start()
            asyncio.get_running_loop().call_later(cancel_after, resumed.cancel)
        await collect(resumed)
        result = await outcome(resumed)
        assert question.input_id not in {other.input_id for other in result.pending}
    assert result.state in ("completed", "canceled", "failed")
    recorded = await log.read(run.task_id)
    check_attempts(recorded)
    assert result.usage == total_usage(recorded)


def has_hanging_node(node: Node) -> bool:
    return node.action == "hang" or any(map(has_hanging_node, node.children))


@settings(max_examples=30, deadline=None)
@given(tree=NODES, cancel_after=st.sampled_from([None, 0.0, 0.3, 0.7, 5.0]))
def test_events_of_any_tree_of_agents_follow_the_grammar(tree: Node, cancel_after: float | None) -> None:  # L10, L117
    with virtual_time() as time:
        time.run(run_tree(tree, 60.0 if cancel_after is None and has_hanging_node(tree) else cancel_after))
