"""Tool `sequentialthinking` in runs: results, events, resumption and graph."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from rxloop import (
    Agent,
    CustomEvent,
    Event,
    LimitReached,
    Limits,
    MemoryEventLog,
    RunContext,
    ThoughtGraph,
    ThoughtStreamEvent,
    ToolCompleteEvent,
    op,
    sequential_thinking,
)
from rxloop.errors import ConfigurationError, ToolError
from rxloop.protocol.events import from_json
from rxloop.storage import MemoryArtifacts
from rxloop.testing import ScriptedModel, call, turn
from rxloop.thinking import ThinkingSessions
from rxloop.tools.sequential_thinking import SequentialThinking
from support.sequential_thoughts import thought

NAME = "sequentialthinking"
STORY = (
    thought(1, 4),
    thought(2, 4),
    thought(3, 4, isRevision=True, revisesThought=1),
    thought(2, 4, branchFromThought=1, branchId="other"),
    thought(3, 4, branchId="other", needed=False),
)


async def run_events(tool: SequentialThinking, *turns: Any, **options: Any) -> list[Event]:
    model = ScriptedModel(*turns, "Done.")
    return [event async for event in Agent(model, tools=[tool], thoughts=False, **options).run("Think.")]


def make_calls(*thoughts: dict[str, Any]) -> list[Any]:
    return [call(NAME, **each) for each in thoughts]


def filter_events(events: list[Event], kind: type[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


async def test_accepted_thought_is_an_event_with_its_position() -> None:
    # T53
    events = await run_events(sequential_thinking("p"), *make_calls(*STORY))
    thoughts: list[ThoughtStreamEvent] = filter_events(events, ThoughtStreamEvent)
    assert [(each.thought_id, each.related_to, each.source) for each in thoughts] == [
        ("p#1", None, "sequential"),
        ("p#2", "p#1", "sequential"),
        ("p#3", "p#2", "sequential"),
        ("p#4", "p#1", "sequential"),
        ("p#5", "p#4", "sequential"),
    ]
    places = [each.session.model_dump(exclude_none=True) for each in thoughts if each.session is not None]
    base = {"sessionId": "p", "total": 4, "nextThoughtNeeded": True}
    assert places == [
        {**base, "number": 1},
        {**base, "number": 2},
        {**base, "number": 3, "revises": 1, "revisesId": "p#1"},
        {**base, "number": 2, "branchId": "other", "branchFrom": 1},
        {**base, "number": 3, "branchId": "other", "nextThoughtNeeded": False},
    ]
    assert [from_json(each.to_json()) for each in thoughts] == thoughts


async def test_rejected_thought_is_no_event_and_the_model_gets_the_reason() -> None:
    # T13, T53
    events = await run_events(sequential_thinking("p"), call(NAME, thought="x", thoughtNumber=0, totalThoughts=1))
    (end,) = filter_events(events, ToolCompleteEvent)
    error = json.loads(end.content)
    assert end.success is False
    assert error["code"] == "invalid_thought"
    assert list(error["fields"]) == ["nextThoughtNeeded", "thoughtNumber"]
    assert filter_events(events, ThoughtStreamEvent) == []


async def test_model_gets_a_limited_history_and_programs_get_all() -> None:
    # T46
    story = [thought(n, 50, text="word " * 80) for n in range(1, 51)]
    tool = sequential_thinking("p")
    events = await run_events(tool, *make_calls(*story), limits=Limits(iterations=60))
    answers: list[ToolCompleteEvent] = filter_events(events, ToolCompleteEvent)
    assert max(len(each.content.encode()) for each in answers) < 400 * 4 + 200
    assert len((await tool.session()).thoughts) == 50
    assert answers[-1].result["thoughtHistoryLength"] == 50
    visible = answers[-1].result["thoughtHistory"]
    assert [each["thoughtNumber"] for each in visible] == list(range(51 - len(visible), 51))
    assert answers[-1].result["earlierThoughts"].startswith(str(50 - len(visible)))


async def test_size_of_all_results_grows_linearly_with_the_thoughts() -> None:
    # With the whole history in each result, twice as many thoughts needed four times the space.
    async def measure_results(count: int) -> int:
        story = [thought(n, count, text="w" * 500, branchFromThought=1, branchId=f"b{n}") for n in range(1, count + 1)]
        events = await run_events(sequential_thinking("p"), *make_calls(*story), limits=Limits(iterations=count + 9))
        return sum(len(each.to_json()) for each in filter_events(events, ToolCompleteEvent))

    assert await measure_results(160) < 2.2 * await measure_results(80)


async def test_sessions_of_an_unbound_tool_are_separate_per_conversation() -> None:
    # T25, T26, T32, T33
    tool = sequential_thinking()
    first = filter_events(await run_events(tool, call(NAME, **thought())), ToolCompleteEvent)[0]
    session_id = first.result["sessionId"]
    events = await run_events(tool, call(NAME, **thought(2, sessionId=session_id)), call(NAME, **thought(1)))
    refused, fresh = filter_events(events, ToolCompleteEvent)
    assert json.loads(refused.content)["code"] == "unknown_session"
    assert fresh.result["thoughtHistoryLength"] == 1
    with pytest.raises(ConfigurationError, match="not bound to a session"):
        await tool.session()


async def test_owner_may_depend_on_the_run() -> None:
    # T33
    tool = sequential_thinking("plan", owner=lambda ctx: ctx.metadata["user"])
    model = ScriptedModel(*make_calls(thought(1)), "A.", *make_calls(thought(1), thought(2)), "B.")
    agent = Agent(model, tools=[tool])
    for user in ("ann", "bob"):
        await agent.run("Think.", metadata={"user": user})
    assert [len(await tool.session(owner=user)) for user in ("ann", "bob")] == [1, 2]


async def test_parallel_calls_of_a_message_keep_their_order() -> None:
    # T45
    events = await run_events(sequential_thinking("p"), turn(calls=make_calls(thought(1), thought(2), thought(3))))
    assert [each.session.number for each in filter_events(events, ThoughtStreamEvent)] == [1, 2, 3]
    lengths = [each.result["thoughtHistoryLength"] for each in filter_events(events, ToolCompleteEvent)]
    assert lengths == [1, 2, 3]


async def test_sessions_of_three_concurrent_agents_are_separate() -> None:
    # T34
    sessions = ThinkingSessions(MemoryArtifacts())

    async def run(name: str) -> list[str]:
        tool = sequential_thinking(name, sessions=sessions)
        story = [thought(n, 20, text=f"{name} {n}") for n in range(1, 21)]
        agent = Agent(
            ScriptedModel(*make_calls(*story), "Done."), name=name, tools=[tool], limits=Limits(iterations=30)
        )
        result = await agent.run("Think.")
        return [each.content for each in result.thoughts]

    names = ["a", "b", "c"]
    contents = await asyncio.gather(*map(run, names))
    assert contents == [[f"{name} {n}" for n in range(1, 21)] for name in names]
    assert [each.session_id for each in await sessions.all_sessions()] == names


async def test_repetition_is_an_event() -> None:
    # T54
    same = [thought(n, 5, text="Hm.") for n in range(1, 4)]
    events = await run_events(sequential_thinking("p"), *make_calls(*same))
    (warning,) = [each for each in filter_events(events, CustomEvent) if each.name == "repetition"]
    assert warning.data["thoughtId"] == "p#3"
    assert filter_events(events, ToolCompleteEvent)[-1].result["warnings"][0]["code"] == "repetition"


async def test_resumed_run_stores_no_thought_twice() -> None:
    # T44
    sessions, log = ThinkingSessions(MemoryArtifacts()), MemoryEventLog()
    tool = sequential_thinking(sessions=sessions)
    first_result = await Agent(ScriptedModel(*make_calls(*STORY[:1]), "Done."), tools=[tool], log=log).run("Think.")
    events = list(await log.read(first_result.task_id))
    start = next(at for at, event in enumerate(events) if event.kind == "tool-start")
    for event_count in (start + 1, start + 2):
        # Crash after the call has started, or after its thought was stored without a result.
        copy = MemoryEventLog()
        await copy.append(first_result.task_id, events[:event_count], expected_seq=0)
        result = await Agent(ScriptedModel("Done."), tools=[tool], log=copy).resume(first_result.task_id)
        assert [each.thought_id for each in result.thoughts] == [each.thought_id for each in first_result.thoughts]
        assert result.messages == first_result.messages
    (session,) = await sessions.all_sessions(owner=first_result.context_id)
    assert len(session) == 1


async def test_revisions_and_branches_are_edges_of_the_graph() -> None:
    # T53
    graph = ThoughtGraph.of(await run_events(sequential_thinking("p"), *make_calls(*STORY)))
    assert [tuple(edge) for edge in graph.edges] == [
        ("p#1", "p#2", "thought"),
        ("p#2", "p#3", "thought"),
        ("p#1", "p#3", "revision"),
        ("p#1", "p#4", "branch"),
        ("p#4", "p#5", "thought"),
    ]
    assert graph.tree().splitlines() == [
        "reasoning 1/4: thought 1",
        "├─ reasoning 2/4: thought 2",
        "│  └─ reflection 3/4, revises 1: thought 3",
        "└─ reasoning 2/4 on other: thought 2",
        "   └─ reasoning 3/4 on other: thought 3",
    ]
    assert "-. revised .->" in graph.to_mermaid()
    assert "== branch ==>" in graph.to_mermaid()
    assert "style=dashed" in graph.to_dot()
    assert "style=bold" in graph.to_dot()
    assert {edge["kind"] for edge in json.loads(graph.to_json())["edges"]} == {"thought", "revision", "branch"}
    page = graph.to_html()
    assert page.count('class="revision"') == 1
    assert page.count('class="branch"') == 1


async def test_both_kinds_of_thoughts_share_a_graph_and_a_view() -> None:
    model = ScriptedModel(
        turn(
            calls=[
                call("think_aloud", thought="Plan.", thought_type="planning", thought_id="plan"),
                call(NAME, **thought(1)),
            ]
        ),
        "Done.",
    )
    run = Agent(model, tools=[sequential_thinking("p")]).run("Think.")
    sources = [each.source async for each in run.pipe(op.thoughts())]
    assert sources == ["tool", "sequential"]
    assert [each.thought_id for each in (await run).thoughts] == ["plan", "p#1"]


async def test_tool_can_be_called_outside_a_run() -> None:
    tool = sequential_thinking()
    result = await tool.call(thought(), RunContext())
    assert result.value["thoughtHistoryLength"] == 1
    with pytest.raises(ToolError, match="invalid_thought"):
        await tool.call({}, RunContext())


@pytest.mark.parametrize("options", [{"session_id": " "}, {"text_tokens": 0}])
def test_invalid_option_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        sequential_thinking(**options)


@pytest.mark.parametrize(("phase", "steps"), [("analyze", 1), ("research", 15), ("design", 20)])
async def test_phase_ends_with_an_answer(phase: Any, steps: int) -> None:
    # T51, T52
    turns = [*make_calls(*(thought(n, 99) for n in range(1, steps))), "The answer."]
    model = ScriptedModel(*turns)
    result = await Agent(model, tools=[sequential_thinking("p")]).run("Think.", limits=Limits.phase(phase))
    assert result.output == "The answer."
    assert [request.settings.tool_choice for request in model.requests] == [None] * (steps - 1) + ["none"]


async def test_model_that_does_not_conclude_ends_with_the_limit() -> None:
    # T51
    model = ScriptedModel(*make_calls(*(thought(n, 99) for n in range(1, 30))))
    with pytest.raises(LimitReached) as caught:
        await Agent(model, tools=[sequential_thinking("p")]).run(
            "Think.", limits=Limits.phase("research", tokens=10**6)
        )
    assert caught.value.code == "max_iterations"
    assert len(model.requests) == 15


async def test_answer_tool_is_the_last_tool_that_may_be_called() -> None:
    # T52
    model = ScriptedModel(call("final_answer", value=3))
    result = await Agent(model, output_type=int, output_mode="tool").run("1 + 2", limits=Limits.phase("analyze"))
    assert result.output == 3
    assert model.requests[0].settings.tool_choice == "final_answer"


def test_unknown_phase_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="analyze, research, design"):
        Limits.phase("dream")  # pyright: ignore[reportArgumentType]


async def test_thoughts_after_clearing_have_new_ids() -> None:
    tool = sequential_thinking("p")
    events = await run_events(tool, *make_calls(thought(1), thought(2), thought(1, clearSession=True), thought(2)))
    thoughts: list[ThoughtStreamEvent] = filter_events(events, ThoughtStreamEvent)
    assert [(each.thought_id, each.related_to) for each in thoughts] == [
        ("p#1", None),
        ("p#2", "p#1"),
        ("p#2.1", None),
        ("p#2.2", "p#2.1"),
    ]
    assert len(await tool.session()) == 2
