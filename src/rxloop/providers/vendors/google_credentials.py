"""Access tokens of the local Google account."""

from __future__ import annotations

import threading
from typing import Any, Protocol, cast

from rxloop.errors import AuthenticationError, ConfigurationError, ProviderConnectionError, ServerError

_SHOWN = 500
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

        return await to_thread.run_sync(self._renewed, abandon_on_cancel=True)

    def _renewed(self) -> str:
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
                "GOOGLE_APPLICATION_CREDENTIALS to a file of them, or pass a function that returns an access token as "
                "api_key="
            ) from None
        except exceptions.TransportError as error:
            raise ProviderConnectionError(f"no access token from Google: {str(error)[:_SHOWN]}") from None
        except exceptions.GoogleAuthError as error:
            may_pass = cast("bool", error.retryable)  # pyright: ignore[reportUnknownMemberType]
            kind = ServerError if may_pass else AuthenticationError
            raise kind(f"no access token from Google: {type(error).__name__}: {str(error)[:_SHOWN]}") from None
