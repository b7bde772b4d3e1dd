"""HTTP requests with retries, and event streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any, TypeVar, cast
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ValidationError

from rxloop.errors import ApiError, ConfigurationError
from rxloop.protocol.events import AnyEvent, Event, GapEvent, StatusUpdateEvent, ends_attempt
from rxloop.protocol.http_api import Problem
from rxloop.stream.sources import Push, from_task
from rxloop.stream.stream import ReadOnlyHold, Stream

M = TypeVar("M", bound=BaseModel)

_PASSES = (429, 502, 503, 504)
"""HTTP status codes of temporary failures."""

_LONGEST_PAUSE = 10.0


class Tries:
    """Retry counter with exponential backoff."""

    def __init__(self, most: int) -> None:
        """Create a counter that fails after `most` consecutive failures."""
        self._most = most
        self._failed = 0

    def worked(self) -> None:
        """Reset the number of failures."""
        self._failed = 0

    async def again(self, error: ApiError) -> None:
        """Sleep before retrying a request.

        Raises:
            ApiError: The failure is permanent, or the maximum number of retries was exceeded.
        """
        self._failed += 1
        if self._failed > self._most or not (error.status is None or error.status in _PASSES):
            raise error
        pause = error.retry_after if error.retry_after is not None else 0.1 * 2 ** (self._failed - 1)
        await asyncio.sleep(min(pause, _LONGEST_PAUSE))


class Requests:
    """HTTP requests with typed responses."""

    def __init__(self, http: httpx.AsyncClient, retries: int) -> None:
        """Use an httpx client, and retry idempotent requests up to `retries` times."""
        self.http, self.retries = http, retries

    async def get(self, model: type[M], path: str, query: Mapping[str, Any] | None = None) -> M:
        """Send a GET request with retries.

        Raises:
            ApiError: The request was refused, or the server is unreachable.
        """
        return _read(model, await self._patiently("GET", path, params=_given(query)))

    async def text(self, path: str, query: Mapping[str, Any] | None = None) -> str:
        """Send a GET request with retries and return the response text."""
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
        """Send a POST request. Requests with an idempotency key are retried.

        Raises:
            ApiError: The request was refused, or the server is unreachable.
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
        # A newer server may send additional fields.
        return model.model_validate_json(response.content, extra="ignore")
    except ValidationError as error:
        path = response.request.url.path
        raise ApiError(f"the answer of {path} is not that of this API: {error}", code="protocol") from error


def unreachable(error: Exception) -> ApiError:
    """Return the error for a failed connection."""
    return ApiError(f"the server is unreachable: {type(error).__name__}: {error}", code="connection")


def refusal(response: httpx.Response) -> ApiError:
    """Convert an unsuccessful response to an error."""
    try:
        said = Problem.model_validate_json(response.content, extra="ignore").error
        code, message, fields = said.code, said.message, said.fields
    except ValidationError:
        # Responses from proxies may have different formats.
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


_OVER = ("completed", "failed", "canceled")

_LARGEST = 64 << 20
"""Maximum size of an event in bytes."""


def followed(
    http: httpx.AsyncClient, task_id: str, after: str | None, query: Mapping[str, Any], retries: int
) -> Stream[AnyEvent]:
    """Return the events after a cursor until the end. Each subscriber sends its own requests.

    A broken connection is reopened after the last received event. Slow readers slow down the connection.
    """
    hold = ReadOnlyHold()

    async def work(push: Push[AnyEvent]) -> None:
        tries, cursor, over = Tries(retries), after, False
        while True:
            try:
                async for event in _connected(http, task_id, cursor, query):
                    tries.worked()
                    push(cast("AnyEvent", event))
                    if not isinstance(event, GapEvent):
                        cursor = event.cursor
                        over = isinstance(event, StatusUpdateEvent) and ends_attempt(event) and event.state in _OVER
                    if hold.gate.closed:
                        await hold.gate.wait()
            except _NoMore:
                return
            except ApiError as error:
                await tries.again(error)
            else:
                if over or "speed" in query:
                    return
                # Either the server closed the stream or the attempt has ended. Send another request to find out.
                await tries.again(ApiError("the server keeps closing the stream", code="connection"))

    # Shield the request, because httpx would leak pool connections on cancellation.
    source = from_task(work, name=f"rxloop-client-{task_id}", shielded=True)
    return Stream(source, hold, overflow="block")


class _NoMore(Exception):
    """Raised at the end of the event stream."""


async def _connected(
    http: httpx.AsyncClient, task_id: str, cursor: str | None, query: Mapping[str, Any]
) -> AsyncGenerator[Event]:
    """Yield events using a single connection.

    Raises:
        ApiError: The request was refused, or the connection is broken.
        _NoMore: There are no more events.
    """
    headers = {"accept": "application/x-ndjson", **({"last-event-id": cursor} if cursor else {})}
    path = f"runs/{quote(task_id, safe='')}/events"
    try:
        async with http.stream("GET", path, params=dict(query), headers=headers) as response:
            if response.status_code == 204:
                raise _NoMore
            if response.status_code != 200:
                await response.aread()
                raise refusal(response)
            async for line in _lines(response):
                yield Event.from_json(line)
    except httpx.HTTPError as error:
        raise unreachable(error) from error
    except ConfigurationError as error:
        raise ApiError(f"the server sent what is not an event: {error}", code="protocol", status=200) from error


async def _lines(response: httpx.Response) -> AsyncGenerator[bytes]:
    """Yield non-empty lines, separated by newlines only.

    httpx also splits on other characters, which JSON allows.
    """
    rest = bytearray()
    async for piece in response.aiter_bytes():
        rest += piece
        if b"\n" in piece:
            *lines, last = rest.split(b"\n")
            rest = bytearray(last)
            for line in lines:
                if line:
                    yield bytes(line)
        elif len(rest) > _LARGEST:
            raise ApiError(f"an event of the server has over {_LARGEST} bytes", code="protocol", status=200)
