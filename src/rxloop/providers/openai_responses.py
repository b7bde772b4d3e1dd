"""A model at an endpoint that speaks OpenAI's Responses."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

from typing_extensions import Unpack

from rxloop.errors import ConfigurationError
from rxloop.providers.http_model import HTTPModel, ModelOptions, http_model
from rxloop.providers.presets import Preset
from rxloop.providers.vendors._openai_names import wants_responses
from rxloop.providers.vendors._presets import CUSTOM, PRESETS, find_preset


def openai_responses(
    model: str | None = None,
    *,
    preset: Preset | str | None = None,
    store: bool | None = None,
    chain: bool = False,
    summary: Literal["auto", "concise", "detailed"] | None = None,
    **options: Unpack[ModelOptions],
) -> HTTPModel:
    """Make a model at an endpoint that speaks OpenAI's Responses.

    Nothing is stored by default: what a model has reasoned comes encrypted, is kept with its message, and goes back
    with it to the same endpoint.

    Example:
        >>> openai_responses("gpt-5", summary="auto")
        >>> openai_responses("openai/gpt-oss-120b", base_url="http://localhost:8000/v1")

    Args:
        model: The vendor's name of the model; None takes the default of the preset.
        preset: The vendor, by name or as data of your own. Without one, a `base_url` is an endpoint of any maker, and
            no `base_url` is OpenAI itself.
        store: Whether the vendor stores the answers; None stores them where `chain` needs it.
        chain: Send only what is new since the newest answer that is stored, by its `previous_response_id`. A
            conversation that was changed since then, or that another process began, goes whole.
        summary: Ask for summaries of the reasoning, which OpenAI gives to organizations that it has verified.
        **options: The address (without `/responses`), the key, timeouts and the rest; see `ModelOptions`.

    Raises:
        ConfigurationError: The preset or the transport is unknown, no model is named, or the address is not one; the
            vendor speaks another protocol; or a chain is asked for of what is not stored.
    """
    # Imported here: nobody needs the wires of other vendors.
    from rxloop.providers.responses._wire import ResponsesWire

    if chain and store is False:
        raise ConfigurationError("chain=True goes on from stored answers: leave store=False out")
    if preset is None:
        preset = "openai_responses" if options.get("base_url") is None else CUSTOM
    preset = find_preset(preset) if isinstance(preset, str) else preset
    if preset.wire not in ("openai", "openai_chat", "openai_responses"):
        raise ConfigurationError(
            f"{preset.name!r} does not speak OpenAI's Responses: name the model '{preset.name}:{model or '...'}'"
        )
    if preset.wire == "openai":
        # Named on the stream by the model string that makes it.
        name = "openai" if wants_responses(model or preset.default_model or "") else "openai_responses"
        preset = replace(preset, name=name, thought_tags=())
    elif preset is PRESETS["azure"]:
        preset = PRESETS["azure_responses"]
    preset = replace(preset, wire="openai_responses")
    wire = partial(ResponsesWire, store=bool(store) or chain, chain=chain, summary=summary)
    return http_model(model, preset, wire, **options)
