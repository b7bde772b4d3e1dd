"""Runs of different owners in conversations with one id, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from rxloop import Agent, EventLog, MemoryEventLog, RunContext, Runtime, tool
from rxloop.errors import ConfigurationError, ContextBusy
from rxloop.pipeline.artifacts import Artifacts
from rxloop.recorded.replay import history, replay
from rxloop.testing import ScriptedModel, call
from rxloop.tools.sequential_thinking import sequential_thinking
from support.dropped_questions import LOGS, clerk, shared_logs, start_waiting_run, wait_until_idle


@pytest.fixture(params=LOGS)
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[EventLog]:
    async with AsyncExitStack() as stack:
        yield (await stack.enter_async_context(shared_logs(request.param, tmp_path, request)))()


async def read_texts(log: EventLog, owner: str) -> list[str]:
    return [message.text for message in await history(log, "c", owner=owner)]


async def test_model_receives_no_messages_of_other_owners(log: EventLog) -> None:
    model = ScriptedModel(*["Yes."] * 10)
    agent = Agent(model, log=log, thoughts=False)
    owners = ["ann", "bob", None, "ann", "", "bob"]
    for owner in owners:
        await agent.run(f"I am {owner or 'nobody'}.", context_id="c", owner=owner)
    prompts = [[each.text for each in request.messages if each.role == "user"] for request in model.requests]
    assert prompts == [
        ["I am ann."],
        ["I am bob."],
        ["I am nobody."],
        ["I am ann."] * 2,
        ["I am nobody."] * 2,
        ["I am bob."] * 2,
    ]
    last = (await log.list_runs(owner="bob"))[-1]
    assert [
        message.text for message in (await replay(log, last.task_id).result()).messages if message.role == "user"
    ] == ["I am bob."] * 2
    await agent.aclose()


async def test_stored_folds_contain_runs_of_one_owner(log: EventLog) -> None:
    agent = Agent(ScriptedModel(*["Yes."] * 10), log=log, thoughts=False)
    for owner in ("ann", "bob") * 3:
        await agent.run(f"I am {owner}.", context_id="c", owner=owner)
    await agent.aclose()
    # Another log object reads the stored folds instead of its cache.
    log.local.__init__()
    assert await read_texts(log, "ann") == ["I am ann.", "Yes."] * 3
    assert await read_texts(log, "bob") == ["I am bob.", "Yes."] * 3


async def test_history_requires_an_owner_when_several_owners_use_an_id(log: EventLog) -> None:
    agent = Agent(ScriptedModel(*["Yes."] * 10), log=log, thoughts=False)
    await agent.run("Hi", context_id="c", owner="ann")
    assert len(await history(log, "c")) == 2
    await agent.run("Hi", context_id="c")
    with pytest.raises(ConfigurationError, match="requires owner="):
        await history(log, "c")
    await agent.aclose()


async def test_run_does_not_drop_questions_of_other_owners(log: EventLog) -> None:
    async with Runtime({"clerk": clerk()}, log=log) as runtime:
        waiting = await start_waiting_run(runtime, context_id="c", owner="ann")
        for owner in ("bob", None):
            other = await runtime.start("clerk", "Never mind", context_id="c", owner=owner)
            assert (await wait_until_idle(runtime, other)).state == "completed"
        [pending] = await runtime.list_pending(owner="ann")
        await runtime.answer(waiting.task_id, {pending.inputs[0].input_id: True})
        async for _ in runtime.follow(waiting.task_id):
            pass
        assert (await runtime.get_record(waiting.task_id)).state == "completed"


async def test_run_does_not_wait_for_runs_of_other_owners(log: EventLog) -> None:
    held = asyncio.Event()

    @tool
    async def hold() -> str:
        """Wait."""
        await held.wait()
        return "held"

    agent = Agent(ScriptedModel(call("hold"), "Fine.", "Done."), tools=[hold], log=log, thoughts=False)
    async with agent.run("Hold", context_id="c", owner="ann") as run:
        await anext(event async for event in run.events if event.kind == "tool-start")
        assert (await agent.run("Hi", context_id="c", owner="bob")).output == "Fine."
        with pytest.raises(ContextBusy):
            await agent.run("Hi", context_id="c", owner="ann")
        held.set()
        assert (await run).output == "Done."
    await agent.aclose()


@tool
async def write(ctx: RunContext, text: str) -> str:
    """Write a page."""
    await (await ctx.artifacts.create("page")).append(text, last=True)
    return "written"


async def test_artifacts_of_owners_are_separate(log: EventLog) -> None:
    for owner in ("ann", "bob", None):
        model = ScriptedModel(call("write", text=f"of {owner}"), "Done.")
        agent = Agent(model, tools=[write], log=log, thoughts=False)
        run = agent.run("Write", context_id="c", owner=owner)
        await run
        assert await run.artifacts.read("page") == f"of {owner}".encode()
        record = await log.get_record(run.task_id)
        assert log.artifacts is not None
        assert await Artifacts(log.artifacts, record.conversation).read("page") == f"of {owner}".encode()
        await agent.aclose()


async def test_thinking_session_of_another_owner_is_unknown() -> None:
    def think(session_id: str | None = None) -> Any:
        arguments: dict[str, Any] = {"thought": "x", "thoughtNumber": 1, "totalThoughts": 2, "nextThoughtNeeded": True}
        return call("sequentialthinking", **arguments, **({"sessionId": session_id} if session_id else {}))

    log, thinking = MemoryEventLog(), sequential_thinking()
    first = await Agent(ScriptedModel(think(), "Done."), tools=[thinking], thoughts=False, log=log).run(
        "Think", context_id="c", owner="ann"
    )
    [session] = await thinking.sessions.all_sessions(owner=(await log.get_record(first.task_id)).conversation)
    second = await Agent(
        ScriptedModel(think(session.session_id), "Done."), tools=[thinking], thoughts=False, log=log
    ).run("Think", context_id="c", owner="bob")
    assert "unknown" in second.messages[2].text
    assert first.thoughts
    assert not second.thoughts


async def test_fork_belongs_to_the_owner_of_its_run(log: EventLog) -> None:
    agent = Agent(ScriptedModel(*["Yes."] * 10), log=log, thoughts=False)
    await agent.run("I am Bob.", context_id="c", owner="bob")
    await agent.run("I am Ann.", context_id="c", owner="ann")
    second = await agent.run("Who am I?", context_id="c", owner="ann")
    forked = await agent.fork(second.task_id, 1, prompt="Am I Ann?")
    record = await log.get_record(forked.task_id)
    assert record.owner == "ann"
    texts = [message.text for message in await history(log, record.context_id, owner="ann")]
    assert texts == ["I am Ann.", "Yes.", "Am I Ann?", "Yes."]
    await agent.aclose()


async def test_deleted_run_of_an_owner_leaves_conversations_of_others(log: EventLog) -> None:
    agent = Agent(ScriptedModel(*["Yes."] * 10), log=log, thoughts=False)
    for owner in ("ann", "bob", "ann", "bob"):
        await agent.run(f"I am {owner}.", context_id="c", owner=owner)
    await log.delete((await log.list_runs(owner="ann"))[0].task_id)
    assert await read_texts(log, "ann") == ["I am ann.", "Yes."]
    assert await read_texts(log, "bob") == ["I am bob.", "Yes."] * 2
    await log.trim(-3_600)
    assert await read_texts(log, "bob") == []
    await agent.aclose()


async def test_key_without_an_owner_is_the_same_for_an_empty_owner() -> None:
    log = MemoryEventLog()
    async with Runtime({"clerk": clerk()}, log=log) as runtime:
        records = [await runtime.start("clerk", "Hi", key="k", owner=owner) for owner in (None, "", "ann")]
    assert records[0].task_id == records[1].task_id != records[2].task_id
