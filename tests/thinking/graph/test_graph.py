import re
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxloop.protocol.events import (
    ContentCompleteEvent,
    ContentDeltaEvent,
    Event,
    SubtaskEvent,
    ThoughtStreamEvent,
    ToolStartEvent,
)
from rxloop.protocol.messages import ToolCall
from rxloop.thinking.graph import Edge, ThoughtGraph
from support.graph_events import message, thought


def list_ids(nodes: Any) -> list[str]:
    return [node.thought_id if isinstance(node, ThoughtStreamEvent) else node.id for node in nodes]


def test_edge_starts_at_the_related_thought_or_call() -> None:  # L19
    graph = ThoughtGraph.of([thought("plan"), message("c1"), thought("step", "plan"), thought("seen", "c1")])
    assert graph.edges == (Edge("plan", "step", "thought"), Edge("c1", "seen", "call"))
    assert [list_ids(chain) for chain in graph.chains()] == [["plan", "step"], ["c1", "seen"]]


def test_graph_is_a_sequence_of_its_thoughts() -> None:
    events = [thought("a"), ContentDeltaEvent(delta="x"), message("c"), thought("b"), thought("c")]
    graph = ThoughtGraph.of(events)
    assert list(graph) == list(graph.thoughts) == [events[0], events[3], events[4]]
    assert len(graph) == 3
    assert (graph["b"], graph[0], graph[-1], graph[1:]) == (events[3], events[0], events[4], (events[3], events[4]))
    assert "b" in graph
    assert events[3] in graph
    assert "z" not in graph
    assert list_ids(graph.calls) == ["c"]
    assert repr(graph) == "<ThoughtGraph of 3 thoughts and 1 calls>"
    with pytest.raises(KeyError, match="z"):
        graph["z"]


def test_empty_graph_supports_every_operation() -> None:
    graph = ThoughtGraph.of([])
    assert (len(graph), list(graph), graph.edges, graph.calls, graph.chains(), graph.tree()) == (0, [], (), (), [], "")
    assert graph.to_mermaid() == "flowchart TD\n"
    assert graph.to_dot() == "digraph thoughts {\n    node [shape=box];\n}\n"
    assert orjson.loads(graph.to_json()) == {"nodes": [], "edges": []}


def test_shared_empty_graph_stays_empty() -> None:
    empty = ThoughtGraph()
    assert len(empty.add(thought("a"))) == 1
    assert empty._store.nodes == []


def test_tree_shows_thoughts_and_calls_below_their_sources() -> None:
    events = [
        message("t", "oslo", "bergen"),
        thought("plan", content="Compare\n both in Celsius.", thought_type="planning", step="1", tool_call_id="t"),
        message("t", step="2"),
        thought("see", "oslo", confidence=0.9, thought_type="observation", step="2", tool_call_id="t"),
        thought("so", "see", content="x" * 90, thought_type="decision", step="3"),
        thought("lost", "gone"),
        message("alone", step="4"),
    ]
    assert ThoughtGraph.of(events).tree() == "\n".join([
        "planning plan: Compare both in Celsius.",
        '├─ weather oslo: {"city":"oslo"}',
        "│  └─ observation see: about see (0.9)",
        f"│     └─ decision so: {'x' * 79}…",
        '└─ weather bergen: {"city":"bergen"}',
        "thinking lost: about lost [refers to gone, which is not here]",
    ])  # fmt: skip
    assert "x…" in ThoughtGraph.of(events).tree(width=9)


def test_canceled_message_has_no_calls() -> None:
    assert ThoughtGraph.of([message("c", finish_reason="canceled")]).calls == ()


def test_call_is_taken_from_its_start_event_when_the_message_is_missing() -> None:
    call = ToolCall(id="c", name="weather")
    start = ToolStartEvent(call=call, idempotency_key="k", step="1")
    assert ThoughtGraph.of([start, start]).calls == (call,)
    assert len(ThoughtGraph.of([message("c"), start]).calls) == 1
    assert len(ThoughtGraph.of([message("c", step="0"), start]).calls) == 2


def test_reference_may_precede_its_target() -> None:
    graph = ThoughtGraph.of([thought("b", "a"), thought("a")])
    assert graph.edges == (("a", "b", "thought"),)
    assert graph.tree() == "thinking a: about a\n└─ thinking b: about b"


def test_repeated_id_refers_to_its_latest_earlier_use() -> None:
    graph = ThoughtGraph.of([
        thought("x", content="1"), thought("p", "x"), message("x"), thought("q", "x"),
        thought("x", content="2"), thought("r", "x"),
    ])  # fmt: skip
    assert [(edge.target, edge.kind) for edge in graph.edges] == [("p", "thought"), ("q", "call"), ("r", "thought")]
    assert graph["x"].content == "2"
    assert ("1", "about p") in [tuple(getattr(node, "content", "") for node in chain) for chain in graph.chains()]


def test_reference_to_a_thinking_call_leads_to_its_thought() -> None:  # L20
    graph = ThoughtGraph.of([message("c1"), thought("a", tool_call_id="c1", step="1"), thought("b", "c1")])
    assert graph.edges == (("a", "b", "thought"),)
    assert graph.tree() == "thinking a: about a\n└─ thinking b: about b"


def test_reused_call_id_does_not_refer_to_the_own_call() -> None:
    graph = ThoughtGraph.of([message("0"), message("0", step="2"), thought("a", "0", tool_call_id="0", step="2")])
    assert graph.edges == (("0", "a", "call"),)
    alone = ThoughtGraph.of([message("0", step="2"), thought("a", "0", tool_call_id="0", step="2")])
    assert (alone.edges, alone.tree()) == ((), "thinking a: about a [refers to itself]")


def test_thought_related_to_itself_is_a_root() -> None:
    graph = ThoughtGraph.of([thought("a", "a")])
    assert (graph.edges, list_ids(graph.chains()[0])) == ((), ["a"])
    assert graph.tree() == "thinking a: about a [refers to itself]"


def test_cycle_starts_at_its_first_thought() -> None:
    graph = ThoughtGraph.of([thought("a", "c"), thought("b", "a"), thought("c", "b"), thought("d", "b")])
    assert len(graph.edges) == 4
    assert [list_ids(chain) for chain in graph.chains()] == [["a", "b", "c"], ["a", "b", "d"]]
    assert graph.tree() == "\n".join([
        "thinking a: about a [circle: c]",
        "└─ thinking b: about b",
        "   ├─ thinking c: about c",
        "   └─ thinking d: about d",
    ])  # fmt: skip


def test_thought_may_refer_to_a_call_of_its_own_message() -> None:
    graph = ThoughtGraph.of([message("c1"), thought("a", "c1", step="1")])
    assert graph.tree() == 'weather c1: {"city":"c1"}\n└─ thinking a: about a'


def test_nested_run_is_drawn_below_its_call() -> None:
    started = SubtaskEvent(subtask_id="child", agent_name="buyer", tool_call_id="ask", task_id="parent", step="1")
    inner = [
        thought("plan", task_id="child", parent_task_id="parent", step="1"),
        thought("so", "plan", task_id="child", parent_task_id="parent", step="2"),
        thought("lost", "gone", task_id="child", parent_task_id="parent", step="3"),
    ]
    events = [thought("plan", task_id="parent", step="1"), message("ask", task_id="parent"), started, *inner]
    graph = ThoughtGraph.of(events)
    assert graph.tree().splitlines() == [
        "thinking plan: about plan",
        '└─ weather ask: {"city":"ask"}',
        "   ├─ thinking plan: about plan",
        "   │  └─ thinking so: about so",
        "   └─ thinking lost: about lost [refers to gone, which is not here]",
    ]
    assert graph.to_mermaid().splitlines()[-4:] == [
        "    n2 --> n3",
        "    n0 -.-> n1",
        "    n1 -.-> n2",
        "    n1 -.-> n4",
    ]
    assert "    n1 -> n2 [style=dotted];" in graph.to_dot()
    assert graph.edges == (Edge("plan", "so", "thought"),)
    # A version that diverged from an older one contains the call, too.
    older = ThoughtGraph.of(events[:3])
    assert older.add(thought("other")).add(inner[0]).tree().count("│") == 0
    assert older.add(inner[0]).tree().splitlines()[2] == "   └─ thinking plan: about plan"


def test_nested_run_of_a_hidden_call_is_drawn_without_the_call() -> None:
    call = ToolCall(id="ask", name="buyer", arguments={}, hidden=True)
    request = ContentCompleteEvent(tool_calls=[call], task_id="parent", step="1")
    started = SubtaskEvent(subtask_id="child", agent_name="buyer", tool_call_id="ask", task_id="parent", step="1")
    inner = thought("plan", task_id="child", parent_task_id="parent", step="1")
    graph = ThoughtGraph.of([thought("top", task_id="parent", step="1"), request, started, inner])
    assert graph.tree().splitlines() == ["thinking top: about top", "thinking plan: about plan"]
    assert "-.->" not in graph.to_mermaid()


def test_nested_runs_do_not_share_ids() -> None:
    graph = ThoughtGraph.of([thought("t1", task_id="child"), thought("t2", "t1", task_id="parent")])
    assert graph.edges == ()


def test_older_version_is_unchanged_and_can_diverge() -> None:
    first = ThoughtGraph.of([thought("a"), message("c")])
    one = first.add(thought("b", "a"))
    other = first.add(thought("x", "c"))
    later = one.add(thought("x", "b"))
    assert (list_ids(first), list_ids(one), list_ids(other), list_ids(later)) == (
        ["a"],
        ["a", "b"],
        ["a", "x"],
        ["a", "b", "x"],
    )
    assert first.edges == ()
    assert other.edges == (("c", "x", "call"),)
    assert later.edges == (("a", "b", "thought"), ("b", "x", "thought"))
    assert "thinking b" not in other.tree()


def test_forward_reference_is_unresolved_in_earlier_versions() -> None:
    early = ThoughtGraph.of([thought("b", "a")])
    late = early.add(thought("a"))
    assert (early.edges, late.edges) == ((), (("a", "b", "thought"),))


def test_irrelevant_event_returns_the_same_graph() -> None:
    graph = ThoughtGraph.of([thought("a")])
    assert graph.add(ContentDeltaEvent(delta="x")) is graph
    assert graph.add(ContentCompleteEvent(content="done")) is graph


def test_versions_share_their_storage() -> None:
    versions = [ThoughtGraph(), ThoughtGraph.of([thought("t0")])]
    for n in range(1, 2000):
        versions.append(versions[-1].add(thought(f"t{n}", f"t{n - 1}")))
    assert len({id(version._store) for version in versions[1:]}) == 1
    assert len(versions[7]) == 7
    assert len(versions[-1].chains()[0]) == 2000
    assert versions[-1].tree(width=1).count("\n") == 1999


NASTY = '"quotes" [b] {c} <br> #35; `code` style x:#y; %%{init}%% a&quot; \\N \\" end\nsubgraph z --> y;\x00\u2028'


def test_mermaid_escapes_labels() -> None:
    graph = ThoughtGraph.of([message('c"1'), thought("a]\nb", 'c"1', content=NASTY)])
    lines = graph.to_mermaid().splitlines()
    assert lines[0] == "flowchart TD"
    assert re.fullmatch(r'    n0\{\{"[\w ,\'()/?!#;<>]*"\}\}', lines[1])
    assert re.fullmatch(r'    n1\["[\w ,\'()/?!#;<>]*"\]', lines[2])
    assert lines[3:] == ["    n0 --> n1"]
    text = lines[2].split('"')[1]
    assert text.count("<") == text.count("<br/>") == 1
    decoded = re.sub(r"#(\d+);", lambda found: chr(int(found.group(1))), text)
    shown = NASTY.replace("\n", " ").replace("\x00", " ").replace("\u2028", " ").strip()
    assert decoded == f"thinking a] b<br/>{shown}"


def test_dot_escapes_labels() -> None:
    graph = ThoughtGraph.of([message('c"1'), thought("a]\nb", 'c"1', content=NASTY)])
    lines = graph.to_dot().splitlines()
    assert len(lines) == 6
    for line, shape in ((lines[2], ", shape=hexagon"), (lines[3], "")):
        assert re.fullmatch(rf'    n\d \[label="(?:[^"\\]|\\["\\n])*"{shape}\];', line)
    assert lines[4:] == ["    n0 -> n1;", "}"]
    assert "&amp;quot;" in lines[3]


def test_json_contains_all_fields_and_edges() -> None:
    graph = ThoughtGraph.of(
        [message("c1"), thought("a", "c1", content=NASTY, confidence=0.5, index=0, alternatives=["z"])]
    )
    assert orjson.loads(graph.to_json()) == {
        "nodes": [
            {"key": "n0", "kind": "call", "id": "c1", "name": "weather", "arguments": {"city": "c1"}},
            {
                "key": "n1", "kind": "thought", "id": "a", "thoughtType": "thinking", "content": NASTY, "index": 0,
                "verbosity": "normal", "confidence": 0.5, "relatedTo": "c1", "alternatives": ["z"], "source": "tool",
                "toolCallId": None,
                "name": "a",
                "session": None,
            },
        ],
        "edges": [{"from": "n0", "to": "n1", "kind": "call"}],
    }  # fmt: skip


IDS = st.sampled_from(["a", "b", "c", "d", "0", "1"])
THOUGHTS = st.builds(
    thought,
    id=IDS,
    related_to=st.none() | IDS,
    content=st.text(),
    tool_call_id=st.none() | IDS,
    step=st.sampled_from(["1", "2"]),
)
MESSAGES = st.builds(
    ContentCompleteEvent,
    tool_calls=st.lists(st.builds(ToolCall, id=IDS, name=st.just("work")), max_size=3),
    step=st.sampled_from(["1", "2"]),
)
EVENTS: st.SearchStrategy[list[Event]] = st.lists(THOUGHTS | MESSAGES, max_size=12)


@given(EVENTS)
def test_tree_contains_each_thought_once_for_any_references(events: list[Event]) -> None:
    graph = ThoughtGraph.of(events)
    numbered = ThoughtGraph.of(
        event.model_copy(update={"content": f"«{n}»"}) if isinstance(event, ThoughtStreamEvent) else event
        for n, event in enumerate(events)
    )
    marks = re.findall("«\\d+»", numbered.tree())
    assert sorted(marks) == sorted(each.content for each in numbered)
    assert {node.content for chain in numbered.chains() for node in chain if isinstance(node, ThoughtStreamEvent)} == {
        *marks
    }
    for chain in graph.chains():
        assert len({id(node) for node in chain}) == len(chain)
    assert len(graph.tree().split("\n")) >= len(graph)


@given(EVENTS, st.text())
def test_diagrams_have_one_line_per_node_and_edge(events: list[Event], content: str) -> None:
    graph = ThoughtGraph.of([*events, thought("last", content=content or "x")])
    data = orjson.loads(graph.to_json())
    assert {edge["from"] for edge in data["edges"]} <= {node["key"] for node in data["nodes"]}
    assert len(data["edges"]) == len(graph.edges)
    mermaid = graph.to_mermaid().splitlines()
    nodes = [line for line in mermaid if re.match(r" +n\d+[\[{]", line)]
    placed = [line for line in mermaid if re.fullmatch(r" +n\d+ -\.-> n\d+", line)]
    assert len(nodes) >= len(data["nodes"])
    assert len(mermaid) == 1 + len(nodes) + len(data["edges"]) + len(placed)
    assert len(graph.to_dot().splitlines()) == len(mermaid) + 2


@given(EVENTS, EVENTS)
def test_diverging_versions_are_independent(first: list[Event], more: list[Event]) -> None:
    before = ThoughtGraph.of(first)
    drawn = before.to_json(), before.tree()
    after = before
    for event in more:
        after = after.add(event)
    again = before
    for event in reversed(more):
        again = again.add(event)
    assert (before.to_json(), before.tree()) == drawn
    assert after.to_json() == ThoughtGraph.of([*first, *more]).to_json()
    assert again.to_json() == ThoughtGraph.of([*first, *reversed(more)]).to_json()


def make_turn(run: str, *events: Event, context: str = "c") -> list[Event]:
    return [event.model_copy(update={"task_id": run, "context_id": context}) for event in events]


def test_thought_may_refer_to_an_earlier_run_of_its_conversation() -> None:
    first = make_turn("1", thought("plan"), message("look"))
    second = make_turn("2", thought("step", "plan"), thought("seen", "look"), thought("plan"), thought("end", "plan"))
    graph = ThoughtGraph.of([*first, *second])
    assert [(edge.source, edge.target) for edge in graph.edges] == [("plan", "step"), ("look", "seen"), ("plan", "end")]
    assert [first[0], second[0]] in graph.chains()
    assert [second[2], second[3]] in graph.chains()
    assert ThoughtGraph.of(first).grown(ThoughtGraph())[1] == []
    assert len(graph.grown(ThoughtGraph.of(first))[1]) == 3
    alone = ThoughtGraph.of(make_turn("2", thought("step", "plan")))
    assert alone.tree() == "thinking step: about step [refers to plan, which is not here]"


def test_references_do_not_leave_the_conversation_or_the_agent() -> None:
    first = make_turn("1", thought("plan"))
    elsewhere = make_turn("2", thought("step", "plan"), context="d")
    nested = [event.model_copy(update={"parent_task_id": "3"}) for event in make_turn("4", thought("sub", "plan"))]
    assert ThoughtGraph.of([*first, *elsewhere, *nested]).edges == ()
