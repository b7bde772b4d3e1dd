"""Images and files in the form that OpenAI documents for chat completions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.messages import FilePart, ImagePart, Message, Part, TextPart
from rxloop.providers import PRESETS
from rxloop.providers.codecs.chat.request import RequestEncoder
from rxloop.providers.vendors.presets import CUSTOM
from support.vendors.codecs import ignore_notice

CHAT = [name for name, preset in PRESETS.items() if preset.wire in ("openai", "openai_chat")]
PDF = "data:application/pdf;base64,JVBERg=="


def encode_parts(*parts: Part, to: str = "openai") -> list[dict[str, Any]]:
    request = ModelRequest(messages=[Message.user(parts)])
    return orjson.loads(RequestEncoder("m", PRESETS[to], True).encode(request, ignore_notice))["messages"][0]["content"]


def test_parts_keep_their_order() -> None:
    parts = encode_parts(TextPart(text="Which"), ImagePart(url="https://e.org/a.png"), TextPart(text="is it?"))
    assert [part["type"] for part in parts] == ["text", "image_url", "text"]


@pytest.mark.parametrize(
    ("part", "form"),
    [
        (
            ImagePart(url="https://e.org/a.png"),
            {"type": "image_url", "image_url": {"url": "https://e.org/a.png"}},
        ),
        (
            ImagePart(data=b"png", media_type="image/png"),
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,cG5n"}},
        ),
        (
            FilePart(data=b"%PDF", media_type="application/pdf", filename="a.pdf"),
            {"type": "file", "file": {"filename": "a.pdf", "file_data": PDF}},
        ),
        (
            FilePart(data=b"%PDF", media_type="application/pdf"),
            {"type": "file", "file": {"filename": "file.pdf", "file_data": PDF}},
        ),
        (FilePart(url=PDF, filename="a.pdf"), {"type": "file", "file": {"filename": "a.pdf", "file_data": PDF}}),
    ],
)
def test_part_has_its_documented_form(part: Part, form: dict[str, Any]) -> None:
    assert encode_parts(part) == [form]


@pytest.mark.parametrize(
    ("name", "part", "form"),
    [
        (
            "openrouter",
            FilePart(url="https://e.org/a.pdf", filename="a.pdf"),
            {"type": "file", "file": {"filename": "a.pdf", "file_data": "https://e.org/a.pdf"}},
        ),
        (
            "openrouter",
            FilePart(url="https://e.org/a.pdf"),
            {"type": "file", "file": {"file_data": "https://e.org/a.pdf"}},
        ),
        (
            "mistral",
            FilePart(url="https://e.org/a.pdf", filename="a.pdf"),
            {"type": "document_url", "document_url": "https://e.org/a.pdf", "document_name": "a.pdf"},
        ),
        (
            "mistral",
            FilePart(data=b"%PDF", media_type="application/pdf"),
            {"type": "document_url", "document_url": PDF},
        ),
    ],
)
def test_file_has_the_form_of_the_vendor(name: str, part: Part, form: dict[str, Any]) -> None:
    assert encode_parts(part, to=name) == [form]


@pytest.mark.parametrize("name", [name for name in CHAT if name not in ("openrouter", "mistral")])
def test_file_url_is_replaced_by_text_where_the_vendor_does_not_fetch_it(name: str) -> None:  # P8
    notices: list[str] = []
    request = ModelRequest(messages=[Message.user([FilePart(url="https://e.org/a.pdf")])])
    body = RequestEncoder("m", PRESETS[name], True).encode(request, lambda _, text: notices.append(text))
    words = "[file at https://e.org/a.pdf]"
    assert orjson.loads(body)["messages"][0]["content"] == [{"type": "text", "text": words}]
    assert words in notices[0]


def test_custom_endpoint_gets_a_file_url() -> None:
    request = ModelRequest(messages=[Message.user([FilePart(url="https://e.org/a.pdf")])])
    body = orjson.loads(RequestEncoder("m", CUSTOM, True).encode(request, ignore_notice))
    assert body["messages"][0]["content"][0]["file"] == {"file_data": "https://e.org/a.pdf"}


def test_file_from_a_path_is_encoded(tmp_path: Path) -> None:
    path = tmp_path / "report.pdf"
    path.write_bytes(b"%PDF")
    assert encode_parts(FilePart.from_path(path))[0]["file"] == {"filename": "report.pdf", "file_data": PDF}
