"""Figures of compression and thinking."""

from __future__ import annotations

from typing import Any

import pytest

from rxloop import Agent, MemoryEventLog, SlidingWindowCompressor, Usage, op, replay, tool
from rxloop.errors import ToolError
from rxloop.operators import ContextStats
from rxloop.pipeline import ThinkingResult
from rxloop.testing import ScriptedModel, call, turn
from support.long_runs import UNLIMITED, look, look_calls

WINDOW = SlidingWindowCompressor(2_700)
SUMMARY = turn('{"goal": "Find the crate"}', usage=Usage(input_tokens=1_000_000))


async def collect_stats(*turns: Any, tools: Any = (look,), **options: Any) -> tuple[list[ContextStats], Any]:
    loop = op.standard(before_model=[op.thinking_phase(WINDOW, **options)])
    model = ScriptedModel(*turns, "Done.", name="mine:m")
    run = Agent(model, tools=tools, loop=loop, limits=UNLIMITED).run("Find the crate.")
    values = [value async for value in run.pipe(op.context_stats())]
    return values, await run


async def test_stats_are_emitted_after_each_cycle_and_at_the_end() -> None:
    values, result = await collect_stats(*look_calls(20))
    assert [value.compression.count for value in values] == [1, 2, 2]
    last = values[-1]
    assert last.compression == result.compression
    assert last.compression.tokens_after < last.compression.tokens_before
    assert last.seconds_per_cycle == last.compression.seconds / 2 > 0


async def test_run_without_compression_has_neutral_figures() -> None:
    [value], _ = await collect_stats(*look_calls(1))
    assert value == ContextStats()
    assert (value.compression.ratio, value.retained, value.seconds_per_cycle) == (1.0, 1.0, 0.0)


async def test_cost_includes_the_thinking_model() -> None:
    small = ScriptedModel(*[SUMMARY] * 9, name="zai:glm-4.5-air")
    usage = Usage(output_tokens=7)
    values, _ = await collect_stats(turn(calls=look_calls(1), usage=usage), *look_calls(13), thinking_model=small)
    assert values[-1].usage == usage
    assert values[-1].compression.thinking == Usage(input_tokens=1_000_000)
    assert values[-1].dollars == pytest.approx(0.2)  # pyright: ignore[reportUnknownMemberType]


async def test_cost_includes_the_model_of_custom_thinking() -> None:
    used = ThinkingResult(thinking_tokens=Usage(input_tokens=1_000_000), thinking_model="zai:glm-4.5-air")
    values, _ = await collect_stats(*look_calls(2), think=lambda *arguments: used)
    assert values[-1].dollars == pytest.approx(0.4)  # pyright: ignore[reportUnknownMemberType]


async def test_notes_and_failures_are_counted() -> None:
    results = iter([ThinkingResult(current_state="A", thinking_tokens=Usage(input_tokens=5)), None, ThinkingResult()])
    values, _ = await collect_stats(*look_calls(3), think=lambda *arguments: next(results))
    assert (values[-1].notes, values[-1].failures) == (2, 1)
    assert values[-1].compression.thinking == Usage(input_tokens=5)
    assert len(values) == 4


async def test_errors_are_recovered_when_the_tool_succeeds_later() -> None:
    @tool
    def search(place: int) -> str:
        """Search."""
        if place < 2:
            raise ToolError("locked")
        return "empty"

    calls = [call("search", place=place) for place in (0, 1, 2, 0)]
    values, _ = await collect_stats(*calls, tools=[search])
    assert (values[-1].errors, values[-1].recovered_errors) == (3, 2)


async def test_values_in_omitted_messages_are_retained_or_lost() -> None:
    values, _ = await collect_stats(*look_calls(12))
    kept = values[-1]
    assert kept.values > 0
    assert (kept.lost_values, kept.retained) == (0, 1.0)

    class Forgetful:
        max_tokens = 2_700

        def compress(self, messages: Any, budget: Any) -> Any:
            return [messages[0], *messages[-2:]]

    loop = op.standard(before_model=[op.compress(Forgetful())])
    run = Agent(ScriptedModel(*look_calls(12), "Done."), tools=[look], loop=loop, limits=UNLIMITED).run("Find it.")
    lost = [value async for value in run.pipe(op.context_stats())][-1]
    assert lost.lost_values > 0
    assert lost.retained == 1 - lost.lost_values / lost.values < 0.5


async def test_calls_that_are_repeated_after_their_removal_are_counted() -> None:
    values, _ = await collect_stats(*look_calls(13), *look_calls(2), *look_calls(1, first=12))
    assert values[-1].repeated_calls == 2


async def test_stats_of_a_replayed_run_are_the_same() -> None:
    log, model = MemoryEventLog(), ScriptedModel(*look_calls(14), "Done.")
    loop = op.standard(before_model=[op.thinking_phase(WINDOW, publish=True)])
    run = Agent(model, tools=[look], loop=loop, limits=UNLIMITED, log=log).run("Find the crate.")
    live = [value async for value in run.pipe(op.context_stats())]
    assert [value async for value in replay(log, run.task_id).pipe(op.context_stats())] == live
