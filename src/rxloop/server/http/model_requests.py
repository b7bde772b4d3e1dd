"""Handlers for model requests."""

from __future__ import annotations

from contextlib import aclosing
from functools import partial

from starlette.responses import Response

from rxloop.protocol.http_api.requests import RequestList, SentRequest
from rxloop.recorded.follow import read_chunks
from rxloop.recorded.request import RequestFold
from rxloop.recorded.requests import RequestListFold
from rxloop.server.core.errors import Refused
from rxloop.server.http.inspection import Outlines, respond_in_thread
from rxloop.server.http.requests import ApiCall, RequestsQuery, SentRequestQuery
from rxloop.storage.conversation import conversation


async def model_requests(call: ApiCall[None, RequestsQuery]) -> Response:
    """List the model requests of a run, with token counts and message ranges."""
    record, query = await call.record(), call.query
    call.check_visibility(query.visibility)
    log, task_id, seq = call.gateway.runtime.log, record.task_id, record.seq
    compute = log.local.get(Outlines).compute
    with call.gateway.reserve_stream(call.principal):
        before = await conversation(log, record.conversation, before=task_id)
        fold = RequestListFold(before, internal=query.visibility == "all", after=query.after, limit=query.limit)
        async with aclosing(read_chunks(log, task_id, last_seq=seq)) as chunks:
            async for chunk in chunks:
                await compute(partial(fold.add, chunk))

        def make_page() -> RequestList:
            rows = fold.make_rows()
            return RequestList(task_id=task_id, seq=seq, requests=rows, next=rows[-1].seq if fold.is_full else None)

        return await respond_in_thread(call, make_page)


async def model_request(call: ApiCall[None, SentRequestQuery]) -> Response:
    """Return a request as it was sent to the model."""
    record, internal = await call.record(), call.query.visibility == "all"
    call.check_visibility(call.query.visibility)
    log, task_id, seq = call.gateway.runtime.log, record.task_id, int(call.request.path_params["seq"])
    compute = log.local.get(Outlines).compute
    missing = Refused(404, "not_found", f"event {seq} is not a model call of this run", fields={"seq": "no llm-call"})
    if not 1 <= seq <= record.seq:
        raise missing
    with call.gateway.reserve_stream(call.principal):
        before = await conversation(log, record.conversation, before=task_id)
        fold = RequestFold(before, seq, internal=internal)
        async with aclosing(read_chunks(log, task_id, last_seq=record.seq)) as chunks:
            async for chunk in chunks:
                await compute(partial(fold.add, chunk))
                if fold.is_complete or (chunk[-1].seq >= seq and not fold.is_found):
                    break

        def make_request() -> SentRequest:
            request = fold.make_request(task_id, seq)
            if request is None:
                raise missing
            return request

        return await respond_in_thread(call, make_request, call.query.max_text)
