"""Demo: runs the program `kitchen_sink.py`. It needs no API key and no optional package."""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

import rxloop.demo
from rxloop.cli.streams import discard_output, prepare_streams
from rxloop.errors import ConfigurationError, RxloopError
from rxloop.support.text import to_one_line

PROGRAM = "kitchen_sink.py"


def main(arguments: Sequence[str]) -> int:
    """Parse the arguments of `rxloop demo`, run the demo and return its exit code.

    Installations without the `cli` extra call this function instead of the Typer command.
    """
    parser = argparse.ArgumentParser("rxloop demo", description="Run an agent that thinks aloud, without an API key.")
    parser.add_argument("question", nargs="*", help="A question about the weather. The default compares two cities.")
    question: list[str] = parser.parse_args(arguments).question
    prepare_streams()
    return run_demo(question)


def run_demo(question: Sequence[str] = ()) -> int:
    """Run the demo in this process and return its exit code.

    Args:
        question: Words of the question. If empty, the program asks its own question.
    """
    try:
        path = find_program()
        sys.argv = [str(path), *question]
        runpy.run_path(str(path), run_name="__main__")
        # Flush here, so that write errors are reported by us and not by the interpreter at exit.
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        discard_output()
        return 1
    except (RxloopError, OSError) as error:
        discard_output()
        sys.stderr.write(f"rxloop: {to_one_line(str(error), 2_000)}\n")
        return 1
    return 0


def find_program() -> Path:
    """Return the path of the program.

    Wheels contain a copy of the example, next to the offline model. In a checkout, the example itself is used.

    Raises:
        ConfigurationError: The installation does not contain the program.
    """
    package = Path(rxloop.demo.__file__).parent
    candidates = (package / PROGRAM, package.parents[2] / "examples" / PROGRAM)
    for path in candidates:
        if path.is_file():
            return path
    raise ConfigurationError(f"{PROGRAM} is missing from {package}; install rxloop again")
