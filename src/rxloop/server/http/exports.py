"""Handler that exports a run as a file."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated

from pydantic import Field
from starlette.responses import Response

from rxloop.errors import ConfigurationError
from rxloop.protocol.events import Event
from rxloop.recorded.export import Form, make_file_name
from rxloop.server.core.errors import Refused
from rxloop.server.http.requests import ApiCall, VisibilityQuery
from rxloop.server.viewer.document import export_run
from rxloop.storage.conversation import conversation


class ExportQuery(VisibilityQuery):
    """Query parameters for exporting a run."""

    form: Form = "jsonl"
    """Form of the file."""
    until: Annotated[int, Field(ge=1, le=2**53)] | None = None
    """`seq` of the last event to include; defaults to the latest event."""


async def export(call: ApiCall[None, ExportQuery]) -> Response:
    """Export a run as a file."""
    record, query, gateway = await call.record(), call.query, call.gateway
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
        with gateway.reserve_stream(call.principal):
            async with gateway.computations.hold_runs(call.principal.id) as runs:
                events = await runs.read(gateway.runtime.log, record)
                body = await runs.compute(partial(write, events))
    except ConfigurationError as error:
        raise Refused(409, "not_exportable", str(error)) from error
    headers = {
        # Browsers must not display the file as a page of this server.
        "content-disposition": f'attachment; filename="{make_file_name(record.task_id, query.form)}"',
        "x-content-type-options": "nosniff",
        "cache-control": "no-store",
    }
    return Response(body, headers=headers, media_type="application/octet-stream")
