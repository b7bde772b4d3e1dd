"""Time to the first token and longest silence, measured by `call_model` from the timestamps of the deltas."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from reactivex import Observable

from rxloop import (
    Agent,
    ContentCompleteEvent,
    ContentDeltaEvent,
    Event,
    LLMCallEvent,
    LLMFailedEvent,
    MemoryEventLog,
    diff,
    fallback,
)
from rxloop.errors import ServerError
from rxloop.operators.exchange.model_exchange import DeltaTimes
from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.messages import ErrorInfo
from rxloop.stream.sources import Push, from_task
from rxloop.testing import ScriptedModel, frames, virtual_time

Step = float | Event | Exception
"""Delay in seconds, event of the model, or failure of the request."""


class TimedModel:
    """Model that sends events after delays."""

    name = "timed"

    def __init__(self, *steps: Step) -> None:
        self._steps = steps

    def call(self, request: ModelRequest) -> Observable[Event]:
        async def work(push: Push[Event]) -> None:
            for step in self._steps:
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, Event):
                    push(step)
                else:
                    await asyncio.sleep(step)

        return from_task(work, request.ctx, shielded=True)

    async def aclose(self) -> None:
        """Do nothing."""


def delta(text: str = "x") -> ContentDeltaEvent:
    return ContentDeltaEvent(delta=text)


def answer(text: str = "xx") -> ContentCompleteEvent:
    return ContentCompleteEvent(content=text)


def record(model: Any, *, log: MemoryEventLog | None = None, **options: Any) -> list[Event]:
    """Return the durable events of a run in the log."""
    log = log or MemoryEventLog()
    with virtual_time() as time:
        result = time.run(Agent(model, log=log, **options).run("Hi"))
        return [Event.from_json(event.to_json()) for event in time.run(log.read(result.task_id))]


def find_times(events: Sequence[Event]) -> list[tuple[float | None, float | None]]:
    return [(event.first_token, event.longest_silence) for event in events if isinstance(event, ContentCompleteEvent)]


def test_message_has_the_times_of_its_deltas() -> None:
    events = record(ScriptedModel(frames("---It-is----good-.|", 0.1)))
    assert find_times(events) == [(0.3, 0.5)]


def test_message_without_deltas_has_no_times() -> None:
    events = record(TimedModel(0.5, answer()))
    assert find_times(events) == [(None, None)]
    assert b"firstToken" not in b"".join(event.to_json() for event in events)


def test_message_with_a_single_delta_has_no_silence() -> None:
    assert find_times(record(TimedModel(0.5, delta(), 2.0, answer("x")))) == [(0.5, 0.0)]


def test_each_message_has_its_own_times() -> None:
    turns = [frames("-One--two|", 0.1), frames("--Three|", 0.1)]
    agent = Agent(ScriptedModel(*turns), log=MemoryEventLog())
    with virtual_time() as time:
        messages = [time.run(collect(agent)) for _ in turns]
    assert [find_times(each) for each in messages] == [[(0.1, 0.3)], [(0.2, 0.0)]]


async def collect(agent: Agent[Any, Any]) -> list[Event]:
    return [event async for event in agent.run("Hi")]


def test_first_token_includes_failed_requests_of_the_call() -> None:
    model = fallback(TimedModel(1.0, ServerError("oops")), TimedModel(0.5, delta(), 0.25, delta(), answer()))
    assert find_times(record(model)) == [(1.5, 0.25)]


def test_deltas_of_a_failed_request_do_not_count() -> None:
    failure = LLMFailedEvent(error=ErrorInfo(code="server", message="oops"), retryable=True, retry_in=0.0)
    model = TimedModel(0.1, delta(), 3.0, delta(), failure, 1.0, delta("y"), 0.5, delta("y"), answer("yy"))
    assert find_times(record(model)) == [(4.1, 0.5)]


def test_interrupted_message_has_the_times_of_its_deltas() -> None:
    log = MemoryEventLog()
    agent = Agent(ScriptedModel(frames("--One-two------", 0.1), "Done."), log=log)

    async def main() -> list[Event]:
        run = agent.run("Hi")
        run.start()
        await asyncio.sleep(0.6)
        run.send("Stop", interrupt=True)
        return [event async for event in run]

    with virtual_time() as time:
        events = time.run(main())
    interrupted = next(event for event in events if isinstance(event, ContentCompleteEvent))
    assert (interrupted.finish_reason, interrupted.first_token, interrupted.longest_silence) == (
        "interrupted",
        0.2,
        0.2,
    )


def test_times_are_public_and_ignored_by_diff() -> None:
    log = MemoryEventLog()
    fast, slow = (record(ScriptedModel(frames(line, 0.1)), log=log) for line in ("-Hi|", "---Hi|"))
    message = next(event for event in slow if isinstance(event, ContentCompleteEvent))
    assert b'"firstToken":0.3' in message.to_json(public=True)
    with virtual_time() as time:
        assert time.run(diff(log, fast[0].task_id, slow[0].task_id)).first is None


def test_regular_deltas_need_no_function_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    add = DeltaTimes.add

    def count(times: DeltaTimes, timestamp: int) -> None:
        calls.append(timestamp)
        add(times, timestamp)

    monkeypatch.setattr(DeltaTimes, "add", count)
    deltas = [step for _ in range(1_000) for step in (0.01, delta())]
    events = record(TimedModel(*deltas, answer("x" * 1_000)))
    assert find_times(events) == [(0.01, 0.01)]
    assert len(calls) == 2


def test_call_and_message_times_agree_with_the_stream() -> None:
    agent = Agent(ScriptedModel(frames("--a---b-c|", 0.1)))
    with virtual_time() as time:
        events = time.run(collect(agent))
    request = next(event.timestamp for event in events if isinstance(event, LLMCallEvent))
    deltas = [event.timestamp for event in events if isinstance(event, ContentDeltaEvent)]
    gaps = [later - earlier for earlier, later in pairwise(deltas)]
    assert find_times(events) == [((deltas[0] - request) / 1000, max(gaps) / 1000)]
