"""Provider for any HTTP endpoint whose API a codec implements."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypedDict

import orjson
from reactivex import Observable, abc
from typing_extensions import Unpack

from rxloop.errors import ConfigurationError, MediaRefused, ProviderError, RxloopError
from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.events import Event
from rxloop.providers import failures
from rxloop.providers.bounds import DEFAULT_BOUNDS, Bounds, Timeouts, Unreadable
from rxloop.providers.codecs import Codec, CodecFactory, find_gate
from rxloop.providers.codecs.draft import MessageDraft
from rxloop.providers.codecs.fields import object_of
from rxloop.providers.codecs.text import TextRules
from rxloop.providers.credentials import KeySource, Sign, called_key, signature
from rxloop.providers.error_responses import TOOL_USE_FAILED
from rxloop.providers.retry import Attempts, Retry
from rxloop.providers.transport import ClientPool, Transport
from rxloop.providers.vendors import TEMPLATE_TOKENS, THOUGHT_TAGS, Preset
from rxloop.stream.rx import ColdObservable
from rxloop.stream.sources import from_task
from rxloop.support.redaction import check_url, display_url

if TYPE_CHECKING:
    import httpx

    from rxloop.providers.transport.exchange import Answer, Client
    from rxloop.providers.transport.progress_watch import Watch

Push = Callable[[Event], None]

RESPONSES_AT = "openai_responses:"
"""What stands before an address in the model string of an endpoint that speaks Responses."""

_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


class ModelOptions(TypedDict, total=False):
    """What can be said of a model behind HTTP, whatever its protocol."""

    base_url: str | None
    """The address of the endpoint; None takes that of the preset."""
    api_key: str | KeySource | None
    """The key, or a function that gives it or a token, also an `async` one; None takes it from the environment when the
    model is called. The function is called for each request, on the event loop, and keeps a token while it holds."""
    sign: Sign | None
    """A function that signs each request, as Amazon's Bedrock wants it, in place of a key: it takes the method, the
    address, the headers and the body, and gives the headers to add, also as an `async` function."""
    http_client: httpx.AsyncClient | None
    """Your own httpx client. It is used as it is and never closed; it belongs to the event loop that it was first used
    in. Redirects are not followed, since the key would go along."""
    transport: Transport | None
    """What the requests go over where no client is given: `"httpx"`, or with the extra `rxloop[fast]` `"aiohttp"`. None
    goes by the environment variable `RXLOOP_TRANSPORT`, and is `"httpx"` without it. aiohttp makes tokens and calls
    cheaper by far, but takes 0.15 s to load at the first call, and is not seen by what replaces or watches that
    of httpx."""
    timeout: Timeouts | None
    """How long a call may take."""
    retry: Retry | None
    """When a request that failed is sent again."""
    stream: bool
    """Whether the answer is streamed, as it is by default."""
    headers: Mapping[str, str] | None
    """Headers that go with every request."""
    thought_tags: bool | Sequence[str] | None
    """Whether thoughts that the model writes between tags, such as `<think>`, are taken out of its text and put on the
    stream as thoughts; or the names of the tags. None goes by the preset."""
    keep_thoughts: bool
    """Leave the tags and what is in them in the text as well."""
    sanitize: bool | None
    """Whether control tokens of chat templates, such as `<|im_end|>`, are taken off the end of a message and out of the
    names of tools. None goes by the preset."""
    bounds: Bounds | None
    """What an answer may be at most: bytes, characters, calls."""


class HTTPModel:
    """A model behind HTTP; made by `openai_chat` and its like, or by `http_model`.

    Nothing is looked up or opened before the first call, so that an agent can be made before a key is there.
    """

    def __init__(
        self,
        model: str,
        preset: Preset,
        wire: Codec,
        *,
        base_url: str | None,
        api_key: str | KeySource | None,
        sign: Sign | None,
        http_client: httpx.AsyncClient | None,
        transport: Transport | None,
        timeout: Timeouts,
        retry: Retry,
        stream: bool,
        headers: Mapping[str, str],
        rules: TextRules,
        bounds: Bounds,
    ) -> None:
        self.model = model
        self.preset = preset
        self._base_url = base_url
        # The name on the stream has no password and no key in it.
        self._address = display_url(base_url or "")
        self._api_key = api_key
        self._sign = sign
        self._timeout = timeout
        self._retry = retry
        self._stream = stream
        self._rules = rules
        self._bounds = bounds
        silence = timeout.idle if stream else timeout.answer
        self._silence = timeout.event if timeout.event is not None or silence is None else 10 * silence
        self._headers = {name.lower(): value for name, value in {**preset.headers, **headers}.items()}
        self._wire = wire
        self._pool = ClientPool(timeout, stream, http_client, transport, bounds)
        self._where: tuple[str, failures.Endpoint] | None = None
        """The address, and the endpoint that it makes."""
        self._made: tuple[failures.Endpoint, str | None, failures.Endpoint] | None = None
        """An endpoint, its key, and what these make with the headers."""

    def __repr__(self) -> str:
        return f"<HTTPModel {self.name}>"

    @property
    def name(self) -> str:
        """What the model is called on the stream: the model string that makes it."""
        if not self.preset.nameless:
            return f"{self.preset.name}:{self.model}"
        protocol = RESPONSES_AT if self.preset.wire == "openai_responses" else ""
        return f"{protocol}{self._address}#{self.model}"

    @property
    def keeps_to_schema(self) -> bool:
        """Whether the endpoint makes the model keep to the `response_schema` of every request."""
        return self._wire.keeps_to_schema

    def call(self, request: ModelRequest) -> Observable[Event]:
        """The answer to one request; nothing is sent before it is subscribed.

        ::

            out  --content-delta--content-delta--tool-call-delta--(usage, content-complete)|
        """
        # Imported at the first call: httpx would be a third of the time that importing rxloop takes.
        from rxloop.providers.transport.progress_watch import Watch

        def subscribe(
            observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            total = self._timeout.total
            until = math.inf if total is None else asyncio.get_running_loop().time() + total
            watch = Watch(self._silence, self._pool.shielded, until)
            work = partial(self._send_once, request, watch)
            answer = from_task(work, request.ctx, name=f"rxloop-model-{request.step}", stop=watch.cancel)
            return Attempts(self._retry, answer, observer, scheduler, until).begin()

        return ColdObservable(subscribe)

    async def aclose(self) -> None:
        """Close the connections of the running event loop; an `http_client` of the user's stays open."""
        await self._pool.aclose()

    async def aclose_unused(self) -> None:
        """Close the connections of the running event loop that no call uses at the moment."""
        await self._pool.aclose_unused()

    async def _send_once(self, request: ModelRequest, watch: Watch, push: Push) -> None:
        from rxloop.providers.transport.exchange import receive

        where = self._endpoint()
        failure: RxloopError | None = None
        draft: MessageDraft | None = None
        try:
            # Watched from here on: making the first client may take a while, since its library is loaded then.
            lease = self._pool.lease()
            with watch:
                if watch.late:
                    raise failures.out_of_time(where, self._timeout.total or 0)
                where = await self._with_headers(where, request.settings.headers)
                async with lease as client:
                    draft = MessageDraft(push, request.step, where, request.tools, self._rules, self._bounds)
                    draft.find_limit = partial(self._find_limit, request)
                    response = await self._post(client, where, request, draft)
                    reader = self._wire.reader(draft)
                    try:
                        await receive(response, where, reader, self._stream, find_gate(request), watch, self._bounds)
                    except failures.MalformedCall as error:
                        draft.lose_calls(error.reason, TOOL_USE_FAILED)
                        draft.complete("openai_chat")
                self._pool.tidy()
        except Unreadable as error:
            failure = failures.unreadable(error, where)
        except RxloopError as error:
            if isinstance(error, MediaRefused):
                error = self._check_refusal(error, request)
            failure = failures.without_secrets(error, where)
        if failure is not None:
            if draft is not None:
                draft.report_usage()
            # Raised out here: an error that is raised while another one is handled keeps that one.
            try:
                raise failure
            finally:
                del failure
        if watch.expired:
            raise failures.no_event(where, watch.seconds)
        if watch.late:
            raise failures.out_of_time(where, self._timeout.total or 0)

    def _check_refusal(self, error: MediaRefused, request: ModelRequest) -> ProviderError:
        """Find the parts that the vendor named. Return another error if the request has no media."""
        messages = (*request.system, *request.messages, *request.tail)
        if error.otherwise is not None and not any(message.media for message in messages):
            return error.otherwise
        error.otherwise = None
        if error.path:
            from rxloop.providers.error_messages import find_fingerprints

            error.media = find_fingerprints(self._wire.encode(request, lambda code, text: None), error.path)
        return error

    def _find_limit(self, request: ModelRequest) -> int | None:
        """Return the output limit that the request set, also where it is a default of its wire."""
        return _output_limit(self._wire.encode(request, lambda code, text: None))

    def _endpoint(self) -> failures.Endpoint:
        """The endpoint without the headers of a request; made once for each address."""
        base = self._base_url or self.preset.url()
        if self._where is None or self._where[0] != base:
            name = self.model if self.preset.nameless else self.name
            preset = self.preset
            where = failures.Endpoint(name, self._wire.url(base), preset.key_env, preset.hint, key_hint=preset.key_hint)
            self._where = base, where
        return self._where[1]

    async def _with_headers(self, where: failures.Endpoint, more: Mapping[str, str]) -> failures.Endpoint:
        """The endpoint with the headers of a request; made once for all requests of a key that have none of their own.

        Raises:
            ProviderError: There is no key.
            ConfigurationError: The key, or a header, has a character that no header takes.
        """
        own = {**self._headers, **{name.lower(): value for name, value in more.items()}} if more else self._headers
        header = self.preset.key_header
        if self._sign is not None or header in own or "authorization" in own:
            key = None
        elif callable(source := self._api_key or self._key_of_preset()):
            key = await called_key(source, where, self._timeout.key)
            header = "authorization" if self.preset.token_source else header
        elif source is None and self.preset.key_env is not None and not self.preset.key_optional:
            raise failures.missing_key(where)
        else:
            key = source
        if not more and self._made is not None and self._made[0] is where and self._made[1] == key:
            return self._made[2]
        headers = {
            "content-type": "application/json",
            "accept": "text/event-stream" if self._stream else "application/json",
            # Compression of small chunks costs more than it saves, and holds them back.
            "accept-encoding": "identity",
            **self._wire.headers,
            **own,
        }
        if key is not None:
            headers[header] = f"Bearer {key}" if header == "authorization" else key
        failures.check_headers(headers, where)
        made = replace(where, headers=headers)
        # What is signed is another one each time.
        if not more and self._sign is None:
            self._made = where, key, made
        return made

    def _key_of_preset(self) -> str | KeySource | None:
        key = self.preset.key()
        if key is not None or self.preset.key_source is None:
            return key
        self._api_key = self.preset.key_source()
        return self._api_key

    async def _post(
        self, client: Client, where: failures.Endpoint, request: ModelRequest, draft: MessageDraft
    ) -> Answer:
        from rxloop.providers.transport.exchange import send

        if self._sign is None:
            # A variable for the body would keep it until the answer begins.
            return await send(client, where, where.headers, self._wire.encode(request, draft.notice))
        body = self._wire.encode(request, draft.notice)
        # Into the headers of the endpoint, so that they are known for secrets.
        signed = await signature(self._sign, where, body, self._timeout.key)
        where.headers.update(signed)
        failures.check_headers(signed, where)
        return await send(client, where, where.headers, body)


def _output_limit(body: bytes) -> int | None:
    """Return the output limit in the body of a request, or None if the body has none."""
    try:
        fields = object_of(orjson.loads(body))
    except orjson.JSONDecodeError:
        return None
    limits = [fields.get(name) for name in _LIMITS]
    limits.append(object_of(fields.get("generationConfig")).get("maxOutputTokens"))
    return next((limit for limit in limits if type(limit) is int), None)


def http_model(model: str | None, preset: Preset, wire: CodecFactory, **options: Unpack[ModelOptions]) -> HTTPModel:
    """Make a model at an endpoint that speaks any protocol.

    Args:
        model: The vendor's name of the model; None takes the default of the preset.
        preset: The vendor.
        wire: Makes what speaks the protocol: the class of a `Codec`.
        **options: What else there is to say; see `ModelOptions`.

    Raises:
        ConfigurationError: No model is named, the address is not one, or the transport is unknown.
    """
    given = options.get
    base_url, http_client, transport = given("base_url"), given("http_client"), given("transport")
    if http_client is not None and transport is not None:
        raise ConfigurationError("http_client= brings its own transport: pass one of them, http_client= or transport=")
    model = model or preset.default_model
    if not model:
        raise ConfigurationError(f"the endpoint {base_url or preset.name!r} has no default model: name one")
    stream = given("stream", True)
    return HTTPModel(
        model,
        preset,
        wire(model, preset, stream=stream),
        base_url=None if base_url is None else check_url(base_url),
        api_key=given("api_key"),
        sign=given("sign"),
        http_client=http_client,
        transport=transport,
        timeout=given("timeout") or Timeouts(),
        retry=given("retry") or Retry(),
        stream=stream,
        headers=given("headers") or {},
        rules=_text_rules(preset, given("thought_tags"), given("keep_thoughts", False), given("sanitize")),
        bounds=given("bounds") or DEFAULT_BOUNDS,
    )


def _text_rules(
    preset: Preset, thought_tags: bool | Sequence[str] | None, keep_thoughts: bool, sanitize: bool | None
) -> TextRules:
    if thought_tags is None:
        names = preset.thought_tags
    elif isinstance(thought_tags, bool):
        names = (preset.thought_tags or THOUGHT_TAGS) if thought_tags else ()
    else:
        names = (thought_tags,) if isinstance(thought_tags, str) else tuple(thought_tags)
    if sanitize is None:
        strip = preset.strip
    else:
        strip = (preset.strip or TEMPLATE_TOKENS) if sanitize else ()
    first = preset.thinks_first and bool(names)
    return TextRules(thought_tags=names, thinks_first=first, keep_thoughts=keep_thoughts, strip=strip)
