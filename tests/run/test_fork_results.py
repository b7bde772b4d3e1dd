"""Forks with replaced tool results."""

import pytest

from rxloop import (
    ConfigurationError,
    ToolCompleteEvent,
    ToolError,
)
from rxloop.testing import call
from support.fork_shop import Shop, find_seq
from support.runs import collect


async def test_model_receives_the_replaced_results_of_a_fork(shop: Shop) -> None:
    parent = await shop.buy()
    at = await find_seq(shop.log, parent, "checkpoint")

    result = await shop.agent("No money then.").fork(parent, at, results={"p": "card declined", "l": {"n": 0}})

    assert result.output == "No money then."
    assert shop.request_shape()[3:] == ["tool: card declined", 'tool: {"n":0}']
    assert shop.effects == []
    answers = [event for event in await shop.log.read(result.task_id) if isinstance(event, ToolCompleteEvent)]
    assert {event.name: (event.success, event.result) for event in answers if event.name != "think_aloud"} == {
        "pay": (True, "card declined"),
        "look": (True, {"n": 0}),
    }


async def test_fork_can_answer_an_open_call_with_a_failure(shop: Shop) -> None:
    parent = await shop.buy()
    at = await find_seq(shop.log, parent, "content-complete")

    run = shop.agent("Then not.").fork(parent, at, results={"p": ToolError("card declined")})
    events = await collect(run)

    (payment,) = [event for event in events if isinstance(event, ToolCompleteEvent) and event.name == "pay"]
    assert (payment.attempt, payment.success) == (2, False)
    assert payment.error == payment.content == "card declined"
    assert events.index(payment) == at + 1
    assert shop.effects == ["look 1"]
    assert shop.request_shape()[3:] == ["tool: card declined", "tool: 1"]


async def test_fork_can_replace_a_failed_result_by_a_success(shop: Shop) -> None:
    parent = await shop.agent(call("pay", "x", amount="much"), "I cannot.").run("Buy it")
    at = await find_seq(shop.log, parent.task_id, "tool-complete")

    run = shop.agent("Bought.").fork(parent.task_id, at, results={"x": None})
    await run

    assert shop.request_shape()[-1] == "tool: null"
    (payment,) = [event for event in await shop.log.read(run.task_id) if isinstance(event, ToolCompleteEvent)]
    assert (payment.success, payment.error, payment.result) == (True, None, None)


async def test_fork_rejects_unknown_call_id_and_lists_the_known_calls(shop: Shop) -> None:
    parent = await shop.buy()
    at = await find_seq(shop.log, parent, "content-complete")

    with pytest.raises(
        ConfigurationError, match=r"results\['q'\] must be a call .*'p' \(pay, 1/1\), 'l' \(look, 1/2\)"
    ):
        await shop.agent().fork(parent, at, results={"q": 1})
    with pytest.raises(ConfigurationError, match=r"results\['p'\] must be a call .* up to event 2: none"):
        await shop.agent().fork(parent, 2, results={"p": 1})
    assert len(await shop.log.list_runs()) == 1


async def test_fork_identifies_calls_with_the_same_id_by_slot(shop: Shop) -> None:
    parent = await shop.agent(call("look", "0", n=1), call("look", "0", n=2), "Seen.").run("Look")
    at = await find_seq(shop.log, parent.task_id, "checkpoint", 1)

    with pytest.raises(
        ConfigurationError, match=r"results\['0'\] must be a slot, because 2 calls have this id: 1/0 or 2/0"
    ):
        await shop.agent().fork(parent.task_id, at, results={"0": 9})
    await shop.agent("Seen.").fork(parent.task_id, at, results={"2/0": 9})

    assert shop.request_shape() == ["user: Look", "assistant: look", "tool: 1", "assistant: look", "tool: 9"]
