"""Runs end with their canceled readers."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from contextlib import suppress
from typing import Any

import anyio
import pytest

import rxloop
from rxloop import Agent, Run, op, tool
from rxloop.client import Client
from rxloop.support.garbage import ignore_large_data, is_processing_large_data
from rxloop.testing import ScriptedModel, call, frames
from support.api_server import serve_api
from support.cancellation import make_endless_model, start_observed_run, wait_until_canceled
from support.run_checks import run_ready_tasks, wait_until

Source = Callable[[Agent, Callable[[], Run]], Any]
"""Factory for readable objects."""

RUN_SOURCES: dict[str, Source] = {
    "the run": lambda _, run: run(),
    "events": lambda _, run: run().events,
    "stream": lambda _, run: run().stream(),
    "stream that blocks": lambda _, run: run().stream(overflow="block", buffer=2),
    "text": lambda _, run: run().text(),
    "pipe": lambda _, run: run().pipe(op.text()),
    "sse": lambda _, run: run().sse(),
    "merge": lambda _, run: rxloop.merge(run()),
    "await of the run": lambda _, run: _await_one(run()),
    "await of a stream": lambda _, run: _await_one(run().text()),
    "async with": lambda _, run: _iterate_in_context(run()),
}
AGENT_SOURCES: dict[str, Source] = {
    "observe": lambda agent, _: agent.observe("Go."),
    "observe and pipe": lambda agent, _: agent.observe("Go.").pipe(op.text()),
    "observe as text": lambda agent, _: agent.observe("Go.").text(),
    "observe and merge": lambda agent, _: rxloop.merge(agent.observe("Go.")),
    "map": lambda agent, _: agent.map(["Go."]),
}
SOURCES = RUN_SOURCES | AGENT_SOURCES
WITHOUT_ITEMS = ("await of the run", "await of a stream", "map")


async def _await_one(awaitable: Awaitable[Any]) -> AsyncGenerator[Any]:
    yield await awaitable


async def _iterate_in_context(run: Run) -> AsyncGenerator[Any]:
    async with run:
        async for event in run:
            yield event


Body = Callable[[], AsyncGenerator[bytes]]
ReaderForm = Callable[[Source, Agent], Body]


def read_temporary(source: Source, agent: Agent) -> Body:
    async def body() -> AsyncGenerator[bytes]:
        async for _ in source(agent, lambda: agent.run("Go.")):
            yield b"x\n"

    return body


def read_variable(source: Source, agent: Agent) -> Body:
    async def body() -> AsyncGenerator[bytes]:
        stream = source(agent, lambda: agent.run("Go."))
        async for _ in stream:
            yield b"x\n"

    return body


def read_argument(source: Source, agent: Agent) -> Body:
    async def body(stream: Any) -> AsyncGenerator[bytes]:
        async for _ in stream:
            yield b"x\n"

    return lambda: body(source(agent, lambda: agent.run("Go.")))


def read_iterator(source: Source, agent: Agent) -> Body:
    async def body() -> AsyncGenerator[bytes]:
        items = aiter(source(agent, lambda: agent.run("Go.")))
        while True:
            try:
                await anext(items)
            except StopAsyncIteration:
                return
            yield b"x\n"

    return body


def read_handle(source: Source, agent: Agent) -> Body:
    async def body() -> AsyncGenerator[bytes]:
        run = agent.run("Go.")
        async for _ in source(agent, lambda: run):
            yield b"x\n"

    return body


READER_FORMS = {
    function.__name__: function
    for function in (read_temporary, read_variable, read_argument, read_iterator, read_handle)
}


async def consume(body: Body) -> None:
    async for _ in body():
        pass


References = list[Any]
Stop = Callable[[Body, Callable[[], object], References], Awaitable[None]]


async def cancel_task(body: Body, is_reading: Callable[[], object], references: References) -> None:
    task = asyncio.create_task(consume(body))
    references.append(task)
    await wait_until(is_reading)
    task.cancel()
    await asyncio.wait([task])


async def expire_timeout(body: Body, is_reading: Callable[[], object], references: References) -> None:
    try:
        async with asyncio.timeout(None) as limit:
            references.append(asyncio.create_task(_act_when(is_reading, lambda: limit.reschedule(0))))
            await consume(body)
    except TimeoutError as error:
        references.append(error)


async def expire_wait_for(body: Body, is_reading: Callable[[], object], references: References) -> None:
    try:
        await asyncio.wait_for(consume(body), 0.05)
    except TimeoutError as error:
        references.append(error)


async def fail_sibling_task(body: Body, is_reading: Callable[[], object], references: References) -> None:
    async def fail_when_reading() -> None:
        await wait_until(is_reading)
        raise ZeroDivisionError

    try:
        async with asyncio.TaskGroup() as group:
            references.append(group.create_task(consume(body)))
            references.append(group.create_task(fail_when_reading()))
    except ExceptionGroup as error:
        references.append(error)


async def cancel_scope(body: Body, is_reading: Callable[[], object], references: References) -> None:
    with anyio.CancelScope() as scope:
        references.append(asyncio.create_task(_act_when(is_reading, scope.cancel)))
        try:
            await consume(body)
        except BaseException as error:
            references.append(error)
            raise


async def cancel_task_group(body: Body, is_reading: Callable[[], object], references: References) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(consume, body)
        await wait_until(is_reading)
        group.cancel_scope.cancel()


async def cancel_enclosing_task_group(body: Body, is_reading: Callable[[], object], references: References) -> None:
    async with anyio.create_task_group() as group:
        references.append(asyncio.create_task(_act_when(is_reading, group.cancel_scope.cancel)))
        await consume(body)


async def cancel_with_slow_cleanup(body: Body, is_reading: Callable[[], object], references: References) -> None:
    async def reader() -> None:
        try:
            await consume(body)
        finally:
            await asyncio.sleep(0.01)

    task = asyncio.create_task(reader())
    references.append(task)
    await wait_until(is_reading)
    task.cancel()
    await asyncio.wait([task])


async def _act_when(condition: Callable[[], object], act: Callable[[], object]) -> None:
    await wait_until(condition)
    act()


STOPS = {
    function.__name__: function
    for function in (
        *(
            cancel_task,
            expire_timeout,
            expire_wait_for,
            fail_sibling_task,
            cancel_scope,
            cancel_task_group,
            cancel_enclosing_task_group,
        ),
        cancel_with_slow_cleanup,
    )
}


@pytest.fixture
def disabled_collector() -> Generator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("disabled_collector")
@pytest.mark.parametrize("stop", STOPS.values(), ids=STOPS)
@pytest.mark.parametrize("form", READER_FORMS.values(), ids=READER_FORMS)
async def test_run_ends_when_its_read_is_canceled(form: ReaderForm, stop: Stop) -> None:  # P17
    references: References = []
    models: dict[str, ScriptedModel] = {}

    async def read(name: str, source: Source) -> None:
        model = models[name] = ScriptedModel(frames("-a-", 0.003))
        await stop(form(source, Agent(model)), lambda: model.open, references)

    await asyncio.gather(
        *(read(name, source) for name, source in (RUN_SOURCES if form is read_handle else SOURCES).items())
    )
    await asyncio.sleep(0.02)
    assert [name for name, model in models.items() if model.open] == []
    assert all(len(model.requests) == 1 for model in models.values())


@pytest.mark.usefixtures("disabled_collector")
@pytest.mark.parametrize(
    "stop", [cancel_task, expire_wait_for, fail_sibling_task, cancel_task_group, cancel_with_slow_cleanup]
)
@pytest.mark.parametrize("form", [read_temporary, read_variable, read_argument, read_handle])
async def test_run_ends_when_its_reader_is_canceled_between_two_reads(form: ReaderForm, stop: Stop) -> None:  # P17
    references: References = []
    models: dict[str, ScriptedModel] = {}

    async def read(name: str, source: Source) -> None:
        model = models[name] = ScriptedModel(frames("-a-", 0.003))
        agent = Agent(model)

        async def consumer(body: Body) -> AsyncGenerator[bytes]:
            """Read in the given form, and wait in the same function."""
            if form is read_handle:
                run = agent.run("Go.")
                async for _ in source(agent, lambda: run):
                    await _wait(model)
            elif form is read_variable:
                stream = source(agent, lambda: agent.run("Go."))
                async for _ in stream:
                    await _wait(model)
            else:
                async for _ in source(agent, lambda: agent.run("Go.")):
                    await _wait(model)
            yield b""

        await stop(lambda: consumer(form(source, agent)), lambda: model.open, references)

    sources = {name: source for name, source in SOURCES.items() if name not in (*WITHOUT_ITEMS, "sse", "async with")}
    await asyncio.gather(
        *(read(name, source) for name, source in sources.items() if form is not read_handle or name in RUN_SOURCES)
    )
    await asyncio.sleep(0.02)
    assert [name for name, model in models.items() if model.open] == []


@pytest.mark.usefixtures("disabled_collector")
@pytest.mark.parametrize("stop", [cancel_task, fail_sibling_task, cancel_task_group])
async def test_run_ends_when_its_iterating_task_is_canceled_between_two_reads(stop: Stop) -> None:  # P17
    references: References = []
    models: dict[str, ScriptedModel] = {}

    async def read(name: str, source: Source) -> None:
        model = models[name] = ScriptedModel(frames("-a-", 0.003))
        agent = Agent(model)

        async def consumer() -> AsyncGenerator[bytes]:
            items = aiter(source(agent, lambda: agent.run("Go.")))
            async for _ in items:
                await _wait(model)
            yield b""

        await stop(consumer, lambda: model.open, references)

    await asyncio.gather(*(read(name, source) for name, source in SOURCES.items() if name not in WITHOUT_ITEMS))
    with suppress(TimeoutError):
        async with asyncio.timeout(8):
            await wait_until(lambda: not any(model.open for model in models.values()))
    assert [name for name, model in models.items() if model.open] == []


@pytest.mark.usefixtures("disabled_collector")
@pytest.mark.parametrize("form", READER_FORMS.values(), ids=READER_FORMS)
async def test_run_ends_when_a_reference_cycle_keeps_the_suspended_body(form: ReaderForm) -> None:  # P17
    models: dict[str, ScriptedModel] = {}

    async def send(body: Body) -> None:
        response: dict[str, Any] = {"body": body()}
        response["itself"] = response
        async for _ in response["body"]:
            await asyncio.sleep(100)

    async def stop(name: str, source: Source) -> None:
        model = models[name] = ScriptedModel(frames("-a-", 0.003))
        task = asyncio.create_task(send(form(source, Agent(model))))
        await wait_until(lambda: model.open)
        task.cancel()
        await asyncio.wait([task])

    sources = RUN_SOURCES if form is read_handle else SOURCES
    await asyncio.gather(*(stop(name, source) for name, source in sources.items() if name not in WITHOUT_ITEMS))
    # In a long-lived program, the cycle is in an old generation when the client disconnects.
    gc.collect(0)
    gc.collect(1)
    with suppress(TimeoutError):
        async with asyncio.timeout(8):
            await wait_until(lambda: not any(model.open for model in models.values()))
    assert [name for name, model in models.items() if model.open] == []


@pytest.mark.usefixtures("disabled_collector")
async def test_no_full_collection_examines_large_data_when_a_reader_is_canceled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # P17
    model = ScriptedModel(frames("-a-", 0.003))
    is_large: list[bool] = []
    has_received = asyncio.Event()
    collect = gc.collect

    def watch(generation: int = 2) -> int:
        if generation == 2:
            is_large.append(is_processing_large_data())
        return collect(generation)

    async def send() -> None:
        response: dict[str, Any] = {"body": read_text(Agent(model))}
        response["itself"] = response
        async for _ in response["body"]:
            has_received.set()
            await asyncio.sleep(100)

    async def read_text(agent: Agent) -> AsyncGenerator[str]:
        async for text in agent.run("Go.").text():
            yield text

    monkeypatch.setattr(gc, "collect", watch)
    task = asyncio.create_task(send())
    await has_received.wait()
    with ignore_large_data():
        collect(0)
        collect(1)
        task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(0.4)
        assert model.open
    async with asyncio.timeout(20):
        await wait_until(lambda: not model.open)
    assert is_large == [False]


async def test_reader_can_continue_after_its_task_was_canceled_between_two_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # P17
    collected: list[int] = []
    collect = gc.collect

    def count(generation: int = 2) -> int:
        collected.append(generation)
        return collect(generation)

    monkeypatch.setattr(gc, "collect", count)
    readers = [aiter(Agent(ScriptedModel(frames("-a-b-c-|", 0.003))).run("Go.").text()) for _ in range(3)]
    texts = [""] * len(readers)

    async def read(index: int) -> None:
        async for text in readers[index]:
            texts[index] += text
            await asyncio.sleep(1 if len(texts[index]) == 1 else 0)

    tasks = [asyncio.create_task(read(index)) for index in range(len(readers))]
    await wait_until(lambda: all(texts))
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await asyncio.sleep(0.3)
    await asyncio.gather(*map(read, range(len(readers))))
    assert texts == ["abc"] * len(readers)
    # A full collection blocks the event loop, so all readers share one.
    assert collected.count(2) <= 1


async def _wait(model: ScriptedModel) -> None:
    if model.open:
        await asyncio.sleep(100)


@pytest.mark.usefixtures("disabled_collector")
@pytest.mark.parametrize("name", [name for name in SOURCES if name not in WITHOUT_ITEMS])
async def test_run_ends_when_a_retained_error_leaves_the_loop(name: str) -> None:  # P17
    model = make_endless_model()
    references: list[BaseException] = []
    agent = Agent(model)

    async def read() -> None:
        async for _ in SOURCES[name](agent, lambda: agent.run("Go.")):
            if model.open:
                raise ZeroDivisionError

    try:
        await read()
    except ZeroDivisionError as error:
        references.append(error)
    await run_ready_tasks(30)
    assert model.open == 0


@pytest.mark.usefixtures("disabled_collector")
async def test_run_ends_when_its_reader_is_canceled_during_a_tool_call() -> None:  # P17
    cancelled: list[str] = []

    @tool
    async def slow() -> str:
        """Work for five seconds."""
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            cancelled.append("slow")
            raise
        return "done"

    references: References = []
    models = [ScriptedModel(call("slow"), "Done.") for _ in RUN_SOURCES]
    started_tools: list[str] = []
    for model, source in zip(models, RUN_SOURCES.values(), strict=True):
        agent = Agent(model, tools=[slow], loop=op.standard())
        run, events = start_observed_run(agent)
        started_tools.clear()

        def has_started_tool(events: list[Any] = events) -> bool:
            return any(event.kind == "tool-start" for event in events)

        async def body(source: Source = source, agent: Agent = agent, runs: list[Run] = [run]) -> AsyncGenerator[bytes]:  # noqa: B006
            run = runs.pop()
            async for _ in source(agent, lambda: run):
                yield b""

        del run
        await cancel_task_group(body, has_started_tool, references)
        await wait_until_canceled(events)
    assert cancelled == ["slow"] * len(models)
    assert [len(model.requests) for model in models] == [1] * len(models)


async def test_cancel_of_a_reader_keeps_a_run_with_a_live_handle() -> None:  # P17
    runs: dict[str, Run] = {}
    runs["a"] = Agent(ScriptedModel(frames("-a-b-c-|", 0.01))).run("Go.")
    for name in ("the run", "text", "sse", "merge", "stream that blocks"):

        async def reader(run: Run, source: Source = RUN_SOURCES[name]) -> None:
            async for _ in source(Agent(make_endless_model()), lambda: run):
                pass

        task = asyncio.create_task(reader(runs["a"]))
        await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.wait([task])
        await run_ready_tasks()
    assert (await runs["a"]).output == "abc"


async def test_function_that_catches_cancellation_keeps_its_variables() -> None:  # P17
    steps: list[str] = []

    async def generator(run: Run) -> AsyncGenerator[str]:
        note = "kept"
        try:
            async for _ in run:
                pass
        except asyncio.CancelledError:
            yield note
        yield note + " again"

    async def reader() -> str:
        run = Agent(ScriptedModel(frames("-a-b-c-|", 0.003))).run("Go.")
        try:
            async for text in generator(run):
                steps.append(text)
                await asyncio.sleep(0.01)
        finally:
            steps.append((await run).output)
        return "end"

    task = asyncio.create_task(reader())
    await asyncio.sleep(0.005)
    task.cancel()
    assert await task == "end"
    assert steps == ["kept", "kept again", "abc"]


Poll = Callable[[AsyncIterator[Any]], Awaitable[Any]]


async def poll_with_wait_for(items: AsyncIterator[Any]) -> Any:
    return await asyncio.wait_for(anext(items), 0.004)


async def poll_helper_with_wait_for(items: AsyncIterator[Any]) -> Any:
    async def step() -> Any:
        return await anext(items)

    return await asyncio.wait_for(step(), 0.004)


async def poll_with_timeout(items: AsyncIterator[Any]) -> Any:
    async with asyncio.timeout(0.004):
        return await anext(items)


async def poll_in_scope(items: AsyncIterator[Any]) -> Any:
    with anyio.fail_after(0.004):
        return await anext(items)


async def poll_in_task(items: AsyncIterator[Any]) -> Any:
    task: asyncio.Task[Any] = asyncio.create_task(anext(items))  # type: ignore[arg-type]
    await asyncio.wait([task], timeout=0.004)
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
        raise TimeoutError
    return task.result()


POLLS = {
    function.__name__: function
    for function in (*(poll_with_wait_for, poll_helper_with_wait_for, poll_with_timeout, poll_in_scope, poll_in_task),)
}
REPEATABLE_SOURCES = [name for name in SOURCES if "await" not in name and name != "async with"]


@pytest.mark.usefixtures("disabled_collector")
@pytest.mark.parametrize("poll", POLLS.values(), ids=POLLS)
@pytest.mark.parametrize("name", REPEATABLE_SOURCES)
async def test_canceled_read_can_be_repeated_without_losing_items(name: str, poll: Poll) -> None:  # P24
    def agent() -> Agent:
        return Agent(ScriptedModel(frames("---a---b---c---|", 0.004)))

    def summarize(items: list[Any]) -> Any:
        if name == "map":
            return [item.output for item in items]
        if name == "sse":
            return [item.partition(b"\nevent: ")[2].partition(b"\n")[0] for item in items]
        return [item if isinstance(item, str) else item.kind for item in items]

    uninterrupted, polled = agent(), agent()
    expected = [item async for item in SOURCES[name](uninterrupted, lambda: uninterrupted.run("Go."))]
    items, received, polls = aiter(SOURCES[name](polled, lambda: polled.run("Go."))), [], 0
    with suppress(StopAsyncIteration):
        while True:
            try:
                received.append(await poll(items))
            except TimeoutError:
                polls += 1
    assert summarize(received) == summarize(expected)
    assert polls > 0


@pytest.mark.usefixtures("disabled_collector")
@pytest.mark.parametrize("follow", ["client", "runtime"])
async def test_follower_releases_its_connection_when_its_read_is_canceled(follow: str) -> None:  # P17
    model = make_endless_model()
    references: References = []
    async with serve_api(Agent(model)) as server, Client(server.url, token="ann-key") as client:
        run = await client.start(None, "Go.")
        await wait_until(lambda: model.open)
        read = False

        async def body() -> AsyncGenerator[bytes]:
            nonlocal read
            events = client.follow(run.task_id) if follow == "client" else server.runtime.follow(run.task_id)
            async for _ in events:
                read = True
                yield b""

        await cancel_task(body, lambda: read, references)
        await asyncio.sleep(0.02)
        pool: Any = client._http._transport._pool  # type: ignore[attr-defined]
        assert [function for function in pool.connections if not function.is_idle()] == []
        assert [task.get_name() for task in asyncio.all_tasks() if "rxloop-client" in task.get_name()] == []
        assert model.open == 1
        await client.cancel(run.task_id)
