"""Pseudo-terminal for command line tests, and a screen emulator."""

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

from support.cli_workspace import Workspace

LIMIT = 10
ESCAPE = re.compile(r"\x1b(?:\[([0-9;?]*)([a-zA-Z])|([78D]))")
STATUS = re.compile(r"(?:\r\x1b\[2K)?(?:\x1b\[[0-9;]*m)*[\u2800-\u28ff](?:\x1b\[[0-9;]*m)* ([^\r\n]*)")
"""Status line frame with a spinner."""
REMOVAL = re.compile(r"\r?\n\x1b\[\?25h\r\x1b\[1A\x1b\[2K")
"""Sequence that removes the status line."""


class Terminal:
    """Simulated terminal user."""

    def __init__(
        self, workspace: Workspace, *arguments: str, columns: int = 120, rows: int = 24, **options: Any
    ) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._size = (columns, rows)
        self._seen = 0
        self._line_mode = False
        self.written = ""
        """Complete output, including escape sequences."""
        workspace.env |= {"PYTHONFAULTHANDLER": "1", "COLUMNS": str(columns)}
        workspace.env.setdefault("TERM", "xterm-256color")
        streams = {name: slave for name in ("stdin", "stdout", "stderr") if name not in options}
        # As the controlling terminal, it turns Ctrl-C into a signal.
        options |= {"start_new_session": True, "preexec_fn": lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)}
        self.process = workspace.process(*arguments, **streams, **options)
        os.close(slave)

    @property
    def has_colours(self) -> bool:
        """True if the output contains colours."""
        return "\x1b[3" in self.written

    @property
    def statuses(self) -> list[str]:
        """Status line frames without spinners."""
        return [ESCAPE.sub("", each) for each in STATUS.findall(self.written)]

    @property
    def has_line_mode(self) -> bool:
        """True if the terminal echoes characters and collects lines, as a shell expects. Set by `wait`."""
        return self._line_mode

    def expect(self, wanted: str) -> None:
        """Wait for text in the output after the previous match."""
        while wanted not in self._unseen():
            assert self._more(), self._unseen()
        self._seen += self._unseen().index(wanted) + len(wanted)

    def expect_output(self) -> None:
        """Wait for any output."""
        assert self._more(), self._unseen()

    def send(self, text: str) -> None:
        os.write(self._master, text.encode())

    def press(self, key: str) -> None:
        """Press a key until output appears, because readline ignores signals that arrive before it waits."""
        self.send(key)
        while not select.select([self._master], [], [], 0.5)[0]:
            self.send(key)

    def wait(self) -> tuple[int, str]:
        """Wait for the process to exit. Return the exit code and the unread output."""
        while self._more():
            pass
        code = self.process.wait(LIMIT)
        flags = termios.tcgetattr(self._master)[3]
        self._line_mode = bool(flags & termios.ECHO and flags & termios.ICANON)
        os.close(self._master)
        return code, self._unseen()

    def screen(self) -> list[str]:
        """Return the lines of the screen, including the scrollback."""
        return Screen(*self._size).write(self.written)

    def _unseen(self) -> str:
        text = ESCAPE.sub("", REMOVAL.sub("", STATUS.sub("", self.written)))
        # Skip incomplete sequences.
        return text.partition("\x1b")[0][self._seen :]

    def _more(self) -> bool:
        if not select.select([self._master], [], [], LIMIT)[0]:
            # SIGABRT makes faulthandler print the stack.
            self.process.send_signal(signal.SIGABRT)
            self.process.wait(LIMIT)
            traceback = os.read(self._master, 65536).decode()
            raise AssertionError(f"no output after {self._unseen()!r}: {traceback}")
        try:
            got = os.read(self._master, 4096).decode(errors="replace")
        except OSError:
            # Linux raises EIO when the other end is closed.
            return False
        self.written += got
        return bool(got)


class Screen:
    """Terminal emulator, limited to the features of the command."""

    def __init__(self, columns: int, rows: int) -> None:
        self._columns, self._rows = columns, rows
        self._lines: list[list[str]] = [[]]
        self._top = self._row = self._column = 0
        self._kept = (0, 0)

    def write(self, text: str) -> list[str]:
        """Write text and return all lines, including the scrollback."""
        index = 0
        while index < len(text):
            found = ESCAPE.match(text, index)
            if found is not None:
                self._move(found[2] or found[3], found[1] or "")
                index = found.end()
            else:
                self._write_char(text[index])
                index += 1
        lines = ["".join(line).rstrip() for line in self._lines]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    def _write_char(self, char: str) -> None:
        if char == "\r":
            self._column = 0
        elif char == "\n":
            self._down()
        else:
            cells = cell_len(char)
            if self._column + cells > self._columns:
                # The cursor stays at the end of a full line until the next character.
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
            # Vertical moves correct a cursor beyond the last column.
            self._column = min(self._column, self._columns - 1)
        if what == "D":
            self._down()
        elif what == "A":
            self._row = max(self._row - 1, self._top)
        elif what == "B":
            self._row = min(self._row + 1, self._top + self._rows - 1)
        elif what == "7":
            # Positions are relative to the screen, so they do not scroll.
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
