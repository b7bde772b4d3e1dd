"""The ways in and out of the command: what is written where, how it ends, and what a person is asked."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine, Sequence
from typing import Any, NoReturn

import orjson
import typer
from rich.console import Console
from rich.text import Text

from rxloop.cli.render import question
from rxloop.errors import ConfigurationError, InvalidInput, RxloopError
from rxloop.events import Event, PendingInput
from rxloop.thinking.drawing import one_line

FAILED = 1
USAGE = 2
WAITS = 3
CANCELLED = 130

_OUT = Console(highlight=False, markup=False, emoji=False)
_ERR = Console(highlight=False, markup=False, emoji=False, stderr=True)
_YES_OR_NO = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}


def write(text: Text | str, *, beside: bool = False) -> None:
    """Write a text as it is, in colours where there is a terminal.

    Args:
        text: With its own line ends.
        beside: On stderr, so that what goes to a file or a pipe is the answer alone.
    """
    (_ERR if beside else _OUT).print(text, end="", soft_wrap=True)


def say(text: Text | str) -> None:
    """A line beside the answer."""
    write(text if isinstance(text, Text) else Text(text, "dim"), beside=True)
    write("\n", beside=True)


def write_json(event: Event) -> None:
    """An event as one line."""
    sys.stdout.write(event.to_json().decode() + "\n")
    sys.stdout.flush()


def width() -> int:
    """The columns that a table may take; without a terminal as many as it wants."""
    return _OUT.width if _OUT.is_terminal else 10_000


def asks() -> bool:
    """Whether somebody sits at a terminal and can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def running(main: Coroutine[Any, Any, int | None]) -> None:
    """Run a command to its end; an error is a line on stderr, and the exit code says what it was."""
    try:
        code = asyncio.run(main)
    except RxloopError as error:
        fail(error)
    except KeyboardInterrupt:
        raise typer.Exit(CANCELLED) from None
    except BrokenPipeError:
        # The reader has left, as `head` does. What the interpreter still wants to flush goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(FAILED) from None
    except OSError as error:
        fail(RxloopError(f"{error.filename or 'reading or writing'}: {error.strerror or error}"))
    else:
        if code:
            raise typer.Exit(code)


def report(error: RxloopError) -> None:
    """Say what is wrong, in one line."""
    say(Text.assemble(("rxloop: ", "bold red"), one_line(str(error), 2_000)))


def fail(error: RxloopError) -> NoReturn:
    """Say what is wrong, and leave with the exit code that goes with it.

    Raises:
        typer.Exit: Always.
    """
    report(error)
    raise typer.Exit(USAGE if isinstance(error, ConfigurationError | InvalidInput) else FAILED) from error


def ask(pending: Sequence[PendingInput]) -> dict[str, Any] | None:
    """The answers of the person at the terminal; None if there is nobody who wants to answer."""
    answers: dict[str, Any] = {}
    for each in pending:
        say(question(each))
        while True:
            write("> ", beside=True)
            try:
                given = input().strip()
            except (EOFError, KeyboardInterrupt):
                say("")
                return None
            try:
                answers[each.input_id] = read_answer(given, each)
                break
            except ConfigurationError as error:
                say(str(error))
    return answers


def read_answer(given: str, pending: PendingInput) -> Any:
    """What a person typed, as the kind of value that was asked for.

    Raises:
        ConfigurationError: It cannot be read as that.
    """
    if pending.options is not None:
        for option in pending.options:
            if given in (str(option), orjson.dumps(option, default=str).decode()):
                return option
        if given.isdigit() and 1 <= int(given) <= len(pending.options):
            return pending.options[int(given) - 1]
        raise ConfigurationError(f"{given!r} is none of them: type one, or its place, from 1 on")
    if pending.input_kind == "confirmation":
        if given.lower() not in _YES_OR_NO:
            raise ConfigurationError("please answer yes or no")
        return _YES_OR_NO[given.lower()]
    if pending.input_kind == "text":
        return given
    try:
        return orjson.loads(given)
    except orjson.JSONDecodeError:
        wanted = pending.answer_schema.get("type")
        if wanted in (None, "string"):
            return given
        raise ConfigurationError(f"this is to be JSON of the type {wanted}; a text stands in quotes") from None
