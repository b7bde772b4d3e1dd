"""Handler used to compare two runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from rxloop.operators.views.compare import filter_comparable
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import Event
from rxloop.protocol.http_api.comparison import ComparedCost, ComparedEvents, ComparedRun, RunComparison
from rxloop.protocol.messages import Message
from rxloop.protocol.visibility import select_public_messages
from rxloop.recorded.diff import RunCost, RunSide, compare_runs
from rxloop.recorded.pairs import EqualEvents, EventPair, fold_equal_pairs, pair_events
from rxloop.server.core.computations import WholeRuns
from rxloop.server.core.errors import Refused
from rxloop.server.http.inspection import encode_response
from rxloop.server.http.requests import ApiCall, DiffQuery
from rxloop.storage.conversation import conversation

MAX_EVENTS = 100_000
"""Maximum number of events of both runs."""
MAX_PAIRS = 5_000
"""Maximum number of pairs in a response."""


class _Side(NamedTuple):
    record: RunRecord
    events: Sequence[Event]
    before: Sequence[Message]


async def diff(call: ApiCall[None, DiffQuery]) -> Response:
    """Compare a run with another run."""
    record = await call.record()
    other = await call.gateway.find_run(call.principal, call.query.other)
    call.check_visibility(call.query.visibility)
    if (count := record.seq + other.seq) > MAX_EVENTS:
        size = f"they have {count:,} events, more than {MAX_EVENTS:,}"
        raise Refused(422, "too_large", f"the runs are too large to be compared: {size}")
    log, internal = call.gateway.runtime.log, call.query.visibility == "all"
    with call.gateway.reserve_stream(call.principal):
        async with call.gateway.computations.hold_runs(call.principal.id) as runs:
            a = await _read_side(log, runs, record, internal=internal)
            b = await _read_side(log, runs, other, internal=internal)
            return await runs.compute(partial(_respond, call.request, a, b))


async def _read_side(log: EventLog, runs: WholeRuns, record: RunRecord, *, internal: bool) -> _Side:
    """Read a run, and the conversation before it."""
    events = await runs.read(log, record, select=None if internal else Event.to_public)
    before = (await conversation(log, record.conversation, before=record.task_id)).messages
    return _Side(record, events, before if internal else select_public_messages(before))


def _respond(request: Request, a: _Side, b: _Side) -> Response:
    """Return the response. For long runs, this takes seconds."""
    found = compare_runs(a.events, b.events, a.before, b.before)
    lines = (filter_comparable(a.events), filter_comparable(b.events))
    pairs: list[ComparedEvents] = []
    more = 0
    for each in fold_equal_pairs(pair_events(*lines, a.before, b.before)):
        if len(pairs) < MAX_PAIRS:
            pairs.append(_convert_pair(each))
        else:
            more += each.size if isinstance(each, EqualEvents) else 1
    first = found.first
    comparison = RunComparison(
        shared=found.shared,
        at=None if first is None else (_find_seq(first[0]), _find_seq(first[1])),
        a=_convert_side(found.a, a.record),
        b=_convert_side(found.b, b.record),
        pairs=pairs,
        more=more,
    )
    return encode_response(comparison, request)


def _convert_pair(pair: EventPair | EqualEvents) -> ComparedEvents:
    if isinstance(pair, EventPair):
        return ComparedEvents(change=pair.change, a=_find_seq(pair.a), b=_find_seq(pair.b))
    (first_a, first_b, _), (last_a, last_b, _) = pair.first, pair.last
    events = ComparedEvents(change="same", a=_find_seq(first_a), b=_find_seq(first_b), count=pair.size)
    if pair.size == 1 or last_a is None or last_b is None:
        return events
    return events.model_copy(update={"last": (last_a.seq, last_b.seq)})


def _find_seq(event: Event | None) -> int | None:
    return None if event is None else event.seq


def _convert_side(side: RunSide, record: RunRecord) -> ComparedRun:
    return ComparedRun(
        task_id=record.task_id,
        state=side.state,
        seq=record.seq,
        cost=_convert_cost(side.cost),
        cost_since=_convert_cost(side.cost_since),
    )


def _convert_cost(cost: RunCost) -> ComparedCost:
    return ComparedCost(**asdict(cost))
