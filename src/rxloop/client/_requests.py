"""Requests to a server with the HTTP API, and what its refusals are raised as."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from rxloop.errors import ApiError
from rxloop.protocol.http import Problem

M = TypeVar("M", bound=BaseModel)

_PASSES = (429, 502, 503, 504)
"""What is said where another try may succeed."""
_LONGEST_PAUSE = 10.0


class Tries:
    """How often something is tried again, and how long to wait before."""

    def __init__(self, most: int) -> None:
        """Give up after so many failures in a row."""
        self._most = most
        self._failed = 0

    def worked(self) -> None:
        """The failures so far do not count any more."""
        self._failed = 0

    async def again(self, error: ApiError) -> None:
        """Wait before the next try.

        Raises:
            ApiError: This failure does not pass, or it has failed too often.
        """
        self._failed += 1
        if self._failed > self._most or not (error.status is None or error.status in _PASSES):
            raise error
        pause = error.retry_after if error.retry_after is not None else 0.1 * 2 ** (self._failed - 1)
        await asyncio.sleep(min(pause, _LONGEST_PAUSE))


class Requests:
    """Sends requests whose answer is a model."""

    def __init__(self, http: httpx.AsyncClient, retries: int) -> None:
        """Send over a client of httpx; a request that does no harm twice is sent again so often."""
        self.http, self.retries = http, retries

    async def get(self, model: type[M], path: str, query: Mapping[str, Any] | None = None) -> M:
        """Ask for something; tried again where that may help.

        Raises:
            ApiError: It was refused, or the server is out of reach.
        """
        return _read(model, await self._patiently("GET", path, params=_given(query)))

    async def text(self, path: str, query: Mapping[str, Any] | None = None) -> str:
        """Ask for a text, as `get` asks for a model."""
        return (await self._patiently("GET", path, params=_given(query))).text

    async def post(
        self,
        model: type[M],
        path: str,
        body: BaseModel,
        *,
        query: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> M:
        """Have something done; with a key it is tried again where that may help.

        Raises:
            ApiError: It was refused, or the server is out of reach.
        """
        content = body.model_dump_json(by_alias=True, exclude_unset=True)
        headers = {"content-type": "application/json", **({"idempotency-key": key} if key else {})}
        send = self._once if key is None else self._patiently
        return _read(model, await send("POST", path, params=_given(query), content=content, headers=headers))

    async def _patiently(self, method: str, path: str, **options: Any) -> httpx.Response:
        tries = Tries(self.retries)
        while True:
            try:
                return await self._once(method, path, **options)
            except ApiError as error:
                await tries.again(error)

    async def _once(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            response = await self.http.request(method, path, **options)
        except httpx.HTTPError as error:
            raise unreachable(error) from error
        if not response.is_success:
            raise refusal(response)
        return response


def _read(model: type[M], response: httpx.Response) -> M:
    try:
        # A later server may know more fields.
        return model.model_validate_json(response.content, extra="ignore")
    except ValidationError as error:
        path = response.request.url.path
        raise ApiError(f"the answer of {path} is not that of this API: {error}", code="protocol") from error


def unreachable(error: Exception) -> ApiError:
    """The error for a connection that could not be made, or broke."""
    return ApiError(f"the server cannot be reached: {type(error).__name__}: {error}", code="connection")


def refusal(response: httpx.Response) -> ApiError:
    """The error for an answer that is one."""
    try:
        said = Problem.model_validate_json(response.content, extra="ignore").error
        code, message, fields = said.code, said.message, said.fields
    except ValidationError:
        # Of a proxy, say.
        code, message, fields = "refused", response.reason_phrase, None
    after = response.headers.get("retry-after", "")
    details = "".join(f"; {name}: {wrong}" for name, wrong in (fields or {}).items())
    return ApiError(
        f"{response.status_code}: {message}{details}",
        code=code,
        status=response.status_code,
        fields=fields,
        retry_after=float(after) if after.isdecimal() else None,
    )


def _given(query: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (query or {}).items() if value is not None}
