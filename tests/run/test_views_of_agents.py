"""Views that agents and runtimes subscribe to every run."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import reactivex
import reactivex.operators as rx

from rxloop import Agent, Event, MemoryEventLog, RunContext, Runtime, op, tool
from rxloop.errors import ConfigurationError, RunExists
from rxloop.stream.sources import subscribe_views
from rxloop.testing import ScriptedModel, call


@tool
async def confirm(ctx: RunContext[Any]) -> str:
    """Asks."""
    return str(await ctx.ask("Sure?"))


def collect_kinds(kinds: list[str]) -> Any:
    """Return a view that records the kinds of durable events."""
    durable = rx.filter(lambda event: event.durable)  # pyright: ignore[reportAttributeAccessIssue]
    return reactivex.compose(durable, rx.do_action(lambda event: kinds.append(event.kind)))


async def test_view_receives_every_run_from_its_first_event_and_has_a_state_for_each() -> None:
    kinds: list[str] = []
    agent = Agent(ScriptedModel("a", "b"), views=[collect_kinds(kinds), op.stats()])
    await agent.run("1")
    once = list(kinds)
    await agent.run("2")

    assert once[0] == "task"
    assert once.count("status-update") == 2
    assert kinds == once * 2


async def test_view_receives_each_attempt_and_nested_runs_once() -> None:
    kinds: list[str] = []
    inner = Agent(ScriptedModel("inside"), name="inner", views=[collect_kinds([])])
    model = ScriptedModel(call("inner", prompt="?"), call("confirm"), "done")
    agent = Agent(model, tools=[inner.as_tool(), confirm], log=MemoryEventLog(), views=[collect_kinds(kinds)])
    paused = await agent.run("Go.")
    assert kinds.count("task") == 2
    seen = len(kinds)
    await agent.resume(paused.task_id, inputs={paused.pending[0].input_id: True})
    assert kinds[seen] == "status-update"


async def test_views_of_nested_agents_receive_their_runs_once() -> None:
    own, shared, names = list[str](), list[str](), list[str]()
    view = collect_kinds(shared)
    ends = rx.do_action(on_completed=lambda: names.append("completed"))
    record = rx.do_action(lambda event: names.append(event.task_id))  # pyright: ignore[reportAttributeAccessIssue]
    leaf = Agent(ScriptedModel("leaf", "leaf"), name="leaf", views=[view])
    views = [collect_kinds(own), view, reactivex.compose(record, ends)]
    inner = Agent(
        ScriptedModel(*[call("leaf", prompt="?"), "inside"] * 2), name="inner", tools=[leaf.as_tool()], views=views
    )
    calls = call("inner", prompt="?"), call("inner", prompt="?")
    result = await Agent(ScriptedModel(*calls, "done"), tools=[inner.as_tool()]).run("Go.")

    assert own == shared
    assert own[: len(own) // 2] * 2 == own
    assert own.count("task") == 4
    assert own[-1] == "status-update"
    assert names.count("completed") == 2
    assert names[-1] == "completed"
    assert result.task_id not in names


@pytest.mark.parametrize("failure", ["event", "subscription", "view"])
async def test_failing_view_is_logged_and_does_not_end_the_run(failure: str, caplog: pytest.LogCaptureFixture) -> None:
    def fail(event: Event) -> None:
        raise ValueError("broken view")

    def fail_at_once(source: Any) -> Any:
        raise ValueError("broken view")

    kinds: list[str] = []
    view = {
        "event": rx.do_action(fail),
        "subscription": fail_at_once,
        "view": lambda source: reactivex.throw(ValueError("broken view")),
    }[failure]
    agent = Agent(ScriptedModel("done"), views=[view, collect_kinds(kinds)])
    with caplog.at_level(logging.WARNING, "rxloop"):
        result = await agent.run("Go.")

    assert result.output == "done"
    assert kinds[-1] == "status-update"
    assert "broken view" in caplog.text
    assert [vars(record)["task"] for record in caplog.records] == [result.task_id]


@pytest.mark.parametrize("is_refused", [True, False])
def test_refusal_of_a_run_is_not_reported_as_a_failing_view(is_refused: bool, caplog: pytest.LogCaptureFixture) -> None:
    source = reactivex.throw(RunExists("another process has just started the run"))
    subscribe_views(source, [op.stats()], None, lambda error: is_refused, "r1")
    assert ("A view of run r1 failed" in caplog.text) is not is_refused


async def test_runtime_subscribes_its_views_to_the_runs_of_all_agents() -> None:
    own: list[str] = []
    shared: list[str] = []
    agents = {"a": Agent(ScriptedModel("x"), views=[collect_kinds(own)]), "b": Agent(ScriptedModel("y"))}
    async with Runtime(agents, log=MemoryEventLog(), views=[collect_kinds(shared)]) as runtime:
        for name in agents:
            record = await runtime.start(name, "Go.")
            async for _ in runtime.follow(record.task_id):
                pass
    assert shared.count("llm-call") == 2
    assert own.count("llm-call") == 1


def test_views_must_be_a_list_of_views() -> None:
    views: Any
    for views, message in [
        (op.spans, "views must be a list"),
        ([op.spans], "call it"),
        ([op.call_model()], "loop operator"),
        ([3], "got 3"),
    ]:
        with pytest.raises(ConfigurationError, match=message):
            Agent(ScriptedModel("x"), views=views)
