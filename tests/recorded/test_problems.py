"""Problems found in recorded runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from rxloop import (
    Agent,
    ContextCompressedEvent,
    Event,
    Limits,
    LLMCallEvent,
    LLMFailedEvent,
    MemoryEventLog,
    RunContext,
    ToolError,
    ToolsUnavailableEvent,
    Usage,
    fallback,
    tool,
)
from rxloop.errors import AttemptError, ServerError
from rxloop.protocol.events import ContentCompleteEvent
from rxloop.protocol.http_api.inspection import RunProblem
from rxloop.protocol.messages import ErrorInfo
from rxloop.recorded.problems import ProblemFold
from rxloop.testing import ScriptedModel, call, frames, turn, virtual_time


@tool
async def work(seconds: float) -> str:
    """Take time."""
    await asyncio.sleep(seconds)
    return "worked"


@tool
async def fail() -> str:
    """Fail."""
    raise ToolError("It is closed.")


@tool
async def sure(ctx: RunContext[Any]) -> bool:
    """Ask."""
    return await ctx.ask("Sure?")


@tool(name="secret_peek", hidden=True)
async def peek() -> str:
    """Fail in secret."""
    raise ToolError("PLANTED")


def record(*turns: Any, model: Any = None, **options: Any) -> list[Event]:
    log = MemoryEventLog()
    agent = Agent(model or ScriptedModel(*turns), tools=[work, fail, sure, peek], log=log, name="clerk", **options)
    with virtual_time() as time:
        run = agent.run("Go")

        async def main() -> Sequence[Event]:
            with suppress(AttemptError):
                await run
            return await log.read(run.task_id)

        return [*time.run(main())]


def find(events: Sequence[Event], *, internal: bool = False, now: int | None = None) -> list[RunProblem]:
    fold = ProblemFold(internal=internal)
    fold.add(events)
    return fold.collect("run", now=now)


def find_seq(events: Sequence[Event], kind: str, number: int = 0) -> int:
    return [event.seq for event in events if event.kind == kind][number]


def test_run_without_problems_has_none() -> None:
    assert find(record(call("work", seconds=20), frames("--Done-.|", 1.0)), internal=True) == []


def test_failed_and_refused_calls_are_problems() -> None:
    events = record([call("fail"), call("nothing")], "Done.")
    refused, failed = find(events)
    assert (refused.code, refused.name, refused.seq) == ("refused", "nothing", find_seq(events, "tool-complete"))
    assert (failed.code, failed.name, failed.text) == ("tool_failed", "fail", "It is closed.")


def test_canceled_calls_are_not_problems() -> None:
    log = MemoryEventLog()
    agent = Agent(ScriptedModel(call("work", seconds=20)), tools=[work], log=log)

    async def main() -> Sequence[Event]:
        run = agent.run("Go")
        run.start()
        await asyncio.sleep(5)
        run.cancel()
        with suppress(AttemptError):
            await run
        return await log.read(run.task_id)

    with virtual_time() as time:
        events = time.run(main())
    assert events[-1].kind == "status-update"
    assert find(events, internal=True) == []


def test_silent_tool_is_a_stall() -> None:
    events = record(call("work", seconds=45), "Done.")
    [stall] = find(events)
    assert (stall.code, stall.seconds, stall.text) == ("stalled", 45.0, "nothing came for 45 s; awaited: tool work")
    assert (stall.seq, stall.until) == (find_seq(events, "tool-start"), find_seq(events, "tool-complete"))


@pytest.mark.parametrize(
    ("line", "seconds"),
    [("----Hi|", 40), ("-H----i|", 50), ("-H-o-w- -d-o- -y-o-u|", None), ("-Hi---|", None)],
)
def test_silent_model_is_a_stall(line: str, seconds: float | None) -> None:
    events = record(frames(line, 10.0))
    stalls = [problem for problem in find(events) if problem.code == "stalled"]
    assert [each.seconds for each in stalls] == ([] if seconds is None else [seconds])
    assert all((each.name, each.until) == ("scripted", find_seq(events, "content-complete")) for each in stalls)


def test_time_between_question_and_answer_is_not_a_stall_and_open_questions_wait() -> None:
    log = MemoryEventLog()
    agent = Agent(ScriptedModel(call("sure"), "Done."), tools=[sure], log=log)

    async def main() -> tuple[Sequence[Event], Sequence[Event]]:
        result = await agent.run("Go")
        waiting = await log.read(result.task_id)
        await asyncio.sleep(3_600)
        await agent.resume(result.task_id, inputs={result.pending[0].input_id: True})
        return waiting, await log.read(result.task_id)

    with virtual_time() as time:
        waiting, complete = time.run(main())
    [question] = find(waiting, now=waiting[-1].timestamp + 3_600_000)
    assert (question.code, question.text, question.name) == ("waits", "Sure?", "sure")
    assert question.seq == find_seq(waiting, "input-required")
    assert find(complete) == []


def test_stall_after_the_last_event_of_an_active_run_continues() -> None:
    events = record(call("work", seconds=45), "Done.")
    started = events[: find_seq(events, "tool-start")]
    [stall] = find(started, now=started[-1].timestamp + 100_000)
    assert (stall.code, stall.seconds, stall.until) == ("stalled", 100.0, None)
    assert find(started, now=started[-1].timestamp + 20_000) == []
    assert find(started) == []


def test_repeated_calls_are_one_problem() -> None:
    events = record(*[call("work", seconds=0)] * 4, "Done.")
    [repeat] = find(events)
    assert (repeat.code, repeat.name, repeat.count) == ("repeated", "work", 4)
    assert repeat.text == "work(seconds=0) was asked for 4 times"
    assert (repeat.seq, repeat.until) == tuple(find_seq(events, "content-complete", number) for number in (2, 3))


def test_failed_requests_of_one_call_are_one_problem() -> None:
    first, second = ScriptedModel(ServerError("http://10.0.0.1")), ScriptedModel(ServerError("again"))
    events = record(model=fallback(first, second))
    failed, ended = find(events, internal=True)
    assert (failed.code, failed.count, failed.text) == ("model_failed", 2, "server: again")
    assert (failed.seq, failed.until) == (find_seq(events, "llm-failed"), find_seq(events, "llm-failed", 1))
    assert (ended.code, ended.name, ended.seq) == ("run_failed", "server", events[-1].seq)
    # Clients do not receive the failed requests.
    [public] = find(events)
    assert (public.code, public.text) == ("run_failed", "The model provider failed.")


def test_successful_retry_is_not_a_failure() -> None:
    envelope: dict[str, Any] = {"task_id": "run", "attempt": 1, "step": "1", "timestamp": 1_000}
    request: dict[str, Any] = {"iteration": 1, "model": "m", "message_count": 1, "tool_count": 0}
    failure: dict[str, Any] = {"error": ErrorInfo(code="context_length", message="Too long."), "retryable": True}
    second: dict[str, Any] = {**envelope, "step": "2"}
    events = [
        LLMCallEvent(seq=1, estimated_input_tokens=5, **request, **envelope),
        LLMFailedEvent(seq=2, **failure, **envelope),
        LLMCallEvent(seq=3, estimated_input_tokens=4, **request, **envelope),
        ContentCompleteEvent(seq=4, content="Hi", **envelope),
        LLMCallEvent(seq=5, estimated_input_tokens=4, **request, **second),
        LLMFailedEvent(seq=6, retry_in=2.0, **failure, **second),
        ContentCompleteEvent(seq=7, content="Hi", **second),
    ]
    found = find(events, internal=True)
    assert [(each.code, each.seq, each.until, each.count) for each in found] == [
        ("retried", 2, 3, 1),
        ("retried", 6, 6, 1),
    ]
    assert [(each.code, each.seq, each.text) for each in find(events)] == [
        ("retried", 3, "the request failed and was sent again")
    ]


def test_large_contexts_and_missing_toolsets_are_problems() -> None:
    envelope: dict[str, Any] = {"task_id": "run", "attempt": 1}
    events = [
        ContextCompressedEvent(seq=1, tokens_before=9_000, tokens_after=8_000, budget_unmet=True, **envelope),
        ContextCompressedEvent(seq=2, tokens_before=9_000, tokens_after=1_000, **envelope),
        ToolsUnavailableEvent(seq=3, toolset="files", reason="PLANTED", **envelope),
    ]
    unmet, missing = find(events)
    assert (unmet.code, unmet.seq) == ("cut_unmet", 1)
    assert (missing.code, missing.name, missing.text) == (
        "tools_unavailable",
        "files",
        "the tools of this toolset are missing",
    )
    assert find(events, internal=True)[1].text == "PLANTED"


def test_limit_is_a_problem_of_the_run() -> None:
    events = record(call("work", seconds=0), call("work", seconds=1), limits=Limits(iterations=1))
    [problem] = find(events)
    assert (problem.code, problem.name) == ("run_failed", "max_iterations")


def test_failures_of_hidden_calls_are_only_internal() -> None:
    events = record(*[[call("secret_peek"), call("work", seconds=number)] for number in range(3)], "Done.")
    assert find(events) == []
    assert [problem.code for problem in find(events, internal=True)] == [
        *("tool_failed", "tool_failed", "repeated", "tool_failed"),
    ]
    assert "PLANTED" not in "".join(each.model_dump_json() for each in find(events))


def test_streaming_model_is_not_a_stall_before_its_usage() -> None:
    events = record(turn(frames("-H-o-w- -d-o- -y-o-u|", 10.0), usage=Usage(input_tokens=1, output_tokens=1)))
    assert events[find_seq(events, "usage") - 1].timestamp - events[find_seq(events, "llm-call") - 1].timestamp > 30_000
    assert find(events) == []


def test_slow_tool_is_not_a_stall_while_a_question_is_open() -> None:
    events = record([call("sure"), call("work", seconds=100)])
    assert [problem.code for problem in find(events)] == ["waits"]
