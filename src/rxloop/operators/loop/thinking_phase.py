from __future__ import annotations

from typing import Any, cast

from rxloop.errors import ConfigurationError
from rxloop.operators.loop.answer_requests import answer_requests
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
    """Compress each model request, and add a summary and a note on the progress of the run.

    ::

        in   --M---|     --M----------|     --M----|
        out  --Mn--|     --..(c,mn)---|     --m'n--|

    M is a `ModelRequest`, c a `context-compressed` event, m the request with fewer messages and a summary of the
    removed ones, and n a short note at the end about the progress of the run, which is built from rules. Summary and
    note are never added to the history. Each request has at most one of each, and their size does not grow with the
    run.

    By default, the summary lists the facts of the removed messages. A `thinking_model` writes an additional summary
    with fixed sections, from its previous summary and the messages removed since. If the model fails, is too slow, or
    returns an empty or oversized summary, the request is sent with the facts only. A `thinking-failed` event has the
    reason. After three failures, the model is not called again in this run. It is not called either when the provider
    has rejected a request as too long. The `context-compressed` event has the tokens that it used, which are not part
    of the run's usage.

    Use it instead of `compress`, because it includes the same compression.

    Args:
        compressor: For example `SlidingWindowCompressor(max_tokens=60_000)`.
        thinking_model: Model that writes summaries; a small, cheap one is enough. Either a provider, or a model string
            such as `zai:glm-4.5-air`, whose provider is opened and closed by the agent.
        note: Whether to add the note.
        counter: Counts tokens. The default is an estimator that learns from the usage reported by providers.
        every: Also compress after this number of model calls. See `compress`.
        summary_tokens: Maximum number of tokens of a summary by the thinking model.
        timeout: Time limit in seconds, for the compressor and for the thinking model separately.

    Raises:
        ConfigurationError: An argument has the wrong type, or the model string is unknown.
    """
    if not isinstance(cast("Any", summary_tokens), int) or summary_tokens < 1:
        raise ConfigurationError(f"summary_tokens must be an integer of at least 1, got {summary_tokens!r}")
    _check_model(thinking_model)
    # Imported here because it is rarely needed.
    from rxloop.context.request_compressor import RequestCompressor
    from rxloop.context.summaries import SummaryPhase

    cutter = RequestCompressor(compressor, counter, every, timeout, summary_tokens if thinking_model is not None else 0)
    phase = SummaryPhase(cutter, thinking_model, note, summary_tokens, timeout)
    operator = answer_requests(ModelRequest, phase.answer)
    operator.__qualname__ = f"thinking_phase({compressor!r})"
    return operator


def _check_model(model: object) -> None:
    if isinstance(model, str):
        # Imported here because most programs do not pass a model string.
        from rxloop.providers.factories import resolve_model

        resolve_model(model)
    elif model is not None and (isinstance(model, type) or not isinstance(model, Provider)):
        raise ConfigurationError(
            f"thinking_model must be a provider or a model string such as 'zai:glm-4.5-air', got {model!r}"
        )
