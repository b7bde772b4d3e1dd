"""The command `rxloop`."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager

_EXTRA = {"packaging", "platformdirs", "rich", "typer"}


def main() -> None:
    """Run the command with the arguments of the process."""
    try:
        with extra_needed():
            from rxloop.cli.app import command
        command()
    except KeyboardInterrupt:
        # Before a command has begun there is nothing to be cancelled.
        sys.exit(130)


@contextmanager
def extra_needed() -> Generator[None]:
    """Import what comes with the extra; without it, leave with a line that names it.

    Raises:
        SystemExit: A package of the extra is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRA:
            raise
        sys.exit(f'The command needs {package}, which is not installed: pip install "rxloop[cli]"')
