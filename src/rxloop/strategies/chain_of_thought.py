from __future__ import annotations

from rxloop.pipeline.requests import Strategy
from rxloop.strategies.engine import strategy
from rxloop.strategies.replies import paragraphs
from rxloop.strategies.strategy_run import StrategyRun

_STEP_BY_STEP = "Let's think step by step. Do not give the final answer yet."


def chain_of_thought() -> Strategy:
    """Reason step by step, then answer from the reasoning: two model calls.

    For problems that one straight line of steps solves. After Wei et al., "Chain-of-Thought Prompting Elicits Reasoning
    in Large Language Models" (2022), in the two stages of Kojima et al., "Large Language Models are Zero-Shot
    Reasoners" (2022): the reasoning comes first, and the answer is taken from it.
    """

    @strategy
    async def chain_of_thought(run: StrategyRun) -> str:
        run.stage("problem_reception")
        prompt = run.stage("step_decomposition", "sequential_reasoning")
        reasoning = await run.ask(f"{prompt}\n{_STEP_BY_STEP}")
        before: str | None = None
        for step in paragraphs(reasoning.text):
            before = run.thought(step, related_to=before, reply=reasoning)
        return await run.conclude(run.stage("solution_formulation", "answer_verification", "final_response"))

    return chain_of_thought
