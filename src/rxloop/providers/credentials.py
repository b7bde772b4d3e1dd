"""API keys, access tokens and request signatures that a function returns for each request."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable
from typing import Any, Protocol, cast

from rxloop.errors import (
    AuthenticationError,
    ConfigurationError,
    ProviderConnectionError,
    ProviderTimeout,
    RxloopError,
    ServerError,
)
from rxloop.providers.failures import Endpoint

KeySource = Callable[[], str | Awaitable[str]]
"""Returns a key or token. Called for each request, so tokens should be cached."""

Sign = Callable[[str, str, Mapping[str, str], bytes], Mapping[str, str] | Awaitable[Mapping[str, str]]]
"""Returns additional headers for a request, given its method, URL, headers and body."""


async def call_key_source(source: KeySource, endpoint: Endpoint, seconds: float | None) -> str:
    """Call the key source.

    Raises:
        AuthenticationError: The function failed or returned no key.
        ProviderTimeout: The function took too long.
    """
    key = await _call(source, f"no API key for {endpoint}: the api_key function", seconds)
    if isinstance(key, str) and key.strip():
        return key.strip()
    value = "an empty string" if isinstance(key, str) else f"a {type(key).__name__}"
    raise AuthenticationError(f"no API key for {endpoint}: the api_key function must return a key, got {value}")


async def sign_request(sign: Sign, endpoint: Endpoint, body: bytes, seconds: float | None) -> dict[str, str]:
    """Call the signing function.

    Raises:
        AuthenticationError: The function failed or returned invalid headers.
        ProviderTimeout: The function took too long.
    """
    subject = f"the request to {endpoint} is not signed: the sign function"
    headers = await _call(lambda: sign("POST", endpoint.url, dict(endpoint.headers), body), subject, seconds)
    if isinstance(headers, Mapping):
        additional = cast("Mapping[str, str]", headers)
        return {str(name).lower(): str(value) for name, value in additional.items()}
    raise AuthenticationError(f"{subject} must return the headers to add, got a {type(headers).__name__}")


async def _call(call: Callable[[], object], subject: str, seconds: float | None) -> object:
    # Imported lazily to reduce startup time.
    import anyio

    try:
        result = call()
        if not isawaitable(result):
            return result
        # A cancel scope keeps cancelling, even if the function suppresses it once.
        with anyio.move_on_after(seconds):
            return await result
    except RxloopError:
        raise
    except Exception as error:
        # Exception messages could contain the key.
        message = f"{subject} raised {type(error).__name__}"
    else:
        raise ProviderTimeout(
            f"{subject} did not return within {seconds:g} s; check what it waits for, "
            "or raise the limit with timeout=Timeouts(key=...)"
        )
    raise AuthenticationError(message)


_MAX_TEXT = 500
"""Maximum number of characters of an error message from Google."""

_SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]


class _Credentials(Protocol):
    """Used part of google-auth's credentials, which have no type annotations."""

    @property
    def valid(self) -> bool: ...

    token: str

    def refresh(self, request: Any) -> None: ...


class GoogleToken:
    """Access token of the application default credentials, cached until it expires.

    google-auth reads files and calls servers synchronously. So it runs in a thread, one call at a time.
    """

    def __init__(self) -> None:
        self._credentials: _Credentials | None = None
        self._lock = threading.Lock()

    async def __call__(self) -> str:
        """Return a valid token.

        Raises:
            ConfigurationError: google-auth is not installed.
            AuthenticationError: Credentials are missing or rejected.
            ProviderConnectionError: Google cannot be reached.
            ServerError: Google reported a temporary failure.
        """
        if self._credentials is not None and self._credentials.valid:
            return self._credentials.token
        from anyio import to_thread

        return await to_thread.run_sync(self._renew_token, abandon_on_cancel=True)

    def _renew_token(self) -> str:
        try:
            from google.auth import default, exceptions  # pyright: ignore[reportUnknownVariableType]
            from google.auth.transport.requests import Request
        except ImportError:
            raise ConfigurationError(
                "a model on Vertex needs google-auth for the account of this machine: pip install 'rxloop[vertex]', or "
                "pass a function that returns an access token as api_key="
            ) from None
        try:
            with self._lock:
                if self._credentials is None:
                    self._credentials = cast("_Credentials", default(scopes=_SCOPES)[0])
                if not self._credentials.valid:
                    self._credentials.refresh(Request())
                return self._credentials.token
        except exceptions.DefaultCredentialsError:
            raise AuthenticationError(
                "this machine has no Google credentials: run `gcloud auth application-default login`, set "
                "GOOGLE_APPLICATION_CREDENTIALS to a credentials file, or pass a function that returns an access token "
                "as api_key="
            ) from None
        except exceptions.TransportError as error:
            raise ProviderConnectionError(f"no access token from Google: {str(error)[:_MAX_TEXT]}") from None
        except exceptions.GoogleAuthError as error:
            may_pass = cast("bool", error.retryable)  # pyright: ignore[reportUnknownMemberType]
            kind = ServerError if may_pass else AuthenticationError
            raise kind(f"no access token from Google: {type(error).__name__}: {str(error)[:_MAX_TEXT]}") from None
