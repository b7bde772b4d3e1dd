"""Codec interface: one vendor's request and response format.

Connections, retries, timeouts, bounds, keys and tagged thoughts are handled by shared code above the codecs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast

import orjson

from rxloop.errors import ProviderError, ProviderProtocolError
from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.step_events import NoticeCode
from rxloop.providers.bounds import SMALL, check_document
from rxloop.providers.codecs.draft import MessageDraft as MessageDraft
from rxloop.providers.codecs.fields import parse_lenient_json
from rxloop.providers.codecs.provider_state import Piece as Piece
from rxloop.providers.codecs.provider_state import find_foreign_states as find_foreign_states
from rxloop.providers.codecs.provider_state import iter_pieces as iter_pieces
from rxloop.providers.error_responses import error_from_response
from rxloop.providers.failures import make_truncation_error
from rxloop.stream.back_pressure import Gate

if TYPE_CHECKING:
    from rxloop.providers.vendors import Preset

Notice = Callable[[NoticeCode, str], None]
"""Publishes a notice if a request had to be changed."""


class Codec(Protocol):
    """Stateless codec for one model."""

    @property
    def enforces_schema(self) -> bool:
        """True if the vendor forces the model to follow the `response_schema` of every request."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Additional HTTP headers for every request."""
        ...

    def url(self, base: str) -> str:
        """Return the request URL.

        Args:
            base: Endpoint URL without a trailing slash.
        """
        ...

    def encode(self, request: ModelRequest, notice: Notice) -> bytes:
        """Encode the request body.

        Args:
            request: Model request.
            notice: Called once per message if parts had to be dropped.

        Raises:
            BadRequest: Dropping an unsupported part would change the meaning.
        """
        ...

    def make_reader(self, draft: MessageDraft) -> ResponseReader:
        """Create a response reader."""
        ...


class CodecFactory(Protocol):
    """Codec factory, usually the codec class itself."""

    def __call__(self, model: str, preset: Preset, *, stream: bool) -> Codec:
        """Create the codec.

        Args:
            model: The vendor's name of the model.
            preset: Settings of the vendor.
            stream: True if answers are streamed.
        """
        ...


class ResponseReader(Protocol):
    """Response parser that pushes events."""

    @property
    def accepts_arrays(self) -> bool:
        """True if streams can also arrive as a JSON array."""
        ...

    @property
    def done(self) -> bool:
        """True if the endpoint has reported the end of the answer."""
        ...

    @property
    def is_complete(self) -> bool:
        """True if a complete answer was read."""
        ...

    def feed(self, payloads: list[bytes]) -> None:
        """Read a batch of event payloads.

        Raises:
            ProviderError: The endpoint reported an error or violated the protocol.
            OutOfBounds: The response is too large.
        """
        ...

    def feed_last(self, payloads: list[bytes]) -> None:
        """Read trailing data after the last complete event. Raises the same errors as `feed`."""
        ...

    def read_body(self, body: bytes) -> None:
        """Read a non-streaming response. Raises the same errors as `feed`."""
        ...

    def complete(self) -> None:
        """Push the final events.

        Raises:
            ProviderError: The response is incomplete.
        """
        ...

    def make_error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        """Return the error for a response with an HTTP error status."""
        ...


class JSONReader:
    """Base class for readers of JSON events. Subclasses implement `read_event` and `read_answer`.

    Both methods must expect untrusted input: any value may be missing or have another type. At the end of the answer,
    `read_event` calls `draft.finish`, and it sets `done` if no more events follow.
    """

    accepts_arrays = False
    key = ""
    """Codec name, used as the key in `provider_state`."""

    def __init__(self, draft: MessageDraft) -> None:
        self.draft = draft
        self.done = False
        self._reported: set[str] = set()

    def read_event(self, event: dict[str, Any]) -> None:
        """Read one stream event."""
        raise NotImplementedError

    def read_answer(self, answer: dict[str, Any]) -> None:
        """Read a non-streaming response."""
        raise NotImplementedError

    @property
    def is_complete(self) -> bool:
        """True if the response is complete."""
        return self.done or self.draft.finish_reason is not None

    def report_unknown(self, subject: str) -> None:
        """Publish a notice about unknown data, once per kind and at most 20 times."""
        if subject not in self._reported and len(self._reported) < 20:
            self._reported.add(subject)
            self.draft.notice("skipped", f"{self.draft.endpoint} sent {subject}, which is unknown and was skipped")

    def feed(self, payloads: list[bytes]) -> None:
        """Read a batch of payloads; see `ResponseReader`."""
        read, bounds = self.draft.read, self.draft.bounds
        for payload in payloads:
            size = len(payload)
            if size > SMALL or payload.count(b"{") + payload.count(b"[") > bounds.depth:
                check_document(payload, bounds)
            try:
                event: Any = orjson.loads(payload)
            except orjson.JSONDecodeError:
                event = self._parse_leniently(payload)
            if event.__class__ is dict:
                self.read_event(event)
            elif event is not None:
                raise ProviderProtocolError(f"{self.draft.endpoint} sent an event that is not a JSON object")
            read(size)
            if self.done:
                return

    def feed_last(self, payloads: list[bytes]) -> None:
        """Read trailing data; see `ResponseReader`."""
        try:
            self.feed(payloads)
        except ProviderProtocolError:
            if not self.is_complete:
                raise make_truncation_error(self.draft.endpoint) from None

    def read_body(self, body: bytes) -> None:
        """Read a non-streaming response; see `ResponseReader`."""
        check_document(body, self.draft.bounds)
        try:
            answer: Any = orjson.loads(body)
        except orjson.JSONDecodeError:
            answer = self._parse_leniently(body)
        if not isinstance(answer, dict):
            raise ProviderProtocolError(
                f"{self.draft.endpoint} sent an answer that is not a JSON object: {self._quote(body)}"
            )
        self.read_answer(cast("dict[str, Any]", answer))
        self.draft.check_size()
        self.done = True

    def complete(self) -> None:
        """Push the final events; see `ResponseReader`."""
        if not self.is_complete:
            raise make_truncation_error(self.draft.endpoint)
        self.draft.complete(self.key)

    def make_error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        """Return the error for a response with an HTTP error status."""
        return error_from_response(status, headers, body, self.draft.endpoint)

    def _parse_leniently(self, data: bytes) -> Any:
        """Parse JSON with unpaired surrogates. Return None for `[DONE]` and empty payloads."""
        text = data.strip()
        if not text or text == b"[DONE]":
            return None
        check_document(text, self.draft.bounds)
        event = parse_lenient_json(text)
        if event is None:
            raise ProviderProtocolError(f"{self.draft.endpoint} sent an event that is not JSON: {self._quote(text)}")
        self.draft.text.expect_split_surrogates()
        return event

    def _quote(self, data: bytes) -> str:
        return repr(self.draft.endpoint.clean(data[:2000].decode("utf-8", "replace"))[:200])


def find_gate(request: ModelRequest) -> Gate:
    """Return the run's gate, or an open gate without a run.

    Readers should check `closed` after each read, not inside a push, and wait before pushing more events.
    """
    return request.ctx.info.scope.gate if request.ctx.run is not None else Gate()
