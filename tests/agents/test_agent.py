"""Agent options, validation and closing."""

import asyncio
from typing import Any

import pytest

from rxloop import (
    Agent,
    ConfigurationError,
    ContentCompleteEvent,
    Limits,
    MemoryEventLog,
    Message,
    ModelSettings,
    Result,
    RunCancelled,
    RunContext,
    RxloopError,
    TaskEvent,
    op,
    tool,
)
from rxloop.protocol.messages import ToolCall
from rxloop.testing import OfflineModel, ScriptedModel, call, frames, virtual_time
from support.offline_server import serve_offline
from support.runs import collect, is_well_formed, outcome


@tool
async def look(n: int = 0) -> int:
    """Looks."""
    return n


async def test_instructions_are_the_system_prompt_and_not_in_the_history() -> None:
    model = ScriptedModel("Hello.")
    result = await Agent(model, instructions="Be brief.").run("Hi")

    assert model.requests[0].system == (Message.system("Be brief."),)
    assert [message.role for message in result.messages] == ["user", "assistant"]


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_instructions_can_be_a_function_of_the_context(asynchronous: bool) -> None:
    async def instruct_async(ctx: RunContext[str]) -> str:
        await asyncio.sleep(0)
        return f"You help {ctx.deps}, {ctx.metadata['plan']}."

    def instruct(ctx: RunContext[str]) -> str:
        return f"You help {ctx.deps}, {ctx.metadata['plan']}."

    model = ScriptedModel("Hello.")
    agent = Agent(model, instructions=instruct_async if asynchronous else instruct, deps_type=str)
    await agent.run("Hi", deps="Ann", metadata={"plan": "pro"})

    assert model.requests[0].system == (Message.system("You help Ann, pro."),)


async def test_request_without_instructions_has_no_system_message() -> None:
    model = ScriptedModel("Hello.")
    await Agent(model).run("Hi")

    assert model.requests[0].system == ()


async def test_tool_context_has_the_deps_and_ids_of_the_run() -> None:
    values: list[Any] = []

    @tool
    async def peek(ctx: RunContext[dict[str, int]]) -> str:
        """Peeks."""
        values.extend([ctx.deps, ctx.task_id, ctx.context_id, ctx.attempt, ctx.agent_name, ctx.step, ctx.index])
        values.append(ctx.usage.total_tokens)
        return "ok"

    agent = Agent(ScriptedModel(call("peek"), "done"), name="peeker", tools=[peek], deps_type=dict[str, int])
    result = await agent.run("Hi", deps={"a": 1})

    assert values == [{"a": 1}, result.task_id, result.context_id, 1, "peeker", "1", 0, 0]


async def test_run_can_override_model_settings_and_strategy() -> None:
    default_model, second = ScriptedModel(), ScriptedModel("other", name="other")
    agent = Agent(default_model, settings=ModelSettings(temperature=0.1, seed=1), limits=Limits(iterations=1))
    pipelines: list[Any] = []

    def strategy(pipeline: Any) -> Any:
        pipelines.append(pipeline)
        return op.iterate(pipeline)

    run = agent.run("Hi", model=second, settings=ModelSettings(temperature=0.9), strategy=strategy)
    events = await collect(run)

    assert isinstance(events[0], TaskEvent)
    assert events[0].model == "other"
    assert second.requests[0].settings == ModelSettings(temperature=0.9, seed=1)
    assert default_model.requests == []
    assert len(pipelines) == 1


@pytest.mark.parametrize("prompt", [[], ()])
async def test_run_rejects_empty_prompt(prompt: Any) -> None:
    with pytest.raises(ConfigurationError, match="the prompt must not be empty"):
        Agent(ScriptedModel()).run(prompt)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tools": [look, look]}, "two tools are named 'look'"),
        ({"tools": [7]}, "a tool must be a function"),
        ({"output_mode": "telepathy", "output_type": int}, "output_mode"),
    ],
)
async def test_agent_rejects_invalid_option_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Agent(ScriptedModel(), **fields)


@pytest.mark.parametrize("model", ["nobody:x", "zai:", ""])
async def test_unknown_model_string_is_rejected_immediately(model: str) -> None:
    with pytest.raises(ConfigurationError):
        Agent(model)
    with pytest.raises(ConfigurationError):
        Agent(ScriptedModel()).run("Hi", model=model)


async def test_think_aloud_is_offered_unless_thoughts_are_off() -> None:  # L15, L16
    for thoughts, expected in [(True, ["look", "think_aloud"]), (False, ["look"])]:
        model = ScriptedModel("done")
        await Agent(model, tools=[look], thoughts=thoughts).run("Hi")
        assert [definition.name for definition in model.requests[0].tools] == expected


async def test_result_without_an_event_loop_raises_with_the_remedy() -> None:
    agent = Agent(ScriptedModel("done"))

    def use_without_loop() -> str:
        run = agent.run("Hi")
        with pytest.raises(RxloopError, match="run_sync"):
            run.result().send(None)
        return asyncio.run(run.result()).output

    assert await asyncio.to_thread(use_without_loop) == "done"


def test_run_sync_returns_the_result() -> None:
    agent = Agent(ScriptedModel(call("look", n=3), "done", "again"), tools=[look])

    assert agent.run_sync("Hi").output == "done"
    assert agent.run_sync("Hi").output == "again"


async def test_run_sync_inside_an_event_loop_raises_with_the_remedy() -> None:
    with pytest.raises(RxloopError, match=r"await agent\.run"):
        Agent(ScriptedModel("done")).run_sync("Hi")


async def test_override_applies_only_to_runs_created_inside_it() -> None:
    default_model = ScriptedModel("usual", "usual")
    agent = Agent(default_model, tools=[look])
    entered = asyncio.Event()

    async def run_outside() -> str:
        await entered.wait()
        return (await agent.run("Hi")).output

    task = asyncio.create_task(run_outside())
    await asyncio.sleep(0)
    fake = ScriptedModel("fake", "inner")
    with agent.override(model=fake, tools=[]):
        entered.set()
        assert (await agent.run("Hi")).output == "fake"
        with agent.override(tools=[look]):
            assert (await agent.run("Hi")).output == "inner"
        assert await task == "usual"
    assert (await agent.run("Hi")).output == "usual"

    assert [[tool.name for tool in request.tools] for request in fake.requests] == [
        ["think_aloud"],
        ["look", "think_aloud"],
    ]


def test_aclose_cancels_runs_and_rejects_later_runs() -> None:  # L123
    log = MemoryEventLog()
    with virtual_time() as time:

        async def main() -> Result[str]:
            model = ScriptedModel(frames("--never-"), "later")
            agent = Agent(model, log=log)
            run = agent.run("Hi")
            run.events.subscribe(lambda event: None)
            await asyncio.sleep(0.03)

            await agent.aclose()
            await agent.aclose()

            assert model.open == 0
            with pytest.raises(RxloopError, match="closed"):
                agent.run("Again")
            with pytest.raises(RunCancelled):
                await run
            return await outcome(run)

        result = time.run(main())

    assert result.state == "canceled"
    assert [record.state for record in asyncio.run(log.list_runs())] == ["canceled"]


async def test_async_with_closes_the_agent() -> None:
    async with Agent(ScriptedModel("done")) as agent:
        assert (await agent.run("Hi")).output == "done"

    with pytest.raises(RxloopError, match="closed"):
        agent.run("Again")


async def test_aclose_does_not_close_a_provider_of_the_caller() -> None:
    closed: list[str] = []

    class CountingModel(ScriptedModel):
        async def aclose(self) -> None:
            closed.append("closed")

    async with Agent(CountingModel("done")) as agent:
        await agent.run("Hi")

    assert closed == []


async def test_agent_keeps_no_state_of_its_runs() -> None:
    agent = Agent(ScriptedModel("one", "two", "three"))
    before = {name: value for name, value in vars(agent).items() if not name.startswith("_live")}

    await agent.run("Hi")
    await asyncio.gather(agent.run("Hi").result(), agent.run("Hi").result())

    assert {name: value for name, value in vars(agent).items() if not name.startswith("_live")} == before


async def test_runs_record_the_name_of_their_agent() -> None:
    log = MemoryEventLog()
    await Agent(ScriptedModel("done"), name="planner", log=log).run("Hi")

    assert [record.agent_name for record in await log.list_runs()] == ["planner"]


def make_weather_tool() -> Any:
    @tool(idempotent=True)
    async def get_weather(city: str) -> str:
        """Current weather for a city."""
        return f"{len(city)} C"

    return get_weather


async def test_views_send_no_request_until_read_and_share_one_request() -> None:  # L52, L53
    offline = OfflineModel()
    agent = Agent(offline.provider())
    run = agent.run("What is 6 * 7?")
    views = run.text(), run.pipe(op.usage()), run.events
    await asyncio.sleep(0)
    assert offline.requests == []

    texts, usage, events = await asyncio.gather(*map(read_all, views))
    result = await run

    assert len(offline.requests) == 1
    assert "".join(texts) == result.output
    assert len(usage) == 1
    assert events[-1].content == result.output
    await agent.model.aclose()


async def read_all(stream: Any) -> list[Any]:
    return [item async for item in stream]


async def test_exit_of_a_run_closes_the_connection_of_its_model() -> None:  # L54
    offline = OfflineModel(delay=0.01)
    with serve_offline(offline) as url:
        agent = Agent(f"{url}#demo")
        async with agent.run("Plan a weekend in Oslo.") as run:
            async for _ in run.text():
                assert offline.open == 1
                break
        async with asyncio.timeout(5):
            while offline.open:  # noqa: ASYNC110
                await asyncio.sleep(0)
        await agent.aclose()


async def test_interleaved_streaming_calls_are_ordered_and_answered() -> None:  # L55, L56
    offline = OfflineModel()
    agent = Agent(offline.provider(), tools=[make_weather_tool()])
    run = agent.run("Is it warmer in Oslo or in Bergen?")
    completes = [event async for event in run if isinstance(event, ContentCompleteEvent)]
    result = await run

    cities = [call.arguments["city"] for call in completes[0].tool_calls if call.name == "get_weather"]
    assert cities == ["Oslo", "Bergen"]
    assert completes[0].finish_reason == "tool_calls"
    assert "Bergen" in result.output
    assert is_well_formed(result.messages)
    await agent.model.aclose()


async def test_tool_results_of_a_prompt_are_sent_in_the_order_of_their_calls() -> None:
    calls = (ToolCall(id="a", name="f"), ToolCall(id="b", name="f"))
    model = ScriptedModel("Done.")
    prompt = ["Hi", Message.assistant("", tool_calls=calls), Message.tool("b", "2"), Message.tool("a", "1"), "And?"]
    result = await Agent(model).run(prompt)
    assert [message.tool_call_id for message in model.requests[0].messages] == [None, None, "a", "b", None]
    assert [message.text for message in result.messages] == ["Hi", "", "1", "2", "And?", "Done."]


async def test_attributes_of_an_agent_are_read_only() -> None:
    agent = Agent(ScriptedModel("Hi."))
    for name in ("name", "limits", "log", "settings", "model"):
        with pytest.raises(AttributeError):
            setattr(agent, name, None)


async def test_with_log_returns_another_agent() -> None:
    log = MemoryEventLog()
    agent = Agent(ScriptedModel("Hi.", "Hi."))
    second = agent.with_log(log)
    await second.run("Hi", context_id="c")
    assert agent.log is None
    assert second.log is log
    assert len(await log.list_runs()) == 1


class Office:
    """Dependencies of tools."""


class Shop:
    """Unrelated class."""


def test_run_without_deps_is_rejected_when_the_agent_has_a_deps_type(caplog: pytest.LogCaptureFixture) -> None:
    agent: Any = Agent(ScriptedModel("Hi."), deps_type=Office)
    with pytest.raises(ConfigurationError, match=r"deps=Office\(\.\.\.\)"):
        agent.run("Hi")
    assert agent.run_sync("Hi", deps=Office()).output == "Hi."
    assert caplog.text == ""
    with pytest.warns(RuntimeWarning):
        agent.run("Hi", deps=Shop())
    assert "deps is a Shop, but the deps_type of the agent is Office" in caplog.text


@pytest.mark.parametrize("method", ["resume", "fork"])
async def test_resume_and_fork_require_the_deps_of_the_agent(method: str, caplog: pytest.LogCaptureFixture) -> None:
    agent: Any = Agent(ScriptedModel("Hi.", "Hi."), deps_type=Office, log=MemoryEventLog())
    result = await agent.run("Hi", deps=Office())
    arguments = (result.task_id,) if method == "resume" else (result.task_id, 1)
    with pytest.raises(ConfigurationError, match=rf"agent\.{method}\(\.\.\., deps=Office\(\.\.\.\)\)"):
        getattr(agent, method)(*arguments)
    assert (await getattr(agent, method)(*arguments, deps=Office())).output == "Hi."
    assert caplog.text == ""
    with pytest.warns(RuntimeWarning):
        getattr(agent, method)(*arguments, deps=Shop())
    assert "deps is a Shop, but the deps_type of the agent is Office" in caplog.text
    # Cancel calls no agent code, so deps are not required.
    await agent.get_run(result.task_id).cancel()


@pytest.mark.parametrize("kind", [None, type(None), object, Office | None, Any])
def test_deps_type_without_a_specific_class_requires_no_deps(kind: Any) -> None:
    assert Agent(ScriptedModel("Hi."), deps_type=kind).run_sync("Hi").output == "Hi."
