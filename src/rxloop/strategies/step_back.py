"""Step-back strategy: general principles before the specific case."""

from __future__ import annotations

from rxloop.pipeline.requests import Strategy
from rxloop.strategies.engine import strategy
from rxloop.strategies.shared_stages import FINAL_RESPONSE, PROBLEM_RECEPTION, link_stages
from rxloop.strategies.strategy_run import StrategyRun
from rxloop.thinking.stages import Stage, StrategyDefinition

STAGES = StrategyDefinition(
    name="step_back",
    title="Step-Back",
    when="For questions full of detail that a general law or principle decides, as in science and engineering.",
    pattern="hierarchical",
    features={"backtracking", "revision", "verification"},
    stages=link_stages(
        PROBLEM_RECEPTION,
        Stage(
            name="abstraction",
            description="Name the kind of problem",
            prompt="Step back from the details: of what general kind is this problem?",
        ),
        Stage(
            name="principle_identification",
            description="Name the principles that govern it",
            prompt="Name the principles, laws or facts that govern problems of this kind.",
        ),
        Stage(
            name="approach_selection",
            fields="generalPrinciple",
            description="Choose the general approach",
            prompt="Choose the approach that follows from these principles.",
        ),
        Stage(
            name="specific_application",
            description="Apply it to this case",
            prompt="Apply the approach to this case: put its details in the place of the general terms.",
        ),
        Stage(
            name="step_by_step_solution",
            description="Work it through",
            prompt="Work it through step by step to a result.",
        ),
        Stage(
            name="solution_verification",
            description="Check result against case and principle",
            prompt="Check the result twice: against the details of the case, and against the principles.",
        ),
        FINAL_RESPONSE,
    ),
)

_GENERAL = "Speak of the general alone: do not solve the problem yet."


def step_back() -> Strategy:
    """Find general principles first, then apply them to the case. Makes two model calls.

    For detailed questions that a law or principle decides. After Zheng et al., "Take a Step Back: Evoking Reasoning via
    Abstraction in Large Language Models" (2023).
    """

    @strategy(stages=STAGES)
    async def step_back(run: StrategyRun) -> str:
        run.stage("problem_reception")
        reply = await run.ask(
            f"{run.stage('abstraction', 'principle_identification', 'approach_selection')}\n{_GENERAL}"
        )
        run.thought(reply.text, type="analysis", reply=reply)
        prompt = run.stage("specific_application", "step_by_step_solution", "solution_verification", "final_response")
        return await run.conclude(prompt)

    return step_back
