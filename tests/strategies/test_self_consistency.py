"""Self-consistency: sampling and voting."""

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


def make_model(*answers: str | Exception) -> ScriptedModel:
    return ScriptedModel(*(f"So.\nAnswer: {each}" if isinstance(each, str) else each for each in answers))


async def test_equivalent_answers_are_counted_together() -> None:
    # T77
    run = Agent(make_model("42", '"42 "', "7"), strategy=self_consistency(samples=3)).run("?")
    events = await collect(run)
    assert (await run).output == "42"
    assert is_legal(stage_path(events), "self_consistency")


async def test_first_answer_wins_a_tie() -> None:
    # T77
    for answers in (("7", "8"), ("7", "8", "8", "7"), ("1", "7", "7", "8", "8", "9")):
        run = Agent(make_model(*answers), strategy=self_consistency(samples=len(answers))).run("?")
        vote = list_thoughts(await collect(run))[-1]
        assert (await run).output == "7"
        assert "7:" in vote.content


async def test_failed_sample_does_not_vote_and_is_reported() -> None:
    # T78
    run = Agent(make_model(ServerError("down"), "7", "8", "8"), strategy=self_consistency(samples=4)).run("?")
    events = await collect(run)
    assert (await run).output == "8"
    vote = list_thoughts(events)[-1]
    assert (vote.confidence, vote.thought_type) == (pytest.approx(2 / 3), "decision")
    assert "2 of 3 answers" in vote.content
    assert "1 without an answer" in vote.content
    assert find_open_items(events) == set()


async def test_run_fails_when_all_samples_fail() -> None:
    # T78
    run = Agent(make_model(ServerError("a"), ServerError("b")), strategy=self_consistency(samples=2)).run("?")
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
async def test_sampling_stops_when_the_vote_is_decided(answers: list[str], calls: int, concurrency: int | None) -> None:
    model = make_model(*answers)
    run = Agent(model, strategy=self_consistency(samples=5, concurrency=concurrency)).run("?")
    assert (await run).output == "4"
    assert len(model.requests) == calls


async def test_empty_samples_do_not_vote() -> None:
    # T78
    with pytest.raises(RunError, match="2 of 2 samples failed") as raised:
        await Agent(ScriptedModel("", " "), strategy=self_consistency(samples=2)).run("?")
    assert isinstance(raised.value.__cause__, NoAnswers)


async def test_vote_is_decided_without_the_failed_sample() -> None:
    model = make_model("7", ServerError("down"), "8")
    assert (await Agent(model, strategy=self_consistency(samples=3)).run("?")).output == "7"
    assert len(model.requests) == 2


async def test_remaining_samples_are_closed_over_http_after_the_decision() -> None:
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


async def test_samples_have_the_given_temperature_and_do_not_see_each_other() -> None:
    model = make_model("1", "1", "1")
    await Agent(model, strategy=self_consistency(samples=3, temperature=1.1)).run("?")
    assert {request.settings.temperature for request in model.requests} == {1.1}
    assert {len(request.messages) for request in model.requests} == {2}


@pytest.mark.parametrize("wrong", [{"samples": 0}, {"concurrency": -1}])
def test_invalid_arguments_are_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        self_consistency(**wrong)
