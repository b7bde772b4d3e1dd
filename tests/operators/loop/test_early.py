"""Read-only tools that start before the message of the model is complete: `op.run_tools(early=True)`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from reactivex import Observable

from rxloop import (
    Agent,
    ContentCompleteEvent,
    CustomEvent,
    Event,
    MemoryEventLog,
    ModelRequest,
    Operator,
    PendingInput,
    ProviderError,
    RunContext,
    Signal,
    ToolCall,
    ToolCallDeltaEvent,
    ToolCompleteEvent,
    ToolRequest,
    ToolVoidedEvent,
    op,
    tool,
)
from rxloop.protocol.events import LLMFailedEvent
from rxloop.protocol.messages import ErrorInfo
from rxloop.stream.sources import Push, from_task
from rxloop.testing import virtual_time
from rxloop.tools import GoalChange, GoalsUpdatedEvent, update_goals
from support.runs import collect, copy_first_events, format_marbles, outcome

Piece = float | Event | Exception


class SlowModel:
    """Model that emits events and errors at given times."""

    name = "writing"

    def __init__(self, *turns: Sequence[Piece]) -> None:
        self._turns = list(turns)
        self.requests: list[ModelRequest] = []

    def call(self, request: ModelRequest) -> Observable[Event]:
        async def work(push: Push[Event]) -> None:
            self.requests.append(request)
            for piece in self._turns[len(self.requests) - 1]:
                if isinstance(piece, Exception):
                    raise piece
                if isinstance(piece, Event):
                    push(piece.model_copy())
                else:
                    await asyncio.sleep(piece)

        return from_task(work, request.ctx, name="writing", shielded=True)

    async def aclose(self) -> None:
        """Do nothing."""


def delta(index: int, fragment: str, name: str = "look", call_id: str | None = None) -> Event:
    return ToolCallDeltaEvent(index=index, tool_call_id=call_id or f"c{index}", name=name, fragment=fragment)


def message(*arguments: str, name: str = "look", text: str = "") -> Event:
    calls = [ToolCall.parse(f"c{index}", name, raw) for index, raw in enumerate(arguments)]
    return ContentCompleteEvent(content=text, tool_calls=calls, finish_reason="tool_calls" if calls else "stop")


ANSWER: list[Piece] = [message(text="Blue.")]


class LookTool:
    """Read-only tool that takes two seconds and records when it is called and cancelled."""

    def __init__(self, **overrides: Any) -> None:
        options: Any = {"read_only": True, **overrides}
        self.starts: list[tuple[str, float]] = []
        self.cancellations: list[tuple[str, float]] = []

        @tool(**options)
        async def look(ctx: RunContext, at: str) -> str:
            """Look at something."""
            time = asyncio.get_running_loop().time
            self.starts.append((at, time()))
            ctx.progress(f"looking at the {at}")
            try:
                await asyncio.sleep(2.0)
            except asyncio.CancelledError:
                self.cancellations.append((at, time()))
                raise
            return f"{at} is blue"

        self.tool = look


def make_loop(early: bool = True, **operators: Any) -> list[Operator[Any]]:
    return op.standard(early=early, **operators)


def run_agent(
    looks: LookTool, *turns: Sequence[Piece], early: bool = True, operators: Any = None, **options: Any
) -> tuple[list[Event], float]:
    """Return the events of a run with the tool, and the time at which the run ended."""
    with virtual_time() as time:
        agent = Agent(SlowModel(*turns), tools=[looks.tool], loop=make_loop(early, **(operators or {})), thoughts=False)
        events = time.run(collect(agent.run("Look.", **options)))
        return events, time.now


def describe_events(events: Sequence[Event]) -> list[str]:
    """Describe the durable events."""
    return [f"{event.kind}: {event.describe()}" for event in events if event.durable]


SEA = '{"at": "sea"}'
LONG: list[Piece] = [1.0, delta(0, '{"at": '), delta(0, '"sea"}'), 3.0, message(SEA)]
"""Arguments that arrive after one second, and a message that is complete three seconds later."""


def test_call_starts_before_the_message_is_complete() -> None:
    late, early = LookTool(), LookTool()
    events, end = run_agent(late, LONG, ANSWER, early=False)
    sooner, sooner_end = run_agent(early, LONG, ANSWER)
    assert late.starts == [("sea", 4.0)]
    assert end == 6.0
    assert early.starts == [("sea", 1.0)]
    assert sooner_end == 4.0
    # Order and numbers are the same as without early calls.
    assert describe_events(sooner) == describe_events(events)
    assert format_marbles(sooner) == format_marbles(events) == "twlcsxklckF"
    assert [event.seq for event in sooner if event.durable] == [event.seq for event in events if event.durable]
    progress = [event.kind for event in sooner].index("tool-progress")
    assert sooner[progress - 1].kind == "tool-start"
    (done,) = [event for event in sooner if isinstance(event, ToolCompleteEvent)]
    assert done.duration == 2.0


def test_early_call_continues_as_a_normal_call_when_its_message_arrives() -> None:
    looks = LookTool()
    events, end = run_agent(looks, [1.0, delta(0, SEA), 0.5, message(SEA)], ANSWER)
    assert looks.starts == [("sea", 1.0)]
    assert end == 3.0
    assert format_marbles(events) == "twlcsxklckF"


def test_call_does_not_start_early_by_default() -> None:
    looks = LookTool()
    run_agent(looks, LONG, ANSWER, early=False)
    assert looks.starts == [("sea", 4.0)]


@pytest.mark.parametrize(
    "options", [{"read_only": False}, {"read_only": False, "idempotent": True}, {"approve": True}], ids=str
)
def test_tool_that_has_effects_or_needs_approval_does_not_start_early(options: dict[str, Any]) -> None:
    looks = LookTool(**options)
    run_agent(looks, LONG, ANSWER, on_input=lambda question: True)
    assert looks.starts == [("sea", 4.0)]


def test_tool_without_a_read_only_attribute_does_not_start_early() -> None:
    looks = LookTool()

    class Other:
        definition = looks.tool.definition
        timeout = None
        idempotent = True
        approve = False

        def enabled(self, ctx: RunContext[Any]) -> bool:
            return True

        async def call(self, arguments: dict[str, Any], ctx: RunContext[Any]) -> Any:
            return await looks.tool.call(arguments, ctx)

    with virtual_time() as time:
        time.run(Agent(SlowModel(LONG, ANSWER), tools=[Other()], loop=make_loop()).run("Look."))
    assert looks.starts == [("sea", 4.0)]


def test_tool_that_was_not_offered_does_not_start() -> None:
    @op.on(ModelRequest)
    async def no_tools(request: ModelRequest, ctx: RunContext) -> AsyncIterator[Signal]:
        yield request.replace(tools=())

    looks = LookTool()
    events, _ = run_agent(looks, LONG, ANSWER, operators={"before_model": [no_tools]})
    assert looks.starts == []
    assert format_marbles(events) == "twlcxklckF"


DISCARDED = "tool-voided: look(at='sea')"


def test_early_call_is_cancelled_and_discarded_when_its_message_fails() -> None:
    looks = LookTool()
    broken: list[Piece] = [1.0, delta(0, SEA), 1.0, ProviderError("the line is cut")]
    with virtual_time() as time:
        run = Agent(SlowModel(broken), tools=[looks.tool], loop=make_loop(), thoughts=False).run("Look.")
        result = time.run(outcome(run))
        events = time.run(collect(run))
    assert result.state == "failed"
    assert looks.cancellations == [("sea", 2.0)]
    assert format_marbles(events) == "twleVcF"
    assert [event.to_public() for event in events if isinstance(event, ToolVoidedEvent)] == [None]


def test_early_call_of_a_failed_request_is_not_reused_by_the_next_request() -> None:
    looks = LookTool()
    failed = LLMFailedEvent(error=ErrorInfo(code="server", message="once more"), retryable=True)
    again: list[Piece] = [1.0, delta(0, SEA), 0.5, failed, 1.0, delta(0, SEA), 0.5, message(SEA)]
    events, _ = run_agent(looks, again, ANSWER)
    assert looks.starts == [("sea", 1.0), ("sea", 2.5)]
    assert looks.cancellations == [("sea", 1.5)]
    assert format_marbles(events) == "twleVcsxklckF"


@pytest.mark.parametrize(
    ("final", "expected"),
    [
        (message('{"at": "sky"}'), ["sea", "sky"]),
        (message(SEA, name="watch"), ["sea"]),
        (message(text="Never mind."), ["sea"]),
        (message(SEA, '{"at": "sky"}'), ["sea", "sky"]),
    ],
    ids=["other arguments", "another tool", "no call", "the same and another"],
)
def test_early_call_missing_from_the_message_is_discarded(final: Event, expected: list[str]) -> None:
    looks = LookTool()
    events, _ = run_agent(looks, [1.0, delta(0, SEA), 1.0, final], ANSWER)
    assert [at for at, _ in looks.starts] == expected
    is_retained = isinstance(final, ContentCompleteEvent) and len(final.tool_calls) == 2
    assert looks.cancellations == ([] if is_retained else [("sea", 2.0)])
    assert describe_events(events).count(DISCARDED) == (not is_retained)


def test_early_call_is_discarded_when_a_guard_refuses_it() -> None:
    @op.on(ToolRequest)
    async def refuse(request: ToolRequest, ctx: RunContext) -> AsyncIterator[Signal]:
        yield request.refuse("Not the sea.")
        await asyncio.sleep(10.0)

    looks = LookTool()
    events, _ = run_agent(looks, [1.0, delta(0, SEA), 1.0, message(SEA)], ANSWER, operators={"before_tools": [refuse]})
    assert looks.cancellations == [("sea", 2.0)]
    assert format_marbles(events) == "twlcxVklckF"
    assert "blue" not in str([event.to_json() for event in events[:-3]])


def test_early_call_is_replaced_when_a_guard_changes_its_arguments() -> None:
    @op.on(ToolRequest)
    async def change(request: ToolRequest, ctx: RunContext) -> AsyncIterator[Signal]:
        yield request.replace(at="sky")

    looks = LookTool()
    events, _ = run_agent(looks, [1.0, delta(0, SEA), 1.0, message(SEA)], ANSWER, operators={"before_tools": [change]})
    assert looks.starts == [("sea", 1.0), ("sky", 2.0)]
    assert looks.cancellations == [("sea", 2.0)]
    assert format_marbles(events) == "twlcVsxklckF"


def test_guard_that_delays_a_request_delays_all_events_of_its_call() -> None:
    @op.on(ToolRequest)
    async def hold(request: ToolRequest, ctx: RunContext) -> AsyncIterator[Signal]:
        await asyncio.sleep(5.0)
        yield request

    looks = LookTool()
    with virtual_time() as time:
        agent = Agent(SlowModel(LONG, ANSWER), tools=[looks.tool], loop=make_loop(before_tools=[hold]), thoughts=False)
        seen: list[tuple[str, float]] = []

        async def watch() -> None:
            seen.extend([(event.kind, time.now) async for event in agent.run("Look.")])

        time.run(watch())
    assert [(kind, at) for kind, at in seen if kind.startswith("tool-") and kind != "tool-call-delta"] == [
        ("tool-start", 9.0),
        ("tool-progress", 9.0),
        ("tool-complete", 9.0),
    ]


def test_cancelled_run_records_nothing_of_an_early_call() -> None:
    looks = LookTool()
    with virtual_time() as time:
        run = Agent(SlowModel(LONG), tools=[looks.tool], loop=make_loop(), thoughts=False).run("Look.")
        time.at(2.0, run.cancel)
        time.run(outcome(run))
        events = time.run(collect(run))
        assert time.now == 2.0
    assert looks.cancellations == [("sea", 2.0)]
    assert format_marbles(events) == "twlcF"


def test_cancelled_run_closes_the_call_when_its_message_is_complete() -> None:
    looks = LookTool()
    with virtual_time() as time:
        run = Agent(SlowModel([1.0, delta(0, SEA), message(SEA)]), tools=[looks.tool], loop=make_loop()).run("Look.")
        time.at(2.0, run.cancel)
        time.run(outcome(run))
        events = time.run(collect(run))
    assert looks.cancellations == [("sea", 2.0)]
    assert format_marbles(events) == "twlcsxF"


def test_early_call_is_discarded_when_its_message_is_interrupted() -> None:
    looks = LookTool()
    with virtual_time() as time:
        run = Agent(SlowModel(LONG, ANSWER), tools=[looks.tool], loop=make_loop(), thoughts=False).run("Look.")
        time.at(2.0, lambda: run.send("Stop.", interrupt=True))
        time.run(run)
        events = time.run(collect(run))
    assert looks.cancellations == [("sea", 2.0)]
    assert describe_events(events).count(DISCARDED) == 1


def test_question_of_an_early_call_waits_until_the_call_is_recorded() -> None:
    times: list[float] = []

    @tool(read_only=True)
    async def look(ctx: RunContext, at: str) -> str:
        """Look at something."""
        return "blue" if await ctx.ask(f"The {at}?") else "no"

    def answer(question: PendingInput) -> bool:
        times.append(asyncio.get_running_loop().time())
        return True

    async def answer_here(question: PendingInput) -> bool:
        return answer(question)

    with virtual_time() as time:
        run = Agent(SlowModel(LONG, ANSWER), tools=[look], loop=make_loop(), thoughts=False).run(
            "Look.", on_input=answer_here
        )
        events = time.run(collect(run))
    assert times == [4.0]
    assert format_marbles(events) == "twlcsirxklckF".replace(
        "i", format_marbles([e for e in events if e.kind == "input-required"])
    )


def test_early_call_releases_its_permit_while_it_waits_for_a_person() -> None:  # P24
    starts: list[tuple[str, float]] = []

    @tool(read_only=True)
    async def look(ctx: RunContext, at: str) -> str:
        """Look at something."""
        starts.append((at, asyncio.get_running_loop().time()))
        return "blue" if at == "sky" or await ctx.ask(f"The {at}?") else "no"

    async def answer(question: PendingInput) -> bool:
        await asyncio.sleep(5)
        return True

    with virtual_time() as time:
        both: list[Piece] = [1.0, delta(0, SEA), 3.0, message(SEA, '{"at": "sky"}')]
        operators = [op.call_model(), op.run_tools(concurrency=1, early=True), op.checkpoint()]
        run = Agent(SlowModel(both, ANSWER), tools=[look], loop=operators, thoughts=False).run("Look.", on_input=answer)
        time.run(run)
        assert time.now == 9.0
    assert starts == [("sea", 1.0), ("sky", 4.0)]


def test_question_of_an_early_call_pauses_the_run_and_its_answer_resumes_it() -> None:
    @tool(read_only=True)
    async def look(ctx: RunContext, at: str) -> str:
        """Look at something."""
        return "blue" if await ctx.ask(f"The {at}?") else "no"

    log = MemoryEventLog()
    with virtual_time() as time:
        agent = Agent(SlowModel(LONG, ANSWER), tools=[look], loop=make_loop(), log=log, thoughts=False)
        paused = time.run(agent.run("Look."))
        assert [question.input_id for question in paused.pending] == ["1.0.1"]
        result = time.run(agent.resume(paused.task_id, inputs={"1.0.1": True}))
    assert result.output == "Blue."


def test_resumption_after_a_crash_is_the_same_with_early_calls() -> None:
    def final_outputs(early: bool) -> list[str]:
        looks = LookTool()
        log = MemoryEventLog()
        with virtual_time() as time:
            agent = Agent(SlowModel(LONG, ANSWER), tools=[looks.tool], loop=make_loop(early), log=log, thoughts=False)
            run = agent.run("Look.")
            time.run(run)
            count = len(time.run(log.read(run.task_id)))
            out: list[str] = []
            for length in range(2, count):
                cancellations = time.run(copy_first_events(log, run.task_id, length))
                model = SlowModel(ANSWER, ANSWER) if length > 3 else SlowModel(LONG, ANSWER)
                again = Agent(model, tools=[looks.tool], loop=make_loop(early), log=cancellations, thoughts=False)
                time.run(outcome(again.resume(run.task_id)))
                out.append(format_marbles(time.run(cancellations.read(run.task_id))))
            return out

    assert final_outputs(early=True) == final_outputs(early=False)


def test_early_calls_respect_the_concurrency_limit() -> None:
    looks = LookTool()
    args = [f'{{"at": "{n}"}}' for n in range(4)]
    pieces: list[Piece] = [part for n, raw in enumerate(args) for part in (1.0, delta(n, raw))]
    places = [op.call_model(), op.run_tools(concurrency=2, early=True), op.checkpoint()]
    with virtual_time() as time:
        agent = Agent(SlowModel([*pieces, 1.0, message(*args)], ANSWER), tools=[looks.tool], loop=places)
        time.run(agent.run("Look."))
    assert looks.starts == [("0", 1.0), ("1", 2.0), ("2", 5.0), ("3", 5.0)]


def test_interleaved_argument_deltas_are_assigned_to_their_calls() -> None:  # L55
    looks = LookTool()
    turns: list[Piece] = [
        *(delta(0, '{"at"'), delta(1, '{"at"'), 1.0, delta(0, ': "sea"'), delta(1, ': "{sky}"}'), 1.0),
        *(delta(0, "}"), 1.0, message(SEA, '{"at": "{sky}"}')),
    ]
    events, _ = run_agent(looks, turns, ANSWER)
    assert sorted(looks.starts) == [("sea", 2.0), ("{sky}", 1.0)]
    assert DISCARDED not in describe_events(events)


@pytest.mark.parametrize("raw", ['{"at": "}"}', '{"at": "{"}', "{}{}", '"{\\"at\\": \\"sea\\"}"', "[{}]"])
def test_call_with_ambiguous_arguments_starts_with_its_message(raw: str) -> None:
    looks = LookTool()
    turns = [1.0, *(delta(0, letter) for letter in raw), 1.0, message(raw)]
    events, _ = run_agent(looks, turns, ANSWER)
    assert all(start == 2.0 for _, start in looks.starts)
    # The first object is a placeholder of some vendors that precedes the arguments.
    assert format_marbles(events) in ("twlcVxklckF" if raw == "{}{}" else "twlcsxklckF", "twlcxklckF")


def test_invalid_event_of_an_early_call_fails_the_call_and_not_the_run() -> None:
    @tool(read_only=True)
    async def look(ctx: RunContext, at: str) -> str:
        """Look at something."""
        ctx.emit(CustomEvent(name="mine").model_copy(update={"timestamp": 10**18}))
        return at

    with virtual_time() as time:
        events = time.run(
            collect(Agent(SlowModel(LONG, ANSWER), tools=[look], loop=make_loop(), thoughts=False).run("Look."))
        )
    (done,) = [event for event in events if isinstance(event, ToolCompleteEvent)]
    assert not done.success
    assert format_marbles(events) == "twlcsxklckF"


def test_early_calls_keep_the_goals_of_each_other() -> None:
    @tool(read_only=True)
    def look(ctx: RunContext, at: str) -> str:
        """Look at something."""
        update_goals(ctx, {"id": at, "title": "See it"})
        goals = update_goals(ctx, {"id": at, "status": "active"}, {"id": "all", "title": at, "depends_on": [at]})
        return " ".join(goal.id for goal in goals)

    turns = [delta(0, SEA), 1.0, delta(1, '{"at": "sky"}'), 1.0, message(SEA, '{"at": "sky"}')]
    with virtual_time() as time:
        agent = Agent(SlowModel(turns, ANSWER), tools=[look], loop=make_loop(), thoughts=False)
        events = time.run(collect(agent.run("Look.")))
    updates = [event for event in events if isinstance(event, GoalsUpdatedEvent)]
    assert [[goal.id for goal in update.goals] for update in updates] == [["sea", "all"], ["sea", "all", "sky"]]
    assert [goal.title for goal in updates[-1].goals] == ["See it", "sky", "See it"]
    assert [event.content for event in events if isinstance(event, ToolCompleteEvent)] == ["sea all", "sky all"]
    assert format_marbles(events) == "twlcsGxsGxklckF"


def test_early_call_does_not_publish_unchanged_goals() -> None:
    @tool(read_only=True)
    async def look(ctx: RunContext, at: str) -> str:
        """Look at something."""
        return " ".join(goal.id for goal in update_goals(ctx, {"id": "sea", "title": "See it"}))

    with virtual_time() as time:
        model = SlowModel([delta(0, SEA), 1.0, message(SEA)], ANSWER)
        loop = make_loop(before_model=[op.goals({"id": "sea", "title": "See it"})])
        events = time.run(collect(Agent(model, tools=[look], loop=loop, thoughts=False).run("Look.")))
    assert [event.content for event in events if isinstance(event, ToolCompleteEvent)] == ["sea"]
    assert len([event for event in events if isinstance(event, GoalsUpdatedEvent)]) == 1


def test_discarded_early_call_changes_no_goals() -> None:
    @tool(read_only=True)
    async def look(ctx: RunContext, at: str) -> str:
        """Look at something."""
        update_goals(ctx, {"id": at, "title": "See it"})
        return at

    with virtual_time() as time:
        model = SlowModel([delta(0, SEA), 1.0, message('{"at": "sky"}')], ANSWER)
        run = Agent(model, tools=[look], loop=make_loop(), thoughts=False).run("Look.")
        events = time.run(collect(run))
    updates = [event for event in events if isinstance(event, GoalsUpdatedEvent)]
    assert [[goal.id for goal in update.goals] for update in updates] == [["sky"]]


def test_early_call_fails_when_its_goals_have_become_invalid() -> None:
    plan: list[GoalChange] = [{"id": "sea", "title": "See it"}, {"id": "sky", "title": "See it"}]

    @tool(read_only=True)
    async def look(ctx: RunContext, at: str) -> str:
        """Look at something."""
        update_goals(ctx, {"id": at, "parent": "sky" if at == "sea" else "sea"})
        return at

    with virtual_time() as time:
        turns = [delta(0, SEA), 1.0, delta(1, '{"at": "sky"}'), 1.0, message(SEA, '{"at": "sky"}')]
        loop = make_loop(before_model=[op.goals(*plan)])
        events = time.run(collect(Agent(SlowModel(turns, ANSWER), tools=[look], loop=loop).run("Look.")))
    first, second = [event for event in events if isinstance(event, ToolCompleteEvent)]
    assert first.success
    assert second.error is not None
    assert "goals must not wait for themselves" in second.error


def test_discarded_call_is_hidden_when_its_tool_is_hidden() -> None:
    looks = LookTool(hidden=True)
    turns = [1.0, delta(0, SEA), 1.0, message('{"at": "sky"}')]
    events, _ = run_agent(looks, turns, ANSWER)
    (void,) = [event for event in events if isinstance(event, ToolVoidedEvent)]
    assert void.call.hidden
    assert looks.cancellations == [("sea", 2.0)]


async def test_read_only_tool_is_idempotent() -> None:
    looks = LookTool()
    assert looks.tool.read_only
    assert looks.tool.idempotent


@pytest.mark.parametrize("finish", ["length", "content_filter", "weird"])
def test_early_call_is_discarded_when_its_message_is_incomplete(finish: str) -> None:  # P1
    looks = LookTool()
    incomplete = message(SEA).model_copy(update={"finish_reason": finish})
    events, _ = run_agent(looks, [1.0, delta(0, SEA), 1.0, incomplete], ANSWER)
    assert looks.cancellations == [("sea", 2.0)]
    assert [event.kind for event in events if "tool" in event.kind and event.durable] == [
        "tool-complete",
        "tool-voided",
    ]
