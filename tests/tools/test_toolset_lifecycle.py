import asyncio
import inspect
from collections.abc import Callable
from typing import Any, Self

import anyio
import pytest
import reactivex as rx
from reactivex import operators as ops

from rxloop import Agent, Limits, RunContext, RunError, ToolsUnavailableEvent, op, tool
from rxloop.pipeline.interfaces import Tool
from rxloop.protocol.events import ToolCompleteEvent
from rxloop.storage import MemoryEventLog
from rxloop.testing import ScriptedModel, call, virtual_time


@tool
async def look(place: str = "here") -> str:
    """Looks."""
    return f"nothing {place}"


@tool
async def wave() -> str:
    """Waves."""
    return "waved"


class FakeToolset:
    """Toolset with replaceable functions for listing and entering."""

    name = "eyes"

    def __init__(self, *tools: Tool) -> None:
        self.list_tools: Callable[[], Any] = lambda: list(tools)
        self.enter: Callable[[], Any] = lambda: None
        self.entered: list[Any] = []
        self.exited: list[Any] = []

    async def __aenter__(self) -> Self:
        await _resolve(self.enter())
        self.group = await anyio.create_task_group().__aenter__()
        self.entered.append(asyncio.current_task())
        return self

    async def __aexit__(self, *error: Any) -> bool | None:
        self.exited.append(asyncio.current_task())
        self.group.cancel_scope.cancel()
        return await self.group.__aexit__(*error)

    async def tools(self, ctx: RunContext[Any]) -> Any:
        return await _resolve(self.list_tools())


async def _resolve(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def make_raiser(error: BaseException) -> Callable[[], Any]:
    def function() -> Any:
        raise error

    return function


def list_missing(events: list[Any]) -> list[tuple[str, str]]:
    return [(event.toolset, event.reason) for event in events if isinstance(event, ToolsUnavailableEvent)]


async def test_toolset_is_entered_once_and_exited_with_the_agent_by_the_same_task() -> None:
    toolset = FakeToolset(look)
    agent = Agent(ScriptedModel(*["Hi."] * 20), tools=[toolset])
    assert toolset.entered == []
    await asyncio.gather(*(agent.run("Hi") for _ in range(10)))
    assert len(toolset.entered) == 1
    assert toolset.exited == []
    with agent.override(tools=[toolset]):
        await agent.run("Hi")
    await asyncio.create_task(agent.aclose())
    assert toolset.exited == toolset.entered
    assert len(toolset.exited) == 1


def test_runs_in_separate_event_loops_enter_the_toolset_one_after_another() -> None:
    toolset = FakeToolset(look)
    agent = Agent(ScriptedModel(call("look"), "one", call("look"), "two"), tools=[toolset])
    assert [agent.run_sync("Hi").output for _ in range(2)] == ["one", "two"]
    assert toolset.exited == toolset.entered
    assert len(toolset.exited) == 2


async def test_close_in_a_cancelled_scope_exits_the_toolset() -> None:
    before = asyncio.all_tasks()
    toolset = FakeToolset(look)
    agent = Agent(ScriptedModel("Hi."), tools=[toolset])
    await agent.run("Hi")
    with anyio.CancelScope() as scope:
        scope.cancel()
        await agent.aclose()
    assert toolset.exited == toolset.entered
    assert asyncio.all_tasks() == before


FAILURES: dict[str, Callable[[], Any]] = {
    "raises": make_raiser(OSError("refused")),
    "exits": make_raiser(SystemExit(3)),
    "raises no Exception": make_raiser(BaseException("odd")),
    "raises what no coroutine may": make_raiser(GeneratorExit()),
    "was cancelled inside": make_raiser(asyncio.CancelledError()),
    "hangs": lambda: asyncio.Event().wait(),
}


@pytest.mark.parametrize("where", ["enter", "list_tools"])
@pytest.mark.parametrize("how", FAILURES)
def test_failing_toolset_costs_only_its_own_tools(where: str, how: str) -> None:
    async def main() -> None:
        toolset = FakeToolset(look)
        setattr(toolset, where, FAILURES[how])
        model = ScriptedModel(call("look"), call("wave"), "done")
        async with Agent(model, tools=[toolset, wave], thoughts=False, limits=Limits(preparation=5)) as agent:
            run = agent.run("Hi")
            events = [event async for event in run.events]
            assert (await run).output == "done"
        assert [[each.name for each in request.tools] for request in model.requests] == [["wave"]] * 3
        [(name, reason)] = list_missing(events)
        assert name == "eyes"
        assert bool(reason) is True
        refused, waved = [event for event in events if isinstance(event, ToolCompleteEvent)]
        assert refused.success is False
        assert waved.success is True
        assert refused.error == (
            "There is no tool 'look'. The tools of eyes are not available now. The available tools are: wave."
        )
        assert reason not in events[-2].to_json(public=True).decode()

    with virtual_time() as time:
        time.run(main())


@pytest.mark.parametrize(
    ("invalid_tools", "reason"),
    [
        (None, "FakeToolset.tools() must return a list of tools, got None"),
        ([1], "AttributeError: 'int' object has no attribute 'definition'"),
        ([look, look], "tool names of eyes must be unique, got 'look' twice"),
        ((look for _ in iter(int, 1)), "tool names of eyes must be unique, got 'look' twice"),
    ],
)
async def test_toolset_that_returns_invalid_tools_is_reported(invalid_tools: Any, reason: str) -> None:
    toolset = FakeToolset()
    toolset.list_tools = lambda: invalid_tools
    run = Agent(ScriptedModel("Hi."), tools=[toolset]).run("Hi")
    assert list_missing([event async for event in run.events]) == [("eyes", reason)]


async def test_missing_tools_are_reported_to_the_model_and_can_return(caplog: pytest.LogCaptureFixture) -> None:
    toolset = FakeToolset(look)
    fails = make_raiser(ConnectionError("the pipe broke"))
    works, states = toolset.list_tools, iter([False, True, True, False, True])
    toolset.list_tools = lambda: works() if next(states) is False else fails()
    model = ScriptedModel(call("look"), call("look"), call("look"), call("look"), "done")
    async with Agent(model, tools=[toolset], thoughts=False) as agent:
        run = agent.run("Hi")
        events = [event async for event in run.events]
    assert [event.content for event in events if isinstance(event, ToolCompleteEvent)] == [
        "nothing here",
        "The tool 'look' is not available now, like all tools of eyes: it has failed. "
        "No tools are available: answer without them.",
        "The tool 'look' is not available now, like all tools of eyes: it has failed. "
        "No tools are available: answer without them.",
        "nothing here",
    ]
    assert list_missing(events) == [("eyes", "ConnectionError: the pipe broke")] * 2, "one event per failure"
    assert len(toolset.entered) == len(toolset.exited) == 3, "a broken toolset is entered again"
    assert "Tools of eyes are unavailable" in caplog.text


async def test_toolsets_are_resolved_concurrently() -> None:
    both = asyncio.Barrier(2)

    def make_toolset() -> FakeToolset:
        toolset = FakeToolset()
        toolset.list_tools = meet
        return toolset

    async def meet() -> list[Any]:
        await both.wait()
        return []

    async with Agent(ScriptedModel("Hi."), tools=[make_toolset(), make_toolset()]) as agent:
        assert (await agent.run("Hi")).output == "Hi."


async def test_missing_toolset_is_reported_after_a_resume() -> None:
    toolset, log = FakeToolset(look), MemoryEventLog()
    ask = tool(name="ask", approve=True)(lambda: "yes")
    first = await Agent(ScriptedModel([call("ask"), call("look")]), tools=[toolset, ask], log=log).run("Hi")
    toolset.list_tools = make_raiser(OSError("refused"))
    agent = Agent(ScriptedModel("done"), tools=[toolset, ask], log=log)
    run = agent.resume(first.task_id, inputs={first.pending[0].input_id: True})
    events = [event async for event in run.events]
    assert (await run).output == "done"
    assert list_missing(events) == [("eyes", "OSError: refused")]


async def test_broken_toolset_is_entered_again() -> None:
    toolset = FakeToolset(look)
    model = ScriptedModel("one", "two")
    async with Agent(model, tools=[toolset]) as agent:
        await agent.run("Hi")
        toolset.group.start_soon(_fail)
        await asyncio.wait(toolset.entered)
        run = agent.run("Hi")
        assert [event async for event in run.pipe(op.of_type(ToolsUnavailableEvent))] == []
    assert len(toolset.entered) == len(toolset.exited) == 2


async def _fail() -> None:
    raise ConnectionError("the pipe broke")


async def test_open_toolset_does_not_hide_that_its_first_run_is_stuck() -> None:
    loop = [*op.standard(), ops.merge(rx.never())]
    async with Agent(ScriptedModel("Hi."), tools=[FakeToolset(look)], loop=loop) as agent:
        with pytest.raises(RunError, match="the run cannot continue"):
            async with asyncio.timeout(30):
                await agent.run("Go.")
