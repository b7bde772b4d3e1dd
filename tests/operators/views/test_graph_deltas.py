"""Thought graph changes, live and recorded."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reactivex import Subject
from reactivex.testing import ReactiveTest, Recorded, TestScheduler

from rxloop import (
    Agent,
    ContentDeltaEvent,
    Event,
    MemoryEventLog,
    ThoughtGraph,
    op,
    replay,
    sequential_thinking,
    strategic_thinking,
)
from rxloop.operators.views.thought_graph import EdgeAdded, NodeAdded, graph_deltas
from rxloop.protocol.events import SessionLink, ToolStartEvent
from rxloop.protocol.messages import ToolCall
from rxloop.strategies.strategic_thinking import NAME
from rxloop.testing import ScriptedModel, call
from support.graph_events import message, thought
from support.graphs import RebuiltGraph, rebuild_matches
from support.sequential_thoughts import TO_BRANCHES
from support.sequential_thoughts import thought as numbered
from support.strategy_cases import CASES, Case, add, turn_by_step
from support.timelines import collect_values


def deltas(*events: Event) -> list[Any]:
    return collect_values(graph_deltas(), events)


def shorten(changes: list[Any]) -> list[Any]:
    return [each.id if isinstance(each, NodeAdded) else (each.source, each.target, each.kind) for each in changes]


def test_node_is_emitted_with_its_event_and_followed_by_its_edges() -> None:
    scheduler = TestScheduler()
    first, second = thought("t1"), thought("t2", "c")
    asks = message("c")
    events: list[Recorded[Any]] = [
        ReactiveTest.on_next(210, first),
        ReactiveTest.on_next(220, ContentDeltaEvent(delta="a")),
        ReactiveTest.on_next(230, asks),
        ReactiveTest.on_next(290, second),
        ReactiveTest.on_completed(300),
    ]
    source = scheduler.create_hot_observable(*events)

    seen = scheduler.start(lambda: source.pipe(graph_deltas()))

    assert seen.messages == [
        ReactiveTest.on_next(210, NodeAdded(0, first)),
        ReactiveTest.on_next(230, NodeAdded(1, asks.tool_calls[0])),
        ReactiveTest.on_next(290, NodeAdded(2, second)),
        ReactiveTest.on_next(290, EdgeAdded(1, 2, "call")),
        ReactiveTest.on_completed(300),
    ]
    assert source.subscriptions == [ReactiveTest.subscribe(200, 300)]


def test_edge_to_a_later_event_is_emitted_when_the_event_arrives() -> None:
    assert shorten(deltas(thought("b", "a"), thought("c", "a"), thought("a"))) == [
        "b",
        "c",
        "a",
        (2, 0, "thought"),
        (2, 1, "thought"),
    ]
    assert shorten(deltas(thought("b", "c1"), message("c1"))) == ["b", "c1", (1, 0, "call")]


def test_reference_leads_to_one_node_when_an_id_is_repeated() -> None:
    assert shorten(deltas(thought("b", "a"), thought("a"), thought("a"), message("a"))) == [
        "b", "a", (1, 0, "thought"), "a", "a",
    ]  # fmt: skip


def test_reference_to_itself_or_to_another_run_creates_no_edge() -> None:
    assert shorten(deltas(thought("a", "a"))) == ["a"]
    assert shorten(deltas(thought("b", "a", task_id="x"), thought("a", task_id="y"))) == ["b", "a"]


def test_change_is_written_in_the_form_of_the_graph() -> None:
    [node, other, edge] = deltas(thought("a"), thought("b", "a"))
    graph = orjson.loads(ThoughtGraph.of([thought("a"), thought("b", "a")]).to_json())
    assert orjson.loads(node.to_json()) == {"nodes": graph["nodes"][:1], "edges": []}
    assert orjson.loads(other.to_json()) == {"nodes": graph["nodes"][1:], "edges": []}
    assert orjson.loads(edge.to_json()) == {"nodes": [], "edges": graph["edges"]}


def test_each_subscriber_of_a_stored_view_has_its_own_graph() -> None:
    view = graph_deltas()
    assert shorten(collect_values(view, [thought("a")])) == shorten(collect_values(view, [thought("a")])) == ["a"]


IDS = st.sampled_from(["a", "b", "c", "0", "1"])
RUNS = st.sampled_from(["run", "run", "child"])
STEPS = st.sampled_from(["1", "2"])
MAYBE = st.none() | IDS
LINKS = st.builds(
    lambda branch_from, revises_id, merges_id: SessionLink(
        session_id="s", number=1, total=9, branch_from=branch_from, revises_id=revises_id, merges_id=merges_id
    ),
    st.none() | st.integers(1, 9),
    MAYBE,
    MAYBE,
)
THOUGHTS = st.builds(
    thought, id=IDS, related_to=MAYBE, tool_call_id=MAYBE, session=st.none() | LINKS, step=STEPS, task_id=RUNS
)
MESSAGES = st.builds(
    lambda ids, **more: message(*ids, **more),
    st.lists(IDS, max_size=3),
    step=STEPS,
    task_id=RUNS,
    finish_reason=st.sampled_from(["stop", "stop", "canceled"]),
)
STARTS = st.builds(
    lambda id, **more: ToolStartEvent(call=ToolCall(id=id, name="work"), idempotency_key="k", **more),
    IDS,
    step=STEPS,
    task_id=RUNS,
)


@given(st.lists(THOUGHTS | MESSAGES | STARTS, max_size=14))
@settings(max_examples=300)
def test_changes_add_up_to_the_graph_after_every_event(events: list[Event]) -> None:
    built, source = RebuiltGraph(), Subject[Event]()
    graph = ThoughtGraph()
    with source.pipe(graph_deltas()).subscribe(built.apply):
        for event in events:
            source.on_next(event)
            graph = graph.add(event)
            assert built.matches(graph)


def test_dangling_references_are_not_searched_repeatedly() -> None:
    graph = ThoughtGraph
    counts: list[int] = []
    plain = graph.grown

    def count_dangling(self: ThoughtGraph, before: ThoughtGraph, dangling: Any = ()) -> Any:
        counts.append(len(list(dangling)))
        return plain(self, before, dangling)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph, "grown", count_dangling)
        deltas(*[thought(f"t{n}", "nowhere") for n in range(200)], thought("nowhere"), thought("nowhere"))
    assert counts == [0] * 200 + [200, 0]


async def graph_from_changes(agent: Agent[None, Any]) -> ThoughtGraph:
    """Build the graph of a run from its changes. Checks that live, late and logged changes agree."""
    log = agent.log
    assert log is not None
    run = agent.run("Go.")
    live = RebuiltGraph()
    run.pipe(op.graph_deltas()).subscribe(live.apply)
    result = await run
    assert len(result.thoughts) > 0
    assert live.matches(result.thoughts)
    late = RebuiltGraph()
    async for delta in run.pipe(op.graph_deltas()):
        late.apply(delta)
    assert late.matches(result.thoughts)
    assert rebuild_matches(await log.read(run.task_id), result.thoughts)
    again = RebuiltGraph()
    async for delta in replay(log, run.task_id).pipe(op.graph_deltas()):
        again.apply(delta)
    assert again.matches(result.thoughts)
    return result.thoughts


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_changes_of_each_strategy_add_up_to_the_graph(case: Case) -> None:
    model = ScriptedModel(*[turn_by_step(case.turns)] * 20)
    await graph_from_changes(Agent(model, tools=[add], strategy=case.strategy(), log=MemoryEventLog()))


async def test_changes_of_a_session_with_revisions_and_branches_add_up_to_the_graph() -> None:
    story = [
        numbered(1, 5),
        numbered(2, 5),
        numbered(3, 5, isRevision=True, revisesThought=1),
        numbered(2, 5, branchFromThought=1, branchId="other"),
        numbered(3, 5, branchId="other"),
        numbered(4, 5, branchFromThought=3, branchId="third"),
        numbered(5, 5, needed=False),
    ]
    model = ScriptedModel(*[call("sequentialthinking", **each) for each in story], "Done.")
    agent = Agent(model, tools=[sequential_thinking("p")], thoughts=False, log=MemoryEventLog())
    assert {"thought", "branch", "revision"} == {edge.kind for edge in (await graph_from_changes(agent)).edges}


async def test_changes_of_a_session_with_a_merged_branch_add_up_to_the_graph() -> None:
    stages = ("branch_evaluation", "branch_selection", "continuation_decision")
    story = [
        *(numbered(number, 9, stage=stage) for number, stage in enumerate(TO_BRANCHES, start=1)),
        numbered(4, 9, stage="branch_development", branchFromThought=3, branchId="b"),
        *(numbered(number, 9, stage=stage, branchId="b") for number, stage in enumerate(stages, start=5)),
        numbered(8, 9, stage="solution_formulation", mergeBranch="b"),
    ]
    model = ScriptedModel(*[call(NAME, **each) for each in story], "Done.")
    agent = Agent(
        model, tools=[strategic_thinking("tree_of_thoughts", session_id="s")], thoughts=False, log=MemoryEventLog()
    )
    assert {"thought", "branch", "merge"} <= {edge.kind for edge in (await graph_from_changes(agent)).edges}


async def test_changes_of_thoughts_and_tool_calls_add_up_to_the_graph() -> None:
    aloud = [
        call("think_aloud", "p", thought="Add.", thought_id="plan", thought_type="planning"),
        call("add", "s1", a=1, b=2),
    ]
    model = ScriptedModel(
        aloud,
        [
            call("think_aloud", "q", thought="Three.", thought_type="observation", related_to="s1"),
            call("think_aloud", "r", thought="On.", thought_type="decision", related_to="plan"),
            call("add", "s1", a=3, b=4),
        ],
        "3 and 7.",
    )
    graph = await graph_from_changes(Agent(model, tools=[add], log=MemoryEventLog()))
    assert {edge.kind for edge in graph.edges} == {"thought", "call"}
