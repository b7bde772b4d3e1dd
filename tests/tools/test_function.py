import asyncio
import functools
import inspect
import logging
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from rxloop import Agent, tool
from rxloop.errors import ConfigurationError, RxloopError, ToolError
from rxloop.pipeline.interfaces import Tool
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.events import CustomEvent, Event, ToolProgressEvent
from rxloop.protocol.messages import ToolCall
from rxloop.testing import ScriptedModel
from rxloop.tools import FunctionTool
from rxloop.tools.function import as_tool
from support.fake_host import FakeHost

CALL = ToolCall(id="call_7", name="work")
USER: ContextVar[str] = ContextVar("user", default="nobody")


async def call_tool(tested_tool: Tool, **arguments: Any) -> tuple[Any, list[Event]]:
    host = FakeHost()
    value = await tested_tool.call(arguments, host.context(CALL, index=2))
    return value, host.events


def list_progress(events: list[Event]) -> list[str]:
    return [event.message for event in events if isinstance(event, ToolProgressEvent)]


def test_tool_remains_usable_as_its_function() -> None:
    def add(a: int, b: int = 1) -> int:
        """Add."""
        return a + b

    tested_tool = tool(name="plus", description="  Sum up.\n  Two numbers.", timeout=2, idempotent=True, hidden=True)(
        add
    )
    assert tested_tool(1, b=2) == 3
    assert getattr(tested_tool, "__name__", None) == "add"
    assert tested_tool.__doc__ == "Add."
    assert inspect.unwrap(tested_tool) == add
    assert inspect.signature(tested_tool) == inspect.signature(add)
    assert tested_tool.definition.name == "plus"
    assert tested_tool.definition.description == "Sum up.\nTwo numbers."
    assert tested_tool.definition.hidden is True
    assert tested_tool.timeout == 2
    assert tested_tool.idempotent is True
    assert tested_tool.approve is False
    assert repr(tested_tool) == "<tool plus>"


async def test_async_tool_can_be_awaited_as_its_function() -> None:
    @tool
    async def add(a: int) -> int:
        return a + 1

    assert await add(1) == 2


async def test_sync_function_runs_in_a_thread_with_the_context_variables_of_the_run() -> None:
    @tool
    def where() -> tuple[bool, str]:
        return threading.current_thread() is threading.main_thread(), USER.get()

    USER.set("Ann")
    assert (await call_tool(where))[0] == (False, "Ann")


async def test_async_function_runs_on_the_event_loop() -> None:
    @tool
    async def where(x: int) -> tuple[int, asyncio.AbstractEventLoop]:
        return x, asyncio.get_running_loop()

    assert (await call_tool(where, x="4"))[0] == (4, asyncio.get_running_loop())


async def test_async_generator_reports_progress_immediately_and_its_last_value_is_the_result() -> None:  # L112
    go = asyncio.Event()

    @tool
    async def work() -> AsyncIterator[Any]:
        yield "starting"
        yield CustomEvent(name="mine")
        await go.wait()
        yield {"done": 1}
        yield CustomEvent(name="behind")
        yield {"done": 2}

    host = FakeHost()
    task = asyncio.ensure_future(work.call({}, host.context(CALL, index=2)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [event.kind for event in host.events] == ["tool-progress", "custom"]
    go.set()
    assert await task == {"done": 2}
    assert list_progress(host.events) == ["starting", '{"done":1}']
    assert all(event.step == "1" for event in host.events)
    assert {(e.tool_call_id, e.index) for e in host.events if isinstance(e, ToolProgressEvent)} == {("call_7", 2)}


async def test_last_string_of_a_generator_is_progress_and_result() -> None:  # L112
    @tool
    async def work() -> AsyncIterator[str]:
        yield "a"
        yield "b"

    value, events = await call_tool(work)
    assert value == "b"
    assert list_progress(events) == ["a", "b"]


async def test_return_value_of_a_sync_generator_is_the_result() -> None:  # L112
    @tool
    def work() -> Generator[Any, None, int]:
        assert threading.current_thread() is not threading.main_thread()
        yield "one"
        yield 2
        yield CustomEvent(name="mine")
        return 0

    value, events = await call_tool(work)
    assert value == 0
    assert list_progress(events) == ["one", "2"]
    assert events[1].kind == "custom"


async def test_last_value_of_a_sync_generator_without_a_return_value_is_the_result() -> None:  # L112
    @tool
    def work() -> Iterator[Any]:
        yield [1]
        yield object
        yield 3

    value, events = await call_tool(work)
    assert value == 3
    assert list_progress(events) == ["[1]", "<class 'object'>"]


async def test_generator_that_yields_only_events_has_no_result() -> None:
    @tool
    def work() -> Iterator[Event]:
        yield CustomEvent(name="mine")

    value, events = await call_tool(work)
    assert value is None
    assert len(events) == 1


async def test_cancelled_async_generator_is_closed() -> None:  # L114
    outcomes: list[str] = []

    @tool
    async def work() -> AsyncIterator[str]:
        try:
            yield "waiting"
            await asyncio.Event().wait()
        finally:
            outcomes.append("closed")

    task = asyncio.ensure_future(work.call({}, FakeHost().context(CALL)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert outcomes == ["closed"]


async def test_generator_is_closed_when_its_progress_cannot_be_reported() -> None:
    outcomes: list[str] = []

    @tool
    async def work() -> AsyncIterator[str]:
        try:
            yield "for nobody"
        finally:
            outcomes.append("async")

    @tool
    def in_thread() -> Iterator[str]:
        try:
            yield "for nobody"
        finally:
            outcomes.append("sync")

    for each in (work, in_thread):
        with pytest.raises(RxloopError, match="only available in tools"):
            await each.call({}, RunContext())
    assert outcomes == ["async", "sync"]


async def test_thread_that_outlives_its_call_is_reported_and_its_generator_stopped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = asyncio.get_running_loop()
    started, closed, go = asyncio.Event(), asyncio.Event(), threading.Event()

    @tool
    def work() -> Iterator[str]:
        try:
            loop.call_soon_threadsafe(started.set)
            go.wait(10)
            yield "too late"
            yield "never"
        finally:
            loop.call_soon_threadsafe(closed.set)

    host = FakeHost()
    task = asyncio.ensure_future(work.call({}, host.context(CALL)))
    await started.wait()
    task.cancel()
    with caplog.at_level(logging.WARNING, "rxloop"), pytest.raises(asyncio.CancelledError):
        await task
    go.set()
    await closed.wait()
    assert host.events == []
    assert "'work' still runs in its thread" in caplog.text


@pytest.mark.parametrize("error", [KeyError("x"), ToolError("Try Bergen.")])
async def test_exception_of_a_function_is_raised(error: Exception) -> None:  # L113
    @tool
    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        await call_tool(fail)
    assert caught.value is error


async def test_stop_iteration_and_system_exit_in_a_thread_become_runtime_errors() -> None:  # L113
    @tool
    def first() -> int:
        return next(iter([]))

    @tool
    def exit_process() -> None:
        sys.exit(3)

    with pytest.raises(RuntimeError, match="StopIteration"):
        await call_tool(first)
    with pytest.raises(RuntimeError, match=r"exit\(3\)"):
        await call_tool(exit_process)


async def test_methods_partials_and_callable_objects_can_be_tools() -> None:
    class Shop:
        def buy(self, thing: str) -> str:
            """Buy a thing."""
            return f"bought {thing}"

        async def __call__(self, n: int) -> int:
            """Count."""
            return n + 1

    def scale(x: int, by: int) -> int:
        """Scale."""
        return x * by

    buy, count = as_tool(Shop().buy), tool(Shop(), name="count")
    double = tool(functools.partial(scale, by=2), name="double")
    assert (await call_tool(buy, thing="tea"))[0] == "bought tea"
    assert (await call_tool(count, n=1))[0] == 2
    assert (await call_tool(double, x=4))[0] == 8
    descriptions = [each.definition.description for each in (buy, count, double)]
    assert descriptions == ["Buy a thing.", "Count.", "Scale."]


async def test_decorated_async_functions_and_generators_can_be_tools() -> None:
    def add_wrapper(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    @tool
    @add_wrapper
    async def add(a: int) -> int:
        return a + 1

    assert (await call_tool(add, a=1))[0] == 2

    @add_wrapper
    async def count() -> AsyncIterator[int]:
        yield 5

    assert (await call_tool(as_tool(count)))[0] == 5


def test_enabled_function_gets_the_context() -> None:  # L115
    @tool(enabled=lambda ctx: ctx.deps == "admin")
    def wipe() -> None: ...

    assert wipe.enabled(RunContext(deps="admin"))
    assert not wipe.enabled(RunContext(deps="guest"))
    assert as_tool(print_nothing).enabled(RunContext())


def print_nothing() -> None: ...


def test_async_enabled_function_is_refused() -> None:
    async def allowed(ctx: RunContext[Any]) -> bool:
        return False

    with pytest.raises(ConfigurationError, match="enabled must be a plain function"):
        tool(print_nothing, enabled=allowed)  # pyright: ignore[reportCallIssue, reportArgumentType]


@pytest.mark.parametrize("name", ["", "a b", "a.b", "é", "x" * 65, "name\n"])
def test_invalid_tool_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="1 to 64 characters of a-z"):
        tool(print_nothing, name=name)


def test_function_without_a_name_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'<lambda>'"):
        as_tool(lambda: 1)
    with pytest.raises(ConfigurationError, match="has no name"):
        as_tool(functools.partial(print_nothing))


def test_tool_rejects_an_unknown_option_before_it_gets_the_function() -> None:
    unknown: dict[str, Any] = {"aprove": True}
    with pytest.raises(TypeError, match=r"^tool\(\) got an unknown argument 'aprove'; did you mean 'approve'\?$"):
        tool(**unknown)
    with pytest.raises(TypeError, match=r"^FunctionTool.__init__\(\) got an unknown argument 'aprove'; did you"):
        FunctionTool(print_nothing, **unknown)


def test_invalid_timeout_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="timeout in seconds must be a positive number or None"):
        tool(print_nothing, timeout=0)
    text: Any = "10"
    with pytest.raises(ConfigurationError, match="timeout in seconds must be a positive number or None, got '10'"):
        tool(print_nothing, timeout=text)


def test_string_instead_of_a_function_is_refused_with_a_remedy() -> None:
    name: Any = "weather"
    with pytest.raises(ConfigurationError, match=r"pass.*@tool\(name='weather'\)"):
        tool(name)


def test_as_tool_returns_tools_unchanged_and_refuses_other_objects() -> None:
    tested_tool = tool(print_nothing)
    assert as_tool(tested_tool) is tested_tool
    with pytest.raises(ConfigurationError, match="got class"):
        as_tool(FunctionTool)
    with pytest.raises(ConfigurationError, match=r"got 3$"):
        as_tool(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigurationError, match=r"unpack it with tools=\[\*\.\.\.\]"):
        as_tool([tested_tool])  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigurationError, match=r"pass its as_tool\(\)"):
        as_tool(Agent(ScriptedModel()))  # pyright: ignore[reportArgumentType]


LIGHT = """
import sys, types
package = types.ModuleType("rxloop")  # Without its own __init__, which loads the rest.
package.__path__ = [sys.argv[1]]
sys.modules["rxloop"] = package
import rxloop.tools
heavy = {"httpx", "fastapi", "uvicorn", "sqlite3", "mcp", "docstring_parser", "rxloop.stream", "rxloop.operators"}
print(sorted(heavy & set(sys.modules)))
"""


def test_import_of_tools_loads_no_heavy_modules() -> None:
    folder = Path(inspect.getfile(FunctionTool)).parent.parent
    loaded = subprocess.run([sys.executable, "-c", LIGHT, str(folder)], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"
