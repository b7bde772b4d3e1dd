"""ReWOO strategy: plan all tool calls, execute them, then answer from the results."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from rxloop.errors import PlanRefused, StrategyError
from rxloop.pipeline.requests import Strategy, ToolDefinition
from rxloop.protocol.events import ToolCompleteEvent
from rxloop.strategies.engine import strategy
from rxloop.strategies.plan import Plan, parse_plan
from rxloop.strategies.shared_stages import FINAL_RESPONSE, PROBLEM_RECEPTION, link_stages
from rxloop.strategies.strategy_run import StrategyRun
from rxloop.support.misuse import check_minimum
from rxloop.thinking.stages import Stage, StrategyDefinition

STAGES = StrategyDefinition(
    name="rewoo",
    title="ReWOO",
    when="For several tool calls that can be planned ahead: two model calls in all, and the tools run side by side.",
    pattern="modular",
    features={"external_tools"},
    stages=link_stages(
        PROBLEM_RECEPTION,
        Stage(
            name="planning_phase",
            description="Plan every step before acting",
            prompt="Plan every step that is needed before any of them is carried out.",
        ),
        Stage(
            name="tool_call_specification",
            fields="planningPhase",
            description="Name every call with its inputs and dependencies",
            prompt='Write each step on a line as `Plan: why. #E1 = tool_name[{"argument": "value"}]`, numbered '
            "from #E1. Where a step needs the result of an earlier one, write its label, such as #E1, in "
            "place of the value.",
        ),
        Stage(
            name="working_phase",
            fields="toolCalls|plannedActions",
            description="Run all planned calls, independent ones together",
            prompt="Run the planned calls as they are; those that do not depend on each other at the same time.",
        ),
        Stage(
            name="evidence_collection",
            description="Gather the results under their labels",
            prompt="Gather the results under their labels, in order, failures included.",
        ),
        Stage(
            name="solving_phase",
            description="Answer from the evidence only",
            prompt="Solve the problem from the plan and its evidence alone. Say so where the evidence is missing "
            "or in doubt.",
        ),
        FINAL_RESPONSE,
    ),
)


def rewoo(concurrency: int = 5, replans: int = 1) -> Strategy:
    """Plan all tool calls, execute them, and answer from the results. Makes two model calls for any number of tools.

    For questions whose calls can be planned in advance. Calls that do not depend on each other run concurrently. The
    plan refers to results as `#E1`. After Xu et al., "ReWOO: Decoupling Reasoning from Observations for Efficient
    Augmented Language Models" (2023).

    Args:
        concurrency: Maximum number of concurrent calls.
        replans: Maximum number of times that the model may correct an invalid plan. Each takes a model call.
    """
    check_minimum(1, concurrency=concurrency)
    check_minimum(0, replans=replans)

    @strategy(stages=STAGES)
    async def rewoo(run: StrategyRun) -> str:
        tools = {tool.name: tool for tool in await run.tools()}
        if not tools:
            raise StrategyError("rewoo requires an agent with tools; pass Agent(..., tools=[...])")
        run.stage("problem_reception")
        prompt = run.stage("planning_phase", "tool_call_specification")
        plan = await _plan(run, f"{prompt}\nThe tools:\n{_describe_tools(tools.values())}", list(tools), replans)
        planned = {
            step.id: run.thought(
                step.why or f"Call {'a tool' if tools[step.tool].hidden else step.tool}.",
                type="planning",
                id=f"rewoo/plan/{step.id}",
            )
            for step in plan
        }
        run.stage("working_phase")
        answers = await _execute(run, plan, tools, concurrency)
        run.stage("evidence_collection")
        for label, thought in planned.items():
            answer = answers[label]
            # Results of hidden tools must not appear in public thoughts.
            if answer.public:
                run.thought(answer.content, type="observation", related_to=thought, tool_call_id=answer.call.id)
        evidence = {label: _value(answer) for label, answer in answers.items()}
        return await run.conclude(
            f"{run.stage('solving_phase', 'final_response')}\n\n{plan.format_with_evidence(evidence)}"
        )

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


async def _execute(
    run: StrategyRun, plan: Plan, tools: Mapping[str, ToolDefinition], concurrency: int
) -> dict[str, ToolCompleteEvent]:
    """Execute all planned calls and return results by step id."""
    answers: dict[str, ToolCompleteEvent] = {}
    finished = {step.id: asyncio.Event() for step in plan}
    semaphore = asyncio.Semaphore(concurrency)

    async def execute_step(id: str) -> None:
        step = plan[id]
        for need in step.needs:
            await finished[need].wait()
        resolved = plan.arguments(id, {need: _value(answers[need]) for need in step.needs})
        arguments = _arguments(resolved, tools[step.tool])
        async with semaphore:
            answers[id] = await run.call(step.tool, arguments, branch=f"rewoo/{id}")
        finished[id].set()

    await run.gather(*(execute_step(step.id) for step in plan))
    return answers


def _value(answer: ToolCompleteEvent) -> Any:
    """Return the call result, or the error text for failed calls."""
    return answer.result if answer.success else answer.content


def _arguments(resolved: Any, tool: ToolDefinition) -> dict[str, Any]:
    """Return the arguments by name. An unnamed argument is passed as the first required parameter."""
    if isinstance(resolved, dict):
        return cast("dict[str, Any]", resolved)
    properties: dict[str, dict[str, Any]] = tool.parameters.get("properties") or {}
    names: list[str] = [*(tool.parameters.get("required") or ()), *properties]
    if not names:
        return {}
    if isinstance(resolved, str) and properties.get(names[0], {}).get("type") not in (None, "string"):
        # Invalid JSON is passed through unchanged, so that the tool can report a helpful error.
        with contextlib.suppress(json.JSONDecodeError):
            resolved = json.loads(resolved)
    return {names[0]: resolved}


def _describe_tools(tools: Iterable[ToolDefinition]) -> str:
    return "\n".join(
        f"{tool.name}({json.dumps(tool.parameters.get('properties') or {})}): {tool.description}" for tool in tools
    )
