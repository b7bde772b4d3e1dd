"""Tree of thoughts: search, evaluation and budgets."""

import asyncio
import re
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from fractions import Fraction
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from rxloop import (
    Agent,
    ConfigurationError,
    ContentCompleteEvent,
    Event,
    Limits,
    LLMCallEvent,
    RunCancelled,
    SqliteEventLog,
)
from rxloop.pipeline.requests import ModelRequest
from rxloop.strategies import tree_of_thoughts
from rxloop.testing import Conversation, OfflineModel, Reply, ScriptedModel
from support.runs import collect
from support.strategy_cases import find_open_items, is_legal, list_thoughts, stage_path

# -- the Game of 24, solved by a program instead of a model

Numbers = tuple[Fraction, ...]


def list_moves(numbers: Numbers) -> Iterator[tuple[str, Numbers]]:
    """Yield all calculations with two of the numbers, and the remaining numbers."""
    for i, j in permutations(range(len(numbers)), 2):
        a, b = numbers[i], numbers[j]
        rest = tuple(each for index, each in enumerate(numbers) if index not in (i, j))
        results = {"-": a - b, "/": a / b if b else None}
        if i < j:
            results |= {"+": a + b, "*": a * b}
        for sign, value in results.items():
            if value is not None:
                yield f"{a} {sign} {b} = {value}", (*rest, value)


def format_step(move: str, left: Numbers) -> str:
    return f"{move} (left: {' '.join(map(str, left))})"


def parse_numbers(text: str) -> Numbers:
    """Parse the remaining numbers."""
    found = re.findall(r"\(left: ([^)]*)\)", text) or re.findall(r"from ([\d ]+)", text)
    return tuple(map(Fraction, found[-1].split()))


def is_solvable(numbers: Numbers) -> bool:
    if len(numbers) == 1:
        return numbers[0] == 24
    return any(is_solvable(left) for _, left in list_moves(numbers))


def can_reach_24(path: Sequence[str]) -> bool:
    return is_solvable(parse_numbers(path[-1]))


def is_solution(question: str, answer: str) -> bool:
    """True if the expression equals 24 and uses each number of the question once."""
    used = sorted(map(int, re.findall(r"\d+", answer)))
    fractions = re.sub(r"\d+", r"Fraction(\g<0>)", answer)
    return used == sorted(map(int, parse_numbers(question))) and eval(fractions, {"Fraction": Fraction}) == 24


def to_expression(steps: Sequence[str]) -> str:
    expressions: dict[str, list[str]] = {}
    result = ""
    for step in steps:
        a, sign, b, value = re.match(r"(\S+) (\S) (\S+) = (\S+)", step).groups()  # pyright: ignore[reportOptionalMemberAccess]
        left, right = (expressions[each].pop() if expressions.get(each) else each for each in (a, b))
        result = f"({left} {sign} {right})"
        expressions.setdefault(value, []).append(result)
    return result


def answer_prompt(prompt: str, question: str) -> str:
    """Answer a prompt of the strategy like a perfect player."""
    if "Propose" in prompt:
        texts = [
            format_step(move, left)
            for move, left in list_moves(parse_numbers(prompt) if "left:" in prompt else parse_numbers(question))
        ]
        return "\n".join(f"{index}. {text}" for index, text in enumerate(texts, 1))
    steps = re.findall(r"\d+\. (.*)", prompt)
    if "How likely" in prompt:
        return f"Let me see.\nScore: {0.9 if can_reach_24(steps) else 0}"
    if "most promising" in prompt:
        good = [str(index) for index, text in enumerate(steps, 1) if can_reach_24([text])]
        return f"Best: {', '.join(good[:2])}"
    return to_expression(steps)


def answer_request(request: ModelRequest) -> str:
    messages = [*request.messages, *request.tail]
    return answer_prompt(messages[-1].text, messages[0].text)


def answer_conversation(conversation: Conversation) -> Reply:
    return Reply(answer_prompt(conversation.question, conversation.questions[0]))


QUESTION = "Make 24 from 4 9 10 13."


@pytest.mark.parametrize("numbers", ["4 9 10 13", "1 5 5 5", "3 3 8 8", "2 3 5 12"])
async def test_game_of_24_is_solved_over_http(numbers: str) -> None:
    question = f"Make 24 from {numbers}."
    tree = tree_of_thoughts(propose=40, keep=2, depth=3, evaluate=can_reach_24, max_calls=8)
    offline = OfflineModel([answer_conversation])
    async with aclosing(offline.provider()) as model:
        run = Agent(model, strategy=tree).run(question)
        events = await collect(run)
        result = await run
        assert len(offline.requests) <= 6
    assert is_solution(question, result.output)
    assert is_legal(stage_path(events), "tree_of_thoughts")
    promising = [
        thought for thought in list_thoughts(events) if thought.confidence == 1 and thought.thought_type == "reasoning"
    ]
    assert all(can_reach_24([thought.content]) for thought in promising)
    assert {len(thought.thought_id.split("/")) for thought in promising} == {2, 3, 4}


@pytest.mark.parametrize("search", ["breadth", "best"])
@pytest.mark.parametrize("evaluate", ["value", "vote", can_reach_24])
async def test_game_of_24_is_solved_with_each_evaluation_and_search(search: Any, evaluate: Any) -> None:
    tree = tree_of_thoughts(propose=40, keep=2, depth=3, evaluate=evaluate, search=search, max_calls=400)
    model = ScriptedModel(*[answer_request] * 400)
    run = Agent(model, strategy=tree).run(QUESTION, limits=Limits(iterations=400))
    events = await collect(run)
    assert is_solution(QUESTION, (await run).output)
    assert is_legal(stage_path(events), "tree_of_thoughts")


async def test_cancelled_tree_is_resumed_over_http_without_repeating_requests(tmp_path: Path) -> None:
    for number in range(1, 7):
        task_id, completed_steps = await run_until_cancelled(number, tmp_path)
        offline = OfflineModel([answer_conversation])
        async with aclosing(offline.provider()) as model:
            async with aclosing(SqliteEventLog(tmp_path / "runs.db")) as log:
                result = await Agent(model, strategy=TREE, log=log).resume(task_id)
                events = await log.read(task_id)
        assert is_solution(QUESTION, result.output)
        requested = [event.step for event in events if isinstance(event, LLMCallEvent) and event.attempt == 2]
        assert len(requested) == len(offline.requests)
        assert not completed_steps & set(requested)
        thoughts = [thought.thought_id for thought in list_thoughts(events)]
        assert len(thoughts) == len(set(thoughts))
        assert find_open_items(events) == set()
        assert is_legal(stage_path(events), "tree_of_thoughts")


TREE = tree_of_thoughts(propose=40, keep=2, depth=3, evaluate=can_reach_24)


async def run_until_cancelled(number: int, folder: Path) -> tuple[str, set[str | None]]:
    """Cancel a run at model call `number`, and return its id and completed steps."""
    async with aclosing(OfflineModel([answer_conversation]).provider()) as model:
        async with aclosing(SqliteEventLog(folder / "runs.db")) as log:
            run = Agent(model, strategy=TREE, log=log).run(QUESTION)
            events: list[Event] = []
            async for event in run:
                events.append(event)
                if sum(isinstance(each, LLMCallEvent) for each in events) == number:
                    run.cancel()
            with pytest.raises(RunCancelled):
                await run
    messages = [event for event in events if isinstance(event, ContentCompleteEvent)]
    return run.task_id, {message.step for message in messages if message.finish_reason != "canceled"}


# -- budgets


def answer_briefly(request: ModelRequest) -> str:
    """Propose three steps and prefer the second."""
    prompt = [*request.messages, *request.tail][-1].text
    if "Propose" in prompt:
        return "1. a\n2. b\n3. c"
    if "How likely" in prompt:
        return f"Score: {0.9 if prompt.split('. ')[-2].startswith('b') else 0.5}"
    return "Best: 2" if "most promising" in prompt else "answer"


@pytest.mark.parametrize("search", ["breadth", "best"])
@pytest.mark.parametrize("evaluate", ["value", "vote", len])
@pytest.mark.parametrize("budget", [1, 2, 3, 5, 6, 7, 9, 12, 30])
async def test_tree_respects_max_calls(budget: int, evaluate: Any, search: Any) -> None:
    model = ScriptedModel(*[answer_briefly] * 200)
    tree = tree_of_thoughts(propose=3, keep=2, depth=4, evaluate=evaluate, max_calls=budget, search=search)
    run = Agent(model, strategy=tree).run("Q", limits=Limits(iterations=200))
    events = await collect(run)
    assert (await run).output == "answer"
    assert len(model.requests) <= budget
    assert is_legal(stage_path(events), "tree_of_thoughts")


@pytest.mark.parametrize("budget", [1, 4, 5, 20])
async def test_tree_respects_the_iteration_limit(budget: int) -> None:
    model = ScriptedModel(*[answer_briefly] * 40)
    result = await Agent(model, strategy=tree_of_thoughts(), limits=Limits(iterations=budget)).run("Q")
    assert result.output == "answer"
    assert 0 < len(model.requests) <= budget


@pytest.mark.parametrize(
    ("evaluate", "calls"),
    [
        # Three rounds with 1 + 2 + 2 proposals, their evaluation, and the answer.
        ("value", 5 + 15 + 1),
        ("vote", 5 + 3 + 1),
        (len, 5 + 1),
    ],
)
async def test_tree_needs_the_documented_number_of_model_calls(evaluate: Any, calls: int) -> None:
    model = ScriptedModel(*[vote_for_two if evaluate == "vote" else answer_briefly] * 50)
    tree = tree_of_thoughts(propose=3, keep=2, depth=3, evaluate=evaluate)
    await Agent(model, strategy=tree).run("Q", limits=Limits(iterations=50))
    assert len(model.requests) == calls


def vote_for_two(request: ModelRequest) -> str:
    reply = answer_briefly(request)
    return "I like some.\n**Best:** 2 and 1" if reply == "Best: 2" else reply


# -- selection


async def test_best_thoughts_are_kept_and_worthless_ones_dropped() -> None:
    # T74
    scores = {"a": 0.4, "b": 0.9, "c": 0.0}
    model = ScriptedModel(*[answer_briefly] * 20)
    tree = tree_of_thoughts(propose=3, keep=1, depth=2, evaluate=lambda path: scores[path[-1]])
    run = Agent(model, strategy=tree).run("Q")
    events = await collect(run)
    thoughts = {thought.thought_id: thought for thought in list_thoughts(events)}
    assert [request.branch for request in model.requests] == ["tot", "tot/2", None]
    assert [thoughts[f"tot/{index}"].confidence for index in (1, 2, 3)] == [0.4, 0.9, 0.0]
    assert [thoughts[f"tot/2/{index}"].related_to for index in (1, 2, 3)] == ["tot/2"] * 3
    assert "1. b\n2. b" in model.requests[-1].tail[-1].text


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("Score: 0.7", 0.7),
        ("Score: 7", 0.7),
        ("Score: 70", 0.7),
        ("Score: -1", 0.0),
        ("Score: 1000", 1.0),
        ("This is likely.", 0.7),
        ("Unlikely, no: impossible.", 0.0),
        ("Hm.", 0.5),
    ],
)
async def test_score_formats_of_models_are_parsed(reply: str, score: float) -> None:
    model = ScriptedModel("1. a", reply, "answer")
    run = Agent(model, strategy=tree_of_thoughts(propose=1, depth=1)).run("Q")
    assert list_thoughts(await collect(run))[0].confidence == pytest.approx(score)


async def test_first_of_equal_thoughts_are_kept() -> None:
    model = ScriptedModel(*[answer_briefly] * 20)
    await Agent(model, strategy=tree_of_thoughts(propose=3, keep=2, depth=2, evaluate=lambda path: 1)).run("Q")
    assert [request.branch for request in model.requests] == ["tot", "tot/1", "tot/2", None]


async def test_best_first_search_expands_the_best_thought_of_the_tree() -> None:
    # After "b", which has the best score, all steps score lower than "a".
    scores: dict[tuple[str, ...], float] = {("a",): 0.8, ("b",): 0.9, ("a", "c"): 0.95}
    model = ScriptedModel(*[answer_briefly] * 20)
    tree = tree_of_thoughts(depth=2, evaluate=lambda path: scores.get(tuple(path), 0.1), search="best")
    await Agent(model, strategy=tree).run("Q")
    assert [request.branch for request in model.requests] == ["tot", "tot/2", "tot/1", None]
    assert "1. a\n2. c" in model.requests[-1].tail[-1].text


async def test_async_evaluation_runs_concurrently() -> None:
    count = 0
    together = asyncio.Event()

    async def judge(path: Sequence[str]) -> float:
        nonlocal count
        count += 1
        if count == 3:
            together.set()
        await together.wait()
        return 0.5

    model = ScriptedModel(*[answer_briefly] * 20)
    assert (await Agent(model, strategy=tree_of_thoughts(depth=1, evaluate=judge)).run("Q")).output == "answer"


@pytest.mark.parametrize("reply", ["", "\n\n", "1."])
async def test_model_that_proposes_nothing_still_answers(reply: str) -> None:
    model = ScriptedModel(reply, "I cannot say.")
    run = Agent(model, strategy=tree_of_thoughts()).run("Q")
    events = await collect(run)
    assert (await run).output == "I cannot say."
    assert is_legal(stage_path(events), "tree_of_thoughts")


async def test_answer_uses_the_last_kept_thought_when_all_are_dropped() -> None:
    model = ScriptedModel(*[answer_briefly] * 20)
    tree = tree_of_thoughts(depth=3, evaluate=lambda path: len(path) < 2)
    await Agent(model, strategy=tree).run("Q")
    assert "1. a\n\n" in model.requests[-1].tail[-1].text


@pytest.mark.parametrize(
    "wrong", [{"propose": 0}, {"keep": 0}, {"depth": -1}, {"max_calls": 0}, {"evaluate": "values"}, {"search": "depth"}]
)
def test_invalid_arguments_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        tree_of_thoughts(**wrong)
