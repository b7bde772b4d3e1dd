"""One request to the API."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from rxloop.pipeline.values import RunRecord
from rxloop.server.access import Principal
from rxloop.server.host import Host
from rxloop.server.http.queries import OnDisconnect

B = TypeVar("B")
Q = TypeVar("Q")


@dataclass(frozen=True, slots=True)
class Options:
    """How the API behaves where a request does not say it."""

    heartbeat: float | None
    on_disconnect: OnDisconnect


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

    def path(self, *parts: str) -> str:
        """The path of something of this API, wherever it is mounted."""
        return "/".join((self.request.scope.get("root_path", "").rstrip("/"), *parts))


Handler = Callable[[Call[Any, Any]], Coroutine[Any, Any, Response]]
