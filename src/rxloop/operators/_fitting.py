"""What the operators that make requests smaller have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from rxloop.context.counting import TokenEstimator
from rxloop.context.folding import Compressed, Folded, fold_async, unless_full
from rxloop.events import ContextCompressedEvent, ThinkingFailedEvent
from rxloop.messages import Message
from rxloop.protocols import Compressor, TokenCounter
from rxloop.requests import ModelRequest, Signal

_BELIEVED = 0.4
"""A report below this part of the estimate is not of the whole request."""
MOST_FAILURES = 3
"""After so many failures the rest of the run goes without."""


class Fitting:
    """Fits requests into the limit of a compressor.

    It holds what is known of models, and of a run no more than what its last request was estimated to take.

    Args:
        compressor: Makes the cuts.
        counter: Counts tokens; by default an estimator that learns from what the providers report.
        reserve: Tokens to keep free in each request.
    """

    def __init__(self, compressor: Compressor, counter: TokenCounter | None, reserve: int = 0) -> None:
        self._compressor = compressor
        self._counter = counter if counter is not None else TokenEstimator()
        self._reserve = reserve
        self._sent: WeakKeyDictionary[Any, dict[str | None, tuple[str, float]]] = WeakKeyDictionary()

    def counter(self, request: ModelRequest) -> TokenCounter:
        """The counter for the model of a request, with what the provider said of the last one."""
        if not isinstance(self._counter, TokenEstimator):
            return self._counter
        counter = self._counter.for_model(request.ctx.model.name)
        step, raw = self._sent.get(request.ctx.host, {}).pop(request.branch, ("", 0.0))
        measured = request.ctx.state.measured
        # Some report the uncached tokens alone: who believed that would never cut.
        if measured is not None and measured.step == step and measured.input_tokens > _BELIEVED * raw:
            counter.observe(raw, measured.input_tokens)
        return counter

    def skips(self, request: ModelRequest) -> bool:
        """Whether a request goes as it is: its answer is in the log, or there were too many failures."""
        return (
            request.ctx.host.recorded(request.step) is not None or request.ctx.state.thinking_failures >= MOST_FAILURES
        )

    def unless_full(self, request: ModelRequest, counter: TokenCounter) -> Compressed | None:
        """What is sent of the history while it fits; None when it has to be cut."""
        return unless_full(
            self._compressor,
            request.messages,
            counter,
            state=_state(request),
            overhead=self._overhead(request, counter),
            pressure=request.pressure,
        )

    async def fold(self, request: ModelRequest, counter: TokenCounter) -> Compressed:
        """What is sent of the history after a cut."""
        return await fold_async(
            self._compressor,
            request.messages,
            counter,
            state=_state(request),
            overhead=self._overhead(request, counter),
            pressure=request.pressure,
            pinned=frozenset(place for place, message in enumerate(request.messages) if message.pinned),
        )

    def smaller(self, request: ModelRequest, messages: Sequence[Message], counter: TokenCounter) -> ModelRequest:
        """The request with these messages, and with what it is estimated to take."""
        everything = [*request.system, *messages, *request.tail]
        if not isinstance(counter, TokenEstimator):
            return request.replace(messages=messages, estimate=counter.count(everything, request.tools))
        raw = counter.raw(everything, request.tools)
        self._sent.setdefault(request.ctx.host, {})[request.branch] = (request.step, raw)
        return request.replace(messages=messages, estimate=counter.predicted(raw))

    def _overhead(self, request: ModelRequest, counter: TokenCounter) -> int:
        layers = [*request.system, *request.tail]
        # What a model takes for every request, its preamble, counts here and not in the messages.
        count = counter.request if isinstance(counter, TokenEstimator) else counter.count
        return count(layers, request.tools) + self._reserve


def told(request: ModelRequest, found: Compressed, **fields: Any) -> list[Signal]:
    """What is to be said on the stream of a compression; nothing where nothing happened."""
    step, branch = request.step, request.branch
    if found.failed:
        return [ThinkingFailedEvent(reason=found.failed, tokens_before=found.tokens_before, step=step, branch=branch)]
    known = request.ctx.state.compressed
    stuck = found.budget_unmet and not (known is not None and known.budget_unmet)
    if not (found.cut or stuck):
        return []
    event = ContextCompressedEvent(
        step=step,
        branch=branch,
        tokens_before=found.tokens_before,
        tokens_after=found.tokens_after,
        folded=list(found.state.folded),
        summary=found.state.summary,
        reason="refused" if request.pressure else "overflow",
        dropped=found.dropped,
        shortened=found.shortened,
        stable_tokens=found.stable_tokens,
        budget_unmet=found.budget_unmet,
        problems=list(found.problems),
        view=found.state.dump(),
    )
    return [event.model_copy(update={"seconds": found.seconds, **fields})]


def _state(request: ModelRequest) -> Folded | None:
    compressed = request.ctx.state.compressed
    return Folded.load(compressed.view) if compressed is not None and compressed.view else None
