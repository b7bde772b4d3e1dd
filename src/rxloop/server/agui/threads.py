"""AG-UI frames for runs and messages for threads."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from rxloop.operators.views import View
from rxloop.operators.views.make_view import ViewOutput, make_view
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import Event
from rxloop.server.agui.fold import Writer
from rxloop.server.agui.frames import failure
from rxloop.server.agui.messages import Messages, Telling
from rxloop.server.core.chat_changes import Change
from rxloop.server.core.chat_fold import ChatFold
from rxloop.server.core.gateway import Gateway, Principal

log = logging.getLogger("rxloop")


def agui_frames(telling: Telling) -> View[Event, bytes]:
    """Convert a run to AG-UI frames until the end of an attempt.

    ::

        source          --t--w----l----d--c------f--      t task, w working, l llm-call, d content-delta,
        agui_frames()   --R-------S----T--(E,N)--(F|)     c content-complete, f final; R RUN_STARTED, S STEP_STARTED,
                                                          T TEXT_MESSAGE_*, E its end, N STEP_FINISHED, F RUN_FINISHED

    The input must contain all events of a run, because the output depends on earlier events. `Telling.after` marks the
    events that the client already has. A snapshot is sent as soon as its events have been read, without waiting for the
    next event. An interrupted stream ends with an error event, because clients interpret a plain end as success.

    Args:
        telling: Parameters of the event stream.
    """

    def write_frames(out: ViewOutput[bytes]) -> Callable[[Event], None]:
        writer = Writer(telling, telling.messages())

        def write(written: bytes) -> None:
            if written:
                out.emit(written)
            if writer.over:
                out.complete()

        def take_change(item: Change | Event) -> None:
            write(writer.take(item))

        fold = ChatFold(take_change)

        def take(event: Event) -> None:
            shown = event.to_public()
            if shown is not None:
                fold.take(shown)
            write(writer.reached(event))

        def break_off(error: Exception) -> None:
            log.warning("a stream breaks off: %s", error)
            out.emit(failure("log", "the run cannot be read any further"))
            out.complete()

        out.on_error(break_off)
        return take

    return make_view(write_frames)


_NOWHERE = 1 << 62
"""Sequence number beyond the last event of any run."""


async def runs_of(gateway: Gateway, principal: Principal, thread_id: str) -> Sequence[RunRecord]:
    """Return a thread's runs in order, or an empty sequence for an unknown thread.

    Raises:
        Refused: If the thread belongs to another principal.
    """
    if not await gateway.find_context(principal, thread_id):
        return ()
    found = await read_log(gateway.runtime.log.list_runs, context_id=thread_id)
    return [record for record in found if principal.may_see(record)]


async def last_run_of(gateway: Gateway, principal: Principal, thread_id: str) -> RunRecord | None:
    """Return the latest run of a thread without reading earlier runs, or None for an unknown thread.

    Raises:
        Refused: If the thread belongs to another principal.
    """
    if not await gateway.find_context(principal, thread_id):
        return None
    # Skip runs that principals with access to all runs have started in this thread.
    owner = None if "others" in principal.scopes else principal.id or None
    found = await read_log(gateway.runtime.log.list_runs, context_id=thread_id, owner=owner, newest_first=True, limit=1)
    return found[0] if found and principal.may_see(found[0]) else None


async def restated(gateway: Gateway, records: Sequence[RunRecord], answered: dict[str, str]) -> Messages:
    """Fold runs into the messages of a client.

    Args:
        gateway: Gateway with the event log.
        records: Runs to fold.
        answered: Ids of the client's tool messages, by call.
    """
    messages = Messages(named=answered)
    for record in records:
        writer = Writer(Telling(record.context_id, "", after=_NOWHERE), messages)

        def take(item: Change | Event, writer: Writer = writer) -> None:
            writer.take(item)

        fold = ChatFold(take)
        for event in await read_log(gateway.runtime.log.read, record.task_id):
            shown = event.to_public()
            if shown is not None:
                fold.take(shown)
    return messages
