"""Images and files at every vendor, sent in a supported form or reported by a notice."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import orjson
import pytest

from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.messages import FilePart, ImagePart, Message, TextPart, ToolCall
from rxloop.providers import PRESETS
from rxloop.providers.codecs import Codec
from rxloop.providers.codecs.anthropic import AnthropicCodec
from rxloop.providers.codecs.chat import ChatCodec
from rxloop.providers.codecs.gemini import GeminiCodec
from rxloop.providers.codecs.responses import ResponsesCodec
from rxloop.providers.vendors.presets import CUSTOM

Part = ImagePart | FilePart
PNG = b"\x89PNG\r\n\x1a\n" + b"\x01" * 20
BASE64 = b64encode(PNG).decode()
PDF = b"%PDF-1.7 x"
CHAT = [name for name, preset in PRESETS.items() if preset.wire in ("openai", "openai_chat")]


def make_codec(name: str, model: str = "m") -> Codec:
    preset = CUSTOM if name == "custom" else PRESETS[name]
    if name in ("anthropic", "vertex_anthropic", "bedrock"):
        return AnthropicCodec("claude-sonnet-4-5", preset, stream=True)
    if name in ("google", "vertex"):
        return GeminiCodec("gemini-2.5-pro", preset, stream=True)
    if preset.wire == "openai_responses":
        wire = ResponsesCodec(model, preset, stream=True)
        wire.url("https://api.openai.com/v1")
        return wire
    return ChatCodec(model, preset, stream=True)


ALL = [*PRESETS, "custom"]


def encode(name: str, *messages: Message, model: str = "m") -> tuple[str, list[str]]:
    """Return body and notices."""
    notices: list[str] = []
    body = make_codec(name, model).encode(
        ModelRequest(messages=list(messages)), lambda code, text: notices.append(f"{code}: {text}")
    )
    return orjson.dumps(orjson.loads(body)).decode(), notices


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    ("part", "change"),
    [
        (ImagePart(data=PNG, media_type="image/png"), None),
        (ImagePart(data=PNG, media_type="IMAGE/PNG; x=y"), None),
        (ImagePart(data=PNG, media_type="image/*"), None),
        (ImagePart(url=f"data:image/png;base64,{BASE64.rstrip('=')}"), None),
        (ImagePart(data=PNG, media_type="image/jpg"), "as image/png instead of image/jpg"),
        (FilePart(data=PNG, media_type="IMAGE/PNG; x=y", filename="a.png"), "as an image instead of a file"),
        (FilePart(data=PNG, media_type="application/octet-stream"), "as an image instead of a file"),
        (
            ImagePart(url=f"DATA:image/jpeg;name=x.png;base64,{BASE64.rstrip('=')}"),
            "as image/png instead of image/jpeg",
        ),
        (FilePart(url=f"data:;base64,{BASE64}"), "as an image instead of a file"),
    ],
)
def test_image_is_sent_as_an_image_in_every_form(name: str, part: Part, change: str | None) -> None:  # P31
    body, notices = encode(name, Message.user([TextPart(text="see"), part]))
    assert BASE64 in body
    assert "image/png" in body
    assert "jpg" not in body
    assert "jpeg" not in body
    assert not any(word in body for word in ('"document"', "input_file", "file_data", "document_url"))
    assert len(notices) == (change is not None)
    assert change is None or f"changed: {notices[0].partition(': ')[2]}" == notices[0]
    assert change is None or f"{part.placeholder} {change}" in notices[0]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    "part",
    [
        ImagePart(url="data:image/png;base64,no!"),
        ImagePart(url="data:image/png;base64,"),
        ImagePart(data=b"", media_type="image/png"),
        ImagePart.model_validate_json('{"url": "/tmp/secret.png"}'),
        ImagePart.model_validate_json('{"url": "file:///tmp/secret.png"}'),
        FilePart(data=b"PK\x03\x04", media_type="application/zip", filename="a.zip"),
        FilePart(data=b"", media_type="text/plain", filename="a.txt"),
        ImagePart(data=b"<svg/>", media_type="image/bmp"),
        ImagePart(data=b"II*\0", media_type="image/tiff"),
        ImagePart(data=b"\0\0\0\x18ftypavif", media_type="image/png"),
    ],
)
def test_part_that_no_vendor_accepts_is_replaced_by_text_with_a_notice(name: str, part: Part) -> None:  # P8, P31
    body, [notice] = encode(name, Message.user([TextPart(text="see"), part]))
    words = orjson.dumps(part.placeholder).decode()[1:-1]
    assert words in body
    assert part.placeholder in notice
    assert not any(mark in body for mark in ('"image_url":{', "inlineData", '"source"', "file_data", "input_image"))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("role", ["user", "tool", "assistant"])
@pytest.mark.parametrize(
    ("data", "media_type", "filename"),
    [
        (b"# Zebra", "text/markdown", "a.md"),
        (b"\xef\xbb\xbfZebra,1", "text/csv", "a.csv"),
        (b'{"Zebra": 1}', "application/json", "a.json"),
        (b"<Zebra/>", "application/xml", "a.xml"),
        (b"let Zebra", "video/mp2t", "a.ts"),
        (b"ERROR Zebra", "application/octet-stream", "a.log"),
        ("Zebra \xfc".encode("latin-1"), "text/plain; charset=latin-1", "a.txt"),
    ],
)
def test_text_file_is_sent_as_text(name: str, role: str, data: bytes, media_type: str, filename: str) -> None:  # P8
    part = FilePart(data=data, media_type=media_type, filename=filename)
    call = Message.assistant(tool_calls=[ToolCall(id="a", name="read")])
    history = {
        "user": [Message.user([part])],
        "tool": [Message.user("read"), call, Message.tool("a", [TextPart(text="Here."), part])],
        "assistant": [Message.user("write"), Message.assistant([TextPart(text="Here."), part]), Message.user("so?")],
    }[role]
    body, notices = encode(name, *history)
    google = name in ("google", "vertex")
    if google and role == "assistant":
        return
    if google:
        assert '"mimeType":"text/plain"' in body
    else:
        assert "Zebra" in body
        assert filename in body
        assert "base64" not in body
    assert not notices


@pytest.mark.parametrize("name", CHAT)
@pytest.mark.parametrize(
    "part",
    [
        FilePart(data=b"\0\0\0\x18ftypisom", media_type="video/mp4", filename="a.mp4"),
        FilePart(data=b"OggS\0", media_type="audio/ogg", filename="a.ogg"),
        FilePart(data=b"PK\x03\x04", media_type="application/epub+zip", filename="a.epub"),
        FilePart(data=b"\xd0\xcf", media_type="application/msword", filename="a.doc"),
    ],
)
def test_chat_replaces_other_files_by_text(name: str, part: Part) -> None:  # P8
    call = Message.assistant(tool_calls=[ToolCall(id="a", name="read")])
    for history in ([Message.user([part])], [Message.user("x"), call, Message.tool("a", [part])]):
        body, [notice] = encode(name, *history)
        assert part.placeholder in body
        assert part.placeholder in notice
        assert "base64" not in body


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    ("part", "is_changed"),
    [
        (FilePart(data=PDF, media_type="application/pdf", filename="a.pdf"), False),
        (ImagePart(data=PDF, media_type="image/png"), True),
        (FilePart(data=PDF, media_type="application/x-pdf"), True),
    ],
)
def test_pdf_is_sent_as_a_file_only_where_accepted(name: str, part: Part, is_changed: bool) -> None:  # P8, P31
    body, notices = encode(name, Message.user([part]))
    accepts = "application/pdf" in (CUSTOM if name == "custom" else PRESETS[name]).files
    assert (b64encode(PDF).decode() in body) == accepts
    assert [notice.partition(":")[0] for notice in notices] == (
        ["left_out"] if not accepts else ["changed"] if is_changed else []
    )
    assert "image_url" not in body
    assert '"image"' not in body


def test_vercel_gets_a_pdf_with_its_media_type() -> None:  # P8
    body, notices = encode("vercel", Message.user([FilePart(data=PDF, media_type="application/pdf")]))
    file = {"data": b64encode(PDF).decode(), "media_type": "application/pdf", "filename": "file.pdf"}
    assert find_only_part(body) == {"type": "file", "file": file}
    assert not notices


@pytest.mark.parametrize("name", ["anthropic", "google", "openai_responses"])
def test_changed_image_of_a_tool_is_named_in_a_notice(name: str) -> None:  # P31
    call = Message.assistant(tool_calls=[ToolCall(id="a", name="look")])
    image = ImagePart(data=PNG, media_type="image/jpg")
    body, [notice] = encode(name, Message.user("look"), call, Message.tool("a", [image]))
    assert BASE64 in body
    assert "as image/png instead of image/jpg" in notice


def find_only_part(body: str) -> Any:
    [part] = orjson.loads(body)["messages"][0]["content"]
    return part


@pytest.mark.parametrize("name", CHAT)
def test_image_url_is_sent_only_to_vendors_that_fetch(name: str) -> None:  # P31
    body, notices = encode(name, Message.user([ImagePart(url="https://e.org/a.png")]))
    fetched = find_only_part(body)["type"] == "image_url"
    assert fetched == PRESETS[name].image_urls == (name not in ("moonshot", "ollama", "lm_studio"))
    assert len(notices) == (not fetched)


@pytest.mark.parametrize("url", ["gs://bucket/a.png", "https://generativelanguage.googleapis.com/v1beta/files/a"])
def test_google_storage_url_is_sent_only_to_google(url: str) -> None:  # P31
    for name in ALL:
        body, notices = encode(name, Message.user([FilePart(url=url)]))
        assert ('"fileUri"' in body) == (name in ("google", "vertex"))
        assert len(notices) == (name not in ("google", "vertex"))


def test_openai_file_id_is_sent_only_to_openai() -> None:  # P31
    part = FilePart(url="file-abc123", filename="a.pdf")
    for name in ALL:
        body, notices = encode(name, Message.user([part]))
        own = name in ("openai", "openai_chat", "openai_responses", "azure_responses")
        assert ('"file_id":"file-abc123"' in body) == own
        assert len(notices) == (not own)


@pytest.mark.parametrize(("media_type", "form"), [("audio/x-wav", "wav"), ("audio/mp3", "mp3")])
def test_audio_is_sent_to_models_that_accept_it(media_type: str, form: str) -> None:  # P8
    part = FilePart(data=b"\0\1", media_type=media_type)
    body, notices = encode("openai_chat", Message.user([part]), model="gpt-4o-audio-preview")
    assert find_only_part(body) == {"type": "input_audio", "input_audio": {"data": "AAE=", "format": form}}
    assert [notice.partition(":")[0] for notice in notices] == ["changed"]
    _, [notice] = encode("openai_chat", Message.user([part]), model="gpt-5")
    assert "left_out" in notice
    body, notices = encode("google", Message.user([part]))
    assert '"data":"AAE="' in body
    assert [notice.partition(":")[0] for notice in notices] == ["changed"]


def test_system_message_contains_only_text() -> None:  # P8
    image = ImagePart(data=PNG)
    # Mistral gets a user message, which may contain images.
    for name in (name for name in ALL if name != "mistral"):
        system = Message.system([TextPart(text="Look at"), image])
        body, _ = encode(name, Message.user("hi"), Message.assistant("yes"), system, Message.user("so?"))
        assert BASE64 not in body
        assert image.placeholder in body
