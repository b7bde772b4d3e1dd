"""Forks: a new run that begins with a part of another one, and goes on in its own way."""

import asyncio
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
from rxloop.state import fold
from rxloop.state.run_state import RunState
from rxloop.testing import ScriptedModel, call, virtual_time
from support.fork_shop import Shop, seq_of
from support.runs import collect, letters, outcome, shape, well_formed
from support.two_branches import both


def same(event: Event, other: Event) -> bool:
    """Whether an event says the same as another one, but for the ids of its run."""
    ids = {"task_id": "", "context_id": ""}
    return event.model_copy(update=ids) == other.model_copy(update=ids)


WHOLE = 18


@pytest.mark.parametrize("at", range(1, WHOLE + 1))
async def test_wherever_a_run_is_forked_the_fork_begins_with_it_and_comes_to_an_end(shop: Shop, at: int) -> None:
    parent = await shop.bought()
    before = await shop.log.read(parent)
    assert len(before) == WHOLE
    again = [call("pay", "p", amount=5), call("look", "l", n=1)]
    known = {event.step for event in before[:at] if isinstance(event, ContentCompleteEvent)}
    turns = [again, "Bought."][len(known) :]

    run = shop.agent(*turns).fork(parent, at)
    events = await collect(run)
    result = await run

    # It is a run of its own, and names the one that it is made of.
    assert run.task_id != parent
    assert run.context_id != before[0].context_id
    assert {(event.task_id, event.context_id) for event in events} == {(run.task_id, run.context_id)}
    first = events[0]
    assert isinstance(first, TaskEvent)
    assert (first.fork_of, first.fork_seq) == (parent, at)

    # The part that it takes over comes first, then an attempt that says where it begins.
    assert all(same(event, other) for event, other in zip(events[1:at], before[1:at], strict=True))
    working = events[at]
    assert isinstance(working, StatusUpdateEvent)
    assert (working.state, working.resumed, working.after_seq, working.attempt) == ("working", True, at, 2)
    assert [event.seq for event in events if event.durable] == list(range(1, events[-1].seq + 1))
    assert list(await shop.log.read(run.task_id)) == [event for event in events if event.durable]

    # Nothing of that part is asked or done again; what has no result there is, and so is what comes later.
    assert {event.step for event in events[at:] if isinstance(event, LLMCallEvent)} == {"1", "2"} - known
    answered = {event.index for event in before[:at] if isinstance(event, ToolCompleteEvent)}
    done = {event.index for event in events[at:] if isinstance(event, ToolStartEvent)}
    assert done == set(range(3 if known else 2)) - answered
    assert (result.output, len(shop.model.requests)) == ("Bought.", len(turns))
    assert well_formed(result.messages)

    # The run that it is made of has not changed.
    assert await shop.log.read(parent) == before


async def test_at_the_first_event_a_prompt_replaces_the_message_of_the_user(shop: Shop) -> None:
    parent = await shop.bought()

    run = shop.agent("Sold.").fork(parent, 1, prompt="Sell it")
    events = await collect(run)

    assert shop.sent() == ["user: Sell it"]
    assert letters(events) == "twlckF"
    assert isinstance(events[0], TaskEvent)
    assert [message.text for message in events[0].messages] == ["Sell it"]


async def test_what_stood_before_the_question_stays_before_another_one(shop: Shop) -> None:
    first = await shop.agent("It is 7.").run("How many?")
    parent = await shop.agent("Still 7.").run([*first.messages, "And now?"])

    await shop.agent("8.").fork(parent.task_id, 1, prompt=[Message.system("Be brief."), "And then?"])

    assert shop.sent() == ["user: How many?", "assistant: It is 7.", "system: Be brief.", "user: And then?"]


@pytest.mark.parametrize("at", range(2, WHOLE + 1))
async def test_later_a_prompt_is_a_new_message_behind_a_closed_history(shop: Shop, at: int) -> None:
    parent = await shop.bought()

    run = shop.agent("As you like.").fork(parent, at, prompt="Stop, think again.")
    events = await collect(run)
    result = await run

    assert result.output == "As you like."
    assert well_formed(shop.model.requests[0].messages)
    assert shop.sent()[-1] == "user: Stop, think again."
    assert shop.effects == []
    (added,) = [event for event in events if isinstance(event, MessageAddedEvent)]
    assert (added.cause, added.attempt) == ("fork", 2)


@pytest.mark.parametrize("change", [{"prompt": "Stop."}, {"results": {"s": 3}}])
async def test_what_is_hidden_from_clients_stays_hidden_where_a_fork_answers_it(
    shop: Shop, change: dict[str, Any]
) -> None:
    @tool(hidden=True)
    async def secret() -> int:
        """Not for clients."""
        return 1

    parent = await shop.agent(call("secret", "s"), "Done.", tools=[secret]).run("Go")
    at = await seq_of(shop.log, parent.task_id, "content-complete")

    events = await collect(shop.agent("Done.", tools=[secret]).fork(parent.task_id, at, **change))

    assert [event.hidden for event in events if isinstance(event, ToolCompleteEvent)] == [True]


async def test_a_fork_can_go_on_with_another_model_and_other_tools(shop: Shop) -> None:
    @tool
    async def pay(amount: int) -> str:
        """Pays in another way."""
        return f"{amount} is free"

    parent = await shop.bought()
    at = await seq_of(shop.log, parent, "content-complete")
    agent, other = shop.agent(), ScriptedModel("Free!", name="other")

    run = agent.fork(parent, at, model=other, tools=[pay])
    events = await collect(run)

    assert shape(other.requests[0].messages)[3] == "tool: 5 is free"
    assert [tool.name for tool in other.requests[0].tools] == ["pay", "think_aloud"]
    assert isinstance(events[0], TaskEvent)
    assert events[0].model == "other"
    calls = [event.model for event in events if isinstance(event, LLMCallEvent)]
    assert calls == ["scripted", "other"]


async def test_a_fork_takes_the_history_of_its_conversation_along(shop: Shop) -> None:
    await shop.agent("Hello Ann.").run("I am Ann.", context_id="c")
    parent = await shop.bought(context_id="c")
    await shop.agent("Bye.").run("Bye", context_id="c")

    run = shop.agent("Ann.").fork(parent, 2, prompt="Who am I?")
    result = await run

    history = ["user: I am Ann.", "assistant: Hello Ann.", "user: Buy it", "user: Who am I?"]
    assert shop.sent() == history
    # It stands for itself, and its conversation goes on from it alone.
    events = await shop.log.read(run.task_id)
    state = RunState()
    for event in events:
        state = fold(state, event)
    assert list(state.messages) == result.messages
    await shop.agent("Still Ann.").run("And now?", context_id=run.context_id)
    assert shop.sent() == [*history, "assistant: Ann.", "user: And now?"]
    # And the conversation that it left has not got it.
    await shop.agent("Yes.").run("Are you there?", context_id="c")
    assert "user: Who am I?" not in shop.sent()


async def test_a_fork_of_a_fork_is_a_fork(shop: Shop) -> None:
    await shop.agent("Hello Ann.").run("I am Ann.", context_id="c")
    parent = await shop.bought(context_id="c")
    at = await seq_of(shop.log, parent, "checkpoint")
    first = await shop.agent("Declined.").fork(parent, at, results={"p": "declined"})
    end = (await shop.log.read(first.task_id))[-1].seq

    second = shop.agent("Cash then.").fork(first.task_id, end, prompt="Try cash.")
    events = await collect(second)

    assert isinstance(events[0], TaskEvent)
    assert (events[0].fork_of, events[0].fork_seq) == (first.task_id, end)
    assert sorted({event.attempt for event in events}) == [1, 2, 3]
    assert shop.sent()[:3] == ["user: I am Ann.", "assistant: Hello Ann.", "user: Buy it"]
    assert shop.sent()[-3:] == ["tool: 1", "assistant: Declined.", "user: Try cash."]

    third = await shop.agent("Hi Bob.").fork(second.task_id, 1, prompt="I am Bob.")
    assert shop.sent() == ["user: I am Ann.", "assistant: Hello Ann.", "user: I am Bob."]
    assert third.output == "Hi Bob."


async def test_a_fork_that_was_cut_off_is_resumed_as_a_fork(shop: Shop) -> None:  # L89
    parent = await shop.bought()
    begun = await seq_of(shop.log, parent, "tool-start", 2)
    run = shop.agent("Bought.").fork(parent, begun, results={"l": 4})
    events = await collect(run)
    shop.effects.clear()
    # Its payment was begun in the run that it is made of, but not in the fork.
    again = next(event.seq for event in events[begun:] if isinstance(event, ToolStartEvent))
    for held, paid in [(again - 1, ["pay 5"]), (again, [])]:
        log, shop.log = shop.log, MemoryEventLog()
        await shop.log.append(run.task_id, (await log.read(run.task_id))[:held], expected_seq=0)
        result = await shop.agent("Bought.").resume(run.task_id)
        shop.log = log
        assert result.output == "Bought."
        assert shop.effects == paid
        assert result.messages[4].text == "4"
        shop.effects.clear()


async def test_the_log_gets_what_a_fork_takes_over_together_with_its_beginning(shop: Shop) -> None:
    parent = await shop.bought()
    batches: list[list[str]] = []

    class Watched(MemoryEventLog):
        async def append(self, task_id: str, events: Sequence[Event], **options: Any) -> None:
            batches.append([event.kind for event in events])
            await super().append(task_id, events, **options)

    log, shop.log = shop.log, Watched()
    await shop.log.append(parent, await log.read(parent), expected_seq=0)
    batches.clear()
    at = await seq_of(shop.log, parent, "content-complete")

    await shop.agent("Then not.").fork(parent, at, results={"p": 1, "l": 2}, prompt="Stop.")

    # A crash leaves the whole of it, or nothing.
    added = ["status-update", "tool-complete", "tool-complete", "tool-complete", "message-added"]
    assert batches[0] == [event.kind for event in (await log.read(parent))[:at]] + added


async def test_a_payment_of_a_fork_has_a_key_of_its_own(shop: Shop) -> None:
    parent = await shop.bought()
    at = await seq_of(shop.log, parent, "content-complete")
    run = shop.agent("Bought.").fork(parent, at)
    events = await collect(run)

    keys = [event.idempotency_key for event in events if isinstance(event, ToolStartEvent)]
    assert all(key.startswith(run.task_id) for key in keys)


async def test_a_run_that_failed_can_be_tried_with_another_model(shop: Shop) -> None:
    failed = await outcome(shop.agent(ValueError("broken")).run("Go"))
    events = await shop.log.read(failed.task_id)

    result = await shop.agent().fork(failed.task_id, len(events), model=ScriptedModel("Gone."))

    assert (failed.state, result.state, result.output) == ("failed", "completed", "Gone.")


async def test_a_run_that_had_reached_a_limit_can_go_on_with_another_one(shop: Shop) -> None:
    failed = await outcome(shop.agent(call("look", n=1), limits=Limits(iterations=1)).run("Go"))
    at = len(await shop.log.read(failed.task_id))

    result = await shop.agent("Seen.").fork(failed.task_id, at, limits=Limits(iterations=5))

    assert result.output == "Seen."


async def test_a_question_that_waits_is_asked_again_and_can_be_answered_in_the_fork(shop: Shop) -> None:
    asked: list[bool] = []

    @tool
    async def ask(ctx: RunContext[Any]) -> str:
        """Asks."""
        asked.append(await ctx.ask("Sure?"))
        return f"{asked[-1]}"

    paused = await shop.agent(call("ask"), tools=[ask]).run("Go")
    at = len(await shop.log.read(paused.task_id))

    fork = await shop.agent(tools=[ask]).fork(paused.task_id, at)
    assert (fork.state, [question.prompt for question in fork.pending]) == ("input-required", ["Sure?"])
    result = await shop.agent("Done.", tools=[ask]).resume(fork.task_id, inputs={"1.0.1": True})
    assert (result.output, asked) == ("Done.", [True])
    answered = await shop.agent("Done.", tools=[ask]).fork(paused.task_id, at, on_input=lambda question: False)
    assert (answered.output, asked) == ("Done.", [True, False])
    # The answer is recorded now: the tool finds it where it asks again.
    given = await seq_of(shop.log, fork.task_id, "input-received")
    await shop.agent("Done.", tools=[ask]).fork(fork.task_id, given)
    assert asked == [True, False, True]
    # A message of the user in its place closes it.
    other = await shop.agent("Never mind.", tools=[ask]).fork(paused.task_id, at, prompt="Forget it.")
    assert (other.output, other.pending) == ("Never mind.", [])


def test_a_fork_of_a_cancelled_run_goes_on_behind_what_was_cut_off(shop: Shop) -> None:
    @tool
    async def slow() -> str:
        """Takes an hour."""
        await asyncio.sleep(3600)
        return "at last"

    with virtual_time() as time:
        run = shop.agent(call("slow", "s"), tools=[slow]).run("Go")
        time.at(1, run.cancel)
        cancelled = time.run(outcome(run))
        events = time.run(asyncio.wait_for(read(shop.log, run.task_id), 1))
        begun = next(event.seq for event in events if isinstance(event, ToolStartEvent))
        # Behind the end the call is closed; at its start it is open, and made again.
        late = time.run(shop.agent("Never mind.", tools=[slow]).fork(run.task_id, len(events)))
        early = time.run(shop.agent("There.", tools=[slow]).fork(run.task_id, begun))

    assert cancelled.state == "canceled"
    assert [message.text for message in late.messages][2].startswith("This call was interrupted")
    assert [message.text for message in early.messages] == ["Go", "", "at last", "There."]


async def read(log: MemoryEventLog, task_id: str) -> Any:
    return await log.read(task_id)


async def test_a_cancelled_fork_has_an_end_like_any_run(shop: Shop) -> None:
    parent = await shop.bought()
    run = shop.agent().fork(parent, 5)
    run.cancel("changed my mind")

    with pytest.raises(RunCancelled, match="changed my mind"):
        await run
    # It had not begun: nothing of it is on the stream or in the log.
    assert letters(await collect(run)) == "F"
    assert [record.task_id for record in await shop.log.list_runs()] == [parent]


async def test_what_cannot_be_forked_is_refused(shop: Shop) -> None:
    parent = await shop.bought()
    agent = shop.agent()

    with pytest.raises(UnknownRun, match="nowhere"):
        await agent.fork("nowhere", 1)
    with pytest.raises(ConfigurationError, match=f"{WHOLE} events.*at=99"):
        await agent.fork(parent, 99)
    for at in (-1, 0, "3", True, None):
        with pytest.raises(ConfigurationError, match=r"at=.*1 or more"):
            agent.fork(parent, at)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="log="):
        Agent(ScriptedModel()).fork(parent, 1)
    with pytest.raises(ConfigurationError, match="results="):
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


def on_a_branch(request: ModelRequest) -> Any:
    if request.messages[-1].role == "user":
        return call("look", f"of {request.branch}", n=7)
    return f"{request.branch} says {request.messages[-1].text}"


@pytest.mark.parametrize("at", range(1, 21))
async def test_a_strategy_is_forked_by_running_it_again_over_what_is_recorded(shop: Shop, at: int) -> None:
    whole = await shop.agent(*[on_a_branch] * 9, strategy=both).run("Go")
    events = (await shop.log.read(whole.task_id))[:at]
    assert whole.output == "b1 says 7 and b2 says 7"
    asked = {event.step for event in events if isinstance(event, ContentCompleteEvent)}
    changed = "b2/1" in asked and "b2/2" not in asked

    run = shop.agent(*[on_a_branch] * 9, strategy=both).fork(
        whole.task_id, at, results={"of b2": 8} if changed else None
    )
    result = await run

    assert result.output == f"b1 says 7 and b2 says {8 if changed else 7}"
    assert not asked & {request.step for request in shop.model.requests}
    logged = await shop.log.read(run.task_id)
    assert [event.seq for event in logged] == list(range(1, len(logged) + 1))
    slots = [(event.step, event.index) for event in logged if isinstance(event, ToolCompleteEvent)]
    assert sorted(slots) == [("b1/1", 0), ("b2/1", 0)]
