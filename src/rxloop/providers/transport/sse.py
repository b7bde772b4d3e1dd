"""Decoder of server-sent events."""

from __future__ import annotations

from rxloop.providers.bounds import DEFAULT_BOUNDS, OutOfBounds

_BOM = b"\xef\xbb\xbf"


class SSEDecoder:
    """Cuts the bytes of an event stream into the payloads of its events.

    It works on bytes, so that a read may end anywhere: inside a character, a line or a line end. All three line ends of
    the standard are understood; comments and other fields than `data` are left out.

    Args:
        most: Bytes of an event at most.
    """

    def __init__(self, most: int = DEFAULT_BOUNDS.document) -> None:
        self._most = most
        self._pending: list[bytes] = []
        self._size = 0
        """Bytes of what is pending."""
        self._after_cr = False
        self._at_start = True

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that these bytes complete, in order.

        Raises:
            OutOfBounds: The event that has begun is too long.
        """
        if not self._pending and data.startswith(b"data: ") and data.endswith(b"\n\n"):
            # What nearly all vendors send, and mostly in whole events of one line each. That there are two line ends
            # for each event proves it.
            payloads = data[6:-2].split(b"\n\ndata: ")
            if data.count(b"\n") == 2 * len(payloads) and b"\r" not in data:
                self._at_start = self._after_cr = False
                return payloads
        if self._after_cr or b"\r" in data:
            data = self._unix(data)
        pending = self._pending
        # Only what is new is looked at: of many lines without a blank one, the end of an event would else be looked
        # for from the first line on with each read.
        ends = b"\n\n" in data or (data[:1] == b"\n" and bool(pending) and pending[-1][-1:] == b"\n")
        if data:
            pending.append(data)
        if not ends:
            self._size += len(data)
            if self._size > self._most:
                raise OutOfBounds("document", self._most)
            return []
        if len(pending) > 1:
            data = b"".join(pending)
        if self._at_start:
            self._at_start = False
            data = data.removeprefix(_BOM)
        end = data.rfind(b"\n\n")
        rest = data[end + 2 :]
        self._pending = [rest] if rest else []
        self._size = len(rest)
        if data.startswith(b"data: "):
            payloads = data[6:end].split(b"\n\ndata: ")
            if data.count(b"\n", 0, end) == 2 * len(payloads) - 2:
                return payloads
        blocks = data[:end].split(b"\n\n")
        return [payload for block in blocks if b"data" in block and (payload := _payload(block)) is not None]

    def flush(self) -> list[bytes]:
        """The payload of a last event whose blank line never came; call it at the end of the bytes."""
        block = b"".join(self._pending)
        self._pending = []
        if self._at_start:
            block = block.removeprefix(_BOM)
        payload = _payload(block)
        return [] if payload is None else [payload]

    def _unix(self, data: bytes) -> bytes:
        if self._after_cr and data:
            # The line was ended when its CR came; this LF is the other half of the same line end.
            data = data.removeprefix(b"\n")
            self._after_cr = False
        if data.endswith(b"\r"):
            self._after_cr = True
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _payload(block: bytes) -> bytes | None:
    lines: list[bytes] = []
    for line in block.split(b"\n"):
        if line.startswith(b"data:"):
            lines.append(line[6:] if line.startswith(b"data: ") else line[5:])
        elif line == b"data":
            lines.append(b"")
    return b"\n".join(lines) if lines else None
