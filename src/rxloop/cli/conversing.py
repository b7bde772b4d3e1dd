"""What `rxloop run` and `rxloop chat` begin with: an agent, its log, and a conversation."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

from rxloop.cli.agent_options import AgentOptions, Ready
from rxloop.cli.live_runs import LiveRuns
from rxloop.cli.options import ThoughtLevel
from rxloop.cli.store import find_context, first_event, opened
from rxloop.errors import ConfigurationError
from rxloop.eventlog import MemoryEventLog
from rxloop.pipeline.logs import EventLog


@contextlib.asynccontextmanager
async def conversing(
    given: AgentOptions,
    thoughts: ThoughtLevel,
    json: bool,
    context: str | None,
    db: str | None,
    no_log: bool,
    *,
    chatting: bool = False,
) -> AsyncGenerator[tuple[Ready, LiveRuns, str]]:
    """Give an agent with its log, how its runs are shown, and the id of the conversation."""
    if no_log and context is not None:
        raise ConfigurationError("--context needs the database, and --no-log leaves it out")
    async with contextlib.AsyncExitStack() as stack:
        log: EventLog
        context_id: str | None = None
        if context is not None:
            log = await stack.enter_async_context(opened(db))
            context_id = await find_context(log, context)
            made = given.make(recorded=await _last_model(log, context_id))
        else:
            # The agent comes first: who has mistyped a model gets no empty database.
            made = given.make()
            # A run that asks something goes on in a second attempt, which reads the first.
            log = MemoryEventLog() if no_log else await stack.enter_async_context(opened(db, write=True))
        ready = await stack.enter_async_context(made.logging_to(log))
        live = LiveRuns(thoughts, json, None if no_log else log, db, given.flags(), chatting=chatting)
        yield ready, live, context_id or _new_context()


async def _last_model(log: EventLog, context_id: str) -> str | None:
    records = await log.runs(context_id=context_id)
    event = await first_event(log, records[-1].task_id)
    return event.model if event is not None else None


def _new_context() -> str:
    import uuid6

    return str(uuid6.uuid7())
