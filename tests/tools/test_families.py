import asyncio
import inspect
from collections.abc import Callable
from typing import Any, Self

import anyio
import pytest

from rxloop import Agent, Limits, RunContext, ToolsUnavailableEvent, op, tool
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


class Family:
    """A family with a life; what it does may be exchanged in the middle."""

    name = "eyes"

    def __init__(self, *tools: Tool) -> None:
        self.given: Callable[[], Any] = lambda: list(tools)
        self.enters: Callable[[], Any] = lambda: None
        self.entered: list[Any] = []
        self.left: list[Any] = []

    async def __aenter__(self) -> Self:
        await _wait(self.enters())
        self.group = await anyio.create_task_group().__aenter__()
        self.entered.append(asyncio.current_task())
        return self

    async def __aexit__(self, *error: Any) -> bool | None:
        self.left.append(asyncio.current_task())
        self.group.cancel_scope.cancel()
        return await self.group.__aexit__(*error)

    async def tools(self, ctx: RunContext[Any]) -> Any:
        return await _wait(self.given())


async def _wait(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def raises(error: BaseException) -> Callable[[], Any]:
    def function() -> Any:
        raise error

    return function


def missing(events: list[Any]) -> list[tuple[str, str]]:
    return [(event.family, event.reason) for event in events if isinstance(event, ToolsUnavailableEvent)]


async def test_it_is_entered_once_for_all_runs_and_left_with_the_agent_in_the_same_task() -> None:
    family = Family(look)
    agent = Agent(ScriptedModel(*["Hi."] * 20), tools=[family])
    assert family.entered == []
    await asyncio.gather(*(agent.run("Hi") for _ in range(10)))
    assert len(family.entered) == 1
    assert family.left == []
    with agent.override(tools=[family]):
        await agent.run("Hi")
    await asyncio.create_task(agent.aclose())
    assert family.left == family.entered
    assert len(family.left) == 1


def test_two_runs_in_event_loops_of_their_own_have_it_one_after_the_other() -> None:
    family = Family(look)
    agent = Agent(ScriptedModel(call("look"), "one", call("look"), "two"), tools=[family])
    assert [agent.run_sync("Hi").output for _ in range(2)] == ["one", "two"]
    assert family.left == family.entered
    assert len(family.left) == 2


async def test_an_agent_that_is_closed_in_a_cancelled_scope_leaves_it() -> None:
    before = asyncio.all_tasks()
    family = Family(look)
    agent = Agent(ScriptedModel("Hi."), tools=[family])
    await agent.run("Hi")
    with anyio.CancelScope() as scope:
        scope.cancel()
        await agent.aclose()
    assert family.left == family.entered
    assert asyncio.all_tasks() == before


FAILURES: dict[str, Callable[[], Any]] = {
    "raises": raises(OSError("refused")),
    "exits": raises(SystemExit(3)),
    "raises no Exception": raises(BaseException("odd")),
    "raises what no coroutine may": raises(GeneratorExit()),
    "was cancelled inside": raises(asyncio.CancelledError()),
    "hangs": lambda: asyncio.Event().wait(),
}


@pytest.mark.parametrize("where", ["enters", "given"])
@pytest.mark.parametrize("how", FAILURES)
def test_one_that_fails_costs_its_tools_and_not_the_run(where: str, how: str) -> None:
    async def main() -> None:
        family = Family(look)
        setattr(family, where, FAILURES[how])
        model = ScriptedModel(call("look"), call("wave"), "done")
        async with Agent(model, tools=[family, wave], thoughts=False, limits=Limits(preparation=5)) as agent:
            run = agent.run("Hi")
            events = [event async for event in run.events]
            assert (await run).output == "done"
        assert [[each.name for each in request.tools] for request in model.requests] == [["wave"]] * 3
        [(name, reason)] = missing(events)
        assert (name, bool(reason)) == ("eyes", True)
        refused, waved = [event for event in events if isinstance(event, ToolCompleteEvent)]
        assert (refused.success, waved.success) == (False, True)
        assert refused.error == (
            "There is no tool 'look'. The tools of eyes are not available now. The available tools are: wave."
        )
        assert reason not in events[-2].to_json(public=True).decode()

    with virtual_time() as time:
        time.run(main())


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (None, "Family.tools() gave None: give a list of tools"),
        ([1], "AttributeError: 'int' object has no attribute 'definition'"),
        ([look, look], "eyes has two tools called 'look'"),
        ((look for _ in iter(int, 1)), "eyes has two tools called 'look'"),
    ],
)
async def test_one_that_gives_nonsense_is_named(given: Any, reason: str) -> None:
    family = Family()
    family.given = lambda: given
    run = Agent(ScriptedModel("Hi."), tools=[family]).run("Hi")
    assert missing([event async for event in run.events]) == [("eyes", reason)]


async def test_the_model_reads_whose_tool_is_missing_and_it_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    family = Family(look)
    fails = raises(ConnectionError("the pipe broke"))
    works, states = family.given, iter([False, True, True, False, True])
    family.given = lambda: works() if next(states) is False else fails()
    model = ScriptedModel(call("look"), call("look"), call("look"), call("look"), "done")
    async with Agent(model, tools=[family], thoughts=False) as agent:
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
    assert missing(events) == [("eyes", "ConnectionError: the pipe broke")] * 2, "once for each time that it fails"
    assert len(family.entered) == len(family.left) == 3, "what broke is entered again"
    assert "the tools of eyes are missing" in caplog.text


async def test_families_are_asked_side_by_side() -> None:
    both = asyncio.Barrier(2)

    def family() -> Family:
        family = Family()
        family.given = meet
        return family

    async def meet() -> list[Any]:
        await both.wait()
        return []

    async with Agent(ScriptedModel("Hi."), tools=[family(), family()]) as agent:
        assert (await agent.run("Hi")).output == "Hi."


async def test_one_that_is_missing_after_a_resume_is_told_too() -> None:
    family, log = Family(look), MemoryEventLog()
    ask = tool(name="ask", approve=True)(lambda: "yes")
    first = await Agent(ScriptedModel([call("ask"), call("look")]), tools=[family, ask], log=log).run("Hi")
    family.given = raises(OSError("refused"))
    agent = Agent(ScriptedModel("done"), tools=[family, ask], log=log)
    run = agent.resume(first.task_id, inputs={first.pending[0].input_id: True})
    events = [event async for event in run.events]
    assert (await run).output == "done"
    assert missing(events) == [("eyes", "OSError: refused")]


async def test_a_broken_life_is_entered_again() -> None:
    family = Family(look)
    model = ScriptedModel("one", "two")
    async with Agent(model, tools=[family]) as agent:
        await agent.run("Hi")
        family.group.start_soon(_breaks)
        await asyncio.wait(family.entered)
        run = agent.run("Hi")
        assert [event async for event in run.pipe(op.of_type(ToolsUnavailableEvent))] == []
    assert len(family.entered) == len(family.left) == 2


async def _breaks() -> None:
    raise ConnectionError("the pipe broke")
