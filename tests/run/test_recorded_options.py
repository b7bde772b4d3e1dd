"""A resumed run keeps its model, settings, limits, strategy and owner."""

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
from support.runs import copy_first_events


async def start_run(log: MemoryEventLog, **options: Any) -> str:
    """Interrupt a run during its first answer and return its id."""
    async with Agent(ScriptedModel(frames("--")), log=log).run("Hello", **options) as run:
        await run.begin()
    return run.task_id


async def read_task_event(log: MemoryEventLog, task_id: str) -> TaskEvent:
    task = (await log.read(task_id))[0]
    assert isinstance(task, TaskEvent)
    return task


async def replace_options(log: MemoryEventLog, task_id: str, count: int, options: dict[str, Any]) -> MemoryEventLog:
    """Copy the first events into a new log with other recorded options."""
    first, *rest = (await log.read(task_id))[:count]
    newer_log = MemoryEventLog()
    await newer_log.append(task_id, [first.model_copy(update={"options": options}), *rest], expected_seq=0)
    return newer_log


@pytest.fixture
def log() -> MemoryEventLog:
    return MemoryEventLog()


@pytest.fixture
def model_requests(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ModelRequest]]:
    """Requests with their model names."""
    requests: list[tuple[str, ModelRequest]] = []

    def make_model(name: str) -> ScriptedModel:
        def answer(request: ModelRequest) -> str:
            requests.append((name, request))
            return "Hi"

        return ScriptedModel(answer, answer)

    monkeypatch.setattr("rxloop.providers.factories.resolve_model", make_model)
    return requests


async def test_only_options_of_the_run_are_recorded(log: MemoryEventLog) -> None:
    agent = Agent(ScriptedModel("Hi", "Hi"), log=log, settings=ModelSettings(seed=1), limits=Limits(iterations=3))
    plain = await agent.run("Hello")
    configured = await agent.run("Hello", settings=ModelSettings(temperature=0.5), limits=Limits(tokens=None))

    task = await read_task_event(log, plain.task_id)
    assert task.options is None
    assert {"options", "owner"}.isdisjoint(orjson.loads(task.to_json()))
    assert (await read_task_event(log, configured.task_id)).options == {
        "settings": {"temperature": 0.5},
        "limits": {"tokens": None},
    }


async def test_owner_of_run_is_recorded(log: MemoryEventLog) -> None:
    result = await Agent(ScriptedModel("Hi"), log=log).run("Hello", owner="bob")

    assert (await read_task_event(log, result.task_id)).owner == "bob"
    with pytest.raises(ConfigurationError, match=r"owner must be a string.*got 7"):
        Agent(ScriptedModel(), log=log).run("Hello", owner=7)  # pyright: ignore[reportArgumentType]


async def test_resume_calls_the_model_recorded_as_a_string(
    log: MemoryEventLog, model_requests: list[tuple[str, ModelRequest]]
) -> None:
    result = await Agent(ScriptedModel(), log=log).run("Hello", model="zai:glm-4.7")
    truncated_log = await copy_first_events(log, result.task_id, 2)

    await Agent(ScriptedModel(), log=truncated_log).resume(result.task_id)
    assert [name for name, _ in model_requests] == ["zai:glm-4.7"] * 2


async def test_resume_merges_settings_and_limits_field_by_field(log: MemoryEventLog) -> None:
    settings = ModelSettings(temperature=0.5, max_tokens=10, extra_body={"a": 1})
    task_id = await start_run(log, settings=settings, limits=Limits(iterations=2, tool_failures=None))
    model = ScriptedModel("Hi")
    agent = Agent(model, log=log, settings=ModelSettings(seed=7), limits=Limits(iterations=9, tokens=50))
    run = agent.resume(task_id, settings=ModelSettings(max_tokens=20), limits=Limits(preparation=1))
    await run

    sent = model.requests[0].settings
    assert (sent.temperature, sent.max_tokens) == (0.5, 20)
    assert (sent.extra_body, sent.seed) == ({"a": 1}, 7)
    limits = model.requests[0].ctx.info.limits
    assert (limits.iterations, limits.tool_failures) == (2, None)
    assert (limits.preparation, limits.tokens) == (1, 50)


async def test_headers_are_not_recorded_because_they_hold_credentials(log: MemoryEventLog) -> None:
    task_id = await start_run(log, settings=ModelSettings(headers={"authorization": "Bearer PLANTED"}, seed=1))
    model = ScriptedModel("Hi")
    await Agent(model, log=log, settings=ModelSettings(headers={"a": "b"})).resume(task_id)

    assert not any(b"PLANTED" in event.to_json() for event in await log.read(task_id))
    assert (model.requests[0].settings.headers, model.requests[0].settings.seed) == ({"a": "b"}, 1)


async def test_resume_uses_the_strategy_recorded_by_name(log: MemoryEventLog, caplog: pytest.LogCaptureFixture) -> None:
    task_id = await start_run(log, strategy="self_ask")
    await Agent(ScriptedModel("Follow up: none\nFinal answer: Hi", "Hi"), log=log).resume(task_id)

    stages = [event.kind for event in await log.read(task_id) if event.attempt == 2]
    assert "stage" in stages
    assert caplog.records == []


async def test_resume_warns_when_the_strategy_was_an_object(
    log: MemoryEventLog, caplog: pytest.LogCaptureFixture
) -> None:
    task_id = await start_run(log, strategy=react())
    await Agent(ScriptedModel("Hi"), log=log).resume(task_id)

    assert "was started using react, but is being resumed using none" in caplog.text


def test_time_limit_of_run_applies_to_its_next_attempt(log: MemoryEventLog) -> None:
    async def resume_until_timeout() -> float:
        task_id = await start_run(log, limits=Limits(seconds=3))
        start = asyncio.get_running_loop().time()
        with pytest.raises(LimitReached, match="longer than 3"):
            await Agent(ScriptedModel(frames("-" * 1000)), log=log, limits=Limits(seconds=1)).resume(task_id)
        return asyncio.get_running_loop().time() - start

    with virtual_time() as time:
        assert time.run(resume_until_timeout()) == 3


@pytest.mark.parametrize(("own_model", "warns"), [("other", True), ("same", False)])
async def test_resume_warns_when_the_model_object_is_not_the_model_of_the_agent(
    own_model: str, warns: bool, log: MemoryEventLog, caplog: pytest.LogCaptureFixture
) -> None:
    task_id = await start_run(log, model=make_named_model("same"))
    await Agent(make_named_model(own_model), log=log).resume(task_id)

    assert ("started with model same" in caplog.text) is warns


async def test_resume_does_not_warn_when_the_caller_chooses_the_model(
    log: MemoryEventLog, caplog: pytest.LogCaptureFixture
) -> None:
    task_id = await start_run(log, model=make_named_model("same"))
    agent = Agent(make_named_model("own"), log=log)
    await agent.resume(task_id, model=make_named_model("chosen"))
    task_id = await start_run(log, model=make_named_model("same"))
    with agent.override(model=make_named_model("test")):
        run = agent.resume(task_id)
    await run

    assert caplog.text == ""


def make_named_model(name: str) -> ScriptedModel:
    return ScriptedModel("Hi" if name != "same" else frames("-Hi|", 0.001), name=name)


async def test_override_replaces_recorded_model_but_keeps_recorded_settings(
    log: MemoryEventLog, model_requests: list[tuple[str, ModelRequest]]
) -> None:
    task_id = await start_run(log, settings=ModelSettings(seed=3))
    replacement = ScriptedModel("instead")
    agent = Agent(ScriptedModel(), log=log)
    with agent.override(model=replacement):
        run = agent.resume(task_id)

    assert (await run).output == "instead"
    assert replacement.requests[0].settings.seed == 3


async def test_finished_run_is_resumed_without_its_recorded_model(log: MemoryEventLog) -> None:
    result = await Agent(ScriptedModel("Hi"), log=log).run("Hello")
    newer_log = await replace_options(log, result.task_id, 99, {"model": "nowhere:none"})

    assert (await Agent(ScriptedModel(), log=newer_log).resume(result.task_id)).output == "Hi"


async def test_run_can_be_canceled_when_its_recorded_model_is_unavailable(log: MemoryEventLog) -> None:
    task_id = await start_run(log, limits=Limits(iterations=3))
    newer_log = await replace_options(log, task_id, 2, {"model": "nowhere:none"})
    agent = Agent(ScriptedModel(), log=newer_log)
    with pytest.raises(ConfigurationError, match="nowhere"):
        await agent.resume(task_id).begin()
    await agent.get_run(task_id).cancel("not needed")

    assert (await newer_log.list_runs())[0].state == "canceled"


async def test_fork_records_its_own_options_and_keeps_the_owner(log: MemoryEventLog) -> None:
    agent = Agent(ScriptedModel(call("none"), "Hi", "Forked"), log=log)
    result = await agent.run("Hello", settings=ModelSettings(seed=1), owner="bob")
    fork = await agent.fork(result.task_id, at=3, limits=Limits(iterations=4))

    task = await read_task_event(log, fork.task_id)
    assert task.options == {"limits": {"iterations": 4}}
    assert task.owner == "bob"


async def test_run_rejects_settings_that_cannot_be_recorded() -> None:
    with pytest.raises(ConfigurationError, match=r"settings\.extra_body"):
        Agent(ScriptedModel()).run("Hello", settings=ModelSettings(extra_body={"a": object()}))


async def test_resume_names_recorded_option_of_a_later_version(log: MemoryEventLog) -> None:
    task_id = await start_run(log, limits=Limits(iterations=4))
    newer_log = await replace_options(log, task_id, 9, {"limits": {"moonPhase": 1}})

    with pytest.raises(ConfigurationError, match="moonPhase"):
        await Agent(ScriptedModel(), log=newer_log).resume(task_id).begin()
