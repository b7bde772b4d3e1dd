from __future__ import annotations

from rxloop.pipeline.requests import Strategy
from rxloop.strategies.engine import strategy
from rxloop.strategies.replies import at_least, word
from rxloop.strategies.strategy_run import StrategyRun

_FORM = (
    "End with one line: `Next: continue` if another thought is needed, `Next: revise` if this one is wrong, "
    "`Next: branch` to try something else, or `Next: conclude`."
)
_HYPOTHESIS = "End with one line: `Holds: yes` or `Holds: no`."
_AGAIN = {"continue": "thought_adjustment", "revise": "thought_adjustment", "branch": "branch_creation"}


def linear(max_thoughts: int = 8) -> Strategy:
    """Think one thought after another, revise, then state an answer and test it: a model call for each of these.

    For open problems with no better fit. It is the flow of the sequential thinking tool of the Model Context Protocol's
    reference servers, here run by the loop; testing an answer against one's own reasoning is after Madaan et al.,
    "Self-Refine: Iterative Refinement with Self-Feedback" (2023).

    Args:
        max_thoughts: The maximum number of thoughts; after them the answer is given as it is.
    """
    at_least(1, max_thoughts=max_thoughts)

    @strategy
    async def linear(run: StrategyRun) -> str:
        run.stage("problem_reception")
        prompt = run.stage("initial_thought_planning")
        before: str | None = None
        thoughts = 0
        while True:
            prompt += "\n" + run.stage("thought_generation")
            reply = await run.ask(f"{prompt}\n{_FORM}")
            thoughts += 1
            before = run.thought(reply.text, related_to=before, reply=reply)
            run.stage("thought_evaluation")
            if word(reply.text, "next") == "revise" and thoughts < max_thoughts:
                reply = await run.ask(f"{run.stage('thought_revision')}\n{_FORM}")
                thoughts += 1
                before = run.thought(reply.text, type="reflection", related_to=before, reply=reply)
            run.stage("continuation_decision")
            again = _AGAIN.get(word(reply.text, "next"))
            if again is None or thoughts >= max_thoughts:
                candidate = await run.ask(
                    f"{run.stage('hypothesis_generation')} Test it against what you know. {_HYPOTHESIS}"
                )
                before = run.thought(candidate.text, type="decision", related_to=before, reply=candidate)
                run.stage("hypothesis_verification")
                if word(candidate.text, "holds") != "no" or thoughts >= max_thoughts:
                    break
                run.stage("continuation_decision")
                again = "thought_adjustment"
            prompt = run.stage(again)
        return await run.conclude(run.stage("solution_finalization", "final_response"))

    return linear
