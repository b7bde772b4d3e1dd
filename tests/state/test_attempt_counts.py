"""Attempts that count towards the limit."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from rxloop import Event, MemoryEventLog, StatusUpdateEvent, tool
from rxloop.protocol.settings import Limits
from rxloop.state.attempt_counts import check_attempts
from rxloop.state.fold import fold_all
from rxloop.state.history import INTERRUPTED
from rxloop.state.run_state import RunState
from rxloop.testing import call, virtual_time
from support.fold_events import content_complete, llm_call, task, tool_call, tool_complete, tool_start
from support.slow_agent import agent

MINUTE = 60_000


def fold_attempts(*attempts: Iterable[Event], last_at: int = 0) -> RunState:
    """Fold attempts, each of which starts with its own status-update."""
    events: list[Event] = [task().model_copy(update={"seq": 1, "attempt": 1})]
    for number, each in enumerate(attempts, 1):
        start = StatusUpdateEvent(state="working", resumed=number > 1)
        for event in (start, *each):
            at = last_at if event is not start else 0
            events.append(event.model_copy(update={"seq": len(events) + 1, "attempt": number, "timestamp": at}))
    return fold_all(events)


CALLED = [llm_call(), content_complete("", tool_call("work"))]
RELEASE = StatusUpdateEvent(state="working", reason="released")


def test_each_attempt_without_progress_counts() -> None:
    state = fold_attempts([], [llm_call()], [tool_start()])
    assert (state.tries, state.starts) == (3, 3)


def test_submitted_run_has_no_attempt() -> None:
    assert fold_attempts().tries == 0


@pytest.mark.parametrize(
    "progress", [[*CALLED, tool_complete()], [llm_call(), content_complete()]], ids=["result", "answer"]
)
def test_progress_resets_the_count_of_attempts_without_progress(progress: list[Event]) -> None:
    state = fold_attempts([], [], progress)
    assert (state.tries, state.starts) == (0, 3)


@pytest.mark.parametrize(
    "events",
    [
        CALLED,
        [*CALLED, tool_complete().model_copy(update={"success": False, "error": INTERRUPTED})],
        [llm_call(), content_complete(finish_reason="canceled")],
    ],
    ids=["requested call", "interrupted call", "canceled message"],
)
def test_event_that_the_next_attempt_repeats_is_no_progress(events: list[Event]) -> None:
    assert fold_attempts([], events).tries == 2


def test_nested_progress_counts_for_the_run() -> None:
    nested = content_complete().model_copy(
        update={"task_id": "child", "parent_task_id": "run", "agent_path": ("a", "b")}
    )
    assert fold_attempts([], [nested]).tries == 0


def test_progress_on_another_branch_counts_for_the_run() -> None:
    assert fold_attempts([], [content_complete().model_copy(update={"branch": "b"})]).tries == 0


def test_released_attempt_does_not_count() -> None:
    state = fold_attempts([], [RELEASE], [*CALLED, RELEASE])
    assert (state.tries, state.starts) == (1, 1)


def test_progress_after_a_minute_clears_the_run() -> None:
    assert fold_attempts([], [], [llm_call(), content_complete()], last_at=MINUTE).starts == 0
    assert fold_attempts([], [], [llm_call(), content_complete()], last_at=MINUTE - 1).starts == 3


def test_pause_resets_both_counts() -> None:
    state = fold_attempts([], [StatusUpdateEvent(state="input-required", final=True)])
    assert (state.tries, state.starts) == (0, 0)


@pytest.mark.parametrize(
    ("events", "text"),
    [
        ([], "ended before its next model call"),
        ([llm_call()], "ended during a model call"),
        ([*CALLED, tool_start()], "ended during the call of work"),
    ],
)
def test_limit_tells_where_the_last_attempt_ended(events: list[Event], text: str) -> None:
    hit = check_attempts(fold_attempts([], events), Limits(attempts=2))
    assert hit is not None
    assert str(hit) == f"2 attempts in a row made no progress; the last one {text} (limits.attempts)"


@tool(idempotent=True)
async def work() -> str:
    """Work for a minute."""
    await asyncio.sleep(60)
    return "done"


def test_run_survives_more_releases_than_attempts() -> None:
    log, limits = MemoryEventLog(), Limits(attempts=2)

    async def main() -> str:
        run = agent(call("work"), tools=[work], log=log, limits=limits).run("Hi").start()
        for _ in range(10):
            await asyncio.sleep(1)
            await run.release()
            run = agent("Done.", tools=[work], log=log, limits=limits).resume(run.task_id).start()
        return (await run).output

    with virtual_time() as time:
        assert time.run(main()) == "Done."
