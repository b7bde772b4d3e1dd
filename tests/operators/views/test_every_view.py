"""Properties of all views: documentation, and equal values for live, finished and logged runs."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import reactivex
import reactivex.operators as rx

from rxloop import Agent, Event, MemoryEventLog, Price, ThoughtStreamEvent, ToolCompleteEvent, Usage, op, replay, tool
from rxloop.operators import View
from rxloop.testing import ScriptedModel, call, turn, virtual_time
from support.timelines import collect_values

ROOT = Path(__file__).parents[3]
CALL = call("add", "a1", a=1, b=2)

VIEWS: dict[str, Callable[[], View[Event, Any]]] = {
    "after": lambda: op.after("other/1.1.0"),
    "coalesce_deltas": op.coalesce_deltas,
    "context_stats": lambda: reactivex.compose(op.context_stats(), rx.map(lambda stats: stats.usage)),
    "cost": lambda: op.cost({"scripted": Price(1, 1)}),
    "for_task": lambda: op.for_task("other"),
    "grammar": op.grammar,
    "graph_deltas": op.graph_deltas,
    "of_type": lambda: op.of_type(ToolCompleteEvent, ThoughtStreamEvent),
    "partial": lambda: op.partial(int),
    "public": op.public,
    "repeats": lambda: op.repeats(2),
    "spans": lambda: reactivex.compose(op.spans(), rx.map(lambda span: span.is_recording())),
    "stalled": lambda: op.stalled(0.5),
    "stats": lambda: op.stats(0.5),
    "text": op.text,
    "thought_graph": op.thought_graph,
    "thoughts": op.thoughts,
    "tool_calls": op.tool_calls,
    "until_final": op.until_final,
    "usage": op.usage,
}
KIT = {"make_view"}
"""Functions that create views."""
IN_TESTS = {"compare", "record"}
"""Views that need a recorded run or a target to write to."""
OF_BATCHES = {"progress", "tally"}
"""Views of the outcomes of a batch."""
IN_THE_LOOP = {
    "adaptive",
    "answer_requests",
    "at_end",
    "call_model",
    "checkpoint",
    "compose",
    "compress",
    "current_span",
    "goals",
    "iterate",
    "on",
    "predict_context",
    "recall",
    "run_tools",
    "standard",
    "thinking_phase",
    "typed_output",
    "workspace",
}
every = pytest.mark.parametrize("name", VIEWS)


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers, slowly."""
    await asyncio.sleep(1.2)
    return a + b


def make_agent(log: MemoryEventLog) -> Agent[None, str]:
    thinks = call("think_aloud", "t1", thought="Add.", thought_type="planning", thought_id="plan")
    model = ScriptedModel([thinks, CALL], CALL, turn("3", usage=Usage(input_tokens=30, output_tokens=1)))
    return Agent(model, tools=[add], log=log)


def comparable(value: Any) -> Any:
    """Convert a value to a form that can be compared."""
    return value.to_json() if hasattr(value, "to_json") else value


def test_every_public_function_is_a_view_or_an_operator() -> None:
    functions = {name for name in op.__all__ if inspect.isfunction(getattr(op, name))}
    assert functions == VIEWS.keys() | KIT | IN_TESTS | OF_BATCHES | IN_THE_LOOP


@pytest.mark.parametrize("name", [*VIEWS, *sorted(KIT | IN_TESTS | OF_BATCHES)])
def test_view_has_a_marble_diagram_and_is_documented(name: str) -> None:
    diagram = re.search(rf"::\n\n +source .*\n(?: +.*\n)* +{name}\(", inspect.getdoc(getattr(op, name)) or "")
    assert diagram is not None
    assert f"\n| `op.{name}(" in (ROOT / "docs/views.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(IN_THE_LOOP))
def test_operator_of_the_loop_is_documented(name: str) -> None:
    assert f"\n| `op.{name}(" in (ROOT / "docs/operators.md").read_text(encoding="utf-8")


@every
def test_view_emits_the_same_for_finished_replayed_and_logged_runs(name: str) -> None:
    view = VIEWS[name]
    log = MemoryEventLog()

    async def main() -> tuple[list[Event], list[Any], list[Any]]:
        run = make_agent(log).run("What is 1 + 2?")
        await run
        late = [comparable(value) async for value in run.pipe(view())]
        again = [comparable(value) async for value in replay(log, run.task_id).pipe(view())]
        return list(await log.read(run.task_id)), late, again

    with virtual_time() as time:
        events, late, again = time.run(main())
    # No event loop runs here.
    assert [comparable(value) for value in collect_values(view(), events)] == again == late


@every
def test_view_emits_the_same_for_live_and_recorded_events(name: str) -> None:
    view = VIEWS[name]
    events: list[Event] = []
    live: list[Any] = []

    async def main() -> None:
        run = make_agent(MemoryEventLog()).run("What is 1 + 2?")
        run.events.subscribe(events.append)
        run.pipe(view()).subscribe(live.append)
        await run

    with virtual_time() as time:
        time.run(main())
    recorded, came = list(map(comparable, collect_values(view(), events))), list(map(comparable, live))
    # A live view also emits while no events arrive.
    assert recorded == ([each for each in came if each in recorded] if name == "stats" else came)
    assert live or name == "for_task"
