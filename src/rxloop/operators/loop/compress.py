from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from reactivex import Observable

from rxloop.operators.loop.answer_requests import answer_requests
from rxloop.pipeline.interfaces import Compressor, Growth, TokenCounter, Trigger
from rxloop.pipeline.requests import ModelRequest, Operator, Signal
from rxloop.stream.sources import Push, from_task
from rxloop.support.misuse import check_prices

if TYPE_CHECKING:
    from rxloop.providers.catalog import Price

_UNKNOWN_PRICE = 0.1
"""Assumed price of a cached token, relative to the price of other input."""


def compress(
    compressor: Compressor,
    *,
    counter: TokenCounter | None = None,
    every: int | Trigger | None = None,
    timeout: float = 30.0,
) -> Operator[object]:
    """Compress the history of each `ModelRequest` that exceeds the token limit.

    ::

        in   --M--|    --M------|    --M--|
        out  --M--|    --(c,m)--|    --m--|

    M is a `ModelRequest`, c a `context-compressed` event, and m the request with fewer messages. Between two
    compressions, requests only grow at the end, so the provider's cache stays valid. The history in the log does not
    change: the event names the omitted messages, so that a resumed run sends the same requests. If the provider rejects
    a request as too long, `iterate` retries it with a higher `pressure`, and more messages are removed.

    The result of the compressor is checked and repaired. If it is invalid, larger than before or late, it is discarded
    and a `thinking-failed` event is published. After three failures, the run continues without compression.

    Args:
        compressor: For example `SlidingWindowCompressor(max_tokens=60_000)`.
        counter: Counts tokens. The default is an estimator that learns from the usage reported by providers.
        every: Also compress after this number of model calls, or when a trigger such as `op.adaptive()` decides so,
            down to the compressor's `low` fraction of the current history. By default the history is only compressed
            when it is too large.
        timeout: Time limit of the compressor in seconds. After a timeout, the request is sent unchanged.

    Raises:
        ConfigurationError: An argument has the wrong type.
    """
    # Imported here because it is rarely needed.
    from rxloop.context.request_compressor import RequestCompressor

    requests = RequestCompressor(compressor, counter, every, timeout)

    def answer(request: ModelRequest) -> Observable[Signal] | ModelRequest:
        if requests.is_recorded(request) or requests.has_failed(request):
            return request
        counter = requests.counter(request)
        compression = requests.compression(request, counter)
        if compression.fits:
            return requests.make_request(request, compression.unchanged().messages, counter)

        async def compress_request(push: Push[Any]) -> None:
            result = await requests.cut(request, compression)
            for event in requests.events(request, result):
                push(event)
            push(requests.make_request(request, result.messages, counter))

        return from_task(compress_request, request.ctx, name="rxloop-compress")

    operator = answer_requests(ModelRequest, answer)
    operator.__qualname__ = f"compress({compressor!r})"
    return operator


def adaptive(prices: Mapping[str, Price] | None = None) -> Trigger:
    """Return a trigger that compresses when this is cheaper than sending the new messages again and again.

    ::

        in   --M--|    --M------|
        out  --M--|    --(c,m)--|

    With `op.compress(..., every=op.adaptive())`, M is a `ModelRequest` that is sent unchanged, c a `context-compressed`
    event, and m a request that is compressed before it reaches the limit.

    After a compression, the provider bills the remaining messages once at the full price instead of the price of cached
    tokens. A compression is due when the messages added since the last one have cost as much as this cache miss, and
    more than half of the limit is used. This is the rule for renting or buying when the length of the run is unknown
    (A. R. Karlin et al., "Competitive Snoopy Caching", Algorithmica 3, 1988).

    The cost of a token depends on the prices of the model, and on the fraction of tokens that the provider has read
    from its cache, according to the reported usage. If the price of cached tokens is unknown, a tenth is used.

    Args:
        prices: Prices by model string, as in `op.cost`.

    Raises:
        ConfigurationError: `prices` is not a mapping.
    """
    check_prices(prices)
    # Imported here because importing the providers would slow down `import rxloop`.
    from rxloop.providers.catalog import find_price

    def is_due(since: Growth) -> bool:
        price = find_price(since.model, prices)
        cached, write = _UNKNOWN_PRICE, 1.0
        if price is not None and price.input:
            cached = 1.0 if price.cached is None else price.cached / price.input
            write = 1.0 if price.cache_write is None else price.cache_write / price.input
        again = since.cached * cached + (1 - since.cached) * write
        rent = since.tokens / 2 * since.calls * again
        return since.sent > since.limit / 2 and rent >= since.target * (write - again)

    return is_due
