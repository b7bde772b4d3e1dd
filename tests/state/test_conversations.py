"""Conversation histories, folded from the runs of a context."""

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
    """Look."""
    return n


def make_agent(log: MemoryEventLog | None, *turns: Any, **fields: Any) -> Agent:
    return Agent(ScriptedModel(*turns), tools=[look], log=log, **fields)


def get_sent_messages(agent: Agent, number: int = 0) -> list[str]:
    model: Any = agent.model
    return shape(model.requests[number].messages)


async def test_conversation_continues_after_its_last_run() -> None:
    log = MemoryEventLog()
    first = await make_agent(log, ["I look.", call("look", n=4)], "It is 4.").run("How many?", context_id="c")
    second = make_agent(log, "Still 4.")
    result = await second.run("And now?", context_id="c")

    assert get_sent_messages(second) == [
        "user: How many?",
        "assistant: I look.",
        "tool: 4",
        "assistant: It is 4.",
        "user: And now?",
    ]
    assert result.messages[:4] == first.messages
    assert result.context_id == first.context_id == "c"
    assert result.task_id != first.task_id
    assert result.usage == first.usage


async def test_conversations_are_separate() -> None:  # L138
    log = MemoryEventLog()
    await make_agent(log, "Ann it is.").run("I am Ann.", context_id="ann")
    await make_agent(log, "Bob it is.").run("I am Bob.", context_id="bob")
    third = make_agent(log, "Ann.")
    await third.run("Who am I?", context_id="ann")

    assert get_sent_messages(third) == ["user: I am Ann.", "assistant: Ann it is.", "user: Who am I?"]


async def test_task_event_contains_only_the_new_messages() -> None:
    log = MemoryEventLog()
    await make_agent(log, "One.").run("1", context_id="c")
    events = await collect(make_agent(log, "Two.").run("2", context_id="c"))

    task = events[0]
    assert isinstance(task, TaskEvent)
    assert [message.text for message in task.messages] == ["2"]
    assert task.seq == 1


async def test_context_without_a_log_is_refused_with_a_remedy() -> None:
    with pytest.raises(ConfigurationError, match=r"context_id='c'.*log=MemoryEventLog"):
        make_agent(None, "Hello.").run("Hi", context_id="c")


async def test_each_run_without_a_context_is_its_own_conversation() -> None:
    log = MemoryEventLog()
    agent = make_agent(log, "One.", "Two.")
    first, second = await agent.run("1"), await agent.run("2")

    assert first.context_id != second.context_id
    assert get_sent_messages(agent, 1) == ["user: 2"]


async def test_conversation_without_a_log_is_continued_by_passing_messages() -> None:
    agent = make_agent(None, "In Oslo it rains.", "In Bergen too.")
    first = await agent.run("How is Oslo?")
    second = await agent.run([*first.messages, "And Bergen?"])

    assert get_sent_messages(agent, 1) == ["user: How is Oslo?", "assistant: In Oslo it rains.", "user: And Bergen?"]
    assert second.output == "In Bergen too."


async def test_prompt_may_consist_of_parts() -> None:
    agent = make_agent(None, "A cat.")
    picture = Message.user([TextPart(text="What is this?"), ImagePart(url="https://example.org/cat.png")])
    result = await agent.run([Message.system("Be brief."), picture])

    assert result.messages[1] == picture
    assert get_sent_messages(agent) == ["system: Be brief.", "user: What is this?"]


async def test_history_is_well_formed_after_a_failed_and_a_cancelled_run() -> None:  # L122
    log = MemoryEventLog()
    await outcome(
        make_agent(log, [call("look", n=1), call("look", n=2)], RuntimeError("broken")).run("One", context_id="c")
    )
    cancelled = make_agent(log, "never").run("Two", context_id="c")
    cancelled.cancel()
    await outcome(cancelled)
    last = make_agent(log, "Three it is.")
    result = await last.run("Three", context_id="c")

    assert get_sent_messages(last) == [
        "user: One",
        "assistant: look,look",
        "tool: 1",
        "tool: 2",
        "user: Two",
        "user: Three",
    ]
    assert is_well_formed(result.messages)


@pytest.mark.parametrize("stored_count", range(1, 12))
async def test_history_is_well_formed_after_a_crash(stored_count: int) -> None:
    log = MemoryEventLog()
    whole = await make_agent(log, [call("look", n=1), call("look", n=2)], "It is 3.").run("One", context_id="c")
    crashed = MemoryEventLog()
    await crashed.append(whole.task_id, (await log.read(whole.task_id))[:stored_count], expected_seq=0)
    agent = make_agent(crashed, "Two it is.")

    result = await agent.run("Two", context_id="c")

    assert result.output == "Two it is."
    assert is_well_formed(result.messages)
    assert get_sent_messages(agent)[0] == "user: One"
    assert get_sent_messages(agent)[-1] == "user: Two"


async def test_nothing_is_written_before_a_run_starts() -> None:  # L119
    log = MemoryEventLog()
    await make_agent(log, "One.").run("1", context_id="c")
    before = await log.list_runs()

    agent = make_agent(log, "Two.")
    run = agent.run("2", context_id="c")
    await asyncio.sleep(0)
    assert await log.list_runs() == before

    await run

    assert len(await log.list_runs(context_id="c")) == 2


def test_second_run_of_a_conversation_is_refused_while_one_works() -> None:  # L120
    log = MemoryEventLog()
    with virtual_time() as time:

        async def main() -> tuple[list[Event], str]:
            agent = make_agent(log, frames("--slow-|"), "never", "after")
            first = agent.run("One", context_id="c")
            first.events.subscribe(lambda event: None)
            await asyncio.sleep(0.03)
            with pytest.raises(ContextBusy, match="conversation c"):
                await agent.run("Two", context_id="c")
            other = make_agent(log, "another")
            assert (await other.run("Hi", context_id="d")).output == "another"
            events = await collect(first)
            model: Any = agent.model
            assert len(model.requests) == 1
            return events, (await make_agent(log, "after").run("Three", context_id="c")).output

        events, after = time.run(main())

    assert events[-1].state == "completed"  # type: ignore[attr-defined]
    assert after == "after"
    assert [record.state for record in asyncio.run(list_runs(log))] == ["completed", "completed"]


def test_waiting_runs_start_in_order_with_the_complete_history() -> None:  # L120
    log = MemoryEventLog()
    with virtual_time() as time:

        async def main() -> list[str]:
            agent = make_agent(log, frames("--one-|"), "two", "three")
            first = agent.run("1", context_id="c")
            first.events.subscribe(lambda event: None)
            await asyncio.sleep(0.03)
            second = agent.run("2", context_id="c", when_busy="wait")
            third = agent.run("3", context_id="c", when_busy="wait")
            results = await asyncio.gather(second, third, first)
            assert [message.text for message in results[0].messages] == ["1", "one", "2", "two"]
            assert [message.text for message in results[1].messages] == ["1", "one", "2", "two", "3", "three"]
            return [result.output for result in results]

        assert time.run(main()) == ["two", "three", "one"]


def test_cancelled_waiting_run_lets_the_next_one_start() -> None:  # L120
    log = MemoryEventLog()
    with virtual_time() as time:

        async def main() -> None:
            agent = make_agent(log, frames("--one-|"), "three")
            first = agent.run("1", context_id="c")
            first.events.subscribe(lambda event: None)
            await asyncio.sleep(0.03)
            second = agent.run("2", context_id="c", when_busy="wait")
            third = agent.run("3", context_id="c", when_busy="wait")
            both = asyncio.gather(second, third, return_exceptions=True)
            await asyncio.sleep(0.001)
            second.cancel("changed my mind")
            cancelled, after = await both
            assert isinstance(cancelled, RunCancelled)
            assert not isinstance(after, BaseException)
            assert after.output == "three"
            assert len(await log.list_runs()) == 2

        time.run(main())


def test_resumed_run_can_wait_for_its_lease() -> None:  # L120
    log = MemoryEventLog()
    with virtual_time() as time:

        async def main() -> None:
            agent = make_agent(log, frames("--one-|"), frames("----two|"), "again")
            first = agent.run("1", context_id="c")
            first.events.subscribe(lambda event: None)
            await asyncio.sleep(0.03)
            first.cancel()
            with pytest.raises(RunCancelled):
                await first
            second = agent.run("2", context_id="c")
            second.events.subscribe(lambda event: None)
            await asyncio.sleep(0.03)
            with pytest.raises(ContextBusy):
                await agent.resume(first.task_id)
            assert (await agent.resume(first.task_id, when_busy="wait")).output == "again"
            assert (await second).output == "two"

        time.run(main())


async def list_runs(log: MemoryEventLog) -> Any:
    return await log.list_runs(context_id="c")


async def test_run_that_fails_at_its_start_leaves_the_conversation_free() -> None:  # L120
    log = MemoryEventLog()

    def broken(ctx: Any) -> str:
        raise KeyError("missing")

    result = await outcome(make_agent(log, "never", instructions=broken).run("One", context_id="c"))
    assert result.state == "failed"

    assert (await make_agent(log, "fine").run("Two", context_id="c")).output == "fine"


async def test_runs_with_equal_call_ids_keep_their_own_results() -> None:
    log = MemoryEventLog()
    for n in (1, 2):
        await make_agent(log, [call("look", "0", n=n)], f"It is {n}.").run(f"Turn {n}", context_id="c")
    agent = make_agent(log, "3.")
    result = await agent.run("Turn 3", context_id="c")

    assert [text for text in get_sent_messages(agent) if text.startswith("tool")] == ["tool: 1", "tool: 2"]
    assert is_well_formed(result.messages)
    assert {each.id for message in result.messages for each in message.tool_calls} == {"0"}
    assert isinstance(result.messages[1].tool_calls[0], ToolCall)


async def test_long_conversation_keeps_every_turn_in_order() -> None:
    log = MemoryEventLog()
    for n in range(20):
        await make_agent(log, f"answer {n}").run(f"question {n}", context_id="c")
    agent = make_agent(log, "last")
    await agent.run("the end", context_id="c")

    assert get_sent_messages(agent)[:-1] == [
        text for n in range(20) for text in (f"user: question {n}", f"assistant: answer {n}")
    ]


class EventCounter:
    def __init__(self, log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events = 0
        read_conversation = log.read_conversation

        async def count_folds(*arguments: Any, **options: Any) -> Any:
            records = await read_conversation(*arguments, **options)
            self.events += sum(len(part.events) for part in records.parts if isinstance(part, RunEvents))
            return records

        monkeypatch.setattr(log, "read_conversation", count_folds)


@pytest.fixture(params=["memory", "sqlite"])
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    logs = {"memory": MemoryEventLog, "sqlite": lambda: SqliteEventLog(tmp_path / "runs.db")}
    log: Any = logs[request.param]()
    yield log
    await log.aclose()


async def test_new_run_reads_only_the_new_events_of_its_conversation(log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(30):
        await make_agent(log, f"answer {n}").run(f"question {n}", context_id="c")
    event_counter = EventCounter(log, monkeypatch)
    agent = make_agent(log, "last")
    await agent.run("the end", context_id="c")

    assert 0 < event_counter.events < 10
    assert len(get_sent_messages(agent)) == 61


async def test_resumed_or_deleted_run_is_read_again(log: Any) -> None:
    first = make_agent(log, "never").run("1", context_id="c")
    first.cancel()
    await outcome(first)
    second = await make_agent(log, "two").run("2", context_id="c")
    await make_agent(log, "three").run("3", context_id="c")

    await make_agent(log, "one after all").resume(first.task_id)
    agent = make_agent(log, "four")
    fourth = await agent.run("4", context_id="c")
    assert get_sent_messages(agent) == [
        "user: 1",
        "assistant: one after all",
        "user: 2",
        "assistant: two",
        "user: 3",
        "assistant: three",
        "user: 4",
    ]

    await log.delete(second.task_id)
    await log.delete(fourth.task_id)
    agent = make_agent(log, "five")
    await agent.run("5", context_id="c")
    assert get_sent_messages(agent) == ["user: 1", "assistant: one after all", "user: 3", "assistant: three", "user: 5"]


async def test_cache_of_conversations_is_bounded(log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "_MAX_CONVERSATIONS", 3)
    for n in range(6):
        await make_agent(log, "hello").run("hi", context_id=f"c{n}")
    assert list(log.local.get(conversation.ConversationCache)) == ["c3", "c4", "c5"]

    monkeypatch.setattr(conversation, "_MAX_CHARACTERS", 100)
    await make_agent(log, "hello").run("x" * 200, context_id="long")
    await make_agent(log, "hello").run("hi", context_id="long")
    assert list(log.local.get(conversation.ConversationCache)) == ["long"]


async def test_number_of_cached_messages_is_bounded(log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "_MAX_MESSAGES", 5)
    for context_id in ("a", "a", "b", "b", "c", "c"):
        await make_agent(log, "hello").run("hi", context_id=context_id)
    # The second run of each conversation reads two messages.
    assert list(log.local.get(conversation.ConversationCache)) == ["b", "c"]
    for _ in range(2):
        await make_agent(log, "hello").run("hi", context_id="c")
    # The largest conversation remains, even if it has more messages.
    assert list(log.local.get(conversation.ConversationCache)) == ["c"]


async def test_long_conversation_does_not_block_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
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

    def count_folds(events: Any, *arguments: Any) -> Any:
        at_once[turns] += len(events)
        return fold_all(events, *arguments)

    monkeypatch.setattr(conversation, "fold_all", count_folds)

    async def run_others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(run_others())
    state = await conversation.conversation(log, "c", before="none")
    other.cancel()
    assert len(state.messages) == 600
    assert list(at_once.values()) == [200, 200, 200]
