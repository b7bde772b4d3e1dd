"""A model at an endpoint that speaks OpenAI's chat completions."""

from __future__ import annotations

from dataclasses import replace

from typing_extensions import Unpack

from rxloop.errors import ConfigurationError
from rxloop.providers.http_model import HTTPModel, ModelOptions, http_model
from rxloop.providers.presets import Preset
from rxloop.providers.vendors._openai_names import wants_responses
from rxloop.providers.vendors._presets import CUSTOM, find_preset


def openai_chat(
    model: str | None = None, *, preset: Preset | str | None = None, **options: Unpack[ModelOptions]
) -> HTTPModel:
    """Make a model at an endpoint that is compatible with OpenAI's chat completions.

    Example:
        >>> openai_chat("glm-4.7", preset="zai")
        >>> openai_chat("my-model", base_url="http://localhost:8000/v1")

    Args:
        model: The vendor's name of the model; None takes the default of the preset.
        preset: The vendor, by name or as data of your own. Without one, a `base_url` is an endpoint that follows
            OpenAI in everything, and no `base_url` is OpenAI itself.
        **options: The address (without `/chat/completions`), the key, timeouts and the rest; see `ModelOptions`.

    Raises:
        ConfigurationError: The preset or the transport is unknown, no model is named, or the address is not one; or
            the vendor speaks another protocol.
    """
    # Imported here: nobody needs the wires of other vendors.
    from rxloop.providers.chat._wire import ChatWire

    if preset is None:
        preset = "openai" if options.get("base_url") is None else CUSTOM
    preset = find_preset(preset) if isinstance(preset, str) else preset
    if preset.wire not in ("openai", "openai_chat"):
        raise ConfigurationError(
            f"{preset.name!r} does not speak OpenAI's chat protocol: name the model '{preset.name}:{model or '...'}'"
        )
    if preset.wire == "openai" and wants_responses(model or preset.default_model or ""):
        # Named on the stream by the model string that makes it.
        preset = replace(preset, name="openai_chat", wire="openai_chat")
    return http_model(model, preset, ChatWire, **options)
