"""A run ends with its reader, however the reader is cancelled, and whatever still refers to its frames."""

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
from rxloop.testing import ScriptedModel, call, frames
from support.api_server import serving
from support.cancellation import ended, endless, watched
from support.run_checks import settled, until

Way = Callable[[Agent, Callable[[], Run]], Any]
"""Makes what is read, of an agent or of a run of it."""

OF_A_RUN: dict[str, Way] = {
    "the run": lambda _, run: run(),
    "events": lambda _, run: run().events,
    "stream": lambda _, run: run().stream(),
    "stream that blocks": lambda _, run: run().stream(overflow="block", buffer=2),
    "text": lambda _, run: run().text(),
    "pipe": lambda _, run: run().pipe(op.text()),
    "sse": lambda _, run: run().sse(),
    "merge": lambda _, run: rxloop.merge(run()),
    "await of the run": lambda _, run: _last(run()),
    "await of a stream": lambda _, run: _last(run().text()),
    "async with": lambda _, run: _within(run()),
}
OF_AN_AGENT: dict[str, Way] = {
    "observe": lambda agent, _: agent.observe("Go."),
    "observe and pipe": lambda agent, _: agent.observe("Go.").pipe(op.text()),
    "observe as text": lambda agent, _: agent.observe("Go.").text(),
    "observe and merge": lambda agent, _: rxloop.merge(agent.observe("Go.")),
    "map": lambda agent, _: agent.map(["Go."]),
}
WAYS = OF_A_RUN | OF_AN_AGENT
WITHOUT_ITEMS = ("await of the run", "await of a stream", "map")


async def _last(awaitable: Awaitable[Any]) -> AsyncGenerator[Any]:
    yield await awaitable


async def _within(run: Run) -> AsyncGenerator[Any]:
    async with run:
        async for event in run:
            yield event


Body = Callable[[], AsyncGenerator[bytes]]
Form = Callable[[Way, Agent], Body]


def temporary(way: Way, agent: Agent) -> Body:
    async def body() -> AsyncGenerator[bytes]:
        async for _ in way(agent, lambda: agent.run("Go.")):
            yield b"x\n"

    return body


def variable(way: Way, agent: Agent) -> Body:
    async def body() -> AsyncGenerator[bytes]:
        stream = way(agent, lambda: agent.run("Go."))
        async for _ in stream:
            yield b"x\n"

    return body


def argument(way: Way, agent: Agent) -> Body:
    async def body(stream: Any) -> AsyncGenerator[bytes]:
        async for _ in stream:
            yield b"x\n"

    return lambda: body(way(agent, lambda: agent.run("Go.")))


def iterator(way: Way, agent: Agent) -> Body:
    async def body() -> AsyncGenerator[bytes]:
        items = aiter(way(agent, lambda: agent.run("Go.")))
        while True:
            try:
                await anext(items)
            except StopAsyncIteration:
                return
            yield b"x\n"

    return body


def handle(way: Way, agent: Agent) -> Body:
    async def body() -> AsyncGenerator[bytes]:
        run = agent.run("Go.")
        async for _ in way(agent, lambda: run):
            yield b"x\n"

    return body


FORMS = {each.__name__: each for each in (temporary, variable, argument, iterator, handle)}


async def consume(body: Body) -> None:
    async for _ in body():
        pass


Kept = list[Any]
Leave = Callable[[Body, Callable[[], object], Kept], Awaitable[None]]


async def by_cancel(body: Body, reads: Callable[[], object], kept: Kept) -> None:
    task = asyncio.create_task(consume(body))
    kept.append(task)
    await until(reads)
    task.cancel()
    await asyncio.wait([task])


async def by_timeout(body: Body, reads: Callable[[], object], kept: Kept) -> None:
    try:
        async with asyncio.timeout(None) as limit:
            kept.append(asyncio.create_task(_then(reads, lambda: limit.reschedule(0))))
            await consume(body)
    except TimeoutError as error:
        kept.append(error)


async def by_wait_for(body: Body, reads: Callable[[], object], kept: Kept) -> None:
    try:
        await asyncio.wait_for(consume(body), 0.05)
    except TimeoutError as error:
        kept.append(error)


async def by_a_sibling(body: Body, reads: Callable[[], object], kept: Kept) -> None:
    async def fails() -> None:
        await until(reads)
        raise ZeroDivisionError

    try:
        async with asyncio.TaskGroup() as group:
            kept.append(group.create_task(consume(body)))
            kept.append(group.create_task(fails()))
    except ExceptionGroup as error:
        kept.append(error)


async def by_a_scope(body: Body, reads: Callable[[], object], kept: Kept) -> None:
    with anyio.CancelScope() as scope:
        kept.append(asyncio.create_task(_then(reads, scope.cancel)))
        try:
            await consume(body)
        except BaseException as error:
            kept.append(error)
            raise


async def by_a_group(body: Body, reads: Callable[[], object], kept: Kept) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(consume, body)
        await until(reads)
        group.cancel_scope.cancel()


async def by_a_group_around(body: Body, reads: Callable[[], object], kept: Kept) -> None:
    async with anyio.create_task_group() as group:
        kept.append(asyncio.create_task(_then(reads, group.cancel_scope.cancel)))
        await consume(body)


async def by_leaving_slowly(body: Body, reads: Callable[[], object], kept: Kept) -> None:
    async def reader() -> None:
        try:
            await consume(body)
        finally:
            await asyncio.sleep(0.01)

    task = asyncio.create_task(reader())
    kept.append(task)
    await until(reads)
    task.cancel()
    await asyncio.wait([task])


async def _then(condition: Callable[[], object], act: Callable[[], object]) -> None:
    await until(condition)
    act()


LEAVES = {
    each.__name__: each
    for each in (
        *(by_cancel, by_timeout, by_wait_for, by_a_sibling, by_a_scope, by_a_group, by_a_group_around),
        by_leaving_slowly,
    )
}


@pytest.fixture
def without_collector() -> Generator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("leave", LEAVES.values(), ids=LEAVES)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
async def test_a_run_ends_when_its_read_is_cancelled(form: Form, leave: Leave) -> None:  # P17
    kept: Kept = []
    models: dict[str, ScriptedModel] = {}

    async def read(name: str, way: Way) -> None:
        model = models[name] = ScriptedModel(frames("-a-", 0.003))
        await leave(form(way, Agent(model)), lambda: model.open, kept)

    await asyncio.gather(*(read(name, way) for name, way in (OF_A_RUN if form is handle else WAYS).items()))
    await asyncio.sleep(0.02)
    assert [name for name, model in models.items() if model.open] == []
    assert all(len(model.requests) == 1 for model in models.values())


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("leave", [by_cancel, by_wait_for, by_a_sibling, by_a_group, by_leaving_slowly])
@pytest.mark.parametrize("form", [temporary, variable, argument, handle])
async def test_a_run_ends_when_its_reader_is_cancelled_between_two_reads(form: Form, leave: Leave) -> None:  # P17
    kept: Kept = []
    models: dict[str, ScriptedModel] = {}

    async def read(name: str, way: Way) -> None:
        model = models[name] = ScriptedModel(frames("-a-", 0.003))
        agent = Agent(model)

        async def consumer(body: Body) -> AsyncGenerator[bytes]:
            """Read as `form` does, and wait in the same function."""
            if form is handle:
                run = agent.run("Go.")
                async for _ in way(agent, lambda: run):
                    await _wait(model)
            elif form is variable:
                stream = way(agent, lambda: agent.run("Go."))
                async for _ in stream:
                    await _wait(model)
            else:
                async for _ in way(agent, lambda: agent.run("Go.")):
                    await _wait(model)
            yield b""

        await leave(lambda: consumer(form(way, agent)), lambda: model.open, kept)

    ways = {name: way for name, way in WAYS.items() if name not in (*WITHOUT_ITEMS, "sse", "async with")}
    await asyncio.gather(*(read(name, way) for name, way in ways.items() if form is not handle or name in OF_A_RUN))
    await asyncio.sleep(0.02)
    assert [name for name, model in models.items() if model.open] == []


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("leave", [by_cancel, by_a_sibling, by_a_group])
async def test_a_run_ends_when_the_task_that_iterates_it_is_cancelled_between_two_reads(leave: Leave) -> None:  # P17
    kept: Kept = []
    models: dict[str, ScriptedModel] = {}

    async def read(name: str, way: Way) -> None:
        model = models[name] = ScriptedModel(frames("-a-", 0.003))
        agent = Agent(model)

        async def consumer() -> AsyncGenerator[bytes]:
            items = aiter(way(agent, lambda: agent.run("Go.")))
            async for _ in items:
                await _wait(model)
            yield b""

        await leave(consumer, lambda: model.open, kept)

    await asyncio.gather(*(read(name, way) for name, way in WAYS.items() if name not in WITHOUT_ITEMS))
    with suppress(TimeoutError):
        async with asyncio.timeout(8):
            await until(lambda: not any(model.open for model in models.values()))
    assert [name for name, model in models.items() if model.open] == []


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
async def test_a_run_ends_when_a_cycle_keeps_the_body_that_is_suspended_at_its_yield(form: Form) -> None:  # P17
    models: dict[str, ScriptedModel] = {}

    async def send(body: Body) -> None:
        response: dict[str, Any] = {"body": body()}
        response["itself"] = response
        async for _ in response["body"]:
            await asyncio.sleep(100)

    async def leave(name: str, way: Way) -> None:
        model = models[name] = ScriptedModel(frames("-a-", 0.003))
        task = asyncio.create_task(send(form(way, Agent(model))))
        await until(lambda: model.open)
        task.cancel()
        await asyncio.wait([task])

    ways = OF_A_RUN if form is handle else WAYS
    await asyncio.gather(*(leave(name, way) for name, way in ways.items() if name not in WITHOUT_ITEMS))
    # In a long-lived program the cycle is old when the client leaves.
    gc.collect(0)
    gc.collect(1)
    with suppress(TimeoutError):
        async with asyncio.timeout(8):
            await until(lambda: not any(model.open for model in models.values()))
    assert [name for name, model in models.items() if model.open] == []


async def test_a_reader_whose_task_was_cancelled_between_two_reads_can_be_read_on(
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

    async def read(place: int) -> None:
        async for text in readers[place]:
            texts[place] += text
            await asyncio.sleep(1 if len(texts[place]) == 1 else 0)

    tasks = [asyncio.create_task(read(place)) for place in range(len(readers))]
    await until(lambda: all(texts))
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await asyncio.sleep(0.3)
    await asyncio.gather(*map(read, range(len(readers))))
    assert texts == ["abc"] * len(readers)
    # A full collection stops the event loop, so that all readers share one.
    assert collected.count(2) <= 1


async def _wait(model: ScriptedModel) -> None:
    if model.open:
        await asyncio.sleep(100)


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("name", [name for name in WAYS if name not in WITHOUT_ITEMS])
async def test_a_run_ends_when_a_loop_is_left_by_an_error_that_is_kept(name: str) -> None:  # P17
    model = endless()
    kept: list[BaseException] = []
    agent = Agent(model)

    async def read() -> None:
        async for _ in WAYS[name](agent, lambda: agent.run("Go.")):
            if model.open:
                raise ZeroDivisionError

    try:
        await read()
    except ZeroDivisionError as error:
        kept.append(error)
    await settled(30)
    assert model.open == 0


@pytest.mark.usefixtures("without_collector")
async def test_a_run_ends_when_its_reader_is_cancelled_during_a_tool() -> None:  # P17
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

    kept: Kept = []
    models = [ScriptedModel(call("slow"), "Done.") for _ in OF_A_RUN]
    begun: list[str] = []
    for model, way in zip(models, OF_A_RUN.values(), strict=True):
        agent = Agent(model, tools=[slow], loop=op.standard())
        run, seen = watched(agent)
        begun.clear()

        def started(seen: list[Any] = seen) -> bool:
            return any(event.kind == "tool-start" for event in seen)

        async def body(way: Way = way, agent: Agent = agent, runs: list[Run] = [run]) -> AsyncGenerator[bytes]:  # noqa: B006
            run = runs.pop()
            async for _ in way(agent, lambda: run):
                yield b""

        del run
        await by_a_group(body, started, kept)
        await ended(seen)
    assert cancelled == ["slow"] * len(models)
    assert [len(model.requests) for model in models] == [1] * len(models)


async def test_cancelling_a_reader_keeps_a_run_whose_handle_is_used() -> None:  # P17
    runs: dict[str, Run] = {}
    runs["a"] = Agent(ScriptedModel(frames("-a-b-c-|", 0.01))).run("Go.")
    for name in ("the run", "text", "sse", "merge", "stream that blocks"):

        async def reader(run: Run, way: Way = OF_A_RUN[name]) -> None:
            async for _ in way(Agent(endless()), lambda: run):
                pass

        task = asyncio.create_task(reader(runs["a"]))
        await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.wait([task])
        await settled()
    assert (await runs["a"]).output == "abc"


async def test_a_function_that_catches_the_cancellation_keeps_its_variables() -> None:  # P17
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


async def by_wait_for_anext(items: AsyncIterator[Any]) -> Any:
    return await asyncio.wait_for(anext(items), 0.004)


async def by_wait_for_a_helper(items: AsyncIterator[Any]) -> Any:
    async def step() -> Any:
        return await anext(items)

    return await asyncio.wait_for(step(), 0.004)


async def by_timeout_around_anext(items: AsyncIterator[Any]) -> Any:
    async with asyncio.timeout(0.004):
        return await anext(items)


async def by_a_scope_around_anext(items: AsyncIterator[Any]) -> Any:
    with anyio.fail_after(0.004):
        return await anext(items)


async def by_a_task(items: AsyncIterator[Any]) -> Any:
    task: asyncio.Task[Any] = asyncio.create_task(anext(items))  # type: ignore[arg-type]
    await asyncio.wait([task], timeout=0.004)
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
        raise TimeoutError
    return task.result()


POLLS = {
    each.__name__: each
    for each in (
        *(by_wait_for_anext, by_wait_for_a_helper, by_timeout_around_anext, by_a_scope_around_anext, by_a_task),
    )
}
READ_AGAIN = [name for name in WAYS if "await" not in name and name != "async with"]


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("poll", POLLS.values(), ids=POLLS)
@pytest.mark.parametrize("name", READ_AGAIN)
async def test_a_cancelled_read_can_be_repeated_and_loses_nothing(name: str, poll: Poll) -> None:  # P24
    def agent() -> Agent:
        return Agent(ScriptedModel(frames("---a---b---c---|", 0.004)))

    def summed(items: list[Any]) -> Any:
        if name == "map":
            return [item.output for item in items]
        if name == "sse":
            return [item.partition(b"\nevent: ")[2].partition(b"\n")[0] for item in items]
        return [item if isinstance(item, str) else item.kind for item in items]

    whole, polled = agent(), agent()
    expected = [item async for item in WAYS[name](whole, lambda: whole.run("Go."))]
    items, got, polls = aiter(WAYS[name](polled, lambda: polled.run("Go."))), [], 0
    with suppress(StopAsyncIteration):
        while True:
            try:
                got.append(await poll(items))
            except TimeoutError:
                polls += 1
    assert summed(got) == summed(expected)
    assert polls > 0


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("follow", ["client", "runtime"])
async def test_a_follower_lets_go_when_its_read_is_cancelled(follow: str) -> None:  # P17
    model = endless()
    kept: Kept = []
    async with serving(Agent(model)) as served, Client(served.url, token="ann-key") as client:
        run = await client.start(None, "Go.")
        await until(lambda: model.open)
        read = False

        async def body() -> AsyncGenerator[bytes]:
            nonlocal read
            events = client.follow(run.task_id) if follow == "client" else served.runtime.follow(run.task_id)
            async for _ in events:
                read = True
                yield b""

        await by_cancel(body, lambda: read, kept)
        await asyncio.sleep(0.02)
        pool: Any = client._http._transport._pool  # type: ignore[attr-defined]
        assert [each for each in pool.connections if not each.is_idle()] == []
        assert [task.get_name() for task in asyncio.all_tasks() if "rxloop-client" in task.get_name()] == []
        assert model.open == 1
        await client.cancel(run.task_id)
