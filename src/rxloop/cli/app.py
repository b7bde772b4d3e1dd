"""The application of the command line: its commands are imported when they are called."""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup
from typer.main import get_command
from typing_extensions import override

from rxloop._version import __version__
from rxloop.cli import extra_needed
from rxloop.cli.commands import COMMANDS


class _Group(TyperGroup):
    """Commands that are imported when they are called."""

    def __init__(self, **attrs: Any) -> None:
        super().__init__(**attrs)
        # What a mistyped name is compared with.
        self.commands = cast("dict[str, Any]", dict.fromkeys(COMMANDS))

    @override
    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in COMMANDS and self.commands[cmd_name] is None:
            self.commands[cmd_name] = _loaded(cmd_name)
        return self.commands.get(cmd_name)

    @override
    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _in_visible_words():
            return super().make_context(*args, **kwargs)

    @override
    def invoke(self, ctx: Any) -> Any:
        with _in_visible_words():
            return super().invoke(ctx)

    @override
    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.help) for name, command in COMMANDS.items()])


@contextmanager
def _in_visible_words() -> Generator[None]:
    """Let no argument steer the terminal in what is said of its misuse, which goes there by itself."""
    try:
        yield
    except Exception as error:
        # Typer has the class of it from click, or from a copy of its own.
        usage: Any = error
        if hasattr(usage, "format_message"):
            from rxloop.support.text import to_visible

            usage.message = to_visible(usage.message)
        raise


def _loaded(name: str) -> Any:
    module, _, attribute = COMMANDS[name].place.partition(":")
    with extra_needed():
        from rxloop.cli.options import expand_groups

        found = getattr(import_module(f"rxloop.cli.commands.{module}"), attribute)
    if isinstance(found, typer.Typer):
        return get_command(found)
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command(name)(expand_groups(found))
    return get_command(alone)


app = typer.Typer(
    name="rxloop",
    cls=_Group,
    help="Run agents whose runs are streams of events, and look at those that ran.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # What draws boxes around the help takes longer to import than everything else here.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rxloop {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Run agents whose runs are streams of events, and look at those that ran."""


_PLAIN = {"→": ">", "←": "<", "…": "~", "·": "*", "✗": "x", "├": "|", "└": "`", "─": "-", "│": "|", "°": "'"}


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Replace a sign that a terminal does not know: by something like it, or a question mark."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = "".join(_PLAIN.get(char, char) for char in error.object[error.start : error.end])
    return text.encode("ascii", "replace").decode("ascii"), error.end


def command(arguments: Sequence[str] | None = None) -> None:
    """Run the command as a process."""
    codecs.register_error("rxloop", _plain)
    # Python has nothing in the place of a stream that was closed by whoever called it.
    sys.stdin = sys.stdin or os.fdopen(os.open(os.devnull, os.O_RDONLY))
    sys.stdout = sys.stdout or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    sys.stderr = sys.stderr or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    # Bytes that are not text: whoever reads them complains.
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "rxloop"), (sys.stderr, "rxloop")):
        if isinstance(stream, TextIOWrapper):
            cast("TextIOWrapper[Any]", stream).reconfigure(errors=errors)
    app(arguments, prog_name="rxloop")
