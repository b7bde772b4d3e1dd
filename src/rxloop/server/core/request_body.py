"""Bodies and queries of requests, read with limits and checked against models."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from rxloop.protocol.ids import find_id_fault
from rxloop.server.core.errors import Refused, misfit
from rxloop.server.core.gateway import ServerLimits

M = TypeVar("M", bound=BaseModel)


async def read_body(model: type[M], request: Request, limits: ServerLimits) -> M:
    """Read a body; it is counted while it comes, whatever its header says.

    Raises:
        Refused: It is too large, too slow, no JSON, or does not fit.
    """
    data = await read_bytes(request, limits)
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if data and media_type != "application/json":
        raise Refused(415, "media_type", "send the body as application/json")
    return parse_json(model, data or b"{}", "body")


def parse_json(model: type[M], data: bytes | str, where: str) -> M:
    """Parse JSON that a client sent.

    Args:
        model: The model of the data.
        data: The JSON.
        where: Name of the data in an error, such as `body`.

    Raises:
        Refused: It is no JSON, or does not fit.
    """
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        raise misfit(error, where) from None


async def read_bytes(request: Request, limits: ServerLimits) -> bytes:
    """Read a body as it is; it is counted while it comes.

    Raises:
        Refused: It is too large, or too slow.
    """
    data = bytearray()
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for chunk in request.stream():
                data += chunk
                if len(data) > limits.body:
                    raise Refused(413, "too_large", f"a body has at most {limits.body} bytes", headers=_CLOSE)
    except TimeoutError:
        raise Refused(408, "too_slow", f"the body took over {limits.body_seconds:g} s", headers=_CLOSE) from None
    except ClientDisconnect:
        raise Refused(400, "bad_request", "the body broke off", headers=_CLOSE) from None
    return bytes(data)


_CLOSE = {"connection": "close"}
"""What is left of a body is not read: nothing more can come over this connection."""


def read_query(model: type[M], request: Request) -> M:
    """Read the query of an address.

    Raises:
        Refused: It does not fit, or has a field that there is not.
    """
    try:
        return model.model_validate(dict(request.query_params))
    except ValidationError as error:
        raise misfit(error, "query") from None


def check_id(value: str, name: str) -> None:
    """Check an id that a client chose.

    Raises:
        Refused: It is no id.
    """
    wrong = find_id_fault(name, value)
    if wrong is not None:
        raise Refused(422, "invalid", wrong, fields={name: wrong})
