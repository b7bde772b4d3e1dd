"""Slash commands for chats."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from textwrap import fill, indent
from typing import NamedTuple

from rich.text import Text

from rxloop._names import find_nearest
from rxloop.cli.chat.conversation import Conversation
from rxloop.cli.options import ThoughtLevel, decode
from rxloop.cli.render import format_count
from rxloop.cli.terminal import format_table, get_width, notify, write
from rxloop.errors import ConfigurationError
from rxloop.protocol.messages import Message
from rxloop.recorded.transcript import format_transcript
from rxloop.support.redaction import display_url
from rxloop.support.text import to_one_line

_TABLE_WIDTH = 60

Handler = Callable[[Conversation, str], Awaitable[None]]


class SlashCommand(NamedTuple):
    """Command of a chat."""

    argument: str
    """Placeholder for the argument. Empty if there is none."""
    help: str
    handler: Handler
    changes_history: bool = False
    """True if the command cannot be used while an answer is written."""


class Invocation(NamedTuple):
    """Slash command typed by the user."""

    name: str
    argument: str


def parse_line(line: str) -> str | Invocation:
    """Parse a typed line, removing one slash from messages starting with `//`.

    Raises:
        ConfigurationError: The command is unknown or does not accept arguments.
    """
    if not line.startswith("/"):
        return line
    if line.startswith("//"):
        return line[1:]
    word, *rest = line[1:].split(maxsplit=1) or [""]
    name, argument = _ALIASES.get(word, word), rest[0].strip() if rest else ""
    if name not in COMMANDS:
        nearest = find_nearest(name, COMMANDS)
        hint = "/help lists all commands." if nearest is None else f"did you mean /{nearest}?"
        shown = to_one_line(word)
        raise ConfigurationError(f"unknown command /{shown}; {hint} Use //{shown} to send it as a message")
    if argument and not COMMANDS[name].argument:
        raise ConfigurationError(f"/{name} accepts no argument, got {to_one_line(argument)!r}")
    return Invocation(name, argument)


async def execute(conversation: Conversation, invocation: Invocation, *, is_answering: bool = False) -> None:
    """Execute a slash command.

    Args:
        conversation: Conversation of the chat.
        invocation: Command and argument.
        is_answering: True if a run is active.

    Raises:
        RxloopError: The argument is invalid, or the command failed.
    """
    command = COMMANDS[invocation.name]
    if is_answering and command.changes_history:
        raise ConfigurationError(f"/{invocation.name} cannot be used during an answer; wait, or press Ctrl-C first")
    await command.handler(conversation, invocation.argument)


async def _help(conversation: Conversation, argument: str) -> None:
    rows = [(f"/{name} {command.argument}".strip(), command.help) for name, command in COMMANDS.items()]
    rows.append(("//TEXT", "Send a message that starts with a slash."))
    for head, lines in (("COMMAND", rows), ("KEY", KEYS)):
        write(_format_list(head, lines), to_stderr=True)


def _format_list(head: str, rows: Sequence[tuple[str, str]]) -> Text:
    if get_width() >= _TABLE_WIDTH:
        return format_table((head, ""), rows, wrap=True)
    # Two columns do not fit.
    return Text("".join(f"{name}\n{indent(fill(text, get_width() - 2), '  ')}\n" for name, text in rows))


async def _model(conversation: Conversation, name: str) -> None:
    if name:
        await conversation.switch_model(name)
    notify(f"model: {display_url(conversation.model.name)}")


async def _tools(conversation: Conversation, argument: str) -> None:
    definition = conversation.ready.agent.definition
    rows = [(name, to_one_line(text, 200)) for name, text in definition.tool_descriptions.items()]
    for server, names in definition.tools.toolset_tools.items():
        rows.append((f"{server} (server)", ", ".join(names) or "its tools are known after the first answer"))
    if rows:
        write(format_table(("TOOL", ""), rows), to_stderr=True)
    else:
        notify("no tools; add some with rxloop chat --tools or --mcp")


async def _thoughts(conversation: Conversation, level: str) -> None:
    if level:
        if level not in ThoughtLevel.__members__:
            levels = ", ".join(ThoughtLevel)
            raise ConfigurationError(f"/thoughts must be followed by one of {levels}, got {to_one_line(level)!r}")
        conversation.show_thoughts(ThoughtLevel(level))
    notify(f"thoughts: {conversation.thoughts}")


async def _cost(conversation: Conversation, argument: str) -> None:
    costs = await conversation.measure_costs()
    text = f"{costs.input_tokens:,} tokens in, {costs.output_tokens:,} out"
    if costs.dollars or not costs.unpriced:
        text += f", ${costs.dollars:.4f}"
    if costs.unpriced:
        names = ", ".join(display_url(name) or "a model without a name" for name in costs.unpriced)
        text += f"; the price of {names} is unknown"
    notify(text)


async def _undo(conversation: Conversation, argument: str) -> None:
    question = await conversation.undo()
    if question is None:
        notify("nothing to undo: the conversation is empty")
        return
    left = format_count(len(await conversation.read_messages()), "message")
    notify(f"removed from the conversation: {to_one_line(question, 60)} ({left} left; the run stays in the log)")


async def _fork(conversation: Conversation, place: str) -> None:
    await conversation.fork(place)
    copied = format_count(len(await conversation.read_messages()), "message")
    notify(f"continuing in a copy with {copied}; the original conversation is not changed")


async def _save(conversation: Conversation, name: str) -> None:
    if not name:
        raise ConfigurationError("/save needs a file name, for example /save chat.md")
    messages = await conversation.read_messages()
    if not messages:
        raise ConfigurationError("cannot save an empty conversation; ask a question first")
    path = save_transcript(name, messages)
    notify(f"wrote {format_count(len(messages), 'message')} to {path}")


async def _clear(conversation: Conversation, argument: str) -> None:
    previous = await conversation.find_short_id()
    conversation.clear()
    hint = f"; the previous one: rxloop chat --context {previous}" if previous is not None else ""
    notify(f"new conversation{hint}")


async def _quit(conversation: Conversation, argument: str) -> None:
    """Return immediately, because callers handle `/quit` themselves."""


COMMANDS = {
    "help": SlashCommand("", "Show this list.", _help),
    "model": SlashCommand("[NAME]", "Show the model, or use another one for the following answers.", _model),
    "tools": SlashCommand("", "List the tools of the agent.", _tools),
    "thoughts": SlashCommand("[none|brief|all]", "Show or select the level of detail for thoughts.", _thoughts),
    "cost": SlashCommand("", "Show the tokens and the price of this chat.", _cost),
    "undo": SlashCommand("", "Remove the last question and its answer from the conversation.", _undo, True),
    "fork": SlashCommand("[SEQ|RUN]", "Continue in a copy, up to an event of the last run or a run.", _fork, True),
    "save": SlashCommand("FILE", "Write the conversation to a new Markdown file.", _save, True),
    "clear": SlashCommand("", "Start a new conversation.", _clear, True),
    "quit": SlashCommand("", "End the chat.", _quit),
}
"""Commands by name, in help order."""
_ALIASES = {"exit": "quit", "?": "help"}
KEYS = (
    ("Enter", "Send. While an answer is written, the message steers it."),
    ("Alt-Enter, Ctrl-J", "Insert a line break."),
    ("Up, Down, Ctrl-R", "Recall or search earlier messages."),
    ("Tab", "Complete a command, a model or a file name."),
    ("Ctrl-C", "Stop the answer."),
    ("Ctrl-D", "End the chat."),
)
"""Keys on a terminal."""


def save_transcript(name: str, messages: Sequence[Message]) -> Path:
    """Write messages to a new Markdown file and return its path.

    Args:
        name: File name. `~` is the home folder.
        messages: Messages of the conversation.

    Raises:
        ConfigurationError: The file exists, or it cannot be written.
    """
    path = Path(decode(name)).expanduser()
    data = format_transcript(messages).encode("utf-8", "replace")
    try:
        # `O_EXCL` also refuses symbolic links. Conversations can be private, so only their owner may read them.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
    except FileExistsError as error:
        raise ConfigurationError(f"{path} already exists and was left unchanged; choose a different name") from error
    except OSError as error:
        raise ConfigurationError(f"cannot create {path}: {error.strerror}; choose a different path") from error
    return path
