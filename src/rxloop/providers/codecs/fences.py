"""Detection of code fences in streamed text."""

from __future__ import annotations

import re
from io import StringIO

_ORDINARY = "x"

_OPENING = re.compile(r"\n[ \t>]*+(?:(`{3,}+)[^`\n]*+|(~{3,}+)[^\n]*+)(?=\n)")

_CLOSING = re.compile(r"\n[ \t>]*+(`{3,}+|~{3,}+)()[ \t\r]*+(?=\n)")

_RUN = re.compile(r"[ \t>]*+(`++|~*+)")


class Fences:
    """Incremental code detection.

    Most responses contain no tag, so scanning only happens in `in_code`. A fence is a line starting with three or more
    backticks or tildes, optionally indented or quoted (`>`). A fence with at least the same length and no other text
    closes the block. Repeated backticks on the same line are inline code.
    """

    def __init__(self) -> None:
        self.unread = StringIO()
        self._fence = ""
        """Run that opened the current block."""
        self._line = ""
        """Current line, reduced to the part needed for fence detection."""
        self._last = ""

    def in_code(self) -> bool:
        """Return True if the text ends inside code."""
        if text := self.unread.getvalue():
            if self._line in ("", _ORDINARY) and "`" not in text and "~" not in text:
                # The text has no fence, so only check whether the unfinished line may still become one.
                end = text.rfind("\n") + 1
                if end or not self._line:
                    self._line = _ORDINARY if text[end:].strip(" \t>") else ""
            elif self._line != _ORDINARY or "\n" in text:
                self._scan(f"\n{self._line}{text}")
            self._last = text[-1]
            self.unread.seek(0)
            self.unread.truncate()
        return bool(self._fence) or self._line.startswith(("```", "~~~")) or self._last == "`"

    def _scan(self, text: str) -> None:
        at = 0
        while found := (_CLOSING if self._fence else _OPENING).search(text, at):
            at = found.end()
            run = found[1] or found[2]
            if not self._fence:
                self._fence = run
            elif run.startswith(self._fence):
                self._fence = ""
        line = text[text.rfind("\n") + 1 :]
        begin = _RUN.match(line)
        run = "" if begin is None else begin[1]
        rest = "" if begin is None else line[begin.end() :]
        if not rest:
            self._line = run
        elif len(run) < 3 or (rest.strip(" \t\r") if self._fence else run[0] == "`" and "`" in rest):
            self._line = _ORDINARY
        else:
            self._line = run + " "
