"""Input history, stored in a private file."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from typing_extensions import override

from rxloop.cli.terminal import notify

_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)


class _FileHistory(FileHistory):
    """File history that reports an error once instead of ending the chat."""

    _has_failed = False

    @override
    def store_string(self, string: str) -> None:
        try:
            super().store_string(string)
        except OSError as error:
            if not self._has_failed:
                self._has_failed = True
                notify(f"! cannot write the history {os.fspath(self.filename)}: {error.strerror}")


def get_history_path() -> Path:
    """Return the path of the history file."""
    return platformdirs.user_data_path("rxloop", appauthor=False) / "chat_history"


def open_history(*, is_stored: bool) -> History:
    """Return the history of earlier chats.

    Args:
        is_stored: Read and write the history file. If it cannot be opened, the history is kept in memory.
    """
    path = get_history_path()
    if not is_stored:
        return InMemoryHistory()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _NO_FOLLOW, 0o600)
        try:
            if hasattr(os, "fchmod"):
                os.fchmod(descriptor, 0o600)
        finally:
            os.close(descriptor)
    except OSError as error:
        notify(f"! messages are not kept for later chats, because {path} cannot be opened: {error.strerror}")
        return InMemoryHistory()
    return _FileHistory(path)
