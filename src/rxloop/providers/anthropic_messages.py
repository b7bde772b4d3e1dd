"""A model that speaks Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from typing_extensions import Unpack

from rxloop.errors import ConfigurationError
from rxloop.providers.http_model import HTTPModel, ModelOptions, http_model
from rxloop.providers.presets import Preset, WireName
from rxloop.providers.vendors._presets import find_preset

if TYPE_CHECKING:
    from rxloop.providers.anthropic._wire import MessagesWire


def anthropic_messages(
    model: str | None = None,
    *,
    preset: Preset | str = "anthropic",
    betas: Sequence[str] = (),
    citations: bool = False,
    **options: Unpack[ModelOptions],
) -> HTTPModel:
    """Make a model that speaks Anthropic's Messages API, at Anthropic, on Vertex AI or on Bedrock.

    Example:
        >>> anthropic_messages("claude-sonnet-4-5")

    Args:
        model: The vendor's name of the model; None takes the default of the preset.
        preset: The vendor, by name or as data of your own.
        betas: What is not for everybody yet and is to be switched on, such as `interleaved-thinking-2025-05-14`. A
            request whose settings have a header `anthropic-beta` of their own has those in their place.
        citations: The model is to say what in the documents of the conversation its words rest on. It cannot be held
            to a schema then.
        **options: The address, the key, timeouts and the rest; see `ModelOptions`.

    Raises:
        ConfigurationError: The preset or the transport is unknown, no model is named, or the address is not one; or
            the vendor speaks another protocol.
    """
    preset = find_preset(preset) if isinstance(preset, str) else preset
    wire = _wire(preset.wire)
    if wire is None:
        raise ConfigurationError(
            f"{preset.name!r} does not speak Anthropic's protocol: name the model '{preset.name}:{model or '...'}'"
        )
    if isinstance(betas, str):
        raise ConfigurationError(f"betas={betas!r} is a text: give a list of names, as in betas=[{betas!r}]")
    headers = dict(options.get("headers") or {})
    for name in [name for name in headers if name.lower() == "anthropic-beta"]:
        # In the header they would stand in the place of the others.
        betas = [*betas, *(beta.strip() for beta in headers.pop(name).split(","))]
    made: ModelOptions = {**options, "headers": headers}
    return http_model(model, preset, partial(wire, betas=betas, citations=citations), **made)


def _wire(name: WireName) -> type[MessagesWire] | None:
    """What speaks the protocol at the place of a preset; None where another one is spoken."""
    # Imported here: nobody needs the wires of other vendors.
    if name == "anthropic_messages":
        from rxloop.providers.anthropic._wire import MessagesWire

        return MessagesWire
    if name in ("anthropic_vertex", "anthropic_bedrock"):
        from rxloop.providers.anthropic._clouds import BedrockWire, VertexWire

        return VertexWire if name == "anthropic_vertex" else BedrockWire
    return None
