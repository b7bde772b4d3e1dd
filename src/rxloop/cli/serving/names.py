"""By which names a server without keys may be called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from rxloop.cli.serving.keys import is_local
from rxloop.server.refusals import Refused, answer

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


class LocalNames:
    """Refuses requests that name another machine than this one.

    Whoever is on this machine may ask, and so may its browser: a page of somebody else's could otherwise reach the
    server under a name of its own that leads here.
    """

    def __init__(self, app: ASGIApp, host: str, origins: Sequence[str]) -> None:
        """Stand before an application.

        Args:
            app: The application.
            host: Where it listens.
            origins: The sites whose pages may ask.
        """
        self._app = app
        self._host = host.lower()
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand a request on, or refuse it."""
        if scope["type"] == "http" and not self._fits(scope):
            refused = Refused(421, "misdirected", "without keys, only this machine and its own pages may ask")
            await answer(refused)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _fits(self, scope: Scope) -> bool:
        for header, value in scope["headers"]:
            text = value.decode("latin-1")
            if header == b"host" and not self._is_ours(f"//{text}"):
                return False
            if header == b"origin" and text not in self._origins and not self._is_ours(text):
                return False
        return True

    def _is_ours(self, url: str) -> bool:
        try:
            name = urlsplit(url).hostname or ""
        except ValueError:
            return False
        return name == self._host or is_local(name)
