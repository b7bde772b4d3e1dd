"""Requests to a server, their retries, and followed streams."""

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


_OVER = ("completed", "failed", "canceled")

_LARGEST = 64 << 20
"""Bytes that one event may have."""


def followed(
    http: httpx.AsyncClient, task_id: str, after: str | None, query: Mapping[str, Any], retries: int
) -> Stream[AnyEvent]:
    """The events of a run after a cursor, until there are no more; each subscriber asks the server for itself.

    A connection that breaks is made anew, from the last event that came. A reader that is slow holds the connection
    back.
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
                # It has gone away in good order, or the attempt is over: what comes next, it says when it is asked.
                await tries.again(ApiError("the server ends the stream again and again", code="connection"))

    # A bare cancel would leave connections behind in the pool of httpx.
    source = from_task(work, name=f"rxloop-client-{task_id}", shielded=True)
    return Stream(source, hold, overflow="block")


class _NoMore(Exception):
    """The server says that nothing more comes."""


async def _connected(
    http: httpx.AsyncClient, task_id: str, cursor: str | None, query: Mapping[str, Any]
) -> AsyncGenerator[Event]:
    """The events that come over one connection.

    Raises:
        ApiError: The server refused, or the connection broke.
        _NoMore: There are no more.
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
    """Lines that are complete and not empty; those of httpx also end at characters that JSON may hold."""
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
