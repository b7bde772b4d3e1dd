"""Uvicorn server that drains an adapter before it closes connections, as in docs/service.md: `draining.py PORT`."""

from __future__ import annotations

import socket
import sys

import uvicorn
from mounted import app, http_api
from typing_extensions import override


class Server(uvicorn.Server):
    @override
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        print("drain", flush=True)
        await http_api.drain(20)
        await super().shutdown(sockets)


if __name__ == "__main__":
    Server(uvicorn.Config(app, port=int(sys.argv[1]), timeout_graceful_shutdown=5)).run()
