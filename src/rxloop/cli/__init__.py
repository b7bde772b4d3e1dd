"""The `rxloop` command."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec

_EXTRA = {"packaging", "platformdirs", "prompt_toolkit", "rich", "typer"}


def main() -> None:
    """Run the command line interface. Without the `cli` extra, only `demo` is available."""
    try:
        if sys.argv[1:2] == ["demo"] and not all(map(find_spec, _EXTRA)):
            from rxloop.cli.demo import main

            sys.exit(main(sys.argv[2:]))
        with require_extra():
            from rxloop.cli.app import command
        command()
    except KeyboardInterrupt:
        # No command was running that could handle the cancellation.
        sys.exit(130)


@contextmanager
def require_extra() -> Generator[None]:
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
