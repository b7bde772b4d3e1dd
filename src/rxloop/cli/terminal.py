"""Output, prompts and exit codes of the command."""

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
    """Write an escape in the place of each character that a terminal would act upon; the colours stay."""
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
    """Status of a run or an experiment on the last line of the terminal, hidden while text streams.

    Args:
        console: The terminal.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = Status("", console=console, spinner_style="dim")
        self._is_wanted = False
        self.is_inside_line = False
        """True if the cursor is after text, so the status cannot be shown on this line."""

    def show(self, text: Text) -> None:
        """Show this status from now on."""
        line = shown(text).copy()
        # Leave room for the spinner, and do not use the last column, where terminals wrap.
        line.truncate(self._console.width - 3, overflow="ellipsis")
        self._status.update(line)
        self._is_wanted = True
        self._start()

    def begin(self) -> None:
        """Note that the cursor is at the beginning of a line."""
        self.is_inside_line = False

    def hide(self) -> None:
        """Remove the status."""
        self._is_wanted = False
        self._status.stop()

    @contextmanager
    def aside(self, written: str, *, is_answer: bool) -> Generator[None]:
        """Write text to the terminal with the status out of the way. After an answer only `show` brings it back."""
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
    """Write a text, in colours where there is a terminal; what a terminal would act upon is made visible.

    All that the command says goes through here: nobody has to remember where a text has come from.

    Args:
        text: With its own line ends.
        beside: On stderr, so that what goes to a file or a pipe is the answer alone.
    """
    text = shown(text)
    with _STATUS.aside(text.plain, is_answer=not beside):
        (_ERR if beside else _OUT).print(text, end="", soft_wrap=True)


def say(text: Text | str) -> None:
    """Write a line beside the answer."""
    # In one piece, which a progress bar below it does not draw over.
    write(Text.assemble(text if isinstance(text, Text) else Text(text, "dim"), "\n"), beside=True)


def write_json(event: Event, *, full: bool) -> None:
    """Write an event as one line.

    Args:
        event: The event.
        full: With all that is not for clients; otherwise as they may see it, and nothing where it is not for them.
    """
    if full or event.to_public() is not None:
        write_plain(event.to_json(public=not full).decode() + "\n")


def write_plain(text: str) -> None:
    """Write a text for other programs, which is neither coloured nor broken into lines."""
    sys.stdout.write(to_visible(text))
    sys.stdout.flush()


def width() -> int:
    """Return the columns that a table may take; without a terminal as many as it wants."""
    return _OUT.width if _OUT.is_terminal else 10_000


def colours() -> str:
    """Say which colours the terminal is taken to have."""
    return f"colours: {_OUT.color_system or 'none'}" + (" (NO_COLOR is set)" if _OUT.no_color else "")


def asks() -> bool:
    """Return whether somebody sits at a terminal and can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def status_line() -> StatusLine | None:
    """Return the status line, or None if no terminal shows it, or one that cannot move back."""
    # Not by what rich says: FORCE_COLOR lets it take any pipe for a terminal.
    there = sys.stdout.isatty() and sys.stderr.isatty()
    return _STATUS if there and not _ERR.is_dumb_terminal and not _ERR.legacy_windows else None


def erasure() -> bytes:
    """Return the escape sequence that removes the status or the progress bar and shows the cursor."""
    if status_line() is None:
        return b""
    # If the command did not write to this line, it contains a status, a bar or the echo of Ctrl-C.
    return (b"" if _STATUS.is_inside_line else b"\r") + b"\x1b[J\x1b[?25h"


def drawing() -> Console | None:
    """Return what a progress bar is drawn on; None where nobody would see it."""
    return _ERR if status_line() is not None else None


@contextmanager
def reporting() -> Generator[None]:
    """Make of an error a line on stderr, and the exit code that says what it was.

    Raises:
        typer.Exit: There was one.
    """
    try:
        yield
        # What cannot be written is said here, and not by the interpreter when it ends.
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
    """Show what rxloop logs, and not in the manner of a program without a terminal."""
    logger, handler = logging.getLogger("rxloop"), LogLines(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _leave_quietly() -> None:
    """Drop what cannot be written any more: the reader has left, as `head` does, or the disk is full."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(nowhere, stream.fileno())


def running(main: Coroutine[Any, Any, int | None]) -> None:
    """Run a command to its end; an error is a line on stderr, and the exit code says what it was."""
    with reporting(), logged():
        code = asyncio.run(main)
    if code:
        raise typer.Exit(code)


class LogLines(logging.Handler):
    """What rxloop logs, as lines beside the answer: of a traceback the place where it happened."""

    @override
    def emit(self, record: logging.LogRecord) -> None:
        said = record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            said += f": {failure(error)}"
        # In the middle of an answer, on a line of its own.
        if _STATUS.is_inside_line:
            say("")
        say(Text(f"! {to_one_line(said, 2_000)}", "yellow"))


def failure(error: BaseException) -> str:
    """Say what went wrong in a module of the user's, and where."""
    said = f"{type(error).__name__}: {error}"
    trace = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) or not trace or trace[-1].filename.startswith(_OURS):
        return said
    return f"{said} ({trace[-1].filename}, line {trace[-1].lineno})"


def report(error: RxloopError) -> None:
    """Say what is wrong, in one line."""
    say(Text.assemble(("rxloop: ", "bold red"), to_one_line(str(error), 2_000)))


def fail(error: RxloopError) -> NoReturn:
    """Say what is wrong, and leave with the exit code that goes with it.

    Raises:
        typer.Exit: Always.
    """
    # Nobody may be there to read it any more; the exit code says it then.
    with suppress(BrokenPipeError):
        report(error)
    raise typer.Exit(USAGE if isinstance(error, ConfigurationError | InvalidInput) else FAILED) from error


def read_all(name: str = "stdin") -> str:
    """Read what comes through the pipe.

    Raises:
        ConfigurationError: It is not text.
    """
    data = sys.stdin.buffer.read()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"{name} is not UTF-8 text: byte {data[error.start]:#04x} at {error.start}; convert it first, as iconv does"
        ) from error


def read_line(prompt: str = "") -> str:
    """Read a line that a person types, whatever the encoding of the terminal is said to be.

    Raises:
        EOFError: Nothing more comes.
    """
    return as_text(input(prompt).strip())


def read_secret(prompt: str) -> str:
    """Read a line that a person types, and that nobody sees: not on the screen, nor by the arrow keys afterwards.

    Raises:
        EOFError: Nothing more comes.
    """
    # Imported here: few runs ask for one.
    from getpass import getpass

    # The prompt comes when nothing is shown any more.
    return as_text(getpass(prompt).strip())


_GAP = 2
"""The spaces between two columns."""
_LEAST = 20
"""The columns of the terminal that the last one gets, however wide the others are."""


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    style: Callable[[int, str], str] = lambda _place, _cell: "",
    *,
    wrap: bool = False,
) -> Text:
    """Write rows below their head; the last column takes what room is left.

    Args:
        head: The names of the columns.
        rows: As many cells in each.
        style: The style of a cell, by its place in the row and its text.
        wrap: Break what is too long for the last column, and do not cut it.
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
    """Fit a cell into a width: cut it, or break it where there is an indent for its further lines."""
    if cell_len(cell) <= size:
        return cell
    if indent is None:
        return set_cell_size(cell, size - 1).rstrip() + "…"
    return f"\n{' ' * indent}".join(textwrap.wrap(cell, size))
