"""Interface of a codec: the request and response format of one vendor API.

Connections, retries, timeouts, bounds, keys and thoughts between tags are above it, the same for all codecs.
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
from rxloop.providers.codecs.fields import lenient_json
from rxloop.providers.codecs.provider_state import Piece as Piece
from rxloop.providers.codecs.provider_state import foreign_state as foreign_state
from rxloop.providers.codecs.provider_state import pieces_of as pieces_of
from rxloop.providers.error_responses import error_from_response
from rxloop.providers.failures import cut_short
from rxloop.stream.back_pressure import Gate

if TYPE_CHECKING:
    from rxloop.providers.vendors import Preset

Notice = Callable[[NoticeCode, str], None]
"""Tells the stream what of a request was left out."""


class Codec(Protocol):
    """One vendor's protocol, as one model is spoken to; holds nothing of a run."""

    @property
    def keeps_to_schema(self) -> bool:
        """Whether the vendor makes the model keep to the `response_schema` of every request."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers that every request has beside those of the key and the content."""
        ...

    def url(self, base: str) -> str:
        """The address of a request.

        Args:
            base: The address of the endpoint, without a slash at its end.
        """
        ...

    def encode(self, request: ModelRequest, notice: Notice) -> bytes:
        """The body of a request.

        Args:
            request: What the model is asked.
            notice: To be called for what the vendor cannot take, once for each message.

        Raises:
            BadRequest: The vendor cannot take it, and leaving it out would change what is asked.
        """
        ...

    def reader(self, draft: MessageDraft) -> ResponseReader:
        """What reads one answer."""
        ...


class CodecFactory(Protocol):
    """Makes the wire of one model: the class of a wire, as a rule."""

    def __call__(self, model: str, preset: Preset, *, stream: bool) -> Codec:
        """Make it.

        Args:
            model: The vendor's name of the model.
            preset: The vendor.
            stream: Whether answers are streamed.
        """
        ...


class ResponseReader(Protocol):
    """Reads one answer in the protocol of its endpoint, and pushes its events."""

    @property
    def arrays(self) -> bool:
        """Whether a stream may also come as one JSON array, of which each element is an event."""
        ...

    @property
    def done(self) -> bool:
        """Whether the endpoint said that the answer is over."""
        ...

    @property
    def ended(self) -> bool:
        """Whether what has been read is a whole answer."""
        ...

    def feed(self, payloads: list[bytes]) -> None:
        """Read the payloads of some events of a stream.

        Raises:
            ProviderError: The endpoint reports an error, or breaks the protocol.
            OutOfBounds: The answer is too large.
        """
        ...

    def last(self, payloads: list[bytes]) -> None:
        """Read what came after the last complete event of a stream; raises as `feed` does."""
        ...

    def whole(self, body: bytes) -> None:
        """Read an answer that was not streamed; raises as `feed` does."""
        ...

    def complete(self) -> None:
        """Push what ends the answer.

        Raises:
            ProviderError: The bytes ended before the answer did.
        """
        ...

    def refusal(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        """The error of an answer whose HTTP status is not one of success."""
        ...


class JSONReader:
    """A reader of answers whose events are JSON objects: a wire's own says what `event` and `answer` do.

    Both trust nothing: any value may be missing, or something else than it should be. When the answer is over, `event`
    calls `draft.finish`, and sets `done` where nothing more is to come.
    """

    arrays = False
    key = ""
    """Under which name the pieces of the message are kept for the way back; the wire's name."""

    def __init__(self, draft: MessageDraft) -> None:
        self.draft = draft
        self.done = False
        self._passed_over: set[str] = set()

    def event(self, event: dict[str, Any]) -> None:
        """Read one event of a stream."""
        raise NotImplementedError

    def answer(self, answer: dict[str, Any]) -> None:
        """Read an answer that was not streamed."""
        raise NotImplementedError

    @property
    def ended(self) -> bool:
        """Whether what has been read is a whole answer."""
        return self.done or self.draft.finish_reason is not None

    def pass_over(self, what: str) -> None:
        """Tell, once for each answer, that something came which is not known here."""
        if what not in self._passed_over and len(self._passed_over) < 20:
            self._passed_over.add(what)
            self.draft.notice("passed_over", f"{self.draft.where} sent {what}, which is not known here")

    def feed(self, payloads: list[bytes]) -> None:
        """Read the payloads of one batch; see `ResponseReader`."""
        read, bounds = self.draft.read, self.draft.bounds
        for payload in payloads:
            size = len(payload)
            if size > SMALL or payload.count(b"{") + payload.count(b"[") > bounds.depth:
                check_document(payload, bounds)
            try:
                event: Any = orjson.loads(payload)
            except orjson.JSONDecodeError:
                event = self._lenient(payload)
            if event.__class__ is dict:
                self.event(event)
            elif event is not None:
                raise ProviderProtocolError(f"{self.draft.where} sent an event that is not a JSON object")
            read(size)
            if self.done:
                return

    def last(self, payloads: list[bytes]) -> None:
        """Read what stood after the last complete event of a stream; see `ResponseReader`."""
        try:
            self.feed(payloads)
        except ProviderProtocolError:
            if not self.ended:
                raise cut_short(self.draft.where) from None

    def whole(self, body: bytes) -> None:
        """Read an answer that was not streamed; see `ResponseReader`."""
        check_document(body, self.draft.bounds)
        try:
            answer: Any = orjson.loads(body)
        except orjson.JSONDecodeError:
            answer = self._lenient(body)
        if not isinstance(answer, dict):
            raise ProviderProtocolError(
                f"{self.draft.where} sent an answer that is not a JSON object: {self._shown(body)}"
            )
        self.answer(cast("dict[str, Any]", answer))
        self.draft.check_size()
        self.done = True

    def complete(self) -> None:
        """Push what ends the answer; see `ResponseReader`."""
        if not self.ended:
            raise cut_short(self.draft.where)
        self.draft.complete(self.key)

    def refusal(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        """The error of an answer whose HTTP status is not one of success."""
        return error_from_response(status, headers, body, self.draft.where)

    def _lenient(self, data: bytes) -> Any:
        """What orjson refuses because of half a character in a text; `[DONE]` and nothing at all are passed over."""
        text = data.strip()
        if not text or text == b"[DONE]":
            return None
        check_document(text, self.draft.bounds)
        event = lenient_json(text)
        if event is None:
            raise ProviderProtocolError(f"{self.draft.where} sent an event that is not JSON: {self._shown(text)}")
        self.draft.text.mind_halves()
        return event

    def _shown(self, data: bytes) -> str:
        return repr(self.draft.where.clean(data[:2000].decode("utf-8", "replace"))[:200])


def find_gate(request: ModelRequest) -> Gate:
    """The gate of a request's run; one that is always open if there is no run.

    Whoever reads an answer looks at `closed` after each read, never inside a push, and waits before it hands on more.
    """
    return request.ctx.scope.gate if request.ctx.run is not None else Gate()
