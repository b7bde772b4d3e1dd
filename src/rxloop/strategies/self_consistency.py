from __future__ import annotations

from collections.abc import Sequence

from rxloop.errors import ProviderError
from rxloop.pipeline.requests import Strategy
from rxloop.protocol.finish import COMPLETE
from rxloop.protocol.settings import ModelSettings
from rxloop.strategies.engine import strategy
from rxloop.strategies.replies import at_least, final_answer
from rxloop.strategies.strategy_run import Reply, StrategyRun
from rxloop.thinking.stages import decided, majority

_SAMPLE = (
    "Let's think step by step. End with one line: `Answer: ` and the answer alone, as short as it can be, without "
    "explanation."
)


def self_consistency(samples: int = 5, temperature: float | None = 0.7, concurrency: int | None = None) -> Strategy:
    """Sample several lines of reasoning at once, and take the answer that most of them come to.

    For questions with one short answer that can be compared, such as a number. At most one model call for each sample;
    as soon as the rest cannot change the outcome, it is closed. A line that fails does not vote. On a tie the answer of
    the line with the lowest number wins. After Wang et al., "Self-Consistency Improves Chain of Thought Reasoning in
    Language Models" (2022).

    Args:
        samples: The lines of reasoning.
        temperature: That of the samples, which have to differ; None leaves it to the run.
        concurrency: How many may go on at once: fewer calls are made for nothing, and it takes longer.
    """
    at_least(1, samples=samples, concurrency=concurrency or 1)

    @strategy
    async def self_consistency(run: StrategyRun) -> str:
        settings = ModelSettings(temperature=temperature)
        failures: list[ProviderError] = []
        run.stage("problem_reception", "multiple_path_sampling", "reasoning_path_execution")

        async def sample(number: int) -> tuple[Reply, str | None] | None:
            try:
                reply = await run.ask(_SAMPLE, branch=f"self_consistency/{number}", settings=settings)
            except ProviderError as error:
                failures.append(error)
                return None
            return reply, final_answer(reply.text) if reply.finish_reason in COMPLETE else None

        def enough(ended: Sequence[tuple[Reply, str | None] | None]) -> bool:
            return decided(_answers(ended), samples - len(ended))

        ended = await run.gather(*map(sample, range(1, samples + 1)), at_once=concurrency, until=enough)
        run.stage("answer_collection")
        for path in ended:
            if path is not None:
                run.thought(path[1] or path[0].text, type="reasoning", reply=path[0])
        run.stage("consistency_analysis")
        answers = _answers(ended)
        if not answers and failures:
            failures[0].add_note(f"None of the {samples} lines came to an answer, so there is no vote.")
            raise failures[0]
        vote = majority(answers, failed=len(ended) - len(answers))
        run.thought(str(vote), type="decision", confidence=vote.ratio)
        run.stage("majority_selection", "final_response")
        return str(vote.answer)

    return self_consistency


def _answers(ended: Sequence[tuple[Reply, str | None] | None]) -> list[str]:
    return [path[1] for path in ended if path is not None and path[1] is not None]
