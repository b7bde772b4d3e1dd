"""Adapter base class, tested with a custom protocol."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from pydantic import BaseModel
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, Response
from typing_extensions import override

from rxloop import Agent, ConfigurationError, MemoryEventLog, Runtime, op
from rxloop.server import ServerLimits, bearer
from rxloop.server.core import Adapter, Call, Endpoint, FrameWriter, Refused, cancel_abandoned_run, start_run
from rxloop.testing import ScriptedModel, frames
from support.api_server import TOKENS, RawConnection, serve_app

WRITER = FrameWriter("text/plain", str.encode, b"<", b"~", b">", b"!")


class Question(BaseModel):
    text: str


class PlainText(Adapter):
    @override
    def endpoints(self) -> Sequence[Endpoint]:
        return [
            Endpoint("POST", "/runs", self.ask, Question),
            Endpoint("GET", "/runs", self.count),
            Endpoint("GET", "/broken", self.fail, public=True),
            Endpoint("GET", "/broken/{name}", self.fail, public=True),
            Endpoint("GET", "/refused/{name}", self.refuse, public=True),
        ]

    @override
    def write_error(self, refused: Refused, request: HTTPConnection) -> Response:
        return PlainTextResponse(f"{refused.code}: {refused}", refused.status, refused.headers)

    async def ask(self, call: Call[Question, None]) -> Response:
        assert self.agent is not None
        record = await start_run(self.gateway, call.principal, self.agent, call.body.text)
        text = self.gateway.runtime.follow(record.task_id).pipe(op.text())
        return call.stream(text, WRITER, on_disconnect=partial(cancel_abandoned_run, self.gateway, record.task_id))

    async def count(self, call: Call[None, None]) -> Response:
        return PlainTextResponse(str(len(await self.gateway.runtime.log.list_runs(owner=call.principal.id))))

    async def fail(self, call: Call[None, None]) -> Response:
        raise ZeroDivisionError("a secret")

    async def refuse(self, call: Call[None, None]) -> Response:
        raise ConfigurationError(f"invalid: {call.request.path_params['name']}")


def make_runtime(model: ScriptedModel) -> Runtime:
    return Runtime({"a": Agent(model)}, log=MemoryEventLog(), grace=0.2)


def make_client(app: Adapter) -> httpx.AsyncClient:
    headers = {"authorization": "Bearer ann-key"}
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://x", headers=headers)


async def test_endpoints_are_authenticated_and_read_checked_bodies() -> None:
    async with make_runtime(ScriptedModel("Blue.")) as runtime:
        app = PlainText(runtime, agent="a", auth=bearer(TOKENS), limits=ServerLimits(body=100))
        async with make_client(app) as client:
            answer = await client.post("/runs", json={"text": "Which color?"})
            count = await client.get("/runs")
            refused = [
                await client.post("/runs", json={"text": 1}),
                await client.post("/runs", json={"text": "x" * 100}),
                await client.get("/runs", headers={"authorization": "Bearer wrong"}),
                await client.get("/nothing"),
            ]

    assert answer.text == "<Blue.>"
    assert answer.headers["content-type"] == "text/plain"
    assert count.text == "1"
    assert [(each.status_code, each.text.partition(":")[0]) for each in refused] == [
        (422, "invalid"),
        (413, "too_large"),
        (401, "unauthorized"),
        (404, "not_found"),
    ]


async def test_unknown_method_lists_all_methods_of_the_path() -> None:
    async with make_runtime(ScriptedModel()) as runtime, make_client(PlainText(runtime, agent="a")) as client:
        answer = await client.delete("/runs")

    assert answer.status_code == 405
    assert answer.text == "method_not_allowed: the path does not support this method"
    assert {*answer.headers["allow"].split(", ")} == {"GET", "HEAD", "POST"}


async def test_exception_of_a_handler_is_logged_and_not_revealed(caplog: pytest.LogCaptureFixture) -> None:
    async with make_runtime(ScriptedModel()) as runtime:
        async with make_client(PlainText(runtime, agent="a", auth=bearer(TOKENS))) as client:
            answer = await client.get("/broken", headers={"authorization": ""})

    assert answer.status_code == 500
    assert answer.text == "internal: internal server error"
    assert "GET /broken failed" in caplog.text


@pytest.mark.parametrize(("path", "status"), [("broken", 500), ("refused", 422)])
async def test_text_of_a_client_is_logged_on_one_line_without_control_characters(
    path: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    attack = quote("x\r\nERROR forged\x1b[2J\x9b\u202ey" + "z" * 5_000)
    caplog.set_level(logging.INFO, logger="rxloop")
    async with make_runtime(ScriptedModel()) as runtime:
        async with make_client(PlainText(runtime, agent="a", auth=bearer(TOKENS))) as client:
            answer = await client.get(f"/{path}/{attack}")

    assert answer.status_code == status
    [message] = [each.getMessage() for each in caplog.records if each.name == "rxloop"]
    assert "ERROR forged" in message
    assert message.isprintable()
    assert len(message) < 1_000


async def test_drained_stream_ends_with_the_last_frame_of_its_writer() -> None:
    async with make_runtime(ScriptedModel(frames("-It is", 0.01))) as runtime:
        app = PlainText(runtime, agent="a", heartbeat=None)
        async with serve_app(app) as url, httpx.AsyncClient(base_url=url) as client:
            async with client.stream("POST", "/runs", json={"text": "Which color?"}) as answer:
                chunks = answer.aiter_text()
                text = await anext(chunks)
                while "It is" not in text:
                    text += await anext(chunks)
                await app.drain(0)
                text += "".join([chunk async for chunk in chunks])

    assert text == "<It is!"


async def test_client_that_disconnects_ends_its_stream_and_its_run() -> None:
    async with make_runtime(ScriptedModel(frames("-It is", 0.01))) as runtime:
        app = PlainText(runtime, agent="a", heartbeat=0.01)
        async with serve_app(app) as url:
            client = await RawConnection.connect(url)
            body = b'{"text": "Which color?"}'
            head = f"POST /runs HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
            client.writer.write(head.encode() + b"\r\n\r\n" + body)
            await client.reader.readuntil(b"~")
            await client.close()
            [record] = await runtime.log.list_runs()
            events = [event async for event in runtime.log.follow(record.task_id)]

    assert getattr(events[-1], "state", "") == "canceled"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heartbeat": 0}, "heartbeat must be a positive number of seconds or None, got 0"),
        ({"on_disconnect": "wait"}, "on_disconnect must be 'keep' or 'cancel', got 'wait'"),
        ({"agent": "b"}, "unknown agent 'b'; the runtime has a"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        PlainText(make_runtime(ScriptedModel()), **options)
