"""API keys and request signatures that a function returns for each request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable
from typing import cast

from rxloop.errors import AuthenticationError, ProviderTimeout, RxloopError
from rxloop.providers.failures import Endpoint

KeySource = Callable[[], str | Awaitable[str]]
"""Gives the key, or a token, of a request. It is called for each one, and keeps the token for as long as that holds."""

Sign = Callable[[str, str, Mapping[str, str], bytes], Mapping[str, str] | Awaitable[Mapping[str, str]]]
"""Takes the method, the address, the headers and the body of a request, and gives the headers to add."""


async def called_key(source: KeySource, where: Endpoint, seconds: float | None) -> str:
    """The key that a function gives within some seconds.

    Raises:
        AuthenticationError: It gives none.
        ProviderTimeout: It takes longer.
    """
    key = await _result(source, f"no API key for {where}: what api_key= calls", seconds)
    if isinstance(key, str) and key.strip():
        return key.strip()
    found = "an empty text" if isinstance(key, str) else f"a {type(key).__name__}"
    raise AuthenticationError(f"no API key for {where}: what api_key= calls gave {found}, and not a key")


async def signature(sign: Sign, where: Endpoint, body: bytes, seconds: float | None) -> dict[str, str]:
    """The headers that sign a request, made within some seconds.

    Raises:
        AuthenticationError: There are none.
        ProviderTimeout: It takes longer.
    """
    what = f"the request to {where} is not signed: what sign= calls"
    headers = await _result(lambda: sign("POST", where.url, dict(where.headers), body), what, seconds)
    if isinstance(headers, Mapping):
        found = cast("Mapping[str, str]", headers)
        return {str(name).lower(): str(value) for name, value in found.items()}
    raise AuthenticationError(f"{what} gave a {type(headers).__name__}, and not the headers to add")


async def _result(call: Callable[[], object], what: str, seconds: float | None) -> object:
    # Imported here: nobody needs it before a model is called.
    import anyio

    try:
        found = call()
        if not isawaitable(found):
            return found
        # A scope, since a function that swallows one cancellation would wait for ever.
        with anyio.move_on_after(seconds):
            return await found
    except RxloopError:
        raise
    except Exception as error:
        # The name alone: in the words of such an error there may be a key.
        said = f"{what} raised {type(error).__name__}"
    else:
        raise ProviderTimeout(
            f"{what} gave nothing within {seconds:g} s: see what it waits for; "
            "more time goes in timeout=Timeouts(key=...)"
        )
    raise AuthenticationError(said)
