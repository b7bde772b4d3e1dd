"""Batches and cold runs."""

from __future__ import annotations

import asyncio
import json
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
from inspect import isfunction
from typing import Any, Generic, cast

import reactivex
from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, Disposable
from typing_extensions import TypeVar

from rxloop.agents.definition import DEFAULT_NAME, AgentDefinition
from rxloop.agents.options import MapOptions, Options, ResumeOptions, RunOptions
from rxloop.agents.remote_run import run_once
from rxloop.agents.specs import make_resume_spec, make_run_spec
from rxloop.agents.validation import check_deps, check_options
from rxloop.errors import AttemptError, ConfigurationError
from rxloop.protocol.events import AnyEvent
from rxloop.protocol.ids import derive_id
from rxloop.protocol.messages import Message, Prompt, Usage, to_messages
from rxloop.run.handle import Run
from rxloop.run.result import Result
from rxloop.stream.back_pressure import Gate, ReadBuffer
from rxloop.stream.readers import Holds
from rxloop.stream.rx import RunScheduler
from rxloop.stream.sources import Push, from_awaitable, from_task
from rxloop.stream.stream import Stream
from rxloop.support.misuse import check_argument, check_minimum
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
    definition: AgentDefinition,
    items: Items[I],
    prompt: Callable[[I], Prompt] | None,
    deps: Any,
    options: MapOptions[I],
) -> Stream[Outcome[I, Any]]:
    """Run an agent for each item, implementing `Agent.map`."""
    check_options("Agent.map", options, MapOptions)
    key, name = options.pop("key", None), options.pop("name", None)
    concurrency, metadata = options.pop("concurrency", 50), options.pop("metadata", None) or {}
    if name is not None and definition.log is None:
        raise ConfigurationError(f"batch {name!r} requires an event log: Agent(..., log=SqliteEventLog('runs.db'))")
    identity = () if name is None else _identify(definition, name)
    shared = cast("Options", options)

    def to_prompt(item: I) -> Any:
        return item if prompt is None else prompt(item)

    def make_run(item: I, item_options: RunOptions) -> Run[Any]:
        check_deps("Agent.map", definition.deps_type, deps)
        run_options: RunOptions = {**shared, **item_options}
        return definition.make_run(make_run_spec(definition, "Agent.map", to_prompt(item), deps, run_options))

    def resume(task_id: str) -> Run[Any]:
        resume_options: ResumeOptions = {**shared, "when_busy": "wait"}
        return definition.make_run(make_resume_spec(definition, "Agent.map", task_id, deps, resume_options))

    async def ask(item: I, item_key: str) -> Result[Any]:
        if name is None:
            return await make_run(item, {"metadata": metadata})
        task_id = derive_id(*identity, name, item_key)
        batch_metadata = {"name": name} if key is None else {"name": name, "key": item_key}
        item_metadata = {**metadata, "batch": batch_metadata}
        # Another process may execute the same batch concurrently.
        return await run_once(
            lambda: make_run(item, {"metadata": item_metadata, "task_id": task_id}), lambda: resume(task_id)
        )

    check = _check_prompt if prompt is None else _accept_any
    return batch(items, ask, key or (lambda item: _make_default_key(to_prompt(item))), concurrency, check)


def _identify(definition: AgentDefinition, batch_name: str) -> tuple[str, ...]:
    """Return strings that identify an agent in the ids of its batches: its name, or its definition if it has none."""
    if definition.name != DEFAULT_NAME:
        return (definition.name,)
    instructions: Any = definition.instructions
    if not isinstance(instructions, str):
        # Other agents may have another lambda, closure or object with the same name.
        if not isfunction(instructions) or "<" in instructions.__qualname__:
            raise ConfigurationError(f"batch {batch_name!r} requires a name of the agent: Agent(..., name='moods')")
        instructions = f"{instructions.__module__}.{instructions.__qualname__}"
    tools = sorted(tool.definition.name for tool in definition.tools.plain_tools.values())
    output = definition.output
    schemas = json.dumps((output.schema, output.instructions, output.tool and output.tool.definition.parameters))
    return (definition.name, definition.model.name, instructions, schemas, *tools)


def _check_prompt(item: object) -> None:
    """Reject items that cannot be used as a prompt."""
    is_prompt = isinstance(item, str | Message | Sequence) and not isinstance(item, bytes | bytearray)
    check_argument(
        "an item", cast("object", item), is_prompt, "a string, a message or a list of them; convert items with prompt="
    )


def _accept_any(item: object) -> None:
    """Accept any item."""


def _make_default_key(prompt: Any) -> str:
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
    check: Callable[[I], None] = _accept_any,
) -> Stream[Outcome[I, R]]:
    """Call `ask` for each item, with limited concurrency, yielding outcomes in order of completion.

    ::

        items      --a-b-c--------|
        ask(a)       ----A|
        ask(b)         ------B|
        ask(c)           --C|           with a concurrency of 2, c starts when a ends
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
    source = cast("object", items)
    if isinstance(source, str | bytes) or not isinstance(source, Iterable | AsyncIterable | Observable):
        raise ConfigurationError(f"items must be an iterable, an async iterable or an Observable, got {items!r}")
    check_minimum(1, concurrency=concurrency)
    for item in cast("Sequence[I]", items) if isinstance(source, Sequence) else ():
        check(item)
    # A second subscription to a one-shot iterator would miss items.
    kind = type(cast("object", items)).__name__
    is_one_shot, was_read = isinstance(source, Iterator | AsyncIterator), False

    def subscribe(
        observer: abc.ObserverBase[Outcome[I, R]], scheduler: abc.SchedulerBase | None = None
    ) -> abc.DisposableBase:
        nonlocal was_read
        if is_one_shot and was_read:
            error = ConfigurationError(
                f"items of type {kind} can be read only once; pass a list, or call agent.map() again with new items"
            )
            return reactivex.throw(error).subscribe(observer, scheduler=scheduler)
        was_read = True
        gates = scheduler.gates if isinstance(scheduler, RunScheduler) else None
        opened, close = _open_source(items, scheduler)

        async def work(push: Push[Outcome[I, R]]) -> None:
            await _Batch(ask, key, concurrency, check, gates, push).execute(opened)

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
        self._ask, self._key, self._check = ask, key, check
        self._slots = asyncio.Semaphore(concurrency)
        self._gate, self._push = gate, push
        self._active: dict[str, asyncio.Event] = {}
        """End events of running items by key."""

    async def execute(self, source: AsyncGenerator[I]) -> None:
        """Start runs for all items, then wait for the remaining outcomes."""
        failure: Exception | None = None
        async with asyncio.TaskGroup() as runs, aclosing(source):
            while True:
                await self._slots.acquire()
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
                runs.create_task(self._execute_item(item), name="rxloop-batch-item")
        if failure is not None:
            raise failure

    async def _execute_item(self, item: I) -> None:
        try:
            try:
                key = _validate_key(self._key(item))
            except Exception as error:
                outcome: Outcome[I, R] = Outcome(item, "", None, error)
            else:
                outcome = await self._execute_exclusively(item, key)
            self._push(outcome)
        finally:
            self._slots.release()

    async def _execute_exclusively(self, item: I, key: str) -> Outcome[I, R]:
        """Execute items with equal keys sequentially, because they may share a run."""
        while (other := self._active.get(key)) is not None:
            await other.wait()
        ended = self._active[key] = asyncio.Event()
        try:
            return await self._collect_outcome(item, key)
        finally:
            del self._active[key]
            ended.set()

    async def _collect_outcome(self, item: I, key: str) -> Outcome[I, R]:
        try:
            return Outcome(item, key, await self._ask(item, key))
        except AttemptError as error:
            return Outcome(item, key, error.result, error)
        except Exception as error:
            return Outcome(item, key, None, error)


def _validate_key(key: Any) -> str:
    if isinstance(key, bool) or not isinstance(key, str | int):
        raise ConfigurationError(f"key(item) must return a string or an integer, got {key!r}")
    return str(key)


def _open_source(items: Items[I], scheduler: abc.SchedulerBase | None) -> tuple[AsyncGenerator[I], Callable[[], None]]:
    """Return an item generator and a function to close its source."""
    if isinstance(items, AsyncIterable):
        return _from_async(items), _do_nothing
    if not isinstance(items, Observable):
        return _from_sync(items), _do_nothing
    # Subscribe immediately, because the Observable may be hot. The "block" policy queues items without merging or
    # dropping.
    buffer = ReadBuffer("block", 1, None)
    buffer.attach(items.subscribe(buffer.push, buffer.end, buffer.end, scheduler=scheduler))
    return _from_buffer(buffer), buffer.close


def _do_nothing() -> None:
    """Do nothing, because the generator closes its source."""


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

    def __init__(self, make_run: Callable[[], Run[O]]) -> None:
        """Create a cold run.

        Args:
            make_run: Function that creates the run for a subscription.
        """
        super().__init__(_start_per_subscription(make_run, lambda run: run.events), Holds())
        self._make_run = make_run

    def text(self) -> Stream[str]:
        """Return the streaming answer text, ending with an error if the run fails. See `Run.text`."""
        return Stream(_start_per_subscription(self._make_run, lambda run: run.text()), Holds(), join_text=True)

    def result(self) -> Stream[Result[O]]:
        """Return a stream with the result, which fails if there is none. See `Run.result`."""
        return Stream(
            _start_per_subscription(self._make_run, lambda run: from_awaitable(run.result, name="rxloop-result")),
            Holds(),
        )


def _start_per_subscription(make_run: Callable[[], Run[R]], select: Callable[[Run[R]], Observable[T]]) -> Observable[T]:
    """Return an Observable that creates a run for each subscription."""

    def subscribe(observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        run = make_run()
        gate, gates = run.hold.gate, scheduler.gates if isinstance(scheduler, RunScheduler) else None
        if gates is not None:
            gates.add(gate)

        def dispose() -> None:
            if gates is not None:
                gates.remove(gate)
            run.cancel("its subscription was disposed")

        return CompositeDisposable(select(run).subscribe(observer, scheduler=scheduler), Disposable(dispose))

    return Observable(subscribe)
