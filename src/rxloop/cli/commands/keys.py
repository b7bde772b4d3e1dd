"""Command `keys`: stored API keys."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import orjson
import typer

from rxloop.cli.options import decode
from rxloop.cli.stored_keys import find_variable, get_key_path, read_keys, remove_key, store_key
from rxloop.cli.suggestions import suggest_keys
from rxloop.cli.terminal import format_table, notify, read_all, read_secret, report_errors, write
from rxloop.errors import ConfigurationError

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="Vendor, such as zai, or variable, such as ZAI_API_KEY.", autocompletion=suggest_keys
    ),
]

keys = typer.Typer(
    help="Store API keys in a file that only you can read.\n\nEnvironment variables have priority over stored keys. "
    "Only this command uses the file; programs that import rxloop read the environment.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
)


@keys.command("set")
def set_(name: Name) -> None:
    """Store a key from stdin, or from hidden terminal input."""
    with report_errors():
        variable = find_variable(decode(name))
        if sys.stdin.isatty():
            try:
                key = read_secret(f"{variable} (hidden input) > ")
            except EOFError:
                key = ""
        else:
            key = read_all().strip()
        if not key:
            raise ConfigurationError(f"the key for {variable} must not be empty; type it, or use a pipe")
        if not key.isascii() or not key.isprintable() or " " in key:
            raise ConfigurationError(
                f"the key for {variable} must be one word of printable ASCII characters, "
                f"got {len(key)} characters with others between them; copy the key again"
            )
        store_key(variable, key)
        notify(f"stored the key for {variable} in {get_key_path()}")
        if os.environ.get(variable, "").strip():
            notify(f"{variable} is also set in the environment, which has priority")


@keys.command("list")
def list_(
    json: Annotated[bool, typer.Option("--json", help="Write the names as JSON, one per line.")] = False,
) -> None:
    """List stored keys with their last characters."""
    with report_errors():
        stored = read_keys()
        if json:
            for name in stored:
                overridden = bool(os.environ.get(name, "").strip())
                write(orjson.dumps({"name": name, "overridden": overridden}).decode() + "\n")
        elif stored:
            rows = [(name, _mask(key), _describe_use(name)) for name, key in stored.items()]
            write(format_table(("NAME", "KEY", ""), rows))
        else:
            notify("no stored keys; add one with rxloop keys set zai")


def _mask(key: str) -> str:
    """Hide a key. Long keys keep their last four characters as a reminder for the owner."""
    return f"...{key[-4:]}" if len(key) >= 20 else "..."


def _describe_use(name: str) -> str:
    return "overridden by the environment" if os.environ.get(name, "").strip() else ""


@keys.command()
def remove(name: Name) -> None:
    """Remove a stored key."""
    with report_errors():
        variable = find_variable(decode(name))
        if not remove_key(variable):
            raise ConfigurationError(f"no stored key for {variable}; list all with rxloop keys list")
        notify(f"removed the key for {variable} from {get_key_path()}")


@keys.command()
def path() -> None:
    """Print the path of the file with the keys."""
    with report_errors():
        write(f"{get_key_path()}\n")
