"""Request compression and related events."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from rxloop.context.compression import Compression, CompressionResult, CompressionState
from rxloop.context.token_estimator import TokenEstimator
from rxloop.errors import ConfigurationError
from rxloop.pipeline.host import get_host
from rxloop.pipeline.interfaces import Compressor, Growth, TokenCounter, Trigger
from rxloop.pipeline.requests import ModelRequest, Signal
from rxloop.protocol.events import ContextCompressedEvent, Event, ThinkingFailedEvent
from rxloop.protocol.messages import Message
from rxloop.support.misuse import check_argument, check_positive, is_number

log = logging.getLogger("rxloop")

_MIN_CREDIBLE = 0.4
"""Fraction of the estimate below which a reported usage is ignored, because it cannot cover the whole request."""

MOST_FAILURES = 3
"""Number of failures after which compression is disabled for the rest of the run."""


class RequestCompressor:
    """Compresses requests to the limit of a compressor.

    It keeps what it learns about models, but of each run only the estimate of the last request and the compression
    state.

    Args:
        compressor: Selects the messages to keep.
        counter: Counts tokens. The default is an estimator that learns from the usage reported by providers.
        every: Also compress after this number of model calls, or when a trigger decides so.
        timeout: Time limit of the compressor in seconds.
        reserve: Tokens to keep free in each request.

    Raises:
        ConfigurationError: An argument has the wrong type.
    """

    def __init__(
        self,
        compressor: Compressor,
        counter: TokenCounter | None,
        every: int | Trigger | None,
        timeout: float,
        reserve: int = 0,
    ) -> None:
        _check(compressor, counter, every, timeout)
        self._compressor = compressor
        self._counter = counter if counter is not None else TokenEstimator()
        self._every = every
        self._timeout = timeout
        self._reserve = reserve
        self._sent: WeakKeyDictionary[Any, dict[str | None, tuple[str, float]]] = WeakKeyDictionary()
        self._warned: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
        self._read: WeakKeyDictionary[Any, dict[str | None, tuple[Event, CompressionState]]] = WeakKeyDictionary()

    def counter(self, request: ModelRequest) -> TokenCounter:
        """Return the counter for the model of a request, corrected by the usage of the previous request."""
        if not isinstance(self._counter, TokenEstimator):
            return self._counter
        counter = self._counter.for_model(request.ctx.model.name)
        step, raw = self._sent.get(get_host(request.ctx), {}).pop(request.branch, ("", 0.0))
        measured = request.ctx.state.measured
        # Some providers only report uncached tokens. Believing them would disable compression.
        if measured is not None and measured.step == step and measured.input_tokens > _MIN_CREDIBLE * raw:
            counter.observe(raw, measured.input_tokens)
        return counter

    def is_recorded(self, request: ModelRequest) -> bool:
        """Return True if the request's answer is in the log."""
        return request.step in get_host(request.ctx).earlier.messages

    def has_failed(self, request: ModelRequest) -> bool:
        """Return True if compression has failed too often in this run."""
        return request.ctx.state.compression_failures >= MOST_FAILURES

    def load_state(self, request: ModelRequest) -> CompressionState | None:
        """Load the state of the last compression. Repeated calls return the same object until the next compression."""
        event = request.ctx.state.compressed
        if event is None or not event.view:
            return None
        read = self._read.setdefault(get_host(request.ctx), {})
        previous = read.get(request.branch)
        if previous is None or previous[0] is not event:
            previous = read[request.branch] = event, CompressionState.load(event.view)
        return previous[1]

    def compression(self, request: ModelRequest, counter: TokenCounter) -> Compression:
        """Prepare the compression of a request's history."""
        state = self.load_state(request)
        compression = Compression(
            self._compressor,
            request.messages,
            counter,
            state=state,
            overhead=self._overhead(request, counter),
            pressure=request.pressure,
            every=self._every if isinstance(self._every, int) else None,
        )
        if self._every is not None and not isinstance(self._every, int):
            compression.require(measure(compression, request, 0 if state is None else state.upto), self._every)
        return compression

    async def cut(self, request: ModelRequest, compression: Compression) -> CompressionResult:
        """Compress a request's history."""
        return await compression.result(pinned=find_pinned(request), seconds=self._timeout)

    def make_request(self, request: ModelRequest, messages: Sequence[Message], counter: TokenCounter) -> ModelRequest:
        """Return the request with the given messages and an estimate of its tokens."""
        layers = [*request.system, *request.tail]
        if not isinstance(counter, TokenEstimator):
            estimate = counter.count([*layers, *messages], request.tools)
            return request.replace(messages=messages, estimate=estimate)
        raw = counter.raw(layers, request.tools) + counter.raw(messages)
        self._sent.setdefault(get_host(request.ctx), {})[request.branch] = (request.step, raw)
        return request.replace(messages=messages, estimate=counter.predict(raw))

    def _overhead(self, request: ModelRequest, counter: TokenCounter) -> int:
        layers = [*request.system, *request.tail]
        # A model's preamble counts here instead of in the messages.
        count = counter.request if isinstance(counter, TokenEstimator) else counter.count
        return count(layers, request.tools) + self._reserve

    def events(self, request: ModelRequest, result: CompressionResult, **fields: Any) -> list[Signal]:
        """Create events for a compression result, or return an empty list for unchanged results."""
        failed = result.failed
        if result.problems and not result.cut:
            failed = f"nothing of the result was left after its repair: {'; '.join(result.problems)}"
        if failed or result.problems:
            self._warn(request, failed or "; ".join(result.problems))
        if failed:
            step, branch = request.step, request.branch
            return [ThinkingFailedEvent(reason=failed, tokens_before=result.tokens_before, step=step, branch=branch)]
        return _make_events(request, result, **fields)

    def _warn(self, request: ModelRequest, message: str) -> None:
        """Log a warning, at most once per run."""
        if get_host(request.ctx) not in self._warned:
            self._warned[get_host(request.ctx)] = True
            text = "Run %s: %r returned an invalid result, which was repaired or discarded: %s"
            log.warning(text, request.ctx.task_id, self._compressor, message)


def _make_events(request: ModelRequest, result: CompressionResult, **fields: Any) -> list[Signal]:
    previous = request.ctx.state.compressed
    stuck = result.budget_unmet and not (previous is not None and previous.budget_unmet)
    if not (result.cut or stuck):
        return []
    event = ContextCompressedEvent(
        step=request.step,
        branch=request.branch,
        tokens_before=result.tokens_before,
        tokens_after=result.tokens_after,
        folded=list(result.state.omitted),
        summary=result.state.summary,
        reason="refused" if request.pressure else result.reason,
        dropped=result.dropped,
        shortened=result.shortened,
        stable_tokens=result.stable_tokens,
        budget_unmet=result.budget_unmet,
        problems=list(result.problems),
        view=result.state.dump(),
    )
    return [event.model_copy(update={"seconds": result.seconds, **fields})]


def measure(compression: Compression, request: ModelRequest, since: int) -> Growth:
    """Return the growth of a request since an index in the history."""
    return compression.measure(since, request.ctx.state.usage, request.ctx.model.name)


def find_pinned(request: ModelRequest) -> frozenset[int]:
    """Return indices of required messages: pinned messages and the run's question."""
    initial = request.ctx.state.initial_messages
    question = next((message for message in reversed(initial) if message.role == "user"), None)
    return frozenset(index for index, message in enumerate(request.messages) if message.pinned or (message is question))


def _check(compressor: Any, counter: Any, every: Any, timeout: Any) -> None:
    """Validate constructor arguments.

    Raises:
        ConfigurationError: Invalid argument.
    """
    is_valid = callable(getattr(compressor, "compress", None)) and is_number(getattr(compressor, "max_tokens", None))
    example = "a compressor such as SlidingWindowCompressor(max_tokens=60_000)"
    expected = f"{example}, or an object with max_tokens and compress(messages, budget)"
    check_argument("compressor", compressor, is_valid, expected)
    is_valid = counter is None or callable(getattr(counter, "count", None))
    check_argument("counter", counter, is_valid, "an object with a method count(messages, tools)")
    if every is not None:
        check_trigger("every", every)
    check_positive(timeout=timeout)


def check_trigger(name: str, trigger: object) -> None:
    """Validate a number of model calls or a trigger.

    Raises:
        ConfigurationError: The value is neither a positive integer nor a sync function.
    """
    is_number = isinstance(trigger, int) and not isinstance(trigger, bool) and trigger >= 1
    # The result of an async function would always be true.
    if not is_number and (not callable(trigger) or inspect.iscoroutinefunction(trigger)):
        raise ConfigurationError(f"{name} must be an integer of at least 1, or a function, got {trigger!r}")
