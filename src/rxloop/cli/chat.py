"""`rxloop chat`: ask a model for as long as one likes."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sys

from rxloop.cli import options
from rxloop.cli.agent_options import AgentOptions, Ready
from rxloop.cli.conversing import conversing
from rxloop.cli.live_runs import LiveRuns
from rxloop.cli.options import ThoughtLevel
from rxloop.cli.render import many
from rxloop.cli.store import short_ids
from rxloop.cli.terminal import logged, read_line, report, reporting, say, write
from rxloop.errors import RxloopError
from rxloop.recorded.replay import replay
from rxloop.thoughts.drawing import one_line


def chat(
    model: options.Model = None,
    base_url: options.BaseUrl = None,
    tools: options.Tools = None,
    mcp: options.MCP = None,
    agent: options.AgentName = None,
    strategy: options.Strategy = None,
    thoughts: options.Thoughts = ThoughtLevel.brief,
    json: options.Json = False,
    context: options.Context = None,
    db: options.Database = None,
    no_log: options.NoLog = False,
) -> None:
    """Talk with a model.

    Ctrl-D or /quit ends the conversation, Ctrl-C cancels an answer; --context takes an old conversation up again.
    """
    given = AgentOptions(agent, tuple(tools or ()), model, base_url, strategy, mcp=tuple(mcp or ()))
    begun = conversing(given, thoughts, json, context, db, no_log, chatting=True)
    with reporting(), logged(), asyncio.Runner() as runner:
        # The questions are read outside of the event loop: nothing goes on while a person thinks.
        stack = contextlib.AsyncExitStack()
        try:
            ready, live, context_id = runner.run(stack.enter_async_context(begun))
            runner.run(_greet(ready, live, context_id))
            while (question := _next_question()) is not None:
                try:
                    runner.run(_turn(ready, live, question, context_id, strategy))
                except RxloopError as error:
                    report(error)
            runner.run(_farewell(live, context_id))
        except KeyboardInterrupt:
            # Behind what the terminal shows for the key.
            say("")
            raise
        finally:
            runner.run(stack.aclose())


async def _turn(ready: Ready, live: LiveRuns, question: str, context_id: str, strategy: str | None) -> None:
    asked = ready.agent.run(question, context_id=context_id, model=ready.model, strategy=strategy)
    await live.carry_out(ready, asked, strategy)


async def _greet(ready: Ready, live: LiveRuns, context_id: str) -> None:
    """Say who is there."""
    model = (ready.model or ready.agent.model).name
    say(f"{model}; Ctrl-D or /quit ends the conversation, Ctrl-C cancels an answer")
    if live.log is None:
        return
    for record in (await live.log.runs(context_id=context_id))[-1:]:
        result = await replay(live.log, record.task_id).result()
        say(f"it has {many(len(result.messages), 'message')}; the last one was: {one_line(result.content, 120)}")


async def _farewell(live: LiveRuns, context_id: str) -> None:
    """Say how to go on."""
    records = await live.log.runs() if live.log is not None else ()
    contexts = list(dict.fromkeys(record.context_id for record in records))
    if context_id in contexts:
        say(f"go on with: rxloop chat --context {short_ids(contexts)[context_id]}{live.place}{live.flags}")


def _next_question() -> str | None:
    """Read what the person says next, a line; None at the end."""
    with contextlib.suppress(ModuleNotFoundError):
        # What gives `input` a memory and arrow keys.
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
