"""A thread as it stands: its runs, and the messages that a client has of them."""

from __future__ import annotations

from collections.abc import Sequence

from rxloop.pipeline.values import RunRecord
from rxloop.protocol.events import Event
from rxloop.server.access import Principal
from rxloop.server.agui.messages import Messages
from rxloop.server.agui.telling import Telling
from rxloop.server.agui.writing import Writer
from rxloop.server.chat.changes import Change
from rxloop.server.chat.fold import ChatFold
from rxloop.server.host import Host
from rxloop.state.conversation import read_log

_NOWHERE = 1 << 62
"""After the last event of any run."""


async def runs_of(host: Host, principal: Principal, thread_id: str) -> Sequence[RunRecord]:
    """The runs of a thread, in order; none where there is no such thread.

    Raises:
        Refused: It is somebody else's.
    """
    if not await host.check_context(principal, thread_id):
        return ()
    found = await read_log(host.runtime.log.runs, context_id=thread_id)
    return [record for record in found if principal.may_see(record)]


async def last_run_of(host: Host, principal: Principal, thread_id: str) -> RunRecord | None:
    """The newest run of a thread, without a look at those before it; None where there is no such thread.

    Raises:
        Refused: It is somebody else's.
    """
    if not await host.check_context(principal, thread_id):
        return None
    # In a thread of its own a principal does not see what those who see all have begun there.
    owner = None if "others" in principal.scopes else principal.id or None
    found = await read_log(host.runtime.log.runs, context_id=thread_id, owner=owner, newest_first=True, limit=1)
    return found[0] if found and principal.may_see(found[0]) else None


async def restated(host: Host, records: Sequence[RunRecord], answered: dict[str, str]) -> Messages:
    """Fold runs into the messages that a client has of them.

    Args:
        host: Has the log.
        records: The runs.
        answered: By call: under which id the client has its answer.
    """
    messages = Messages(named=answered)
    for record in records:
        writer = Writer(Telling(record.context_id, "", after=_NOWHERE), messages)

        def take(item: Change | Event, writer: Writer = writer) -> None:
            writer.take(item)

        fold = ChatFold(take)
        for event in await read_log(host.runtime.log.read, record.task_id):
            shown = event.for_clients()
            if shown is not None:
                fold.take(shown)
    return messages
