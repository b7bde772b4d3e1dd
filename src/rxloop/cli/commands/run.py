"""Commands `demo`, `run`, `resume` and `fork`: agent execution with terminal output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, cast

import reactivex.operators as rx
import typer

from rxloop.cli import options
from rxloop.cli.agent_loader import AgentOptions, RecordedAgentOptions
from rxloop.cli.arguments.inputs import Attachments, make_prompt
from rxloop.cli.commands.inspect import format_age
from rxloop.cli.database import find_run, find_short_id, open_database, read_first_event
from rxloop.cli.demo import run_demo
from rxloop.cli.live_run import EXIT_CODES, LiveRuns, get_exit_code, make_live_runs, open_session
from rxloop.cli.live_run import show_events as write_live
from rxloop.cli.options import LogSelection, RunControl, RunDisplay, decode, parse_pairs
from rxloop.cli.terminal import (
    FAILED,
    WAITS,
    can_ask,
    notify,
    report_errors,
    run_main,
)
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import Event, PendingInput
from rxloop.recorded.replay import replay
from rxloop.strategies.catalog import STRATEGIES

Words = Annotated[
    list[str] | None, typer.Argument(metavar="QUESTION", help="Question. Text from stdin is added to it.")
]


def run(
    words: Words = None,
    *,
    agent: AgentOptions,
    attachments: Attachments,
    control: RunControl,
    display: RunDisplay,
    selection: LogSelection,
) -> None:
    """Ask a model.

    The answer is streamed to stdout, and all other output to stderr. If stdin is a pipe or a file, its text is added
    after the question.

    Exit codes: 0 success, 1 the run failed, 2 invalid usage, 3 waiting for input, 130 cancelled.
    """
    # Read stdin outside the event loop, because the loop would delay Ctrl-C.
    with report_errors():
        prompt = make_prompt(words or [], attachments)

    async def main() -> int:
        async with open_session(agent, display, selection, control) as (ready, session, conversation):
            handle = ready.agent.run(prompt, model=ready.model, strategy=agent.strategy, **conversation)
            return get_exit_code(await session.execute(ready, handle, agent.strategy))

    run_main(main())


def resume(
    run: options.RunId,
    inputs: Annotated[
        list[str] | None, typer.Option("--input", metavar="ID=JSON", help="Answer to a question. Can be repeated.")
    ] = None,
    *,
    agent: RecordedAgentOptions,
    strategy: options.Strategy = None,
    control: RunControl,
    display: RunDisplay,
    skip_corrupt: options.SkipCorrupt = False,
    db: options.Database = None,
) -> None:
    """Resume a run.

    Completed steps are not repeated. The model and strategy default to those of the run; tools must be passed again.
    Pending questions are asked on the terminal.
    """

    async def main() -> int:
        answers = parse_pairs(inputs, "--input")
        async with open_database(db, skip_corrupt=skip_corrupt) as log:
            record = await find_run(log, run)
            recorded_result = await replay(log, record.task_id).result()
            is_retryable = recorded_result.error is not None and recorded_result.error.retryable
            if record.finished and not is_retryable:
                return await _show_end(log, record, display)
            pending = recorded_result.pending
            live = make_live_runs(agent, display, log, db, control)
            if pending and not answers:
                typed = await _ask_for_answers(live, log, record, pending)
                if typed is None:
                    return WAITS
                answers = typed
            first = await read_first_event(log, record.task_id)
            loaded = agent.make(recorded=first.model if first is not None else None)
            async with live.limit_cost(loaded).with_log(log) as ready:
                recorded = first.strategy if first is not None and first.strategy in STRATEGIES else None
                selected = strategy or cast("options.Strategy", recorded)
                handle = ready.agent.resume(
                    record.task_id, inputs=answers or None, model=ready.model, strategy=selected
                )
                return get_exit_code(await live.execute(ready, handle, selected))

    run_main(main())


async def _ask_for_answers(
    live: LiveRuns, log: EventLog, record: RunRecord, pending: Sequence[PendingInput]
) -> dict[str, Any] | None:
    """Return answers of `--approve` and the terminal. If there are none, print instructions and return None."""
    answers = live.answer(pending)
    if answers:
        return answers
    if live.display.json or not can_ask():
        live.list_pending(await find_short_id(log, record.task_id) or record.task_id, pending)
    return None


async def _show_end(log: EventLog, record: RunRecord, display: RunDisplay) -> int:
    """Show the final event of a finished run and return its exit code."""

    def is_last(event: Event) -> bool:
        return event.seq == record.seq

    if not (display.json or display.quiet):
        notify(f"this run ended {format_age(record.updated)}")
    await write_live(replay(log, record.task_id).pipe(rx.filter(is_last)), display)
    return EXIT_CODES.get(record.state, FAILED)


def fork(
    run: options.RunId,
    at: Annotated[
        int, typer.Option("--at", metavar="SEQ", min=0, help="Number of the last event to copy, as in 'rxloop show'.")
    ],
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", "-p", metavar="TEXT", help="New question if SEQ is 1, otherwise a new message."),
    ] = None,
    results: Annotated[
        list[str] | None,
        typer.Option("--result", metavar="CALL=JSON", help="Replacement result of a tool call. Can be repeated."),
    ] = None,
    *,
    agent: RecordedAgentOptions,
    control: RunControl,
    display: RunDisplay,
    db: options.Database = None,
) -> None:
    """Start a new run with the first events of another run.

    The original run is not changed.
    """

    async def main() -> int:
        replaced = parse_pairs(results, "--result")
        async with open_database(db) as log:
            record = await find_run(log, run)
            first = await read_first_event(log, record.task_id)
            loaded = agent.make(recorded=first.model if first is not None else None)
            live = make_live_runs(agent, display, log, db, control)
            async with live.limit_cost(loaded).with_log(log) as ready:
                handle = ready.agent.fork(
                    record.task_id, at, prompt=prompt and decode(prompt), results=replaced or None, model=ready.model
                )
                return get_exit_code(await live.execute(ready, handle))

    run_main(main())


def demo(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="QUESTION", help="A question about the weather. The default compares two cities."),
    ] = None,
    view: Annotated[bool, typer.Option("--view", help="Show the run in a browser while it works.")] = False,
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", min=0, max=65_535, help="Port for --view; 0 selects a free port.")
    ] = 8321,
    no_open: Annotated[bool, typer.Option("--no-open", help="With --view, do not open the browser.")] = False,
) -> None:
    """Run an agent that thinks aloud, without an API key.

    Runs the example `kitchen_sink.py`, prints its events and thoughts, and writes the thought graph to `chain.mmd`.
    With --view, it serves the run at an address of this machine instead, until Ctrl-C.
    """
    if view:
        from rxloop.cli.commands.view import view_demo

        view_demo(" ".join(words or ()), port, opens=not no_open)
        return
    raise typer.Exit(run_demo(words or ()))
