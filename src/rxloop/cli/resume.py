"""`rxloop resume`: go on with a run that was cancelled, was cut off, or waits for an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import reactivex.operators as rx
import typer

from rxloop.cli import options
from rxloop.cli.agent_options import AgentOptions
from rxloop.cli.answers import ask
from rxloop.cli.live_runs import CODES, LiveRuns, exit_code
from rxloop.cli.live_runs import show as write_live
from rxloop.cli.options import ThoughtLevel, pairs
from rxloop.cli.runs import ago
from rxloop.cli.store import find_run, first_event, opened, short_id
from rxloop.cli.terminal import FAILED, WAITS, asks, running, say
from rxloop.pipeline.logs import EventLog
from rxloop.pipeline.values import RunRecord
from rxloop.protocol.events import Event, PendingInput
from rxloop.recorded.replay import replay
from rxloop.thinking.flow import STAGE_TABLES


def resume(
    run: options.RunId,
    inputs: Annotated[
        list[str] | None, typer.Option("--input", metavar="ID=JSON", help="An answer; may be repeated.")
    ] = None,
    model: options.OtherModel = None,
    base_url: options.BaseUrl = None,
    tools: options.Tools = None,
    mcp: options.MCP = None,
    agent: options.AgentName = None,
    strategy: options.Strategy = None,
    thoughts: options.Thoughts = ThoughtLevel.brief,
    json: options.Json = False,
    skip_corrupt: options.SkipCorrupt = False,
    db: options.Database = None,
) -> None:
    """Go on with a run.

    What is done stays done. The model and the strategy are those that the run had, unless others are named; tools must
    be named again. A person at the terminal is asked what the run waits for.
    """
    given = AgentOptions(agent, tuple(tools or ()), model, base_url, mcp=tuple(mcp or ()))

    async def main() -> int:
        answers = pairs(inputs, "--input")
        async with opened(db, skip_corrupt=skip_corrupt) as log:
            record = await find_run(log, run)
            so_far = await replay(log, record.task_id).result()
            may_pass = so_far.error is not None and so_far.error.retryable
            if record.finished and not may_pass:
                return await _show_end(log, record, thoughts, json)
            pending = so_far.pending
            live = LiveRuns(thoughts, json, log, db, given.flags())
            if pending and not answers:
                asked = await _answers_of_person(live, log, record, pending)
                if asked is None:
                    return WAITS
                answers = asked
            first = await first_event(log, record.task_id)
            made = given.make(recorded=first.model if first is not None else None)
            async with made.logging_to(log) as ready:
                recorded = first.strategy if first is not None and first.strategy in STAGE_TABLES else None
                chosen = strategy or recorded
                taken_up = ready.agent.resume(
                    record.task_id, inputs=answers or None, model=ready.model, strategy=chosen
                )
                return exit_code(await live.carry_out(ready, taken_up, chosen))

    running(main())


async def _answers_of_person(
    live: LiveRuns, log: EventLog, record: RunRecord, pending: Sequence[PendingInput]
) -> dict[str, Any] | None:
    """Ask the person at the terminal; without one, say what is to be done."""
    if asks() and not live.json:
        return ask(pending)
    live.list_pending(await short_id(log, record.task_id) or record.task_id, pending)
    return None


async def _show_end(log: EventLog, record: RunRecord, thoughts: ThoughtLevel, json: bool) -> int:
    """Show the end of a run that has ended for good; there is nothing to go on with."""

    def is_last(event: Event) -> bool:
        return event.seq == record.seq

    if not json:
        say(f"this run ended {ago(record.updated)}")
    await write_live(replay(log, record.task_id).pipe(rx.filter(is_last)), thoughts, json=json)
    return CODES.get(record.state, FAILED)
