from __future__ import annotations

from typing import Any, cast

from rxloop.errors import ConfigurationError
from rxloop.operators.loop.answering import answering
from rxloop.pipeline.requests import ModelRequest, Operator
from rxloop.pipeline.seams import Compressor, Provider, TokenCounter


def thinking_phase(
    compressor: Compressor,
    *,
    thinking_model: Provider | str | None = None,
    note: bool = True,
    counter: TokenCounter | None = None,
    every: int | None = None,
    summary_tokens: int = 400,
    timeout: float = 30.0,
) -> Operator:
    """Think before each model call: make the request fit, and tell the model where it is.

    ::

        in   --M---|     --M----------|     --M----|
        out  --Mn--|     --..(c,mn)---|     --m'n--|

    M `ModelRequest`, c `context-compressed`, m the same request with fewer messages and one summary of the others, n
    the note at its end, which says how far the run is, by rule and in a few lines. Neither the summary nor the note
    enters the history; each request has one of each at most, and what they take does not grow with the run.

    By default the summary is made by rule: the facts of what was left out. With a `thinking_model` that model writes it
    before them, in fixed sections, from its last summary and what has left the view since. Whatever goes wrong with
    that, a failure, a timeout, an answer that is empty or no smaller than what it stands for, the request goes with the
    summary by rule; `thinking-failed` says why, and after three failures the rest of the run goes without. The model is
    not asked again when the provider has refused a request as too long. What it uses is told by the
    `context-compressed` event and is no part of the run's usage.

    Use it in the place of `compress`; it does what that does. It is off unless it stands in the loop.

    Args:
        compressor: Makes the cuts, such as `SlidingWindowCompressor(max_tokens=60_000)`.
        thinking_model: Writes the summaries; a small and cheap model will do. A provider, or a model string such as
            `zai:glm-4.5-air`, whose provider the agent opens and closes.
        note: Whether to tell the model where it is.
        counter: Counts tokens; by default an estimator that learns from what the providers report.
        every: Cut after so many model calls too, though there is room; see `compress`.
        summary_tokens: What the thinking model's summary may take.
        timeout: Seconds that the compressor may take, and then the thinking model.

    Raises:
        ConfigurationError: An argument is of a wrong kind, or the model string names nothing.
    """
    if not isinstance(cast("Any", summary_tokens), int) or summary_tokens < 1:
        raise ConfigurationError(f"summary_tokens={summary_tokens!r} is not a number of tokens: give 1 or more")
    _check_model(thinking_model)
    # Imported when there is a phase: most programs need neither it nor what it is made of.
    from rxloop.operators.loop._cutting import RequestCutter
    from rxloop.operators.loop._summarising import SummarisingPhase

    cutter = RequestCutter(compressor, counter, every, timeout, summary_tokens if thinking_model is not None else 0)
    phase = SummarisingPhase(cutter, thinking_model, note, summary_tokens, timeout)
    operator = answering(ModelRequest, phase.answer)
    operator.__qualname__ = f"thinking_phase({compressor!r})"
    return operator


def _check_model(model: object) -> None:
    if isinstance(model, str):
        # Imported here: most programs name no model in an operator.
        from rxloop.providers.models import resolve_model

        resolve_model(model)
    elif model is not None and (isinstance(model, type) or not isinstance(model, Provider)):
        raise ConfigurationError(
            f"thinking_model={model!r} is not a model: give a provider, or a model string such as 'zai:glm-4.5-air'"
        )
