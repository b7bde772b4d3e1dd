"""JSON responses for runs, conversations and states."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial, reduce
from typing import Any

import anyio
from pydantic.alias_generators import to_camel
from reactivex import operators as ops
from starlette.responses import Response

from rxloop.coordination.answers import read_snapshot
from rxloop.coordination.order import is_idle
from rxloop.errors import EventLogError
from rxloop.operators.views.filters import until_final
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import WAITING, Event, StatusUpdateEvent, ends_attempt
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
)
from rxloop.protocol.messages import public_question
from rxloop.protocol.visibility import PUBLIC_METADATA
from rxloop.recorded.follow import FINAL_STATES
from rxloop.recorded.questions import IDLE_STATES, RunStatus, list_pending, read_status
from rxloop.recorded.replay import history
from rxloop.recorded.summary import make_run_info
from rxloop.server.core.errors import Refused
from rxloop.server.core.gateway import Gateway
from rxloop.server.core.stream import read_to_end, wait_disconnected
from rxloop.server.http.requests import (
    ApiCall,
    ContextQuery,
    GraphQuery,
    InfoQuery,
    PageQuery,
    PendingQuery,
    Query,
    RunsInContextQuery,
    write_json,
)
from rxloop.support.threads import compute
from rxloop.thinking.graph import ThoughtGraph


async def wait_until_idle(
    call: ApiCall[Any, Any],
    record: RunRecord,
    seconds: float,
    after: str | None,
    on_disconnect: Callable[[], Coroutine[Any, Any, None]] | None = None,
) -> tuple[RunRecord, StatusUpdateEvent | None]:
    """Wait until a run is idle, until the timeout, or until the client disconnects.

    Args:
        call: Current request.
        record: Record of the run.
        seconds: Timeout in seconds, shortened to the limit of the server.
        after: Cursor that the end of the attempt must follow. If None, a run that is already idle is returned
            immediately.
        on_disconnect: Called if the client disconnects.

    Returns:
        The run, and the final event of its last attempt if that event arrived while waiting.

    Raises:
        Refused: If the principal has too many open streams.
    """
    gateway = call.gateway
    if seconds and after is None and not await _is_idle(gateway, record):
        # Ignore earlier attempts.
        after = record.cursor
    if seconds and after is not None:
        ends: list[Event] = []
        followed = gateway.runtime.follow(record.task_id, after=after)
        events = followed.pipe(until_final(), ops.take_last(1), ops.do_action(ends.append))
        with gateway.reserve_stream(call.principal) as slot:
            slot.scope.deadline = anyio.current_time() + min(seconds, gateway.limits.wait)
            end = await read_to_end(slot, events, disconnected=partial(wait_disconnected, call.request.receive))
        if end == "disconnected":
            gateway.slots.note_abandoned(call.principal.id)
            if on_disconnect is not None:
                gateway.spawn(on_disconnect())
        last = ends[0] if ends else None
        if isinstance(last, StatusUpdateEvent) and last.state in IDLE_STATES and ends_attempt(last):
            return record.apply_end(last), last
    if after is not None:
        record = await gateway.runtime.get_record(record.task_id)
    return record, None


async def _is_idle(gateway: Gateway, record: RunRecord) -> bool:
    """Return True if the run is over, or is waiting and has no pending answers."""
    if record.state not in WAITING:
        return record.state in FINAL_STATES
    return is_idle(await read_snapshot(gateway.runtime.log, record.task_id))


async def make_info(call: ApiCall[Any, Any], record: RunRecord, last: StatusUpdateEvent | None = None) -> RunInfo:
    """Return a run's state, open questions and last outcome.

    Args:
        call: Current request.
        record: Record of the run. It may be outdated.
        last: Final event that `record` includes, if the caller has just read it.
    """
    if last is not None:
        status = RunStatus(record, last.state, last.pending, last)
    else:
        status = await read_status(call.gateway.runtime.log, record)
    info = make_short_info(call, status.record).model_copy(update={"state": status.state})
    public_last = status.last.to_public() if status.last is not None else None
    if not isinstance(public_last, StatusUpdateEvent):
        return info.model_copy(update={"pending": [public_question(each) for each in status.pending]})
    names = ("content", "reason", "finish_reason", "pending", "usage", "error")
    return info.model_copy(update={name: getattr(public_last, name) for name in names})


def make_short_info(call: ApiCall[Any, Any], record: RunRecord) -> RunInfo:
    """Return a run's state without reading events."""
    return make_run_info(
        record,
        owner=record.owner if "others" in call.principal.scopes else None,
        deltas=get_delta_availability(call.gateway, record),
        events=call.path("runs", record.task_id, "events"),
    )


def get_delta_availability(gateway: Gateway, record: RunRecord, *, replayed: bool = False) -> Deltas:
    """Return the current availability of deltas in a run's stream."""
    log = gateway.runtime.log
    passes_deltas = log.takes_deltas and not log.keeps_deltas
    is_executing = record.state in ("submitted", "working") and gateway.runtime.is_executing(record.task_id)
    if not replayed and record.state not in FINAL_STATES and (passes_deltas or is_executing):
        return "live"
    return "kept" if log.keeps_deltas else "none"


async def record(call: ApiCall[None, InfoQuery]) -> Response:
    """Return the state of a run."""
    if call.query.wait:
        # Check first, because a refusal should not cost a query.
        call.gateway.check_stream(call.principal)
    latest, last = await wait_until_idle(call, await call.record(), call.query.wait, None)
    return write_json(await make_info(call, latest, last))


async def context_runs(call: ApiCall[None, RunsInContextQuery]) -> Response:
    """List the runs of a conversation, newest first."""
    context_id, owner = await call.find_conversation(call.query.owner)
    await _find_owner(call)
    states = None if call.query.state is None else (call.query.state,)
    records, next_cursor = await _read_page(call, owner, context_id=context_id, states=states)
    return write_json(RunPage(runs=[make_short_info(call, record) for record in records], next=next_cursor))


async def pending(call: ApiCall[None, PendingQuery]) -> Response:
    """List the caller's runs with unanswered questions, newest first."""
    query = call.query
    found = await list_pending(
        call.gateway.runtime.log,
        owner=await _find_owner(call),
        context_id=query.context_id,
        agent_name=query.agent,
        newest_first=True,
        after=query.after,
        limit=query.limit + 1,
    )
    visible = [each for each in found if call.principal.may_see(each.record)][: query.limit]
    infos = [
        make_short_info(call, each.record).model_copy(
            update={"pending": [public_question(question) for question in each.inputs]}
        )
        for each in visible
    ]
    return write_json(RunPage(runs=infos, next=infos[-1].task_id if infos and len(found) > query.limit else None))


async def contexts(call: ApiCall[None, PageQuery]) -> Response:
    """List the caller's conversations, by their latest runs, newest first."""
    records, next_cursor = await _read_page(call, await _find_owner(call), latest_only=True)
    infos: list[ContextInfo] = []
    for latest in records:
        earliest = await read_log(call.gateway.runtime.log.list_conversation, latest.conversation, limit=1)
        first = next(iter(earliest), latest)
        infos.append(
            ContextInfo(
                context_id=latest.context_id,
                owner=latest.owner if "others" in call.principal.scopes else None,
                created=first.created,
                updated=latest.updated,
                task_id=latest.task_id,
                agent=latest.agent_name,
                state=latest.state,
                metadata=dict(first.metadata.get(PUBLIC_METADATA) or {}),
            )
        )
    return write_json(ContextPage(contexts=infos, next=next_cursor))


async def _find_owner(call: ApiCall[None, Any]) -> str | None:
    """Check the cursor of a page, and return the owner of all visible runs. None includes every owner.

    Raises:
        Refused: The run of the cursor is unknown or belongs to another principal.
    """
    if call.query.after is not None:
        await call.gateway.find_run(call.principal, call.query.after)
    return None if "others" in call.principal.scopes else call.principal.id


async def _read_page(call: ApiCall[None, Any], owner: str | None, **filters: Any) -> tuple[list[RunRecord], str | None]:
    """Return a page of visible runs, newest first, with the next page's cursor."""
    query = call.query
    limits: dict[str, Any] = {"newest_first": True, "after": query.after, "limit": query.limit + 1}
    records = await read_log(call.gateway.runtime.log.list_runs, owner=owner, **filters, **limits)
    visible = [record for record in records if call.principal.may_see(record)][: query.limit]
    return visible, visible[-1].task_id if visible and len(records) > query.limit else None


async def messages(call: ApiCall[None, ContextQuery]) -> Response:
    """Return the public messages of a conversation."""
    context_id, owner = await call.find_conversation(call.query.owner)
    public_messages = await history(call.gateway.runtime.log, context_id, owner=owner, public=True)
    # Validating and encoding a message are separate steps.
    return await compute(lambda: write_json(MessageList(messages=public_messages)), steps=2 * len(public_messages))


async def graph(call: ApiCall[None, GraphQuery]) -> Response:
    """Return the thought graph of a run."""
    record, form = await call.record(), call.query.form

    thoughts = ThoughtGraph()

    def add(events: Sequence[Event]) -> None:
        nonlocal thoughts
        thoughts = reduce(ThoughtGraph.add, events, thoughts)

    def respond() -> Response:
        match form:
            case "json":
                return Response(thoughts.to_json(), media_type="application/json")
            case "mermaid":
                return Response(thoughts.to_mermaid(), media_type="text/plain")
            case "html":
                return Response(thoughts.to_html(), media_type="text/html")

    gateway = call.gateway
    with gateway.reserve_stream(call.principal):
        return await gateway.computations.fold(call.principal.id, gateway.runtime.log, record, add, respond)


async def agents(call: ApiCall[None, Query]) -> Response:
    """List the available agents."""
    options: dict[str, Any] = {"models": list(call.models), "settings": sorted(map(to_camel, call.settings))}
    agents = call.gateway.runtime.agents.items()
    return write_json(AgentList(agents=[_agent_info(name, each).model_copy(update=options) for name, each in agents]))


async def healthz(call: ApiCall[None, Query]) -> Response:
    """Report that the server is running."""
    return write_json(Health())


async def readyz(call: ApiCall[None, Query]) -> Response:
    """Report whether the server accepts new runs and its event log responds."""
    call.gateway.check_accepting()
    try:
        async with asyncio.timeout(2):
            await call.gateway.runtime.log.list_runs(limit=1)
    except (TimeoutError, EventLogError):
        raise Refused(503, "log", "the event log is unavailable", headers={"retry-after": "5"}) from None
    return write_json(Health())


def _agent_info(name: str, agent: Any) -> AgentInfo:
    return AgentInfo(name=name, model=agent.model.name, tools=agent.definition.tool_names)
