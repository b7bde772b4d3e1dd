"""Images in requests to all adapters."""
# P31

from __future__ import annotations

from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from typing import Any

import pytest
from a2a.types import a2a_pb2
from a2a.utils.errors import InvalidParamsError
from ag_ui.core import UserMessage
from google.protobuf.json_format import ParseDict
from pydantic import ValidationError

from rxloop import Agent, ImagePart, Message
from rxloop.protocol.http_api import StartRun, make_messages
from rxloop.server.a2a.parts import convert_content
from rxloop.server.agui.requests import convert_message
from rxloop.server.core.errors import Refused
from rxloop.server.openai.requests import CreateCompletion, CreateResponse
from rxloop.server.ui_messages import requests as ui_requests
from rxloop.testing import ScriptedModel
from support.api_server import make_client, serve_api

PNG = b"\x89PNG\r\n\x1a\n" + b"\xfb\xff\xfe" * 9 + b"\xff\xff\xff\xfb\xef\xbe"
BASE64, URL_SAFE = b64encode(PNG).decode(), urlsafe_b64encode(PNG).decode()
SENT = [
    ("image/png", BASE64),
    ("image/jpg", BASE64),
    ("IMAGE/PNG", BASE64),
    ("image/*", BASE64),
    ("application/pdf", BASE64),
    ("image/png", BASE64.rstrip("=")),
    ("image/png", f"{BASE64[:9]} {BASE64[9:]} "),
    ("image/png", f"{BASE64[:9]}\r\n{BASE64[9:]}"),
    ("image/png", URL_SAFE.rstrip("=")),
]
BROKEN = ["no!", "", "   ", "A", "....", "[object Object]"]
LOCAL = ["/etc/passwd", "file:///etc/passwd", "FILE:///etc/passwd", "./a.png", "~/a.png", "C:\\a.png", "blob:x", ""]
Read = Callable[..., Message | None]


def parse_agui(part: dict[str, Any]) -> Message:
    return convert_message(
        UserMessage.model_validate({"id": "1", "role": "user", "content": [{"type": "text", "text": "x"}, part]})
    )


def parse_agui_data(kind: str, data: str) -> Message:
    return parse_agui({"type": "image", "source": {"type": "data", "value": data, "mimeType": kind}})


def parse_agui_url(url: str) -> Message:
    return parse_agui({"type": "image", "source": {"type": "url", "value": url}})


def parse_ui_url(url: str, kind: str = "image/png") -> Message:
    parts = [{"type": "text", "text": "x"}, {"type": "file", "mediaType": kind, "url": url}]
    return ui_requests.UserMessage.model_validate({"id": "1", "role": "user", "parts": parts}).to_message()


def parse_ui_data(kind: str, data: str) -> Message:
    return parse_ui_url(f"data:{kind};base64,{data}", kind)


def parse_chat_url(url: str) -> Message | None:
    content = [{"type": "image_url", "image_url": {"url": url}}]
    body = CreateCompletion.model_validate({"messages": [{"role": "user", "content": content}]})
    return body.messages[0].to_message()


def parse_chat_file(kind: str, data: str) -> Message | None:
    content = [{"type": "file", "file": {"filename": "a.png", "file_data": f"data:{kind};base64,{data}"}}]
    body = CreateCompletion.model_validate({"messages": [{"role": "user", "content": content}]})
    return body.messages[0].to_message()


def parse_responses_url(url: str) -> Message | None:
    content = [{"type": "input_image", "image_url": url}]
    item: Any = CreateResponse.model_validate({"input": [{"role": "user", "content": content}]}).items[0]
    return item.to_message()


def parse_responses_file(url: str) -> Message | None:
    content = [{"type": "input_file", "file_url": url}]
    item: Any = CreateResponse.model_validate({"input": [{"role": "user", "content": content}]}).items[0]
    return item.to_message()


def parse_a2a_url(url: str) -> Message:
    parts = [{"text": "x"}, {"url": url}]
    content = convert_content(ParseDict({"messageId": "1", "role": "ROLE_USER", "parts": parts}, a2a_pb2.Message()))
    return Message.user(content)


def parse_http_data(kind: str, data: str) -> Message:
    body = StartRun.model_validate({"input": [{"type": "image", "mediaType": kind, "data": data}]})
    return make_messages(body.input)[0]


def parse_http_url(url: str) -> Message:
    return make_messages(StartRun.model_validate({"input": [{"type": "image", "url": url}]}).input)[0]


def read_data_url(read: Read) -> Read:
    def read_data(kind: str, data: str) -> Message | None:
        return read(f"data:{kind};base64,{data}")

    return read_data


URL_READERS = [
    parse_agui_url,
    parse_ui_url,
    parse_chat_url,
    parse_responses_url,
    parse_responses_file,
    parse_a2a_url,
    parse_http_url,
]
DATA_READERS = {
    "agui": parse_agui_data,
    "agui data URL": read_data_url(parse_agui_url),
    "ui": parse_ui_data,
    "chat": read_data_url(parse_chat_url),
    "chat file": parse_chat_file,
    "responses": read_data_url(parse_responses_url),
    "a2a": read_data_url(parse_a2a_url),
    "http": parse_http_data,
}
data_readers = pytest.mark.parametrize("read", DATA_READERS.values(), ids=DATA_READERS)


@data_readers
@pytest.mark.parametrize(("kind", "data"), SENT)
def test_image_is_received_unchanged(read: Read, kind: str, data: str) -> None:
    message = read(kind, data)
    assert message is not None
    assert message.media == [ImagePart(data=PNG, media_type="image/png")]


@data_readers
@pytest.mark.parametrize("data", BROKEN)
def test_invalid_data_is_refused_with_the_name_of_the_part(read: Read, data: str) -> None:
    with pytest.raises((Refused, InvalidParamsError, ValidationError)) as raised:
        read("image/png", data)
    assert any(name in str(raised.value) for name in ("content[1]", "parts[1]", "image_url", "file_data", "data"))
    if isinstance(raised.value, Refused):
        assert 400 <= raised.value.status < 500


@pytest.mark.parametrize("read", URL_READERS)
@pytest.mark.parametrize("url", LOCAL)
def test_local_path_is_refused(read: Read, url: str) -> None:
    with pytest.raises((Refused, InvalidParamsError, ValidationError)):
        read(url)


async def test_http_api_names_the_invalid_part() -> None:
    async with serve_api(Agent(ScriptedModel("A cat."))) as served, make_client(served.url) as client:
        parts = [{"type": "text", "text": "x"}, {"type": "image", "mediaType": "image/png", "data": "no!"}]
        answer = await client.post("/runs", json={"input": parts})
        assert answer.status_code == 422
        assert any("1" in name for name in answer.json()["error"]["fields"]), answer.text
