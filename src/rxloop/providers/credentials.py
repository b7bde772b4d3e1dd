"""API keys and request signatures that a function returns for each request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable
from typing import cast

from rxloop.errors import AuthenticationError, ProviderTimeout, RxloopError
from rxloop.providers.failures import Endpoint

KeySource = Callable[[], str | Awaitable[str]]
"""Returns a key or token. Called for each request, so tokens should be cached."""

Sign = Callable[[str, str, Mapping[str, str], bytes], Mapping[str, str] | Awaitable[Mapping[str, str]]]
"""Returns additional headers for a request, given its method, URL, headers and body."""


async def called_key(source: KeySource, where: Endpoint, seconds: float | None) -> str:
    """Call the key source.

    Raises:
        AuthenticationError: The function failed or returned no key.
        ProviderTimeout: The function took too long.
    """
    key = await _result(source, f"no API key for {where}: the api_key function", seconds)
    if isinstance(key, str) and key.strip():
        return key.strip()
    found = "an empty string" if isinstance(key, str) else f"a {type(key).__name__}"
    raise AuthenticationError(f"no API key for {where}: the api_key function must return a key, got {found}")


async def signature(sign: Sign, where: Endpoint, body: bytes, seconds: float | None) -> dict[str, str]:
    """Call the signing function.

    Raises:
        AuthenticationError: The function failed or returned invalid headers.
        ProviderTimeout: The function took too long.
    """
    what = f"the request to {where} is not signed: the sign function"
    headers = await _result(lambda: sign("POST", where.url, dict(where.headers), body), what, seconds)
    if isinstance(headers, Mapping):
        found = cast("Mapping[str, str]", headers)
        return {str(name).lower(): str(value) for name, value in found.items()}
    raise AuthenticationError(f"{what} must return the headers to add, got a {type(headers).__name__}")


async def _result(call: Callable[[], object], what: str, seconds: float | None) -> object:
    # Imported lazily to reduce startup time.
    import anyio

    try:
        found = call()
        if not isawaitable(found):
            return found
        # A cancel scope keeps cancelling, even if the function suppresses it once.
        with anyio.move_on_after(seconds):
            return await found
    except RxloopError:
        raise
    except Exception as error:
        # Exception messages could contain the key.
        said = f"{what} raised {type(error).__name__}"
    else:
        raise ProviderTimeout(
            f"{what} did not return within {seconds:g} s; check what it waits for, "
            "or raise the limit with timeout=Timeouts(key=...)"
        )
    raise AuthenticationError(said)
