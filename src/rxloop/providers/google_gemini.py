"""A model that speaks Gemini's API, `generateContent`."""

from __future__ import annotations

from typing_extensions import Unpack

from rxloop.errors import ConfigurationError
from rxloop.providers.http_model import HTTPModel, ModelOptions, http_model
from rxloop.providers.presets import Preset
from rxloop.providers.vendors._presets import find_preset


def google_gemini(
    model: str | None = None, *, preset: Preset | str = "google", **options: Unpack[ModelOptions]
) -> HTTPModel:
    """Make a model that speaks Gemini's API, `generateContent`.

    Example:
        >>> google_gemini("gemini-3.5-flash")

    Args:
        model: The vendor's name of the model; None takes the default of the preset.
        preset: The vendor, by name or as data of your own.
        **options: The address, the key, timeouts and the rest; see `ModelOptions`.

    Raises:
        ConfigurationError: The preset or the transport is unknown, no model is named, or the address is not one; or
            the vendor speaks another protocol.
    """
    # Imported here: nobody needs the wires of other vendors.
    from rxloop.providers.google._wire import GeminiWire

    preset = find_preset(preset) if isinstance(preset, str) else preset
    if preset.wire != "google_gemini":
        raise ConfigurationError(
            f"{preset.name!r} does not speak Gemini's protocol: name the model '{preset.name}:{model or '...'}'"
        )
    return http_model(model, preset, GeminiWire, **options)
