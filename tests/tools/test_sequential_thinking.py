"""The tool `sequentialthinking` in runs: its answers, its events, resume, and the graph."""

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


async def events_of(tool: SequentialThinking, *turns: Any, **options: Any) -> list[Event]:
    model = ScriptedModel(*turns, "Done.")
    return [event async for event in Agent(model, tools=[tool], thoughts=False, **options).run("Think.")]


def calls(*thoughts: dict[str, Any]) -> list[Any]:
    return [call(NAME, **each) for each in thoughts]


def of_type(events: list[Event], kind: type[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


async def test_each_accepted_thought_is_one_event_with_its_place() -> None:
    # T53
    events = await events_of(sequential_thinking("p"), *calls(*STORY))
    thoughts: list[ThoughtStreamEvent] = of_type(events, ThoughtStreamEvent)
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


async def test_a_rejected_thought_is_no_event_and_the_model_reads_why() -> None:
    # T13, T53
    events = await events_of(sequential_thinking("p"), call(NAME, thought="x", thoughtNumber=0, totalThoughts=1))
    (end,) = of_type(events, ToolCompleteEvent)
    said = json.loads(end.content)
    assert (end.success, said["code"]) == (False, "invalid_thought")
    assert list(said["fields"]) == ["nextThoughtNeeded", "thoughtNumber"]
    assert of_type(events, ThoughtStreamEvent) == []


async def test_the_model_reads_a_bounded_text_and_programs_get_all() -> None:
    # T46
    story = [thought(n, 50, text="word " * 80) for n in range(1, 51)]
    tool = sequential_thinking("p")
    events = await events_of(tool, *calls(*story), limits=Limits(iterations=60))
    answers: list[ToolCompleteEvent] = of_type(events, ToolCompleteEvent)
    assert max(len(each.content.encode()) for each in answers) < 400 * 4 + 200
    assert len((await tool.session()).thoughts) == 50
    assert answers[-1].result["thoughtHistoryLength"] == 50
    shown = answers[-1].result["thoughtHistory"]
    assert [each["thoughtNumber"] for each in shown] == list(range(51 - len(shown), 51))
    assert answers[-1].result["earlierThoughts"].startswith(str(50 - len(shown)))


async def test_the_answers_to_twice_as_many_thoughts_take_twice_the_room() -> None:
    # Each answer with the whole history took four times the room.
    async def size(count: int) -> int:
        story = [thought(n, count, text="w" * 500, branchFromThought=1, branchId=f"b{n}") for n in range(1, count + 1)]
        events = await events_of(sequential_thinking("p"), *calls(*story), limits=Limits(iterations=count + 9))
        return sum(len(each.to_json()) for each in of_type(events, ToolCompleteEvent))

    assert await size(160) < 2.2 * await size(80)


async def test_an_unbound_tool_keeps_the_sessions_of_conversations_apart() -> None:
    # T25, T26, T32, T33
    tool = sequential_thinking()
    first = of_type(await events_of(tool, call(NAME, **thought())), ToolCompleteEvent)[0]
    session_id = first.result["sessionId"]
    events = await events_of(tool, call(NAME, **thought(2, sessionId=session_id)), call(NAME, **thought(1)))
    refused, fresh = of_type(events, ToolCompleteEvent)
    assert json.loads(refused.content)["code"] == "unknown_session"
    assert fresh.result["thoughtHistoryLength"] == 1
    with pytest.raises(ConfigurationError, match="bound to no session"):
        await tool.session()


async def test_an_owner_may_be_told_for_each_run() -> None:
    # T33
    tool = sequential_thinking("plan", owner=lambda ctx: ctx.metadata["user"])
    model = ScriptedModel(*calls(thought(1)), "A.", *calls(thought(1), thought(2)), "B.")
    agent = Agent(model, tools=[tool])
    for user in ("ann", "bob"):
        await agent.run("Think.", metadata={"user": user})
    assert [len(await tool.session(owner=user)) for user in ("ann", "bob")] == [1, 2]


async def test_parallel_calls_of_one_message_keep_its_order() -> None:
    # T45
    events = await events_of(sequential_thinking("p"), turn(calls=calls(thought(1), thought(2), thought(3))))
    assert [each.session.number for each in of_type(events, ThoughtStreamEvent)] == [1, 2, 3]
    lengths = [each.result["thoughtHistoryLength"] for each in of_type(events, ToolCompleteEvent)]
    assert lengths == [1, 2, 3]


async def test_three_agents_think_side_by_side() -> None:
    # T34
    sessions = ThinkingSessions(MemoryArtifacts())

    async def run(name: str) -> list[str]:
        tool = sequential_thinking(name, sessions=sessions)
        story = [thought(n, 20, text=f"{name} {n}") for n in range(1, 21)]
        agent = Agent(ScriptedModel(*calls(*story), "Done."), name=name, tools=[tool], limits=Limits(iterations=30))
        result = await agent.run("Think.")
        return [each.content for each in result.thoughts]

    names = ["a", "b", "c"]
    found = await asyncio.gather(*map(run, names))
    assert found == [[f"{name} {n}" for n in range(1, 21)] for name in names]
    assert [each.session_id for each in await sessions.all_sessions()] == names


async def test_going_in_circles_is_an_event() -> None:
    # T54
    same = [thought(n, 5, text="Hm.") for n in range(1, 4)]
    events = await events_of(sequential_thinking("p"), *calls(*same))
    (warning,) = [each for each in of_type(events, CustomEvent) if each.name == "repetition"]
    assert warning.data["thoughtId"] == "p#3"
    assert of_type(events, ToolCompleteEvent)[-1].result["warnings"][0]["code"] == "repetition"


async def test_a_resumed_run_thinks_no_thought_twice() -> None:
    # T44
    sessions, log = ThinkingSessions(MemoryArtifacts()), MemoryEventLog()
    tool = sequential_thinking(sessions=sessions)
    whole = await Agent(ScriptedModel(*calls(*STORY[:1]), "Done."), tools=[tool], log=log).run("Think.")
    events = list(await log.read(whole.task_id))
    start = next(at for at, event in enumerate(events) if event.kind == "tool-start")
    for cut in (start + 1, start + 2):
        # Behind the start of the call, and behind its thought: the thought is stored, its end was never told.
        copy = MemoryEventLog()
        await copy.append(whole.task_id, events[:cut], expected_seq=0)
        result = await Agent(ScriptedModel("Done."), tools=[tool], log=copy).resume(whole.task_id)
        assert [each.thought_id for each in result.thoughts] == [each.thought_id for each in whole.thoughts]
        assert result.messages == whole.messages
    (session,) = await sessions.all_sessions(owner=whole.context_id)
    assert len(session) == 1


async def test_revisions_and_branches_are_edges_of_the_graph() -> None:
    # T53
    graph = ThoughtGraph.of(await events_of(sequential_thinking("p"), *calls(*STORY)))
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


async def test_both_kinds_of_thought_share_a_graph_and_a_view() -> None:
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


async def test_the_tool_can_be_called_outside_a_run() -> None:
    tool = sequential_thinking()
    result = await tool.call(thought(), RunContext())
    assert result.value["thoughtHistoryLength"] == 1
    with pytest.raises(ToolError, match="invalid_thought"):
        await tool.call({}, RunContext())


@pytest.mark.parametrize("options", [{"session_id": " "}, {"text_tokens": 0}])
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        sequential_thinking(**options)


@pytest.mark.parametrize(("phase", "steps"), [("analyze", 1), ("research", 15), ("design", 20)])
async def test_a_phase_ends_with_an_answer(phase: Any, steps: int) -> None:
    # T51, T52
    turns = [*calls(*(thought(n, 99) for n in range(1, steps))), "The answer."]
    model = ScriptedModel(*turns)
    result = await Agent(model, tools=[sequential_thinking("p")]).run("Think.", limits=Limits.phase(phase))
    assert result.output == "The answer."
    assert [request.settings.tool_choice for request in model.requests] == [None] * (steps - 1) + ["none"]


async def test_a_model_that_does_not_conclude_ends_with_the_limit() -> None:
    # T51
    model = ScriptedModel(*calls(*(thought(n, 99) for n in range(1, 30))))
    with pytest.raises(LimitReached) as caught:
        await Agent(model, tools=[sequential_thinking("p")]).run(
            "Think.", limits=Limits.phase("research", tokens=10**6)
        )
    assert caught.value.code == "max_iterations"
    assert len(model.requests) == 15


async def test_an_answer_by_a_tool_is_the_last_tool_that_may_be_called() -> None:
    # T52
    model = ScriptedModel(call("final_answer", value=3))
    result = await Agent(model, output_type=int, output_mode="tool").run("1 + 2", limits=Limits.phase("analyze"))
    assert result.output == 3
    assert model.requests[0].settings.tool_choice == "final_answer"


def test_there_is_no_other_phase() -> None:
    with pytest.raises(ConfigurationError, match="analyze, research, design"):
        Limits.phase("dream")  # pyright: ignore[reportArgumentType]


async def test_thoughts_after_clearing_are_events_with_ids_of_their_own() -> None:
    tool = sequential_thinking("p")
    events = await events_of(tool, *calls(thought(1), thought(2), thought(1, clearSession=True), thought(2)))
    thoughts: list[ThoughtStreamEvent] = of_type(events, ThoughtStreamEvent)
    assert [(each.thought_id, each.related_to) for each in thoughts] == [
        ("p#1", None),
        ("p#2", "p#1"),
        ("p#2.1", None),
        ("p#2.2", "p#2.1"),
    ]
    assert len(await tool.session()) == 2
