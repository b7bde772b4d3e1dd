"""The command `rxloop`."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager

_EXTRA = {"packaging", "platformdirs", "rich", "typer"}


def main() -> None:
    """Run the command line interface."""
    try:
        with extra_needed():
            from rxloop.cli.app import command
        command()
    except KeyboardInterrupt:
        # No command was running that could handle the cancellation.
        sys.exit(130)


@contextmanager
def extra_needed() -> Generator[None]:
    """Exit with an installation hint if an optional dependency is missing.

    Raises:
        SystemExit: A package of the `cli` extra is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRA:
            raise
        sys.exit(f'The command needs {package}, which is not installed: pip install "rxloop[cli]"')
