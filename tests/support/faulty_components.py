"""Faulty operators, tools, providers and subscribers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from random import Random
from typing import Any

import reactivex as rx
from reactivex import Observable, abc
from reactivex import operators as ops
from reactivex.disposable import CompositeDisposable, Disposable

from rxloop import (
    Agent,
    CustomEvent,
    Event,
    MemoryEventLog,
    ModelRequest,
    Operator,
    RunContext,
    RxloopError,
    Signal,
    op,
    tool,
)
from rxloop.testing import ScriptedModel, call, frames

PLANTED = "planted"
"""Marker in all internal data. It must not appear in anything that clients receive."""


class BareBaseException(BaseException):
    """Error outside of `Exception`, as used by pytest and some timeout libraries."""


Raise = Callable[[], None]


def make_raiser(error: type[BaseException]) -> Raise:
    """Create a function that raises an error."""

    def boom() -> None:
        raise error("boom")

    return boom


def do_nothing() -> None:
    """Do nothing."""


def faulty_operator(
    *,
    together: Raise = do_nothing,
    subscribed: Raise = do_nothing,
    item: Raise = do_nothing,
    at: int = 0,
    completed: Raise = do_nothing,
    disposed: Raise = do_nothing,
    after: int = 0,
) -> Operator:
    """Return an operator that passes all items and calls a function at each stage.

    Args:
        together: Called when the operator is applied to its source.
        subscribed: Called when the result is subscribed.
        item: Called before the item number `at` of an iteration is passed on.
        at: Index of the item.
        completed: Called when the source completes.
        disposed: Called when the subscription is disposed.
        after: Number of iterations without calls.
    """
    made = 0

    def troubled(source: Observable[Signal]) -> Observable[Signal]:
        nonlocal made
        made += 1
        well = made <= after
        if not well:
            together()

        def subscribe(
            observer: abc.ObserverBase[Signal], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            count = 0

            def on_next(signal: Signal) -> None:
                nonlocal count
                if count == at and not well:
                    item()
                count += 1
                observer.on_next(signal)

            def on_completed() -> None:
                if not well:
                    completed()
                observer.on_completed()

            def dispose() -> None:
                inner.dispose()
                if not well:
                    disposed()

            if not well:
                subscribed()
            inner = source.subscribe(on_next, observer.on_error, on_completed, scheduler=scheduler)
            return Disposable(dispose)

        return Observable(subscribe)

    return troubled


def thread_operator(change: Callable[[abc.ObserverBase[Any]], None]) -> Operator:
    """Create an operator that calls a function in a new thread for each item."""

    def elsewhere(source: Observable[Signal]) -> Observable[Signal]:
        def subscribe(
            observer: abc.ObserverBase[Signal], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            def on_next(signal: Signal) -> None:
                threading.Thread(target=change, args=[observer], daemon=True).start()

            return source.subscribe(on_next, observer.on_error, do_nothing, scheduler=scheduler)

        return Observable(subscribe)

    return elsewhere


ERRORS: list[type[BaseException]] = [
    ValueError,
    BareBaseException,
    asyncio.CancelledError,
    GeneratorExit,
    RxloopError,
    StopIteration,
]


class Subscriptions:
    """Number of active subscriptions."""

    def __init__(self) -> None:
        self.open = 0

    def count_open(self, source: Observable[Any]) -> Observable[Any]:
        """Return the source with its subscriptions counted."""

        def subscribe(
            observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            self.open += 1
            over = False

            def end() -> None:
                nonlocal over
                self.open -= not over
                over = True

            def on_error(error: Exception) -> None:
                end()
                observer.on_error(error)

            def on_completed() -> None:
                end()
                observer.on_completed()

            try:
                inner = source.subscribe(observer.on_next, on_error, on_completed, scheduler=scheduler)
            except BaseException:
                end()
                raise
            return CompositeDisposable(Disposable(end), inner)

        return Observable(subscribe)


def _thread(action: Callable[[], None]) -> None:
    def work() -> None:
        with suppress(BaseException):
            action()

    threading.Thread(target=work, daemon=True).start()


class FaultyOperator:
    """Operator with a random fault at a random signal. Counts its subscriptions."""

    FAULTS = (
        *("together", "subscribed", "item", "completed", "disposed"),
        *("thread", "thread end", "silent", "twice", "behind the end", "foreign", "drop", "double", "hold", "fine"),
        *("delay", "merge never", "to list", "no observable"),
    )

    def __init__(self, random: Random, subscriptions: Subscriptions) -> None:
        self.fault = random.choice(self.FAULTS)
        self.error = random.choice(ERRORS)
        self.at = random.choice((0, 0, 1, 1, 2, 3, 4, 6, 9))
        self.healthy_iterations = random.choice((0, 0, 0, 1, 2))
        self.value = random.choice((None, 5, "text", ["list"], object()))
        self._subscriptions = subscriptions
        self._made = 0

    def __repr__(self) -> str:
        return (
            f"{self.fault}({self.error.__name__}, at={self.at}, well={self.healthy_iterations}, value={self.value!r})"
        )

    def __call__(self, source: Observable[Signal]) -> Observable[Signal]:
        self._made += 1
        source = self._subscriptions.count_open(source)
        if self._made <= self.healthy_iterations:
            return source
        if self.fault == "delay":
            return source.pipe(ops.delay(0.0005))
        if self.fault == "merge never":
            return source.pipe(ops.merge(rx.never()))
        if self.fault == "to list":
            listed: Any = source.pipe(ops.to_list())
            return listed
        if self.fault == "no observable":
            nothing: Any = self.value
            return nothing
        self._raise("together")
        return Observable(lambda observer, scheduler=None: self._subscribe(source, observer, scheduler))

    def _raise(self, way: str) -> None:
        if self.fault == way:
            raise self.error("boom")

    def _subscribe(
        self, source: Observable[Signal], observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None
    ) -> abc.DisposableBase:
        count = -1
        held: list[Signal] = []

        def on_next(signal: Signal) -> None:
            nonlocal count
            count += 1
            if count == self.at:
                self._raise("item")
                if self.fault in ("drop", "thread"):
                    if self.fault == "thread":
                        _thread(lambda: observer.on_next(signal))
                    return
                if self.fault == "hold":
                    held.append(signal)
                    return
                if self.fault == "foreign":
                    observer.on_next(self.value)
                if self.fault == "double":
                    observer.on_next(signal)
            observer.on_next(signal)

        def on_completed() -> None:
            self._raise("completed")
            for signal in held:
                observer.on_next(signal)
            if self.fault == "silent":
                return
            if self.fault == "thread end":
                _thread(observer.on_completed)
                return
            observer.on_completed()
            if self.fault == "twice":
                observer.on_completed()
            if self.fault == "behind the end":
                observer.on_next(CustomEvent(name="late", data={}))

        def dispose() -> None:
            inner.dispose()
            self._raise("disposed")

        self._raise("subscribed")
        inner = source.subscribe(on_next, observer.on_error, on_completed, scheduler=scheduler)
        return Disposable(dispose)


class FaultyModel:
    """Provider whose answers pass through a faulty operator."""

    def __init__(self, model: ScriptedModel, misbehaving: FaultyOperator) -> None:
        self.name = "misbehaving"
        self._model = model
        self._through: Any = misbehaving

    def call(self, request: ModelRequest) -> Observable[Event]:
        return self._through(self._model.call(request))

    async def aclose(self) -> None:
        await self._model.aclose()


def make_faulty_tools(random: Random) -> list[Any]:
    """Create tools with random failures."""

    def maybe() -> None:
        if random.random() < 0.2:
            raise random.choice(ERRORS)("boom")

    @tool
    async def look(ctx: RunContext[Any]) -> str:
        """Look."""
        ctx.progress("looking")
        await asyncio.sleep(0)
        maybe()
        return "seen"

    @tool
    def fetch(ctx: RunContext[Any]) -> str:
        """Fetch, in a thread."""
        maybe()
        ctx.emit(CustomEvent(name="fetched", data={}))
        return "got"

    @tool
    async def walk() -> AsyncIterator[str]:
        """Walk, step by step."""
        yield "a step"
        maybe()
        yield "there"

    @tool(hidden=True)
    async def planted_secret(ctx: RunContext[Any], planted: str) -> str:
        """Keep a secret."""
        ctx.progress(PLANTED)
        maybe()
        return PLANTED

    return [look, fetch, walk, planted_secret]


def _call(random: Random) -> Any:
    name = random.choice(("look", "fetch", "walk", "unknown", "planted_secret"))
    return call(name, planted=PLANTED) if name == "planted_secret" else call(name)


def make_random_model(random: Random) -> ScriptedModel:
    """Create a model with random tool calls, followed by an answer."""
    turns: list[Any] = [
        [_call(random) for _ in range(random.choice((1, 1, 2, 3)))] for _ in range(random.choice((0, 1, 2, 3)))
    ]
    return ScriptedModel(
        *turns, random.choice(("Done.", frames("-D-o-n-e-|", frame=0.0001))), "More.", "More.", "More."
    )


class RandomAgent:
    """Random agent with faulty components."""

    def __init__(self, seed: int) -> None:
        random = self.random = Random(seed)
        self.subscriptions = Subscriptions()
        self.inside = [FaultyOperator(random, self.subscriptions) for _ in range(random.choice((0, 1, 1, 1, 2)))]
        self.around = [FaultyOperator(random, self.subscriptions) for _ in range(random.choice((0, 0, 0, 1)))]
        self.model: Any = make_random_model(random)
        self.provider = FaultyOperator(random, self.subscriptions) if random.random() < 0.15 else None
        if self.provider is not None:
            self.model = FaultyModel(self.model, self.provider)
        self.places = [random.randrange(4) for _ in self.inside]
        self.cancel_after = random.choice((None, None, None, 0, 1, 3, 7, 20))
        self.subscribers = [(random.choice(ERRORS), random.randrange(12)) for _ in range(random.choice((0, 0, 1, 2)))]
        self.log = random.choice((None, MemoryEventLog()))

    def __repr__(self) -> str:
        return (
            f"inside {list(zip(self.inside, self.places, strict=True))}, around {self.around}, "
            f"provider {self.provider}, cancelled after {self.cancel_after}, subscribers {self.subscribers}"
        )

    @property
    def leaves_subscriptions(self) -> bool:
        """True if disposing raises, so that operators may leave other subscriptions open."""
        all_of_them = [*self.inside, *self.around, *([self.provider] if self.provider else [])]
        return any(each.fault == "disposed" for each in all_of_them)

    def agent(self) -> Agent[Any, str]:
        """Create the agent."""
        loop: list[Operator] = op.standard()
        for each, place in zip(self.inside, self.places, strict=True):
            loop.insert(place, each)

        def strategy(pipeline: Operator) -> Operator:
            return op.compose(op.iterate(pipeline), *self.around)

        tools = make_faulty_tools(self.random)
        return Agent(self.model, tools=tools, loop=loop, strategy=strategy, log=self.log, instructions=PLANTED)

    def subscribe(self, events: Observable[Event]) -> None:
        """Add subscribers that raise."""
        for error, at in self.subscribers:
            count = iter(range(10_000))

            def on_next(_: Event, error: Any = error, at: int = at, count: Any = count) -> None:
                if next(count) == at:
                    raise error("boom")

            events.subscribe(on_next)
