"""`rxloop chat`: ask a model for as long as one likes."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sys

from rxloop.cli.agent_loader import AgentOptions, Ready
from rxloop.cli.database import short_ids
from rxloop.cli.live_run import LiveRuns, conversing
from rxloop.cli.options import LogSelection, RunDisplay
from rxloop.cli.render import many
from rxloop.cli.terminal import logged, read_line, report, reporting, say, write
from rxloop.errors import RxloopError
from rxloop.recorded.replay import replay
from rxloop.support.text import to_one_line


def chat(agent: AgentOptions, display: RunDisplay, selection: LogSelection) -> None:
    """Talk with a model.

    Ctrl-D or /quit ends the conversation, Ctrl-C cancels an answer; --context takes an old conversation up again.
    """
    begun = conversing(agent, display, selection, chatting=True)
    with reporting(), logged(), asyncio.Runner() as runner:
        # The questions are read outside of the event loop: nothing goes on while a person thinks.
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
    for record in (await live.log.list_runs(context_id=context_id))[-1:]:
        result = await replay(live.log, record.task_id).result()
        say(f"it has {many(len(result.messages), 'message')}; the last one was: {to_one_line(result.content, 120)}")


async def _farewell(live: LiveRuns, context_id: str) -> None:
    """Say how to go on."""
    records = await live.log.list_runs() if live.log is not None else ()
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
