"""Chat screen with finished output at the top, followed by unfinished output, status and input line."""

from __future__ import annotations

import asyncio
import io
import os
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from enum import Enum, auto
from itertools import groupby
from operator import itemgetter
from typing import TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import Completer
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, has_focus
from prompt_toolkit.formatted_text import ANSI, StyleAndTextTuples, to_formatted_text
from prompt_toolkit.history import History
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout import FormattedTextControl, HSplit, Layout, Window
from prompt_toolkit.output import Output, create_output
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.styles import Style
from typing_extensions import override

_MENU_ROWS = 8
"""Maximum number of rows for completions."""
_FRAME_SECONDS = 0.05
"""Minimum number of seconds between two redraws."""
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_SPINNER_SECONDS = 0.1


class Key(Enum):
    """Key with a meaning for the chat."""

    interrupt = auto()
    """Ctrl-C while an answer is written or the input line is empty."""
    end = auto()
    """Ctrl-D on an empty input line."""
    closed = auto()
    """The terminal was closed."""


class Screen:
    """Terminal of a chat.

    Args:
        history: Earlier messages, for the arrow keys.
        completer: Completions for slash commands.
        input: Keyboard.
        output: Terminal.
    """

    def __init__(self, history: History, completer: Completer, input: Input, output: Output) -> None:
        self._output = output
        self._pending = ""
        """Buffered output, written during the next redraw."""
        self._partial_line = ""
        """Text printed by the program without a line end."""
        self._render_tail: Callable[[], str] | None = None
        self._tail_changed = False
        self._tail_lines: list[str] = []
        self._top: StyleAndTextTuples = []
        """Formatted content above the input line, updated before each redraw."""
        self._status: str | None = None
        self._notes: list[str] = []
        self._prompt, self._placeholder = "> ", ""
        self._is_question = self._is_secret = self._is_busy = False
        self._typed: asyncio.Queue[str | Key | BaseException] = asyncio.Queue()
        self._restore_mode: Callable[[], None] = lambda: None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.get_ident()
        self._session: PromptSession[None] = PromptSession(
            lambda: [("bold", self._prompt)],
            multiline=True,
            is_password=Condition(lambda: self._is_secret),
            prompt_continuation=lambda width, number, is_soft_wrap: " " * width,
            placeholder=self._format_placeholder,
            complete_while_typing=Condition(self._is_command),
            completer=completer,
            history=history,
            key_bindings=self._make_key_bindings(),
            enable_suspend=True,
            erase_when_done=True,
            style=Style([("note", "fg:ansibrightblack")]),
            input=input,
            output=output,
        )
        self._app = self._session.app
        top = Window(FormattedTextControl(lambda: self._top), dont_extend_height=True)
        content = HSplit([top, self._session.layout.container])
        self._app.layout = self._session.layout = Layout(content, self._session.default_buffer)
        self._app.min_redraw_interval = _FRAME_SECONDS
        # The output is written by the same event that redraws the input line, so the terminal never shows half of it.
        self._app.before_render += self._flush

    @property
    def columns(self) -> int:
        """Width of the terminal."""
        return max(self._output.get_size().columns, 1)

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Show the input line. Within the block, stdout and stderr are printed above the input line."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._restore_mode = _save_mode(self._app.input)
        prompt = asyncio.create_task(self._session.prompt_async())
        spinner = asyncio.create_task(self._spin())
        prompt.add_done_callback(self._report_end)
        try:
            with self._redirect():
                yield
        finally:
            spinner.cancel()
            self.set_tail(None)
            if self._app.is_running and not self._app.is_done:
                self._app.exit()
            await asyncio.wait([prompt])
            self.print(f"{self._partial_line}\n" if self._partial_line else "")
            self._flush()
            self._output.flush()

    async def read(self) -> str | Key:
        """Wait for a message or a key.

        Raises:
            BaseException: An unexpected error, passed to `fail`.
        """
        typed = await self._typed.get()
        if isinstance(typed, BaseException):
            raise typed
        return typed

    def fail(self, error: BaseException) -> None:
        """End the chat by raising an unexpected error in `read`."""
        self._typed.put_nowait(error)

    def print(self, text: str) -> None:
        """Print lines above the input line.

        Args:
            text: Complete lines. Escape sequences for styles are allowed.
        """
        self._pending += text
        self._invalidate()

    def set_tail(self, render: Callable[[], str] | None) -> None:
        """Show unfinished output above the input line.

        Args:
            render: Function returning lines, called before redrawing.
        """
        self._render_tail, self._tail_changed = render, True
        self._invalidate()

    def set_status(self, text: str | None) -> None:
        """Show a status above the input line."""
        self._status = text
        self._invalidate()

    def set_notes(self, lines: list[str]) -> None:
        """Show notes above the input line, such as pending steering messages."""
        self._notes = lines
        self._invalidate()

    def ask(self, prompt: str, *, is_secret: bool) -> None:
        """Read an answer, excluded from the input history. Secrets are masked."""
        self._prompt, self._is_question, self._is_secret = prompt, True, is_secret
        self._invalidate()

    def set_prompt(self, placeholder: str, *, is_busy: bool) -> None:
        """Read messages.

        Args:
            placeholder: Hint in the empty input line.
            is_busy: An answer is written, which Ctrl-C stops. Otherwise, Ctrl-C removes the typed text first.
        """
        self._prompt, self._placeholder, self._is_busy = "> ", placeholder, is_busy
        self._is_question = self._is_secret = False
        self._invalidate()

    def close_now(self, text: str) -> None:
        """Print a last line and restore the terminal, immediately before the process exits."""
        self._pending += text
        self._notes, self._status = [], None
        self._flush()
        self._app.renderer.erase()
        self._output.flush()
        self._restore_mode()

    def restore_text(self, text: str) -> None:
        """Insert text before any existing input."""
        buffer = self._session.default_buffer
        if text:
            buffer.text = f"{text}\n{buffer.text}" if buffer.text else text
            buffer.cursor_position = len(buffer.text)

    def _make_key_bindings(self) -> KeyBindings:
        keys, is_focused = KeyBindings(), has_focus(DEFAULT_BUFFER)

        @keys.add("enter", filter=is_focused, eager=True)
        def send(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            state = buffer.complete_state
            if state is not None and state.current_completion is not None and len(state.completions) > 1:
                # The first Enter accepts the selected completion. A single one needs no confirmation.
                buffer.complete_state = None
                return
            text = buffer.text
            if not self._is_question and text.strip():
                buffer.append_to_history()
            buffer.reset()
            self._typed.put_nowait(text)

        @keys.add("c-j", filter=is_focused)
        @keys.add("escape", "enter", filter=is_focused)
        def insert_line_break(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add("c-c", filter=is_focused)
        @keys.add("<sigint>")
        def interrupt(event: KeyPressEvent) -> None:
            if self._session.default_buffer.text and not self._is_busy:
                self._session.default_buffer.reset()
            else:
                self._typed.put_nowait(Key.interrupt)

        @keys.add("c-d", filter=is_focused & Condition(lambda: not self._session.default_buffer.text))
        def end(event: KeyPressEvent) -> None:
            self._typed.put_nowait(Key.end)

        _ = send, insert_line_break, interrupt, end
        return keys

    def _report_end(self, prompt: asyncio.Task[None]) -> None:
        """End the chat because the input line ended, usually after closing the terminal."""
        error = None if prompt.cancelled() else prompt.exception()
        if error is None or isinstance(error, EOFError | KeyboardInterrupt | OSError):
            self._typed.put_nowait(Key.closed)
        else:
            self.fail(error)

    def _is_command(self) -> bool:
        text = self._session.default_buffer.text
        return text.startswith("/") and "\n" not in text and not self._is_secret

    def _invalidate(self) -> None:
        self._app.invalidate()

    def _flush(self, _: object = None) -> None:
        """Write finished output, and remember the unfinished lines that follow it."""
        if self._pending:
            with _hold(self._output):
                self._app.renderer.erase()
            self._output.write_raw(self._pending.replace("\n", "\r\n"))
            self._pending = ""
        size = self._output.get_size()
        self._session.reserve_space_for_menu = max(min(_MENU_ROWS, size.rows - 3), 0)
        if self._tail_changed:
            rendered = self._render_tail() if self._render_tail is not None else ""
            self._tail_lines, self._tail_changed = rendered.splitlines(), False
        self._top = self._format_top()

    def _format_top(self) -> StyleAndTextTuples:
        """Format unfinished output, notes and status."""
        input_rows = self._session.default_buffer.document.line_count
        limit = max(self._output.get_size().rows - input_rows - len(self._notes) - 3, 0)
        lines = [*self._tail_lines, *([self._partial_line] if self._partial_line else [])]
        fragments: StyleAndTextTuples = []
        for line in lines[max(len(lines) - limit, 0) :]:
            fragments += [*_parse_ansi(line), ("", "\n")]
        for note in self._notes:
            fragments.append(("class:note", f"\n{note[: self.columns - 1]}"))
        if self._status is not None:
            frame = _SPINNER[int(time.monotonic() / _SPINNER_SECONDS) % len(_SPINNER)]
            fragments.append(("class:note", f"\n{frame} {self._status}"[: self.columns]))
        return fragments

    def _format_placeholder(self) -> StyleAndTextTuples:
        is_hidden = self._is_question or self._app.layout.is_searching
        return [("class:note", "" if is_hidden else self._placeholder[: self.columns - 4])]

    async def _spin(self) -> None:
        while True:
            await asyncio.sleep(_SPINNER_SECONDS)
            if self._status is not None:
                self._invalidate()

    @contextmanager
    def _redirect(self) -> Generator[None]:
        """Redirect stdout and stderr to the screen."""
        stdout, stderr = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = _Redirection(self, stdout), _Redirection(self, stderr)
        try:
            yield
        finally:
            sys.stdout, sys.stderr = stdout, stderr

    def write_part(self, text: str) -> None:
        """Print text that may end within a line. Can be called from any thread."""
        if threading.get_ident() != self._thread and self._loop is not None:
            self._loop.call_soon_threadsafe(self.write_part, text)
            return
        text = self._partial_line + text
        complete, newline, self._partial_line = text.rpartition("\n")
        self.print(complete + newline)


def _parse_ansi(line: str) -> StyleAndTextTuples:
    """Return the styled parts of a line with escape sequences."""
    # Group characters with equal styles, because redrawing separate characters would be slow.
    characters = to_formatted_text(ANSI(line))
    return [(style, "".join(part[1] for part in parts)) for style, parts in groupby(characters, key=itemgetter(0))]


class TerminalOutput(Vt100_Output):
    """Output with deferred flushing, which prevents partially drawn screens."""

    is_held = False

    @override
    def flush(self) -> None:
        if not self.is_held:
            super().flush()


@contextmanager
def _hold(output: Output) -> Generator[None]:
    if not isinstance(output, TerminalOutput):
        yield
        return
    output.is_held = True
    try:
        yield
    finally:
        output.is_held = False


def make_output() -> Output:
    """Return the output for stdout."""
    if sys.platform == "win32":
        return create_output(sys.stdout)
    output = TerminalOutput.from_pty(sys.stdout, term=os.environ.get("TERM"))
    # Cursor position requests are unnecessary here, and unsupported terminals would delay the first line.
    output.enable_cpr = False
    return output


def _save_mode(input: Input) -> Callable[[], None]:
    """Return a function for restoring the current terminal mode."""
    if sys.platform == "win32":
        return lambda: None
    import termios

    try:
        descriptor = input.fileno()
        mode = termios.tcgetattr(descriptor)
    except (OSError, termios.error, NotImplementedError):
        # Tests use pipes as input.
        return lambda: None
    return lambda: termios.tcsetattr(descriptor, termios.TCSADRAIN, mode)


class _Redirection(io.TextIOBase):
    """Replacement for stdout or stderr."""

    def __init__(self, screen: Screen, original: TextIO) -> None:
        self._screen, self._original = screen, original

    @property
    @override
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._original.encoding

    @override
    def isatty(self) -> bool:
        return True

    @override
    def fileno(self) -> int:
        return self._original.fileno()

    @override
    def writable(self) -> bool:
        return True

    @override
    def write(self, text: str) -> int:
        self._screen.write_part(text)
        return len(text)
