"""Ids of sessions and of their artifacts."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from uuid import UUID

_GENERATED = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")

_RANDOM_BITS = 62
"""Bits at the end of a UUID of version 7 that are random."""


def new_id(*call: str) -> str:
    """Return a new session id, a UUID of version 7. Ids sort by time.

    Args:
        *call: Strings that identify the tool call that begins the session. All ids for one call map to the same
            artifact id, so a repeated call finds its session.
    """
    # Imported here: uuid6 imports importlib.metadata, which takes much of the time in which rxloop is imported.
    import uuid6

    made = uuid6.uuid7()
    if not call:
        return str(made)
    digest = int.from_bytes(sha256(json.dumps(call).encode()).digest()[:8], "big") >> (64 - _RANDOM_BITS)
    mask = (1 << 76) - 1
    return str(UUID(int=(made.int & ~mask) | _mark(digest) << 64 | 0b10 << _RANDOM_BITS | digest))


def is_generated(session_id: str) -> bool:
    """Return True if the id has the format of `new_id`."""
    return _GENERATED.fullmatch(session_id.lower()) is not None


def artifact_id(owner: str, session_id: str) -> str:
    """Return the artifact id of a session.

    The artifact id of a generated session id does not depend on the owner, so programs can find the session without
    the owner. The artifact id of a chosen name is a hash of the owner and the name.
    """
    if _GENERATED.fullmatch(session_id) is None:
        return f"name-{sha256(json.dumps([owner, session_id]).encode()).hexdigest()[:40]}"
    value = UUID(session_id).int
    digest = value & ((1 << _RANDOM_BITS) - 1)
    return f"call-{digest:016x}" if value >> 64 & 0xFFF == _mark(digest) else f"id-{session_id}"


def _mark(digest: int) -> int:
    """Return the 12-bit checksum that marks an id as derived from a tool call."""
    return int.from_bytes(sha256(b"call %d" % digest).digest()[:2], "big") & 0xFFF
