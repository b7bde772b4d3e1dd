"""Terminal output, prompts and exit codes."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import textwrap
import traceback
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.status import Status
from rich.text import Text
from typing_extensions import override

from rxloop.cli.options import as_text
from rxloop.errors import ConfigurationError, InvalidInput, RxloopError
from rxloop.protocol.events import Event
from rxloop.support.text import INVISIBLE, to_one_line, to_visible


def shown(text: Text | str) -> Text:
    """Escape control characters while preserving styles."""
    if isinstance(text, str):
        return Text(to_visible(text))
    found = [match.start() for match in INVISIBLE.finditer(text.plain)]
    if not found:
        return text
    made = Text(style=text.style)
    for piece in text.divide(sorted({*found, *(place + 1 for place in found)})):
        piece.plain = to_visible(piece.plain)
        made.append_text(piece)
    return made


class StatusLine:
    """Status line at the bottom of the terminal, hidden while text is streamed.

    Args:
        console: Terminal.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = Status("", console=console, spinner_style="dim")
        self._is_wanted = False
        self.is_inside_line = False
        """True if the cursor is after text, where a status cannot be displayed."""

    def show(self, text: Text) -> None:
        """Show or update the status."""
        line = shown(text).copy()
        # Reserve space for the spinner, and avoid the last column, where terminals wrap.
        line.truncate(self._console.width - 3, overflow="ellipsis")
        self._status.update(line)
        self._is_wanted = True
        self._start()

    def begin(self) -> None:
        """Mark the current line as empty."""
        self.is_inside_line = False

    def hide(self) -> None:
        """Hide the status."""
        self._is_wanted = False
        self._status.stop()

    @contextmanager
    def aside(self, written: str, *, is_answer: bool) -> Generator[None]:
        """Hide the status while writing text. After answer text, it remains hidden until `show` is called."""
        self._status.stop()
        yield
        if written:
            self.is_inside_line = not written.endswith("\n")
        if self._is_wanted and not is_answer:
            self._start()

    def _start(self) -> None:
        if not self.is_inside_line:
            self._status.start()


FAILED = 1
USAGE = 2
WAITS = 3
CANCELLED = 130

_OUT = Console(highlight=False, markup=False, emoji=False)
_ERR = Console(highlight=False, markup=False, emoji=False, stderr=True)
_STATUS = StatusLine(_ERR)
_OURS = str(Path(__file__).parents[1])


def write(text: Text | str, *, beside: bool = False) -> None:
    """Write text with control characters escaped, using colours on terminals.

    All output uses this function, so callers need not escape untrusted text.

    Args:
        text: Text including line endings.
        beside: Write to stderr, which keeps the answer on stdout separate.
    """
    text = shown(text)
    with _STATUS.aside(text.plain, is_answer=not beside):
        (_ERR if beside else _OUT).print(text, end="", soft_wrap=True)


def say(text: Text | str) -> None:
    """Write a line to stderr."""
    # Use a single write, so that a progress bar cannot interrupt it.
    write(Text.assemble(text if isinstance(text, Text) else Text(text, "dim"), "\n"), beside=True)


def write_json(event: Event, *, full: bool) -> None:
    """Write an event as a line of JSON.

    Args:
        event: Event.
        full: Include internal data. Otherwise, only the public form is written, if there is any.
    """
    if full or event.to_public() is not None:
        write_plain(event.to_json(public=not full).decode() + "\n")


def write_plain(text: str) -> None:
    """Write machine-readable text without colours or line wrapping."""
    sys.stdout.write(to_visible(text))
    sys.stdout.flush()


def width() -> int:
    """Return the maximum table width in columns. There is no limit unless stdout is a terminal."""
    return _OUT.width if _OUT.is_terminal else 10_000


def colours() -> str:
    """Describe the terminal's colour support."""
    return f"colours: {_OUT.color_system or 'none'}" + (" (NO_COLOR is set)" if _OUT.no_color else "")


def asks() -> bool:
    """True if the user can answer questions on a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def status_line() -> StatusLine | None:
    """Return the status line, or None if the terminal does not support it."""
    # Don't rely on Rich, which treats pipes as terminals if FORCE_COLOR is set.
    there = sys.stdout.isatty() and sys.stderr.isatty()
    return _STATUS if there and not _ERR.is_dumb_terminal and not _ERR.legacy_windows else None


def erasure() -> bytes:
    """Return the escape sequence that clears the status or progress bar and shows the cursor."""
    if status_line() is None:
        return b""
    # If the command has not written to this line, it contains a status, a bar or the `^C` echo.
    return (b"" if _STATUS.is_inside_line else b"\r") + b"\x1b[J\x1b[?25h"


def drawing() -> Console | None:
    """Return the console for progress bars, or None if the terminal does not support them."""
    return _ERR if status_line() is not None else None


@contextmanager
def reporting() -> Generator[None]:
    """Print errors to stderr and exit with the corresponding code.

    Raises:
        typer.Exit: An error occurred.
    """
    try:
        yield
        # Flush here, so that write errors are reported by us and not by the interpreter at exit.
        sys.stdout.flush()
    except RxloopError as error:
        fail(error)
    except KeyboardInterrupt:
        raise typer.Exit(CANCELLED) from None
    except BrokenPipeError:
        _leave_quietly()
        raise typer.Exit(FAILED) from None
    except OSError as error:
        _leave_quietly()
        fail(RxloopError(f"{error.filename or 'reading or writing failed'}: {error.strerror or error}"))


@contextmanager
def logged() -> Generator[None]:
    """Print log messages from rxloop like other command output."""
    logger, handler = logging.getLogger("rxloop"), LogLines(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _leave_quietly() -> None:
    """Discard unwritable output if the reader has exited, like `head`, or the disk is full."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(nowhere, stream.fileno())


def running(main: Coroutine[Any, Any, int | None]) -> None:
    """Run a command, print errors to stderr and exit with the corresponding code."""
    with reporting(), logged():
        code = asyncio.run(main)
    if code:
        raise typer.Exit(code)


class LogLines(logging.Handler):
    """Log handler that prints records to stderr. Tracebacks are reduced to their last location."""

    @override
    def emit(self, record: logging.LogRecord) -> None:
        said = record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            said += f": {failure(error)}"
        # Start a new line if an answer is being written.
        if _STATUS.is_inside_line:
            say("")
        say(Text(f"! {to_one_line(said, 2_000)}", "yellow"))


def failure(error: BaseException) -> str:
    """Describe an exception in user code, including its location."""
    said = f"{type(error).__name__}: {error}"
    trace = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) or not trace or trace[-1].filename.startswith(_OURS):
        return said
    return f"{said} ({trace[-1].filename}, line {trace[-1].lineno})"


def report(error: RxloopError) -> None:
    """Print an error on a single line."""
    say(Text.assemble(("rxloop: ", "bold red"), to_one_line(str(error), 2_000)))


def fail(error: RxloopError) -> NoReturn:
    """Print an error and exit with the corresponding code.

    Raises:
        typer.Exit: Always.
    """
    # If the reader has exited, the exit code is sufficient.
    with suppress(BrokenPipeError):
        report(error)
    raise typer.Exit(USAGE if isinstance(error, ConfigurationError | InvalidInput) else FAILED) from error


def read_all(name: str = "stdin") -> str:
    """Read all input from stdin.

    Raises:
        ConfigurationError: The input is not UTF-8 text.
    """
    data = sys.stdin.buffer.read()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"{name} is not UTF-8 text: byte {data[error.start]:#04x} at {error.start}; convert it first, as iconv does"
        ) from error


def read_line(prompt: str = "") -> str:
    """Read a line using UTF-8, regardless of the terminal's encoding.

    Raises:
        EOFError: There is no more input.
    """
    return as_text(input(prompt).strip())


def read_secret(prompt: str) -> str:
    """Read a line that is neither echoed nor added to the history.

    Raises:
        EOFError: There is no more input.
    """
    # Imported lazily because few runs ask for secrets.
    from getpass import getpass

    # The status line is hidden at this point, so the prompt cannot be overwritten.
    return as_text(getpass(prompt).strip())


_GAP = 2
"""Number of spaces between columns."""
_LEAST = 20
"""Minimum width for the last column."""


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    style: Callable[[int, str], str] = lambda _place, _cell: "",
    *,
    wrap: bool = False,
) -> Text:
    """Format a table. The last column uses the remaining width.

    Args:
        head: Column names.
        rows: Rows with one cell per column.
        style: Returns the style of a cell from its column index and text.
        wrap: Wrap long text in the last column instead of truncating it.
    """
    widths = [max(cell_len(line[place]) for line in (head, *rows)) for place in range(len(head))]
    before = sum(widths[:-1]) + _GAP * (len(widths) - 1)
    widths[-1] = min(widths[-1], max(width() - before, _LEAST))
    text = Text()
    for number, line in enumerate((head, *rows)):
        row = Text()
        for place, cell in enumerate(line):
            shown = _fitted(cell, widths[place], before if wrap and place == len(widths) - 1 else None)
            row.append(shown, style(place, cell) if number else "dim")
            row.append(" " * (widths[place] - cell_len(shown) + _GAP) if place < len(widths) - 1 else "")
        row.rstrip()
        text.append_text(row).append("\n")
    return text


def _fitted(cell: str, size: int, indent: int | None) -> str:
    """Truncate a cell, or wrap it if an indent for continuation lines is given."""
    if cell_len(cell) <= size:
        return cell
    if indent is None:
        return set_cell_size(cell, size - 1).rstrip() + "…"
    return f"\n{' ' * indent}".join(textwrap.wrap(cell, size))
