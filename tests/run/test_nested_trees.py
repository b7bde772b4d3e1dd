"""Random trees of agents that answer, fail, ask and are cut off: the grammar holds, and every nested run ends first."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from rxloop import Agent, MemoryEventLog, RunContext, Usage, tool
from rxloop.pipeline.requests import ModelRequest
from rxloop.testing import ScriptedModel, call, turn, virtual_time
from support.nested_agents import check, check_attempts, used
from support.runs import collect, outcome

Deed = Literal["look", "ask", "fail", "hang", "refuse"]


@dataclass
class Node:
    """An agent: what it does itself, the agents that it calls in the same message, and how long they may take."""

    deed: Deed
    timeout: float | None
    children: list[Node]


NODES = st.recursive(
    st.builds(Node, st.sampled_from(["look", "ask", "fail", "hang", "refuse"]), st.none(), st.just([])),
    lambda below: st.builds(
        Node,
        st.sampled_from(["look", "ask", "refuse"]),
        st.sampled_from([None, 1.0, 20.0]),
        st.lists(below, min_size=1, max_size=3),
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
    """The agent of a node."""
    names = [f"{name}_{place}" for place in range(len(node.children))]
    below = [
        agent(child, each).as_tool(timeout=child.timeout) for child, each in zip(node.children, names, strict=True)
    ]
    calls = [*(call(each, prompt="Go.") for each in names), call(node.deed)]

    def answer(request: ModelRequest) -> Any:
        usage = Usage(input_tokens=1)
        if node.deed == "fail":
            raise ValueError("a bug")
        first = all(message.role != "assistant" for message in request.messages)
        return turn(calls=calls, usage=usage) if first else turn("Done.", usage=usage)

    model = ScriptedModel(*[answer] * 9)
    return Agent(model, name=name, tools=[*below, look, ask, hang, refuse], thoughts=False, log=log)


async def carried_out(tree: Node, cancel_after: float | None) -> None:
    log = MemoryEventLog()
    run = agent(tree, "a", log).run("Go.").start()
    if cancel_after is not None:
        asyncio.get_running_loop().call_later(cancel_after, run.cancel)
    events = await collect(run)
    check(events)
    result = await outcome(run)
    assert result.usage == used(events)
    for _ in range(9):
        if result.state != "input-required":
            break
        assert result.pending
        # One answer at a time, so that the others stay as they are.
        question = result.pending[0]
        again = agent(tree, "a", log).resume(run.task_id, inputs={question.input_id: True})
        if cancel_after is not None:
            again.start()
            asyncio.get_running_loop().call_later(cancel_after, again.cancel)
        await collect(again)
        result = await outcome(again)
        assert question.input_id not in {each.input_id for each in result.pending}
    assert result.state in ("completed", "canceled", "failed")
    whole = await log.read(run.task_id)
    check_attempts(whole)
    assert result.usage == used(whole)


def hangs(node: Node) -> bool:
    return node.deed == "hang" or any(map(hangs, node.children))


@settings(max_examples=30, deadline=None)
@given(tree=NODES, cancel_after=st.sampled_from([None, 0.0, 0.3, 0.7, 5.0]))
def test_every_tree_of_agents_keeps_the_grammar(tree: Node, cancel_after: float | None) -> None:  # L10, L117
    with virtual_time() as time:
        time.run(carried_out(tree, 60.0 if cancel_after is None and hangs(tree) else cancel_after))
