"""Where a run stands, as clients may see it."""

from __future__ import annotations

from typing import Any

import anyio

from rxloop.pipeline.logs import takes_deltas
from rxloop.pipeline.values import RunRecord
from rxloop.protocol.events import StatusUpdateEvent, ends_attempt
from rxloop.protocol.http import Deltas, RunInfo, StateInfo
from rxloop.protocol.questions import public_question
from rxloop.protocol.visibility import PUBLIC_METADATA, messages_for_clients, public_error
from rxloop.recorded.stream import OVER
from rxloop.server.host import Host
from rxloop.server.http.call import Call
from rxloop.server.questions import AT_REST, last_update
from rxloop.state.run_state import RunState


async def at_rest(call: Call[Any, Any], record: RunRecord, seconds: float, after: str | None) -> RunRecord:
    """Wait until a run has come to rest, for so long at most; what comes after `after` counts.

    Raises:
        Refused: The principal waits for too many already.
    """
    host = call.host
    if seconds and (after is not None or record.state not in AT_REST):
        host.take_stream(call.principal)
        scope = anyio.move_on_after(min(seconds, host.limits.wait))
        with host.streaming(call.principal, scope), scope:
            async for event in host.runtime.follow(record.task_id, after=after):
                if ends_attempt(event):
                    break
        return await host.runtime.record(record.task_id)
    return record if after is None else await host.runtime.record(record.task_id)


async def info_of(call: Call[Any, Any], record: RunRecord) -> RunInfo:
    """Tell where a run stands, with what its last attempt came to."""
    made = short_info(call, record)
    last = await last_update(call.host, record)
    shown = last.for_clients() if last is not None else None
    if not isinstance(shown, StatusUpdateEvent):
        return made
    names = ("content", "reason", "finish_reason", "pending", "usage", "error")
    return made.model_copy(update={name: getattr(shown, name) for name in names})


def short_info(call: Call[Any, Any], record: RunRecord) -> RunInfo:
    """Tell where a run stands, by what the log knows without its events."""
    return RunInfo(
        task_id=record.task_id,
        context_id=record.context_id,
        agent=record.agent_name,
        state=record.state,
        attempt=record.attempt,
        seq=record.seq,
        deltas=deltas_of(call.host, record),
        cursor=f"{record.task_id}/{record.attempt}.{record.seq}.0",
        created=record.created,
        updated=record.updated,
        events=call.path("runs", record.task_id, "events"),
        metadata=dict(record.metadata.get(PUBLIC_METADATA) or {}),
        usage=record.usage,
        error=None if record.error is None else public_error(record.error, None),
    )


def state_info(task_id: str, seq: int, state: RunState) -> StateInfo:
    """Tell how a run stood, with what is not for clients."""
    batch = state.batch
    return StateInfo(
        task_id=task_id,
        seq=seq,
        attempt=state.attempt,
        state=state.state,
        reason=state.reason,
        error=state.error,
        iteration=state.iteration,
        messages=list(state.messages),
        calls=[] if batch is None else [batch.calls[place] for place in batch.open],
        pending=list(state.pending.values()),
        content=state.content,
        usage=state.usage,
    )


def for_clients(info: StateInfo) -> StateInfo:
    """Show a state as clients may see it, by the rules of events."""
    return info.model_copy(
        update={
            "messages": list(messages_for_clients(info.messages)),
            "calls": [each for each in info.calls if not each.hidden],
            "pending": [public_question(each) for each in info.pending],
            "error": None if info.error is None else public_error(info.error, info.reason),
        }
    )


def deltas_of(host: Host, record: RunRecord, *, replayed: bool = False) -> Deltas:
    """What a stream of a run has of its deltas, as things are now."""
    log = host.runtime.log
    passed_on = takes_deltas(log) and not log.keeps_deltas
    if not replayed and record.state not in OVER and (passed_on or host.runtime.drives(record.task_id)):
        return "live"
    return "kept" if log.keeps_deltas else "none"
