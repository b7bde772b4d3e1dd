"""Decoder of server-sent events."""

from __future__ import annotations

from rxloop.providers.bounds import DEFAULT_BOUNDS, OutOfBounds

_BOM = b"\xef\xbb\xbf"


class SSEDecoder:
    """Decoder for server-sent events.

    Reads can end anywhere, even inside a character. All standard line endings are supported. Comments and fields except
    `data` are ignored.

    Args:
        most: Maximum event size in bytes.
    """

    def __init__(self, most: int = DEFAULT_BOUNDS.document) -> None:
        self._most = most
        self._pending: list[bytes] = []
        self._size = 0
        """Size of the pending data in bytes."""
        self._after_cr = False
        self._at_start = True

    def feed(self, data: bytes) -> list[bytes]:
        """Return completed payloads in order.

        Raises:
            OutOfBounds: The current event is too long.
        """
        if not self._pending and data.startswith(b"data: ") and data.endswith(b"\n\n"):
            # Fast path: almost all vendors send single-line events, which is verified by counting line feeds.
            payloads = data[6:-2].split(b"\n\ndata: ")
            if data.count(b"\n") == 2 * len(payloads) and b"\r" not in data:
                self._at_start = self._after_cr = False
                return payloads
        if self._after_cr or b"\r" in data:
            data = self._unix(data)
        pending = self._pending
        # Only new data is scanned. Otherwise each read of a long event would scan the event from its start.
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
        """Return the payload of an unterminated last event."""
        block = b"".join(self._pending)
        self._pending = []
        if self._at_start:
            block = block.removeprefix(_BOM)
        payload = _payload(block)
        return [] if payload is None else [payload]

    def _unix(self, data: bytes) -> bytes:
        if self._after_cr and data:
            # The CR already ended the line, and this LF belongs to the same line ending.
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
