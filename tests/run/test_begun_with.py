"""A run is resumed as it was begun: with its model, settings, limits and strategy, and whose it is."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from rxloop import (
    Agent,
    ConfigurationError,
    LimitReached,
    Limits,
    MemoryEventLog,
    ModelRequest,
    ModelSettings,
    TaskEvent,
)
from rxloop.strategies import react
from rxloop.testing import ScriptedModel, call, frames, virtual_time
from support.runs import first_events


async def begun(log: MemoryEventLog, **options: Any) -> str:
    """The id of a run that stopped in the middle of its first answer."""
    async with Agent(ScriptedModel(frames("--")), log=log).run("Hello", **options) as run:
        await run.begin()
    return run.task_id


async def task_of(log: MemoryEventLog, task_id: str) -> TaskEvent:
    task = (await log.read(task_id))[0]
    assert isinstance(task, TaskEvent)
    return task


async def with_options(log: MemoryEventLog, task_id: str, count: int, options: dict[str, Any]) -> MemoryEventLog:
    """A log with the first events of the run, and with other options in its `task`."""
    first, *rest = (await log.read(task_id))[:count]
    later = MemoryEventLog()
    await later.append(task_id, [first.model_copy(update={"options": options}), *rest], expected_seq=0)
    return later


@pytest.fixture
def log() -> MemoryEventLog:
    return MemoryEventLog()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ModelRequest]]:
    """Every request to a model that was made of a string, with that string."""
    requests: list[tuple[str, ModelRequest]] = []

    def make(name: str) -> ScriptedModel:
        def answer(request: ModelRequest) -> str:
            requests.append((name, request))
            return "Hi"

        return ScriptedModel(answer, answer)

    monkeypatch.setattr("rxloop.providers.factories.resolve_model", make)
    return requests


async def test_only_what_is_given_with_the_run_is_kept(log: MemoryEventLog) -> None:
    agent = Agent(ScriptedModel("Hi", "Hi"), log=log, settings=ModelSettings(seed=1), limits=Limits(iterations=3))
    plain = await agent.run("Hello")
    given = await agent.run("Hello", settings=ModelSettings(temperature=0.5), limits=Limits(tokens=None))

    task = await task_of(log, plain.task_id)
    assert task.options is None
    assert {"options", "owner"}.isdisjoint(orjson.loads(task.to_json()))
    assert (await task_of(log, given.task_id)).options == {"settings": {"temperature": 0.5}, "limits": {"tokens": None}}


async def test_a_run_belongs_to_its_owner(log: MemoryEventLog) -> None:
    result = await Agent(ScriptedModel("Hi"), log=log).run("Hello", owner="bob")

    assert (await task_of(log, result.task_id)).owner == "bob"
    with pytest.raises(ConfigurationError, match="owner=7"):
        Agent(ScriptedModel(), log=log).run("Hello", owner=7)  # pyright: ignore[reportArgumentType]


async def test_a_model_of_a_string_is_asked_again(log: MemoryEventLog, asked: list[tuple[str, ModelRequest]]) -> None:
    result = await Agent(ScriptedModel(), log=log).run("Hello", model="zai:glm-4.7")
    cut = await first_events(log, result.task_id, 2)

    await Agent(ScriptedModel(), log=cut).resume(result.task_id)
    assert [name for name, _ in asked] == ["zai:glm-4.7"] * 2


async def test_settings_and_limits_are_joined_field_by_field(log: MemoryEventLog) -> None:
    settings = ModelSettings(temperature=0.5, max_tokens=10, extra_body={"a": 1})
    task_id = await begun(log, settings=settings, limits=Limits(iterations=2, tool_failures=None))
    model = ScriptedModel("Hi")
    agent = Agent(model, log=log, settings=ModelSettings(seed=7), limits=Limits(iterations=9, tokens=50))
    run = agent.resume(task_id, settings=ModelSettings(max_tokens=20), limits=Limits(preparation=1))
    await run

    sent = model.requests[0].settings
    assert (sent.temperature, sent.max_tokens, sent.extra_body, sent.seed) == (0.5, 20, {"a": 1}, 7)
    limits = model.requests[0].ctx.limits
    assert (limits.iterations, limits.tool_failures, limits.preparation, limits.tokens) == (2, None, 1, 50)


async def test_headers_are_not_kept_since_they_hold_credentials(log: MemoryEventLog) -> None:
    task_id = await begun(log, settings=ModelSettings(headers={"authorization": "Bearer PLANTED"}, seed=1))
    model = ScriptedModel("Hi")
    await Agent(model, log=log, settings=ModelSettings(headers={"a": "b"})).resume(task_id)

    assert not any(b"PLANTED" in event.to_json() for event in await log.read(task_id))
    assert (model.requests[0].settings.headers, model.requests[0].settings.seed) == ({"a": "b"}, 1)


async def test_a_strategy_that_was_named_goes_on(log: MemoryEventLog, caplog: pytest.LogCaptureFixture) -> None:
    task_id = await begun(log, strategy="self_ask")
    await Agent(ScriptedModel("Follow up: none\nFinal answer: Hi", "Hi"), log=log).resume(task_id)

    stages = [event.kind for event in await log.read(task_id) if event.attempt == 2]
    assert "stage" in stages
    assert caplog.records == []


async def test_a_strategy_that_was_an_object_is_missed(log: MemoryEventLog, caplog: pytest.LogCaptureFixture) -> None:
    task_id = await begun(log, strategy=react())
    await Agent(ScriptedModel("Hi"), log=log).resume(task_id)

    assert "was begun with react and goes on with none" in caplog.text


def test_the_time_limit_of_the_run_holds_for_its_next_attempt(log: MemoryEventLog) -> None:
    async def resumed() -> float:
        task_id = await begun(log, limits=Limits(seconds=3))
        start = asyncio.get_running_loop().time()
        with pytest.raises(LimitReached, match="longer than 3"):
            await Agent(ScriptedModel(frames("-" * 1000)), log=log, limits=Limits(seconds=1)).resume(task_id)
        return asyncio.get_running_loop().time() - start

    with virtual_time() as time:
        assert time.run(resumed()) == 3


@pytest.mark.parametrize(("own", "told"), [("other", True), ("same", False)])
async def test_a_model_that_was_an_object_is_the_agents_own_or_it_is_told(
    own: str, told: bool, log: MemoryEventLog, caplog: pytest.LogCaptureFixture
) -> None:
    task_id = await begun(log, model=named("same"))
    await Agent(named(own), log=log).resume(task_id)

    assert ("was begun with the model same" in caplog.text) is told


async def test_who_chooses_the_model_of_a_resumption_is_told_nothing(
    log: MemoryEventLog, caplog: pytest.LogCaptureFixture
) -> None:
    task_id = await begun(log, model=named("same"))
    agent = Agent(named("own"), log=log)
    await agent.resume(task_id, model=named("chosen"))
    task_id = await begun(log, model=named("same"))
    with agent.override(model=named("test")):
        run = agent.resume(task_id)
    await run

    assert caplog.text == ""


def named(name: str) -> ScriptedModel:
    return ScriptedModel("Hi" if name != "same" else frames("-Hi|", 0.001), name=name)


async def test_an_override_goes_before_what_a_run_was_begun_with(
    log: MemoryEventLog, asked: list[tuple[str, ModelRequest]]
) -> None:
    task_id = await begun(log, settings=ModelSettings(seed=3))
    instead = ScriptedModel("instead")
    agent = Agent(ScriptedModel(), log=log)
    with agent.override(model=instead):
        run = agent.resume(task_id)

    assert (await run).output == "instead"
    assert instead.requests[0].settings.seed == 3


async def test_a_run_that_is_over_needs_nothing_of_it(log: MemoryEventLog) -> None:
    result = await Agent(ScriptedModel("Hi"), log=log).run("Hello")
    later = await with_options(log, result.task_id, 99, {"model": "nowhere:none"})

    assert (await Agent(ScriptedModel(), log=later).resume(result.task_id)).output == "Hi"


async def test_a_run_is_given_up_though_its_model_is_gone(log: MemoryEventLog) -> None:
    task_id = await begun(log, limits=Limits(iterations=3))
    later = await with_options(log, task_id, 2, {"model": "nowhere:none"})
    agent = Agent(ScriptedModel(), log=later)
    with pytest.raises(ConfigurationError, match="nowhere"):
        await agent.resume(task_id).begin()
    await agent.get_run(task_id).cancel("not needed")

    assert (await later.list_runs())[0].state == "canceled"


async def test_a_fork_keeps_its_own_options(log: MemoryEventLog) -> None:
    agent = Agent(ScriptedModel(call("none"), "Hi", "Forked"), log=log)
    result = await agent.run("Hello", settings=ModelSettings(seed=1), owner="bob")
    fork = await agent.fork(result.task_id, at=3, limits=Limits(iterations=4))

    task = await task_of(log, fork.task_id)
    assert task.options == {"limits": {"iterations": 4}}
    assert task.owner == "bob"


async def test_what_cannot_be_written_is_refused_with_the_run() -> None:
    with pytest.raises(ConfigurationError, match=r"settings\.extra_body"):
        Agent(ScriptedModel()).run("Hello", settings=ModelSettings(extra_body={"a": object()}))


async def test_options_of_a_later_version_are_an_error_that_says_so(log: MemoryEventLog) -> None:
    task_id = await begun(log, limits=Limits(iterations=4))
    later = await with_options(log, task_id, 9, {"limits": {"moonPhase": 1}})

    with pytest.raises(ConfigurationError, match="moonPhase"):
        await Agent(ScriptedModel(), log=later).resume(task_id).begin()
