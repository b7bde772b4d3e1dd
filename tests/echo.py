"""A protocol of next to nothing, for what stands below all protocols."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rxloop.pipeline.requests import ModelRequest
from rxloop.providers import Preset
from rxloop.providers.failures._refusals import from_error_object
from rxloop.providers.reading._draft import Draft
from rxloop.providers.wire import EventReader, Notice


class EchoReader(EventReader):
    """Reads events that have a piece of text, an error or the end."""

    arrays = True

    def event(self, event: dict[str, Any]) -> None:
        if "error" in event:
            raise from_error_object(event, self.draft.where)
        if "text" in event:
            self.draft.write(event["text"])
        if "stop" in event:
            self.draft.finish("stop", "stop")

    def answer(self, answer: dict[str, Any]) -> None:
        self.event(answer)


class EchoWire:
    """Sends nothing, and reads with `reads`."""

    headers: Mapping[str, str] = {}
    keeps_to_schema = False
    reads: type[EventReader] = EchoReader

    def __init__(self, model: str, preset: Preset, *, stream: bool) -> None: ...

    def url(self, base: str) -> str:
        return f"{base}/echo"

    def encode(self, request: ModelRequest, notice: Notice) -> bytes:
        return b"{}"

    def reader(self, draft: Draft) -> EventReader:
        return self.reads(draft)
