"""Random pipelines: faulty operators, models, tools, limits, forks and resumes, each reproducible by its seed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import reactivex as rx
from reactivex import Observable, abc
from reactivex import operators as ops

from rxloop import (
    Agent,
    Event,
    IterationEnd,
    Limits,
    MemoryEventLog,
    ModelRequest,
    Operator,
    RunContext,
    Signal,
    ToolError,
    ToolRequest,
    UsageEvent,
    client_tool,
    op,
    tool,
)
from rxloop.errors import ContextLengthExceeded, ProviderConnectionError
from rxloop.protocol.events import ContentCompleteEvent, ContentDeltaEvent, ToolCompleteEvent
from rxloop.protocol.messages import ToolCall
from rxloop.stream.sources import emit, from_task
from support import random_features
from support.random_features import Features

MAX_REQUESTS = 2_000
"""Number of requests after which a model ends the process of a test whose run does not end."""
KINDS = (
    *("llm-call", "content-delta", "content-complete", "usage", "tool-start", "tool-complete", "checkpoint"),
    *("message-added", "tool-progress", "llm-failed"),
)
REQUESTS: tuple[type[Any], ...] = (ModelRequest, ToolRequest, IterationEnd)
SCHEMAS: tuple[dict[str, Any], ...] = (
    {},
    {"type": "object"},
    {"type": "object", "additionalProperties": {"type": "array"}},
    {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"type": ["integer", "null"]}}},
    {"anyOf": [{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}, {"type": "object"}]},
    {"type": "object", "properties": {"": {}, "ä b": {"enum": [None, 1, "x"]}}, "patternProperties": {"^x": {}}},
    {"type": "object", "properties": {"tree": {"$ref": "#"}}},
)
ARGUMENTS: tuple[dict[str, Any], ...] = (
    {},
    {"a": 1},
    {"a": "x"},
    {"a": [[]], "": None},
    {"tree": {"tree": {}}},
    {"n": -1},
)


class Ledger:
    """Work that the outside world has seen, counted by the model and the tools of one run."""

    def __init__(self) -> None:
        self.requests = 0
        """Number of requests that the model received, without those that were too long."""
        self.too_long = 0
        self.calls = 0
        """Number of tool calls in messages of the model."""
        self.executed = 0
        """Number of executed tool calls."""
        self.tokens = 0
        """Number of tokens that the model has reported."""
        self.late = 0
        """Number of requests received after the token limit was reached."""
        self.open = 0
        """Number of open model calls."""
        self.interrupted = 0
        """Number of model calls that were disposed."""

    def add(self, event: Event) -> None:
        """Count the tokens of an event of the model."""
        if isinstance(event, UsageEvent):
            self.tokens += event.usage.total_tokens


class RandomModel:
    """Model with random answers, synchronous or streamed."""

    name = "random"

    def __init__(self, random: Random, limits: Limits) -> None:
        self._random = random
        self._limits = limits
        self.is_sync = random.random() < 0.5
        self._is_endless = random.random() < 0.5
        self._errors = random.choice((0.0, 0.0, 0.1, 0.5))
        self.names: tuple[str, ...] = random.choice(
            (("work",), ("work", "unknown"), ("fail",), ("unknown",), ALL_TOOLS, ALL_TOOLS)
        )
        self.arguments = ARGUMENTS
        self.contents: tuple[str, ...] = ("Hm.",)
        self.is_careful = False
        """True if most calls have valid arguments."""
        self.ledgers: dict[str, Ledger] = {}
        """Work by run."""

    def ledger(self, task_id: str) -> Ledger:
        return self.ledgers.setdefault(task_id, Ledger())

    def call(self, request: ModelRequest) -> Observable[Event]:
        ledger = self.ledger(request.ctx.task_id)
        if ledger.requests + ledger.too_long > MAX_REQUESTS:
            raise KeyboardInterrupt(f"{MAX_REQUESTS} requests")
        random = self._random
        if random.random() < self._errors:
            if random.random() < 0.5:
                ledger.too_long += 1
                return rx.throw(ContextLengthExceeded("too long"))
            ledger.requests += 1
            return rx.throw(ProviderConnectionError("no line"))
        ledger.requests += 1
        if self._limits.tokens is not None and ledger.tokens >= self._limits.tokens and request.branch is None:
            ledger.late += 1
        events = self._answer(ledger)
        if self.is_sync:
            for event in events:
                ledger.add(event)
            return emit(*events)

        async def stream(push: Callable[[Event], None]) -> None:
            ledger.open += 1
            ledger.interrupted += 1
            try:
                for event in events:
                    await asyncio.sleep(0.01)
                    ledger.add(event)
                    push(event)
                ledger.interrupted -= 1
            finally:
                ledger.open -= 1

        return from_task(stream, request.ctx, name="rxloop-random-model")

    def _answer(self, ledger: Ledger) -> list[Event]:
        random = self._random
        events: list[Event] = [ContentDeltaEvent(delta=letter, index=index) for index, letter in enumerate("Hm.")]
        if random.random() < 0.8:
            events.insert(random.randrange(4), UsageEvent(input_tokens=10, output_tokens=2))
        calls: list[ToolCall] = []
        if self._is_endless or random.random() < 0.6:
            for number in range(random.choice((1, 1, 2, 3))):
                arguments, name = random.choice(self.arguments), random.choice(self.names)
                if self.is_careful and random.random() < 0.8:
                    arguments = random.choice(random_features.VALID.get(name, ({},)))
                calls.append(ToolCall(id=str(number), name=name, arguments=arguments))
        ledger.calls += len(calls)
        reason = "tool_calls" if calls else "stop"
        content = random.choice(self.contents) if len(self.contents) > 1 else "Hm."
        return [*events, ContentCompleteEvent(content=content, tool_calls=calls, finish_reason=reason)]

    async def aclose(self) -> None: ...


ALL_TOOLS = ("work", "fail", "pay", "ask", "child", "foreign", "fetch")


def make_tools(random: Random, ledger_of: Callable[[str], Ledger], *, child: bool) -> list[Any]:
    """Create tools that count their executions."""

    def count(ctx: RunContext[Any]) -> None:
        ledger_of(ctx.task_id).executed += 1

    @tool(idempotent=random.random() < 0.5)
    async def work(ctx: RunContext[Any]) -> str:
        """Work."""
        count(ctx)
        ctx.progress("working")
        await asyncio.sleep(0.02)
        return "done"

    @tool
    async def fail(ctx: RunContext[Any]) -> str:
        """Fail."""
        count(ctx)
        raise ToolError("failed")

    @tool(approve=True)
    async def pay(ctx: RunContext[Any]) -> str:
        """Pay."""
        count(ctx)
        return "paid"

    @tool
    async def ask(ctx: RunContext[Any]) -> str:
        """Ask."""
        answer = await ctx.ask("Sure?")
        count(ctx)
        return str(answer)

    tools: list[Any] = [work, fail, pay, ask, client_tool("foreign", random.choice(SCHEMAS))]
    if random.random() < 0.1:

        @tool
        def fetch(ctx: RunContext[Any]) -> str:
            """Fetch, in a thread."""
            count(ctx)
            return "fetched"

        tools.append(fetch)
    if child:
        limits = Limits(iterations=2)
        nested = Agent(RandomModel(random, limits), name="child", tools=[work], limits=limits)
        tools.append(nested.as_tool(description="Knows more."))
    return tools


def make_parent(random: Random, tools: list[Any]) -> Any:
    """Create a nested agent with faulty operators, which has the same tools, and a nested agent of its own."""
    limits = Limits(iterations=3)
    faulty = [make_operator(random)[1] for _ in range(random.choice((0, 1)))]
    parent = Agent(
        RandomModel(random, limits), name="parent", tools=tools, limits=limits, loop=op.standard(faulty, at_end=faulty)
    )
    return parent.as_tool(description="Has a child.")


# -- operators


def is_kind(kinds: set[Any]) -> Callable[[Signal], bool]:
    """Return a predicate for signals of some kinds and request types."""
    return lambda signal: getattr(signal, "kind", None) in kinds or type(signal) in kinds


def transform(change: Callable[[Signal], list[Signal]]) -> Operator:
    """Return an operator that replaces each signal immediately."""

    def operator(source: Observable[Signal]) -> Observable[Signal]:
        def subscribe(
            observer: abc.ObserverBase[Signal], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            def on_next(signal: Signal) -> None:
                for each in change(signal):
                    observer.on_next(each)

            return source.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)

        return Observable(subscribe)

    return operator


def reorder(random: Random, matches: Callable[[Signal], bool]) -> Operator:
    """Return an operator that holds some signals until a random later signal, or the end."""

    def operator(source: Observable[Signal]) -> Observable[Signal]:
        def subscribe(
            observer: abc.ObserverBase[Signal], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            held: list[Signal] = []

            def release() -> None:
                random.shuffle(held)
                while held:
                    observer.on_next(held.pop())

            def on_next(signal: Signal) -> None:
                if matches(signal):
                    held.append(signal)
                    return
                observer.on_next(signal)
                if random.random() < 0.3:
                    release()

            def on_completed() -> None:
                release()
                observer.on_completed()

            return source.subscribe(on_next, observer.on_error, on_completed, scheduler=scheduler)

        return Observable(subscribe)

    return operator


def delay_some(seconds: float, matches: Callable[[Signal], bool]) -> Operator:
    return lambda source: source.pipe(
        ops.flat_map(
            lambda signal: rx.timer(seconds).pipe(ops.map(lambda _: signal)) if matches(signal) else emit(signal)
        )
    )


def expand_calls(random: Random) -> Operator:
    """Return an operator that executes calls, and answers each result with further calls, without end."""
    drops = random.random() < 0.5

    def further(ctx: RunContext[Any]) -> Callable[[Signal], Observable[Signal]]:
        def expand(signal: Signal) -> Observable[Signal]:
            if not isinstance(signal, ToolCompleteEvent):
                return rx.empty()
            request = ToolRequest(signal.call, ctx.bind(index=signal.index + 1))
            return emit(request).pipe(op.run_tools())

        return expand

    def answer(request: ToolRequest) -> Observable[Signal]:
        calls = emit(request).pipe(op.run_tools(), ops.expand(further(request.ctx)))
        return calls.pipe(ops.filter(lambda signal: not drops or getattr(signal, "index", 0) == request.ctx.index))

    # Composed when it is applied, because the validation would reject some positions.
    return lambda source: source.pipe(op.answer_requests(ToolRequest, answer))


def multiply_requests(random: Random) -> Operator:
    count, own_branch = random.choice((2, 30, 1_000)), random.random() < 0.5

    def change(signal: Signal) -> list[Signal]:
        if not isinstance(signal, ModelRequest):
            return [signal]
        if not own_branch:
            return [signal] * count
        others = [signal.replace(branch=f"b{n}", step=f"b{n}/{signal.step}") for n in range(count - 1)]
        return [*others, signal]

    return transform(change)


def multiply_calls(random: Random) -> Operator:
    count, new_slots = random.choice((2, 50)), random.random() < 0.5

    def change(signal: Signal) -> list[Signal]:
        if not isinstance(signal, ToolRequest):
            return [signal]
        indices = [signal.ctx.index + n * new_slots for n in range(count)]
        return [ToolRequest(signal.call, signal.ctx.bind(index=index), signal.offered) for index in indices]

    return transform(change)


def endless_requests(source: Observable[Signal]) -> Observable[Signal]:
    """Answer a request with the same request, without end and without a turn of the event loop."""
    return source.pipe(
        ops.flat_map(lambda signal: rx.repeat_value(signal) if isinstance(signal, ModelRequest) else emit(signal))
    )


def make_operator(random: Random) -> tuple[str, Operator]:
    """Create a random operator and its name."""
    chosen: set[Any] = {random.choice((*KINDS, *REQUESTS)) for _ in range(random.choice((1, 1, 2, 5)))}
    matches = is_kind(chosen)
    names = "/".join(sorted(getattr(each, "__name__", str(each)) for each in chosen))
    odds = random.choice((0.3, 1.0))
    number = random.choice((1, 2, 3, 5, 8))

    def some(signal: Any) -> bool:
        return matches(signal) and random.random() < odds

    def replace(signal: Any) -> Any:
        return signal.model_copy(update={"metadata": {"a": 1}}) if isinstance(signal, Event) else signal

    def fallback(error: Exception, source: Observable[Signal]) -> Observable[Signal]:
        return emit(ContentCompleteEvent(step="1", content="Sorry."))

    operators: list[tuple[str, Any]] = [
        (f"drop {names}", ops.filter(lambda signal: not some(signal))),
        (f"drop {names}", ops.filter(lambda signal: not some(signal))),
        (f"double {names}", transform(lambda signal: [signal, signal] if some(signal) else [signal])),
        (f"copy {names}", ops.map(lambda signal: replace(signal) if some(signal) else signal)),
        (f"delay {names}", delay_some(0.05, some)),
        (f"reorder {names}", reorder(random, some)),
        ("delay all", ops.delay(0.05)),
        ("catch empty", ops.catch(rx.empty())),
        ("catch fallback", ops.catch(fallback)),
        ("retry", ops.retry()),
        ("retry some", ops.retry(number)),
        ("repeat", ops.repeat()),
        ("repeat some", ops.repeat(number)),
        (f"take {number}", ops.take(number)),
        (f"take_last {number}", ops.take_last(number)),
        (f"skip {number}", ops.skip(number)),
        ("ignore", ops.ignore_elements()),
        ("distinct", ops.distinct(lambda signal: getattr(signal, "kind", type(signal)))),
        ("merge never", ops.merge(rx.never())),
        ("take_until", ops.take_until(rx.timer(0.03))),
        ("timeout", ops.timeout(0.03, rx.empty())),
        ("multiply requests", multiply_requests(random)),
        ("multiply calls", multiply_calls(random)),
        ("expand calls", expand_calls(random)),
        ("endless requests", endless_requests),
        ("sample", ops.throttle_first(0.01)),
    ]
    return random.choice(operators)


MULTIPLIERS = {"endless requests", "multiply requests", "repeat", "repeat some", "retry"}


class RandomPipeline:
    """Random agent whose loop contains faulty operators."""

    def __init__(self, seed: int) -> None:
        random = self.random = Random(seed)
        self.limits = Limits(
            iterations=random.choice((1, 3, 8, 20)),
            tokens=random.choice((None, None, 10, 40, 200)),
            seconds=random.choice((None, None, 0.1, 5)),
            tool_failures=random.choice((None, 3)),
        )
        if random.random() < 0.05:
            # Only the time limit ends these runs.
            self.limits = Limits(iterations=None, tool_failures=None, seconds=1)
        self.model = RandomModel(random, self.limits)
        # Virtual time does not advance in synchronous loops.
        self.model.is_sync = self.model.is_sync and self.limits.iterations is not None
        self.inside = [(random.randrange(4), *make_operator(random)) for _ in range(random.choice((0, 1, 1, 1, 2, 3)))]
        self.around = [make_operator(random) for _ in range(random.choice((0, 0, 0, 1)))]
        if self.limits.iterations is None:
            # These operators send any number of requests in no virtual time.
            self.inside = [each for each in self.inside if each[1] not in MULTIPLIERS]
            self.around = [each for each in self.around if each[0] not in MULTIPLIERS]
        self.inner = make_operator(random) if random.random() < 0.15 else None
        """Operator around each single model call."""
        self.cancel_after = random.choice((None, None, None, None, 0.0, 0.02, 0.2))
        self.release_after = random.choice((None, None, None, None, 0.0, 0.03, 0.15))
        self.sends = random.random() < 0.05
        """True if a subscriber sends a message for each event."""
        self.log = MemoryEventLog() if random.random() < 0.7 else None
        self.declines = random.random() < 0.3
        self.every = random.choice((1, 1, 3))
        self.early = random.random() < 0.1
        thinking_model = RandomModel(random, self.limits)
        thinking_model.is_sync = self.model.is_sync
        features = self.features = Features(seed, thinking_model, self.log)
        if features.tools:
            self.model.names += features.tool_names
            self.model.arguments += random_features.ARGUMENTS
            self.model.is_careful = True
            self.inside = [each for each in self.inside if features.random.random() < 0.5]
        if features.strategy is not None:
            self.model.contents = random_features.CONTENTS
        self.limits = features.limits.merge_defaults(self.limits)

    def __repr__(self) -> str:
        operators = [(place, name) for place, name, _ in self.inside]
        around = [name for name, _ in self.around]
        inner = self.inner[0] if self.inner else None
        return (
            f"{'sync' if self.model.is_sync else 'streamed'} model, inside {operators}, around {around}, "
            f"inner {inner}, "
            f"limits {self.limits.model_dump(exclude_defaults=True)}, log {self.log is not None}, sends {self.sends}, "
            f"cancel {self.cancel_after}, release {self.release_after}, {self.features}"
        )

    def agent(self, servers: Sequence[Any] = ()) -> Agent[Any, str]:
        """Create the agent.

        Args:
            servers: Toolsets of MCP servers.
        """
        features = self.features
        call_model = op.call_model()
        if self.inner is not None:
            inner, single = self.inner[1], op.call_model()
            call_model = op.answer_requests(ModelRequest, lambda request: emit(request).pipe(single, inner))
        loop: list[Operator] = [call_model, op.run_tools(early=self.early), op.checkpoint(every=self.every)]
        loop += features.at_end
        if not features.is_first:
            loop = [*features.loop, *loop]
        for place, _, operator in self.inside:
            loop.insert(place, operator)
        if features.is_first:
            loop = [*features.loop, *loop]

        def strategy(pipeline: Operator) -> Operator:
            main = op.iterate if features.strategy is None else features.strategy()
            return op.compose(main(pipeline), *(operator for _, operator in self.around))

        tools = make_tools(self.random, self.model.ledger, child=self.random.random() < 0.2)
        if features.tools:
            tools = [*tools, *features.tools, make_parent(features.random, tools)]
        return Agent(
            self.model,
            name="random",
            tools=[*tools, *servers],
            loop=loop,
            strategy=strategy,
            log=self.log,
            limits=self.limits,
            views=features.views,
        )
