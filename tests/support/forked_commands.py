"""Program running command lines in forked processes, using a narrow terminal or closed pipes.

The modules are imported once, so that a command line takes a fraction of a second. Arguments: `terminal`, `head` or
`closed`. It reads command lines as JSON from stdin, and writes the exit code and the output of each as JSON.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from importlib import import_module
from typing import NamedTuple

from support.cli_workspace import SOURCE, Workspace

COLUMNS = 40
_LIMIT = 30.0
"""Time limit in seconds for a command line."""


class Outcome(NamedTuple):
    """Outcome of a command line."""

    code: int
    output: str
    """Output on the terminal, or on stderr if stdout is a pipe."""


def run_forked(workspace: Workspace, mode: str, lines: list[str]) -> dict[str, Outcome]:
    """Run the program and return the outcomes by command line."""
    env = {**workspace.env, "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    env["PYTHONPATH"] = f"{SOURCE}{os.pathsep}{SOURCE.parent / 'tests'}"
    done = subprocess.run(
        [sys.executable, "-m", "support.forked_commands", mode],
        cwd=workspace.folder,
        env=env,
        input=json.dumps(lines).encode(),
        stdout=subprocess.PIPE,
        check=True,
        timeout=100,
    )
    return {line: Outcome(*outcome) for line, outcome in json.loads(done.stdout).items()}


def _run_command(line: str) -> int:
    """Run a command line with new standard streams, as the interpreter does."""
    import shlex

    from rxloop.cli import main

    sys.argv = ["rxloop", *shlex.split(line)]
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
    code = 0
    try:
        main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    # The interpreter prints a traceback if this fails.
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _fork(line: str, streams: tuple[int, int, int], others: tuple[int, ...]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 99
    try:
        os.setsid()
        for number, handle in enumerate(streams):
            os.dup2(handle, number)
        for handle in {*streams, *others} - {0, 1, 2}:
            os.close(handle)
        if os.isatty(0):
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        code = _run_command(line)
    except BaseException:
        import traceback

        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def _read_all(handle: int) -> str:
    got = b""
    while select.select([handle], [], [], _LIMIT)[0]:
        # On Linux, reading from a closed terminal raises EIO.
        with suppress(OSError):
            if more := os.read(handle, 65_536):
                got += more
                continue
        break
    return got.decode(errors="replace")


def _run_on_terminal(line: str) -> Outcome:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    pid = _fork(line, (slave, slave, slave), (master,))
    os.close(slave)
    output = _read_all(master)
    os.close(master)
    return Outcome(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), output)


def _run_with_pipe(line: str, *, lines: int) -> Outcome:
    """Run a command whose reader closes stdout after some lines."""
    (out, out_end), (err, err_end) = os.pipe(), os.pipe()
    null = os.open(os.devnull, os.O_RDONLY)
    if not lines:
        os.close(out)
    pid = _fork(line, (null, out_end, err_end), (err, out) if lines else (err,))
    for handle in (null, out_end, err_end):
        os.close(handle)
    if lines:
        os.read(out, 1)
        os.close(out)
    output = _read_all(err)
    os.close(err)
    return Outcome(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), output)


if __name__ == "__main__":
    # Import slow modules before forking. They do not inspect the standard streams.
    for module in ("rich.text", "typer.main", "rxloop.agents.agent", "rxloop.providers", "rxloop.strategies.catalog"):
        import_module(module)
    mode, requested = sys.argv[1], json.load(sys.stdin)
    if mode == "terminal":
        outcomes = {line: _run_on_terminal(line) for line in requested}
    else:
        outcomes = {line: _run_with_pipe(line, lines=int(mode == "head")) for line in requested}
    sys.stdout.write(json.dumps(outcomes))
