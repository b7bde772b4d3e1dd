"""Who asks, and what that person may see."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from secrets import compare_digest
from typing import Any, Literal

from starlette.requests import HTTPConnection

from rxloop.pipeline.values import RunRecord

Scope = Literal["others", "internal"]
"""`others`: the runs of everybody. `internal`: what is not for clients, such as hidden tools and states."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody who is known to the server, such as a user or a tenant.

    Attributes:
        id: Is the `owner` of the runs that are started.
        scopes: What is allowed beside one's own runs, as clients may see them.
    """

    id: str
    scopes: frozenset[Scope] = frozenset()

    def may_see(self, record: RunRecord) -> bool:
        """Whether a run is this principal's, or may be seen by it all the same."""
        return "others" in self.scopes or (record.owner or "") == self.id


ANYBODY = Principal("", frozenset({"others"}))
"""Who asks where nobody has to say so."""

Auth = Callable[[HTTPConnection], Any]
"""Tells who asks, plain or async: gives a `Principal`, or None for somebody who is not known."""


def bearer(tokens: Mapping[str, Principal | str]) -> Auth:
    """Know clients by the token in their `Authorization: Bearer` header.

    Args:
        tokens: The principal of each token, or its id.
    """
    known = [(_digest(token), Principal(who) if isinstance(who, str) else who) for token, who in tokens.items()]

    async def auth(request: HTTPConnection) -> Principal | None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        given = _digest(token.strip()) if scheme.lower() == "bearer" else b""
        found: Principal | None = None
        # All of them, so that the time tells nothing.
        for digest, who in known:
            if compare_digest(digest, given):
                found = who
        return found

    return auth


def _digest(token: str) -> bytes:
    return sha256(token.encode(errors="surrogateescape")).digest()
