"""Detection of code fences in streamed text."""

from __future__ import annotations

import re
from io import StringIO

_ORDINARY = "x"

_OPENING = re.compile(r"\n[ \t>]*+(?:(`{3,}+)[^`\n]*+|(~{3,}+)[^\n]*+)(?=\n)")

_CLOSING = re.compile(r"\n[ \t>]*+(`{3,}+|~{3,}+)()[ \t\r]*+(?=\n)")

_RUN = re.compile(r"[ \t>]*+(`++|~*+)")


class Fences:
    """Knows whether the text so far ends inside code.

    It reads only when it is asked, since most texts have no tag at all. A fence is a run of three or more backticks or
    tildes that begins a line, after blanks and the marks of a quotation; the block ends with a run as long that has
    nothing after it on its line. Backticks that come again on a line were code inside that line.
    """

    def __init__(self) -> None:
        self.unread = StringIO()
        self._fence = ""
        """The run that opened the block."""
        self._line = ""
        """What stands for the line that has not ended: as much of it as matters for what it will be."""
        self._last = ""

    def in_code(self) -> bool:
        """Whether a tag that came now would be in code."""
        if text := self.unread.getvalue():
            if self._line in ("", _ORDINARY) and "`" not in text and "~" not in text:
                # Nothing that begins or ends a block: all that matters is whether a run may still begin this line.
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
