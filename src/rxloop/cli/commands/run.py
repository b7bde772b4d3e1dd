"""Commands `run`, `chat`, `resume` and `fork`: agent execution with terminal output."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import reactivex.operators as rx
import typer

from rxloop.cli import options
from rxloop.cli.agent_loader import AgentOptions, Ready, RecordedAgentOptions
from rxloop.cli.commands.inspect import ago
from rxloop.cli.database import find_run, first_event, opened, short_id, short_ids
from rxloop.cli.live_run import CODES, LiveRuns, ask, conversing, exit_code
from rxloop.cli.live_run import show as write_live
from rxloop.cli.options import LogSelection, RunDisplay, as_text, pairs
from rxloop.cli.render import many
from rxloop.cli.terminal import FAILED, WAITS, asks, logged, read_all, read_line, report, reporting, running, say, write
from rxloop.errors import ConfigurationError, RxloopError
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import Event, PendingInput
from rxloop.recorded.replay import replay
from rxloop.strategies.catalog import STRATEGIES
from rxloop.support.text import to_one_line

Words = Annotated[list[str] | None, typer.Argument(metavar="QUESTION", help="'-', or nothing, takes it from a pipe.")]


def run(words: Words = None, *, agent: AgentOptions, display: RunDisplay, selection: LogSelection) -> None:
    """Ask a model.

    The answer streams to stdout; what the model does on the way, to stderr.

    Exit codes: 0 an answer, 1 the run failed, 2 wrong usage, 3 it waits for input, 130 cancelled.
    """

    async def main() -> int:
        question = _question(words or [])
        async with conversing(agent, display, selection) as (ready, session, context_id):
            asked = ready.agent.run(question, context_id=context_id, model=ready.model, strategy=agent.strategy)
            return exit_code(await session.carry_out(ready, asked, agent.strategy))

    running(main())


def _question(words: list[str]) -> str:
    """Read the question from the arguments, and from stdin if requested with `-`."""
    if not words and sys.stdin.isatty():
        raise ConfigurationError('there is no question: rxloop run "Why is the sky blue?", or give it through a pipe')
    parts = [as_text(" ".join(word for word in words if word != "-"))]
    if not words or "-" in words:
        parts.append(read_all().strip())
    question = "\n\n".join(part for part in parts if part.strip())
    if not question:
        raise ConfigurationError('the question is empty: rxloop run "Why is the sky blue?", or give it through a pipe')
    return question


def chat(agent: AgentOptions, display: RunDisplay, selection: LogSelection) -> None:
    """Talk with a model.

    Ctrl-D or /quit ends the conversation, Ctrl-C cancels an answer; --context takes an old conversation up again.
    """
    begun = conversing(agent, display, selection, chatting=True)
    with reporting(), logged(), asyncio.Runner() as runner:
        # Read input outside the event loop, because no other tasks need to run in the meantime.
        stack = contextlib.AsyncExitStack()
        try:
            ready, live, context_id = runner.run(stack.enter_async_context(begun))
            runner.run(_greet(ready, live, context_id))
            while (question := _next_question()) is not None:
                try:
                    runner.run(_turn(ready, live, question, context_id, agent.strategy))
                except RxloopError as error:
                    report(error)
            runner.run(_farewell(live, context_id))
        except KeyboardInterrupt:
            # Start a new line after the terminal's `^C`.
            say("")
            raise
        finally:
            runner.run(stack.aclose())


async def _turn(ready: Ready, live: LiveRuns, question: str, context_id: str, strategy: str | None) -> None:
    asked = ready.agent.run(question, context_id=context_id, model=ready.model, strategy=strategy)
    await live.carry_out(ready, asked, strategy)


async def _greet(ready: Ready, live: LiveRuns, context_id: str) -> None:
    """Show the model, keyboard shortcuts and a summary of the previous conversation."""
    model = (ready.model or ready.agent.model).name
    say(f"{model}; Ctrl-D or /quit ends the conversation, Ctrl-C cancels an answer")
    if live.log is None:
        return
    for record in (await live.log.list_runs(context_id=context_id))[-1:]:
        result = await replay(live.log, record.task_id).result()
        say(f"it has {many(len(result.messages), 'message')}; the last one was: {to_one_line(result.content, 120)}")


async def _farewell(live: LiveRuns, context_id: str) -> None:
    """Show the command for continuing the conversation."""
    records = await live.log.list_runs() if live.log is not None else ()
    contexts = list(dict.fromkeys(record.context_id for record in records))
    if context_id in contexts:
        say(f"go on with: rxloop chat --context {short_ids(contexts)[context_id]}{live.place}{live.flags}")


def _next_question() -> str | None:
    """Read the next question. Returns None at the end of the input."""
    with contextlib.suppress(ModuleNotFoundError):
        # Enables history and arrow keys for `input`.
        importlib.import_module("readline")
    while True:
        terminal = sys.stdin.isatty()
        if terminal and not sys.stdout.isatty():
            write("> ", beside=True)
        try:
            line = read_line("> " if terminal and sys.stdout.isatty() else "")
        except EOFError:
            say("")
            return None
        if line in ("/quit", "/exit"):
            return None
        if line:
            return line


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
    """Ask for answers on the terminal. Otherwise, print instructions and return None."""
    if asks() and not live.display.json:
        return ask(pending)
    live.list_pending(await short_id(log, record.task_id) or record.task_id, pending)
    return None


async def _show_end(log: EventLog, record: RunRecord, display: RunDisplay) -> int:
    """Show the final event of a finished run and return its exit code."""

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
