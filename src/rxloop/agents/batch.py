"""Batches and cold runs."""

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
"""Batch items, possibly infinite."""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[I, R]):
    """Outcome for one batch item.

    Attributes:
        item: Batch item.
        key: Item key, or an empty string if creating the key failed.
        result: Run result, which is partial for a failed run, or None if the run did not start.
        error: Exception raised by the run.
    """

    item: I
    key: str
    result: Result[R] | None = field(default=None, repr=False)
    error: Exception | None = None

    @property
    def output(self) -> R:
        """Run output.

        Raises:
            Exception: The run's exception, or `NotFinished` if it waits for input.
        """
        if self.error is not None:
            raise self.error
        return cast("Result[R]", self.result).output

    @property
    def usage(self) -> Usage:
        """Token usage for all attempts."""
        return Usage() if self.result is None else self.result.usage


def run_batch(
    definition: AgentDefinition, items: Items[I], deps: Any, options: MapOptions[I]
) -> Stream[Outcome[I, Any]]:
    """Run an agent for each item, implementing `Agent.map`."""
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
        # Another process may execute the same batch concurrently.
        return await run_once(lambda: make_run(item, {"metadata": told, "task_id": task_id}), lambda: resume(task_id))

    check = _check_prompt if prompt is None else _check_nothing
    return batch(items, ask, key or (lambda item: _key_of(to_prompt(item))), concurrency, check)


def _check_prompt(item: object) -> None:
    """Check that an item can be used as a prompt."""
    if not isinstance(item, str | Message | Sequence) or isinstance(item, bytes | bytearray):
        raise ConfigurationError(
            f"the item {item!r} is no prompt: give texts or messages, or pass prompt=, a function that makes the "
            "prompt of an item"
        )


def _check_nothing(item: object) -> None:
    """Accept any item."""


def _key_of(prompt: Any) -> str:
    """Return the default item key, which is the prompt, so that a different prompt is a different run."""
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
    """Call `ask` for each item, with limited concurrency, yielding outcomes in order of completion.

    ::

        items      --a-b-c--------|
        ask(a)       ----A|
        ask(b)         ------B|
        ask(c)           --C|           with a concurrency of 2 it begins at the end of a
        out        ------A---C-B--|

    Args:
        items: Items, which are read when a run can start. An exception ends the stream after all started runs.
            Observables cannot be paused, so their items are queued.
        ask: Function that executes the run for an item and its key.
        key: Function that returns an item's key.
        concurrency: Maximum number of concurrent runs.
        check: Function that validates an item. An exception ends the stream, like an exception from `items`.

    Raises:
        ConfigurationError: If `items` or `concurrency` is invalid, or `check` rejects an item of a list.
    """
    given = cast("object", items)
    if isinstance(given, str | bytes) or not isinstance(given, Iterable | AsyncIterable | Observable):
        raise ConfigurationError(f"items must be an iterable, sync or async, or an Observable, not {items!r}")
    if concurrency < 1:
        raise ConfigurationError(f"concurrency must be at least 1, not {concurrency}")
    for item in cast("Sequence[I]", items) if isinstance(given, Sequence) else ():
        check(item)
    # A second subscription to a one-shot iterator would miss items.
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

    # Outcomes cannot be merged or dropped, so a slow reader must delay the batch.
    return Stream(Observable(subscribe), Holds(), overflow="block", buffer=concurrency)


class _Batch(Generic[I, R]):
    """Batch execution for one subscription."""

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
        """End events of running items by key."""

    async def carry_out(self, source: AsyncGenerator[I]) -> None:
        """Start runs for all items, then wait for the remaining outcomes."""
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
        """Execute items with equal keys sequentially, because they may share a run."""
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
    """Return an item generator and a function to close its source."""
    if isinstance(items, AsyncIterable):
        return _from_async(items), _nothing
    if not isinstance(items, Observable):
        return _from_sync(items), _nothing
    # Subscribe immediately, because the Observable may be hot. The "block" policy queues items without merging or
    # dropping.
    buffer = ReadBuffer("block", 1, None)
    buffer.attach(items.subscribe(buffer.push, buffer.end, buffer.end, scheduler=scheduler))
    return _from_buffer(buffer), buffer.close


def _nothing() -> None:
    """No-op for sources that are closed by their generator."""


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
    """Observable run events for a prompt. Each subscription starts a new run, and disposing it cancels the run.

    Failures are reported by the final event, as in `Run.events`. In contrast, `result()` and `text()` end with an
    error, for use with `retry` and `catch`.

    ::

        questions                                            --a-----b----------|
        questions.pipe(rx.flat_map_latest(agent.observe))    --twl-d-twl-d-c-F--|      the run of a is cancelled

    A slow blocking reader of a merged stream also delays the runs.
    """

    def __init__(self, make: Callable[[], Run[O]]) -> None:
        """Create a cold run.

        Args:
            make: Function that creates the run for a subscription.
        """
        super().__init__(_each(make, lambda run: run.events), Holds())
        self._make = make

    def text(self) -> Stream[str]:
        """Return the streaming answer text, ending with an error if the run fails. See `Run.text`."""
        return Stream(_each(self._make, lambda run: run.text()), Holds(), join_text=True)

    def result(self) -> Stream[Result[O]]:
        """Return the result, or an error if there is none. See `Run.result`."""
        return Stream(_each(self._make, lambda run: from_awaitable(run.result, name="rxloop-result")), Holds())


def _each(make: Callable[[], Run[R]], of: Callable[[Run[R]], Observable[T]]) -> Observable[T]:
    """Return an Observable that creates a run for each subscription."""

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
