"""Options of connections to MCP servers, and the credentials that these need."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypedDict, cast
from urllib.parse import urlsplit

import httpx2

from rxloop.errors import ConfigurationError
from rxloop.pipeline.run_context import RunContext
from rxloop.support.redaction import find_secrets
from rxloop.support.threads import call_user_function

Credential = Any
"""A token, headers, an httpx-style `Auth`, or None for none."""

MakeCredential = Callable[[RunContext[Any]], Credential | Awaitable[Credential]]
"""Gives the credential of a run: `lambda ctx: ctx.deps.token`."""

Approve = bool | Literal["destructive"]

_ODD = re.compile(r"[^a-zA-Z0-9_-]+")

_FRAME = re.compile(r"^(mcp[-_.]?)?(server[-_.])?(mcp[-_.])?|([-_.]mcp)?([-_.]server)?$")

_DULL = frozenset({"mcp", "www", "api", "com", "org", "net", "io", "dev", "app", "ai"})


@dataclass(frozen=True, slots=True)
class Stdio:
    """A server that is started as a program."""

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    cwd: str | Path | None = None

    @property
    def name(self) -> str:
        """A name made of the program, or of the package that `npx`, `uvx` or `python -m` starts."""
        starters = {"npx", "uvx", "pipx", "node", "python", "python3", "bunx", "docker", "run", "exec", "tool"}
        # `NAME=value` may be a secret, as in `docker run -e TOKEN=...`, and names are for everybody.
        words = [word for word in (self.command, *self.args) if not word.startswith("-") and "=" not in word]
        word = next((word for word in words if Path(word).stem not in starters), self.command)
        package = word.rpartition("/")[2].partition("@")[0] or word.strip("@").partition("@")[0]
        package = re.sub(r"\.(py|m?js|ts|exe|sh)$", "", package)
        return _FRAME.sub("", package) or package

    def secrets(self) -> tuple[str, ...]:
        """What of it must not be seen."""
        return find_secrets("", self.env)


@dataclass(frozen=True, slots=True)
class Http:
    """A server that is reached by streamable HTTP."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    auth: Credential | MakeCredential = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """A name made of the host."""
        host = urlsplit(self.url).hostname or "server"
        if host.replace(".", "").isdigit() or ":" in host:
            return "server"
        labels = [label for label in host.split(".") if label not in _DULL]
        return labels[0] if labels else host

    def secrets(self) -> tuple[str, ...]:
        """What of it must not be seen."""
        return find_secrets(self.url, self.headers)


class Options(TypedDict, total=False):
    """What may be said of a server beside its address."""

    name: str | None
    prefix: str | None
    only: Sequence[str] | None
    hide: Sequence[str]
    approve: Approve
    timeout: float | None
    ttl: float
    sampling: bool | int
    roots: Sequence[str | Path]


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What is taken of a server, and how."""

    prefix: str
    only: frozenset[str] | None
    hide: frozenset[str]
    approve: Approve
    timeout: float | None
    ttl: float
    sampling: int
    """The most tokens of an answer that the agent's model writes for the server; 0 refuses."""
    roots: tuple[str, ...]


SAMPLING_TOKENS = 1_000


def taken(name: str, options: Options) -> Taken:
    """Check the options of a server.

    Raises:
        ConfigurationError: One of them is not what it has to be.
    """
    known = Options.__annotations__.keys()
    if odd := [option for option in options if option not in known]:
        raise ConfigurationError(f"mcp() has no option {odd[0]!r}; there are: {', '.join(sorted(known))}")
    approve, ttl, timeout = options.get("approve", False), options.get("ttl", 300.0), options.get("timeout", 300.0)
    if approve not in (True, False, "destructive"):
        raise ConfigurationError(f"mcp {name}: approve={approve!r} is not True, False or 'destructive'")
    for option, value in (("ttl", ttl), ("timeout", timeout)):
        if value is not None and not value > 0:
            raise ConfigurationError(f"mcp {name}: {option}={value!r} is not a number of seconds above 0")
    only, hide = options.get("only"), options.get("hide", ())
    if isinstance(only, str) or isinstance(hide, str):
        raise ConfigurationError(f"mcp {name}: only= and hide= take lists of the names that the server uses")
    prefix = options.get("prefix")
    sampling = options.get("sampling", False)
    return Taken(
        prefix=clean(f"{name}__" if prefix is None else prefix),
        only=None if only is None else frozenset(only),
        hide=frozenset(hide),
        approve=approve,
        timeout=timeout,
        ttl=ttl,
        sampling=SAMPLING_TOKENS if sampling is True else int(sampling),
        roots=tuple(
            root if "://" in str(root) else Path(root).absolute().as_uri() for root in map(str, _roots(options))
        ),
    )


def _roots(options: Options) -> Sequence[str | Path]:
    roots = options.get("roots", ())
    return [roots] if isinstance(roots, str | Path) else roots


def clean(name: str) -> str:
    """A name in the characters that vendors take."""
    return _ODD.sub("_", name)


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
