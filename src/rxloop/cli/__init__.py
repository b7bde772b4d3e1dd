"""The command `rxloop`: runs, conversations, and everything that a log of runs is good for."""

from __future__ import annotations

import sys

_EXTRA = {"typer", "rich", "platformdirs"}


def main() -> None:
    """Run the command with the arguments of the process."""
    try:
        from rxloop.cli.app import command
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRA:
            raise
        sys.exit(f'The command needs {package}, which is not installed: pip install "rxloop[cli]"')
    command()
