from __future__ import annotations

from rxloop.pipeline.requests import Strategy
from rxloop.strategies.engine import strategy
from rxloop.strategies.replies import at_least, word
from rxloop.strategies.strategy_run import StrategyRun

_FORM = "End with a line `Done: yes` if the values hold the result, or `Done: no` if more steps are needed."


def scratchpad(max_steps: int = 10) -> Strategy:
    """Calculate with the values written down after each step: a model call for each, and one for the answer.

    For calculations and other problems with a state that changes. After Nye et al., "Show Your Work: Scratchpads for
    Intermediate Computation with Language Models" (2021).

    Args:
        max_steps: The maximum number of steps; after them the result is read from what there is.
    """
    at_least(1, max_steps=max_steps)

    @strategy
    async def scratchpad(run: StrategyRun) -> str:
        run.stage("problem_reception")
        prompt = f"{run.stage('scratchpad_initialization')}\n"
        before: str | None = None
        for _ in range(max_steps):
            prompt += run.stage("iterative_calculation", "state_tracking")
            reply = await run.ask(f"{prompt}\n{_FORM}")
            before = run.thought(reply.text, related_to=before, reply=reply)
            run.stage("continuation_decision")
            if word(reply.text, "done") != "no":
                break
            prompt = ""
        return await run.conclude(run.stage("result_extraction", "final_response"))

    return scratchpad
