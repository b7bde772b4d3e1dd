"""An agent that plans its work as a tree of goals, and a checklist that follows it live.

    python examples/goals.py

The model is scripted, so the example runs offline. A compressor removes old messages, but the goals stay in each
request. The program closes a goal too: the tool that runs the tests marks its goal as done when they pass. The user
adds a goal while the agent is working.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import reactivex.operators as rx

from rxloop import Agent, ModelRequest, RunContext, SlidingWindowCompressor, op, tool
from rxloop.testing import ScriptedCall, ScriptedModel, call
from rxloop.tools import Goal, GoalChange, GoalsUpdatedEvent, goal_tool, update_goals

MARKS = {"pending": "[ ]", "active": "[>]", "done": "[x]", "dropped": "[-]"}


@tool
async def read_file(path: str) -> str:
    """Read a file."""
    return f"# {path}\n" + "def handle(request): ...\n" * 200


@tool
async def run_tests(ctx: RunContext[Any]) -> str:
    """Run the tests."""
    update_goals(ctx, {"id": "tests", "status": "done"})
    return "42 passed"


def checklist(goals: Sequence[Goal], parent: str | None = None, indent: str = "  ") -> str:
    """Render goals for a person."""
    lines = ""
    for goal in goals:
        if goal.parent == parent:
            lines += f"{indent}{MARKS[goal.status]} {goal.title}\n{checklist(goals, goal.id, indent + '    ')}"
    return lines


def set_status(**statuses: str) -> ScriptedCall:
    return call("update_goals", goals=[{"id": name, "status": status} for name, status in statuses.items()])


def answer(request: ModelRequest) -> str:
    """Read the goals at the end of the request."""
    [goals] = [message.text for message in request.tail]
    return "The endpoint is ready." if goals.count("(done)") == 1 else f"Not ready:\n{goals}"


PLAN = [
    {"id": "endpoint", "title": "Add an endpoint for refunds", "status": "active"},
    {"id": "read", "title": "Read the existing endpoints", "parent": "endpoint"},
    {"id": "code", "title": "Write the endpoint", "parent": "endpoint", "depends_on": ["read"]},
    {"id": "tests", "title": "Pass the tests", "parent": "endpoint", "depends_on": ["code"]},
]
ADDED: GoalChange = {"id": "changelog", "title": "Describe the endpoint in the changelog", "parent": "endpoint"}


async def main() -> None:
    model = ScriptedModel(
        call("update_goals", goals=PLAN),
        *(call("read_file", path=f"api/{name}.py") for name in ("orders", "payments", "users")),
        set_status(read="done", code="active"),
        set_status(code="done", tests="active"),
        call("run_tests"),
        set_status(changelog="done", endpoint="done"),
        answer,
    )
    loop = op.standard(before_model=[op.goals(), op.compress(SlidingWindowCompressor(max_tokens=4_000))])
    run = Agent(model, tools=[goal_tool, read_file, run_tests], loop=loop).run("Add an endpoint for refunds.")
    first = run.pipe(op.of_type(GoalsUpdatedEvent), rx.take(1), rx.map(lambda _: run.update_goals(ADDED)))
    first.subscribe()
    async for event in run.pipe(op.of_type(GoalsUpdatedEvent)):
        print(f"Step {event.step}:" if event.step else "The user adds a goal:", checklist(event.goals), sep="\n")
    print((await run).output)


if __name__ == "__main__":
    asyncio.run(main())
