"""Self-consistency: several independent lines of reasoning and a majority vote."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

import orjson
from pydantic_core import to_jsonable_python

from rxloop.errors import NoAnswers, ProviderError
from rxloop.pipeline.requests import Strategy
from rxloop.protocol.finish import COMPLETE
from rxloop.protocol.settings import ModelSettings
from rxloop.strategies.engine import strategy
from rxloop.strategies.replies import find_final_answer
from rxloop.strategies.shared_stages import FINAL_RESPONSE, PROBLEM_RECEPTION, link_stages
from rxloop.strategies.strategy_run import Reply, StrategyRun
from rxloop.support.misuse import check_minimum, check_positive
from rxloop.thinking.stages import Branching, Stage, StrategyDefinition

STAGES = StrategyDefinition(
    name="self_consistency",
    title="Self-Consistency",
    when="For problems with one short answer, where a single line of reasoning often goes wrong: several lines vote.",
    pattern="parallel",
    features={"multiple_paths", "verification", "consensus"},
    stages=link_stages(
        PROBLEM_RECEPTION,
        Stage(
            name="multiple_path_sampling",
            description="Prepare several independent lines of reasoning",
            prompt="Prepare several lines of reasoning that do not lean on each other.",
        ),
        Stage(
            name="reasoning_path_execution",
            fields="reasoningPathId",
            description="Run each line to an answer",
            prompt="Follow this line of reasoning by itself until it gives an answer.",
        ),
        Stage(
            name="answer_collection",
            fields="pathAnswers",
            description="Collect the answers by line",
            prompt="List the answer of each line, in the same form, so that they can be compared.",
        ),
        Stage(
            name="consistency_analysis",
            description="Count agreeing answers",
            prompt="Count which answers agree. Answers that differ in form alone are the same.",
        ),
        Stage(
            name="majority_selection",
            description="Take the most frequent answer",
            prompt="Take the most frequent answer, and say how many lines gave it.",
        ),
        FINAL_RESPONSE,
    ),
    branching=Branching(
        kind="parallel_paths", stage="multiple_path_sampling", fields=("reasoningPathId", "pathAnswers")
    ),
)

_SAMPLE = (
    "Let's think step by step. End with one line: `Answer: ` and the answer alone, as short as it can be, without "
    "explanation."
)


def self_consistency(samples: int = 5, temperature: float | None = 0.7, concurrency: int | None = None) -> Strategy:
    """Sample several lines of reasoning in parallel, and return the most frequent answer.

    For questions with one short answer that can be compared, such as a number. Each sample takes at most one model
    call. The remaining samples are closed as soon as they cannot change the outcome. A sample that fails does not vote.
    If two answers have as many votes, the answer of the sample with the lowest number wins. After Wang et al.,
    "Self-Consistency Improves Chain of Thought Reasoning in Language Models" (2022).

    Args:
        samples: Number of samples.
        temperature: Temperature of the samples, which have to differ. None uses the temperature of the run.
        concurrency: Maximum number of samples at the same time. A lower number takes longer, but closes fewer calls
            that were already started.
    """
    check_minimum(1, samples=samples, concurrency=concurrency or 1)
    check_positive(zero=True, optional=True, temperature=temperature)

    @strategy(stages=STAGES)
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
            return reply, find_final_answer(reply.text) if reply.finish_reason in COMPLETE else None

        def is_enough(ended: Sequence[tuple[Reply, str | None] | None]) -> bool:
            return is_decided(_answers(ended), samples - len(ended))

        ended = await run.gather(*map(sample, range(1, samples + 1)), max_concurrent=concurrency, until=is_enough)
        run.stage("answer_collection")
        for path in ended:
            if path is not None:
                run.thought(path[1] or path[0].text, type="reasoning", reply=path[0])
        run.stage("consistency_analysis")
        answers = _answers(ended)
        if not answers and failures:
            failures[0].add_note(f"None of the {samples} samples has an answer, so there is no vote.")
            raise failures[0]
        vote = find_majority(answers, failed=len(ended) - len(answers))
        run.thought(str(vote), type="decision", confidence=vote.ratio)
        run.stage("majority_selection", "final_response")
        return str(vote.answer)

    return self_consistency


def _answers(ended: Sequence[tuple[Reply, str | None] | None]) -> list[str]:
    return [path[1] for path in ended if path is not None and path[1] is not None]


_NUMBER = re.compile(r"([+-]?)[$€£¥]?\s?([+-]?)((?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+)(e[+-]?\d{1,4})?")

_QUOTES = "\"'`*“”\u2018\u2019«»"

_PUNCTUATION = ".,;:!?。"

_MAX_ZEROS = 30
"""Maximum number of leading or trailing zeros before switching to exponent notation."""


def normalise(answer: Any) -> str:
    """Normalise an answer, so that equal answers have the same form.

    Strings are compared without case, Unicode variants (NFKC), repeated blanks, surrounding quotation marks, Markdown's
    asterisks and backticks, and punctuation at the end.

    A string that is one number is compared by value, with or without a currency sign and thousands separators: `42`,
    `42.00`, `$42`, `+42` and `4.2e1` are equal, and `1,000` is `1000`. A percentage, a fraction, a mixed number such as
    `3 1/2` and a number with a unit remain strings. A bool is `true` or `false`. Any other value, such as a list or a
    pydantic model, is its JSON with sorted keys.
    """
    if isinstance(answer, bool):
        return "true" if answer else "false"
    if isinstance(answer, (str, int, float, Decimal)):
        return _normalise_text(str(answer))
    return orjson.dumps(to_jsonable_python(answer), option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS).decode()


def _normalise_text(text: str) -> str:
    plain = " ".join(unicodedata.normalize("NFKC", text).casefold().split()).replace("\N{MINUS SIGN}", "-")
    previous = None
    while plain != previous:
        previous = plain
        plain = plain.strip(_QUOTES).rstrip(_PUNCTUATION).strip()
    number = _NUMBER.fullmatch(plain)
    if number is None or (number[1] and number[2]):
        # Punctuation-only answers are valid.
        return plain or text.strip()
    return _normalise_number(number[1] + number[2] + number[3].replace(",", "") + (number[4] or ""))


def _normalise_number(digits: str) -> str:
    # The default precision rounds numbers with more than 28 digits.
    value = Decimal(digits).normalize(Context(prec=len(digits)))
    if not value:
        return "0"
    exponent = value.as_tuple().exponent
    return f"{value:f}" if isinstance(exponent, int) and abs(exponent) <= _MAX_ZEROS else str(value)


@dataclass(frozen=True, slots=True)
class Vote:
    """Voting result. `str` returns a one-sentence summary."""

    answer: Any
    """Winning answer in the form of its first vote."""
    winner: str
    """The winning answer in its normal form."""
    count: int
    """Votes for the winner."""
    total: int
    """Number of answers."""
    failed: int
    """Number of samples without an answer."""
    counts: tuple[tuple[str, int], ...]
    """Vote counts by normalised answer, ordered by first vote."""

    @property
    def ratio(self) -> float:
        """Winner's share of the total votes."""
        return self.count / self.total

    @property
    def tied(self) -> bool:
        """True if several answers share the highest vote count."""
        return sum(count == self.count for _, count in self.counts) > 1

    def __str__(self) -> str:
        text = f"{self.winner}: {self.count} of {self.total} answers"
        if self.tied:
            text += ", as many as another that was given later"
        return f"{text}; {self.failed} without an answer" if self.failed else text


def find_majority(answers: Sequence[Any], *, failed: int = 0) -> Vote:
    """Determine the majority answer. Earlier answers win ties.

    Args:
        answers: Answers in voting order.
        failed: Number of samples without an answer.

    Raises:
        NoAnswers: If `answers` is empty.
    """
    if not answers:
        raise NoAnswers(f"no answers to vote on: {failed} of {failed} samples failed")
    forms = [normalise(answer) for answer in answers]
    counts = Counter(forms)
    # `max` returns the first maximum, because Counter preserves insertion order.
    winner = max(counts, key=counts.__getitem__)
    return Vote(
        answer=answers[forms.index(winner)],
        winner=winner,
        count=counts[winner],
        total=len(forms),
        failed=failed,
        counts=tuple(counts.items()),
    )


def is_decided(answers: Sequence[Any], remaining: int) -> bool:
    """Return True if the remaining answers cannot change the outcome, even if some of them fail.

    Args:
        answers: Answers so far, in the order of the vote.
        remaining: Maximum number of further answers.
    """
    if remaining <= 0:
        return True
    counts = list(Counter(map(normalise, answers)).values())
    if not counts:
        return False
    highest = max(counts)
    first = counts.index(highest)
    # Earlier answers win ties, so later answers need an additional vote to win.
    previous = all(count + remaining < highest for count in counts[:first])
    return previous and all(count + remaining <= highest for count in [*counts[first + 1 :], 0])
