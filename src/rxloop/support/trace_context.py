"""W3C trace context of a caller, in HTTP headers and in the metadata of a run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
"""Names of the headers, and metadata keys. Clients do not receive these keys."""

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-((?!0{32})[0-9a-f]{32})-((?!0{16})[0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_MEMBER = re.compile(r"[a-z0-9][a-z0-9_*/@-]{0,255}=[ -+\--<>-~]{0,255}[!-+\--<>-~]")
_MAX_MEMBERS, _MAX_LENGTH = 32, 512
"""Limits of the trace state in the specification."""


def parse_trace_context(traceparent: str, tracestate: Sequence[str] = ()) -> dict[str, str]:
    """Return the validated trace context, or nothing if the parent is invalid. An invalid state is omitted.

    Args:
        traceparent: Value of the header, or an empty string.
        tracestate: Values of all headers of this name.
    """
    parts = _TRACEPARENT.fullmatch(traceparent.strip(" \t"))
    # Later versions may append fields.
    if parts is None or parts[1] == "ff" or (parts[1] == "00" and parts[5]):
        return {}
    context = {TRACEPARENT: f"00-{parts[2]}-{parts[3]}-{parts[4]}"}
    members = [member for text in tracestate for each in text.split(",") if (member := each.strip(" \t"))]
    state = ",".join(members)
    is_valid = len(members) <= _MAX_MEMBERS and len(state) <= _MAX_LENGTH and all(map(_MEMBER.fullmatch, members))
    if state and is_valid and len({member.partition("=")[0] for member in members}) == len(members):
        context[TRACESTATE] = state
    return context


def get_trace_context(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the trace context in the metadata of a run. It is empty if there is none."""
    if not isinstance(metadata.get(TRACEPARENT), str):
        return {}
    return {name: metadata[name] for name in (TRACEPARENT, TRACESTATE) if isinstance(metadata.get(name), str)}


def remove_trace_context(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata without a trace context."""
    return {name: value for name, value in metadata.items() if name not in (TRACEPARENT, TRACESTATE)}
