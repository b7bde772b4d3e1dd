"""The doors of a server, and the application that they make together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Mount

import rxloop.server
from rxloop.cli.serving.keys import is_local
from rxloop.cli.serving.names import LocalNames
from rxloop.server import ServerLimits, api, bearer

if TYPE_CHECKING:
    from rxloop.runtime.runtime import Runtime
    from rxloop.server.door import Door


class _Door(NamedTuple):
    prefix: str
    function: str
    """Makes it: its name in `rxloop.server`."""
    title: str


DOORS: dict[str, _Door] = {}
"""The doors beside the API, by their flags."""


def application(
    runtime: Runtime, chosen: Iterable[str], keys: dict[str, str], origins: Sequence[str], host: str
) -> tuple[Any, list[Door]]:
    """Make the application: the API at the root, each other door under its prefix.

    Args:
        runtime: What is served.
        chosen: Which of `DOORS`.
        keys: The names of those who may ask, by their keys; if there are none, everybody may.
        origins: The sites whose pages may ask.
        host: Where it listens.

    Returns:
        The application, and its doors.
    """
    auth, limits = bearer(keys) if keys else None, ServerLimits()
    found: dict[str, Door] = {
        DOORS[name].prefix: getattr(rxloop.server, DOORS[name].function)(runtime, auth=auth, limits=limits)
        for name in chosen
    }
    found[""] = api(runtime, auth=auth, limits=limits)
    middleware: list[Middleware] = []
    if not keys and is_local(host):
        middleware.append(Middleware(LocalNames, host=host, origins=origins))
    if origins:
        every = ["*"]
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(origins),
                allow_methods=every,
                allow_headers=every,
                expose_headers=every,
            )
        )
    routes = [Mount(prefix, app=door) for prefix, door in found.items()]
    return Starlette(routes=routes, middleware=middleware), [*found.values()]
