"""The questions of a run that waits, and the answers of clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rxloop.errors import InvalidInput, NotAsked
from rxloop.pipeline.values import RunRecord
from rxloop.protocol.events import StatusUpdateEvent, ends_attempt
from rxloop.protocol.questions import public_question
from rxloop.server.host import Host
from rxloop.server.refusals import Refused
from rxloop.state.conversation import read_log

AT_REST = ("completed", "failed", "canceled", "input-required", "auth-required")
"""The states in which nothing goes on."""


async def last_update(host: Host, record: RunRecord) -> StatusUpdateEvent | None:
    """What ended the last attempt of a run, if nothing has come since: that is all that has to be read."""
    if record.state not in AT_REST:
        return None
    found = await read_log(host.runtime.log.read, record.task_id, after_seq=record.seq - 1)
    last = found[-1] if found else None
    return last if isinstance(last, StatusUpdateEvent) and ends_attempt(last) else None


async def answer(host: Host, record: RunRecord, inputs: Mapping[str, Any]) -> None:
    """Answer questions of a run that the principal may see, by their `input_id`; it goes on.

    Raises:
        Refused: It does not wait for that, or the answer does not fit; with no word of a question that is not for
            clients.
    """
    host.check_open()
    try:
        await host.runtime.answer(record.task_id, inputs)
    except NotAsked:
        message = (
            "the run does not wait for this answer, or has another one already: its `pending` says what it waits for"
        )
        raise Refused(409, "not_waiting", message) from None
    except InvalidInput as error:
        last = await last_update(host, record)
        open_to_all = last is not None and all(public_question(each) is each for each in last.pending)
        message = str(error) if open_to_all else "the answer does not fit the question"
        raise Refused(422, "invalid_input", message) from None
