from __future__ import annotations

from typing import Any

from reactivex import Observable

from rxloop.operators.loop.answer_requests import answer_requests
from rxloop.pipeline.interfaces import Compressor, TokenCounter
from rxloop.pipeline.requests import ModelRequest, Operator, Signal
from rxloop.stream.sources import Push, from_task


def compress(
    compressor: Compressor,
    *,
    counter: TokenCounter | None = None,
    every: int | None = None,
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
        every: Also compress after this number of model calls, down to the compressor's `low` fraction of the current
            history. By default the history is only compressed when it is too large.
        timeout: Time limit of the compressor in seconds. After a timeout, the request is sent unchanged.

    Raises:
        ConfigurationError: An argument has the wrong type.
    """
    # Imported here because it is rarely needed.
    from rxloop.context.request_compressor import RequestCompressor

    requests = RequestCompressor(compressor, counter, every, timeout)

    def answer(request: ModelRequest) -> Observable[Signal] | ModelRequest:
        if requests.skips(request):
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
