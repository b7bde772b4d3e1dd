"""The size of the head of an answer, where the parser knows no bound for interim answers in a row."""

from __future__ import annotations

import re

from rxloop.providers.bounds import OutOfBounds

AT_ONCE = 4096
"""Bytes of a head that are read together: a parser in Python would hold the event loop for more."""
_VERSION = b"HTTP/1."
_INTERIM, _SWITCHING = b"1", b"101"
_BLANK_LINE = re.compile(rb"\n\r?\n")


def is_whole(data: bytes, most: int) -> bool:
    """Whether this is the whole head of a final answer; False if that takes a closer look."""
    return data.startswith(_VERSION) and data[9:10] > _INTERIM and b"\r\n\r\n" in data and len(data) <= most


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
        self._text = bytearray()

    def feed(self, data: bytes) -> None:
        """Take a piece of what came.

        Raises:
            OutOfBounds: It is still the head, and too long for one.
        """
        # What came before has been looked at; a blank line may have begun at its end.
        seen = max(0, len(self._text) - 2)
        self._text += data
        while (blank := _BLANK_LINE.search(self._text, seen)) is not None:
            # The number, after a version such as `HTTP/1.1`.
            status = bytes(self._text[: blank.start()].lstrip()[9:12])
            self._bytes += blank.end()
            del self._text[: blank.end()]
            seen = 0
            if not status.startswith(_INTERIM) or status == _SWITCHING:
                self._text.clear()
                self.over = True
                return
        if self._bytes + len(self._text) > self._most:
            raise OutOfBounds("head", self._most)
