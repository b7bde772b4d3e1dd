"""Scratchpad strategy with recorded intermediate variables."""

from __future__ import annotations

from dataclasses import replace

from rxloop.pipeline.requests import Strategy
from rxloop.strategies.engine import strategy
from rxloop.strategies.replies import find_word
from rxloop.strategies.shared_stages import CONTINUATION_DECISION, FINAL_RESPONSE, PROBLEM_RECEPTION, link_stages
from rxloop.strategies.strategy_run import StrategyRun
from rxloop.support.misuse import check_minimum
from rxloop.thinking.stages import IterationPoint, Stage, StrategyDefinition

STAGES = StrategyDefinition(
    name="scratchpad",
    title="Scratchpad",
    when="For calculations and simulations in which intermediate values must not get lost.",
    pattern="iterative",
    features={"backtracking", "revision", "dynamic_thought_count"},
    stages=link_stages(
        PROBLEM_RECEPTION,
        Stage(
            name="scratchpad_initialization",
            description="Set up variables and their start values",
            prompt="Name the variables that the calculation needs, with their start values.",
        ),
        Stage(
            name="iterative_calculation",
            fields="stateVariables",
            description="Do one step of the calculation",
            prompt="Do the next step of the calculation, and only that one.",
        ),
        Stage(
            name="state_tracking",
            fields="stateVariables",
            description="Write down the new values",
            prompt="Write down the value of every variable after this step.",
        ),
        replace(CONTINUATION_DECISION, next=("iterative_calculation", "result_extraction")),
        Stage(
            name="result_extraction",
            description="Read the result out of the state",
            prompt="Read the result out of the variables, with its unit.",
        ),
        FINAL_RESPONSE,
    ),
    iteration_point=IterationPoint(stage="continuation_decision", back_to="iterative_calculation"),
)

_FORM = "End with a line `Done: yes` if the values hold the result, or `Done: no` if more steps are needed."


def scratchpad(max_steps: int = 10) -> Strategy:
    """Calculate step by step and record the values after each step.

    Makes one model call per step and one for the answer.

    For calculations and other problems with a changing state. After Nye et al., "Show Your Work: Scratchpads for
    Intermediate Computation with Language Models" (2021).

    Args:
        max_steps: Maximum number of steps. The answer is then derived from the current values.
    """
    check_minimum(1, max_steps=max_steps)

    @strategy(stages=STAGES)
    async def scratchpad(run: StrategyRun) -> str:
        run.stage("problem_reception")
        prompt = f"{run.stage('scratchpad_initialization')}\n"
        previous_id: str | None = None
        for _ in range(max_steps):
            prompt += run.stage("iterative_calculation", "state_tracking")
            reply = await run.ask(f"{prompt}\n{_FORM}")
            previous_id = run.thought(reply.text, related_to=previous_id, reply=reply)
            run.stage("continuation_decision")
            if find_word(reply.text, "done") != "no":
                break
            prompt = ""
        return await run.conclude(run.stage("result_extraction", "final_response"))

    return scratchpad
