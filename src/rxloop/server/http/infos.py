"""Where a run stands, as clients may see it."""

from __future__ import annotations

from typing import Any

import anyio

from rxloop.pipeline.values import RunRecord
from rxloop.protocol.events import StatusUpdateEvent, ends_attempt
from rxloop.protocol.http import RunInfo
from rxloop.protocol.visibility import PUBLIC_METADATA, public_error
from rxloop.server.host import Host
from rxloop.server.http.call import Call
from rxloop.state.conversation import read_log

AT_REST = ("completed", "failed", "canceled", "input-required", "auth-required")
"""The states in which nothing goes on."""


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


async def last_update(host: Host, record: RunRecord) -> StatusUpdateEvent | None:
    """What ended the last attempt of a run, if nothing has come since: that is all that has to be read."""
    if record.state not in AT_REST:
        return None
    found = await read_log(host.runtime.log.read, record.task_id, after_seq=record.seq - 1)
    last = found[-1] if found else None
    return last if isinstance(last, StatusUpdateEvent) and ends_attempt(last) else None


async def asks_in_secret(host: Host, record: RunRecord) -> bool:
    """Whether one of the questions of a run is not for clients."""
    last = await last_update(host, record)
    return last is None or any(each.call is not None and each.call.hidden for each in last.pending)


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
        cursor=f"{record.task_id}/{record.attempt}.{record.seq}.0",
        created=record.created,
        updated=record.updated,
        events=call.path("runs", record.task_id, "events"),
        metadata=dict(record.metadata.get(PUBLIC_METADATA) or {}),
        usage=record.usage,
        error=None if record.error is None else public_error(record.error, None),
    )
