"""Sequential thinking: consecutive thoughts, revisions, and a tested hypothesis."""

from __future__ import annotations

from dataclasses import replace

from rxloop.pipeline.requests import Strategy
from rxloop.strategies.engine import strategy
from rxloop.strategies.replies import find_word
from rxloop.strategies.shared_stages import (
    BRANCH_CREATION,
    CONTINUATION_DECISION,
    FINAL_RESPONSE,
    PROBLEM_RECEPTION,
    link_stages,
)
from rxloop.strategies.strategy_run import StrategyRun
from rxloop.support.misuse import check_minimum
from rxloop.thinking.stages import Branching, IterationPoint, Stage, StrategyDefinition

STAGES = StrategyDefinition(
    name="linear",
    title="Base Sequential",
    aliases="base_sequential",
    when="For open problems whose length cannot be foreseen: it thinks, revises, branches off, and tests a hypothesis.",
    pattern="adaptive",
    features={"backtracking", "revision", "verification", "dynamic_thought_count"},
    stages=link_stages(
        PROBLEM_RECEPTION,
        Stage(
            name="initial_thought_planning",
            description="Guess how many thoughts are needed and sketch a start",
            prompt="Estimate how many thoughts this will take, and sketch how you will begin.",
        ),
        Stage(
            name="thought_generation",
            description="Produce one thought: analysis, question, doubt or revision",
            prompt="Think one thought further: an analysis, a question, a doubt, or a better version of an "
            "earlier thought.",
        ),
        Stage(
            name="thought_evaluation",
            next=("thought_revision", "continuation_decision"),
            description="Judge whether the thought stands or must be revised",
            prompt="Judge your last thought. Does it hold, and does it help? Say whether it stands or must be revised.",
        ),
        Stage(
            name="thought_revision",
            fields=("isRevision", "revisesThought"),
            description="Replace an earlier thought in the light of new insight",
            prompt="Name the earlier thought that was wrong or weak, and write what replaces it.",
        ),
        replace(CONTINUATION_DECISION, next=("thought_adjustment", "branch_creation", "hypothesis_generation")),
        Stage(
            name="thought_adjustment",
            next="thought_generation",
            fields=("needsMoreThoughts", "totalThoughts"),
            description="Raise or lower the estimate of thoughts",
            prompt="Say how many thoughts you now expect to need in all, and why.",
        ),
        replace(BRANCH_CREATION, next="thought_generation", fields=("branchFromThought", "branchId")),
        Stage(
            name="hypothesis_generation",
            fields="hypothesis",
            description="State a candidate answer",
            prompt="State one candidate answer, precisely enough to be tested.",
        ),
        Stage(
            name="hypothesis_verification",
            next=("solution_finalization", "continuation_decision"),
            description="Test the candidate against the thoughts so far",
            prompt="Test the candidate against every thought so far. Look for what contradicts it.",
        ),
        Stage(
            name="solution_finalization",
            description="Settle the verified answer",
            prompt="Write down the verified answer in its final form.",
        ),
        FINAL_RESPONSE,
    ),
    iteration_point=IterationPoint(
        stage="continuation_decision", back_to="thought_generation", via=("thought_adjustment", "branch_creation")
    ),
    branching=Branching(kind="explicit", stage="branch_creation", fields=("branchFromThought", "branchId")),
)

_FORM = (
    "End with one line: `Next: continue` if another thought is needed, `Next: revise` if this one is wrong, "
    "`Next: branch` to try something else, or `Next: conclude`."
)
_HYPOTHESIS = "End with one line: `Holds: yes` or `Holds: no`."
_NEXT_STAGES = {"continue": "thought_adjustment", "revise": "thought_adjustment", "branch": "branch_creation"}


def linear(max_thoughts: int = 8) -> Strategy:
    """Think, revise, then state an answer and test it. Makes one model call for each of these.

    For open problems that fit no other strategy. This is the flow of the sequential thinking tool of the Model Context
    Protocol's reference servers, controlled by the loop. Testing an answer against one's own reasoning is after Madaan
    et al., "Self-Refine: Iterative Refinement with Self-Feedback" (2023).

    Args:
        max_thoughts: Maximum number of thoughts. The answer is then returned without further tests.
    """
    check_minimum(1, max_thoughts=max_thoughts)

    @strategy(stages=STAGES)
    async def linear(run: StrategyRun) -> str:
        run.stage("problem_reception")
        prompt = run.stage("initial_thought_planning")
        previous_id: str | None = None
        thoughts = 0
        while True:
            prompt += "\n" + run.stage("thought_generation")
            reply = await run.ask(f"{prompt}\n{_FORM}")
            thoughts += 1
            previous_id = run.thought(reply.text, related_to=previous_id, reply=reply)
            run.stage("thought_evaluation")
            if find_word(reply.text, "next") == "revise" and thoughts < max_thoughts:
                reply = await run.ask(f"{run.stage('thought_revision')}\n{_FORM}")
                thoughts += 1
                previous_id = run.thought(reply.text, type="reflection", related_to=previous_id, reply=reply)
            run.stage("continuation_decision")
            next_stage = _NEXT_STAGES.get(find_word(reply.text, "next"))
            if next_stage is None or thoughts >= max_thoughts:
                candidate = await run.ask(
                    f"{run.stage('hypothesis_generation')} Test it against what you know. {_HYPOTHESIS}"
                )
                previous_id = run.thought(candidate.text, type="decision", related_to=previous_id, reply=candidate)
                run.stage("hypothesis_verification")
                if find_word(candidate.text, "holds") != "no" or thoughts >= max_thoughts:
                    break
                run.stage("continuation_decision")
                next_stage = "thought_adjustment"
            prompt = run.stage(next_stage)
        return await run.conclude(run.stage("solution_finalization", "final_response"))

    return linear
