"""ReWOO: a plan of all tool calls, the calls, and an answer from their results."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from rxloop.errors import PlanRefused, StrategyError
from rxloop.pipeline.requests import Strategy, ToolDefinition
from rxloop.protocol.events import ToolCompleteEvent
from rxloop.strategies.engine import strategy
from rxloop.strategies.plan import Plan, parse_plan
from rxloop.strategies.replies import at_least
from rxloop.strategies.shared_stages import FINAL_RESPONSE, PROBLEM_RECEPTION
from rxloop.strategies.strategy_run import StrategyRun
from rxloop.thinking.stages import Stage, StrategyDefinition

STAGES = StrategyDefinition(
    name="rewoo",
    title="ReWOO",
    when="For several tool calls that can be planned ahead: two model calls in all, and the tools run side by side.",
    pattern="modular",
    traits={"external_tools"},
    stages=(
        replace(PROBLEM_RECEPTION, next="planning_phase"),
        Stage(
            name="planning_phase",
            next="tool_call_specification",
            description="Plan every step before acting",
            prompt="Plan every step that is needed before any of them is carried out.",
        ),
        Stage(
            name="tool_call_specification",
            next="working_phase",
            fields="planningPhase",
            description="Name every call with its inputs and dependencies",
            prompt='Write each step on a line as `Plan: why. #E1 = tool_name[{"argument": "value"}]`, numbered '
            "from #E1. Where a step needs the result of an earlier one, write its label, such as #E1, in "
            "place of the value.",
        ),
        Stage(
            name="working_phase",
            next="evidence_collection",
            fields="toolCalls|plannedActions",
            description="Run all planned calls, independent ones together",
            prompt="Run the planned calls as they are; those that do not depend on each other at the same time.",
        ),
        Stage(
            name="evidence_collection",
            next="solving_phase",
            description="Gather the results under their labels",
            prompt="Gather the results under their labels, in order, failures included.",
        ),
        Stage(
            name="solving_phase",
            next="final_response",
            description="Answer from the evidence only",
            prompt="Solve the problem from the plan and its evidence alone. Say so where the evidence is missing "
            "or in doubt.",
        ),
        FINAL_RESPONSE,
    ),
)


def rewoo(concurrency: int = 5, replans: int = 1) -> Strategy:
    """Plan all tool calls at once, make them, and answer from what they gave: two model calls, however many tools.

    For questions whose calls can be named beforehand. The calls run side by side as far as they do not need each
    other's results, which stand in the plan as `#E1`. After Xu et al., "ReWOO: Decoupling Reasoning from Observations
    for Efficient Augmented Language Models" (2023).

    Args:
        concurrency: The calls that may run at once.
        replans: How often the model may correct a plan that cannot be carried out, at a further model call each.
    """
    at_least(1, concurrency=concurrency)
    at_least(0, replans=replans)

    @strategy(stages=STAGES)
    async def rewoo(run: StrategyRun) -> str:
        tools = {tool.name: tool for tool in await run.tools()}
        if not tools:
            raise StrategyError("rewoo plans tool calls, and the agent has no tools: Agent(..., tools=[...])")
        run.stage("problem_reception")
        prompt = run.stage("planning_phase", "tool_call_specification")
        plan = await _plan(run, f"{prompt}\nThe tools:\n{_described(tools.values())}", list(tools), replans)
        planned = {
            step.id: run.thought(
                step.why or f"Call {'a tool' if tools[step.tool].hidden else step.tool}.",
                type="planning",
                id=f"rewoo/plan/{step.id}",
            )
            for step in plan
        }
        run.stage("working_phase")
        answers = await _carry_out(run, plan, tools, concurrency)
        run.stage("evidence_collection")
        for label, thought in planned.items():
            answer = answers[label]
            # Thoughts are for clients; what hidden tools find out is not.
            if answer.public:
                run.thought(answer.content, type="observation", related_to=thought, tool_call_id=answer.call.id)
        evidence = {label: _value(answer) for label, answer in answers.items()}
        return await run.conclude(f"{run.stage('solving_phase', 'final_response')}\n\n{plan.with_evidence(evidence)}")

    return rewoo


async def _plan(run: StrategyRun, prompt: str, tools: Sequence[str], replans: int) -> Plan:
    while True:
        reply = await run.ask(prompt, branch="rewoo/plan")
        try:
            return parse_plan(reply.text, tools)
        except PlanRefused as error:
            if replans == 0:
                raise
            replans -= 1
            prompt = f"This plan cannot be carried out: {error}. Write the whole plan again."


async def _carry_out(
    run: StrategyRun, plan: Plan, tools: Mapping[str, ToolDefinition], concurrency: int
) -> dict[str, ToolCompleteEvent]:
    """Make the calls of a plan, and return the answers by step."""
    answers: dict[str, ToolCompleteEvent] = {}
    known = {step.id: asyncio.Event() for step in plan}
    places = asyncio.Semaphore(concurrency)

    async def carry_out(id: str) -> None:
        step = plan[id]
        for need in step.needs:
            await known[need].wait()
        given = plan.arguments(id, {need: _value(answers[need]) for need in step.needs})
        arguments = _arguments(given, tools[step.tool])
        async with places:
            answers[id] = await run.call(step.tool, arguments, branch=f"rewoo/{id}")
        known[id].set()

    await run.gather(*(carry_out(step.id) for step in plan))
    return answers


def _value(answer: ToolCompleteEvent) -> Any:
    """Return what a call has found; the error text of one that failed."""
    return answer.result if answer.success else answer.content


def _arguments(given: Any, tool: ToolDefinition) -> dict[str, Any]:
    """Give arguments their names: an unnamed one is the first that the tool requires."""
    if isinstance(given, dict):
        return cast("dict[str, Any]", given)
    properties: dict[str, dict[str, Any]] = tool.parameters.get("properties") or {}
    names: list[str] = [*(tool.parameters.get("required") or ()), *properties]
    if not names:
        return {}
    if isinstance(given, str) and properties.get(names[0], {}).get("type") not in (None, "string"):
        # What is not JSON is passed on as it is: the tool refuses it, and says what it wants.
        with contextlib.suppress(json.JSONDecodeError):
            given = json.loads(given)
    return {names[0]: given}


def _described(tools: Iterable[ToolDefinition]) -> str:
    return "\n".join(
        f"{tool.name}({json.dumps(tool.parameters.get('properties') or {})}): {tool.description}" for tool in tools
    )
