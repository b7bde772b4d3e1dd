"""Emulated terminals for chat tests, either with `rxloop chat` in a subprocess or with an in-process screen."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pyte
from prompt_toolkit.completion import Completer, DummyCompleter
from prompt_toolkit.data_structures import Size
from prompt_toolkit.history import History, InMemoryHistory
from prompt_toolkit.input import PipeInput, create_pipe_input
from typing_extensions import override

from rxloop.cli.chat.screen import Screen, TerminalOutput
from support.cli_workspace import Workspace
from support.terminals import LIMIT, Terminal

ENTER = "\r"
LINE_BREAK = "\x1b\r"
"""Alt-Enter."""
CTRL_C = "\x03"
CTRL_D = "\x04"
CTRL_J = "\n"


def paste(text: str) -> str:
    """Return the input for pasted text."""
    return f"\x1b[200~{text}\x1b[201~"


class Emulator:
    """Terminal emulator with a scrollback."""

    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        self.size = Size(rows=rows, columns=columns)
        self._screen = pyte.HistoryScreen(columns, rows, history=10_000, ratio=0.5)
        self._stream = pyte.Stream(self._screen)

    def feed(self, text: str) -> None:
        self._stream.feed(text)

    @property
    def lines(self) -> list[str]:
        """Terminal lines, including scrollback, without trailing whitespace."""
        history = ["".join(row[column].data for column in range(self.size.columns)) for row in self._screen.history.top]
        lines = [line.rstrip() for line in [*history, *self._screen.display]]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    @property
    def text(self) -> str:
        """Lines as a string."""
        return "\n".join(self.lines)


class ChatTerminal:
    """User of `rxloop chat` in a pseudo-terminal."""

    def __init__(
        self, workspace: Workspace, *arguments: str, columns: int = 80, rows: int = 24, **options: Any
    ) -> None:
        self.terminal = Terminal(workspace, "chat", *arguments, columns=columns, rows=rows, **options)
        self._emulator = Emulator(columns, rows)
        self._seen = 0

    @property
    def lines(self) -> list[str]:
        """Terminal lines, including scrollback."""
        written = self.terminal.written
        self._emulator.feed(written[self._seen :])
        self._seen = len(written)
        return self._emulator.lines

    def wait_for(self, text: str, count: int = 1) -> None:
        """Wait until a string appears at least `count` times."""
        while "\n".join(self.lines).count(text) < count:
            self.terminal.expect_output()

    def wait_for_prompt(self) -> None:
        """Wait for an empty, idle input line."""
        while not self.lines or self.lines[-1] != "> a question, or /help":
            self.terminal.expect_output()

    def send(self, text: str) -> None:
        self.terminal.send(text)

    def close(self) -> tuple[int, list[str]]:
        """Wait for the exit. Returns the exit code and the lines."""
        code, _ = self.terminal.wait()
        return code, self.lines


class _Stdout(io.StringIO):
    """Output stream connected to an emulator."""

    def __init__(self, emulator: Emulator) -> None:
        super().__init__()
        self._emulator = emulator
        self.writes: list[str] = []
        self.has_changed = asyncio.Event()

    @override
    def write(self, text: str) -> int:
        self.writes.append(text)
        self._emulator.feed(text)
        self.has_changed.set()
        return len(text)

    @override
    def isatty(self) -> bool:
        return True


class TestScreen:
    """Screen of a chat with an emulated terminal."""

    __test__ = False

    def __init__(self, keyboard: PipeInput, history: History, completer: Completer, emulator: Emulator) -> None:
        self.keyboard, self.emulator = keyboard, emulator
        stdout = _Stdout(emulator)
        self._has_changed, self.writes = stdout.has_changed, stdout.writes
        """Strings written to the terminal."""
        output = TerminalOutput(stdout, lambda: emulator.size, term="xterm-256color", enable_cpr=False)
        self.screen = Screen(history, completer, keyboard, output)

    async def wait_for(self, text: str) -> None:
        """Wait until a string appears on the terminal."""
        await self._wait_until(lambda: text in self.emulator.text)

    async def wait_until_gone(self, text: str) -> None:
        """Wait until a string disappears from the terminal."""
        await self._wait_until(lambda: text not in self.emulator.text)

    async def _wait_until(self, is_done: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT):
            while not is_done():
                self._has_changed.clear()
                await self._has_changed.wait()


@asynccontextmanager
async def open_screen(
    *, columns: int = 80, rows: int = 24, history: History | None = None, completer: Completer | None = None
) -> AsyncGenerator[TestScreen]:
    """Show a screen on an emulated terminal."""
    with create_pipe_input() as keyboard:
        emulator = Emulator(columns, rows)
        shown = TestScreen(keyboard, history or InMemoryHistory(), completer or DummyCompleter(), emulator)
        async with shown.screen.open():
            yield shown
