"""A run for each item of a batch, or for each subscription."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Generic, cast

import reactivex
from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, Disposable
from typing_extensions import TypeVar

from rxloop.agents.definition import AgentDefinition
from rxloop.agents.options import MapOptions, Options, ResumeOptions, RunOptions
from rxloop.agents.remote_run import run_once
from rxloop.agents.specs import make_resume_spec, make_run_spec
from rxloop.agents.validation import check_deps, check_options
from rxloop.errors import AttemptError, ConfigurationError
from rxloop.protocol.events import AnyEvent
from rxloop.protocol.ids import derive_id
from rxloop.protocol.messages import Message, Usage, to_messages
from rxloop.run.handle import Run
from rxloop.run.result import Result
from rxloop.stream.back_pressure import Gate, ReadBuffer
from rxloop.stream.readers import Holds
from rxloop.stream.rx import RunScheduler
from rxloop.stream.sources import Push, from_awaitable, from_task
from rxloop.stream.stream import Stream
from rxloop.support.tasks import close_iterator

I = TypeVar("I")  # noqa: E741

R = TypeVar("R")

T = TypeVar("T")

O = TypeVar("O", default=str)  # noqa: E741

Items = Iterable[I] | AsyncIterable[I] | Observable[I]
"""What a batch is made of; it may be endless."""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[I, R]):
    """How one item of a batch turned out.

    Attributes:
        item: The item.
        key: Its key; empty where that could not be made.
        result: The result of its run, partial where the run failed; None if it never began.
        error: What the run raised.
    """

    item: I
    key: str
    result: Result[R] | None = field(default=None, repr=False)
    error: Exception | None = None

    @property
    def output(self) -> R:
        """The answer.

        Raises:
            Exception: What the run raised, or `NotFinished` if it waits for input.
        """
        if self.error is not None:
            raise self.error
        return cast("Result[R]", self.result).output

    @property
    def usage(self) -> Usage:
        """The tokens that the run has used, those of earlier attempts included."""
        return Usage() if self.result is None else self.result.usage


def run_batch(
    definition: AgentDefinition, items: Items[I], deps: Any, options: MapOptions[I]
) -> Stream[Outcome[I, Any]]:
    """Run an agent for each item; see `Agent.map`."""
    check_options("Agent.map", options, MapOptions)
    prompt, key, name = options.pop("prompt", None), options.pop("key", None), options.pop("name", None)
    concurrency, metadata = options.pop("concurrency", 50), options.pop("metadata", None) or {}
    if name is not None and definition.log is None:
        raise ConfigurationError(
            f"the batch {name!r} needs a log that keeps its runs: Agent(..., log=SqliteEventLog('runs.db'))"
        )
    shared = cast("Options", options)

    def to_prompt(item: I) -> Any:
        return item if prompt is None else prompt(item)

    def make_run(item: I, own: RunOptions) -> Run[Any]:
        check_deps("Agent.map", definition.deps_type, deps)
        run_options: RunOptions = {**shared, **own}
        return definition.make_run(make_run_spec(definition, "Agent.map", to_prompt(item), deps, run_options))

    def resume(task_id: str) -> Run[Any]:
        resume_options: ResumeOptions = {**shared, "when_busy": "wait"}
        return definition.make_run(make_resume_spec(definition, "Agent.map", task_id, deps, resume_options))

    async def ask(item: I, own: str) -> Result[Any]:
        if name is None:
            return await make_run(item, {"metadata": metadata})
        task_id = derive_id(definition.name, name, own)
        told = {**metadata, "batch": {"name": name} if key is None else {"name": name, "key": own}}
        # Another process may execute the same batch, and be quicker.
        return await run_once(lambda: make_run(item, {"metadata": told, "task_id": task_id}), lambda: resume(task_id))

    check = _check_prompt if prompt is None else _check_nothing
    return batch(items, ask, key or (lambda item: _key_of(to_prompt(item))), concurrency, check)


def _check_prompt(item: object) -> None:
    """Refuse what is no prompt at all: where one item is a record, they all are."""
    if not isinstance(item, str | Message | Sequence) or isinstance(item, bytes | bytearray):
        raise ConfigurationError(
            f"the item {item!r} is no prompt: give texts or messages, or pass prompt=, a function that makes the "
            "prompt of an item"
        )


def _check_nothing(item: object) -> None:
    """Take any item."""


def _key_of(prompt: Any) -> str:
    """The key of an item that has none of its own: its prompt, so that another prompt is another run."""
    if isinstance(prompt, str):
        return prompt
    # Imported lazily to keep `import rxloop` fast.
    import orjson

    return orjson.dumps([message.model_dump(mode="json") for message in to_messages(prompt)]).decode()


def batch(
    items: Items[I],
    ask: Callable[[I, str], Awaitable[Result[R]]],
    key: Callable[[I], str | int],
    concurrency: int,
    check: Callable[[I], None] = _check_nothing,
) -> Stream[Outcome[I, R]]:
    """Ask for each item, up to `concurrency` at a time, and yield each outcome as soon as it is there.

    ::

        items      --a-b-c--------|
        ask(a)       ----A|
        ask(b)         ------B|
        ask(c)           --C|           with a concurrency of 2 it begins at the end of a
        out        ------A---C-B--|

    Args:
        items: Taken one by one, when there is room for a run of it. What they raise ends the stream, after the
            outcomes of what was begun. Only an Observable cannot be asked to wait: what it sends queues.
        ask: Makes the run of an item and its key, and awaits it.
        key: The key of an item.
        concurrency: How many are asked at once.
        check: Refuses an item, which ends the stream as an error of `items` does.

    Raises:
        ConfigurationError: `items` or `concurrency` is wrong, or `check` has refused an item of a list.
    """
    given = cast("object", items)
    if isinstance(given, str | bytes) or not isinstance(given, Iterable | AsyncIterable | Observable):
        raise ConfigurationError(f"items must be an iterable, sync or async, or an Observable, not {items!r}")
    if concurrency < 1:
        raise ConfigurationError(f"concurrency must be at least 1, not {concurrency}")
    for item in cast("Sequence[I]", items) if isinstance(given, Sequence) else ():
        check(item)
    # What can be read once would give a second subscription nothing, or the rest.
    kind = type(cast("object", items)).__name__
    read_once, read = isinstance(given, Iterator | AsyncIterator), False

    def subscribe(
        observer: abc.ObserverBase[Outcome[I, R]], scheduler: abc.SchedulerBase | None = None
    ) -> abc.DisposableBase:
        nonlocal read
        if read_once and read:
            refused = ConfigurationError(
                f"the items are a {kind}, which can be read only once, and it was: give a list, or "
                "call agent.map() again with new items"
            )
            return reactivex.throw(refused).subscribe(observer, scheduler=scheduler)
        read = True
        gates = scheduler.gates if isinstance(scheduler, RunScheduler) else None
        source, close = _opened(items, scheduler)

        async def work(push: Push[Outcome[I, R]]) -> None:
            await _Batch(ask, key, concurrency, check, gates, push).carry_out(source)

        runs = from_task(work, name="rxloop-batch").subscribe(observer, scheduler=scheduler)
        return CompositeDisposable(runs, Disposable(close))

    # A reader that is slow holds the batch back, since nothing of outcomes can be merged or dropped.
    return Stream(Observable(subscribe), Holds(), overflow="block", buffer=concurrency)


class _Batch(Generic[I, R]):
    """One subscription of a batch."""

    def __init__(
        self,
        ask: Callable[[I, str], Awaitable[Result[R]]],
        key: Callable[[I], str | int],
        concurrency: int,
        check: Callable[[I], None],
        gate: Gate | None,
        push: Push[Outcome[I, R]],
    ) -> None:
        self._ask = ask
        self._key = key
        self._check = check
        self._room = asyncio.Semaphore(concurrency)
        self._gate = gate
        self._push = push
        self._under_way: dict[str, asyncio.Event] = {}
        """By their keys: what ends with each."""

    async def carry_out(self, source: AsyncGenerator[I]) -> None:
        """Ask for each item, and wait for the last outcome."""
        failure: Exception | None = None
        async with asyncio.TaskGroup() as runs, aclosing(source):
            while True:
                await self._room.acquire()
                if self._gate is not None:
                    await self._gate.wait()
                try:
                    item = await anext(source)
                    self._check(item)
                except StopAsyncIteration:
                    break
                except Exception as error:
                    failure = error
                    break
                runs.create_task(self._carry_out_one(item), name="rxloop-batch-item")
        if failure is not None:
            raise failure

    async def _carry_out_one(self, item: I) -> None:
        try:
            try:
                key = _checked(self._key(item))
            except Exception as error:
                outcome: Outcome[I, R] = Outcome(item, "", None, error)
            else:
                outcome = await self._one_at_once(item, key)
            self._push(outcome)
        finally:
            self._room.release()

    async def _one_at_once(self, item: I, key: str) -> Outcome[I, R]:
        """Carry out what has the same key one after the other: it may be the same run."""
        while (other := self._under_way.get(key)) is not None:
            await other.wait()
        ended = self._under_way[key] = asyncio.Event()
        try:
            return await self._outcome(item, key)
        finally:
            del self._under_way[key]
            ended.set()

    async def _outcome(self, item: I, key: str) -> Outcome[I, R]:
        try:
            return Outcome(item, key, await self._ask(item, key))
        except AttemptError as error:
            return Outcome(item, key, error.result, error)
        except Exception as error:
            return Outcome(item, key, None, error)


def _checked(key: Any) -> str:
    if isinstance(key, bool) or not isinstance(key, str | int):
        raise ConfigurationError(f"key(item) must give a text or a number, the same in every process, not {key!r}")
    return str(key)


def _opened(items: Items[I], scheduler: abc.SchedulerBase | None) -> tuple[AsyncGenerator[I], Callable[[], None]]:
    """The items as they are asked for, and what lets go of them."""
    if isinstance(items, AsyncIterable):
        return _from_async(items), _nothing
    if not isinstance(items, Observable):
        return _from_sync(items), _nothing
    # Subscribed at once, since it may be hot. Items queue: "block" merges and drops nothing.
    buffer = ReadBuffer("block", 1, None)
    buffer.attach(items.subscribe(buffer.push, buffer.end, buffer.end, scheduler=scheduler))
    return _from_buffer(buffer), buffer.close


def _nothing() -> None:
    """Let go of nothing: the generator closes what it reads."""


async def _from_sync(items: Iterable[I]) -> AsyncGenerator[I]:
    for item in items:
        yield item


async def _from_async(items: AsyncIterable[I]) -> AsyncGenerator[I]:
    iterator = aiter(items)
    try:
        async for item in iterator:
            yield item
    finally:
        await close_iterator(iterator)


async def _from_buffer(buffer: ReadBuffer) -> AsyncGenerator[Any]:
    try:
        while True:
            yield await buffer.get()
    except StopAsyncIteration:
        return


class ColdRun(Stream[AnyEvent], Generic[O]):
    """A prompt as an Observable: each subscription makes a run of its own, and disposing it cancels that run.

    It is the events of the run. How a run fails is told by its final event, as by `Run.events`; `result()` and `text()`
    end with the error, for `retry` and `catch`.

    ::

        questions                                            --a-----b----------|
        questions.pipe(rx.flat_map_latest(agent.observe))    --twl-d-twl-d-c-F--|      the run of a is cancelled

    A slow reader of a merged stream that blocks holds back the runs of the subscription, too.
    """

    def __init__(self, make: Callable[[], Run[O]]) -> None:
        """Make an Observable of runs.

        Args:
            make: Makes the run of a subscription.
        """
        super().__init__(_each(make, lambda run: run.events), Holds())
        self._make = make

    def text(self) -> Stream[str]:
        """The text of the answer as it streams, and at the end the error of a run that failed; see `Run.text`."""
        return Stream(_each(self._make, lambda run: run.text()), Holds(), join_text=True)

    def result(self) -> Stream[Result[O]]:
        """The result, or the error of a run that has none; see `Run.result`."""
        return Stream(_each(self._make, lambda run: from_awaitable(run.result, name="rxloop-result")), Holds())


def _each(make: Callable[[], Run[R]], of: Callable[[Run[R]], Observable[T]]) -> Observable[T]:
    """Something of a run that each subscription makes for itself."""

    def subscribe(observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        run = make()
        gate, gates = run.hold.gate, scheduler.gates if isinstance(scheduler, RunScheduler) else None
        if gates is not None:
            gates.add(gate)

        def dispose() -> None:
            if gates is not None:
                gates.remove(gate)
            run.cancel("its subscription was disposed")

        return CompositeDisposable(of(run).subscribe(observer, scheduler=scheduler), Disposable(dispose))

    return Observable(subscribe)
