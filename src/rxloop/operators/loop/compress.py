from __future__ import annotations

from typing import Any

from reactivex import Observable

from rxloop.operators.loop.answering import answering
from rxloop.pipeline.interfaces import Compressor, TokenCounter
from rxloop.pipeline.requests import ModelRequest, Operator, Signal
from rxloop.stream.sources import Push, emit, from_task


def compress(
    compressor: Compressor,
    *,
    counter: TokenCounter | None = None,
    every: int | None = None,
    timeout: float = 30.0,
) -> Operator[object]:
    """Make each `ModelRequest` fit: cut the history once it overflows.

    ::

        in   --M--|    --M------|    --M--|
        out  --M--|    --(c,m)--|    --m--|

    M `ModelRequest`, c `context-compressed`, m the same request with fewer messages. Between two cuts a request only
    grows at its end, so that the provider's cache holds. The history in the log stays as it is: the event names what is
    left out, and a run that is resumed sends the same. When the provider says that a request is too long, `iterate`
    sends it again with more `pressure`, and it is cut further.

    The result of the compressor is checked and repaired before it leaves. One that is not a history, is larger than
    before, or takes too long is thrown away, and a `thinking-failed` event says so. After three failures the rest of
    the run goes without.

    Args:
        compressor: Makes the cuts, for example `SlidingWindowCompressor(max_tokens=60_000)`.
        counter: Counts tokens; by default an estimator that learns from what the providers report.
        every: Also cut after this many model calls, even if there is room: to the compressor's `low` part of what the
            history has by then. In between a request only grows at its end, as always.
        timeout: Seconds that the compressor may take; then the request goes as it was.

    Raises:
        ConfigurationError: An argument is of a wrong kind.
    """
    # Imported here, because most programs do not need it.
    from rxloop.context.request_compressor import RequestCutter

    cutter = RequestCutter(compressor, counter, every, timeout)

    def answer(request: ModelRequest) -> Observable[Signal]:
        if cutter.skips(request):
            return emit(request)
        known = cutter.counter(request)
        compression = cutter.compression(request, known)
        if compression.fits:
            return emit(cutter.smaller(request, compression.unchanged().messages, known))

        async def cut(push: Push[Any]) -> None:
            made = await cutter.cut(request, compression)
            for event in cutter.events(request, made):
                push(event)
            push(cutter.smaller(request, made.messages, known))

        return from_task(cut, request.ctx, name="rxloop-compress")

    operator = answering(ModelRequest, answer)
    operator.__qualname__ = f"compress({compressor!r})"
    return operator
