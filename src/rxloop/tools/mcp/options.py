"""Options and credentials of connections to MCP servers."""

from __future__ import annotations

import re
import sys
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeGuard, cast
from urllib.parse import urlsplit

from rxloop.errors import ConfigurationError
from rxloop.pipeline.run_context import RunContext
from rxloop.support.misuse import check_positive
from rxloop.support.redaction import find_secrets
from rxloop.support.threads import call_user_function

if TYPE_CHECKING:
    import httpx2

Credential = Any
"""Token, headers, httpx-style `Auth` object, or None."""

MakeCredential = Callable[[RunContext[Any]], Credential | Awaitable[Credential]]
"""Credential factory for individual runs, for example `lambda ctx: ctx.deps.token`."""

Approve = bool | Literal["destructive"]

_INVALID_CHARACTERS = re.compile(r"[^a-zA-Z0-9_-]+")

_FRAME = re.compile(r"^(mcp[-_.]?)?(server[-_.])?(mcp[-_.])?|([-_.]mcp)?([-_.]server)?$")

_GENERIC_LABELS = frozenset({"mcp", "www", "api", "com", "org", "net", "io", "dev", "app", "ai"})


@dataclass(frozen=True, slots=True)
class Stdio:
    """Server started as a subprocess."""

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    cwd: str | Path | None = None

    @property
    def name(self) -> str:
        """Program name, or the package name for launchers such as `npx` and `uvx`."""
        starters = {"npx", "uvx", "pipx", "node", "python", "python3", "bunx", "docker", "run", "exec", "tool"}
        # Arguments of the form `NAME=value` may contain secrets, for example `docker run -e TOKEN=...`. Names are
        # public.
        words = [word for word in (self.command, *self.args) if not word.startswith("-") and "=" not in word]
        word = next((word for word in words if Path(word).stem not in starters), self.command)
        package = word.rpartition("/")[2].partition("@")[0] or word.strip("@").partition("@")[0]
        package = re.sub(r"\.(py|m?js|ts|exe|sh)$", "", package)
        return _FRAME.sub("", package) or package

    def secrets(self) -> tuple[str, ...]:
        """Return the secret values."""
        return find_secrets("", self.env)


@dataclass(frozen=True, slots=True)
class Http:
    """Remote server using streamable HTTP."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    auth: Credential | MakeCredential = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """Name derived from the host."""
        host = urlsplit(self.url).hostname or "server"
        if host.replace(".", "").isdigit() or ":" in host:
            return "server"
        labels = [label for label in host.split(".") if label not in _GENERIC_LABELS]
        return labels[0] if labels else host

    def secrets(self) -> tuple[str, ...]:
        """Return the secret values."""
        return find_secrets(self.url, self.headers)


class Options(TypedDict, total=False):
    """Options of a server."""

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
class ServerOptions:
    """Validated server options."""

    prefix: str
    only: frozenset[str] | None
    hide: frozenset[str]
    approve: Approve
    timeout: float | None
    ttl: float
    sampling: int
    """Maximum number of tokens of an answer that the agent's model generates for the server. 0 disables sampling."""
    roots: tuple[str, ...]


SAMPLING_TOKENS = 1_000


def parse_options(name: str, options: Options) -> ServerOptions:
    """Validate server options.

    Raises:
        ConfigurationError: Unknown or invalid option.
    """
    names = Options.__annotations__.keys()
    if unknown := [option for option in options if option not in names]:
        raise ConfigurationError(f"unknown option {unknown[0]!r} of mcp(); the options are: {', '.join(sorted(names))}")
    approve, ttl, timeout = options.get("approve", False), options.get("ttl", 300.0), options.get("timeout", 300.0)
    if approve not in (True, False, "destructive"):
        raise ConfigurationError(f"mcp {name}: approve must be True, False or 'destructive', got {approve!r}")
    seconds: dict[str, Any] = {f"mcp {name}: ttl": ttl, f"mcp {name}: timeout": timeout}
    check_positive(optional=True, **seconds)
    only, hide = options.get("only"), options.get("hide", ())
    if isinstance(only, str) or isinstance(hide, str):
        raise ConfigurationError(f"mcp {name}: only and hide must be lists of the server's tool names")
    prefix = options.get("prefix")
    sampling = options.get("sampling", False)
    return ServerOptions(
        prefix=clean_name(f"{name}__" if prefix is None else prefix),
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


def clean_name(name: str) -> str:
    """Replace characters that are not supported in tool names."""
    return _INVALID_CHARACTERS.sub("_", name)


@dataclass(frozen=True, slots=True)
class RunCredential:
    """Immutable credential for a single connection, included in every request."""

    key: Hashable = field(repr=False)
    """Identifies the credential. Connections are not shared between credentials."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    auth: httpx2.Auth | None = field(default=None, repr=False)

    def secrets(self) -> tuple[str, ...]:
        """Return secret values from all headers."""
        return find_secrets("", {f"auth {name}": value for name, value in self.headers.items()})


NONE = RunCredential(None)


def fixed_credential(address: Stdio | Http) -> RunCredential | None:
    """Return the shared credential, or None if credentials depend on the run."""
    if isinstance(address, Stdio):
        return NONE
    return None if callable(address.auth) and not _is_auth(address.auth) else _to_credential(address.auth)


async def get_credential(address: Stdio | Http, ctx: RunContext[Any]) -> RunCredential:
    """Return the credential of a run.

    Raises:
        ConfigurationError: If `auth=` is or returns an unsupported value.
    """
    fixed = fixed_credential(address)
    if fixed is not None or isinstance(address, Stdio):
        return fixed or NONE
    return _to_credential(await call_user_function(address.auth, ctx))


def _is_auth(value: Any) -> TypeGuard[httpx2.Auth]:
    # Avoid importing httpx2, which is slow. Without the module, instances cannot exist.
    module = sys.modules.get("httpx2")
    return module is not None and isinstance(value, module.Auth)


def _to_credential(value: Any) -> RunCredential:
    if value is None:
        return NONE
    if isinstance(value, str):
        return _make_header_credential({"Authorization": f"Bearer {value}"})
    if _is_auth(value):
        return RunCredential(value, auth=value)
    if isinstance(value, Mapping):
        headers = {str(name): str(value) for name, value in cast("Mapping[Any, Any]", value).items()}
        return _make_header_credential(headers)
    raise ConfigurationError(
        f"auth must be or return a token, headers, an httpx2.Auth or None, got {type(value).__qualname__}"
    )


def _make_header_credential(headers: dict[str, str]) -> RunCredential:
    for name, value in headers.items():
        # Validate early, because HTTP client errors include the value.
        if not (value.isascii() and value.isprintable()):
            raise ConfigurationError(
                f"auth has a value for {name!r} with a character that headers must not have, "
                "such as a trailing line break"
            )
    return RunCredential(tuple(sorted(headers.items())), headers)
