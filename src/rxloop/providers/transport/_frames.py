"""What decoders of frames have in common: what was whole before a failure comes first, and the failure stays."""

from __future__ import annotations

from rxloop.providers.bounds import Unreadable


class Frames:
    """Cuts bytes into documents; a subclass says how, in `_cut`."""

    def __init__(self) -> None:
        self._pending: bytearray = bytearray()
        """What came before and belongs to no whole document yet."""
        self._failure: Unreadable | None = None

    def feed(self, data: bytes) -> list[bytes]:
        """The documents that these bytes complete, in order.

        Raises:
            OutOfBounds: The document that has begun is too large; raised after all before it.
            Unreadable: These are no frames, or damaged ones; raised likewise.
        """
        found: list[bytes] = []
        if self._failure is None:
            try:
                self._cut(data, found)
            except Unreadable as error:
                self._failure = error
        if self._failure is not None and not found:
            raise self._failure
        return found

    def flush(self) -> list[bytes]:
        """What is left at the end of the bytes: a document that was not completed, or none; raises as `feed` does."""
        if self._failure is not None:
            raise self._failure
        return self._rest()

    def _cut(self, data: bytes, found: list[bytes]) -> None:
        """Put the documents that the data completes into `found`."""
        raise NotImplementedError

    def _rest(self) -> list[bytes]:
        return []
