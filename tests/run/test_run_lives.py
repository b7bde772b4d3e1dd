"""Random lives of a run: stopped, killed, resumed, answered and cancelled in any order, with logs that go away.

`RXLOOP_LIVES=3000` tries many.
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
from support.run_checks import nothing_left
from support.runs import well_formed

LIVES = int(os.environ.get("RXLOOP_LIVES", "40"))
ROUNDS = 3


class World:
    """What is left of a process that may be killed: its effects, and what its log had."""

    def __init__(self, make_log: Callable[[], Any], failures: set[int]) -> None:
        self.make_log = make_log
        self.failures = failures
        self.log = make_log()
        self.effects: Counter[str] = Counter()
        self.requests = 0
        self.life = 0

    def tools(self) -> list[Any]:
        life = self.life

        def effect(key: str) -> None:
            # What a killed process goes on to do here, it does not do.
            if life == self.life:
                self.effects[key] += 1

        @tool(approve=True)
        async def pay(ctx: RunContext[Any], n: int) -> str:
            """Pays; a person has to agree."""
            await asyncio.sleep(0.3)
            effect(f"pay {ctx.idempotency_key}")
            await asyncio.sleep(0.3)
            return f"paid {n}"

        @tool
        async def book(ctx: RunContext[Any], n: int) -> str:
            """Books; asks in its middle."""
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
        assert well_formed(request.messages)
        n = sum(message.role == "assistant" for message in request.messages)
        if n >= ROUNDS:
            return "done"
        names = (["send", "look"], ["pay", "book"], ["look", "pay", "send"])[n % 3]
        return [call(name, f"{name}{n}", n=n) for name in names]

    def agent(self) -> Agent[None, str]:
        return Agent(ScriptedModel(*[self.turn] * 50), tools=self.tools(), log=self.log)


class Life:
    """One run, from its first attempt until it is over."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.task_id = ""

    async def carry_out(self, run: Run[str], during: Callable[[Run[str]], Awaitable[None]]) -> None:
        """An attempt and what happens in it; what its readers see is what the log has."""
        seen: list[Event] = []
        stream = run.pipe(op.grammar())
        reading = asyncio.ensure_future(_read(stream, seen))
        await asyncio.sleep(0)
        await during(run)
        try:
            await run
        except AttemptError:
            pass
        except RxloopError as refused:
            with pytest.raises(type(refused)):
                await reading
            return
        await reading
        last = seen[-1]
        assert ends_attempt(last)
        assert [ends_attempt(event) for event in seen].count(True) == 1
        if not isinstance(last, StatusUpdateEvent) or last.state == "working":
            return
        try:
            events = await self.world.log.read(run.task_id)
        except UnknownRun:
            return
        if events[-1] != last:
            return  # it was killed, and ended in another log
        self.same(run._attempt.recorder.states[None], fold_all(events))

    def same(self, live: RunState, logged: RunState) -> None:
        for name in ("seq", "attempt", "state", "pending", "answers", "usage", "batch", "thought_count"):
            assert getattr(live, name) == getattr(logged, name), name
        assert list(live.messages) == list(logged.messages)

    async def state(self) -> RunState:
        events = await self.world.log.read(self.task_id)
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        return fold_all(events)

    async def kill(self) -> None:
        """The process dies: what the log had is all that is left."""
        world = self.world
        old, world.log = world.log, world.make_log()
        world.life += 1
        try:
            events: Sequence[Event] = await old.read(self.task_id)
        except UnknownRun:
            return
        await world.log.append(self.task_id, list(events), expected_seq=0)

    async def resume(self, answer: str, during: Callable[[Run[str]], Awaitable[None]]) -> None:
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
        await self.carry_out(self.world.agent().resume(self.task_id, inputs=inputs or None), during)


async def _read(stream: Stream[Event], seen: list[Event]) -> None:
    async for event in stream:
        seen.append(event)  # noqa: PERF401 (what came before an error counts)


delays = st.sampled_from([0.0, 0.001, 0.05, 0.1, 0.15, 0.25, 0.35, 0.45, 0.65, 0.9, 1.3, 2.0])
stops = st.tuples(st.sampled_from(["let", "cancel", "close", "kill", "cancel by id", "twice", "away"]), delays)
attempts = st.tuples(st.sampled_from(["yes", "no", "one", "none", "again"]), stops)


async def stop(life: Life, how: str, delay: float, run: Run[str]) -> None:
    if how == "let":
        return
    await asyncio.sleep(delay)
    if how == "cancel":
        run.cancel()
    elif how == "close":
        await run.aclose()
    elif how == "kill":
        await life.kill()
        await run.aclose()
    elif how == "cancel by id":
        with suppress(UnknownRun):
            await life.world.agent().get_run(run.task_id).cancel()
    elif how == "twice":
        twin = life.world.agent().resume(run.task_id)
        with suppress(RxloopError):
            await twin
    elif how == "away":
        life.world.log.away = True
        await asyncio.sleep(3)
        life.world.log.away = False


class Memory(MemoryEventLog):
    away = False

    async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> None:
        if self.away:
            raise OSError("the log is away")
        await super().append(task_id, events, expected_seq=expected_seq, writer=writer)


class Sqlite(SqliteEventLog):
    away = False

    async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> None:
        if self.away:
            raise OSError("the log is away")
        await super().append(task_id, events, expected_seq=expected_seq, writer=writer)

    def append_now(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> bool:
        if self.away:
            raise OSError("the log is away")
        return super().append_now(task_id, events, expected_seq=expected_seq, writer=writer)


async def whole_life(world: World, first: tuple[str, float], plan: Sequence[tuple[str, tuple[str, float]]]) -> None:
    life = Life(world)
    run = world.agent().run("Go", context_id="c")
    life.task_id = run.task_id
    await life.carry_out(run, lambda run: stop(life, *first, run))
    for answer, how in plan:
        try:
            await life.resume(answer, lambda run, how=how: stop(life, *how, run))
        except InvalidInput:
            continue
    world.failures.clear()
    for _ in range(12):
        try:
            state = await life.state()
        except UnknownRun:
            return  # killed before anything of it was written
        if state.finished and not state.retryable:
            break
        await life.resume("yes", lambda run: stop(life, "let", 0, run))
    else:
        pytest.fail("the run does not come to its end")
    events = await world.log.read(life.task_id)
    assert {key: count for key, count in world.effects.items() if count > 1} == {}
    finals = Counter(event.attempt for event in events if ends_attempt(event))
    assert set(finals.values()) <= {1}
    assert [event async for event in replay(world.log, life.task_id).pipe(op.grammar())] == list(events)
    assert well_formed(fold_all(events).messages)
    await nothing_left()


@pytest.mark.timeout(120 + LIVES)
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_whatever_happens_to_a_run_it_ends_once_and_its_effects_happen_once(kind: str) -> None:
    @settings(
        max_examples=LIVES if kind == "memory" else max(LIVES // 4, 10),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(stops, st.lists(attempts, max_size=6), st.sets(st.integers(1, 6), max_size=2))
    def lives(first: tuple[str, float], plan: list[tuple[str, tuple[str, float]]], failures: set[int]) -> None:
        logs: list[Any] = []
        with tempfile.TemporaryDirectory() as folder, virtual_time() as time:

            def make_log() -> Any:
                logs.append(Memory() if kind == "memory" else Sqlite(Path(folder) / f"{len(logs)}.db"))
                return logs[-1]

            async def main() -> None:
                try:
                    await whole_life(World(make_log, failures), first, plan)
                finally:
                    for log in logs:
                        await log.aclose()

            time.run(main())

    lives()


def test_a_run_that_nothing_happens_to_has_each_effect_once() -> None:
    with virtual_time() as time:
        world = World(Memory, set())
        time.run(whole_life(world, ("let", 0.0), []))
        assert sorted(key.split()[0] for key in world.effects) == ["book", "pay", "pay", "send", "send"]
        assert set(world.effects.values()) == {1}
