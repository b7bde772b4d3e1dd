"""JSON responses for runs, conversations and states."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
from starlette.responses import Response

from rxloop.coordination.order import is_idle
from rxloop.errors import EventLogError
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import WAITING, StatusUpdateEvent, ends_attempt
from rxloop.protocol.http_api import (
    AgentInfo,
    AgentList,
    ContextInfo,
    ContextPage,
    Deltas,
    Health,
    MessageList,
    RunInfo,
    RunPage,
    StateInfo,
)
from rxloop.protocol.messages import public_question
from rxloop.protocol.visibility import PUBLIC_METADATA, redact_error, select_public_messages
from rxloop.recorded.follow import OVER
from rxloop.recorded.replay import history, replay
from rxloop.server.core.errors import Refused
from rxloop.server.core.gateway import Gateway
from rxloop.server.core.runs import AT_REST, find_last_update, list_pending_inputs
from rxloop.server.http.requests import (
    ApiCall,
    GraphQuery,
    InfoQuery,
    PageQuery,
    Query,
    RunsInContextQuery,
    RunsQuery,
    StateQuery,
    written,
)
from rxloop.state.fold import fold_all
from rxloop.state.run_state import RunState


async def wait_until_idle(
    call: ApiCall[Any, Any], record: RunRecord, seconds: float, after: str | None
) -> tuple[RunRecord, StatusUpdateEvent | None]:
    """Wait with a timeout until a run is idle.

    Args:
        call: Current request.
        record: Record of the run.
        seconds: Timeout in seconds.
        after: Cursor after which the end of an attempt counts. If None, a run that is already idle is returned
            immediately.

    Returns:
        The run, and the final event of its last attempt if that event arrived while waiting.

    Raises:
        Refused: If the principal has too many open streams.
    """
    gateway = call.gateway
    if seconds and after is None and not await _is_at_rest(gateway, record):
        # Ignore earlier attempts.
        after = cursor_of(record)
    if seconds and after is not None:
        with gateway.reserve_stream(call.principal) as slot, slot.scope:
            slot.scope.deadline = anyio.current_time() + min(seconds, gateway.limits.wait)
            async for event in gateway.runtime.follow(record.task_id, after=after):
                if isinstance(event, StatusUpdateEvent) and event.state in AT_REST and ends_attempt(event):
                    return record.ended_by(event), event
                if ends_attempt(event):
                    break
    if after is not None:
        record = await gateway.runtime.get_record(record.task_id)
    return record, None


async def _is_at_rest(gateway: Gateway, record: RunRecord) -> bool:
    """True if the run is over, or is waiting and has no pending answers."""
    if record.state not in WAITING:
        return record.state in OVER
    return is_idle(await read_log(gateway.runtime.log.snapshot, record.task_id))


def cursor_of(record: RunRecord) -> str:
    """Return the cursor of a run's last event."""
    return f"{record.task_id}/{record.attempt}.{record.seq}.0"


async def info_of(call: ApiCall[Any, Any], record: RunRecord, last: StatusUpdateEvent | None = None) -> RunInfo:
    """Return a run's state, open questions and last outcome.

    Args:
        call: Current request.
        record: Record of the run.
        last: Final event of the last attempt, if the caller has already read it. By default, it is read from the log.
    """
    made = short_info(call, record)
    if record.state == "working":
        pending = await list_pending_inputs(call.gateway, record)
        return made.model_copy(update={"pending": [public_question(each) for each in pending]})
    last = last or await find_last_update(call.gateway, record)
    shown = last.to_public() if last is not None else None
    if not isinstance(shown, StatusUpdateEvent):
        return made
    names = ("content", "reason", "finish_reason", "pending", "usage", "error")
    return made.model_copy(update={name: getattr(shown, name) for name in names})


def short_info(call: ApiCall[Any, Any], record: RunRecord) -> RunInfo:
    """Return a run's state without reading events."""
    return RunInfo(
        task_id=record.task_id,
        context_id=record.context_id,
        agent=record.agent_name,
        state=record.state,
        attempt=record.attempt,
        seq=record.seq,
        deltas=deltas_of(call.gateway, record),
        cursor=cursor_of(record),
        created=record.created,
        updated=record.updated,
        events=call.path("runs", record.task_id, "events"),
        metadata=dict(record.metadata.get(PUBLIC_METADATA) or {}),
        usage=record.usage,
        error=None if record.error is None else redact_error(record.error, None),
    )


def state_info(task_id: str, seq: int, state: RunState) -> StateInfo:
    """Convert a run state to its JSON model, including internal data."""
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
    """Remove internal data from a state, following the rules for events."""
    return info.model_copy(
        update={
            "messages": list(select_public_messages(info.messages)),
            "calls": [each for each in info.calls if not each.hidden],
            "pending": [public_question(each) for each in info.pending],
            "error": None if info.error is None else redact_error(info.error, info.reason),
        }
    )


def deltas_of(gateway: Gateway, record: RunRecord, *, replayed: bool = False) -> Deltas:
    """Return the current availability of deltas in a run's stream."""
    log = gateway.runtime.log
    passed_on = log.takes_deltas and not log.keeps_deltas
    is_driven = record.state in ("submitted", "working") and gateway.runtime.drives(record.task_id)
    if not replayed and record.state not in OVER and (passed_on or is_driven):
        return "live"
    return "kept" if log.keeps_deltas else "none"


async def record(call: ApiCall[None, InfoQuery]) -> Response:
    """Tell where a run stands."""
    found, last = await wait_until_idle(call, await call.record(), call.query.wait, None)
    return written(await info_of(call, found, last))


async def runs(call: ApiCall[None, RunsQuery]) -> Response:
    """List the runs of whoever asks, newest first."""
    return await _runs(call, call.query.context_id)


async def context_runs(call: ApiCall[None, RunsInContextQuery]) -> Response:
    """List the runs of a conversation, newest first."""
    return await _runs(call, await call.context_id())


async def _runs(call: ApiCall[None, Any], context_id: str | None) -> Response:
    states = None if call.query.state is None else (call.query.state,)
    found, following = await _page(call, context_id=context_id, states=states)
    return written(RunPage(runs=[short_info(call, record) for record in found], next=following))


async def contexts(call: ApiCall[None, PageQuery]) -> Response:
    """List the conversations of whoever asks, by their latest runs, newest first."""
    found, following = await _page(call, latest_only=True)
    infos: list[ContextInfo] = []
    for latest in found:
        first = next(
            iter(await read_log(call.gateway.runtime.log.list_runs, context_id=latest.context_id, limit=1)), latest
        )
        if not call.principal.may_see(first):
            continue  # Another principal owns the conversation because of a concurrent start.
        infos.append(
            ContextInfo(
                context_id=latest.context_id,
                created=first.created,
                updated=latest.updated,
                task_id=latest.task_id,
                agent=latest.agent_name,
                state=latest.state,
                metadata=dict(first.metadata.get(PUBLIC_METADATA) or {}),
            )
        )
    return written(ContextPage(contexts=infos, next=following))


async def _page(call: ApiCall[None, Any], **wanted: Any) -> tuple[list[RunRecord], str | None]:
    """Return a page of visible runs, newest first, with the next page's cursor."""
    query, principal = call.query, call.principal
    if query.after is not None:
        await call.gateway.find_run(principal, query.after)
    owner = None if "others" in principal.scopes else principal.id
    limits: dict[str, Any] = {"newest_first": True, "after": query.after, "limit": query.limit + 1}
    found = await read_log(call.gateway.runtime.log.list_runs, owner=owner, **wanted, **limits)
    shown = [record for record in found if principal.may_see(record)][: query.limit]
    return shown, shown[-1].task_id if shown and len(found) > query.limit else None


async def messages(call: ApiCall[None, Query]) -> Response:
    """Give the messages of a conversation, as clients may see them."""
    shown = await history(call.gateway.runtime.log, await call.context_id(), public=True)
    return written(MessageList(messages=shown))


async def state(call: ApiCall[None, StateQuery]) -> Response:
    """Tell how a run stood after one of its events, as clients may see it, or all of it for those who may."""
    record, query = await call.record(), call.query
    call.check_visibility(query.visibility)
    seq = record.seq if query.seq is None else query.seq
    if seq > record.seq:
        raise Refused(422, "invalid", "there is no such event", fields={"seq": f"from 1 to {record.seq}"})
    events = await read_log(call.gateway.runtime.log.read, record.task_id)
    stood = fold_all(event for event in events if event.seq <= seq)
    info = state_info(record.task_id, seq, stood)
    return written(info if query.visibility == "all" else for_clients(info))


async def graph(call: ApiCall[None, GraphQuery]) -> Response:
    """Draw the thoughts of a run."""
    record = await call.record()
    thoughts = (await replay(call.gateway.runtime.log, record.task_id).result()).thoughts
    match call.query.form:
        case "json":
            return Response(thoughts.to_json(), media_type="application/json")
        case "mermaid":
            return Response(thoughts.to_mermaid(), media_type="text/plain")
        case "html":
            return Response(thoughts.to_html(), media_type="text/html")


async def agents(call: ApiCall[None, Query]) -> Response:
    """List the agents that runs can be started of."""
    return written(AgentList(agents=[_agent_info(name, each) for name, each in call.gateway.runtime.agents.items()]))


async def healthz(call: ApiCall[None, Query]) -> Response:
    """Tell that the server is there."""
    return written(Health())


async def readyz(call: ApiCall[None, Query]) -> Response:
    """Tell whether the server takes runs: it does not drain, and its log answers."""
    call.gateway.check_accepting()
    try:
        async with asyncio.timeout(2):
            await call.gateway.runtime.log.list_runs(limit=1)
    except (TimeoutError, EventLogError):
        raise Refused(503, "log", "the log is out of reach", headers={"retry-after": "5"}) from None
    return written(Health())


def _agent_info(name: str, agent: Any) -> AgentInfo:
    return AgentInfo(name=name, model=agent.model.name, tools=agent.definition.tool_names)
