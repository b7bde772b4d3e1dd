"""What went wrong on the way to an endpoint, as one of our errors: what happened, where, and what to do."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from rxloop.errors import (
    AuthenticationError,
    ConfigurationError,
    ProviderConnectionError,
    ProviderProtocolError,
    ProviderTimeout,
    RxloopError,
)
from rxloop.protocol.storable import readable
from rxloop.providers._secrets import redacted, secrets_of, shown_address
from rxloop.providers.bounds import Unreadable

_NO_HEADER = re.compile(r"[^\t\x20-\x7e]")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The endpoint that a request goes to, for messages."""

    name: str
    """The provider and the model, such as `zai:glm-4.7`."""
    url: str = field(repr=False)
    key_env: str | None = None
    hint: str = ""
    headers: dict[str, str] = field(default_factory=dict[str, str], repr=False)
    """Those of the request, with the key among them."""
    key_hint: str = ""
    """What to do in place of setting a key."""

    def __str__(self) -> str:
        return f"{self.name} at {shown_address(self.url)}"

    def clean(self, text: str) -> str:
        """A text of the vendor's, or of a library's, without what is secret in the request: many echo it."""
        return redacted(text, secrets_of(self.url, self.headers))


def missing_key(where: Endpoint) -> AuthenticationError:
    """The error of a key that was not given, and that the environment does not have."""
    return AuthenticationError(
        f"no API key for {where}: set the environment variable {where.key_env}, or pass api_key="
        + (f", or {where.key_hint}" if where.key_hint else "")
    )


def check_headers(headers: Mapping[str, str], where: Endpoint) -> None:
    """Check that the headers can be sent. What the libraries say of one that cannot has the key on it.

    Raises:
        ConfigurationError: A value has a character that no header takes, such as a line break.
    """
    for name, value in headers.items():
        if _NO_HEADER.search(value):
            raise ConfigurationError(
                f"the request to {where} cannot be sent: its header {name!r} has a character that no header takes "
                "(only those of ASCII, without line breaks); was the key copied whole, and nothing else?"
            )


def from_httpx(error: Exception, where: Endpoint) -> RxloopError:
    """The error of a request that got no answer, or only a part of one."""
    import httpx

    if _no_descriptor_left(error):
        return ProviderConnectionError(
            f"no connection to {where}: this process has no file descriptor left; raise its limit (ulimit -n), or let "
            "fewer runs go on at once, as limited(model, concurrent=...) does"
        )
    detail = readable(str(error)) or type(error).__name__
    if isinstance(error, httpx.ConnectTimeout):
        return ProviderTimeout(f"no connection to {where} within the connect timeout. {where.hint}".rstrip())
    if isinstance(error, httpx.TimeoutException):
        return ProviderTimeout(
            f"{where} sent nothing within the idle timeout; a longer one goes in timeout=Timeouts(...)"
        )
    if isinstance(error, httpx.ConnectError):
        return ProviderConnectionError(f"no connection to {where}: {detail}. {where.hint}".rstrip())
    if isinstance(error, httpx.UnsupportedProtocol | httpx.InvalidURL | httpx.LocalProtocolError):
        return ConfigurationError(f"the request to {where} cannot be sent: {detail}")
    if isinstance(error, httpx.RemoteProtocolError) and "too long" in detail:
        return ProviderProtocolError(f"{where} sent a line that is too long for HTTP: {detail}")
    if isinstance(error, httpx.DecodingError):
        return ProviderProtocolError(f"the answer of {where} cannot be decoded: {detail}")
    return ProviderConnectionError(f"the connection to {where} broke: {detail}")


def _no_descriptor_left(error: BaseException | None) -> bool:
    """Whether an error came from too many open files, however many libraries it went through."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            return True
        if isinstance(error, BaseExceptionGroup):
            parts = cast("BaseExceptionGroup[BaseException]", error).exceptions
            return any(map(_no_descriptor_left, parts))
        error = error.__cause__ or error.__context__
    return False


def cut_short(where: Endpoint) -> ProviderConnectionError:
    """The error of an answer that stopped in the middle."""
    return ProviderConnectionError(
        f"the answer of {where} was cut short: the connection ended with neither a finish reason nor [DONE]"
    )


def without_secrets(error: RxloopError, where: Endpoint) -> RxloopError:
    """The error without what is secret in the request: neither in its words nor in what it came from.

    The exceptions of httpx have the whole request on them, headers and all.
    """
    error.args = tuple(where.clean(part) if isinstance(part, str) else part for part in error.args)
    error.__cause__ = None if error.__cause__ is None else _bare(error.__cause__, where)
    error.__context__ = None
    return error


def _bare(cause: BaseException, where: Endpoint) -> BaseException:
    import httpx

    kind = type(cause) if isinstance(cause, httpx.RequestError) else RxloopError
    name = "" if isinstance(cause, httpx.RequestError) else f"{type(cause).__name__}: "
    return kind(where.clean(f"{name}{cause}"))


def unreadable(error: Unreadable, where: Endpoint) -> ProviderProtocolError:
    """The error of an answer that is too large, or damaged."""
    return ProviderProtocolError(f"{where} sent {error}")


def no_event(where: Endpoint, seconds: float) -> ProviderTimeout:
    """The error of an answer in which nothing comes: bytes may have, but no event."""
    return ProviderTimeout(
        f"{where} sent no event for {seconds:g} s, only comments or single bytes, if anything; "
        "more time goes in timeout=Timeouts(event=...)"
    )


def out_of_time(where: Endpoint, seconds: float) -> ProviderTimeout:
    """The error of a call that takes longer than it may in all."""
    return ProviderTimeout(
        f"{where} did not finish within {seconds:g} s; more time goes in timeout=Timeouts(total=...)"
    )
