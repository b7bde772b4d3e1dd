"""Random interruptions and log outages.

`RXLOOP_LIVES=3000` tries many histories.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rxloop import (
    Agent,
    Event,
    MemoryEventLog,
    Run,
    RunContext,
    RxloopError,
    SqliteEventLog,
    StatusUpdateEvent,
    Stream,
    op,
    replay,
    tool,
)
from rxloop.errors import AttemptError, InvalidInput, Overloaded, UnknownRun
from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.events import ends_attempt
from rxloop.state.fold import fold_all
from rxloop.state.run_state import RunState
from rxloop.testing import ScriptedModel, call, virtual_time
from support.run_checks import assert_no_tasks
from support.runs import is_well_formed

HISTORIES = int(os.environ.get("RXLOOP_LIVES", "40"))
ROUNDS = 3


class World:
    """Effects and log that survive process death."""

    def __init__(self, make_log: Callable[[], Any], failures: set[int]) -> None:
        self.make_log = make_log
        self.failures = failures
        self.log = make_log()
        self.effects: Counter[str] = Counter()
        self.requests = 0
        self.process = 0

    def tools(self) -> list[Any]:
        process = self.process

        def effect(key: str) -> None:
            # A killed process has no further effects.
            if process == self.process:
                self.effects[key] += 1

        @tool(approve=True)
        async def pay(ctx: RunContext[Any], n: int) -> str:
            """Pay after approval."""
            await asyncio.sleep(0.3)
            effect(f"pay {ctx.idempotency_key}")
            await asyncio.sleep(0.3)
            return f"paid {n}"

        @tool
        async def book(ctx: RunContext[Any], n: int) -> str:
            """Book after a question."""
            await asyncio.sleep(0.1)
            if not await ctx.ask(f"Book {n}?"):
                return "not booked"
            effect(f"book {ctx.idempotency_key}")
            await asyncio.sleep(0.2)
            return f"booked {n}"

        @tool
        async def send(ctx: RunContext[Any], n: int) -> str:
            """Sends at once."""
            effect(f"send {ctx.idempotency_key}")
            await asyncio.sleep(0.4)
            return f"sent {n}"

        @tool(idempotent=True)
        async def look(n: int) -> str:
            """Looks."""
            await asyncio.sleep(0.2)
            return f"seen {n}"

        return [pay, book, send, look]

    def turn(self, request: ModelRequest) -> Any:
        self.requests += 1
        if self.requests in self.failures:
            return Overloaded("no room")
        assert is_well_formed(request.messages)
        n = sum(message.role == "assistant" for message in request.messages)
        if n >= ROUNDS:
            return "done"
        names = (["send", "look"], ["pay", "book"], ["look", "pay", "send"])[n % 3]
        return [call(name, f"{name}{n}", n=n) for name in names]

    def agent(self) -> Agent[None, str]:
        return Agent(ScriptedModel(*[self.turn] * 50), tools=self.tools(), log=self.log)


class RunHistory:
    """Run history across attempts."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.task_id = ""

    async def observe(self, run: Run[str], interrupt: Callable[[Run[str]], Awaitable[None]]) -> None:
        """Observe an attempt and its interruption. The final state that readers see must match the log."""
        events: list[Event] = []
        stream = run.pipe(op.grammar())
        reader = asyncio.ensure_future(_read(stream, events))
        await asyncio.sleep(0)
        await interrupt(run)
        try:
            await run
        except AttemptError:
            pass
        except RxloopError as rejection:
            with pytest.raises(type(rejection)):
                await reader
            return
        await reader
        last = events[-1]
        assert ends_attempt(last)
        assert [ends_attempt(event) for event in events].count(True) == 1
        if not isinstance(last, StatusUpdateEvent) or last.state == "working":
            return
        try:
            events = await self.world.log.read(run.task_id)
        except UnknownRun:
            return
        if events[-1] != last:
            return  # killed, with its final event in another log
        self.compare_states(run._attempt.recorder.states[None], fold_all(events))

    def compare_states(self, live_state: RunState, logged_state: RunState) -> None:
        for name in ("seq", "attempt", "state", "pending", "answers", "usage", "batch", "thought_count"):
            assert getattr(live_state, name) == getattr(logged_state, name), name
        assert list(live_state.messages) == list(logged_state.messages)

    async def state(self) -> RunState:
        events = await self.world.log.read(self.task_id)
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        return fold_all(events)

    async def kill(self) -> None:
        """Simulate process death, keeping only its log."""
        world = self.world
        old, world.log = world.log, world.make_log()
        world.process += 1
        try:
            events: Sequence[Event] = await old.read(self.task_id)
        except UnknownRun:
            return
        await world.log.append(self.task_id, list(events), expected_seq=0)

    async def resume(self, answer: str, interrupt: Callable[[Run[str]], Awaitable[None]]) -> None:
        try:
            state = await self.state()
        except UnknownRun:
            return
        inputs: dict[str, Any] = {}
        if answer == "again":
            inputs = dict(state.answers)
        elif answer != "none":
            inputs = dict.fromkeys(list(state.pending)[: 1 if answer == "one" else None], answer != "no")
        if state.finished:
            inputs = dict(state.answers) if answer == "again" else {}
        await self.observe(self.world.agent().resume(self.task_id, inputs=inputs or None), interrupt)


async def _read(stream: Stream[Event], events: list[Event]) -> None:
    async for event in stream:
        events.append(event)  # noqa: PERF401 (keep the events before an error)


delay_values = st.sampled_from([0.0, 0.001, 0.05, 0.1, 0.15, 0.25, 0.35, 0.45, 0.65, 0.9, 1.3, 2.0])
stop_kinds = st.tuples(
    st.sampled_from(["let", "cancel", "close", "kill", "cancel by id", "twice", "outage"]), delay_values
)
attempt_plans = st.tuples(st.sampled_from(["yes", "no", "one", "none", "again"]), stop_kinds)


async def stop(process: RunHistory, kind: str, delay: float, run: Run[str]) -> None:
    if kind == "let":
        return
    await asyncio.sleep(delay)
    if kind == "cancel":
        run.cancel()
    elif kind == "close":
        await run.aclose()
    elif kind == "kill":
        await process.kill()
        await run.aclose()
    elif kind == "cancel by id":
        with suppress(UnknownRun):
            await process.world.agent().get_run(run.task_id).cancel()
    elif kind == "twice":
        twin = process.world.agent().resume(run.task_id)
        with suppress(RxloopError):
            await twin
    elif kind == "outage":
        process.world.log.is_down = True
        await asyncio.sleep(3)
        process.world.log.is_down = False


class UnreliableMemoryLog(MemoryEventLog):
    is_down = False

    async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> None:
        if self.is_down:
            raise OSError("the log is away")
        await super().append(task_id, events, expected_seq=expected_seq, writer=writer)


class UnreliableSqliteLog(SqliteEventLog):
    is_down = False

    async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> None:
        if self.is_down:
            raise OSError("the log is away")
        await super().append(task_id, events, expected_seq=expected_seq, writer=writer)

    def append_now(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> bool:
        if self.is_down:
            raise OSError("the log is away")
        return super().append_now(task_id, events, expected_seq=expected_seq, writer=writer)


async def check_history(world: World, first: tuple[str, float], plan: Sequence[tuple[str, tuple[str, float]]]) -> None:
    process = RunHistory(world)
    run = world.agent().run("Go", context_id="c")
    process.task_id = run.task_id
    await process.observe(run, lambda run: stop(process, *first, run))
    for answer, kind in plan:
        try:
            await process.resume(answer, lambda run, kind=kind: stop(process, *kind, run))
        except InvalidInput:
            continue
    world.failures.clear()
    for _ in range(12):
        try:
            state = await process.state()
        except UnknownRun:
            return  # killed before its first write
        if state.finished and not state.retryable:
            break
        await process.resume("yes", lambda run: stop(process, "let", 0, run))
    else:
        pytest.fail("the run does not reach its end")
    events = await world.log.read(process.task_id)
    assert {key: count for key, count in world.effects.items() if count > 1} == {}
    finals = Counter(event.attempt for event in events if ends_attempt(event))
    assert set(finals.values()) <= {1}
    assert [event async for event in replay(world.log, process.task_id).pipe(op.grammar())] == list(events)
    assert is_well_formed(fold_all(events).messages)
    await assert_no_tasks()


@pytest.mark.timeout(120 + HISTORIES)
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_randomly_interrupted_run_ends_once_and_repeats_no_effect(kind: str) -> None:
    @settings(
        max_examples=HISTORIES if kind == "memory" else max(HISTORIES // 4, 10),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(stop_kinds, st.lists(attempt_plans, max_size=6), st.sets(st.integers(1, 6), max_size=2))
    def check_histories(
        first: tuple[str, float], plan: list[tuple[str, tuple[str, float]]], failures: set[int]
    ) -> None:
        logs: list[Any] = []
        with tempfile.TemporaryDirectory() as folder, virtual_time() as time:

            def make_log() -> Any:
                logs.append(
                    UnreliableMemoryLog() if kind == "memory" else UnreliableSqliteLog(Path(folder) / f"{len(logs)}.db")
                )
                return logs[-1]

            async def main() -> None:
                try:
                    await check_history(World(make_log, failures), first, plan)
                finally:
                    for log in logs:
                        await log.aclose()

            time.run(main())

    check_histories()


def test_uninterrupted_run_has_each_effect_once() -> None:
    with virtual_time() as time:
        world = World(UnreliableMemoryLog, set())
        time.run(check_history(world, ("let", 0.0), []))
        assert sorted(key.split()[0] for key in world.effects) == ["book", "pay", "pay", "send", "send"]
        assert set(world.effects.values()) == {1}
