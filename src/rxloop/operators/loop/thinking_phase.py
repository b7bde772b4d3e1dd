from __future__ import annotations

from typing import Any, cast

from rxloop.errors import ConfigurationError
from rxloop.operators.loop.answer_requests import answer_requests
from rxloop.pipeline.interfaces import Compressor, Provider, Think, TokenCounter, Trigger
from rxloop.pipeline.requests import ModelRequest, Operator


def thinking_phase(
    compressor: Compressor,
    *,
    think: Think | None = None,
    think_every: int | Trigger = 1,
    publish: bool = False,
    thinking_model: Provider | str | None = None,
    note: bool = True,
    counter: TokenCounter | None = None,
    every: int | Trigger | None = None,
    summary_tokens: int = 400,
    timeout: float = 30.0,
) -> Operator[object]:
    """Compress each model request, and add a summary and a note on the progress of the run.

    ::

        in   --M---|     --M----------|     --M----|
        out  --Mn--|     --..(c,mn)---|     --m'n--|

    M is a `ModelRequest`, c a `context-compressed` event, m the request with fewer messages and a summary of the
    removed ones, and n a short note at the end about the progress of the run. Summary and note are never added to the
    history. Each request has at most one of each, and their size does not grow with the run.

    By default, the note is built from rules. `think` is a sync or async function that replaces them, see
    `rxloop.pipeline.Think`. Requests include its note until it returns the next one. A `thinking-noted` event contains
    the note, so that a resumed run continues with it.

    By default, the summary lists the facts of the removed messages. A `thinking_model` writes an additional summary
    with fixed sections, from its previous summary and the messages removed since. If the model fails, is too slow, or
    returns an empty or oversized summary, the request is sent with the facts only.

    If `think` or the model fails, a `thinking-failed` event has the reason. After three failures, it is not called
    again in this run. It is not called either when the provider has rejected a request as too long. The tokens that it
    used are in the `thinking-noted` or `context-compressed` event. They are not part of the run's usage.

    Use it instead of `compress`, because it includes the same compression.

    Args:
        compressor: For example `SlidingWindowCompressor(max_tokens=60_000)`.
        think: Function that receives the history, the text of the workspaces, the newest tool results and a `Budget`,
            and returns a `ThinkingResult`.
        think_every: Call `think` after this number of model calls in the run, or when a trigger decides so. It is also
            called when the history is compressed.
        publish: Whether clients receive `thinking-noted` events. They are also published for notes built from rules.
        thinking_model: Model that writes summaries; a small, cheap one is enough. Either a provider, or a model string
            such as `zai:glm-4.5-air`, whose provider is opened and closed by the agent.
        note: Whether to add the note.
        counter: Counts tokens. The default is an estimator that learns from the usage reported by providers.
        every: Also compress after this number of model calls, or when a trigger decides so. See `compress`.
        summary_tokens: Maximum number of tokens of a summary by the thinking model, and of a note and a summary by
            `think`.
        timeout: Time limit in seconds, for the compressor and for thinking separately.

    Raises:
        ConfigurationError: An argument has the wrong type, or the model string is unknown.
    """
    if not isinstance(cast("Any", summary_tokens), int) or summary_tokens < 1:
        raise ConfigurationError(f"summary_tokens must be an integer of at least 1, got {summary_tokens!r}")
    if think is not None and (thinking_model is not None or not callable(think)):
        raise ConfigurationError(f"think must be a function, without a thinking_model, got {think!r}")
    _check_model(thinking_model)
    # Imported here because it is rarely needed.
    from rxloop.context.request_compressor import RequestCompressor, check_trigger
    from rxloop.context.thinking import ThinkingPhase

    check_trigger("think_every", think_every)
    reserve = (2 if think is not None else 1 if thinking_model is not None else 0) * summary_tokens
    cutter = RequestCompressor(compressor, counter, every, timeout, reserve)
    phase = ThinkingPhase(cutter, think, thinking_model, think_every, note, publish, summary_tokens, timeout)
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
