"""Forked runs."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from rxloop import (
    Agent,
    ConfigurationError,
    ContentCompleteEvent,
    Event,
    Limits,
    LLMCallEvent,
    MemoryEventLog,
    Message,
    MessageAddedEvent,
    RunCancelled,
    RunContext,
    StatusUpdateEvent,
    TaskEvent,
    ToolCompleteEvent,
    ToolStartEvent,
    tool,
)
from rxloop.errors import UnknownRun
from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.events import normalise
from rxloop.run import fork as forks
from rxloop.state import fold
from rxloop.state.history import INTERRUPTED
from rxloop.state.run_state import RunState
from rxloop.testing import ScriptedModel, call, virtual_time
from support.fork_shop import Shop, find_seq
from support.runs import collect, format_marbles, is_well_formed, outcome, shape
from support.two_branches import two_branches


def equals_apart_from_ids(event: Event, superseded: Event) -> bool:
    """True if two events are equal apart from the ids of their runs."""
    ids = {"task_id": "", "context_id": ""}
    return event.model_copy(update=ids) == superseded.model_copy(update=ids)


EVENT_COUNT = 18


@pytest.mark.parametrize("at", range(1, EVENT_COUNT + 1))
async def test_fork_at_any_event_keeps_the_prefix_and_completes(shop: Shop, at: int) -> None:
    parent = await shop.buy()
    before = await shop.log.read(parent)
    assert len(before) == EVENT_COUNT
    parallel_calls = [call("pay", "p", amount=5), call("look", "l", n=1)]
    prefix_steps = {event.step for event in before[:at] if isinstance(event, ContentCompleteEvent)}
    turns = [parallel_calls, "Bought."][len(prefix_steps) :]

    run = shop.agent(*turns).fork(parent, at)
    events = await collect(run)
    result = await run

    # Forks are separate runs that name their parent.
    assert run.task_id != parent
    assert run.context_id != before[0].context_id
    assert {(event.task_id, event.context_id) for event in events} == {(run.task_id, run.context_id)}
    first = events[0]
    assert isinstance(first, TaskEvent)
    assert (first.fork_of, first.fork_seq) == (parent, at)

    # The copied prefix precedes an attempt that records the fork point.
    assert all(
        equals_apart_from_ids(event, superseded) for event, superseded in zip(events[1:at], before[1:at], strict=True)
    )
    working = events[at]
    assert isinstance(working, StatusUpdateEvent)
    assert (working.state, working.resumed) == ("working", True)
    assert (working.after_seq, working.attempt) == (at, 2)
    assert [event.seq for event in events if event.durable] == list(range(1, events[-1].seq + 1))
    assert list(await shop.log.read(run.task_id)) == [event for event in events if event.durable]

    # Only later steps and calls that had not started are executed.
    assert {event.step for event in events[at:] if isinstance(event, LLMCallEvent)} == {"1", "2"} - prefix_steps
    copied_indexes = {event.index for event in before[:at] if isinstance(event, ToolStartEvent)}
    answered = {event.index for event in before[:at] if isinstance(event, ToolCompleteEvent)}
    # `think_aloud`, the first call of the original run, is idempotent.
    repeated = copied_indexes & {0} - answered
    started_indexes = {event.index for event in events[at:] if isinstance(event, ToolStartEvent)}
    assert started_indexes == set(range(3 if prefix_steps else 2)) - copied_indexes | repeated
    assert result.output == "Bought."
    assert len(shop.model.requests) == len(turns)
    assert is_well_formed(result.messages)

    # The parent is unchanged.
    assert await shop.log.read(parent) == before


async def test_prompt_replaces_the_user_message_when_forked_at_the_first_event(shop: Shop) -> None:
    parent = await shop.buy()

    run = shop.agent("Sold.").fork(parent, 1, prompt="Sell it")
    events = await collect(run)

    assert shop.request_shape() == ["user: Sell it"]
    assert format_marbles(events) == "twlckF"
    assert isinstance(events[0], TaskEvent)
    assert [message.text for message in events[0].messages] == ["Sell it"]


async def test_history_before_the_prompt_is_kept_when_a_fork_replaces_the_prompt(shop: Shop) -> None:
    first = await shop.agent("It is 7.").run("How many?")
    parent = await shop.agent("Still 7.").run([*first.messages, "And now?"])

    await shop.agent("8.").fork(parent.task_id, 1, prompt=[Message.system("Be brief."), "And then?"])

    assert shop.request_shape() == ["user: How many?", "assistant: It is 7.", "system: Be brief.", "user: And then?"]


@pytest.mark.parametrize("at", range(2, EVENT_COUNT + 1))
async def test_prompt_is_appended_to_a_closed_history_when_forked_later(shop: Shop, at: int) -> None:
    parent = await shop.buy()

    run = shop.agent("As you like.").fork(parent, at, prompt="Stop, think again.")
    events = await collect(run)
    result = await run

    assert result.output == "As you like."
    assert is_well_formed(shop.model.requests[0].messages)
    assert shop.request_shape()[-1] == "user: Stop, think again."
    assert shop.effects == []
    (added,) = [event for event in events if isinstance(event, MessageAddedEvent)]
    assert (added.cause, added.attempt) == ("fork", 2)


@pytest.mark.parametrize("change", [{"prompt": "Stop."}, {"results": {"s": 3}}])
async def test_hidden_call_stays_hidden_when_a_fork_answers_it(shop: Shop, change: dict[str, Any]) -> None:
    @tool(hidden=True)
    async def secret() -> int:
        """Not for clients."""
        return 1

    parent = await shop.agent(call("secret", "s"), "Done.", tools=[secret]).run("Go")
    at = await find_seq(shop.log, parent.task_id, "content-complete")

    events = await collect(shop.agent("Done.", tools=[secret]).fork(parent.task_id, at, **change))

    assert [event.hidden for event in events if isinstance(event, ToolCompleteEvent)] == [True]


async def test_fork_can_use_another_model_and_other_tools(shop: Shop) -> None:
    @tool
    async def pay(amount: int) -> str:
        """Pays in another way."""
        return f"{amount} is free"

    parent = await shop.buy()
    at = await find_seq(shop.log, parent, "content-complete")
    agent, superseded = shop.agent(), ScriptedModel("Free!", name="other")

    run = agent.fork(parent, at, model=superseded, tools=[pay])
    events = await collect(run)

    assert shape(superseded.requests[0].messages)[3] == "tool: 5 is free"
    assert [tool.name for tool in superseded.requests[0].tools] == ["pay", "think_aloud"]
    assert isinstance(events[0], TaskEvent)
    assert events[0].model == "other"
    calls = [event.model for event in events if isinstance(event, LLMCallEvent)]
    assert calls == ["scripted", "other"]


async def test_fork_copies_the_history_of_its_conversation(shop: Shop) -> None:
    await shop.agent("Hello Ann.").run("I am Ann.", context_id="c")
    parent = await shop.buy(context_id="c")
    await shop.agent("Bye.").run("Bye", context_id="c")

    run = shop.agent("Ann.").fork(parent, 2, prompt="Who am I?")
    result = await run

    history = ["user: I am Ann.", "assistant: Hello Ann.", "user: Buy it", "user: Who am I?"]
    assert shop.request_shape() == history
    # Forks are self-contained and continue their own conversation.
    events = await shop.log.read(run.task_id)
    state = RunState()
    for event in events:
        state = fold(state, event)
    assert list(state.messages) == result.messages
    await shop.agent("Still Ann.").run("And now?", context_id=run.context_id)
    assert shop.request_shape() == [*history, "assistant: Ann.", "user: And now?"]
    # The original conversation does not contain the fork.
    await shop.agent("Yes.").run("Are you there?", context_id="c")
    assert "user: Who am I?" not in shop.request_shape()


async def test_fork_can_be_forked(shop: Shop) -> None:
    await shop.agent("Hello Ann.").run("I am Ann.", context_id="c")
    parent = await shop.buy(context_id="c")
    at = await find_seq(shop.log, parent, "checkpoint")
    first = await shop.agent("Declined.").fork(parent, at, results={"p": "declined"})
    end = (await shop.log.read(first.task_id))[-1].seq

    second = shop.agent("Cash then.").fork(first.task_id, end, prompt="Try cash.")
    events = await collect(second)

    assert isinstance(events[0], TaskEvent)
    assert (events[0].fork_of, events[0].fork_seq) == (first.task_id, end)
    assert sorted({event.attempt for event in events}) == [1, 2, 3]
    assert shop.request_shape()[:3] == ["user: I am Ann.", "assistant: Hello Ann.", "user: Buy it"]
    assert shop.request_shape()[-3:] == ["tool: 1", "assistant: Declined.", "user: Try cash."]

    third = await shop.agent("Hi Bob.").fork(second.task_id, 1, prompt="I am Bob.")
    assert shop.request_shape() == ["user: I am Ann.", "assistant: Hello Ann.", "user: I am Bob."]
    assert third.output == "Hi Bob."


async def test_interrupted_fork_is_resumed_as_a_fork(shop: Shop) -> None:  # L89
    parent = await shop.buy()
    message_seq = await find_seq(shop.log, parent, "content-complete")
    run = shop.agent("Bought.").fork(parent, message_seq, results={"l": 4})
    events = await collect(run)
    shop.effects.clear()
    restart_seq = next(event.seq for event in events if isinstance(event, ToolStartEvent) and event.call.id == "p")
    for kept_events, effects in [(restart_seq - 1, ["pay 5"]), (restart_seq, [])]:
        log, shop.log = shop.log, MemoryEventLog()
        await shop.log.append(run.task_id, (await log.read(run.task_id))[:kept_events], expected_seq=0)
        result = await shop.agent("Bought.").resume(run.task_id)
        shop.log = log
        assert result.output == "Bought."
        assert shop.effects == effects
        assert result.messages[4].text == "4"
        shop.effects.clear()


async def test_prefix_and_start_of_a_fork_are_written_in_one_batch(shop: Shop) -> None:
    parent = await shop.buy()
    batches: list[list[str]] = []

    class RecordingLog(MemoryEventLog):
        async def append(self, task_id: str, events: Sequence[Event], **options: Any) -> None:
            batches.append([event.kind for event in events])
            await super().append(task_id, events, **options)

    log, shop.log = shop.log, RecordingLog()
    await shop.log.append(parent, await log.read(parent), expected_seq=0)
    batches.clear()
    at = await find_seq(shop.log, parent, "content-complete")

    await shop.agent("Then not.").fork(parent, at, results={"p": 1, "l": 2}, prompt="Stop.")

    # After a crash, either all events exist or none.
    added = ["status-update", "tool-complete", "tool-complete", "tool-complete", "message-added"]
    assert batches[0] == [event.kind for event in (await log.read(parent))[:at]] + added


async def test_events_are_copied_and_folded_outside_of_the_event_loop(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, threads = await shop.buy(), set[int]()

    def normalise_here(event: Event) -> None:
        threads.add(threading.get_ident())
        normalise(event)

    monkeypatch.setattr(forks, "normalise", normalise_here)
    await shop.agent("Bought.").fork(parent, await find_seq(shop.log, parent, "content-complete"))
    assert threads
    assert threading.get_ident() not in threads


async def test_idempotency_keys_of_a_fork_differ_from_its_parent(shop: Shop) -> None:
    parent = await shop.buy()
    at = await find_seq(shop.log, parent, "content-complete")
    run = shop.agent("Bought.").fork(parent, at)
    events = await collect(run)

    keys = [event.idempotency_key for event in events if isinstance(event, ToolStartEvent)]
    assert all(key.startswith(run.task_id) for key in keys)


async def test_failed_run_can_be_forked_with_another_model(shop: Shop) -> None:
    failed = await outcome(shop.agent(ValueError("broken")).run("Go"))
    events = await shop.log.read(failed.task_id)

    result = await shop.agent().fork(failed.task_id, len(events), model=ScriptedModel("Gone."))

    assert failed.state == "failed"
    assert (result.state, result.output) == ("completed", "Gone.")


async def test_run_that_reached_a_limit_can_be_forked_with_a_higher_limit(shop: Shop) -> None:
    failed = await outcome(shop.agent(call("look", n=1), limits=Limits(iterations=1)).run("Go"))
    at = len(await shop.log.read(failed.task_id))

    result = await shop.agent("Seen.").fork(failed.task_id, at, limits=Limits(iterations=5))

    assert result.output == "Seen."


async def test_pending_question_is_asked_again_and_can_be_answered_in_a_fork(shop: Shop) -> None:
    answers: list[bool] = []

    @tool
    async def ask(ctx: RunContext[Any]) -> str:
        """Asks."""
        answers.append(await ctx.ask("Sure?"))
        return f"{answers[-1]}"

    paused = await shop.agent(call("ask"), tools=[ask]).run("Go")
    at = len(await shop.log.read(paused.task_id))

    fork = await shop.agent(tools=[ask]).fork(paused.task_id, at)
    assert fork.state == "input-required"
    assert [question.prompt for question in fork.pending] == ["Sure?"]
    result = await shop.agent("Done.", tools=[ask]).resume(fork.task_id, inputs={"1.0.1": True})
    assert result.output == "Done."
    assert answers == [True]
    answered = await shop.agent("Done.", tools=[ask]).fork(paused.task_id, at, on_input=lambda question: False)
    assert answered.output == "Done."
    assert answers == [True, False]
    # A user message at the fork point supersedes the question.
    superseded = await shop.agent("Never mind.", tools=[ask]).fork(paused.task_id, at, prompt="Forget it.")
    assert superseded.output == "Never mind."
    assert superseded.pending == []


def test_fork_of_canceled_run_closes_the_interrupted_call(shop: Shop) -> None:
    @tool
    async def slow() -> str:
        """Takes an hour."""
        await asyncio.sleep(3600)
        return "at last"

    with virtual_time() as time:
        run = shop.agent(call("slow", "s"), tools=[slow]).run("Go")
        time.at(1, run.cancel)
        cancelled = time.run(outcome(run))
        events = time.run(asyncio.wait_for(read_log(shop.log, run.task_id), 1))
        start_seq = next(event.seq for event in events if isinstance(event, ToolStartEvent))
        fork_after_end = time.run(shop.agent("Never mind.", tools=[slow]).fork(run.task_id, len(events)))
        fork_at_start = time.run(shop.agent("There.", tools=[slow]).fork(run.task_id, start_seq))

    assert cancelled.state == "canceled"
    for fork in (fork_after_end, fork_at_start):
        assert fork.messages[2].text.startswith("This call was interrupted")


async def read_log(log: MemoryEventLog, task_id: str) -> Any:
    return await log.read(task_id)


async def test_canceled_fork_has_one_final_event(shop: Shop) -> None:
    parent = await shop.buy()
    run = shop.agent().fork(parent, 5)
    run.cancel("changed my mind")

    with pytest.raises(RunCancelled, match="changed my mind"):
        await run
    # The fork never started, so it has no events in the stream or in the log.
    assert format_marbles(await collect(run)) == "F"
    assert [record.task_id for record in await shop.log.list_runs()] == [parent]


async def test_fork_rejects_invalid_arguments(shop: Shop) -> None:
    parent = await shop.buy()
    agent = shop.agent()

    with pytest.raises(UnknownRun, match="nowhere"):
        await agent.fork("nowhere", 1)
    with pytest.raises(ConfigurationError, match=f"{EVENT_COUNT}, the number of events.*got 99"):
        await agent.fork(parent, 99)
    for at in (-1, 0, "3", True, None):
        with pytest.raises(ConfigurationError, match="at must be a positive integer"):
            agent.fork(parent, at)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="log="):
        Agent(ScriptedModel()).fork(parent, 1)
    with pytest.raises(ConfigurationError, match="results must be a dict"):
        agent.fork(parent, 1, results=["card declined"])  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"results\['p'\].*JSON"):
        agent.fork(parent, 1, results={"p": object()})
    with pytest.raises(ConfigurationError, match="tools="):
        agent.fork(parent, 1, tools="look")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="empty"):
        agent.fork(parent, 1, prompt="")
    with pytest.raises(ConfigurationError, match=r"'assistant'.*results="):
        agent.fork(parent, 5, prompt=[Message.assistant("I say.")])
    with pytest.raises(TypeError, match="did you mean 'tools'"):
        agent.fork(parent, 1, tool=[])  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="context_id"):
        agent.fork(parent, 1, context_id="c")  # type: ignore[call-arg]


def answer_on_branch(request: ModelRequest) -> Any:
    if request.messages[-1].role == "user":
        return call("look", f"of {request.branch}", n=7)
    return f"{request.branch} says {request.messages[-1].text}"


@pytest.mark.parametrize("at", range(1, 21))
async def test_fork_of_a_strategy_repeats_it_over_the_recorded_events(shop: Shop, at: int) -> None:
    parent_result = await shop.agent(*[answer_on_branch] * 9, strategy=two_branches).run("Go")
    events = (await shop.log.read(parent_result.task_id))[:at]
    assert parent_result.output == "b1 says 7 and b2 says 7"
    answered_steps = {event.step for event in events if isinstance(event, ContentCompleteEvent)}
    replaces_result = "b2/1" in answered_steps and "b2/2" not in answered_steps

    run = shop.agent(*[answer_on_branch] * 9, strategy=two_branches).fork(
        parent_result.task_id, at, results={"of b2": 8} if replaces_result else None
    )
    result = await run

    started = {event.step for event in events if isinstance(event, ToolStartEvent)}
    completed = {event.step for event in events if isinstance(event, ToolCompleteEvent)}
    seen = dict.fromkeys(("b1/1", "b2/1"), "7") | dict.fromkeys(started - completed, INTERRUPTED)
    if replaces_result:
        seen["b2/1"] = "8"
    assert result.output == f"b1 says {seen['b1/1']} and b2 says {seen['b2/1']}"
    assert not answered_steps & {request.step for request in shop.model.requests}
    logged = await shop.log.read(run.task_id)
    assert [event.seq for event in logged] == list(range(1, len(logged) + 1))
    slots = [(event.step, event.index) for event in logged if isinstance(event, ToolCompleteEvent)]
    assert sorted(slots) == [("b1/1", 0), ("b2/1", 0)]
