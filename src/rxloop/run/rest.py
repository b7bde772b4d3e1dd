"""When a run is at rest: the one rule for whoever settles it, whoever waits for it, and the attempt that goes on."""

from __future__ import annotations

from rxloop.errors import InvalidInput
from rxloop.pipeline.logs import EventLog, Mailbox
from rxloop.run.inputs import WAITING, check_not_let_go, check_waiting
from rxloop.run.letters import Taken, take
from rxloop.state.conversation import read_log
from rxloop.state.run_state import RunState


async def is_at_rest(
    event_log: EventLog, context_id: str, task_id: str, state: RunState, *, asks: bool = False
) -> bool:
    """Whether nothing is to be done for a run: it is over, was cancelled, or waits for an answer that nobody has given.

    Args:
        event_log: Holds it.
        context_id: Its conversation.
        task_id: The run.
        state: Where it stands.
        asks: Whether its questions are answered where it goes on.
    """
    if state.finished or state.state == "canceled":
        return True
    if state.state not in WAITING:
        return False
    letters = await read_log(event_log.mail, task_id, after=state.mail) if isinstance(event_log, Mailbox) else ()
    taken = take(task_id, state, letters, warn=False)
    try:
        await check_goes_on(event_log, context_id, task_id, state, taken, asks=asks)
    except InvalidInput:
        return True
    return False


async def check_goes_on(
    event_log: EventLog,
    context_id: str,
    task_id: str,
    state: RunState,
    taken: Taken,
    *,
    asks: bool,
    answered: bool = False,
) -> None:
    """See that a run which is not over can go on, or come to its end, now.

    Args:
        event_log: Holds it.
        context_id: Its conversation.
        task_id: The run.
        state: Where it stands.
        taken: What its next attempt takes of its mail.
        asks: Whether its questions are answered where it goes on.
        answered: Whether its next attempt brings answers of its own.

    Raises:
        InvalidInput: It waits for an answer that nobody has given, or a later run has let its question go.
    """
    if taken.cancel is not None:
        # That needs no answer, and takes nothing from what came later.
        return
    if answered or state.state in WAITING:
        check_not_let_go(task_id, state, await read_log(event_log.runs, context_id=context_id))
    if not (answered or asks or taken.answers):
        check_waiting(task_id, state)
