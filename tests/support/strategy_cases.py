"""Example runs of all strategies, with stream checks."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from rxloop import (
    ContentCompleteEvent,
    Event,
    LLMCallEvent,
    StageEvent,
    ThoughtStreamEvent,
    ToolCompleteEvent,
    ToolStartEvent,
    tool,
)
from rxloop.pipeline.requests import ModelRequest, Strategy
from rxloop.strategies import (
    STRATEGIES,
    StrategyRun,
    chain_of_thought,
    linear,
    react,
    rewoo,
    scratchpad,
    self_ask,
    self_consistency,
    step_back,
    strategy,
    tree_of_thoughts,
)
from rxloop.testing import call


@tool(idempotent=True)
async def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


def turn_by_step(turns: Mapping[str, Any]) -> Callable[[ModelRequest], Any]:
    """Return a script turn that depends only on the requested step. The main branch has one answer."""
    return lambda request: turns[request.step if request.branch else "1"]


@dataclass(frozen=True)
class Case:
    """Example run of a strategy."""

    strategy: Callable[[], Strategy]
    turns: Mapping[str, Any]
    answer: str
    calls: int
    """Number of model calls."""

    @property
    def name(self) -> str:
        return getattr(self.strategy(), "__name__", "")


CASES = [
    Case(
        linear,
        {
            "linear/1": "Two and two.\nNext: continue",
            "linear/2": "That is five.\nNext: revise",
            "linear/3": "No, it is four.\nNext: conclude",
            "linear/4": "It is four.\nHolds: yes",
            "1": "4",
        },
        "4",
        5,
    ),
    Case(chain_of_thought, {"chain_of_thought/1": "1. Take two.\n2. Add two.", "1": "4"}, "4", 2),
    Case(
        react,
        {
            "react/1": ["I add.", call("add", "a1", a=2, b=2)],
            "react/2": call("add", "a2", a=4, b=0),
            "react/3": "4",
        },
        "4",
        3,
    ),
    Case(
        rewoo,
        {
            "rewoo/plan/1": 'Plan: add. #E1 = add[{"a": 1, "b": 1}]\nPlan: again. #E2 = add[{"a": "#E1", "b": 2}]',
            "1": "4",
        },
        "4",
        2,
    ),
    Case(scratchpad, {"scratchpad/1": "x = 2\nDone: no", "scratchpad/2": "x = 4\nDone: yes", "1": "4"}, "4", 3),
    Case(
        self_ask,
        {
            "self_ask/1": "Follow up: What is two and one?",
            "self_ask/1/1": "3",
            "self_ask/2": "Follow up: What is three and one?",
            "self_ask/2/1": call("add", "s1", a=3, b=1),
            "self_ask/2/2": "4",
            "self_ask/3": "So the final answer is: 4",
        },
        "4",
        6,
    ),
    Case(
        lambda: self_consistency(samples=3),
        {
            "self_consistency/1/1": "Answer: 4",
            "self_consistency/2/1": "Answer: 5",
            "self_consistency/3/1": "It is 4.0.\nAnswer: 4.0",
        },
        "4",
        3,
    ),
    Case(step_back, {"step_back/1": "It is a sum.", "1": "4"}, "4", 2),
    Case(
        lambda: tree_of_thoughts(propose=2, keep=1, depth=2),
        {
            "tot/1": "1. add\n2. multiply",
            "tot/1/value/1": "Score: 0.4",
            "tot/2/value/1": "Score: 0.9",
            "tot/2/1": "- by two\n- by three",
            "tot/2/1/value/1": "Score: 1",
            "tot/2/2/value/1": "Score: 0",
            "1": "4",
        },
        "4",
        7,
    ),
]


def stage_path(events: Iterable[Event]) -> list[str]:
    """Return the accepted stages of a run. Assert that they form a path."""
    at: str | None = None
    names: list[str] = []
    for event in events:
        if isinstance(event, StageEvent) and event.accepted:
            assert event.from_stage == at
            at = event.to_stage
            names.append(at)
    return names


def is_legal(stages: list[str], name: str) -> bool:
    """Return True if the stages follow the transitions of the strategy from its initial to a terminal stage."""
    definition = STRATEGIES[name]
    edges = pairwise(stages)
    return (
        stages[0] == definition.initial
        and stages[-1] in definition.terminal
        and all(after in definition.transitions[before] for before, after in edges)
    )


def count_strategy_events(events: Iterable[Event]) -> Counter[Any]:
    """Count the events published by the strategy itself, independent of the order of parallel branches."""
    said: Counter[Any] = Counter()
    for event in events:
        if event.kind == "stage" or (event.branch is not None and event.kind in ("message-added", "checkpoint")):
            own = event.model_dump(include={"kind", "branch", "step", "from_stage", "to_stage", "content", "iteration"})
            said[str(own)] += 1
        elif isinstance(event, ThoughtStreamEvent):
            said[event.thought_id, event.content, event.related_to, event.confidence] += 1
    return said


def find_open_items(events: Iterable[Event]) -> set[Any]:
    """Return the messages and calls that have started but not ended."""
    opened: set[Any] = set()
    for event in events:
        match event:
            case LLMCallEvent():
                opened.add(event.step)
            case ContentCompleteEvent():
                opened.discard(event.step)
                opened |= {(event.step, index) for index in range(len(event.tool_calls))}
            case ToolStartEvent():
                opened.add((event.step, event.index))
            case ToolCompleteEvent():
                opened.discard((event.step, event.index))
            case _:
                pass
    return opened


def list_thoughts(events: Iterable[Event]) -> list[ThoughtStreamEvent]:
    """Return a run's thoughts."""
    return [event for event in events if isinstance(event, ThoughtStreamEvent)]


def echo(request: ModelRequest) -> str:
    """Create an answer from the step and the last message."""
    return f"{request.step}: {[*request.messages, *request.tail][-1].text}"


@strategy
async def in_turn(run: StrategyRun) -> str:
    """Ask two questions on a branch, then conclude."""
    first = await run.ask("First?")
    second = await run.ask("Second?")
    return await run.conclude(f"{first.text} + {second.text}")


async def ask_text(run: StrategyRun, name: str) -> str:
    return (await run.ask("?", branch=name)).text
