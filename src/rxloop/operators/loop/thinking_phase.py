from __future__ import annotations

from typing import Any, cast

from rxloop.errors import ConfigurationError
from rxloop.operators.loop.answering import answering
from rxloop.pipeline.interfaces import Compressor, Provider, TokenCounter
from rxloop.pipeline.requests import ModelRequest, Operator


def thinking_phase(
    compressor: Compressor,
    *,
    thinking_model: Provider | str | None = None,
    note: bool = True,
    counter: TokenCounter | None = None,
    every: int | None = None,
    summary_tokens: int = 400,
    timeout: float = 30.0,
) -> Operator[object]:
    """Think before each model call: make the request fit, and note for the model how far the run is.

    ::

        in   --M---|     --M----------|     --M----|
        out  --Mn--|     --..(c,mn)---|     --m'n--|

    M `ModelRequest`, c `context-compressed`, m the same request with fewer messages and one summary of the others, n
    the note at its end, which says how far the run is, by rule and in a few lines. Neither the summary nor the note
    enters the history; each request has one of each at most, and what they take does not grow with the run.

    By default the summary is made by rule: the facts of what was left out. A `thinking_model` writes another one before
    them, in fixed sections, from its last summary and what has left the view since. If that fails, takes too long, or
    gives a summary that is empty or not smaller than what it stands for, the request goes with the summary by rule.
    `thinking-failed` says why, and after three failures the rest of the run goes without. The model is not asked again
    when the provider has refused a request as too long. The `context-compressed` event has the tokens that it used,
    which do not count in the usage of the run.

    Use it in place of `compress`, whose work it does as well.

    Args:
        compressor: Makes the cuts, for example `SlidingWindowCompressor(max_tokens=60_000)`.
        thinking_model: Writes the summaries; a small and cheap model will do. A provider, or a model string such as
            `zai:glm-4.5-air`, whose provider the agent opens and closes.
        note: Whether to add the note.
        counter: Counts tokens; by default an estimator that learns from what the providers report.
        every: Also cut after this many model calls, even if there is room; see `compress`.
        summary_tokens: The most tokens that the summary of the thinking model may take.
        timeout: Seconds that the compressor may take, and then the thinking model.

    Raises:
        ConfigurationError: An argument is of a wrong kind, or the model string names nothing.
    """
    if not isinstance(cast("Any", summary_tokens), int) or summary_tokens < 1:
        raise ConfigurationError(f"summary_tokens={summary_tokens!r} is not a number of tokens: give 1 or more")
    _check_model(thinking_model)
    # Imported here, because most programs do not need it.
    from rxloop.context.request_compressor import RequestCutter
    from rxloop.context.summaries import SummarisingPhase

    cutter = RequestCutter(compressor, counter, every, timeout, summary_tokens if thinking_model is not None else 0)
    phase = SummarisingPhase(cutter, thinking_model, note, summary_tokens, timeout)
    operator = answering(ModelRequest, phase.answer)
    operator.__qualname__ = f"thinking_phase({compressor!r})"
    return operator


def _check_model(model: object) -> None:
    if isinstance(model, str):
        # Imported here, because most programs name no model in an operator.
        from rxloop.providers.factories import resolve_model

        resolve_model(model)
    elif model is not None and (isinstance(model, type) or not isinstance(model, Provider)):
        raise ConfigurationError(
            f"thinking_model={model!r} is not a model: give a provider, or a model string such as 'zai:glm-4.5-air'"
        )
