"""Images and files, as OpenAI documents them for chat completions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from rxloop.messages import FilePart, ImagePart, Message, Part, TextPart
from rxloop.providers import PRESETS
from rxloop.providers._encode import RequestEncoder
from rxloop.requests import ModelRequest

PDF = "data:application/pdf;base64,JVBERg=="


def sent(*parts: Part) -> list[dict[str, Any]]:
    request = ModelRequest(messages=[Message.user(parts)])
    return orjson.loads(RequestEncoder("m", PRESETS["openai"], True).encode(request))["messages"][0]["content"]


def test_parts_keep_their_order() -> None:
    parts = sent(TextPart(text="Which"), ImagePart(url="https://e.org/a.png"), TextPart(text="is it?"))
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
        (
            FilePart(data=b"%PDF", media_type="application/x-own"),
            {"type": "file", "file": {"filename": "file", "file_data": "data:application/x-own;base64,JVBERg=="}},
        ),
        (
            FilePart(url="https://e.org/a.pdf", filename="a.pdf"),
            {"type": "file", "file": {"filename": "a.pdf", "file_data": "https://e.org/a.pdf"}},
        ),
        (FilePart(url="https://e.org/a.pdf"), {"type": "file", "file": {"file_data": "https://e.org/a.pdf"}}),
    ],
)
def test_each_part_has_its_documented_form(part: Part, form: dict[str, Any]) -> None:
    assert sent(part) == [form]


def test_a_file_goes_from_its_path_to_the_wire(tmp_path: Path) -> None:
    path = tmp_path / "report.pdf"
    path.write_bytes(b"%PDF")
    assert sent(FilePart.from_path(path))[0]["file"] == {"filename": "report.pdf", "file_data": PDF}
