"""Recorder of terminal screens for the documents. Runs commands on a pseudo-terminal and writes SVG files.

The commands use the offline model, a temporary folder and a new database. They need neither a key nor a network.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shlex
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pyte
from rich.console import Console
from rich.style import Style
from rich.text import Text

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build/screens"
COLUMNS, ROWS = 100, 80
"""Size of the terminal. Empty lines at the end are removed."""
_LIMIT = 60.0
"""Time limit in seconds for commands and expected outputs."""
_FONTS = re.compile(r"@font-face\s*\{[^}]*\}\s*")
_PROGRAM = '''
from rxloop import Agent, tool
from rxloop.testing import OfflineModel


@tool
async def get_weather(city: str) -> dict:
    """Current weather in a city."""
    return {"temperature": {"Oslo": 18.0, "Bergen": 13.0}[city], "unit": "C", "sky": "rain"}


agent = Agent(OfflineModel().provider(), name="weather", tools=[get_weather])
'''
_QUESTION = "Compare the weather in Oslo and Bergen."


class Recording(NamedTuple):
    """Command line with simulated user input."""

    command: str
    typed: tuple[tuple[str, str], ...] = ()
    """Expected outputs with subsequent input."""


RECORDINGS = {
    "run": Recording(f'rxloop run "{_QUESTION}" --agent weather:agent'),
    "chat": Recording(
        "rxloop chat --agent weather:agent", (("> ", f"{_QUESTION}\r"), ("completed", ""), ("> ", "\x04"))
    ),
    "runs": Recording("rxloop runs"),
    "show": Recording("rxloop show last"),
    "graph": Recording("rxloop graph last"),
    "doctor": Recording("rxloop doctor"),
}
"""Recordings by name. Later commands use runs recorded by earlier commands."""


def record(recording: Recording, folder: Path) -> pyte.Screen:
    """Run a command on a terminal and return its final screen.

    Raises:
        RuntimeError: The command failed or timed out.
    """
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    arguments = [sys.executable, "-m", *shlex.split(recording.command)]
    process = subprocess.Popen(
        arguments,
        cwd=folder,
        env=_make_environment(folder),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    screen = pyte.Screen(COLUMNS, ROWS)
    # Programs with a line editor ask for the position of the cursor.
    screen.write_process_input = lambda data: os.write(master, data.encode())  # pyright: ignore[reportAttributeAccessIssue]
    try:
        output = _Output(master, screen)
        for text, answer in recording.typed:
            output.expect(text)
            os.write(master, answer.encode())
        output.expect(None)
        code = process.wait(_LIMIT)
    finally:
        process.kill()
        os.close(master)
    if code:
        raise RuntimeError(f"{recording.command} exited with code {code}:\n" + "\n".join(screen.display).rstrip())
    return screen


def _make_environment(folder: Path) -> dict[str, str]:
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "PYTHONPATH": str(ROOT / "src"),
        "PYTHONUTF8": "1",
        "HOME": str(folder),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "RXLOOP_DB": "runs.db",
        "TERM": "xterm-256color",
        "COLORTERM": "truecolor",
    }


class _Output:
    """Command output displayed on an emulated screen."""

    def __init__(self, master: int, screen: pyte.Screen) -> None:
        self._master = master
        self._stream = pyte.ByteStream(screen)
        self._unseen = b""

    def expect(self, text: str | None) -> None:
        """Read output until a new text appears, or None until the command exits.

        Raises:
            RuntimeError: The command timed out.
        """
        deadline = time.monotonic() + _LIMIT
        while text is None or text.encode() not in self._unseen:
            if not select.select([self._master], [], [], max(deadline - time.monotonic(), 0))[0]:
                raise RuntimeError(f"{text!r} did not appear within {_LIMIT:g} s after {self._unseen[-200:]!r}")
            try:
                data = os.read(self._master, 65_536)
            except OSError:
                # On Linux, reading from a closed terminal raises EIO.
                data = b""
            if not data:
                return
            self._unseen += data
            self._stream.feed(data.replace(os.fsencode(ROOT), b"/home/ann/rxloop"))
        self._unseen = self._unseen.partition(text.encode())[2]


def to_svg(screen: pyte.Screen, title: str) -> str:
    """Draw a screen as SVG, showing the command line as title and first line."""
    lines = [_to_text(screen, row) for row in range(ROWS)]
    while lines and not lines[-1].plain.strip():
        lines.pop()
    with Path(os.devnull).open("w") as null:
        console = Console(record=True, width=COLUMNS, file=null, force_terminal=True, color_system="truecolor")
        console.print(Text.assemble(("$ ", "green"), title), soft_wrap=True)
        for line in lines:
            console.print(line, soft_wrap=True)
        svg = console.export_svg(title=title.split(" --")[0])
    # Rich refers to fonts on another server. Readers have other monospaced fonts.
    return _FONTS.sub("", svg)


def _to_text(screen: pyte.Screen, row: int) -> Text:
    chars = [screen.buffer[row][column] for column in range(COLUMNS)]
    text = Text()
    for (fg, bg, bold, reverse), group in groupby(chars, lambda char: (char.fg, char.bg, char.bold, char.reverse)):
        style = Style(color=_to_colour(fg), bgcolor=_to_colour(bg), bold=bold, reverse=reverse)
        text.append("".join(char.data for char in group), style)
    text.rstrip()
    return text


def _to_colour(name: str) -> str | None:
    """Convert a colour of pyte to a colour of Rich."""
    if name == "default":
        return None
    if len(name) == 6 and all(char in "0123456789abcdefABCDEF" for char in name):
        return f"#{name}"
    plain = {"brown": "yellow", "brightbrown": "bright_yellow"}.get(name, name)
    return plain.replace("bright", "bright_") if plain.startswith("bright") and "_" not in plain else plain


def main(names: Sequence[str]) -> int:
    """Record screens and return the exit code.

    Args:
        names: Screens to write. If empty, all screens are written.
    """
    unknown = [name for name in names if name not in RECORDINGS]
    if unknown:
        sys.stderr.write(f"unknown screen {unknown[0]!r}: expected one of {', '.join(RECORDINGS)}\n")
        return 2
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "weather.py").write_text(_PROGRAM, encoding="utf-8")
        for name, recording in RECORDINGS.items():
            screen = record(recording, folder)
            if not names or name in names:
                file = FOLDER / f"{name}.svg"
                file.write_text(to_svg(screen, recording.command), encoding="utf-8")
                sys.stdout.write(f"{file.relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
