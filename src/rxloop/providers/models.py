"""Model strings: `anthropic:claude-sonnet-4-5`, or `zai:glm-4.7` for `openai_chat("glm-4.7", preset="zai")`."""

from __future__ import annotations

from typing_extensions import Unpack

from rxloop.errors import ConfigurationError
from rxloop.pipeline.seams import Provider
from rxloop.providers._secrets import shown_address
from rxloop.providers.anthropic_messages import anthropic_messages
from rxloop.providers.google_gemini import google_gemini
from rxloop.providers.http_model import RESPONSES_AT, HTTPModel, ModelOptions
from rxloop.providers.openai_chat import openai_chat
from rxloop.providers.openai_responses import openai_responses
from rxloop.providers.presets import Preset
from rxloop.providers.vendors._model_names import maker_of
from rxloop.providers.vendors._openai_names import wants_responses
from rxloop.providers.vendors._presets import PRESETS, find_preset

_ELSEWHERE = {
    "claude": "write 'anthropic:{0}'",
    "gemini": "write 'google:{0}'",
    "cohere": "go by way of 'openrouter:cohere/{0}'",
}
"""Names that people look for, and what to write in their place."""
_EXAMPLES = ("anthropic", "google", "openai", "zai", "ollama")


def resolve_model(model: str | Provider, **options: Unpack[ModelOptions]) -> Provider:
    """The provider that a model string stands for.

    Each call makes a new one: providers share nothing but the process.

    Args:
        model: `preset:model`; `preset` alone for its default model; `http://host/v1#model` for any other endpoint that
            speaks OpenAI's chat protocol, and `openai_responses:http://host/v1#model` for one that speaks Responses; or
            a provider, which is returned as it is.
        **options: What a string cannot say; see `ModelOptions`.

    Raises:
        ConfigurationError: The preset is unknown (the message lists those that there are), or the model is missing; or
            there are options for a provider that has been made.
    """
    if not isinstance(model, str):
        if options:
            raise ConfigurationError(f"{model.name} is made already: {next(iter(options))}= comes too late for it")
        return model
    address = model.removeprefix(RESPONSES_AT)
    if address.startswith(("http://", "https://")):
        url, _, name = address.partition("#")
        if not name:
            shown = model.removesuffix(address) + shown_address(url)
            raise ConfigurationError(f"{shown!r} names no model: add one, as in '{shown}#model'")
        made = openai_chat if address == model else openai_responses
        return made(name, **{"base_url": url, **options})
    prefix, colon, name = model.partition(":")
    if prefix in _ELSEWHERE:
        instead = _ELSEWHERE[prefix].format(name or "MODEL")
        raise ConfigurationError(f"{model!r} names no provider: {instead}")
    if not colon and prefix not in PRESETS:
        if (maker := maker_of(model)) is not None:
            raise ConfigurationError(f"{model!r} names no provider: write '{maker}:{model}'")
        examples = ", ".join(f"'{preset}:{PRESETS[preset].default_model}'" for preset in _EXAMPLES)
        raise ConfigurationError(f"{model!r} names no provider: write {examples}, or an address with '#model'")
    if colon and not name:
        raise ConfigurationError(f"{model!r} names no model: write '{prefix}' alone for its default model")
    return _make(name or None, find_preset(prefix), options)


def _make(model: str | None, preset: Preset, options: ModelOptions) -> HTTPModel:
    """Make the model; only the wire that it speaks is imported."""
    wire = preset.wire
    if wire == "openai":
        wire = "openai_responses" if wants_responses(model or preset.default_model or "") else "openai_chat"
    if wire == "openai_responses":
        return openai_responses(model, preset=preset, **options)
    if wire == "google_gemini":
        return google_gemini(model, preset=preset, **options)
    if wire in ("anthropic_messages", "anthropic_vertex", "anthropic_bedrock"):
        return anthropic_messages(model, preset=preset, **options)
    return openai_chat(model, preset=preset, **options)
