"""What clients are told of runs, conversations and the server."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import Response

from rxloop.errors import EventLogError
from rxloop.pipeline.values import RunRecord
from rxloop.protocol.http import (
    AgentInfo,
    AgentList,
    ContextInfo,
    ContextPage,
    Health,
    MessageList,
    RunPage,
)
from rxloop.protocol.visibility import PUBLIC_METADATA
from rxloop.recorded.history import history
from rxloop.recorded.replay import replay
from rxloop.server.http.call import Call, written
from rxloop.server.http.infos import at_rest, for_clients, info_of, short_info, state_info
from rxloop.server.http.queries import (
    GraphQuery,
    InfoQuery,
    PageQuery,
    Query,
    RunsInContextQuery,
    RunsQuery,
    StateQuery,
)
from rxloop.server.refusals import Refused
from rxloop.state.conversation import read_log
from rxloop.state.fold import fold_all


async def record(call: Call[None, InfoQuery]) -> Response:
    """Tell where a run stands."""
    found = await at_rest(call, await call.record(), call.query.wait, None)
    return written(await info_of(call, found))


async def runs(call: Call[None, RunsQuery]) -> Response:
    """List the runs of whoever asks, newest first."""
    return await _runs(call, call.query.context_id)


async def context_runs(call: Call[None, RunsInContextQuery]) -> Response:
    """List the runs of a conversation, newest first."""
    return await _runs(call, await call.context_id())


async def _runs(call: Call[None, Any], context_id: str | None) -> Response:
    states = None if call.query.state is None else (call.query.state,)
    found, following = await _page(call, context_id=context_id, states=states)
    return written(RunPage(runs=[short_info(call, record) for record in found], next=following))


async def contexts(call: Call[None, PageQuery]) -> Response:
    """List the conversations of whoever asks, by their latest runs, newest first."""
    found, following = await _page(call, latest_only=True)
    infos: list[ContextInfo] = []
    for latest in found:
        first = next(iter(await read_log(call.host.runtime.log.runs, context_id=latest.context_id, limit=1)), latest)
        if not call.principal.may_see(first):
            continue  # Somebody else began it at the same moment, and has it.
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


async def _page(call: Call[None, Any], **wanted: Any) -> tuple[list[RunRecord], str | None]:
    """A page of the runs that somebody may see, newest first, and where the next one begins."""
    query, principal = call.query, call.principal
    if query.after is not None:
        await call.host.record(principal, query.after)
    owner = None if "others" in principal.scopes else principal.id
    limits: dict[str, Any] = {"newest_first": True, "after": query.after, "limit": query.limit + 1}
    found = await read_log(call.host.runtime.log.runs, owner=owner, **wanted, **limits)
    shown = [record for record in found if principal.may_see(record)][: query.limit]
    return shown, shown[-1].task_id if shown and len(found) > query.limit else None


async def messages(call: Call[None, Query]) -> Response:
    """Give the messages of a conversation, as clients may see them."""
    shown = await history(call.host.runtime.log, await call.context_id(), public=True)
    return written(MessageList(messages=shown))


async def state(call: Call[None, StateQuery]) -> Response:
    """Tell how a run stood after one of its events, as clients may see it, or all of it for those who may."""
    record, query = await call.record(), call.query
    call.check_visibility(query.visibility)
    seq = record.seq if query.seq is None else query.seq
    if seq > record.seq:
        raise Refused(422, "invalid", "there is no such event", fields={"seq": f"from 1 to {record.seq}"})
    events = await read_log(call.host.runtime.log.read, record.task_id)
    stood = fold_all(event for event in events if event.seq <= seq)
    info = state_info(record.task_id, seq, stood)
    return written(info if query.visibility == "all" else for_clients(info))


async def graph(call: Call[None, GraphQuery]) -> Response:
    """Draw the thoughts of a run."""
    record = await call.record()
    thoughts = (await replay(call.host.runtime.log, record.task_id).result()).thoughts
    match call.query.form:
        case "json":
            return Response(thoughts.to_json(), media_type="application/json")
        case "mermaid":
            return Response(thoughts.to_mermaid(), media_type="text/plain")
        case "html":
            return Response(thoughts.to_html(), media_type="text/html")


async def agents(call: Call[None, Query]) -> Response:
    """List the agents that runs can be started of."""
    return written(AgentList(agents=[_agent_info(name, each) for name, each in call.host.runtime.agents.items()]))


async def healthz(call: Call[None, Query]) -> Response:
    """Tell that the server is there."""
    return written(Health())


async def readyz(call: Call[None, Query]) -> Response:
    """Tell whether the server takes runs: it does not drain, and its log answers."""
    call.host.check_open()
    try:
        async with asyncio.timeout(2):
            await call.host.runtime.log.runs(limit=1)
    except (TimeoutError, EventLogError):
        raise Refused(503, "log", "the log is out of reach", headers={"retry-after": "5"}) from None
    return written(Health())


def _agent_info(name: str, agent: Any) -> AgentInfo:
    return AgentInfo(name=name, model=agent.model.name, tools=agent.tool_names)
