"""Command `chat` for terminals and pipes."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sys
from io import TextIOWrapper
from typing import Any, TextIO, cast

from rxloop.cli import require_extra
from rxloop.cli.agent_loader import AgentOptions, LoadedAgent
from rxloop.cli.arguments.inputs import Attachments
from rxloop.cli.chat.commands import Invocation, execute, parse_line
from rxloop.cli.chat.conversation import Conversation
from rxloop.cli.live_run import ConversationOptions, LiveRuns, open_session
from rxloop.cli.options import LogSelection, RunControl, RunDisplay
from rxloop.cli.render import format_count
from rxloop.cli.terminal import (
    get_status_line,
    notify,
    print_logs,
    read_line,
    report,
    report_errors,
    write,
)
from rxloop.errors import ConfigurationError, RxloopError
from rxloop.recorded.replay import replay
from rxloop.support.redaction import display_url
from rxloop.support.text import to_one_line


def chat(
    agent: AgentOptions, attachments: Attachments, control: RunControl, display: RunDisplay, selection: LogSelection
) -> None:
    """Chat with a model.

    /help lists the commands and keys. Ctrl-C cancels an answer, and Ctrl-D ends the conversation. --continue continues
    the last conversation, and --context an earlier one. Attachments are sent with the first question.
    """
    has_screen = sys.stdin.isatty() and get_status_line() is not None and not display.json
    with report_errors(), print_logs(), asyncio.Runner() as runner:
        if attachments.use_stdin:
            raise ConfigurationError("--attach - cannot be used with rxloop chat, which reads questions from stdin")
        parts = attachments.load()
        stack = contextlib.AsyncExitStack()
        try:
            conversation = runner.run(
                _open(stack, agent, open_session(agent, display, selection, control, chatting=True))
            )
            conversation.attachments = parts
            runner.run(_greet(conversation))
            if has_screen:
                runner.run(_chat_on_screen(conversation))
            else:
                _chat_in_lines(runner, conversation)
            runner.run(_show_continuation(conversation))
        except KeyboardInterrupt:
            # Start a new line after the terminal's `^C`.
            notify("")
            raise
        finally:
            runner.run(stack.aclose())


async def _open(
    stack: contextlib.AsyncExitStack,
    agent: AgentOptions,
    opening: contextlib.AbstractAsyncContextManager[tuple[LoadedAgent, LiveRuns, ConversationOptions]],
) -> Conversation:
    ready, live, options = await stack.enter_async_context(opening)
    assert ready.agent.log is not None
    return await stack.enter_async_context(Conversation(ready, live, ready.agent.log, agent, **options))


async def _chat_on_screen(conversation: Conversation) -> None:
    # Imported lazily because pipes do not need these modules.
    with require_extra():
        from prompt_toolkit.input import create_input

        from rxloop.cli.chat.completion import ChatCompleter
        from rxloop.cli.chat.history import open_history
        from rxloop.cli.chat.screen import Screen, make_output
        from rxloop.cli.chat.session import ChatSession

    stdin: TextIO = sys.stdin
    if isinstance(stdin, TextIOWrapper):
        cast("TextIOWrapper[Any]", stdin).reconfigure(encoding="utf-8")
    history = open_history(is_stored=conversation.live.log is not None)
    screen = Screen(history, ChatCompleter(), create_input(cast("TextIO", stdin)), make_output())
    async with screen.open():
        await ChatSession(conversation, screen).run()


def _chat_in_lines(runner: asyncio.Runner, conversation: Conversation) -> None:
    """Read questions and commands line by line, and print plain text."""
    # Read input outside the event loop, because no other tasks need to run in the meantime.
    while (line := _read_next_line()) is not None:
        try:
            parsed = parse_line(line)
            if not isinstance(parsed, Invocation):
                runner.run(_run_turn(conversation, parsed))
            elif parsed.name == "quit":
                return
            else:
                runner.run(execute(conversation, parsed))
        except RxloopError as error:
            report(error)


async def _run_turn(conversation: Conversation, question: str) -> None:
    run = await conversation.make_run(question)
    await conversation.live.execute(conversation.ready, run, conversation.options.strategy)


async def _greet(conversation: Conversation) -> None:
    """Show the model, keyboard shortcuts and a summary of the previous conversation."""
    notify(f"{display_url(conversation.model.name)}; /help lists commands and keys")
    for record in (await conversation.list_runs())[-1:]:
        result = await replay(conversation.log, record.task_id).result()
        messages = format_count(len(result.messages), "message")
        notify(f"{messages} so far; last answer: {to_one_line(result.content, 120)}")


async def _show_continuation(conversation: Conversation) -> None:
    """Show the command for continuing the conversation."""
    suffix = await conversation.find_short_id()
    if suffix is not None:
        live = conversation.live
        notify(f"continue with: rxloop chat --context {suffix}{live.database_option}{live.flags}")


def _read_next_line() -> str | None:
    """Read the next non-empty line. Returns None at end of file."""
    with contextlib.suppress(ModuleNotFoundError):
        # Enables history and arrow keys for `input`.
        importlib.import_module("readline")
    while True:
        terminal = sys.stdin.isatty()
        if terminal and not sys.stdout.isatty():
            write("> ", to_stderr=True)
        try:
            line = read_line("> " if terminal and sys.stdout.isatty() else "")
        except EOFError:
            notify("")
            return None
        if line:
            return line
