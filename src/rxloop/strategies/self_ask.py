"""Self-ask strategy with sub-questions and intermediate answers."""

from __future__ import annotations

from rxloop.pipeline.requests import Strategy
from rxloop.strategies.engine import strategy
from rxloop.strategies.replies import find_labelled
from rxloop.strategies.shared_stages import FINAL_RESPONSE, PROBLEM_RECEPTION, SOLUTION_FORMULATION, link_stages
from rxloop.strategies.strategy_run import StrategyRun
from rxloop.support.misuse import check_minimum
from rxloop.thinking.stages import IterationPoint, Stage, StrategyDefinition

STAGES = StrategyDefinition(
    name="self_ask",
    title="Self-Ask",
    when="For questions with several hops, whose answer rests on the answers to simpler questions.",
    pattern="hierarchical",
    features={"backtracking", "dynamic_thought_count"},
    stages=link_stages(
        PROBLEM_RECEPTION,
        Stage(
            name="problem_decomposition",
            description="Split the question into sub-questions",
            prompt="Split the question into simpler ones whose answers together answer it.",
        ),
        Stage(
            name="sub_question_formulation",
            description="Put the next sub-question",
            prompt="Put the next sub-question, so that it can be answered by itself.",
        ),
        Stage(
            name="sub_question_answering",
            fields=("subQuestion", "subQuestionNumber", "subQuestionAnswer"),
            description="Answer it",
            prompt="Answer this sub-question alone, in a sentence.",
        ),
        Stage(
            name="answer_integration",
            description="Fold the answer into the whole",
            prompt="Say what this answer settles of the whole question, and what is still open.",
        ),
        Stage(
            name="completion_check",
            next=("sub_question_formulation", "solution_formulation"),
            description="Choose: ask again or answer",
            prompt="Decide whether the answers so far suffice, or another sub-question is needed.",
        ),
        SOLUTION_FORMULATION,
        FINAL_RESPONSE,
    ),
    iteration_point=IterationPoint(stage="completion_check", back_to="sub_question_formulation"),
)

_FORM = (
    "Write one line: `Follow up: ` and the next question whose answer you need, so that it can be understood by "
    "itself; or, when you need none, `So the final answer is: ` and the answer."
)
_SUB_QUESTION = "Answer this question alone, in a sentence; look it up if you can: "


def self_ask(max_questions: int = 5) -> Strategy:
    """Ask and answer sub-questions one by one. Makes two model calls per sub-question, and one more for the answer.

    A sub-question that needs tools takes one additional call per round of tools.

    For questions whose answer requires several facts. Each sub-question is answered on its own branch with the agent's
    tools. After Press et al., "Measuring and Narrowing the Compositionality Gap in Language Models" (2022).

    Args:
        max_questions: Maximum number of sub-questions. The model must then answer.
    """
    check_minimum(1, max_questions=max_questions)

    @strategy(stages=STAGES)
    async def self_ask(run: StrategyRun) -> str:
        run.stage("problem_reception")
        prompt = run.stage("problem_decomposition")
        previous_id: str | None = None
        for number in range(1, max_questions + 1):
            reply = await run.ask(f"{prompt}\n{_FORM}")
            question = find_labelled(reply.text, "follow up", "follow up question", "sub question", "followup")
            answer = find_labelled(
                reply.text, "so the final answer is", "final answer", "the final answer is", "answer"
            )
            if answer is not None or question is None:
                break
            run.stage("sub_question_formulation")
            question_id = run.thought(question, type="planning", related_to=previous_id, reply=reply)
            run.stage("sub_question_answering")
            answer_reply = await run.ask(_SUB_QUESTION + question, branch=f"self_ask/{number}", tools=True)
            previous_id = run.thought(answer_reply.text, type="observation", related_to=question_id, reply=answer_reply)
            prompt = f"Intermediate answer: {answer_reply.text}\n{run.stage('answer_integration', 'completion_check')}"
        else:
            return await run.conclude(f"{prompt}\nAsk no more. {run.stage('solution_formulation', 'final_response')}")
        if previous_id is None:
            # The question needed no sub-question, so pass through the stages.
            run.stage("sub_question_formulation", "sub_question_answering", "answer_integration", "completion_check")
        run.stage("solution_formulation", "final_response")
        return reply.text.strip() if answer is None else answer

    return self_ask
