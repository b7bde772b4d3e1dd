"""Functions that read and continue old runs, and return JSON.

`generate.py` stores their results in `expected.json`. The tests compare these with the current results. Only this
file and `agents.py` import names from rxloop that affect the results.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel

from rxloop import (
    Agent,
    Event,
    EventLog,
    Message,
    PendingInput,
    RunRecord,
    RunState,
    Runtime,
    RxloopError,
    follow,
    history,
    replay,
)
from rxloop.state import fold
from rxloop.storage import SqliteArtifacts
from rxloop.thinking import ThinkingSessions
from storage.old_logs.agents import ANSWERS, Shop

REASON = "no longer needed"
MAX_CHARACTERS = 32
"""Compared characters per message of a continued run. Later versions may reword the rest."""
MESSAGE = "And be quick."


# Reading


async def read_record(log: EventLog, task_id: str) -> dict[str, Any]:
    return to_record(await log.get_record(task_id))


async def list_records(log: EventLog, **options: Any) -> list[str]:
    return [record.task_id for record in await log.list_runs(**options)]


async def list_orphaned(log: EventLog) -> list[str]:
    """Return the ids of orphaned runs, including submitted ones."""
    return [record.task_id for record in await log.list_orphaned(submitted_before=0)]


async def read_events(log: EventLog, task_id: str, **options: Any) -> list[Any]:
    return [to_json(event) for event in await log.read(task_id, **options)]


async def read_commands(log: EventLog, task_id: str) -> list[Any]:
    return [[number, orjson.loads(command.to_json())] for number, command in await log.read_commands(task_id)]


async def fold_events(log: EventLog, task_id: str) -> dict[str, Any]:
    state = RunState()
    for event in await log.read(task_id):
        state = fold(state, event)
    return {
        "seq": state.seq,
        "attempt": state.attempt,
        "iteration": state.iteration,
        "state": state.state,
        "reason": state.reason,
        "error": to_json(state.error),
        "messages": to_json(list(state.messages)),
        "held": to_json(list(state.held)),
        "usage": to_json(state.usage),
        "content": state.content,
        "pending": to_json(list(state.pending.values())),
        "answers": to_json(state.answers),
        "thoughts": list(state.thoughts),
        "calls": list(state.calls),
        "lastCommand": state.last_command,
    }


async def replay_run(log: EventLog, task_id: str) -> dict[str, Any]:
    """Replay a run and return its result and event kinds."""
    replayed = replay(log, task_id)
    result = await replayed.result()
    return {
        "state": result.state,
        "reason": result.reason,
        "content": result.content,
        "finishReason": result.finish_reason,
        "messages": to_json(result.messages),
        "usage": to_json(result.usage),
        "pending": to_json(result.pending),
        "error": to_json(result.error),
        "files": to_json(list(result.files)),
        "citations": to_json(list(result.citations)),
        "thoughts": orjson.loads(result.thoughts.to_json()),
        "kinds": [event.kind async for event in replayed],
    }


async def follow_run(log: EventLog, task_id: str, count: int, *, ends: bool, after: str | None = None) -> list[Any]:
    """Follow a run and return the received events.

    Args:
        log: Log of the run.
        task_id: Run id.
        count: Number of stored events.
        ends: True if following ends by itself because no attempt is active.
        after: Cursor after which to start.
    """
    events: list[Any] = []
    async for event in follow(log, task_id, after=after):
        events.append(to_json(event))
        if not ends and len(events) == count:
            break
    return events


async def read_history(log: EventLog, context_id: str) -> dict[str, Any]:
    return {
        "messages": to_json(await history(log, context_id)),
        "public": to_json(await history(log, context_id, public=True)),
    }


async def read_artifacts(log: Any, context_id: str) -> list[Any]:
    store = log.artifacts
    try:
        return [
            [
                version.artifact_id,
                version.version,
                version.name,
                version.media_type,
                version.complete,
                (await store.read(context_id, version.artifact_id, version=version.version)).decode(),
            ]
            for record in await store.list(context_id)
            for version in await store.versions(context_id, record.artifact_id)
        ]
    finally:
        await store.aclose()


async def read_session(path: Path, session_id: str) -> list[Any]:
    sessions = ThinkingSessions(SqliteArtifacts(path), ttl=None)
    try:
        return to_json((await sessions.get_session(session_id)).thoughts)
    finally:
        await sessions.aclose()


# Continuing


async def execute(log: EventLog, task_id: str) -> dict[str, Any]:
    """Execute a run until it finishes or waits."""
    shop = Shop(log)
    return await _outcome(log, shop, task_id, (await _agent(shop, log, task_id)).get_run(task_id).execute())


async def resume(log: EventLog, task_id: str) -> dict[str, Any]:
    shop = Shop(log)
    return await _outcome(log, shop, task_id, (await _agent(shop, log, task_id)).resume(task_id).result())


async def answer(log: EventLog, task_id: str) -> dict[str, Any]:
    """Answer up to three rounds of questions, executing the run after each round."""
    shop = Shop(log)
    agent = await _agent(shop, log, task_id)

    async def answer_all() -> None:
        for _ in range(3):
            pending = (await replay(log, task_id).result()).pending
            inputs = answer_questions(pending)
            if not inputs:
                break
            if any(each.input_kind == "credential" for each in pending):
                # A credential is never stored, so it cannot be sent as a command.
                await agent.resume(task_id, inputs=inputs)
            else:
                await agent.get_run(task_id).answer(inputs)
                await agent.get_run(task_id).execute()

    return await _outcome(log, shop, task_id, answer_all())


async def decline(log: EventLog, task_id: str) -> dict[str, Any]:
    """Decline all pending questions."""
    shop = Shop(log)
    inputs = {each.input_id: False for each in (await replay(log, task_id).result()).pending}
    return await _outcome(
        log, shop, task_id, (await _agent(shop, log, task_id)).resume(task_id, inputs=inputs).result()
    )


async def cancel(log: EventLog, task_id: str) -> dict[str, Any]:
    shop = Shop(log)
    return await _outcome(log, shop, task_id, (await _agent(shop, log, task_id)).get_run(task_id).cancel(REASON))


async def send_message(log: EventLog, task_id: str) -> dict[str, Any]:
    """Send a message to a run, and execute the run."""
    shop = Shop(log)
    agent = await _agent(shop, log, task_id)

    async def send_and_execute() -> None:
        await agent.get_run(task_id).send(MESSAGE)
        await agent.get_run(task_id).execute()

    return await _outcome(log, shop, task_id, send_and_execute())


async def fork_run(log: EventLog, task_id: str, at: int) -> dict[str, Any]:
    """Fork a run and execute the fork."""
    shop = Shop(log)
    agent = await _agent(shop, log, task_id)
    forked = agent.fork(task_id, at)
    outcome = await _outcome(log, shop, forked.task_id, forked.result(), first_seq=at)
    task = to_json((await log.read(forked.task_id))[0])
    return {**outcome, "forkOf": task["forkOf"], "forkSeq": task["forkSeq"]}


async def run_next(log: EventLog, context_id: str) -> dict[str, Any]:
    """Continue a conversation with a new run of its owner, and return its first model request."""
    shop = Shop(log)
    [*_, last] = await log.list_runs(context_id=context_id)
    result = await shop.clerk.run("Say hello.", context_id=context_id, owner=last.owner)
    await shop.aclose()
    return {
        "request": [f"{message.role}: {message.text[:MAX_CHARACTERS]}" for message in shop.requests[0].messages],
        "history": len(await history(log, context_id)),
        "state": result.state,
    }


async def adopt(log: EventLog) -> dict[str, Any]:
    """Let a runtime adopt orphaned runs, and return their final states."""
    shop = Shop(log)
    orphaned = await list_orphaned(log)
    runtime = Runtime(shop.agents, log=log, adopt_every=0.02)
    # Submitted runs are reserved for their process for half a minute.
    adopted = [task_id for task_id in orphaned if (await log.get_record(task_id)).state != "submitted"]
    before = {task_id: (await log.get_record(task_id)).seq for task_id in adopted}
    async with runtime:
        for task_id in adopted:
            async for event in runtime.follow(task_id):
                if getattr(event, "final", False) and event.task_id == task_id and event.seq > before[task_id]:
                    break
        states = {task_id: (await runtime.get_record(task_id)).state for task_id in adopted}
    await shop.aclose()
    return {"states": states, "effects": sorted(shop.effects)}


async def start_again(log: EventLog, **options: Any) -> dict[str, Any]:
    """Start a run with a used key."""
    shop = Shop(log)
    async with Runtime(shop.agents, log=log) as runtime:
        record = await runtime.start("clerk", "Say hello.", **options)
    await shop.aclose()
    # The runtime also adopts orphaned runs, whose requests are not compared.
    own = [request for request in shop.requests if request.messages[0].text == "Say hello."]
    return {"taskId": record.task_id, "seq": record.seq, "requests": len(own)}


async def _agent(shop: Shop, log: EventLog, task_id: str) -> Agent[None, Any]:
    return shop.agents[(await log.get_record(task_id)).agent_name]


async def _outcome(log: EventLog, shop: Shop, task_id: str, work: Any, first_seq: int | None = None) -> dict[str, Any]:
    """Await the work and return its effects on a run.

    Args:
        log: Log of the run.
        shop: Agents that continue the run.
        task_id: Run id.
        work: Awaitable that continues the run.
        first_seq: Number of events before the work. By default, it is read from the log.
    """
    seq = (await log.get_record(task_id)).seq if first_seq is None else first_seq
    refused = False
    try:
        await asyncio.wait_for(work, 20)
    except RxloopError:
        refused = True
    await shop.aclose()
    events = await log.read(task_id)
    state = await replay(log, task_id).result()
    return {
        "raised": refused,
        "state": state.state,
        "reason": state.reason,
        "content": state.content,
        "messages": [f"{message.role}: {message.text[:MAX_CHARACTERS]}" for message in state.messages],
        "usage": to_json(state.usage),
        "pending": [each.input_id for each in state.pending],
        "attempt": events[-1].attempt,
        "kinds": [event.kind for event in events[seq:]],
        "effects": shop.effects,
        "requests": [len(request.messages) for request in shop.requests],
    }


def answer_questions(questions: Sequence[PendingInput]) -> dict[str, Any]:
    return {each.input_id: ANSWERS[each.input_kind] for each in questions}


# JSON


def to_record(record: RunRecord) -> dict[str, Any]:
    return {
        "taskId": record.task_id,
        "contextId": record.context_id,
        "agentName": record.agent_name,
        "state": record.state,
        "attempt": record.attempt,
        "seq": record.seq,
        "created": record.created,
        "updated": record.updated,
        "model": record.model,
        "owner": record.owner,
        "metadata": to_json(dict(record.metadata)),
        "usage": to_json(record.usage),
        "error": to_json(record.error),
    }


def to_json(value: Event | Message | BaseModel | Sequence[Any] | Any) -> Any:
    """Convert events, messages and other models to JSON."""
    if isinstance(value, Event):
        return orjson.loads(value.to_json())
    if isinstance(value, BaseModel):
        # Exclude fields that only later versions have.
        return value.model_dump(mode="json", exclude_defaults=True)
    if isinstance(value, dict):
        return {key: to_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(each) for each in value]
    return value
