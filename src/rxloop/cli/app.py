"""Command line application with lazily imported commands."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command
from typing_extensions import override

from rxloop._version import __version__
from rxloop.cli import require_extra
from rxloop.cli.commands import COMMANDS
from rxloop.cli.streams import prepare_streams

COMPLETION_VARIABLE = "_RXLOOP_COMPLETE"
"""Environment variable set by completion scripts."""


class _Group(TyperGroup):
    """Command group that imports commands on demand."""

    def __init__(self, **attrs: Any) -> None:
        super().__init__(**attrs)
        # Command names, used for suggestions on typing errors.
        self.commands = cast("dict[str, Any]", dict.fromkeys(COMMANDS))
        self._is_completing = False

    @override
    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if self._is_completing and cmd_name in COMMANDS:
            return TyperCommand(cmd_name, help=COMMANDS[cmd_name].help)
        if cmd_name in COMMANDS and self.commands[cmd_name] is None:
            self.commands[cmd_name] = _load_command(cmd_name)
        return self.commands.get(cmd_name)

    @override
    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _report_usage_errors():
            return super().make_context(*args, **kwargs)

    @override
    def invoke(self, ctx: Any) -> Any:
        with _report_usage_errors():
            return super().invoke(ctx)

    @override
    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        # Suggest the names from the table without importing the commands.
        self._is_completing = True
        try:
            return super().shell_complete(ctx, incomplete)
        finally:
            self._is_completing = False

    @override
    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.help) for name, command in COMMANDS.items()])


@contextmanager
def _report_usage_errors() -> Generator[None]:
    """Print usage errors on one line, like all other errors."""
    try:
        yield
    except Exception as error:
        # Depending on its version, Typer uses click's exception class or a vendored copy.
        if not hasattr(error, "format_message") or type(error).__name__ == "NoArgsIsHelpError":
            raise
        from rxloop.cli.arguments.usage_errors import explain_usage_error
        from rxloop.cli.terminal import fail
        from rxloop.errors import ConfigurationError

        fail(ConfigurationError(explain_usage_error(error)))


def _load_command(name: str) -> Any:
    module, _, attribute = COMMANDS[name].target.partition(":")
    with require_extra():
        from rxloop.cli.options import expand_groups

        value = getattr(import_module(f"rxloop.cli.commands.{module}"), attribute)
    if isinstance(value, typer.Typer):
        return get_command(value)
    application = typer.Typer(add_completion=False, rich_markup_mode=None)
    application.command(name)(expand_groups(value))
    return get_command(application)


app = typer.Typer(
    name="rxloop",
    cls=_Group,
    help="Run agents as streams of events, and inspect recorded runs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Importing Rich's help formatter would take longer than all other imports.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"rxloop {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Run agents as streams of events, and inspect recorded runs."""


def command(arguments: Sequence[str] | None = None) -> None:
    """Run the command line interface."""
    prepare_streams()
    if os.environ.get(COMPLETION_VARIABLE):
        # Imported lazily because it is only needed when a shell asks for suggestions.
        from typer.completion import completion_init  # pyright: ignore[reportPrivateImportUsage]

        completion_init()
    app(arguments, prog_name="rxloop", complete_var=COMPLETION_VARIABLE)
