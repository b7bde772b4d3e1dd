"""A person at a terminal, for tests of the command, and what stands on the screen."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
from typing import Any

from rich.cells import cell_len

from support.cli_workspace import Place

LIMIT = 10
ESCAPE = re.compile(r"\x1b(?:\[([0-9;?]*)([a-zA-Z])|([78D]))")
STATUS = re.compile(r"(?:\r\x1b\[2K)?(?:\x1b\[[0-9;]*m)*[\u2800-\u28ff](?:\x1b\[[0-9;]*m)* ([^\r\n]*)")
"""One frame of the status, with its spinner."""
REMOVAL = re.compile(r"\r?\n\x1b\[\?25h\r\x1b\[1A\x1b\[2K")
"""The end of the status: a line feed, and what takes that and the last frame back."""


class Terminal:
    """A person at a terminal, with the command in it."""

    def __init__(self, place: Place, *arguments: str, columns: int = 120, rows: int = 24, **options: Any) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._size = (columns, rows)
        self._seen = 0
        self.written = ""
        """All that came, as it came."""
        place.env |= {"PYTHONFAULTHANDLER": "1", "COLUMNS": str(columns)}
        place.env.setdefault("TERM", "xterm-256color")
        streams = {name: slave for name in ("stdin", "stdout", "stderr") if name not in options}
        # The terminal is the controlling one, so that Ctrl-C becomes a signal.
        options |= {"start_new_session": True, "preexec_fn": lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)}
        self.process = place.process(*arguments, **streams, **options)
        os.close(slave)

    @property
    def colours(self) -> bool:
        """Whether anything came in a colour."""
        return "\x1b[3" in self.written

    @property
    def statuses(self) -> list[str]:
        """The frames of the status, one after the other, without the spinner."""
        return [ESCAPE.sub("", each) for each in STATUS.findall(self.written)]

    def sees(self, wanted: str) -> None:
        """Wait until that is on the screen, behind what was seen before."""
        while wanted not in self._unseen():
            assert self._more(), self._unseen()
        self._seen += self._unseen().index(wanted) + len(wanted)

    def reads(self) -> None:
        """Wait for something, whatever it is."""
        assert self._more(), self._unseen()

    def types(self, text: str) -> None:
        os.write(self._master, text.encode())

    def presses(self, key: str) -> None:
        """Press a key until something comes of it: readline does not see a signal that comes before it waits."""
        self.types(key)
        while not select.select([self._master], [], [], 0.5)[0]:
            self.types(key)

    def leaves(self) -> tuple[int, str]:
        """The exit code, and what was written since."""
        while self._more():
            pass
        code = self.process.wait(LIMIT)
        os.close(self._master)
        return code, self._unseen()

    def screen(self) -> list[str]:
        """The lines that stand on the screen, and those that have left it at the top."""
        return Screen(*self._size).write(self.written)

    def _unseen(self) -> str:
        text = ESCAPE.sub("", REMOVAL.sub("", STATUS.sub("", self.written)))
        # What is not all there yet.
        return text.partition("\x1b")[0][self._seen :]

    def _more(self) -> bool:
        if not select.select([self._master], [], [], LIMIT)[0]:
            # It says where it stands, and that is worth more than the wait.
            self.process.send_signal(signal.SIGABRT)
            self.process.wait(LIMIT)
            said = os.read(self._master, 65536).decode()
            raise AssertionError(f"nothing more comes after {self._unseen()!r}: {said}")
        try:
            got = os.read(self._master, 4096).decode(errors="replace")
        except OSError:
            # What Linux says when nobody has the other end open any more.
            return False
        self.written += got
        return bool(got)


class Screen:
    """As much of a terminal as the command makes use of."""

    def __init__(self, columns: int, rows: int) -> None:
        self._columns, self._rows = columns, rows
        self._lines: list[list[str]] = [[]]
        self._top = self._row = self._column = 0
        self._kept = (0, 0)

    def write(self, text: str) -> list[str]:
        """All the lines, from the first that was written, after a text."""
        place = 0
        while place < len(text):
            found = ESCAPE.match(text, place)
            if found is not None:
                self._move(found[2] or found[3], found[1] or "")
                place = found.end()
            else:
                self._put(text[place])
                place += 1
        lines = ["".join(line).rstrip() for line in self._lines]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    def _put(self, char: str) -> None:
        if char == "\r":
            self._column = 0
        elif char == "\n":
            self._down()
        else:
            cells = cell_len(char)
            if self._column + cells > self._columns:
                # It waits behind the last column until something comes.
                self._column = 0
                self._down()
            line = self._lines[self._row]
            line += [" "] * (self._column + cells - len(line))
            line[self._column : self._column + cells] = [char, *[""] * (cells - 1)]
            self._column += cells

    def _down(self) -> None:
        self._row += 1
        if self._row == len(self._lines):
            self._lines.append([])
        self._top = max(self._top, self._row - self._rows + 1)

    def _move(self, what: str, number: str) -> None:
        if what in "AB":
            # A move takes the cursor back from behind the last column.
            self._column = min(self._column, self._columns - 1)
        if what == "D":
            self._down()
        elif what == "A":
            self._row = max(self._row - 1, self._top)
        elif what == "B":
            self._row = min(self._row + 1, self._top + self._rows - 1)
        elif what == "7":
            # A place on the screen, and not in the text: it stays when the screen scrolls.
            self._kept = (self._row - self._top, self._column)
        elif what == "8":
            self._row, self._column = self._top + self._kept[0], self._kept[1]
        elif what == "K":
            self._lines[self._row].clear()
        elif what == "J":
            del self._lines[self._row][self._column :]
            del self._lines[self._row + 1 :]
        else:
            assert what in "mhl", (what, number)
