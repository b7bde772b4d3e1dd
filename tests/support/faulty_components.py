"""Operators, tools, providers and subscribers that misbehave, for the promise that every run ends."""

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
"""What is in everything that is not for clients: it may be in nothing that leaves."""


class Bad(BaseException):
    """What is no Exception, like the outcomes of pytest and some timeouts of libraries."""


Raise = Callable[[], None]


def raising(error: type[BaseException]) -> Raise:
    """A function that raises."""

    def boom() -> None:
        raise error("boom")

    return boom


def fine() -> None:
    """Nothing is wrong."""


def troubled(
    *,
    together: Raise = fine,
    subscribed: Raise = fine,
    item: Raise = fine,
    at: int = 0,
    completed: Raise = fine,
    disposed: Raise = fine,
    after: int = 0,
) -> Operator:
    """An operator that passes everything on, and calls the functions given at those places.

    Args:
        together: Called when the operator is applied to its source.
        subscribed: Called when the result is subscribed.
        item: Called before the item number `at` of an iteration is passed on.
        at: See `item`.
        completed: Called at the end of the source.
        disposed: Called when the subscription is disposed.
        after: The first so many iterations go well.
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


def elsewhere(change: Callable[[abc.ObserverBase[Any]], None]) -> Operator:
    """An operator that lets a thread do something to its observer at the first item, and waits for it."""

    def elsewhere(source: Observable[Signal]) -> Observable[Signal]:
        def subscribe(
            observer: abc.ObserverBase[Signal], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            def on_next(signal: Signal) -> None:
                threading.Thread(target=change, args=[observer], daemon=True).start()

            return source.subscribe(on_next, observer.on_error, fine, scheduler=scheduler)

        return Observable(subscribe)

    return elsewhere


ERRORS: list[type[BaseException]] = [ValueError, Bad, asyncio.CancelledError, GeneratorExit, RxloopError, StopIteration]


class Subscriptions:
    """Counts the subscriptions that nobody has disposed and that have not ended."""

    def __init__(self) -> None:
        self.open = 0

    def counted(self, source: Observable[Any]) -> Observable[Any]:
        """The source, with its subscriptions counted."""

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


class Misbehaving:
    """An operator that misbehaves in a random way at a random signal, and counts what it has subscribed."""

    WAYS = (
        *("together", "subscribed", "item", "completed", "disposed"),
        *("thread", "thread end", "silent", "twice", "behind the end", "foreign", "drop", "double", "hold", "fine"),
        *("delay", "merge never", "to list", "no observable"),
    )

    def __init__(self, random: Random, subscriptions: Subscriptions) -> None:
        self.way = random.choice(self.WAYS)
        self.error = random.choice(ERRORS)
        self.at = random.choice((0, 0, 1, 1, 2, 3, 4, 6, 9))
        self.well = random.choice((0, 0, 0, 1, 2))
        self.value = random.choice((None, 5, "text", ["list"], object()))
        self._subscriptions = subscriptions
        self._made = 0

    def __repr__(self) -> str:
        return f"{self.way}({self.error.__name__}, at={self.at}, well={self.well}, value={self.value!r})"

    def __call__(self, source: Observable[Signal]) -> Observable[Signal]:
        self._made += 1
        source = self._subscriptions.counted(source)
        if self._made <= self.well:
            return source
        if self.way == "delay":
            return source.pipe(ops.delay(0.0005))
        if self.way == "merge never":
            return source.pipe(ops.merge(rx.never()))
        if self.way == "to list":
            listed: Any = source.pipe(ops.to_list())
            return listed
        if self.way == "no observable":
            nothing: Any = self.value
            return nothing
        self._raise("together")
        return Observable(lambda observer, scheduler=None: self._subscribe(source, observer, scheduler))

    def _raise(self, way: str) -> None:
        if self.way == way:
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
                if self.way in ("drop", "thread"):
                    if self.way == "thread":
                        _thread(lambda: observer.on_next(signal))
                    return
                if self.way == "hold":
                    held.append(signal)
                    return
                if self.way == "foreign":
                    observer.on_next(self.value)
                if self.way == "double":
                    observer.on_next(signal)
            observer.on_next(signal)

        def on_completed() -> None:
            self._raise("completed")
            for signal in held:
                observer.on_next(signal)
            if self.way == "silent":
                return
            if self.way == "thread end":
                _thread(observer.on_completed)
                return
            observer.on_completed()
            if self.way == "twice":
                observer.on_completed()
            if self.way == "behind the end":
                observer.on_next(CustomEvent(name="late", data={}))

        def dispose() -> None:
            inner.dispose()
            self._raise("disposed")

        self._raise("subscribed")
        inner = source.subscribe(on_next, observer.on_error, on_completed, scheduler=scheduler)
        return Disposable(dispose)


class MisbehavingModel:
    """A provider whose answers come through an operator that misbehaves."""

    def __init__(self, model: ScriptedModel, misbehaving: Misbehaving) -> None:
        self.name = "misbehaving"
        self._model = model
        self._through: Any = misbehaving

    def call(self, request: ModelRequest) -> Observable[Event]:
        return self._through(self._model.call(request))

    async def aclose(self) -> None:
        await self._model.aclose()


def tools_that_misbehave(random: Random) -> list[Any]:
    """A tool of each kind, which at times raises."""

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


def scripts(random: Random) -> ScriptedModel:
    """A model that calls tools for some turns, and then answers."""
    turns: list[Any] = [
        [_call(random) for _ in range(random.choice((1, 1, 2, 3)))] for _ in range(random.choice((0, 1, 2, 3)))
    ]
    return ScriptedModel(
        *turns, random.choice(("Done.", frames("-D-o-n-e-|", frame=0.0001))), "More.", "More.", "More."
    )


class Program:
    """A random agent in which something misbehaves."""

    def __init__(self, seed: int) -> None:
        random = self.random = Random(seed)
        self.subscriptions = Subscriptions()
        self.inside = [Misbehaving(random, self.subscriptions) for _ in range(random.choice((0, 1, 1, 1, 2)))]
        self.around = [Misbehaving(random, self.subscriptions) for _ in range(random.choice((0, 0, 0, 1)))]
        self.model: Any = scripts(random)
        self.provider = Misbehaving(random, self.subscriptions) if random.random() < 0.15 else None
        if self.provider is not None:
            self.model = MisbehavingModel(self.model, self.provider)
        self.places = [random.randrange(4) for _ in self.inside]
        self.cancelled_after = random.choice((None, None, None, 0, 1, 3, 7, 20))
        self.subscribers = [(random.choice(ERRORS), random.randrange(12)) for _ in range(random.choice((0, 0, 1, 2)))]
        self.log = random.choice((None, MemoryEventLog()))

    def __repr__(self) -> str:
        return (
            f"inside {list(zip(self.inside, self.places, strict=True))}, around {self.around}, "
            f"provider {self.provider}, cancelled after {self.cancelled_after}, subscribers {self.subscribers}"
        )

    @property
    def leaves_subscriptions(self) -> bool:
        """Whether something cannot be disposed, by which stock operators leave what is beside it."""
        all_of_them = [*self.inside, *self.around, *([self.provider] if self.provider else [])]
        return any(each.way == "disposed" for each in all_of_them)

    def agent(self) -> Agent[Any, str]:
        """The agent."""
        loop: list[Operator] = op.standard()
        for each, place in zip(self.inside, self.places, strict=True):
            loop.insert(place, each)

        def strategy(pipeline: Operator) -> Operator:
            return op.compose(op.iterate(pipeline), *self.around)

        tools = tools_that_misbehave(self.random)
        return Agent(self.model, tools=tools, loop=loop, strategy=strategy, log=self.log, instructions=PLANTED)

    def subscribe(self, events: Observable[Event]) -> None:
        """Subscribe those who raise."""
        for error, at in self.subscribers:
            count = iter(range(10_000))

            def on_next(_: Event, error: Any = error, at: int = at, count: Any = count) -> None:
                if next(count) == at:
                    raise error("boom")

            events.subscribe(on_next)
