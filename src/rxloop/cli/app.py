"""Command line application with lazily imported commands."""

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
    """Command group that imports commands on demand."""

    def __init__(self, **attrs: Any) -> None:
        super().__init__(**attrs)
        # Command names, used for suggestions on typing errors.
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
    """Escape control characters from arguments in usage errors, which bypass the normal output functions."""
    try:
        yield
    except Exception as error:
        # Depending on its version, Typer uses click's exception class or a vendored copy.
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
    # Importing Rich's help formatter would take longer than all other imports.
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
    """Replace characters that the terminal cannot encode with similar ASCII characters or question marks."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = "".join(_PLAIN.get(char, char) for char in error.object[error.start : error.end])
    return text.encode("ascii", "replace").decode("ascii"), error.end


def command(arguments: Sequence[str] | None = None) -> None:
    """Run the command line interface."""
    codecs.register_error("rxloop", _plain)
    # Python sets streams that were closed by the parent process to None.
    sys.stdin = sys.stdin or os.fdopen(os.open(os.devnull, os.O_RDONLY))
    sys.stdout = sys.stdout or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    sys.stderr = sys.stderr or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    # Decoding errors are reported where the input is used.
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "rxloop"), (sys.stderr, "rxloop")):
        if isinstance(stream, TextIOWrapper):
            cast("TextIOWrapper[Any]", stream).reconfigure(errors=errors)
    app(arguments, prog_name="rxloop")
