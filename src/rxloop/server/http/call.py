"""One request of the HTTP API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel
from starlette.responses import Response

from rxloop.pipeline.records import RunRecord
from rxloop.server.core.adapter import Call, id_in_path
from rxloop.server.core.errors import Refused

B = TypeVar("B")
Q = TypeVar("Q")


@dataclass(frozen=True, slots=True)
class ApiCall(Call[B, Q]):
    """A request of the HTTP API."""

    settings: frozenset[str]
    """The settings of model calls that clients may choose."""

    @property
    def task_id(self) -> str:
        """The run in the address."""
        return self.request.path_params["task_id"]

    async def record(self) -> RunRecord:
        """The run in the address.

        Raises:
            Refused: There is none, or it is somebody else's.
        """
        return await self.gateway.find_run(self.principal, self.task_id)

    async def context_id(self) -> str:
        """The conversation in the address.

        Raises:
            Refused: There is none, or it is somebody else's.
        """
        context_id = id_in_path(self.request, "context_id")
        if not await self.gateway.find_context(self.principal, context_id):
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
