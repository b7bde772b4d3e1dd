"""`op.run_tools(early=True)`: read-only tools begin while the model still writes, and nobody can tell by the stream."""

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
from support.runs import collect, copy_first_events, marble_letters, outcome

Piece = float | Event | Exception


class Writing:
    """A model that takes its time to write: seconds, what it sends then, and errors."""

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
        """Nothing to close."""


def piece(index: int, fragment: str, name: str = "look", call_id: str | None = None) -> Event:
    return ToolCallDeltaEvent(index=index, tool_call_id=call_id or f"c{index}", name=name, fragment=fragment)


def message(*arguments: str, name: str = "look", text: str = "") -> Event:
    calls = [ToolCall.parse(f"c{index}", name, raw) for index, raw in enumerate(arguments)]
    return ContentCompleteEvent(content=text, tool_calls=calls, finish_reason="tool_calls" if calls else "stop")


SAID: list[Piece] = [message(text="Blue.")]


class Looks:
    """A read-only tool that takes two seconds, and when it was called and cut off."""

    def __init__(self, **given: Any) -> None:
        options: Any = {"read_only": True, **given}
        self.begun: list[tuple[str, float]] = []
        self.cut: list[tuple[str, float]] = []

        @tool(**options)
        async def look(ctx: RunContext, at: str) -> str:
            """Look at something."""
            time = asyncio.get_running_loop().time
            self.begun.append((at, time()))
            ctx.progress(f"looking at the {at}")
            try:
                await asyncio.sleep(2.0)
            except asyncio.CancelledError:
                self.cut.append((at, time()))
                raise
            return f"{at} is blue"

        self.tool = look


def loop(early: bool = True, **places: Any) -> list[Operator[Any]]:
    return op.standard(early=early, **places)


def play(
    looks: Looks, *turns: Sequence[Piece], early: bool = True, places: Any = None, **options: Any
) -> tuple[list[Event], float]:
    """Run an agent with that tool; its events, and when it ended."""
    with virtual_time() as time:
        agent = Agent(Writing(*turns), tools=[looks.tool], loop=loop(early, **(places or {})), thoughts=False)
        events = time.run(collect(agent.run("Look.", **options)))
        return events, time.now


def told(events: Sequence[Event]) -> list[str]:
    """What events say, without deltas."""
    return [f"{event.kind}: {event.describe()}" for event in events if event.durable]


SEA = '{"at": "sea"}'
LONG: list[Piece] = [1.0, piece(0, '{"at": '), piece(0, '"sea"}'), 3.0, message(SEA)]
"""The arguments are written after a second, the message is complete three seconds later."""


def test_a_call_begins_while_the_model_still_writes() -> None:
    late, early = Looks(), Looks()
    events, end = play(late, LONG, SAID, early=False)
    sooner, sooner_end = play(early, LONG, SAID)
    assert (late.begun, end) == ([("sea", 4.0)], 6.0)
    assert (early.begun, sooner_end) == ([("sea", 1.0)], 4.0)
    # Order and numbers are those of a run that starts nothing early.
    assert told(sooner) == told(events)
    assert marble_letters(sooner) == marble_letters(events) == "twlcsxklckF"
    assert [event.seq for event in sooner if event.durable] == [event.seq for event in events if event.durable]
    progress = [event.kind for event in sooner].index("tool-progress")
    assert sooner[progress - 1].kind == "tool-start"
    (done,) = [event for event in sooner if isinstance(event, ToolCompleteEvent)]
    assert done.duration == 2.0


def test_it_goes_on_as_any_other_call_where_the_message_is_complete_before_it() -> None:
    looks = Looks()
    events, end = play(looks, [1.0, piece(0, SEA), 0.5, message(SEA)], SAID)
    assert (looks.begun, end) == ([("sea", 1.0)], 3.0)
    assert marble_letters(events) == "twlcsxklckF"


def test_nothing_begins_early_where_nobody_asks_for_it() -> None:
    looks = Looks()
    play(looks, LONG, SAID, early=False)
    assert looks.begun == [("sea", 4.0)]


@pytest.mark.parametrize(
    "options", [{"read_only": False}, {"read_only": False, "idempotent": True}, {"approve": True}], ids=str
)
def test_a_tool_that_changes_something_or_needs_approval_never_begins_early(options: dict[str, Any]) -> None:
    looks = Looks(**options)
    play(looks, LONG, SAID, on_input=lambda question: True)
    assert looks.begun == [("sea", 4.0)]


def test_a_tool_that_says_nothing_of_it_never_begins_early() -> None:
    looks = Looks()

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
        time.run(Agent(Writing(LONG, SAID), tools=[Other()], loop=loop()).run("Look."))
    assert looks.begun == [("sea", 4.0)]


def test_a_tool_that_was_not_offered_never_begins() -> None:
    @op.on(ModelRequest)
    async def no_tools(request: ModelRequest, ctx: RunContext) -> AsyncIterator[Signal]:
        yield request.replace(tools=())

    looks = Looks()
    events, _ = play(looks, LONG, SAID, places={"before_model": [no_tools]})
    assert looks.begun == []
    assert marble_letters(events) == "twlcxklckF"


VOID = "tool-voided: look(at='sea')"


def test_a_call_of_a_message_that_breaks_off_is_cancelled_and_leaves_one_event() -> None:
    looks = Looks()
    broken: list[Piece] = [1.0, piece(0, SEA), 1.0, ProviderError("the line is cut")]
    with virtual_time() as time:
        run = Agent(Writing(broken), tools=[looks.tool], loop=loop(), thoughts=False).run("Look.")
        result = time.run(outcome(run))
        events = time.run(collect(run))
    assert result.state == "failed"
    assert looks.cut == [("sea", 2.0)]
    assert marble_letters(events) == "twleVcF"
    assert [event.to_public() for event in events if isinstance(event, ToolVoidedEvent)] == [None]


def test_a_call_of_a_request_that_failed_is_not_taken_for_one_of_the_next() -> None:
    looks = Looks()
    failed = LLMFailedEvent(error=ErrorInfo(code="server", message="once more"), retryable=True)
    again: list[Piece] = [1.0, piece(0, SEA), 0.5, failed, 1.0, piece(0, SEA), 0.5, message(SEA)]
    events, _ = play(looks, again, SAID)
    assert looks.begun == [("sea", 1.0), ("sea", 2.5)]
    assert looks.cut == [("sea", 1.5)]
    assert marble_letters(events) == "twleVcsxklckF"


@pytest.mark.parametrize(
    ("final", "called"),
    [
        (message('{"at": "sky"}'), ["sea", "sky"]),
        (message(SEA, name="watch"), ["sea"]),
        (message(text="Never mind."), ["sea"]),
        (message(SEA, '{"at": "sky"}'), ["sea", "sky"]),
    ],
    ids=["other arguments", "another tool", "no call", "the same and another"],
)
def test_a_call_that_the_message_does_not_have_is_void(final: Event, called: list[str]) -> None:
    looks = Looks()
    events, _ = play(looks, [1.0, piece(0, SEA), 1.0, final], SAID)
    assert [at for at, _ in looks.begun] == called
    kept = isinstance(final, ContentCompleteEvent) and len(final.tool_calls) == 2
    assert looks.cut == ([] if kept else [("sea", 2.0)])
    assert told(events).count(VOID) == (not kept)


def test_a_guard_that_refuses_voids_the_call() -> None:
    @op.on(ToolRequest)
    async def refuse(request: ToolRequest, ctx: RunContext) -> AsyncIterator[Signal]:
        yield request.refuse("Not the sea.")
        await asyncio.sleep(10.0)

    looks = Looks()
    events, _ = play(looks, [1.0, piece(0, SEA), 1.0, message(SEA)], SAID, places={"before_tools": [refuse]})
    assert looks.cut == [("sea", 2.0)]
    assert marble_letters(events) == "twlcxVklckF"
    assert "blue" not in str([event.to_json() for event in events[:-3]])


def test_a_guard_that_changes_the_arguments_gets_what_it_asks_for() -> None:
    @op.on(ToolRequest)
    async def change(request: ToolRequest, ctx: RunContext) -> AsyncIterator[Signal]:
        yield request.replace(at="sky")

    looks = Looks()
    events, _ = play(looks, [1.0, piece(0, SEA), 1.0, message(SEA)], SAID, places={"before_tools": [change]})
    assert looks.begun == [("sea", 1.0), ("sky", 2.0)]
    assert looks.cut == [("sea", 2.0)]
    assert marble_letters(events) == "twlcVsxklckF"


def test_a_guard_that_holds_a_request_holds_all_that_its_call_says() -> None:
    @op.on(ToolRequest)
    async def hold(request: ToolRequest, ctx: RunContext) -> AsyncIterator[Signal]:
        await asyncio.sleep(5.0)
        yield request

    looks = Looks()
    with virtual_time() as time:
        agent = Agent(Writing(LONG, SAID), tools=[looks.tool], loop=loop(before_tools=[hold]), thoughts=False)
        seen: list[tuple[str, float]] = []

        async def watch() -> None:
            seen.extend([(event.kind, time.now) async for event in agent.run("Look.")])

        time.run(watch())
    assert [(kind, at) for kind, at in seen if kind.startswith("tool-") and kind != "tool-call-delta"] == [
        ("tool-start", 9.0),
        ("tool-progress", 9.0),
        ("tool-complete", 9.0),
    ]


def test_a_run_that_is_cancelled_leaves_nothing_of_a_call() -> None:
    looks = Looks()
    with virtual_time() as time:
        run = Agent(Writing(LONG), tools=[looks.tool], loop=loop(), thoughts=False).run("Look.")
        time.at(2.0, run.cancel)
        time.run(outcome(run))
        events = time.run(collect(run))
        assert time.now == 2.0
    assert looks.cut == [("sea", 2.0)]
    assert marble_letters(events) == "twlcF"


def test_a_run_that_is_cancelled_later_closes_the_call_as_any_other() -> None:
    looks = Looks()
    with virtual_time() as time:
        run = Agent(Writing([1.0, piece(0, SEA), message(SEA)]), tools=[looks.tool], loop=loop()).run("Look.")
        time.at(2.0, run.cancel)
        time.run(outcome(run))
        events = time.run(collect(run))
    assert looks.cut == [("sea", 2.0)]
    assert marble_letters(events) == "twlcsxF"


def test_a_message_that_is_interrupted_voids_the_call() -> None:
    looks = Looks()
    with virtual_time() as time:
        run = Agent(Writing(LONG, SAID), tools=[looks.tool], loop=loop(), thoughts=False).run("Look.")
        time.at(2.0, lambda: run.send("Stop.", interrupt=True))
        time.run(run)
        events = time.run(collect(run))
    assert looks.cut == [("sea", 2.0)]
    assert told(events).count(VOID) == 1


def test_a_call_is_asked_for_before_it_asks_anybody() -> None:
    asked: list[float] = []

    @tool(read_only=True)
    async def look(ctx: RunContext, at: str) -> str:
        """Look at something."""
        return "blue" if await ctx.ask(f"The {at}?") else "no"

    def answer(question: PendingInput) -> bool:
        asked.append(asyncio.get_running_loop().time())
        return True

    async def answer_here(question: PendingInput) -> bool:
        return answer(question)

    with virtual_time() as time:
        run = Agent(Writing(LONG, SAID), tools=[look], loop=loop(), thoughts=False).run("Look.", on_input=answer_here)
        events = time.run(collect(run))
    assert asked == [4.0]
    assert marble_letters(events) == "twlcsirxklckF".replace(
        "i", marble_letters([e for e in events if e.kind == "input-required"])
    )


def test_an_early_call_that_waits_for_a_person_leaves_its_place_to_another() -> None:  # P24
    begun: list[tuple[str, float]] = []

    @tool(read_only=True)
    async def look(ctx: RunContext, at: str) -> str:
        """Look at something."""
        begun.append((at, asyncio.get_running_loop().time()))
        return "blue" if at == "sky" or await ctx.ask(f"The {at}?") else "no"

    async def answer(question: PendingInput) -> bool:
        await asyncio.sleep(5)
        return True

    with virtual_time() as time:
        both: list[Piece] = [1.0, piece(0, SEA), 3.0, message(SEA, '{"at": "sky"}')]
        operators = [op.call_model(), op.run_tools(concurrency=1, early=True), op.checkpoint()]
        run = Agent(Writing(both, SAID), tools=[look], loop=operators, thoughts=False).run("Look.", on_input=answer)
        time.run(run)
        assert time.now == 9.0
    assert begun == [("sea", 1.0), ("sky", 4.0)]


def test_a_question_pauses_the_run_and_the_answer_resumes_it() -> None:
    @tool(read_only=True)
    async def look(ctx: RunContext, at: str) -> str:
        """Look at something."""
        return "blue" if await ctx.ask(f"The {at}?") else "no"

    log = MemoryEventLog()
    with virtual_time() as time:
        agent = Agent(Writing(LONG, SAID), tools=[look], loop=loop(), log=log, thoughts=False)
        paused = time.run(agent.run("Look."))
        assert [question.input_id for question in paused.pending] == ["1.0.1"]
        result = time.run(agent.resume(paused.task_id, inputs={"1.0.1": True}))
    assert result.output == "Blue."


def test_a_crash_resumes_as_without() -> None:
    def ends(early: bool) -> list[str]:
        looks = Looks()
        log = MemoryEventLog()
        with virtual_time() as time:
            agent = Agent(Writing(LONG, SAID), tools=[looks.tool], loop=loop(early), log=log, thoughts=False)
            run = agent.run("Look.")
            time.run(run)
            count = len(time.run(log.read(run.task_id)))
            out: list[str] = []
            for length in range(2, count):
                cut = time.run(copy_first_events(log, run.task_id, length))
                model = Writing(SAID, SAID) if length > 3 else Writing(LONG, SAID)
                again = Agent(model, tools=[looks.tool], loop=loop(early), log=cut, thoughts=False)
                time.run(outcome(again.resume(run.task_id)))
                out.append(marble_letters(time.run(cut.read(run.task_id))))
            return out

    assert ends(early=True) == ends(early=False)


def test_no_more_calls_run_at_once_than_may() -> None:
    looks = Looks()
    args = [f'{{"at": "{n}"}}' for n in range(4)]
    pieces: list[Piece] = [part for n, raw in enumerate(args) for part in (1.0, piece(n, raw))]
    places = [op.call_model(), op.run_tools(concurrency=2, early=True), op.checkpoint()]
    with virtual_time() as time:
        agent = Agent(Writing([*pieces, 1.0, message(*args)], SAID), tools=[looks.tool], loop=places)
        time.run(agent.run("Look."))
    assert looks.begun == [("0", 1.0), ("1", 2.0), ("2", 5.0), ("3", 5.0)]


def test_pieces_that_come_in_turn_belong_to_their_calls() -> None:  # L55
    looks = Looks()
    turns: list[Piece] = [
        *(piece(0, '{"at"'), piece(1, '{"at"'), 1.0, piece(0, ': "sea"'), piece(1, ': "{sky}"}'), 1.0),
        *(piece(0, "}"), 1.0, message(SEA, '{"at": "{sky}"}')),
    ]
    events, _ = play(looks, turns, SAID)
    assert sorted(looks.begun) == [("sea", 2.0), ("{sky}", 1.0)]
    assert VOID not in told(events)


@pytest.mark.parametrize("raw", ['{"at": "}"}', '{"at": "{"}', "{}{}", '"{\\"at\\": \\"sea\\"}"', "[{}]"])
def test_what_only_looks_complete_begins_with_its_message(raw: str) -> None:
    looks = Looks()
    turns = [1.0, *(piece(0, letter) for letter in raw), 1.0, message(raw)]
    events, _ = play(looks, turns, SAID)
    assert all(begun == 2.0 for _, begun in looks.begun)
    # The first is the placeholder of some vendors, whose arguments come behind it.
    assert marble_letters(events) in ("twlcVxklckF" if raw == "{}{}" else "twlcsxklckF", "twlcxklckF")


def test_an_event_that_the_run_cannot_take_fails_the_call_and_not_the_run() -> None:
    @tool(read_only=True)
    async def look(ctx: RunContext, at: str) -> str:
        """Look at something."""
        ctx.emit(CustomEvent(name="mine").model_copy(update={"timestamp": 10**18}))
        return at

    with virtual_time() as time:
        events = time.run(collect(Agent(Writing(LONG, SAID), tools=[look], loop=loop(), thoughts=False).run("Look.")))
    (done,) = [event for event in events if isinstance(event, ToolCompleteEvent)]
    assert not done.success
    assert marble_letters(events) == "twlcsxklckF"


def test_a_call_is_hidden_where_its_tool_is() -> None:
    looks = Looks(hidden=True)
    turns = [1.0, piece(0, SEA), 1.0, message('{"at": "sky"}')]
    events, _ = play(looks, turns, SAID)
    (void,) = [event for event in events if isinstance(event, ToolVoidedEvent)]
    assert void.call.hidden
    assert looks.cut == [("sea", 2.0)]


async def test_a_tool_that_only_reads_may_be_called_again() -> None:
    looks = Looks()
    assert looks.tool.read_only
    assert looks.tool.idempotent


@pytest.mark.parametrize("finish", ["length", "content_filter", "weird"])
def test_early_call_is_voided_when_its_message_is_incomplete(finish: str) -> None:  # P1
    looks = Looks()
    incomplete = message(SEA).model_copy(update={"finish_reason": finish})
    events, _ = play(looks, [1.0, piece(0, SEA), 1.0, incomplete], SAID)
    assert looks.cut == [("sea", 2.0)]
    assert [event.kind for event in events if "tool" in event.kind and event.durable] == [
        "tool-complete",
        "tool-voided",
    ]
