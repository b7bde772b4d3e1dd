"""Adapter that serves the viewer page, which reads all data from the HTTP API."""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.routing import BaseRoute
from typing_extensions import Unpack, override

from rxloop.errors import ConfigurationError
from rxloop.runtime.runtime import Runtime
from rxloop.server.core.adapter import Adapter, AdapterOptions, Call, Endpoint
from rxloop.server.core.errors import Refused, write_problem
from rxloop.server.viewer.document import make_page, make_policy


class Viewer(Adapter):
    """Adapter for the viewer page, created by `viewer`."""

    def __init__(self, runtime: Runtime, address: str, options: AdapterOptions) -> None:
        """Initialize the adapter for `viewer`."""
        super().__init__(runtime, **options)
        if not re.fullmatch(r"(?:/|(?:\.\./)+|\./)?(?:[\w.~-]+/)*", address) or not address:
            raise ConfigurationError(
                "api must be a relative or absolute path ending with a slash, such as '../' or '/api/', "
                f"got {address!r}"
            )
        self._body = make_page(address)
        self._headers = make_headers(self._body)

    @override
    def endpoints(self) -> Sequence[Endpoint | BaseRoute]:
        return [Endpoint("GET", "/", self._serve, public=True)]

    @override
    def write_error(self, refused: Refused, request: HTTPConnection) -> Response:
        return write_problem(refused)

    async def _serve(self, call: Call[Any, Any]) -> Response:
        tags = call.request.headers.get("if-none-match", "").split(",")
        if self._headers["etag"] in (each.strip().removeprefix("W/") for each in tags):
            return Response(status_code=304, headers=self._headers)
        return Response(self._body, headers=self._headers, media_type="text/html")


def make_headers(page: bytes) -> dict[str, str]:
    """Return the response headers, including a content security policy with the hashes of the script and the style."""
    policy = [*make_policy(page, connects_to="'self'"), "frame-ancestors 'none'"]
    return {
        "content-security-policy": "; ".join(policy),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "cache-control": "no-cache",
        "etag": f'"{sha256(page).hexdigest()[:32]}"',
    }


def viewer(runtime: Runtime, *, api: str = "../", **options: Unpack[AdapterOptions]) -> Viewer:
    """Create the viewer page, usually mounted at `/view/` next to the HTTP API.

    The page itself contains no data and requires no authentication. The HTTP API authenticates the requests of the
    page and controls access to runs. If the API requires a bearer token, the page asks the user for it.

    Args:
        runtime: Runtime of the API.
        api: Relative or absolute path of the HTTP API, ending with a slash.
        options: Common adapter options; see `AdapterOptions`.

    Raises:
        ConfigurationError: If an argument is invalid.

    Example:
        >>> app = Starlette(routes=[Mount("/view", viewer(runtime)), Mount("/", api(runtime, auth=auth))])
    """
    return Viewer(runtime, api, options)
