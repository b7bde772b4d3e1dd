from __future__ import annotations

from rxloop.pipeline.requests import Strategy
from rxloop.strategies.engine import strategy
from rxloop.strategies.strategy_run import StrategyRun

_GENERAL = "Speak of the general alone: do not solve the problem yet."


def step_back() -> Strategy:
    """Find the general principles first, then apply them to the case: two model calls.

    For questions full of detail that a law or a principle decides. After Zheng et al., "Take a Step Back: Evoking
    Reasoning via Abstraction in Large Language Models" (2023).
    """

    @strategy
    async def step_back(run: StrategyRun) -> str:
        run.stage("problem_reception")
        reply = await run.ask(
            f"{run.stage('abstraction', 'principle_identification', 'approach_selection')}\n{_GENERAL}"
        )
        run.thought(reply.text, type="analysis", reply=reply)
        prompt = run.stage("specific_application", "step_by_step_solution", "solution_verification", "final_response")
        return await run.conclude(prompt)

    return step_back
