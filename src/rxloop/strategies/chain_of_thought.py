"""Chain of thought: step-by-step reasoning, followed by an answer."""

from __future__ import annotations

from rxloop.pipeline.requests import Strategy
from rxloop.strategies.engine import strategy
from rxloop.strategies.replies import split_paragraphs
from rxloop.strategies.shared_stages import FINAL_RESPONSE, PROBLEM_RECEPTION, SOLUTION_FORMULATION, link_stages
from rxloop.strategies.strategy_run import StrategyRun
from rxloop.thinking.stages import Stage, StrategyDefinition

STAGES = StrategyDefinition(
    name="chain_of_thought",
    title="Chain of Thought",
    when="For problems that fall into a few steps in a fixed order, such as arithmetic and logic; the cheapest of all.",
    pattern="linear",
    features={"verification"},
    stages=link_stages(
        PROBLEM_RECEPTION,
        Stage(
            name="step_decomposition",
            description="Split the problem into ordered steps",
            prompt="Split the problem into numbered steps, each of which needs only those before it.",
        ),
        Stage(
            name="sequential_reasoning",
            description="Work the steps in order",
            prompt="Work through the steps in order. Write down the result of each before you begin the next.",
        ),
        SOLUTION_FORMULATION,
        Stage(
            name="answer_verification",
            description="Check the answer against the question",
            prompt="Check the answer against the question: is it what was asked, and does it meet every condition?",
        ),
        FINAL_RESPONSE,
    ),
)

_STEP_BY_STEP = "Let's think step by step. Do not give the final answer yet."


def chain_of_thought() -> Strategy:
    """Reason step by step, then answer from the reasoning. Makes two model calls.

    For problems that can be solved in a fixed sequence of steps. After Wei et al., "Chain-of-Thought Prompting Elicits
    Reasoning in Large Language Models" (2022), in the two stages of Kojima et al., "Large Language Models are Zero-Shot
    Reasoners" (2022).
    """

    @strategy(stages=STAGES)
    async def chain_of_thought(run: StrategyRun) -> str:
        run.stage("problem_reception")
        prompt = run.stage("step_decomposition", "sequential_reasoning")
        reasoning = await run.ask(f"{prompt}\n{_STEP_BY_STEP}")
        previous_id: str | None = None
        for step in split_paragraphs(reasoning.text):
            previous_id = run.thought(step, related_to=previous_id, reply=reasoning)
        return await run.conclude(run.stage("solution_formulation", "answer_verification", "final_response"))

    return chain_of_thought
