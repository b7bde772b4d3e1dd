"""How long a model call may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """The seconds that a model call may take; None is no limit, except for `event`."""

    connect: float | None = 10.0
    """Until there is a connection."""
    key: float | None = 30.0
    """Until an `async` function that `api_key=` or `sign=` calls has given the key or the signature."""
    idle: float | None = 60.0
    """Without a single byte, before a stream begins and while it goes on."""
    answer: float | None = 600.0
    """The same for an answer that is not streamed: it comes in one piece."""
    event: float | None = None
    """Without a single event of the answer, even if something else comes, such as comments that keep the connection
    open; None is ten times `idle`, or `answer`. An answer that is not streamed counts as one event."""
    total: float | None = 3600.0
    """From the request to the end of the answer, including retries."""
