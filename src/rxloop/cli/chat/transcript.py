"""Conversations as Markdown files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rxloop.cli.options import decode
from rxloop.errors import ConfigurationError
from rxloop.protocol.messages import Message
from rxloop.recorded.transcript import format_transcript


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
