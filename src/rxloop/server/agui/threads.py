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
from rxloop.server.agui.frames import encode_error
from rxloop.server.agui.messages import Messages, StreamOptions
from rxloop.server.core.chat_fold import ChatFold
from rxloop.server.core.gateway import Gateway, Principal

log = logging.getLogger("rxloop")


def agui_frames(options: StreamOptions) -> View[Event, bytes]:
    """Convert a run to AG-UI frames until the end of an attempt.

    ::

        source          --t--w----l----d--c------f--      t task, w working, l llm-call, d content-delta,
        agui_frames()   --R-------S----T--(E,N)--(F|)     c content-complete, f final; R RUN_STARTED, S STEP_STARTED,
                                                          T TEXT_MESSAGE_*, E its end, N STEP_FINISHED, F RUN_FINISHED

    The input must contain all events of a run, because the output depends on earlier events. The client already has
    the events up to `StreamOptions.after`. A snapshot is sent as soon as its events have been read, without waiting for
    the next event. An interrupted stream ends with an error event, because clients interpret a plain end as success.

    Args:
        options: Parameters of the event stream.
    """

    def write_frames(out: ViewOutput[bytes]) -> Callable[[Event], None]:
        writer = Writer(options, options.make_messages())

        def write(written: bytes) -> None:
            if written:
                out.emit(written)
            if writer.is_complete:
                out.complete()

        fold = ChatFold(lambda item: write(writer.take(item)))

        def take(event: Event) -> None:
            fold.take_public(event)
            write(writer.send_snapshot(event))

        def fail(error: Exception) -> None:
            log.warning("AG-UI stream failed: %s", error)
            out.emit(encode_error("log", "cannot read the rest of the run"))
            out.complete()

        out.on_error(fail)
        return take

    return make_view(write_frames)


_BEYOND_END = 1 << 62
"""Sequence number beyond the last event of any run."""


async def list_thread_runs(gateway: Gateway, principal: Principal, thread_id: str) -> Sequence[RunRecord]:
    """Return the runs of a principal's thread in order, or an empty sequence for an unknown thread."""
    return await read_log(gateway.runtime.log.list_conversation, principal.get_conversation(thread_id))


async def find_last_run(gateway: Gateway, principal: Principal, thread_id: str) -> RunRecord | None:
    """Return the latest run of a principal's thread, or None for an unknown thread."""
    key = principal.get_conversation(thread_id)
    runs = await read_log(gateway.runtime.log.list_conversation, key, newest_first=True, limit=1)
    return runs[0] if runs else None


async def fold_messages(gateway: Gateway, records: Sequence[RunRecord], result_ids: dict[str, str]) -> Messages:
    """Fold runs into the messages of a client.

    Args:
        gateway: Gateway with the event log.
        records: Runs to fold.
        result_ids: Ids of the client's tool messages, by call.
    """
    messages = Messages(result_ids=result_ids)
    for record in records:
        writer = Writer(StreamOptions(record.context_id, "", after=_BEYOND_END), messages)
        take = ChatFold(writer.take).take_public
        await gateway.computations.fold_events(gateway.runtime.log, record.task_id, take)
    return messages
