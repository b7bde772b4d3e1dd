"""Grammar of generated runs with various models, tools, limits, readers, attempts and crashes."""

import asyncio
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import reactivex as rx
from hypothesis import event, given, settings
from hypothesis import strategies as st

from rxloop import Agent, Event, Limits, MemoryEventLog, RunContext, SqliteEventLog, ToolError, Usage, op, replay, tool
from rxloop.errors import ContextLengthExceeded, RateLimited
from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.events import ends_attempt
from rxloop.providers import fallback
from rxloop.providers.script import Frames
from rxloop.run.handle import Run
from rxloop.run.result import Result
from rxloop.stream.sources import emit
from rxloop.testing import ScriptedModel, call, frames, turn, virtual_time
from support.runs import outcome
from support.strategy_cases import CASES, Case, add, turn_by_step


def assert_valid(events: Sequence[Event], **options: Any) -> None:
    """Fail if a stream breaks the grammar. A stream without a final event counts as unfinished."""
    seen: list[Event] = []
    errors: list[Exception] = []
    over = not events or ends_attempt(events[-1])
    source = emit(*events) if over else rx.concat(emit(*events), rx.never())
    source.pipe(op.grammar(**options)).subscribe(seen.append, errors.append)
    for error in errors:
        raise error
    assert seen == list(events)


# Tools of every kind.


@tool
async def work(ctx: RunContext[Any], seconds: float) -> float:
    """Work for some time and report progress."""
    ctx.progress("begun")
    await asyncio.sleep(seconds)
    ctx.progress("done", 1.0)
    return seconds


@tool(timeout=0.05)
async def late() -> None:
    """Exceed the timeout."""
    await asyncio.sleep(1)


@tool
async def fail() -> None:
    """Fail."""
    raise ToolError("it failed")


@tool
async def sure(ctx: RunContext[Any]) -> str:
    """Ask two questions."""
    return "yes" if await ctx.ask("Sure?") and await ctx.ask("Really?") else "no"


@tool(approve=True, idempotent=True)
async def pay(amount: int) -> str:
    """Require an approval."""
    return f"paid {amount}"


@tool
async def delegate(ctx: RunContext[Any]) -> str:
    """Run another agent, publishing its events."""
    child = Agent(ScriptedModel(call("work", seconds=0.1), frames("-I am-done.|")), tools=[work], name="child")
    async with child.run("And you?") as run:
        async for each in run:
            ctx.emit(each)
        return (await run).output


TOOLS = [work, late, fail, sure, pay, delegate]
CALLS = st.one_of(
    st.builds(call, st.just("work"), seconds=st.sampled_from([0, 0.1, 0.1, 0.2])),
    st.sampled_from([call("late"), call("fail"), call("sure"), call("pay", amount=5), call("delegate")]),
    st.sampled_from([call("nowhere", "0"), call("work", "0", minutes=1)]),
    st.just(call("think_aloud", thought="Both at once.", thought_type="planning")),
)
TURNS = st.builds(
    lambda text, calls, slow, used: turn(
        frames(f"{text}-{text}-|") if slow else text, calls=calls, reasoning=text or None, usage=used
    ),
    st.sampled_from(["", "So", "Well"]),
    st.lists(CALLS, min_size=1, max_size=4),
    st.booleans(),
    st.sampled_from([None, Usage(input_tokens=5, output_tokens=5)]),
)
FAILURES = st.sampled_from(
    [ContextLengthExceeded("too long"), RateLimited("later"), frames("So-#"), RuntimeError("bug")]
)
SCRIPTS = st.lists(st.one_of(TURNS, TURNS, TURNS, TURNS, FAILURES), max_size=4)
LOGS = st.sampled_from(["memory", "memory", "deltas", "sqlite"])
LIMITS = st.sampled_from(
    [Limits(tool_failures=None), Limits(), Limits(iterations=2), Limits(tokens=15), Limits(seconds=0.2)]
)
TIMES = st.sampled_from([None, None, 0.0, 0.05, 0.1, 0.15, 0.3])


@contextmanager
def open_log(kind: str) -> Generator[Any]:
    """Open an empty log of the given kind."""
    if kind == "sqlite":
        with TemporaryDirectory() as folder:
            yield SqliteEventLog(f"{folder}/runs.db")
    else:
        yield MemoryEventLog(keep_deltas=kind == "deltas")


async def read_events(log: Any, task_id: str) -> list[Event]:
    return list(await log.read(task_id, deltas=log.keeps_deltas))


async def copy_until_crash(log: Any, task_id: str, part: float) -> Any:
    """Copy the first part of a run into another log, as after a crash."""
    events = await read_events(log, task_id)
    copy = MemoryEventLog(keep_deltas=log.keeps_deltas)
    await copy.append(task_id, events[: max(1, round(part * len(events)))], expected_seq=0)
    return copy


async def read_slowly(stream: Any, seconds: float, after: float = 0) -> list[Event]:
    """Collect events with a slow reader that starts late."""
    await asyncio.sleep(after)
    seen: list[Event] = []
    async for each in stream:
        seen.append(each)
        await asyncio.sleep(seconds)
    return seen


async def watch_attempt(run: Run[Any], cancel: float | None = None) -> Result[Any]:
    """Observe an attempt in all ways, and validate the events of each reader."""
    errors: list[Exception] = []
    run.pipe(op.grammar()).subscribe(on_error=errors.append)
    if cancel is not None:
        asyncio.get_running_loop().call_later(cancel, run.cancel)
    streams = await asyncio.gather(
        read_slowly(run.stream(overflow="coalesce", buffer=2), 0.03),
        read_slowly(run.stream(overflow="drop_oldest", buffer=2), 0.03),
        read_slowly(run.stream(overflow="block", buffer=2), 0.01),
        read_slowly(run.stream(), 0, after=0.06),
    )
    for error in errors:
        raise error
    for stream in streams:
        assert_valid(stream)
    for at in range(1, len(streams[-1]), 3):
        # A reader that reconnects.
        assert_valid(await read_slowly(run.stream(after=streams[-1][at].cursor), 0), whole=False)
    return await outcome(run)


async def is_in_log(log: Any, result: Result[Any]) -> bool:
    """Return True if the run is in the log. Runs stopped before they acquire a lease are not logged."""
    if result.task_id in {record.task_id for record in await log.list_runs()}:
        return True
    assert result.state == "canceled" or result.reason == "timeout"
    return False


async def assert_valid_in_log(log: Any, task_id: str) -> None:
    """Validate a run from its log."""
    events = await read_events(log, task_id)
    assert_valid(events)
    assert_valid([each for each in events if each.durable])
    # Attempts that ended before reading the log have not written anything.
    if ends_attempt(events[-1]):
        assert [each async for each in replay(log, task_id).pipe(op.grammar())] == events


@dataclass
class World:
    """Agent whose model and tools behave as generated."""

    turns: list[Any]
    limits: Limits = field(default_factory=Limits)
    spare: bool = False
    """True if there is a second model for failures of the first."""

    def turn(self, request: ModelRequest) -> Any:
        done = sum(message.role == "assistant" for message in request.messages)
        return self.turns[done] if done < len(self.turns) else "done"

    def make_agent(self, log: Any) -> Agent:
        model: Any = ScriptedModel(*[self.turn] * 30)
        if self.spare:
            model = fallback(model, ScriptedModel(*["spare"] * 30, name="spare"))
        return Agent(model, tools=TOOLS, log=log, limits=self.limits)

    async def run_attempts(self, log: Any, cancels: Sequence[float | None], crash: float | None) -> tuple[Any, str]:
        """Run attempts of all kinds, and return the final log and the id of the run."""
        run = self.make_agent(log).run("Go")
        for cancel in [*cancels, *[None] * 10]:
            result = await watch_attempt(run, cancel)
            event(f"{result.state} {result.reason}")
            if not await is_in_log(log, result):
                run = self.make_agent(log).run("Go")
                continue
            await assert_valid_in_log(log, run.task_id)
            if crash is not None:
                log = await copy_until_crash(log, run.task_id, crash)
                crash = None
            elif result.state in ("completed", "failed"):
                break
            pending = (await replay(log, run.task_id).result()).pending
            run = self.make_agent(log).resume(run.task_id, inputs={each.input_id: True for each in pending[:1]})
        return log, run.task_id


@settings(max_examples=60)
@given(
    turns=SCRIPTS,
    limits=LIMITS,
    spare=st.booleans(),
    log=LOGS,
    cancels=st.lists(TIMES, max_size=3),
    crash=st.none() | st.floats(0, 1),
    fork=st.none() | st.floats(0, 1),
)
def test_generated_run_is_valid_live_and_in_its_log(
    turns: list[Any],
    limits: Limits,
    spare: bool,
    log: str,
    cancels: list[float | None],
    crash: float | None,
    fork: float | None,
) -> None:  # L1, L3, L4, L5, L12, L13
    world = World(turns, limits, spare)

    async def run_all(log: Any) -> None:
        first = log
        log, task_id = await world.run_attempts(log, cancels, crash)
        if fork is not None:
            at = max(1, round(fork * (await read_events(log, task_id))[-1].seq))
            run = world.make_agent(log).fork(task_id, at, prompt="And now?")
            if await is_in_log(log, await watch_attempt(run)):
                await assert_valid_in_log(log, run.task_id)
        for each in {id(first): first, id(log): log}.values():
            if isinstance(each, SqliteEventLog):
                await each.aclose()

    with virtual_time() as time, open_log(log) as empty:
        time.run(run_all(empty))


every = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@every
@settings(max_examples=8)
@given(cancel=TIMES, crash=st.none() | st.floats(0, 1), slow=st.booleans(), again=TIMES)
def test_generated_run_of_a_strategy_is_valid(
    case: Case, cancel: float | None, crash: float | None, slow: bool, again: float | None
) -> None:
    def answer(request: ModelRequest) -> Any:
        text = turn_by_step(case.turns)(request)
        return Frames(("-", "-", text, "-", "|"), 0.025) if slow and isinstance(text, str) else text

    def make_agent(log: Any) -> Agent:
        return Agent(ScriptedModel(*[answer] * 60), tools=[add], strategy=case.strategy(), log=log)

    async def run_all() -> None:
        log = MemoryEventLog(keep_deltas=slow)
        run = make_agent(log).run("How much is two and two?")
        result = await watch_attempt(run, cancel)
        await assert_valid_in_log(log, run.task_id)
        if crash is not None:
            log = await copy_until_crash(log, run.task_id, crash)
        for each in (again, None):
            if crash is None and result.state == "completed":
                break
            result = await watch_attempt(make_agent(log).resume(run.task_id), each)
            await assert_valid_in_log(log, run.task_id)
        assert result.output == case.answer

    with virtual_time() as time:
        time.run(run_all())
