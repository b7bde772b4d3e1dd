"""`rxloop run` and `rxloop chat`: ask a model, once or for as long as one likes."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Annotated

import typer

from rxloop.cli import options
from rxloop.cli.agents import AgentOptions, Ready
from rxloop.cli.options import ThoughtLevel
from rxloop.cli.render import many
from rxloop.cli.session import Session, exit_code
from rxloop.cli.store import find_context, first_event, opened, short_ids
from rxloop.cli.terminal import CANCELLED, fail, report, running, say, write
from rxloop.errors import ConfigurationError, RxloopError
from rxloop.eventlog import MemoryEventLog
from rxloop.protocols import EventLog
from rxloop.replay import replay
from rxloop.thinking.drawing import one_line

Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="QUESTION", help="'-', or nothing, takes it from a pipe.", show_default=False),
]
Context = Annotated[
    str | None, typer.Option("--context", metavar="ID", help="A conversation to go on with.", show_default=False)
]


def run(
    words: Words = None,
    model: options.Model = None,
    base_url: options.BaseUrl = None,
    tools: options.Tools = None,
    agent: options.AgentName = None,
    strategy: options.Strategy = None,
    thoughts: options.Thoughts = ThoughtLevel.brief,
    json: options.Json = False,
    context: Context = None,
    db: options.Database = None,
    no_log: options.NoLog = False,
) -> None:
    """Ask a model.

    The answer streams to stdout; what the model does on the way, to stderr.

    Exit codes: 0 an answer, 1 the run failed, 2 wrong usage, 3 it waits for input, 130 cancelled.
    """
    given = AgentOptions(agent, tuple(tools or ()), model, base_url, strategy)

    async def main() -> int:
        question = _question(words or [])
        async with _conversing(given, thoughts, json, context, db, no_log) as (ready, session, context_id):
            result = await session.carry_out(
                ready.agent,
                ready.agent.run(question, context_id=context_id, model=ready.model, strategy=given.strategy),
            )
            return exit_code(result)

    running(main())


def chat(
    model: options.Model = None,
    base_url: options.BaseUrl = None,
    tools: options.Tools = None,
    agent: options.AgentName = None,
    thoughts: options.Thoughts = ThoughtLevel.brief,
    json: options.Json = False,
    context: Context = None,
    db: options.Database = None,
    no_log: options.NoLog = False,
) -> None:
    """Talk with a model.

    Ctrl-D or /quit ends the conversation, Ctrl-C cancels an answer; --context takes an old conversation up again.
    """
    given = AgentOptions(agent, tuple(tools or ()), model, base_url)
    with asyncio.Runner() as runner:
        # The questions are read outside of the event loop: nothing goes on while a person thinks.
        stack = contextlib.AsyncExitStack()
        try:
            entered = stack.enter_async_context(_conversing(given, thoughts, json, context, db, no_log, chatting=True))
            ready, session, context_id = runner.run(entered)
            runner.run(_greet(ready, session, context_id))
            while (question := _next_question()) is not None:
                try:
                    runner.run(_turn(ready, session, question, context_id))
                except RxloopError as error:
                    report(error)
            runner.run(_farewell(session, context_id))
        except RxloopError as error:
            fail(error)
        except KeyboardInterrupt:
            say("")
            raise typer.Exit(CANCELLED) from None
        finally:
            runner.run(stack.aclose())


async def _turn(ready: Ready, session: Session, question: str, context_id: str) -> None:
    await session.carry_out(ready.agent, ready.agent.run(question, context_id=context_id, model=ready.model))


@contextlib.asynccontextmanager
async def _conversing(
    given: AgentOptions,
    thoughts: ThoughtLevel,
    json: bool,
    context: str | None,
    db: Path | None,
    no_log: bool,
    *,
    chatting: bool = False,
) -> AsyncGenerator[tuple[Ready, Session, str]]:
    """An agent with its log, how its runs are shown, and the id of the conversation."""
    if no_log and context is not None:
        raise ConfigurationError("--context needs the database, and --no-log leaves it out")
    async with contextlib.AsyncExitStack() as stack:
        log: EventLog
        if context is not None:
            log = await stack.enter_async_context(opened(db))
            context = await find_context(log, context)
            made = given.make(recorded=await _last_model(log, context))
        else:
            # The agent comes first: who has mistyped a model gets no empty database.
            made = given.make()
            # A run that asks something goes on in a second attempt, which reads the first.
            log = MemoryEventLog() if no_log else await stack.enter_async_context(opened(db, write=True))
        ready = await stack.enter_async_context(made.logging_to(log))
        session = Session(thoughts, json, None if no_log else log, db, given.flags(), chatting=chatting)
        yield ready, session, context or _new_context()


async def _last_model(log: EventLog, context_id: str) -> str | None:
    records = await log.runs(context_id=context_id)
    event = await first_event(log, records[-1].task_id)
    return event.model if event is not None else None


def _new_context() -> str:
    import uuid6

    return str(uuid6.uuid7())


def _question(words: list[str]) -> str:
    """The question: what was typed, and what comes through a pipe where `-` stands."""
    if not words and sys.stdin.isatty():
        raise ConfigurationError('there is no question: rxloop run "Why is the sky blue?", or give it through a pipe')
    parts = [" ".join(word for word in words if word != "-")]
    if not words or "-" in words:
        parts.append(sys.stdin.read().strip())
    question = "\n\n".join(part for part in parts if part.strip())
    if not question:
        raise ConfigurationError("the question is empty")
    return question


async def _greet(ready: Ready, session: Session, context_id: str) -> None:
    """Say who is there."""
    model = (ready.model or ready.agent.model).name
    say(f"{model}; Ctrl-D or /quit ends the conversation, Ctrl-C cancels an answer")
    if session.log is None:
        return
    for record in (await session.log.runs(context_id=context_id))[-1:]:
        result = await replay(session.log, record.task_id).result()
        say(f"it has {many(len(result.messages), 'message')}; the last one was: {one_line(result.content, 120)}")


async def _farewell(session: Session, context_id: str) -> None:
    """Say how to go on."""
    records = await session.log.runs() if session.log is not None else ()
    contexts = list(dict.fromkeys(record.context_id for record in records))
    if context_id in contexts:
        say(f"go on with: rxloop chat --context {short_ids(contexts)[context_id]}{session.place}{session.flags}")


def _next_question() -> str | None:
    """What the person says next, a line; None at the end."""
    with contextlib.suppress(ModuleNotFoundError):
        # What gives `input` a memory and arrow keys.
        importlib.import_module("readline")
    while True:
        terminal = sys.stdin.isatty()
        if terminal and not sys.stdout.isatty():
            write("> ", beside=True)
        try:
            line = input("> " if terminal and sys.stdout.isatty() else "").strip()
        except EOFError:
            say("")
            return None
        if line in ("/quit", "/exit"):
            return None
        if line:
            return line
