"""Sequential strategies: linear, chain of thought, scratchpad, self-ask and step-back."""

from contextlib import aclosing
from typing import Any

import pytest

from rxloop import Agent, ConfigurationError, Event
from rxloop.pipeline.requests import Strategy
from rxloop.strategies import chain_of_thought, linear, scratchpad, self_ask, step_back
from rxloop.testing import Conversation, OfflineModel, Reply, ScriptedModel, call
from support.runs import collect, shape
from support.strategy_cases import add, is_legal, list_thoughts, stage_path


async def run_strategy(strategy: Strategy, *turns: Any, **agent: Any) -> tuple[str, list[Event], ScriptedModel]:
    model = ScriptedModel(*turns)
    run = Agent(model, strategy=strategy, **agent).run("How much is two and two?")
    events = await collect(run)
    assert is_legal(stage_path(events), getattr(strategy, "__name__", ""))
    return (await run).output, events, model


# -- chain of thought, step-back


async def test_each_step_of_a_chain_is_a_thought_related_to_the_previous_one() -> None:
    _, events, model = await run_strategy(chain_of_thought(), "1. Take two.\nIt is two.\n\n2. Add two.", "4")
    assert [(each.content, each.related_to) for each in list_thoughts(events)] == [
        ("1. Take two.\nIt is two.", None),
        ("2. Add two.", "chain_of_thought:1"),
    ]
    assert "think step by step" in model.requests[0].messages[-1].text
    assert shape(model.requests[1].tail)[1] == "assistant: 1. Take two.\nIt is two.\n\n2. Add two."


async def test_step_back_asks_for_principles_first() -> None:
    answer, events, model = await run_strategy(step_back(), "Addition is counting on.", "4")
    assert answer == "4"
    assert list_thoughts(events)[0].thought_type == "analysis"
    assert "do not solve" in model.requests[0].messages[-1].text
    assert "principles" in model.requests[1].tail[-1].text


# -- scratchpad


@pytest.mark.parametrize("last", ["x = 4\n**Done:** yes", "x = 4", "x = 4\nDONE: Yes."])
async def test_scratchpad_continues_until_the_model_reports_done(last: str) -> None:
    answer, events, model = await run_strategy(scratchpad(), "x = 2\nDone: no", "x = 3\n- Done: No", last, "4")
    assert answer == "4"
    assert len(model.requests) == 4
    assert stage_path(events).count("state_tracking") == 3


async def test_scratchpad_is_used_after_its_last_step() -> None:
    answer, _, model = await run_strategy(scratchpad(max_steps=2), "x = 2\nDone: no", "x = 3\nDone: no", "about 3")
    assert (answer, len(model.requests)) == ("about 3", 3)


# -- self-ask

BORN = {"Who wrote The Trumpet?": "Ada Holm wrote it.", "Where was Ada Holm born?": "She was born in Bergen."}


def answer_prompt(conversation: Conversation) -> Reply:
    """Ask for the author and then for the birthplace, and look up both with the tool."""
    prompt = conversation.question
    if prompt.startswith("Answer this question alone"):
        question = prompt.partition(": ")[2]
        return Reply(BORN[question]) if conversation.turn else Reply(calls=[("search", {"question": question})])
    if "Ada Holm wrote it." in prompt:
        return Reply("Follow up: Where was Ada Holm born?")
    return Reply("So the final answer is: Bergen" if "Bergen" in prompt else "Follow up: Who wrote The Trumpet?")


async def test_self_ask_answers_a_question_of_two_hops_over_http() -> None:
    questions: list[str] = []

    async def search(question: str) -> str:
        """Look up the answer."""
        questions.append(question)
        return BORN[question]

    async with aclosing(OfflineModel([answer_prompt]).provider()) as model:
        run = Agent(model, tools=[search], strategy=self_ask()).run("Where was the author of The Trumpet born?")
        events = await collect(run)
        assert (await run).output == "Bergen"
    assert questions == list(BORN)
    assert [(each.content, each.related_to) for each in list_thoughts(events)] == [
        ("Who wrote The Trumpet?", None),
        ("Ada Holm wrote it.", "self_ask:1"),
        ("Where was Ada Holm born?", "self_ask/1:1"),
        ("She was born in Bergen.", "self_ask:2"),
    ]
    assert is_legal(stage_path(events), "self_ask")


@pytest.mark.parametrize("reply", ["So the final answer is: 4", "**Final answer:** 4", "4"])
async def test_self_ask_answers_directly_without_sub_questions(reply: str) -> None:
    answer, _, model = await run_strategy(self_ask(), reply)
    assert (answer, len(model.requests)) == ("4", 1)


async def test_self_ask_concludes_after_the_last_sub_question() -> None:
    turns = ["Follow up: One?", "1", "Follow up: Two?", "2", "Perhaps 4."]
    answer, _, model = await run_strategy(self_ask(max_questions=2), *turns)
    assert (answer, len(model.requests)) == ("Perhaps 4.", 5)
    assert "Intermediate answer: 2" in model.requests[-1].tail[-1].text


async def test_each_sub_question_has_its_own_branch() -> None:
    turns = ["Follow up: One?", call("add", a=1, b=0), "1", "Follow up: Two?", "2", "So the final answer is: 3"]
    _, _, model = await run_strategy(self_ask(), *turns, tools=[add])
    assert [request.branch for request in model.requests] == [
        "self_ask",
        "self_ask/1",
        "self_ask/1",
        "self_ask",
        "self_ask/2",
        "self_ask",
    ]
    assert len(model.requests[4].messages) == 2


# -- linear


async def test_linear_thinking_continues_until_the_model_concludes() -> None:
    turns = ["a\nNext: continue", "b\nNext: branch", "c\nNext: conclude", "It is 4.\nHolds: yes", "4"]
    answer, events, _ = await run_strategy(linear(), *turns)
    assert answer == "4"
    assert {"thought_adjustment", "branch_creation"} <= set(stage_path(events))
    assert [thought.related_to for thought in list_thoughts(events)] == [None, "linear:1", "linear:2", "linear:3"]


async def test_rejected_hypothesis_returns_to_thinking() -> None:
    turns = ["a", "It is 5.\nHolds: no", "b", "It is 4.\nHolds: yes", "4"]
    answer, events, _ = await run_strategy(linear(), *turns)
    assert answer == "4"
    assert stage_path(events).count("hypothesis_verification") == 2


async def test_wrong_thought_is_revised() -> None:
    _, events, _ = await run_strategy(linear(), "5\nNext: revise", "4\nNext: conclude", "It is 4.\nHolds: yes", "4")
    assert [thought.thought_type for thought in list_thoughts(events)] == ["reasoning", "reflection", "decision"]


@pytest.mark.parametrize("max_thoughts", [1, 2, 3])
async def test_linear_respects_max_thoughts(max_thoughts: int) -> None:
    for verdict in ("continue", "revise", "branch"):
        turns = [f"a\nNext: {verdict}"] * max_thoughts + ["It is 5.\nHolds: no", "4"]
        answer, _, model = await run_strategy(linear(max_thoughts=max_thoughts), *turns)
        assert (answer, len(model.requests)) == ("4", max_thoughts + 2)


@pytest.mark.parametrize("make", [linear, scratchpad, self_ask])
def test_limit_below_one_is_refused(make: Any) -> None:
    with pytest.raises(ConfigurationError, match="must be an integer of at least 1, got 0"):
        make(0)
