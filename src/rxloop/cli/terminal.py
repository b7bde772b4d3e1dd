"""Terminal output, prompts and exit codes."""

from __future__ import annotations

import asyncio
import logging
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

from rxloop.cli.options import decode
from rxloop.cli.streams import discard_output
from rxloop.errors import ConfigurationError, InvalidInput, RxloopError
from rxloop.protocol.events import Event
from rxloop.support.text import INVISIBLE, to_one_line, to_visible


def escape(text: Text | str) -> Text:
    """Escape control characters while preserving styles."""
    if isinstance(text, str):
        return Text(to_visible(text))
    positions = [match.start() for match in INVISIBLE.finditer(text.plain)]
    if not positions:
        return text
    escaped = Text(style=text.style)
    for piece in text.divide(sorted({*positions, *(index + 1 for index in positions)})):
        piece.plain = to_visible(piece.plain)
        escaped.append_text(piece)
    return escaped


class StatusLine:
    """Status line at the bottom of the terminal, hidden while text is streamed.

    Args:
        console: Terminal.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = Status("", console=console, spinner_style="dim")
        self._is_shown = False
        self.is_inside_line = False
        """True if the cursor is after text, where a status cannot be displayed."""

    def show(self, text: Text) -> None:
        """Show or update the status."""
        line = escape(text).copy()
        # Reserve space for the spinner and the last column, because terminals wrap there.
        line.truncate(self._console.width - 3, overflow="ellipsis")
        self._status.update(line)
        self._is_shown = True
        self._start()

    def begin(self) -> None:
        """Mark the current line as empty."""
        self.is_inside_line = False

    def hide(self) -> None:
        """Hide the status."""
        self._is_shown = False
        self._status.stop()

    @contextmanager
    def suspend(self, text: str, *, is_answer: bool) -> Generator[None]:
        """Hide the status while writing text. After answer text, it remains hidden until `show` is called."""
        self._status.stop()
        yield
        if text:
            self.is_inside_line = not text.endswith("\n")
        if self._is_shown and not is_answer:
            self._start()

    def _start(self) -> None:
        if not self.is_inside_line:
            self._status.start()


FAILED = 1
USAGE = 2
WAITS = 3
CANCELLED = 130

MAX_INPUT = 20_000_000
"""Maximum number of bytes of text from stdin. Vendors reject larger requests."""

_OUT = Console(highlight=False, markup=False, emoji=False)
_ERR = Console(highlight=False, markup=False, emoji=False, stderr=True)
_STATUS = StatusLine(_ERR)
_PACKAGE = str(Path(__file__).parents[1])


def write(text: Text | str, *, to_stderr: bool = False) -> None:
    """Write text with control characters escaped, using colours on terminals.

    All output uses this function, so callers need not escape untrusted text.

    Args:
        text: Text including line endings.
        to_stderr: Write to stderr, which keeps the answer on stdout separate.
    """
    text = escape(text)
    with _STATUS.suspend(text.plain, is_answer=not to_stderr):
        (_ERR if to_stderr else _OUT).print(text, end="", soft_wrap=True)


def notify(text: Text | str) -> None:
    """Write a line to stderr."""
    # Use a single write, so that a progress bar cannot interrupt it.
    write(Text.assemble(text if isinstance(text, Text) else Text(text, "dim"), "\n"), to_stderr=True)


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


def get_width() -> int:
    """Return the maximum table width in columns. There is no limit unless stdout is a terminal."""
    return _OUT.width if _OUT.is_terminal else 10_000


def describe_colours() -> str:
    """Describe the terminal's colour support."""
    return f"colours: {_OUT.color_system or 'none'}" + (" (NO_COLOR is set)" if _OUT.no_color else "")


def can_ask() -> bool:
    """Return True if the user can answer questions on a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def get_status_line() -> StatusLine | None:
    """Return the status line, or None if the terminal does not support it."""
    # Don't rely on Rich, which treats pipes as terminals if FORCE_COLOR is set.
    is_terminal = sys.stdout.isatty() and sys.stderr.isatty()
    return _STATUS if is_terminal and not _ERR.is_dumb_terminal and not _ERR.legacy_windows else None


def get_erase_sequence() -> bytes:
    """Return the escape sequence that clears the status or progress bar and shows the cursor."""
    if get_status_line() is None:
        return b""
    # If the command has not written to this line, it contains a status, a bar or the `^C` echo.
    return (b"" if _STATUS.is_inside_line else b"\r") + b"\x1b[J\x1b[?25h"


def get_progress_console() -> Console | None:
    """Return the console for progress bars, or None if the terminal does not support them."""
    return _ERR if get_status_line() is not None else None


@contextmanager
def report_errors() -> Generator[None]:
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
        discard_output()
        raise typer.Exit(FAILED) from None
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError) as error:
        fail(ConfigurationError(f"cannot open {error.filename!r}: {error.strerror}; check the path"))
    except OSError as error:
        discard_output()
        fail(RxloopError(f"{error.filename or 'input or output failed'}: {error.strerror or error}"))


@contextmanager
def print_logs() -> Generator[None]:
    """Print log messages from rxloop like other command output."""
    logger, handler = logging.getLogger("rxloop"), LogPrinter(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def run_main(main: Coroutine[Any, Any, int | None]) -> None:
    """Run a command, print errors to stderr and exit with the corresponding code."""
    with report_errors(), print_logs():
        code = asyncio.run(main)
    if code:
        raise typer.Exit(code)


class LogPrinter(logging.Handler):
    """Log handler that prints records to stderr. Tracebacks are reduced to their last location."""

    @override
    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            message += f": {format_error(error)}"
        # Start a new line if an answer is being written.
        if _STATUS.is_inside_line:
            notify("")
        notify(Text(f"! {to_one_line(message, 2_000)}", "yellow"))


def format_error(error: BaseException) -> str:
    """Describe an exception in user code, including its location."""
    message = f"{type(error).__name__}: {error}"
    trace = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) or not trace or trace[-1].filename.startswith(_PACKAGE):
        return message
    return f"{message} ({trace[-1].filename}, line {trace[-1].lineno})"


def report(error: RxloopError) -> None:
    """Print an error on a single line."""
    notify(Text.assemble(("rxloop: ", "bold red"), to_one_line(str(error), 2_000)))


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
    """Read stdin completely.

    Raises:
        ConfigurationError: The input is too long or contains invalid UTF-8.
    """
    data = sys.stdin.buffer.read(MAX_INPUT + 1)
    if len(data) > MAX_INPUT:
        raise ConfigurationError(f"{name} must contain at most {MAX_INPUT:,} bytes; pass a shorter text")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"{name} must be UTF-8 text, got byte {data[error.start]:#04x} at {error.start}; convert it with iconv"
        ) from error


def read_line(prompt: str = "") -> str:
    """Read a UTF-8 line, ignoring the terminal's encoding.

    Raises:
        EOFError: The input has ended.
    """
    return decode(input(prompt).strip())


def read_secret(prompt: str) -> str:
    """Read a hidden line.

    Raises:
        EOFError: The input has ended.
    """
    # Imported lazily because few runs ask for secrets.
    from getpass import getpass

    # The status line is hidden at this point, so the prompt cannot be overwritten.
    return decode(getpass(prompt).strip())


_COLUMN_GAP = 2
"""Number of spaces between columns."""
_MIN_WIDTH = 20
"""Minimum width for the last column."""


def format_table(
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
    widths = [max(cell_len(line[index]) for line in (head, *rows)) for index in range(len(head))]
    indent = sum(widths[:-1]) + _COLUMN_GAP * (len(widths) - 1)
    widths[-1] = min(widths[-1], max(get_width() - indent, _MIN_WIDTH))
    text = Text()
    for number, cells in enumerate((head, *rows)):
        row = Text()
        for index, cell in enumerate(cells):
            text_cell = _fit_cell(cell, widths[index], indent if wrap and index == len(widths) - 1 else None)
            row.append(text_cell, style(index, cell) if number else "dim")
            row.append(" " * (widths[index] - cell_len(text_cell) + _COLUMN_GAP) if index < len(widths) - 1 else "")
        row.rstrip()
        text.append_text(row).append("\n")
    return text


def _fit_cell(cell: str, size: int, indent: int | None) -> str:
    """Truncate a cell, or wrap it if an indent for continuation lines is given."""
    if cell_len(cell) <= size:
        return cell
    if indent is None:
        return set_cell_size(cell, size - 1).rstrip() + "…"
    return f"\n{' ' * indent}".join(textwrap.wrap(cell, size))
