"""ASGI client without a network."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """Response to a request."""

    status: int
    headers: dict[str, str]
    text: str


async def send_request(
    app: Any, url: str, body: bytes, headers: dict[str, str], *, method: str = "POST", leaves: bool = False
) -> Answer:
    """Send a request to an ASGI application.

    Args:
        app: ASGI application.
        url: Path and query.
        body: Raw body.
        headers: Request headers.
        method: HTTP method.
        leaves: Whether the client disconnects after it has sent the body.
    """
    path, _, query = url.partition("?")
    request_messages: list[Any] = [{"type": "http.request", "body": body, "more_body": False}]
    if leaves:
        request_messages.append({"type": "http.disconnect"})
    status, answer_headers, chunks = 0, dict[str, str](), list[bytes]()

    async def receive() -> Any:
        if not request_messages:
            await asyncio.Event().wait()
        return request_messages.pop(0)

    async def send(message: Any) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            answer_headers.update((name.decode(), value.decode()) for name, value in message["headers"])
        chunks.append(message.get("body", b""))

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in {"host": "localhost", **headers}.items()],
        "client": ("127.0.0.1", 1),
        "server": ("localhost", 80),
        "state": {},
    }
    await app(scope, receive, send)
    return Answer(status, answer_headers, b"".join(chunks).decode(errors="replace"))
