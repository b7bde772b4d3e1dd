"""Self-consistency: samples, the vote among them, and when it is decided."""

from contextlib import aclosing
from typing import Any

import pytest

from rxloop import Agent, ConfigurationError, ContentCompleteEvent, RunError, StageEvent
from rxloop.errors import NoAnswers, ServerError
from rxloop.strategies import self_consistency
from rxloop.testing import ScriptedModel
from support.http_server import Reply, active_connections, chat_model, sse, start_server, text_reply
from support.runs import collect
from support.strategy_cases import find_open_items, is_legal, list_thoughts, stage_path


def says(*answers: str | Exception) -> ScriptedModel:
    return ScriptedModel(*(f"So.\nAnswer: {each}" if isinstance(each, str) else each for each in answers))


async def test_answers_that_differ_in_form_alone_are_one() -> None:
    # T77
    run = Agent(says("42", '"42 "', "7"), strategy=self_consistency(samples=3)).run("?")
    events = await collect(run)
    assert (await run).output == "42"
    assert is_legal(stage_path(events), "self_consistency")


async def test_on_a_tie_the_answer_that_was_given_first_wins() -> None:
    # T77
    for answers in (("7", "8"), ("7", "8", "8", "7"), ("1", "7", "7", "8", "8", "9")):
        run = Agent(says(*answers), strategy=self_consistency(samples=len(answers))).run("?")
        vote = list_thoughts(await collect(run))[-1]
        assert (await run).output == "7"
        assert "7:" in vote.content


async def test_a_line_that_fails_does_not_vote_and_the_vote_says_so() -> None:
    # T78
    run = Agent(says(ServerError("down"), "7", "8", "8"), strategy=self_consistency(samples=4)).run("?")
    events = await collect(run)
    assert (await run).output == "8"
    vote = list_thoughts(events)[-1]
    assert (vote.confidence, vote.thought_type) == (pytest.approx(2 / 3), "decision")
    assert "2 of 3 answers" in vote.content
    assert "1 without an answer" in vote.content
    assert find_open_items(events) == set()


async def test_without_any_answer_there_is_an_error_and_no_response() -> None:
    # T78
    run = Agent(says(ServerError("a"), ServerError("b")), strategy=self_consistency(samples=2)).run("?")
    events = await collect(run)
    with pytest.raises(RunError) as raised:
        await run
    assert raised.value.code == "server"
    assert "there is no vote" in "".join(getattr(raised.value.__cause__, "__notes__", []))
    assert "final_response" not in [event.to_stage for event in events if isinstance(event, StageEvent)]


@pytest.mark.parametrize(
    ("answers", "calls"),
    [
        (["4", "4", "4", "5", "5"], 3),
        (["4", "5", "4", "4", "5"], 4),
        (["4", "5", "4", "5", "4"], 5),
        (["4", "4", "5", "5", "4"], 5),
    ],
)
@pytest.mark.parametrize("concurrency", [None, 1])
async def test_it_asks_no_more_when_the_rest_cannot_change_the_outcome(
    answers: list[str], calls: int, concurrency: int | None
) -> None:
    model = says(*answers)
    run = Agent(model, strategy=self_consistency(samples=5, concurrency=concurrency)).run("?")
    assert (await run).output == "4"
    assert len(model.requests) == calls


async def test_lines_that_say_nothing_do_not_vote_either() -> None:
    # T78
    with pytest.raises(RunError, match="2 of 2 paths failed") as raised:
        await Agent(ScriptedModel("", " "), strategy=self_consistency(samples=2)).run("?")
    assert isinstance(raised.value.__cause__, NoAnswers)


async def test_a_line_that_has_failed_is_not_waited_for() -> None:
    model = says("7", ServerError("down"), "8")
    assert (await Agent(model, strategy=self_consistency(samples=3)).run("?")).output == "7"
    assert len(model.requests) == 2


async def test_over_http_the_lines_that_do_not_matter_any_more_are_closed() -> None:
    right = text_reply("Two and two. ", "Answer: 4")
    hangs = Reply(sse({"id": "c", "choices": [{"index": 0, "delta": {"content": "Well"}}]}, done=False), end="hang")
    async with start_server() as server:
        server.answer(right, hangs, right, hangs, right)
        async with aclosing(chat_model(server)) as model:
            run = Agent(model, strategy=self_consistency(samples=5)).run("2 + 2?")
            events = await collect(run)
            assert (await run).output == "4"
            assert not active_connections(model)
        await server.all_closed.wait()
    assert len(server.requests) == 5
    assert {received.body["temperature"] for received in server.requests} == {0.7}
    messages = [event for event in events if isinstance(event, ContentCompleteEvent) and event.branch]
    assert sorted(event.finish_reason for event in messages) == ["canceled", "canceled", "stop", "stop", "stop"]
    assert find_open_items(events) == set()


async def test_the_samples_are_as_warm_as_was_said_and_know_nothing_of_each_other() -> None:
    model = says("1", "1", "1")
    await Agent(model, strategy=self_consistency(samples=3, temperature=1.1)).run("?")
    assert {request.settings.temperature for request in model.requests} == {1.1}
    assert {len(request.messages) for request in model.requests} == {2}


@pytest.mark.parametrize("wrong", [{"samples": 0}, {"concurrency": -1}])
def test_arguments_that_make_no_vote_are_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        self_consistency(**wrong)
