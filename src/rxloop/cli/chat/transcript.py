"""Conversations as Markdown files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from rxloop.cli.options import decode
from rxloop.cli.render import format_call
from rxloop.errors import ConfigurationError
from rxloop.protocol.messages import Message
from rxloop.protocol.parts import add_placeholders

_TITLES = {"user": "User", "assistant": "Assistant", "system": "System"}


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


def format_transcript(messages: Sequence[Message]) -> str:
    """Format messages as Markdown. Hidden tool calls and their results are omitted."""
    return "\n".join(_format_all(messages))


def _format_all(messages: Sequence[Message]) -> Iterator[str]:
    hidden = {call.id for message in messages for call in message.tool_calls if call.hidden}
    title = ""
    for message in messages:
        if message.role == "tool":
            if message.tool_call_id not in hidden:
                yield _fence(message.text)
            continue
        calls = [call for call in message.tool_calls if not call.hidden]
        text = add_placeholders(message.text, message.media).strip()
        if not text and not calls:
            continue
        if title != _TITLES[message.role] or message.role != "assistant":
            title = _TITLES[message.role]
            yield f"## {title}\n"
        if text:
            yield f"{text}\n"
        for call in calls:
            yield f"Tool call: `{format_call(call)}`\n"


def _fence(text: str) -> str:
    """Return a code block. Its fence is longer than all fences in the text."""
    mark = "```"
    while mark in text:
        mark += "`"
    return f"{mark}\n{text.strip()}\n{mark}\n"
