"""End of the stream of `Runtime.follow` with `until`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast

import pytest

from rxloop import MemoryEventLog, RunRecord, Runtime
from rxloop.errors import ConfigurationError
from rxloop.protocol.commands import AnswerCommand
from support.dropped_questions import LOGS, clerk, drop_question, shared_logs, start_waiting_run


class Replicas:
    """Two runtimes with one event log. The second executes no runs on its own."""

    def __init__(self, runtime: Runtime, other: Runtime) -> None:
        self.runtime, self.other = runtime, other

    async def wait_released(self, record: RunRecord) -> None:
        while self.runtime.is_executing(record.task_id):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.fixture(params=LOGS)
async def replicas(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Replicas]:
    async with shared_logs(request.param, tmp_path, request) as make:
        options: dict[str, Any] = {"grace": 0.3, "adopt_every": 3_600}
        one, other = clerk(), clerk()
        async with (
            Runtime({"clerk": one}, log=make(), **options) as runtime,
            Runtime({"clerk": other}, log=make(), **options) as reader,
        ):
            yield Replicas(runtime, reader)
        for agent in (one, other):
            await agent.aclose()


async def follow_states(runtime: Runtime, task_id: str, **options: Any) -> list[str]:
    async with asyncio.timeout(20):
        events = [event async for event in runtime.follow(task_id, until="attempt", **options)]
    return [event.state for event in events if event.kind == "status-update"]


async def test_stream_ends_at_a_question_and_continues_after_the_answer(replicas: Replicas) -> None:
    for runtime in (replicas.runtime, replicas.other):
        record = await replicas.runtime.start("clerk", "Refund A1")
        assert await follow_states(runtime, record.task_id) == ["working", "input-required"]
        waiting = await runtime.get_record(record.task_id)
        assert await follow_states(runtime, record.task_id, after=waiting.cursor) == []
        await replicas.runtime.answer(record.task_id, {"1.0.1": True})
        # The pause is over, so neither a new nor a continued stream ends there.
        states = ["working", "input-required", "working", "completed"]
        assert await follow_states(runtime, record.task_id) == states
        assert await follow_states(runtime, record.task_id, after=waiting.cursor) == states[2:]


async def test_await_returns_when_the_run_has_ended(replicas: Replicas) -> None:
    record = await replicas.runtime.start("clerk", "Hi")
    last = await asyncio.wait_for(replicas.other.follow(record.task_id, until="attempt"), 20)
    assert getattr(last, "state", "") == "completed"


async def test_stream_does_not_end_at_a_question_whose_answer_is_stored(replicas: Replicas) -> None:
    record = await start_waiting_run(replicas.runtime)
    await replicas.wait_released(record)
    await replicas.runtime.log.send_command(record.task_id, AnswerCommand(inputs={"1.0.1": True}))
    reading = asyncio.create_task(follow_states(replicas.other, record.task_id))
    stored = replicas.runtime.log
    await replicas.runtime.agents["clerk"].get_run(record.task_id).execute()
    assert (await reading)[-1] == "completed"
    assert (await stored.get_record(record.task_id)).state == "completed"


async def test_stream_ends_when_the_question_is_dropped(replicas: Replicas) -> None:
    record = await start_waiting_run(replicas.runtime, context_id="c")
    await drop_question(replicas.runtime, record)
    assert (await follow_states(replicas.other, record.task_id))[-1] == "canceled"


async def test_stream_continues_at_a_question_by_default(replicas: Replicas) -> None:
    record = await start_waiting_run(replicas.runtime)
    reading = asyncio.ensure_future(replicas.other.follow(record.task_id))
    done, _ = await asyncio.wait([reading], timeout=0.3)
    assert not done
    await replicas.runtime.answer(record.task_id, {"1.0.1": True})
    assert getattr(await asyncio.wait_for(reading, 20), "state", "") == "completed"


def test_unknown_until_is_refused() -> None:
    runtime, invalid = Runtime({"clerk": clerk()}, log=MemoryEventLog()), cast("Any", "pause")
    with pytest.raises(ConfigurationError, match="until must be 'attempt' or 'end', got 'pause'"):
        runtime.follow("run", until=invalid)
