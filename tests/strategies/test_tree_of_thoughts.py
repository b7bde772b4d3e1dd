"""Trees of thoughts: puzzles that are checked by program, budgets, and ways of judging."""

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

# -- the Game of 24: the program that plays the model, and the judge

Numbers = tuple[Fraction, ...]


def moves(numbers: Numbers) -> Iterator[tuple[str, Numbers]]:
    """Every calculation with two of the numbers, and what it leaves."""
    for i, j in permutations(range(len(numbers)), 2):
        a, b = numbers[i], numbers[j]
        rest = tuple(each for place, each in enumerate(numbers) if place not in (i, j))
        results = {"-": a - b, "/": a / b if b else None}
        if i < j:
            results |= {"+": a + b, "*": a * b}
        for sign, value in results.items():
            if value is not None:
                yield f"{a} {sign} {b} = {value}", (*rest, value)


def step_text(move: str, left: Numbers) -> str:
    return f"{move} (left: {' '.join(map(str, left))})"


def left_by(text: str) -> Numbers:
    """The numbers that a step leaves, or that the question gives."""
    found = re.findall(r"\(left: ([^)]*)\)", text) or re.findall(r"from ([\d ]+)", text)
    return tuple(map(Fraction, found[-1].split()))


def reachable(numbers: Numbers) -> bool:
    if len(numbers) == 1:
        return numbers[0] == 24
    return any(reachable(left) for _, left in moves(numbers))


def can_reach_24(path: Sequence[str]) -> bool:
    """The judge."""
    return reachable(left_by(path[-1]))


def is_solution(question: str, answer: str) -> bool:
    """Whether an expression is 24 and has each number of the question once."""
    used = sorted(map(int, re.findall(r"\d+", answer)))
    fractions = re.sub(r"\d+", r"Fraction(\g<0>)", answer)
    return used == sorted(map(int, left_by(question))) and eval(fractions, {"Fraction": Fraction}) == 24


def expression(steps: Sequence[str]) -> str:
    """The calculations of a solution as one expression."""
    known: dict[str, list[str]] = {}
    made = ""
    for step in steps:
        a, sign, b, value = re.match(r"(\S+) (\S) (\S+) = (\S+)", step).groups()  # pyright: ignore[reportOptionalMemberAccess]
        left, right = (known[each].pop() if known.get(each) else each for each in (a, b))
        made = f"({left} {sign} {right})"
        known.setdefault(value, []).append(made)
    return made


def player(prompt: str, question: str) -> str:
    """What a model that knows its way says to the prompts of the strategy."""
    if "Propose" in prompt:
        texts = [
            step_text(move, left) for move, left in moves(left_by(prompt) if "left:" in prompt else left_by(question))
        ]
        return "\n".join(f"{place}. {text}" for place, text in enumerate(texts, 1))
    steps = re.findall(r"\d+\. (.*)", prompt)
    if "How likely" in prompt:
        return f"Let me see.\nScore: {0.9 if can_reach_24(steps) else 0}"
    if "most promising" in prompt:
        good = [str(place) for place, text in enumerate(steps, 1) if can_reach_24([text])]
        return f"Best: {', '.join(good[:2])}"
    return expression(steps)


def playing(request: ModelRequest) -> str:
    messages = [*request.messages, *request.tail]
    return player(messages[-1].text, messages[0].text)


def rule(conversation: Conversation) -> Reply:
    return Reply(player(conversation.question, conversation.questions[0]))


QUESTION = "Make 24 from 4 9 10 13."


@pytest.mark.parametrize("numbers", ["4 9 10 13", "1 5 5 5", "3 3 8 8", "2 3 5 12"])
async def test_the_game_of_24_is_won_over_http(numbers: str) -> None:
    question = f"Make 24 from {numbers}."
    tree = tree_of_thoughts(propose=40, keep=2, depth=3, evaluate=can_reach_24, max_calls=8)
    offline = OfflineModel([rule])
    async with aclosing(offline.provider()) as model:
        run = Agent(model, strategy=tree).run(question)
        events = await collect(run)
        result = await run
        assert len(offline.requests) <= 6
    assert is_solution(question, result.output)
    assert is_legal(stage_path(events), "tree_of_thoughts")
    kept = [
        thought for thought in list_thoughts(events) if thought.confidence == 1 and thought.thought_type == "reasoning"
    ]
    assert all(can_reach_24([thought.content]) for thought in kept)
    assert {len(thought.thought_id.split("/")) for thought in kept} == {2, 3, 4}


@pytest.mark.parametrize("search", ["breadth", "best"])
@pytest.mark.parametrize("evaluate", ["value", "vote", can_reach_24])
async def test_it_is_won_however_it_is_judged_and_searched(search: Any, evaluate: Any) -> None:
    tree = tree_of_thoughts(propose=40, keep=2, depth=3, evaluate=evaluate, search=search, max_calls=400)
    model = ScriptedModel(*[playing] * 400)
    run = Agent(model, strategy=tree).run(QUESTION, limits=Limits(iterations=400))
    events = await collect(run)
    assert is_solution(QUESTION, (await run).output)
    assert is_legal(stage_path(events), "tree_of_thoughts")


async def test_a_tree_that_was_cut_off_over_http_goes_on_and_asks_nothing_again(tmp_path: Path) -> None:
    for number in range(1, 7):
        task_id, told = await cut_off(number, tmp_path)
        offline = OfflineModel([rule])
        async with aclosing(offline.provider()) as model:
            async with aclosing(SqliteEventLog(tmp_path / "runs.db")) as log:
                result = await Agent(model, strategy=TREE, log=log).resume(task_id)
                events = await log.read(task_id)
        assert is_solution(QUESTION, result.output)
        asked = [event.step for event in events if isinstance(event, LLMCallEvent) and event.attempt == 2]
        assert len(asked) == len(offline.requests)
        assert not told & set(asked)
        thoughts = [thought.thought_id for thought in list_thoughts(events)]
        assert len(thoughts) == len(set(thoughts))
        assert find_open_items(events) == set()
        assert is_legal(stage_path(events), "tree_of_thoughts")


TREE = tree_of_thoughts(propose=40, keep=2, depth=3, evaluate=can_reach_24)


async def cut_off(number: int, folder: Path) -> tuple[str, set[str | None]]:
    """A run that is cancelled at its `number`th model call, and the steps that it was told the answer of."""
    async with aclosing(OfflineModel([rule]).provider()) as model:
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


def always(request: ModelRequest) -> str:
    """Proposes three steps, likes the second best, and answers."""
    prompt = [*request.messages, *request.tail][-1].text
    if "Propose" in prompt:
        return "1. a\n2. b\n3. c"
    if "How likely" in prompt:
        return f"Score: {0.9 if prompt.split('. ')[-2].startswith('b') else 0.5}"
    return "Best: 2" if "most promising" in prompt else "answer"


@pytest.mark.parametrize("search", ["breadth", "best"])
@pytest.mark.parametrize("evaluate", ["value", "vote", len])
@pytest.mark.parametrize("most", [1, 2, 3, 5, 6, 7, 9, 12, 30])
async def test_it_never_makes_more_model_calls_than_its_budget(most: int, evaluate: Any, search: Any) -> None:
    model = ScriptedModel(*[always] * 200)
    tree = tree_of_thoughts(propose=3, keep=2, depth=4, evaluate=evaluate, max_calls=most, search=search)
    run = Agent(model, strategy=tree).run("Q", limits=Limits(iterations=200))
    events = await collect(run)
    assert (await run).output == "answer"
    assert len(model.requests) <= most
    assert is_legal(stage_path(events), "tree_of_thoughts")


@pytest.mark.parametrize("most", [1, 4, 5, 20])
async def test_the_limit_of_the_run_is_a_budget_too(most: int) -> None:
    model = ScriptedModel(*[always] * 40)
    result = await Agent(model, strategy=tree_of_thoughts(), limits=Limits(iterations=most)).run("Q")
    assert result.output == "answer"
    assert 0 < len(model.requests) <= most


@pytest.mark.parametrize(
    ("evaluate", "calls"),
    [
        # Three rounds of one, two and two thoughts that are taken further; what they give is judged; and the answer.
        ("value", 5 + 15 + 1),
        ("vote", 5 + 3 + 1),
        (len, 5 + 1),
    ],
)
async def test_the_number_of_model_calls_of_a_whole_tree(evaluate: Any, calls: int) -> None:
    model = ScriptedModel(*[voting if evaluate == "vote" else always] * 50)
    tree = tree_of_thoughts(propose=3, keep=2, depth=3, evaluate=evaluate)
    await Agent(model, strategy=tree).run("Q", limits=Limits(iterations=50))
    assert len(model.requests) == calls


def voting(request: ModelRequest) -> str:
    said = always(request)
    return "I like some.\n**Best:** 2 and 1" if said == "Best: 2" else said


# -- what is kept


async def test_the_best_are_kept_and_what_is_worth_nothing_is_dropped() -> None:
    # T74
    scores = {"a": 0.4, "b": 0.9, "c": 0.0}
    model = ScriptedModel(*[always] * 20)
    tree = tree_of_thoughts(propose=3, keep=1, depth=2, evaluate=lambda path: scores[path[-1]])
    run = Agent(model, strategy=tree).run("Q")
    events = await collect(run)
    thoughts = {thought.thought_id: thought for thought in list_thoughts(events)}
    assert [request.branch for request in model.requests] == ["tot", "tot/2", None]
    assert [thoughts[f"tot/{place}"].confidence for place in (1, 2, 3)] == [0.4, 0.9, 0.0]
    assert [thoughts[f"tot/2/{place}"].related_to for place in (1, 2, 3)] == ["tot/2"] * 3
    assert "1. b\n2. b" in model.requests[-1].tail[-1].text


@pytest.mark.parametrize(
    ("said", "score"),
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
async def test_a_score_is_read_in_the_ways_in_which_models_give_it(said: str, score: float) -> None:
    model = ScriptedModel("1. a", said, "answer")
    run = Agent(model, strategy=tree_of_thoughts(propose=1, depth=1)).run("Q")
    assert list_thoughts(await collect(run))[0].confidence == pytest.approx(score)


async def test_of_equals_those_that_were_proposed_first_are_kept() -> None:
    model = ScriptedModel(*[always] * 20)
    await Agent(model, strategy=tree_of_thoughts(propose=3, keep=2, depth=2, evaluate=lambda path: 1)).run("Q")
    assert [request.branch for request in model.requests] == ["tot", "tot/1", "tot/2", None]


async def test_the_best_thought_is_taken_further_wherever_it_stands() -> None:
    # "b" looks best, but what follows from it is worse than "a" was.
    scores: dict[tuple[str, ...], float] = {("a",): 0.8, ("b",): 0.9, ("a", "c"): 0.95}
    model = ScriptedModel(*[always] * 20)
    tree = tree_of_thoughts(depth=2, evaluate=lambda path: scores.get(tuple(path), 0.1), search="best")
    await Agent(model, strategy=tree).run("Q")
    assert [request.branch for request in model.requests] == ["tot", "tot/2", "tot/1", None]
    assert "1. a\n2. c" in model.requests[-1].tail[-1].text


async def test_a_judge_may_be_async_and_judges_side_by_side() -> None:
    judged = 0
    together = asyncio.Event()

    async def judge(path: Sequence[str]) -> float:
        nonlocal judged
        judged += 1
        if judged == 3:
            together.set()
        await together.wait()
        return 0.5

    model = ScriptedModel(*[always] * 20)
    assert (await Agent(model, strategy=tree_of_thoughts(depth=1, evaluate=judge)).run("Q")).output == "answer"


@pytest.mark.parametrize("said", ["", "\n\n", "1."])
async def test_a_model_that_proposes_nothing_still_answers(said: str) -> None:
    model = ScriptedModel(said, "I cannot say.")
    run = Agent(model, strategy=tree_of_thoughts()).run("Q")
    events = await collect(run)
    assert (await run).output == "I cannot say."
    assert is_legal(stage_path(events), "tree_of_thoughts")


async def test_when_all_is_dropped_the_last_that_was_kept_is_answered_from() -> None:
    model = ScriptedModel(*[always] * 20)
    tree = tree_of_thoughts(depth=3, evaluate=lambda path: len(path) < 2)
    await Agent(model, strategy=tree).run("Q")
    assert "1. a\n\n" in model.requests[-1].tail[-1].text


@pytest.mark.parametrize(
    "wrong", [{"propose": 0}, {"keep": 0}, {"depth": -1}, {"max_calls": 0}, {"evaluate": "values"}, {"search": "depth"}]
)
def test_arguments_that_make_no_tree_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        tree_of_thoughts(**wrong)
