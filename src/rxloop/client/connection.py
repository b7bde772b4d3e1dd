"""HTTP requests with retries, and event streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ValidationError

from rxloop.errors import ApiError, ConfigurationError
from rxloop.protocol.events import AnyEvent, Event, GapEvent, StatusUpdateEvent, ends_attempt
from rxloop.protocol.http_api import Problem
from rxloop.stream.sources import Push, from_task
from rxloop.stream.stream import ReadOnlyHold, Stream
from rxloop.support.decompression import end_pieces, iterate_pieces
from rxloop.support.json_limits import find_excess

M = TypeVar("M", bound=BaseModel)

_TEMPORARY_STATUSES = (429, 502, 503, 504)
"""HTTP status codes of temporary failures."""

_MAX_PAUSE = 10.0

FAULTY = "protocol"
"""Code of errors for responses that violate the protocol. Such a response is not requested again."""


class RetryCounter:
    """Retry counter with exponential backoff."""

    def __init__(self, max_failures: int) -> None:
        """Create a counter that fails after `max_failures` consecutive failures."""
        self._max_failures = max_failures
        self._failed = 0

    def reset(self) -> None:
        """Reset the number of failures."""
        self._failed = 0

    async def wait_before_retry(self, error: ApiError) -> None:
        """Sleep before a retry.

        Raises:
            ApiError: If the failure is permanent, or the maximum number of retries was exceeded.
        """
        self._failed += 1
        is_temporary = error.code != FAULTY and (error.status is None or error.status in _TEMPORARY_STATUSES)
        if self._failed > self._max_failures or not is_temporary:
            raise error
        pause = error.retry_after if error.retry_after is not None else 0.1 * 2 ** (self._failed - 1)
        await asyncio.sleep(min(pause, _MAX_PAUSE))


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseBounds:
    """Limits of responses, which protect the process against a faulty server.

    Defaults are much larger than usual responses. Exceeding a limit raises an `ApiError` with the code `protocol`.

    Raises:
        ConfigurationError: A limit is not a positive integer.
    """

    document: int = 64 * 2**20
    """Maximum size of a response or an event in bytes, decompressed."""
    values: int = 1_000_000
    """Maximum number of JSON values in a response or an event."""
    depth: int = 100
    """Maximum JSON nesting depth."""

    def __post_init__(self) -> None:
        for name in ("document", "values", "depth"):
            bound: object = getattr(self, name)
            if type(bound) is not int or bound < 1:
                raise ConfigurationError(f"{name} must be a positive integer, got {bound!r}")

    def check_size(self, size: int, response: httpx.Response, kind: str = "bytes") -> None:
        """Check the size of the data received so far.

        Raises:
            ApiError: The data is too large.
        """
        if size > self.document:
            raise self._make_error("document", kind, response)

    def check_json(self, data: bytes, response: httpx.Response) -> None:
        """Check JSON before it is parsed.

        Raises:
            ApiError: The data has too many values, or is nested too deeply.
        """
        excess = find_excess(data, values=self.values, depth=self.depth)
        if excess is not None:
            raise self._make_error(excess, "values" if excess == "values" else "levels of JSON", response)

    def _make_error(self, name: str, kind: str, response: httpx.Response) -> ApiError:
        bound: int = getattr(self, name)
        message = (
            f"the server sent more than {bound:,} {kind} in one piece. If that is expected, raise the limit with "
            f"Client(bounds=ResponseBounds({name}=...))"
        )
        return ApiError(message, code=FAULTY, status=response.status_code)


class Server:
    """A server with the token of one API client.

    Several API clients can share an httpx client, because the URL and the token are set on each request.
    """

    def __init__(self, http: httpx.AsyncClient, url: str, token: str | None, bounds: ResponseBounds) -> None:
        """Store the base URL, the token and the limits of responses.

        Raises:
            ConfigurationError: If the URL is not an absolute HTTP URL.
        """
        self._http, self._base, self.bounds = http, _parse_base_url(url), bounds
        self._headers = {"accept-encoding": "gzip, deflate"}
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"

    @asynccontextmanager
    async def request(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None, **options: Any
    ) -> AsyncGenerator[httpx.Response]:
        """Send a request, and yield the response before reading its body.

        Redirects are not followed, because the target could be another host, which must not receive the token.

        Raises:
            ApiError: If the connection fails, or the server redirects.
        """
        url = self._base.copy_with(raw_path=self._base.raw_path + path.encode("ascii"))
        headers = {**self._headers, **(headers or {})}
        try:
            async with self._http.stream(method, url, headers=headers, follow_redirects=False, **options) as response:
                if response.has_redirect_location:
                    raise _make_redirect_error(response)
                yield response
        except httpx.HTTPError as error:
            message = f"cannot reach the server: {type(error).__name__}: {error}"
            raise ApiError(message, code="connection") from error

    async def read_body(self, response: httpx.Response) -> bytes:
        """Read the body of a response.

        Raises:
            ApiError: The body is too large.
        """
        body = bytearray()
        pieces = iterate_pieces(response)
        try:
            async for piece in pieces:
                body += piece
                self.bounds.check_size(len(body), response)
        finally:
            await end_pieces(pieces)
        return bytes(body)


def _parse_base_url(url: str) -> httpx.URL:
    """Return a base URL whose path ends with a slash.

    httpx would resolve a relative URL against the base URL of a custom client, which may belong to another server.
    """
    try:
        base = httpx.URL(url)
    except (httpx.InvalidURL, UnicodeError):
        base = httpx.URL()
    if base.scheme not in ("http", "https") or not base.host:
        raise ConfigurationError(f"url must be an absolute http or https URL, got {url!r}")
    path = base.raw_path.partition(b"?")[0]
    return base.copy_with(raw_path=path.rstrip(b"/") + b"/", fragment=None)


class Requests:
    """HTTP requests with typed responses."""

    def __init__(self, server: Server, retries: int) -> None:
        """Send requests to a server, and retry idempotent requests up to `retries` times."""
        self._server, self.retries = server, retries

    async def get(self, model: type[M], path: str, query: Mapping[str, Any] | None = None) -> M:
        """Send a GET request with retries.

        Raises:
            ApiError: If the request fails.
        """
        return self._read(model, *await self._send_with_retries("GET", path, params=_drop_none(query)))

    async def text(self, path: str, query: Mapping[str, Any] | None = None) -> str:
        """Send a GET request with retries and return the response text."""
        _, body = await self._send_with_retries("GET", path, params=_drop_none(query))
        # The API uses UTF-8. A faulty server could name a character set that does not exist.
        return body.decode("utf-8", "replace")

    async def events(self, path: str, query: Mapping[str, Any]) -> list[Event]:
        """Send a GET request with retries and return the events of the response."""
        headers = {"accept": "application/x-ndjson"}
        response, body = await self._send_with_retries("GET", path, params=_drop_none(query), headers=headers)
        return [_parse_line(line, response, self._server.bounds) for line in body.split(b"\n") if line]

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
            ApiError: If the request fails.
        """
        content = body.model_dump_json(by_alias=True, exclude_unset=True)
        headers = {"content-type": "application/json", **({"idempotency-key": key} if key else {})}
        send = self._send if key is None else self._send_with_retries
        return self._read(model, *await send("POST", path, params=_drop_none(query), content=content, headers=headers))

    async def _send_with_retries(self, method: str, path: str, **options: Any) -> tuple[httpx.Response, bytes]:
        counter = RetryCounter(self.retries)
        while True:
            try:
                return await self._send(method, path, **options)
            except ApiError as error:
                await counter.wait_before_retry(error)

    async def _send(self, method: str, path: str, **options: Any) -> tuple[httpx.Response, bytes]:
        async with self._server.request(method, path, **options) as response:
            body = await self._server.read_body(response)
        if not response.is_success:
            raise _convert_response(response, body)
        return response, body

    def _read(self, model: type[M], response: httpx.Response, body: bytes) -> M:
        self._server.bounds.check_json(body, response)
        try:
            # A newer server may send additional fields.
            return model.model_validate_json(body, extra="ignore")
        except ValidationError as error:
            path = response.request.url.path
            raise ApiError(f"unexpected response from {path}: {error}", code=FAULTY) from error


def make_run_path(task_id: str) -> str:
    """Return the path of a run."""
    return f"runs/{quote(task_id, safe='')}"


def _make_redirect_error(response: httpx.Response) -> ApiError:
    target = response.headers["location"][:200]
    return ApiError(
        f"{response.status_code}: the server redirects to {target!r}; redirects are not followed, because they could "
        "send the token to another host. If the target is the API, pass its URL as Client(url)",
        code="refused",
        status=response.status_code,
    )


def _convert_response(response: httpx.Response, body: bytes) -> ApiError:
    """Convert an unsuccessful response to an error."""
    try:
        problem = Problem.model_validate_json(body, extra="ignore").error
        code, message, fields = problem.code, problem.message, problem.fields
    except ValidationError:
        # Responses from proxies may have different formats.
        code, message, fields = "refused", response.reason_phrase, None
    after = response.headers.get("retry-after", "")
    details = "".join(f"; {name}: {text}" for name, text in (fields or {}).items())
    return ApiError(
        f"{response.status_code}: {message}{details}",
        code=code,
        status=response.status_code,
        fields=fields,
        retry_after=float(after) if after.isdecimal() else None,
    )


def _drop_none(query: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (query or {}).items() if value is not None}


_SMALL = 2**16
"""Size in bytes below which the memory of a parsed event is negligible."""

_FINAL = ("completed", "failed", "canceled")


def follow_run(
    server: Server, task_id: str, after: str | None, query: Mapping[str, Any], retries: int
) -> Stream[AnyEvent]:
    """Return the events after a cursor until the end. Each subscriber sends its own requests.

    A broken connection is reopened after the last received event. Slow readers slow down the connection.
    """
    hold = ReadOnlyHold()

    async def work(push: Push[AnyEvent]) -> None:
        counter, cursor, is_over = RetryCounter(retries), after, False
        while True:
            try:
                async for event in _read_events(server, task_id, cursor, query):
                    counter.reset()
                    push(cast("AnyEvent", event))
                    if not isinstance(event, GapEvent):
                        cursor = event.cursor
                        is_over = isinstance(event, StatusUpdateEvent) and ends_attempt(event) and event.state in _FINAL
                    if hold.gate.closed:
                        await hold.gate.wait()
            except _EndOfEvents:
                return
            except ApiError as error:
                await counter.wait_before_retry(error)
            else:
                if is_over or "speed" in query:
                    return
                # Send another request to distinguish a closed stream from the end of an attempt.
                await counter.wait_before_retry(ApiError("the server keeps closing the stream", code="connection"))

    # Shield the request, because httpx would leak pool connections on cancellation.
    source = from_task(work, name=f"rxloop-client-{task_id}", shielded=True)
    return Stream(source, hold, overflow="block")


class _EndOfEvents(Exception):
    """Raised at the end of the event stream."""


async def _read_events(
    server: Server, task_id: str, cursor: str | None, query: Mapping[str, Any]
) -> AsyncGenerator[Event]:
    """Yield events from a single connection.

    Raises:
        ApiError: If the request or the connection fails.
        _EndOfEvents: If there are no more events.
    """
    headers = {"accept": "application/x-ndjson", **({"last-event-id": cursor} if cursor else {})}
    path = f"{make_run_path(task_id)}/events"
    async with server.request("GET", path, params=dict(query), headers=headers) as response:
        if response.status_code == 204:
            raise _EndOfEvents
        if response.status_code != 200:
            raise _convert_response(response, await server.read_body(response))
        async for line in _read_lines(response, server.bounds):
            yield _parse_line(line, response, server.bounds)


def _parse_line(line: bytes, response: httpx.Response, bounds: ResponseBounds) -> Event:
    if len(line) > _SMALL:
        bounds.check_json(line, response)
    try:
        return Event.from_json(line)
    except ConfigurationError as error:
        raise ApiError(f"the server sent an invalid event: {error}", code=FAULTY, status=200) from error


async def _read_lines(response: httpx.Response, bounds: ResponseBounds) -> AsyncGenerator[bytes]:
    """Yield non-empty lines, separated by newlines only.

    httpx also splits on other characters, which JSON allows.
    """
    buffer = bytearray()
    heartbeats = 0
    pieces = iterate_pieces(response)
    try:
        async for piece in pieces:
            buffer += piece
            if b"\n" in piece:
                heartbeats += len(piece)
                *lines, rest = buffer.split(b"\n")
                buffer = bytearray(rest)
                for line in lines:
                    if line:
                        heartbeats = 0
                        bounds.check_size(len(line), response)
                        yield bytes(line)
                if heartbeats:
                    # A server that sends only empty lines without pauses would block the event loop.
                    bounds.check_size(heartbeats, response, "bytes without an event")
                    await asyncio.sleep(0)
            bounds.check_size(len(buffer), response)
    finally:
        await end_pieces(pieces)
