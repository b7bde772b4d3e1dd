"""The application: its commands, each from a file of its own."""

from __future__ import annotations

import sys
from io import TextIOWrapper
from typing import Annotated

import typer

from rxloop._version import __version__
from rxloop.cli.diff import diff
from rxloop.cli.fork import fork
from rxloop.cli.graph import graph
from rxloop.cli.mcp import mcp
from rxloop.cli.resume import resume
from rxloop.cli.run import chat, run
from rxloop.cli.runs import runs
from rxloop.cli.show import replay, show
from rxloop.cli.strategies import strategies
from rxloop.cli.transfer import export, import_

app = typer.Typer(
    name="rxloop",
    help="Run agents whose runs are streams of events, and look at those that ran.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for each in (run, chat, runs, show, replay, resume, fork, diff, graph, export, strategies):
    app.command()(each)
app.command("import")(import_)
app.add_typer(mcp, name="mcp")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rxloop {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which version this is.")
    ] = False,
) -> None:
    """Run agents whose runs are streams of events, and look at those that ran."""


def command() -> None:
    """The command, as a process."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A terminal that knows no arrows gets question marks.
            stream.reconfigure(errors="replace")
    app(prog_name="rxloop")
