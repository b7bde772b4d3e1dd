"""Conversations: the history of a context is the fold of its runs in the log."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rxloop import (
    Agent,
    ConfigurationError,
    ContentCompleteEvent,
    Event,
    ImagePart,
    MemoryEventLog,
    Message,
    RunCancelled,
    SqliteEventLog,
    TaskEvent,
    TextPart,
    ToolCall,
    tool,
)
from rxloop.errors import ContextBusy
from rxloop.pipeline.records import RunEvents
from rxloop.storage import conversation
from rxloop.testing import ScriptedModel, call, frames, virtual_time
from support.runs import collect, is_well_formed, outcome, shape


@tool
async def look(n: int) -> int:
    """Looks."""
    return n


def agent(log: MemoryEventLog | None, *turns: Any, **fields: Any) -> Agent:
    return Agent(ScriptedModel(*turns), tools=[look], log=log, **fields)


def sent(of: Agent, number: int = 0) -> list[str]:
    model: Any = of.model
    return shape(model.requests[number].messages)


async def test_a_conversation_goes_on_where_its_last_run_ended() -> None:
    log = MemoryEventLog()
    first = await agent(log, ["I look.", call("look", n=4)], "It is 4.").run("How many?", context_id="c")
    second = agent(log, "Still 4.")
    result = await second.run("And now?", context_id="c")

    assert sent(second) == [
        "user: How many?",
        "assistant: I look.",
        "tool: 4",
        "assistant: It is 4.",
        "user: And now?",
    ]
    assert result.messages[:4] == first.messages
    assert result.context_id == first.context_id == "c"
    assert result.task_id != first.task_id
    assert result.usage == first.usage  # each run counts its own


async def test_conversations_do_not_cross() -> None:  # L138
    log = MemoryEventLog()
    await agent(log, "Ann it is.").run("I am Ann.", context_id="ann")
    await agent(log, "Bob it is.").run("I am Bob.", context_id="bob")
    third = agent(log, "Ann.")
    await third.run("Who am I?", context_id="ann")

    assert sent(third) == ["user: I am Ann.", "assistant: Ann it is.", "user: Who am I?"]


async def test_each_run_begins_with_a_task_of_its_own_messages_alone() -> None:
    log = MemoryEventLog()
    await agent(log, "One.").run("1", context_id="c")
    events = await collect(agent(log, "Two.").run("2", context_id="c"))

    task = events[0]
    assert isinstance(task, TaskEvent)
    assert [message.text for message in task.messages] == ["2"]
    assert task.seq == 1


async def test_without_a_log_a_context_is_refused_with_what_to_add() -> None:
    with pytest.raises(ConfigurationError, match=r"context_id='c'.*log=MemoryEventLog"):
        agent(None, "Hello.").run("Hi", context_id="c")


async def test_without_a_context_each_run_is_a_conversation_of_its_own() -> None:
    log = MemoryEventLog()
    of = agent(log, "One.", "Two.")
    first, second = await of.run("1"), await of.run("2")

    assert first.context_id != second.context_id
    assert sent(of, 1) == ["user: 2"]


async def test_without_a_log_a_conversation_goes_on_by_hand() -> None:
    of = agent(None, "In Oslo it rains.", "In Bergen too.")
    first = await of.run("How is Oslo?")
    second = await of.run([*first.messages, "And Bergen?"])

    assert sent(of, 1) == ["user: How is Oslo?", "assistant: In Oslo it rains.", "user: And Bergen?"]
    assert second.output == "In Bergen too."


async def test_a_prompt_may_be_made_of_parts() -> None:
    of = agent(None, "A cat.")
    picture = Message.user([TextPart(text="What is this?"), ImagePart(url="https://example.org/cat.png")])
    result = await of.run([Message.system("Be brief."), picture])

    assert result.messages[1] == picture
    assert sent(of) == ["system: Be brief.", "user: What is this?"]


async def test_a_run_that_failed_or_was_cancelled_leaves_a_history_that_is_well_formed() -> None:  # L122
    log = MemoryEventLog()
    await outcome(agent(log, [call("look", n=1), call("look", n=2)], RuntimeError("broken")).run("One", context_id="c"))
    cancelled = agent(log, "never").run("Two", context_id="c")
    cancelled.cancel()
    await outcome(cancelled)
    last = agent(log, "Three it is.")
    result = await last.run("Three", context_id="c")

    assert sent(last) == ["user: One", "assistant: look,look", "tool: 1", "tool: 2", "user: Two", "user: Three"]
    assert is_well_formed(result.messages)


@pytest.mark.parametrize("held", range(1, 12))
async def test_a_run_that_crashed_leaves_a_history_that_is_well_formed(held: int) -> None:
    log = MemoryEventLog()
    whole = await agent(log, [call("look", n=1), call("look", n=2)], "It is 3.").run("One", context_id="c")
    crashed = MemoryEventLog()
    await crashed.append(whole.task_id, (await log.read(whole.task_id))[:held], expected_seq=0)
    of = agent(crashed, "Two it is.")

    result = await of.run("Two", context_id="c")

    assert result.output == "Two it is."
    assert is_well_formed(result.messages)
    assert sent(of)[0] == "user: One"
    assert sent(of)[-1] == "user: Two"


async def test_nothing_is_written_before_the_run_has_begun() -> None:  # L119
    log = MemoryEventLog()
    await agent(log, "One.").run("1", context_id="c")
    before = await log.list_runs()

    of = agent(log, "Two.")
    run = of.run("2", context_id="c")
    await asyncio.sleep(0)
    assert await log.list_runs() == before

    await run

    assert len(await log.list_runs(context_id="c")) == 2


def test_a_second_turn_is_refused_while_one_is_under_way() -> None:  # L120
    log = MemoryEventLog()
    with virtual_time() as time:

        async def main() -> tuple[list[Event], str]:
            of = agent(log, frames("--slow-|"), "never", "after")
            first = of.run("One", context_id="c")
            first.events.subscribe(lambda event: None)
            await asyncio.sleep(0.03)
            with pytest.raises(ContextBusy, match="conversation c"):
                await of.run("Two", context_id="c")
            other = agent(log, "another")
            assert (await other.run("Hi", context_id="d")).output == "another"
            events = await collect(first)
            model: Any = of.model
            assert len(model.requests) == 1
            return events, (await agent(log, "after").run("Three", context_id="c")).output

        events, after = time.run(main())

    assert events[-1].state == "completed"  # type: ignore[attr-defined]
    assert after == "after"
    assert [record.state for record in asyncio.run(runs_of(log))] == ["completed", "completed"]


def test_turns_that_wait_are_taken_in_order_and_know_what_was_said_before() -> None:  # L120
    log = MemoryEventLog()
    with virtual_time() as time:

        async def main() -> list[str]:
            of = agent(log, frames("--one-|"), "two", "three")
            first = of.run("1", context_id="c")
            first.events.subscribe(lambda event: None)
            await asyncio.sleep(0.03)
            second = of.run("2", context_id="c", when_busy="wait")
            third = of.run("3", context_id="c", when_busy="wait")
            results = await asyncio.gather(second, third, first)
            assert [message.text for message in results[0].messages] == ["1", "one", "2", "two"]
            assert [message.text for message in results[1].messages] == ["1", "one", "2", "two", "3", "three"]
            return [result.output for result in results]

        assert time.run(main()) == ["two", "three", "one"]


def test_a_turn_that_is_cancelled_while_it_waits_lets_the_next_one_through() -> None:  # L120
    log = MemoryEventLog()
    with virtual_time() as time:

        async def main() -> None:
            of = agent(log, frames("--one-|"), "three")
            first = of.run("1", context_id="c")
            first.events.subscribe(lambda event: None)
            await asyncio.sleep(0.03)
            second = of.run("2", context_id="c", when_busy="wait")
            third = of.run("3", context_id="c", when_busy="wait")
            both = asyncio.gather(second, third, return_exceptions=True)
            await asyncio.sleep(0.001)
            second.cancel("changed my mind")
            cancelled, after = await both
            assert isinstance(cancelled, RunCancelled)
            assert not isinstance(after, BaseException)
            assert after.output == "three"
            assert len(await log.list_runs()) == 2

        time.run(main())


def test_a_resumed_run_can_wait_for_its_turn_too() -> None:  # L120
    log = MemoryEventLog()
    with virtual_time() as time:

        async def main() -> None:
            of = agent(log, frames("--one-|"), frames("----two|"), "again")
            first = of.run("1", context_id="c")
            first.events.subscribe(lambda event: None)
            await asyncio.sleep(0.03)
            first.cancel()
            with pytest.raises(RunCancelled):
                await first
            second = of.run("2", context_id="c")
            second.events.subscribe(lambda event: None)
            await asyncio.sleep(0.03)
            with pytest.raises(ContextBusy):
                await of.resume(first.task_id)
            assert (await of.resume(first.task_id, when_busy="wait")).output == "again"
            assert (await second).output == "two"

        time.run(main())


async def runs_of(log: MemoryEventLog) -> Any:
    return await log.list_runs(context_id="c")


async def test_a_turn_that_was_refused_leaves_nothing_in_the_log_and_the_conversation_free() -> None:  # L120
    log = MemoryEventLog()

    def broken(ctx: Any) -> str:
        raise KeyError("missing")

    result = await outcome(agent(log, "never", instructions=broken).run("One", context_id="c"))
    assert result.state == "failed"

    assert (await agent(log, "fine").run("Two", context_id="c")).output == "fine"


async def test_calls_of_two_runs_with_the_same_ids_do_not_mix() -> None:
    log = MemoryEventLog()
    for n in (1, 2):
        await agent(log, [call("look", "0", n=n)], f"It is {n}.").run(f"Turn {n}", context_id="c")
    of = agent(log, "3.")
    result = await of.run("Turn 3", context_id="c")

    assert [text for text in sent(of) if text.startswith("tool")] == ["tool: 1", "tool: 2"]
    assert is_well_formed(result.messages)
    assert {each.id for message in result.messages for each in message.tool_calls} == {"0"}
    assert isinstance(result.messages[1].tool_calls[0], ToolCall)


async def test_a_long_conversation_keeps_every_turn_in_order() -> None:
    log = MemoryEventLog()
    for n in range(20):
        await agent(log, f"answer {n}").run(f"question {n}", context_id="c")
    of = agent(log, "last")
    await of.run("the end", context_id="c")

    assert sent(of)[:-1] == [text for n in range(20) for text in (f"user: question {n}", f"assistant: answer {n}")]


class Counting:
    """Counts the events of earlier runs that a log gives to a new one."""

    def __init__(self, log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events = 0
        read_conversation = log.read_conversation

        async def counted(*arguments: Any, **options: Any) -> Any:
            found = await read_conversation(*arguments, **options)
            self.events += sum(len(part.events) for part in found.parts if isinstance(part, RunEvents))
            return found

        monkeypatch.setattr(log, "read_conversation", counted)


@pytest.fixture(params=["memory", "sqlite"])
async def kept(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    logs = {"memory": MemoryEventLog, "sqlite": lambda: SqliteEventLog(tmp_path / "runs.db")}
    log: Any = logs[request.param]()
    yield log
    await log.aclose()


async def test_a_turn_reads_what_is_new_of_its_conversation_and_not_all_of_it(
    kept: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(30):
        await agent(kept, f"answer {n}").run(f"question {n}", context_id="c")
    counting = Counting(kept, monkeypatch)
    of = agent(kept, "last")
    await of.run("the end", context_id="c")

    assert 0 < counting.events < 10
    assert len(sent(of)) == 61


async def test_a_run_that_went_on_or_was_deleted_is_read_anew(kept: Any) -> None:
    first = agent(kept, "never").run("1", context_id="c")
    first.cancel()
    await outcome(first)
    second = await agent(kept, "two").run("2", context_id="c")
    await agent(kept, "three").run("3", context_id="c")

    await agent(kept, "one after all").resume(first.task_id)
    of = agent(kept, "four")
    fourth = await of.run("4", context_id="c")
    assert sent(of) == [
        "user: 1",
        "assistant: one after all",
        "user: 2",
        "assistant: two",
        "user: 3",
        "assistant: three",
        "user: 4",
    ]

    await kept.delete(second.task_id)
    await kept.delete(fourth.task_id)
    of = agent(kept, "five")
    await of.run("5", context_id="c")
    assert sent(of) == ["user: 1", "assistant: one after all", "user: 3", "assistant: three", "user: 5"]


async def test_what_is_remembered_of_conversations_is_bounded(kept: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "_CONVERSATIONS", 3)
    for n in range(6):
        await agent(kept, "hello").run("hi", context_id=f"c{n}")
    assert list(kept.local.get(conversation.ConversationCache)) == ["c3", "c4", "c5"]

    monkeypatch.setattr(conversation, "_CHARACTERS", 100)
    await agent(kept, "hello").run("x" * 200, context_id="long")
    await agent(kept, "hello").run("hi", context_id="long")
    assert list(kept.local.get(conversation.ConversationCache)) == ["long"]


async def test_a_long_conversation_does_not_hold_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryEventLog()
    for n in range(300):
        events: Any = [
            TaskEvent(
                seq=1,
                attempt=1,
                task_id=str(n),
                context_id="c",
                messages=[Message.user("Hi")],
                model="m",
                agent_name="a",
            ),
            ContentCompleteEvent(seq=2, attempt=1, task_id=str(n), context_id="c", step="1", content="Hello."),
        ]
        await log.append(str(n), events, expected_seq=0)
    at_once = Counter[int]()
    fold_all = conversation.fold_all
    turns = 0

    def counted(events: Any, *arguments: Any) -> Any:
        at_once[turns] += len(events)
        return fold_all(events, *arguments)

    monkeypatch.setattr(conversation, "fold_all", counted)

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(others())
    state = await conversation.conversation(log, "c", before="none")
    other.cancel()
    assert len(state.messages) == 600
    assert list(at_once.values()) == [200, 200, 200]
