"""Handlers that export a run as a file, and append it to a file of cases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, TypeVar

import orjson
from pydantic import Field
from starlette.responses import Response

from rxloop.errors import ConfigurationError
from rxloop.evals.case import append_case
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import Event
from rxloop.protocol.http_api.experiments import AddCase, AddedCase
from rxloop.recorded.export import Form, export_text, make_file_name
from rxloop.server.core.errors import Refused
from rxloop.server.http.requests import ApiCall, Query, VisibilityQuery, write_json
from rxloop.server.viewer.document import export_run
from rxloop.storage.conversation import conversation

T = TypeVar("T")


class ExportQuery(VisibilityQuery):
    """Query parameters for exporting a run."""

    form: Form = "jsonl"
    """Form of the file."""
    until: Annotated[int, Field(ge=1, le=2**53)] | None = None
    """`seq` of the last event to include; defaults to the latest event."""


async def export(call: ApiCall[None, ExportQuery]) -> Response:
    """Export a run as a file."""
    record, query = await call.record(), call.query
    call.check_visibility(query.visibility)
    log = call.gateway.runtime.log
    before = await conversation(log, record.conversation, before=record.task_id) if query.form == "html" else None

    def write(events: Sequence[Event]) -> bytes:
        if query.until is not None:
            # Numbers are not positions if the log skips damaged events.
            events = [event for event in events if event.seq <= query.until]
        if not events:
            raise ConfigurationError("the log has no readable event in this part of the run")
        return export_run(query.form, record, events, before=before, internal=query.visibility == "all")

    try:
        body = await _compute(call, record, write)
    except ConfigurationError as error:
        raise Refused(409, "not_exportable", str(error)) from error
    headers = {
        # Browsers must not display the file as a page of this server.
        "content-disposition": f'attachment; filename="{make_file_name(record.task_id, query.form)}"',
        "x-content-type-options": "nosniff",
        "cache-control": "no-store",
    }
    return Response(body, headers=headers, media_type="application/octet-stream")


async def _compute(call: ApiCall[Any, Any], record: RunRecord, write: Callable[[Sequence[Event]], T]) -> T:
    """Return a value made from all events of a run, outside of the event loop."""
    gateway = call.gateway
    with gateway.reserve_stream(call.principal):
        async with gateway.computations.hold_runs(call.principal.id) as runs:
            return await runs.compute(partial(write, await runs.read(gateway.runtime.log, record)))


async def add_case(call: ApiCall[AddCase, Query]) -> Response:
    """Append a run to the cases of the server, with its question and an expected answer."""
    record, path, expected = await call.record(), call.cases, call.body.expected
    if "cases" not in call.principal.scopes:
        raise Refused(403, "forbidden", "adding a case requires the scope cases")
    if path is None:
        raise Refused(409, "not_available", "this server has no file for cases; start it with rxloop view --cases FILE")

    def write(events: Sequence[Event]) -> int:
        case: dict[str, Any] = orjson.loads(export_text("case", record.task_id, events, internal=False))
        if expected is not None:
            case.pop("expected", None)
            case.update({"expected": expected} if expected else {})
        return append_case(path, case)

    try:
        count = await _compute(call, record, write)
    except ConfigurationError as error:
        raise Refused(409, "not_added", str(error)) from error
    except OSError as error:
        raise Refused(500, "cases", f"the file for cases cannot be written: {error.strerror}") from error
    return write_json(AddedCase(id=record.task_id, count=count, file=path.name), 201)
