"""Offline model on a real socket, for commands in other processes."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Generator

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from rxloop.testing import OfflineModel


def make_app(model: OfflineModel) -> Starlette:
    """Return an ASGI application that forwards requests to the model."""

    async def answer(request: Request) -> StreamingResponse:
        response = model.handle(httpx.Request(request.method, str(request.url), content=await request.body()))

        async def pieces() -> AsyncIterator[bytes]:
            try:
                async for piece in response.aiter_bytes():
                    yield piece
            finally:
                await response.aclose()

        return StreamingResponse(pieces(), response.status_code, dict(response.headers))

    return Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])])


@contextlib.contextmanager
def serve_offline(model: OfflineModel) -> Generator[str]:
    """Serve a model in a thread, yielding the base URL."""
    server = uvicorn.Server(uvicorn.Config(make_app(model), log_level="critical", lifespan="off"))
    with socket.socket(proto=socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        # Early requests are queued until the thread is ready.
        listener.listen(2048)
        thread = threading.Thread(target=server.run, args=([listener],), name="offline-server", daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        finally:
            server.should_exit = server.force_exit = True
            thread.join(timeout=5)
