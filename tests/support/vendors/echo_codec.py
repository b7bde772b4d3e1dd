"""Minimal codec for testing the transport."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rxloop.pipeline.requests import ModelRequest
from rxloop.providers import Preset
from rxloop.providers.codecs import JSONReader, Notice
from rxloop.providers.codecs.draft import MessageDraft
from rxloop.providers.error_responses import from_error_object


class EchoReader(JSONReader):
    """Reader of text, errors and end markers."""

    accepts_arrays = True

    def read_event(self, event: dict[str, Any]) -> None:
        if "error" in event:
            raise from_error_object(event, self.draft.endpoint)
        if "text" in event:
            self.draft.write(event["text"])
        if "stop" in event:
            self.draft.finish("stop", "stop")

    def read_answer(self, answer: dict[str, Any]) -> None:
        self.read_event(answer)


class EchoCodec:
    """Codec that sends an empty request and reads with `reads`."""

    headers: Mapping[str, str] = {}
    enforces_schema = False
    reads: type[JSONReader] = EchoReader

    def __init__(self, model: str, preset: Preset, *, stream: bool) -> None: ...

    def url(self, base: str) -> str:
        return f"{base}/echo"

    def encode(self, request: ModelRequest, notice: Notice) -> bytes:
        return b"{}"

    def make_reader(self, draft: MessageDraft) -> JSONReader:
        return self.reads(draft)
