"""The size of the head of an answer, where the parser knows no bound for interim answers in a row."""

from __future__ import annotations

from rxloop.providers.bounds import OutOfBounds

AT_ONCE = 4096
"""Bytes of a head that are read together: a parser in Python would hold the event loop for more."""
_INTERIM, _SWITCHING = b"1", b"101"


class Head:
    """Counts the bytes from the request to the end of the head of its answer.

    Args:
        most: How many there may be.
    """

    def __init__(self, most: int) -> None:
        self.over = False
        """Whether the head has come to its end."""
        self._most = most
        self._bytes = 0
        self._line = b""
        self._status = b""

    def feed(self, data: bytes) -> None:
        """Take a piece of what came.

        Raises:
            OutOfBounds: It is still the head, and too long for one.
        """
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            self._bytes += len(line) + 1
            text = line.rstrip(b"\r")
            if not self._status:
                # The number, behind a version such as `HTTP/1.1`.
                self._status = text[9:12] or text
            elif not text:
                self.over = not self._status.startswith(_INTERIM) or self._status == _SWITCHING
                if self.over:
                    self._line = b""
                    return
                self._status = b""
        if self._bytes + len(self._line) > self._most:
            raise OutOfBounds("head", self._most)
