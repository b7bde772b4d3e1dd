"""The events of a run on a server, over connections that break."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any, cast
from urllib.parse import quote

import httpx

from rxloop.client._requests import Tries, refusal, unreachable
from rxloop.errors import ApiError, ConfigurationError
from rxloop.protocol.events import AnyEvent, Event, GapEvent, StatusUpdateEvent, ends_attempt
from rxloop.stream.bridges import Push, from_task
from rxloop.stream.reading import Reading
from rxloop.stream.stream import Stream

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
    hold = Reading()

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
