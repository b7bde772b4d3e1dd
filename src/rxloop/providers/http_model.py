"""Provider for all HTTP endpoints with a codec."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypedDict, cast

from reactivex import Observable, abc
from typing_extensions import Unpack

from rxloop.errors import ConfigurationError, MediaRefused, ProviderError, RxloopError
from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.events import Event
from rxloop.providers import failures
from rxloop.providers.bounds import DEFAULT_BOUNDS, Bounds, Timeouts, Unreadable
from rxloop.providers.codecs import Codec, CodecFactory, find_gate
from rxloop.providers.codecs.draft import MessageDraft
from rxloop.providers.codecs.fields import find_output_limit
from rxloop.providers.codecs.text import TextRules
from rxloop.providers.codecs.tools import encode_in_parts
from rxloop.providers.credentials import KeySource, Sign, call_key_source, sign_request
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
"""URL prefix selecting the Responses API."""


class ModelOptions(TypedDict, total=False):
    """Options of all HTTP models."""

    base_url: str | None
    """Endpoint URL, defaulting to the preset's URL."""
    api_key: str | KeySource | None
    """Key, or a function that returns a key or token, also as an `async` function; None reads the environment when the
    model is called. The function is called for each request in the event loop, and should cache a valid token.
    """
    sign: Sign | None
    """Signing function used instead of a key, for example with Amazon Bedrock. Called with method, URL, headers and
    body, it returns additional headers. It can be `async`.
    """
    http_client: httpx.AsyncClient | None
    """Custom httpx client, which is used unchanged and never closed. It belongs to the event loop in which it was first
    used. Redirects are not followed, because the key would be sent along.
    """
    transport: Transport | None
    """HTTP library if there is no custom client: `"httpx"`, or `"aiohttp"` with the extra `rxloop[fast]`. None uses the
    environment variable `RXLOOP_TRANSPORT`, or `"httpx"`. aiohttp needs much less CPU time, but takes 0.15 s to load at
    the first call, and tools that mock or trace httpx do not see it.
    """
    timeout: Timeouts | None
    """Call time limits."""
    retry: Retry | None
    """Policy for repeating failed requests."""
    stream: bool
    """True if the answer is streamed, which is the default."""
    headers: Mapping[str, str] | None
    """Headers of every request."""
    thought_tags: bool | Sequence[str] | None
    """Extract thoughts from tags such as `<think>` and publish them separately; can be a list of tag names. None uses
    the preset.
    """
    keep_thoughts: bool
    """Leave thoughts in the text as well."""
    sanitize: bool | None
    """True to remove control tokens of chat templates, such as `<|im_end|>`, from the end of a message and from tool
    names. None uses the preset.
    """
    bounds: Bounds | None
    """Limits of an answer."""


_FLAGS = dict.fromkeys(["stream", "keep_thoughts", "sanitize"], bool)
_TYPES = {"base_url": str, "timeout": Timeouts, "retry": Retry, "headers": Mapping, "bounds": Bounds, **_FLAGS}


class HTTPModel:
    """HTTP-based model, created by functions such as `openai_chat` or `http_model`.

    Nothing is resolved or opened before the first call, so agents can be created without a key.
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
        # The name in events must not contain a password or key.
        address = display_url(base_url or "")
        protocol = RESPONSES_AT if preset.wire == "openai_responses" else ""
        self.name = f"{protocol}{address}#{model}" if preset.nameless else f"{preset.name}:{model}"
        """Model string, used in events."""
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
        self._base_endpoint: tuple[str, failures.Endpoint] | None = None
        """URL, and its endpoint."""
        self._made: tuple[failures.Endpoint, str | None, failures.Endpoint] | None = None
        """Cached endpoint including headers, with its original endpoint and key."""

    def __repr__(self) -> str:
        return f"<HTTPModel {self.name}>"

    @property
    def enforces_schema(self) -> bool:
        """True if the endpoint forces the model to follow the `response_schema` of every request."""
        return self._wire.enforces_schema

    def call(self, request: ModelRequest) -> Observable[Event]:
        """Return the answer to one request. The request is sent on subscription.

        ::

            out  --content-delta--content-delta--tool-call-delta--(usage, content-complete)|
        """
        # Imported lazily, since httpx would slow down importing rxloop.
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
        """Close the connections of the running event loop. The user's `http_client` stays open."""
        await self._pool.aclose()

    async def aclose_unused(self) -> None:
        """Close the unused connections of the running event loop."""
        await self._pool.aclose_unused()

    async def _send_once(self, request: ModelRequest, watch: Watch, push: Push) -> None:
        endpoint = self._endpoint()
        failure: RxloopError | None = None
        draft: MessageDraft | None = None
        try:
            # Creating a client can be slow, so this happens outside the watch.
            await self._pool.prepare()
            from rxloop.providers.transport.exchange import receive

            lease = self._pool.lease()
            with watch:
                if watch.late:
                    raise failures.make_timeout_error(endpoint, self._timeout.total or 0)
                endpoint = await self._with_headers(endpoint, request.settings.headers)
                async with lease as client:
                    draft = MessageDraft(push, request.step, endpoint, request.tools, self._rules, self._bounds)
                    draft.origin.is_streamed = self._stream
                    draft.find_limit = partial(self._find_limit, request)
                    response = await self._post(client, endpoint, request, draft)
                    reader = self._wire.make_reader(draft)
                    try:
                        await receive(response, endpoint, reader, self._stream, find_gate(request), watch, self._bounds)
                    except failures.MalformedCall as error:
                        draft.discard_calls(error.reason, TOOL_USE_FAILED)
                        draft.complete("openai_chat")
                self._pool.tidy()
        except Unreadable as error:
            failure = failures.make_unreadable_error(error, endpoint)
        except RxloopError as error:
            if isinstance(error, MediaRefused):
                error = self._check_refusal(error, request)
            failure = failures.remove_secrets(error, endpoint)
        if failure is not None:
            if draft is not None:
                draft.report_usage()
            # Raised here to avoid an implicit exception context.
            try:
                raise failure
            finally:
                del failure
        if watch.expired:
            raise failures.make_silence_error(endpoint, watch.seconds)
        if watch.late:
            raise failures.make_timeout_error(endpoint, self._timeout.total or 0)

    def _check_refusal(self, error: MediaRefused, request: ModelRequest) -> ProviderError:
        """Find the rejected parts, or return another error if the request has no media."""
        messages = (*request.system, *request.messages, *request.tail)
        if error.otherwise is not None and not any(message.media for message in messages):
            return error.otherwise
        error.otherwise = None
        if error.path:
            from rxloop.providers.error_messages import find_fingerprints

            error.media = find_fingerprints(self._wire.encode(request, lambda code, text: None), error.path)
        return error

    def _find_limit(self, request: ModelRequest) -> int | None:
        """Return the output limit of the request, including the codec's default."""
        return find_output_limit(self._wire.encode(request, lambda code, text: None))

    def _endpoint(self) -> failures.Endpoint:
        """Return the endpoint without request headers, cached by its URL."""
        base = self._base_url or self.preset.url()
        if self._base_endpoint is None or self._base_endpoint[0] != base:
            preset, url = self.preset, self._wire.url(base)
            name = self.model if preset.nameless else self.name
            endpoint = failures.Endpoint(name, url, preset.key_env, preset.hint, key_hint=preset.key_hint)
            self._base_endpoint = base, endpoint
        return self._base_endpoint[1]

    async def _with_headers(self, endpoint: failures.Endpoint, more: Mapping[str, str]) -> failures.Endpoint:
        """Return the endpoint with request headers, cached unless there are custom ones.

        Raises:
            ProviderError: The key is missing.
            ConfigurationError: A header contains invalid characters.
        """
        own = {**self._headers, **{name.lower(): value for name, value in more.items()}} if more else self._headers
        header = self.preset.key_header
        if self._sign is not None or header in own or "authorization" in own:
            key = None
        elif callable(source := self._api_key or self._key_of_preset()):
            key = await call_key_source(source, endpoint, self._timeout.key)
            header = "authorization" if self.preset.token_source else header
        elif source is None and self.preset.key_env is not None and not self.preset.key_optional:
            raise failures.make_missing_key_error(endpoint)
        else:
            key = source
        if not more and self._made is not None and self._made[0] is endpoint and self._made[1] == key:
            return self._made[2]
        headers = {
            "content-type": "application/json",
            "accept": "text/event-stream" if self._stream else "application/json",
            # Compressing small chunks would delay them without saving much.
            "accept-encoding": "identity",
            **self._wire.headers,
            **own,
        }
        if key is not None:
            headers[header] = f"Bearer {key}" if header == "authorization" else key
        failures.check_headers(headers, endpoint)
        complete = replace(endpoint, headers=headers)
        # Signatures differ for each request.
        if not more and self._sign is None:
            self._made = endpoint, key, complete
        return complete

    def _key_of_preset(self) -> str | KeySource | None:
        key = self.preset.key()
        if key is not None or self.preset.key_source is None:
            return key
        self._api_key = self.preset.key_source()
        return self._api_key

    async def _post(
        self, client: Client, endpoint: failures.Endpoint, request: ModelRequest, draft: MessageDraft
    ) -> Answer:
        from rxloop.providers.transport.exchange import send

        encode = partial(self._wire.encode, request, draft.notice)
        if self._sign is None:
            # Avoid keeping the body alive in a variable.
            return await send(client, endpoint, endpoint.headers, await encode_in_parts(encode))
        body = await encode_in_parts(encode)
        # Register the signature as a secret.
        signed = await sign_request(self._sign, endpoint, body, self._timeout.key)
        endpoint.headers.update(signed)
        failures.check_headers(signed, endpoint)
        return await send(client, endpoint, endpoint.headers, body)


def http_model(model: str | None, preset: Preset, wire: CodecFactory, **options: Unpack[ModelOptions]) -> HTTPModel:
    """Create a model using any codec.

    Args:
        model: Model name, defaulting to the preset's model.
        preset: Vendor settings.
        wire: Codec factory, usually the codec class.
        **options: Additional options; see `ModelOptions`.

    Raises:
        ConfigurationError: Invalid or missing model, URL or transport.
    """
    if unknown := options.keys() - ModelOptions.__annotations__.keys():
        # Imported lazily, because correct programs do not need it.
        from rxloop._names import explain_argument

        name = min(unknown)
        remedy = explain_argument("model", ["model"], name, ModelOptions.__annotations__)
        raise TypeError(f"model {model or preset.default_model!r} does not accept the option {name!r}; {remedy}")
    for name, kind in _TYPES.items():
        # The error does not contain the value, which may contain a key.
        value = options.get(name)
        if value is not None and not isinstance(value, kind):
            raise ConfigurationError(f"{name} must have the type {kind.__name__}, got {type(value).__qualname__}")
    for name, value in cast("Mapping[object, object]", options.get("headers") or {}).items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise ConfigurationError(f"headers must contain strings, got {name!r} of type {type(value).__qualname__}")
    key = options.get("api_key")
    if not (key is None or isinstance(key, str) or callable(key)):
        raise ConfigurationError(f"api_key must be a string or a function returning it, got {type(key).__qualname__}")
    option = options.get
    base_url, http_client, transport = option("base_url"), option("http_client"), option("transport")
    if http_client is not None and transport is not None:
        raise ConfigurationError("use either http_client= or transport=, not both")
    if not (model := model or preset.default_model):
        raise ConfigurationError(f"no default model for {base_url or preset.name!r}; pass a model name")
    stream = option("stream", True)
    return HTTPModel(
        model,
        preset,
        wire(model, preset, stream=stream),
        base_url=None if base_url is None else check_url(base_url),
        api_key=option("api_key"),
        sign=option("sign"),
        http_client=http_client,
        transport=transport,
        timeout=option("timeout") or Timeouts(),
        retry=option("retry") or Retry(),
        stream=stream,
        headers=option("headers") or {},
        rules=_text_rules(preset, option("thought_tags"), option("keep_thoughts", False), option("sanitize")),
        bounds=option("bounds") or DEFAULT_BOUNDS,
    )


def _is_list_of_strings(value: object) -> bool:
    return isinstance(value, Sequence) and all(isinstance(each, str) for each in cast("Sequence[object]", value))


def _text_rules(
    preset: Preset, thought_tags: bool | Sequence[str] | None, keep_thoughts: bool, sanitize: bool | None
) -> TextRules:
    if thought_tags is None:
        names = preset.thought_tags
    elif isinstance(thought_tags, bool):
        names = (preset.thought_tags or THOUGHT_TAGS) if thought_tags else ()
    else:
        names = (thought_tags,) if isinstance(thought_tags, str) else thought_tags
        if not _is_list_of_strings(names):
            raise ConfigurationError(f"thought_tags must be True, False or a list of tag names, got {thought_tags!r}")
    strip = preset.strip if sanitize is None else ()
    if sanitize:
        strip = preset.strip or TEMPLATE_TOKENS
    first = preset.thinks_first and bool(names)
    return TextRules(thought_tags=tuple(names), thinks_first=first, keep_thoughts=keep_thoughts, strip=strip)
