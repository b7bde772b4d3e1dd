"""Credential of a run for an MCP server."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import httpx2

from rxloop.errors import ConfigurationError
from rxloop.pipeline.run_context import RunContext
from rxloop.support.redaction import find_secrets
from rxloop.support.threads import call_user_function
from rxloop.tools.mcp.options import Http, Stdio


@dataclass(frozen=True, slots=True)
class CredentialOfRun:
    """What is sent with each request of a connection, which has no other one as long as it lives."""

    key: Hashable = field(repr=False)
    """Tells the credentials apart: a connection is used for one alone."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    auth: httpx2.Auth | None = field(default=None, repr=False)

    def secrets(self) -> tuple[str, ...]:
        """What of it must not be seen: all of it, however a header is called."""
        return find_secrets("", {f"auth {name}": value for name, value in self.headers.items()})


NONE = CredentialOfRun(None)


def fixed_credential(place: Stdio | Http) -> CredentialOfRun | None:
    """Return the credential of all runs; None if each run has one of its own."""
    if isinstance(place, Stdio):
        return NONE
    return None if callable(place.auth) and not isinstance(place.auth, httpx2.Auth) else _made(place.auth)


async def credential_of(place: Stdio | Http, ctx: RunContext[Any]) -> CredentialOfRun:
    """Find the credential of a run.

    Raises:
        ConfigurationError: `auth=` is none of what it may be, or gave such a thing.
    """
    fixed = fixed_credential(place)
    if fixed is not None or isinstance(place, Stdio):
        return fixed or NONE
    return _made(await call_user_function(place.auth, ctx))


def _made(given: Any) -> CredentialOfRun:
    if given is None:
        return NONE
    if isinstance(given, str):
        return _sent({"Authorization": f"Bearer {given}"})
    if isinstance(given, httpx2.Auth):
        return CredentialOfRun(given, auth=given)
    if isinstance(given, Mapping):
        headers = {str(name): str(value) for name, value in cast("Mapping[Any, Any]", given).items()}
        return _sent(headers)
    raise ConfigurationError(
        f"auth= gave a {type(given).__qualname__}: it is to give a token, headers, an httpx2.Auth or None"
    )


def _sent(headers: dict[str, str]) -> CredentialOfRun:
    for name, value in headers.items():
        # Found here, because those who find it later tell of it with the value.
        if not (value.isascii() and value.isprintable()):
            raise ConfigurationError(
                f"auth= gave a value for {name!r} with a character that no header may have, "
                "such as a line break at its end"
            )
    return CredentialOfRun(tuple(sorted(headers.items())), headers)
