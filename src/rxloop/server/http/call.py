"""One request of the HTTP API."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from rxloop.pipeline.records import RunRecord
from rxloop.server.core.adapter import OnDisconnect, id_in_path
from rxloop.server.core.errors import Refused
from rxloop.server.core.gateway import Host, Principal

B = TypeVar("B")
Q = TypeVar("Q")


@dataclass(frozen=True, slots=True)
class Options:
    """How the API behaves where a request does not say it."""

    heartbeat: float | None
    on_disconnect: OnDisconnect
    settings: frozenset[str]
    """Those of a model call that clients may set."""


@dataclass(frozen=True, slots=True)
class Call(Generic[B, Q]):
    """One request, after its checks."""

    host: Host
    options: Options
    request: Request
    principal: Principal
    body: B
    query: Q

    @property
    def task_id(self) -> str:
        """The run in the address."""
        return self.request.path_params["task_id"]

    async def record(self) -> RunRecord:
        """The run in the address.

        Raises:
            Refused: There is none, or it is somebody else's.
        """
        return await self.host.record(self.principal, self.task_id)

    async def context_id(self) -> str:
        """The conversation in the address.

        Raises:
            Refused: There is none, or it is somebody else's.
        """
        context_id = id_in_path(self.request, "context_id")
        if not await self.host.check_context(self.principal, context_id):
            raise Refused(404, "not_found", "there is no such conversation")
        return context_id

    def check_visibility(self, visibility: str) -> None:
        """See that whoever asks may have what is not for clients, if it is asked for.

        Raises:
            Refused: It needs the scope `internal`.
        """
        if visibility == "all" and "internal" not in self.principal.scopes:
            raise Refused(403, "forbidden", "visibility=all is not for you")

    def path(self, *parts: str) -> str:
        """The path of something of this API, wherever it is mounted."""
        return "/".join((self.request.scope.get("root_path", "").rstrip("/"), *parts))


def written(model: BaseModel, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Answer with a model."""
    given = {"cache-control": "no-store", **(headers or {})}
    return Response(model.model_dump_json(by_alias=True), status, given, media_type="application/json")


Handler = Callable[[Call[Any, Any]], Coroutine[Any, Any, Response]]
