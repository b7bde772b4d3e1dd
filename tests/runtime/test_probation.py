"""Suspect runs, whose last attempts ended with their process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from reactivex.subject import Subject

from rxloop import (
    Agent,
    EventLog,
    Limits,
    MemoryEventLog,
    Message,
    RunRecord,
    Runtime,
    SqliteEventLog,
    StatusUpdateEvent,
    tool,
)
from rxloop.protocol.events import ContentCompleteEvent, TaskEvent
from rxloop.runtime.probation import Probation, Suspicion
from rxloop.testing import ScriptedModel, virtual_time
from support.processes.counters import count_operations
from support.workers.scripted_agents import ScriptedPromptModel

STEP = 10.0
"""Seconds of a tool call."""


async def add_suspects(log: EventLog, deaths: int, *names: str) -> None:
    """Add runs whose attempts all ended with their process."""
    for name in names:
        task = TaskEvent(messages=[Message.user(f"work {name}")], model="m", agent_name="a")
        starts = [StatusUpdateEvent(state="working", resumed=number > 0) for number in range(deaths)]
        stamped = [
            event.model_copy(
                update={"task_id": name, "context_id": name, "seq": place, "attempt": max(1, place - 1), "timestamp": 1}
            )
            for place, event in enumerate([task, *starts], 1)
        ]
        await log.append(name, stamped, expected_seq=0)


class Office:
    """Agent that records when its runs call a tool."""

    def __init__(self, attempts: int | None = 20) -> None:
        self.began: dict[str, float] = {}
        self.active = self.peak = 0

        @tool(idempotent=True)
        async def work(value: str) -> str:
            """Work for some seconds."""
            self.began[value] = asyncio.get_running_loop().time()
            self.active += 1
            self.peak = max(self.peak, self.active)
            await asyncio.sleep(STEP)
            self.active -= 1
            return "done"

        limits = Limits(attempts=attempts)
        self.agent: Agent[Any, Any] = Agent(ScriptedPromptModel(), tools=[work], limits=limits, thoughts=False)

    @asynccontextmanager
    async def open(self, log: EventLog, **options: Any) -> AsyncGenerator[Runtime]:
        """Adopt all runs, until they have ended."""
        async with Runtime({"a": self.agent}, log=log, **options) as runtime:
            yield runtime
            for record in await log.list_runs():
                await runtime.follow(record.task_id)

    async def adopt(self, log: EventLog, **options: Any) -> None:
        """Adopt all runs, and wait until they have ended."""
        async with self.open(log, **options):
            pass


def states(records: Sequence[RunRecord]) -> set[str]:
    return {record.state for record in records}


def test_runs_with_several_deaths_are_executed_one_at_a_time() -> None:
    office, log = Office(attempts=3), MemoryEventLog()

    async def main() -> None:
        await add_suspects(log, 2, "p", "q", "r")
        await office.adopt(log)
        assert states(await log.list_runs()) == {"completed"}

    with virtual_time() as time:
        time.run(main())
    assert office.peak == 1


def test_suspect_is_cleared_when_it_survives_its_probation() -> None:
    office, log = Office(), MemoryEventLog()

    async def main() -> None:
        await add_suspects(log, 3, "p", "q")
        await office.adopt(log)

    with virtual_time() as time:
        time.run(main())
    assert sorted(office.began.values()) == pytest.approx([1, 5])  # a delay of 1 s, and a probation of 4 s


def test_suspect_is_cleared_when_it_makes_progress() -> None:
    office, log = Office(), MemoryEventLog()

    async def main() -> None:
        await add_suspects(log, 7, "p", "q")  # a probation of 60 s
        await office.adopt(log)

    with virtual_time() as time:
        time.run(main())
    first, second = sorted(office.began.values())
    assert second - first == pytest.approx(STEP)


def test_delay_grows_with_the_number_of_deaths() -> None:
    delays: list[float] = []

    async def main(deaths: int) -> None:
        office, log = Office(attempts=None), MemoryEventLog()
        await add_suspects(log, deaths, "p")
        await office.adopt(log)
        delays.extend(office.began.values())

    for deaths in (1, 2, 3, 5, 30):
        with virtual_time() as time:
            time.run(main(deaths))
    assert delays == pytest.approx([0, 0.5, 1, 4, 30])


def test_many_runs_soon_continue_after_a_single_crash() -> None:
    office, log = Office(), MemoryEventLog()
    names = [f"run{number}" for number in range(50)]

    async def main() -> None:
        await add_suspects(log, 1, *names)
        await office.adopt(log)

    with virtual_time() as time:
        time.run(main())
    began = sorted(office.began.values())
    assert began[1] - began[0] == pytest.approx(1)
    assert began[-1] < 10
    assert office.peak == len(names)


def test_suspect_does_not_delay_other_runs() -> None:
    office, log = Office(), MemoryEventLog()

    async def main() -> None:
        await add_suspects(log, 10, "p")
        async with office.open(log) as runtime:
            await runtime.follow((await runtime.start("a", "work healthy")).task_id)

    with virtual_time() as time:
        time.run(main())
    assert office.began["healthy"] == 0
    assert office.began["p"] == 30


def test_released_runs_are_not_suspect() -> None:
    office, log = Office(), MemoryEventLog()

    async def main() -> None:
        names = [f"run{number}" for number in range(20)]
        async with Runtime({"a": office.agent}, log=log, grace=0) as runtime:
            for name in names:
                await runtime.start("a", f"work {name}")
            await asyncio.sleep(1)
        office.began.clear()
        await office.adopt(log)

    with virtual_time() as time:
        time.run(main())
    assert set(office.began.values()) == {1}


def test_run_without_attempts_left_fails_without_a_delay() -> None:
    office, log = Office(attempts=5), MemoryEventLog()

    async def main() -> RunRecord:
        await add_suspects(log, 5, "p")
        await office.adopt(log)
        assert time.now == 0
        return await log.get_record("p")

    with virtual_time() as time:
        record = time.run(main())
    assert record.state == "failed"
    assert record.error is not None
    assert record.error.code == "attempts"
    assert office.began == {}


def test_suspect_is_logged_with_its_attempts_and_delay(caplog: pytest.LogCaptureFixture) -> None:
    office, log = Office(attempts=5), MemoryEventLog()

    async def main() -> None:
        await add_suspects(log, 3, "p")
        await office.adopt(log)

    with caplog.at_level(logging.WARNING), virtual_time() as time:
        time.run(main())
    assert (
        "Run p is suspect: attempt 4 of 5 without progress, 3 died with their process, next try in 1 s" in caplog.text
    )


def test_recorded_limit_is_used_for_the_probation(caplog: pytest.LogCaptureFixture) -> None:
    office, log = Office(), MemoryEventLog()

    async def main() -> None:
        record = await office.agent.with_log(log).with_name("a").submit("work p", limits=Limits(attempts=7))
        for number in range(2):
            start = StatusUpdateEvent(state="working", resumed=number > 0).model_copy(
                update={"task_id": record.task_id, "context_id": record.context_id, "timestamp": 1}
            )
            start = start.model_copy(update={"seq": number + 2, "attempt": number + 1})
            await log.append(record.task_id, [start], expected_seq=number + 1)
        await office.adopt(log)

    with caplog.at_level(logging.WARNING), virtual_time() as time:
        time.run(main())
    assert "attempt 3 of 7" in caplog.text


def test_suspect_executed_by_another_process_does_not_delay_others() -> None:
    office, log = Office(attempts=3), MemoryEventLog()

    async def main() -> None:
        await add_suspects(log, 2, "p", "q")
        # Another process has just adopted the first one.
        assert await log.acquire_lease("p", "p", lambda: None)
        async with Runtime({"a": office.agent}, log=log) as runtime:
            await runtime.follow("q")
            assert office.began.keys() == {"q"}
            await log.release_lease("p", "p")
            await runtime.follow("p")

    with virtual_time() as time:
        time.run(main())
    assert office.began["q"] < 1


async def test_number_of_searches_does_not_depend_on_the_number_of_suspects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, names, searches = SqliteEventLog(tmp_path / "runs.db"), [f"run{number}" for number in range(20)], 0
    await add_suspects(log, 1, *names)
    search = log.list_orphaned

    async def list_orphaned(**options: Any) -> Sequence[RunRecord]:
        nonlocal searches
        searches += 1
        return await search(**options)

    monkeypatch.setattr(log, "list_orphaned", list_orphaned)
    async with Runtime({"a": Agent(ScriptedModel(*["Done."] * 20))}, log=log) as runtime:
        for name in names:
            await runtime.follow(name)
    assert states(await log.list_runs()) == {"completed"}
    await log.aclose()
    assert searches < 5


def test_start_of_an_attempt_is_durable_before_its_deps_are_created() -> None:
    log, seen = MemoryEventLog(), list[tuple[str, ...]]()

    async def make_deps(record: RunRecord) -> None:
        seen.append(tuple(event.kind for event in await log.read(record.task_id)))

    async def main() -> None:
        office = Office()
        async with Runtime({"a": office.agent}, log=log, deps=make_deps) as runtime:
            await runtime.follow((await runtime.start("a", "work p")).task_id)
        await add_suspects(log, 1, "q")
        await office.adopt(log, deps=make_deps)

    with virtual_time() as time:
        time.run(main())
    assert seen == [("task", "status-update"), ("task", "status-update", "status-update")]


def test_failing_deps_do_not_count_as_attempts() -> None:
    office, log = Office(attempts=3), MemoryEventLog()
    tries = 0

    def make_deps(record: RunRecord) -> None:
        nonlocal tries
        tries += 1
        if tries < 10:
            raise OSError("the database is away")

    async def main() -> None:
        async with Runtime({"a": office.agent}, log=log, deps=make_deps) as runtime:
            await runtime.follow((await runtime.start("a", "work p")).task_id)
        assert states(await log.list_runs()) == {"completed"}

    with virtual_time() as time:
        time.run(main())


@pytest.mark.parametrize("error", [MemoryError(), SystemExit(1)], ids=["memory", "exit"])
def test_deps_that_would_end_the_process_count_as_attempts(error: BaseException) -> None:
    office, log = Office(attempts=3), MemoryEventLog()

    def make_deps(record: RunRecord) -> None:
        raise error

    async def main() -> RunRecord:
        async with Runtime({"a": office.agent}, log=log, deps=make_deps) as runtime:
            record = await runtime.start("a", "work p")
            await runtime.follow(record.task_id)
            return await runtime.get_record(record.task_id)

    with virtual_time() as time:
        record = time.run(main())
    assert (record.state, record.attempt) == ("failed", 4)
    assert record.error is not None
    assert record.error.code == "attempts"


def test_admission_of_many_suspects_takes_linear_time() -> None:
    async def admit(count: int) -> None:
        probation = Probation()

        async def wait() -> None:
            async with probation.admit("r", Suspicion(1, 1, 20)):
                # In the meantime, all other suspects start to wait.
                await asyncio.sleep(0)
                await asyncio.sleep(0)

        waiting = [asyncio.create_task(wait()) for _ in range(count)]
        await asyncio.gather(*waiting)

    def measure(count: int) -> int:
        return count_operations(lambda: asyncio.run(admit(count)))

    few, many = measure(200), measure(1_000)
    assert many < 7 * few


@pytest.mark.parametrize(("deaths", "seconds"), [(3, 0), (4, 2), (6, 4)])
def test_progress_clears_a_run_only_if_few_of_its_attempts_ended_with_their_process(
    deaths: int, seconds: float
) -> None:
    events: Subject[Any] = Subject()
    run: Any = SimpleNamespace(hold=SimpleNamespace(events=lambda: events))

    async def measure() -> float:
        probation, loop = Probation(), asyncio.get_running_loop()
        # Each attempt has made progress.
        async with probation.admit("r", Suspicion(0, deaths, 20)) as suspect:
            suspect.watch(run)
            other = asyncio.create_task(wait(probation))
            await asyncio.sleep(0)
            started = loop.time()
            events.on_next(ContentCompleteEvent(content="Done.", finish_reason="stop"))
            return await other - started

    async def wait(probation: Probation) -> float:
        async with probation.admit("s", Suspicion(1, 1, 20)):
            return asyncio.get_running_loop().time()

    with virtual_time() as time:
        assert time.run(measure()) == pytest.approx(seconds)
