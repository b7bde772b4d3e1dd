"""ReAct strategy with alternating reasoning, tool calls and observations."""

from __future__ import annotations

from rxloop.pipeline.requests import Strategy
from rxloop.strategies.engine import strategy
from rxloop.strategies.shared_stages import FINAL_RESPONSE, PROBLEM_RECEPTION, SOLUTION_FORMULATION, link_stages
from rxloop.strategies.strategy_run import Reply, StrategyRun
from rxloop.support.misuse import check_minimum
from rxloop.thinking.stages import IterationPoint, Stage, StrategyDefinition

STAGES = StrategyDefinition(
    name="react",
    title="ReAct",
    when="For questions that need tools, where each result decides what to do next.",
    pattern="cyclic",
    features={"external_tools", "backtracking", "revision", "verification", "dynamic_thought_count"},
    stages=link_stages(
        PROBLEM_RECEPTION,
        Stage(
            name="initial_reasoning",
            description="Find out what is not yet known",
            prompt="Say what you know already, and what you must find out.",
        ),
        Stage(
            name="action_planning",
            description="Pick one concrete action",
            prompt="Choose the one action that tells you most, and say what you expect of it.",
        ),
        Stage(
            name="action_execution",
            fields="action|plannedActions",
            description="Run the action outside",
            prompt="Call the tool for the action that you chose.",
        ),
        Stage(
            name="observation_reception",
            fields="observation|actionResults",
            description="Take in what the action returned",
            prompt="Write down what the action returned, without interpreting it. An error is an observation, too.",
        ),
        Stage(
            name="reasoning_update",
            description="Fold the observation into the reasoning",
            prompt="Say what the observation changes: what you now know, and what has proved wrong.",
        ),
        Stage(
            name="evaluation_checkpoint",
            next=("action_planning", "solution_formulation"),
            description="Choose: act again or answer",
            prompt="Decide whether you know enough to answer, or must act again. Do not repeat an action that "
            "told you nothing.",
        ),
        SOLUTION_FORMULATION,
        FINAL_RESPONSE,
    ),
    iteration_point=IterationPoint(stage="evaluation_checkpoint", back_to="action_planning"),
)

_CYCLE = (
    "Work in cycles. In each: say in a sentence or two what you know and what you must find out, then call the tool "
    "that tells you most; its result comes back to you. Do not repeat a call that told you nothing. When you know "
    "enough, call no tool and write the answer alone."
)
_ENOUGH = "You can call no more tools. Answer from what you have found, and say what could not be found."


def react(max_cycles: int = 8) -> Strategy:
    """Reason, call tools and observe in cycles, until the model can answer.

    Makes one model call per cycle and one more.

    For questions whose next step depends on the previous result. After Yao et al., "ReAct: Synergizing Reasoning and
    Acting in Language Models" (2022).

    Args:
        max_cycles: Maximum number of rounds of tool calls. The model must then answer.
    """
    check_minimum(1, max_cycles=max_cycles)

    @strategy(stages=STAGES)
    async def react(run: StrategyRun) -> str:
        previous_id: str | None = None

        def plan(reply: Reply) -> None:
            # Called for each complete message before tool execution.
            nonlocal previous_id
            if reply.calls:
                run.stage("action_planning")
                names = ", ".join(call.name for call in reply.calls if not call.hidden)
                plan_id = reply.text.strip() or f"Call {names or 'a tool'}"
                previous_id = run.thought(plan_id, type="planning", related_to=previous_id, reply=reply)
                run.stage("action_execution")

        run.stage("problem_reception", "initial_reasoning")
        prompt: str | None = _CYCLE
        for _ in range(max_cycles):
            reply = await run.ask(prompt, tools=True, max_calls=1, on_message=plan)
            if not reply.calls:
                break
            prompt = None
            plan_id = previous_id
            run.stage("observation_reception")
            # Results of hidden tools must not appear in public thoughts.
            for result in sorted(
                (answer for answer in reply.results if answer.public), key=lambda answer: answer.index
            ):
                previous_id = run.thought(
                    result.content, type="observation", related_to=plan_id, reply=reply, tool_call_id=result.call.id
                )
            run.stage("reasoning_update", "evaluation_checkpoint")
        else:
            run.stage("solution_formulation", "final_response")
            return await run.conclude(_ENOUGH)
        if previous_id is None:
            # The stages contain no path without a cycle, so treat the answer as the action.
            run.stage("action_planning", "action_execution", "observation_reception", "reasoning_update")
            run.stage("evaluation_checkpoint")
        run.stage("solution_formulation", "final_response")
        return reply.text

    return react
