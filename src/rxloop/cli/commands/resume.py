"""`rxloop resume` and `rxloop fork`: go on with a run, or begin a new one with a part of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import reactivex.operators as rx
import typer

from rxloop.cli import options
from rxloop.cli.agent_loader import RecordedAgentOptions
from rxloop.cli.commands.inspect import ago
from rxloop.cli.database import find_run, first_event, opened, short_id
from rxloop.cli.live_run import CODES, LiveRuns, ask, exit_code
from rxloop.cli.live_run import show as write_live
from rxloop.cli.options import RunDisplay, as_text, pairs
from rxloop.cli.terminal import FAILED, WAITS, asks, running, say
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import Event, PendingInput
from rxloop.recorded.replay import replay
from rxloop.strategies.catalog import STRATEGIES


def resume(
    run: options.RunId,
    inputs: Annotated[
        list[str] | None, typer.Option("--input", metavar="ID=JSON", help="An answer; may be repeated.")
    ] = None,
    *,
    agent: RecordedAgentOptions,
    strategy: options.Strategy = None,
    display: RunDisplay,
    skip_corrupt: options.SkipCorrupt = False,
    db: options.Database = None,
) -> None:
    """Go on with a run.

    What is done stays done. The model and the strategy are those that the run had, unless others are named; tools must
    be named again. A person at the terminal is asked what the run waits for.
    """

    async def main() -> int:
        answers = pairs(inputs, "--input")
        async with opened(db, skip_corrupt=skip_corrupt) as log:
            record = await find_run(log, run)
            so_far = await replay(log, record.task_id).result()
            may_pass = so_far.error is not None and so_far.error.retryable
            if record.finished and not may_pass:
                return await _show_end(log, record, display)
            pending = so_far.pending
            live = LiveRuns(display, log, db, agent.flags())
            if pending and not answers:
                asked = await _answers_of_person(live, log, record, pending)
                if asked is None:
                    return WAITS
                answers = asked
            first = await first_event(log, record.task_id)
            made = agent.make(recorded=first.model if first is not None else None)
            async with made.logging_to(log) as ready:
                recorded = first.strategy if first is not None and first.strategy in STRATEGIES else None
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
    if asks() and not live.display.json:
        return ask(pending)
    live.list_pending(await short_id(log, record.task_id) or record.task_id, pending)
    return None


async def _show_end(log: EventLog, record: RunRecord, display: RunDisplay) -> int:
    """Show the end of a run that has ended for good; there is nothing to go on with."""

    def is_last(event: Event) -> bool:
        return event.seq == record.seq

    if not display.json:
        say(f"this run ended {ago(record.updated)}")
    await write_live(replay(log, record.task_id).pipe(rx.filter(is_last)), display)
    return CODES.get(record.state, FAILED)


def fork(
    run: options.RunId,
    at: Annotated[
        int,
        typer.Option("--at", metavar="SEQ", min=0, help="The last event to take over, as 'rxloop show' numbers them."),
    ],
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", "-p", metavar="TEXT", help="Another question at 1, a new message after it."),
    ] = None,
    results: Annotated[
        list[str] | None,
        typer.Option("--result", metavar="CALL=JSON", help="What a tool call gave; may be repeated."),
    ] = None,
    *,
    agent: RecordedAgentOptions,
    display: RunDisplay,
    db: options.Database = None,
) -> None:
    """Begin a new run with a part of another one.

    It goes on in a way of its own; the other one stays as it is.
    """

    async def main() -> int:
        changed = pairs(results, "--result")
        async with opened(db) as log:
            record = await find_run(log, run)
            first = await first_event(log, record.task_id)
            made = agent.make(recorded=first.model if first is not None else None)
            live = LiveRuns(display, log, db, agent.flags())
            async with made.logging_to(log) as ready:
                forked = ready.agent.fork(
                    record.task_id, at, prompt=prompt and as_text(prompt), results=changed or None, model=ready.model
                )
                return exit_code(await live.carry_out(ready, forked))

    running(main())
