"""Custom adapter for WebSockets.

The first message of a client, such as `{"input": "Is it warm in Oslo?"}`, starts a run. The server sends the public
events of the run, as one JSON object per line. The client can send `{"answer": {"the inputId": true}}` to answer a
question, and `{"cancel": true}` to cancel the run. The close code is 1000 after the run, 1012 if the server drains, and
4000 plus the HTTP status for errors.
"""

from __future__ import annotations

import asyncio
import json
import socket as sockets
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from pydantic import BaseModel

from rxloop import Agent, MemoryEventLog, RunRecord, Runtime, op, tool
from rxloop.testing import demo_model

try:
    import uvicorn
    from starlette.requests import HTTPConnection
    from starlette.responses import PlainTextResponse, Response
    from starlette.routing import WebSocketRoute
    from starlette.websockets import WebSocket, WebSocketDisconnect
    from websockets.asyncio.client import connect

    from rxloop.server import bearer
    from rxloop.server.core import (
        NDJSON,
        Adapter,
        Principal,
        Refused,
        answer_run,
        cancel_abandoned_run,
        cancel_run,
        deliver,
        parse_json,
        resolve_agent,
        start_run,
    )
except (ImportError, ValueError) as error:
    sys.exit(f"This example needs more packages ({error}): pip install 'rxloop[server]' uvicorn websockets")


class Start(BaseModel):
    """Message that starts a run."""

    input: str


class Command(BaseModel):
    """Message that answers a question or cancels the run."""

    answer: dict[str, Any] = {}
    cancel: bool = False


class WebSocketAdapter(Adapter):
    """Serve an agent over WebSockets."""

    def endpoints(self) -> Sequence[WebSocketRoute]:
        """Return the route of the WebSocket."""
        return [WebSocketRoute("/", self._serve)]

    def write_error(self, refused: Refused, request: HTTPConnection) -> Response:
        """Return an error response for HTTP requests to other paths."""
        return PlainTextResponse(str(refused), refused.status)

    async def _serve(self, socket: WebSocket) -> None:
        await socket.accept()
        try:
            principal = await self.gateway.authenticate(socket)
            start = await self._receive_start(socket)
            with self.gateway.reserve_stream(principal) as slot:
                agent = resolve_agent(self.gateway, self.agent)
                record = await start_run(self.gateway, principal, agent, start.input)
                events = self.gateway.runtime.follow(record.task_id).pipe(op.public())
                read, beat = partial(self._read_commands, socket, principal, record), self.heartbeat
                end = await deliver(slot, events, socket.send_bytes, NDJSON, heartbeat=beat, disconnected=read)
                if end in ("complete", "draining", "broken"):
                    await socket.close({"complete": 1000, "draining": 1012}.get(end, 1011))
                elif self.on_disconnect == "cancel":
                    self.gateway.spawn(cancel_abandoned_run(self.gateway, record.task_id))
        except WebSocketDisconnect:
            pass
        except Exception as error:
            refused = self.to_refusal(error, socket)
            await socket.close(4000 + refused.status, str(refused))

    async def _receive_start(self, socket: WebSocket) -> Start:
        try:
            async with asyncio.timeout(self.gateway.limits.body_seconds):
                return parse_json(Start, await socket.receive_text(), "message")
        except TimeoutError:
            raise Refused(408, "too_slow", "the first message took too long") from None

    async def _read_commands(self, socket: WebSocket, principal: Principal, record: RunRecord) -> None:
        """Execute commands until the client disconnects. Only reading from the socket detects this."""
        with suppress(WebSocketDisconnect):
            while True:
                text = await socket.receive_text()
                try:
                    command = parse_json(Command, text, "message")
                    if command.cancel:
                        await cancel_run(self.gateway, record.task_id)
                    else:
                        await answer_run(self.gateway, principal, record, command.answer)
                except Exception as error:
                    await socket.send_json({"error": str(self.to_refusal(error, socket))})


@tool(approve=True)
async def get_weather(city: str) -> dict[str, Any]:
    """Return the current weather of a city."""
    return {"temperature": 18.0, "unit": "C", "sky": "sunny", "city": city}


async def ask(url: str, question: str) -> None:
    """Start a run, approve all tool calls, and print the answer."""
    async with connect(url, additional_headers={"Authorization": "Bearer ann-key"}) as client:
        await client.send(json.dumps({"input": question}))
        async for message in client:
            for event in map(json.loads, filter(None, message.splitlines())):
                if event["kind"] == "input-required":
                    print(event["input"]["prompt"], "yes")
                    await client.send(json.dumps({"answer": {event["input"]["inputId"]: True}}))
                elif event["kind"] == "status-update" and event["state"] == "completed":
                    print(event["content"])
        print("close code:", client.close_code)


async def main() -> None:
    """Serve the adapter on a free port and simulate a client."""
    agent = Agent(demo_model(), tools=[get_weather])
    async with Runtime({"weather": agent}, log=MemoryEventLog()) as runtime:
        app = WebSocketAdapter(runtime, auth=bearer({"ann-key": "ann"}), on_disconnect="cancel")
        with sockets.create_server(("127.0.0.1", 0)) as listener:
            server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
            task = asyncio.create_task(server.serve(sockets=[listener]))
            # The socket is already listening, so the client can connect before the server has started.
            await ask(f"ws://127.0.0.1:{listener.getsockname()[1]}", "Is it warm in Oslo?")
            await app.drain(1)
            server.should_exit = True
            await task


if __name__ == "__main__":
    asyncio.run(main())
