"""Model strings: `zai:glm-4.7` for `openai_chat("glm-4.7", preset="zai")`."""

from __future__ import annotations

from rxloop.errors import ConfigurationError
from rxloop.pipeline.seams import Provider
from rxloop.providers._secrets import shown_address
from rxloop.providers._vendors import PRESETS, find_preset
from rxloop.providers.openai_chat import openai_chat

_NATIVE = {
    "anthropic": "go by way of 'openrouter:anthropic/{0}', or by Anthropic's own endpoint for OpenAI's protocol, "
    "openai_chat('{0}', base_url='https://api.anthropic.com/v1', api_key=...); or write a provider (docs/provider.md)",
    "gemini": "use Google's endpoint for OpenAI's protocol, 'google:{0}'",
    "vertex": "use 'google:{0}', or 'openrouter:google/{0}'",
    "bedrock": "go by way of 'openrouter:...', or a gateway such as LiteLLM by its address, 'http://localhost:4000#{0}'",
    "cohere": "go by way of 'openrouter:cohere/{0}'",
}
"""Vendors that people look for, and how to reach them."""
_EXAMPLES = ("zai", "openai", "ollama")


def resolve_model(model: str | Provider) -> Provider:
    """The provider that a model string stands for.

    Each call makes a new one: providers share nothing but the process.

    Args:
        model: `preset:model`; `preset` alone for its default model; `http://host/v1#model` for any other endpoint; or
            a provider, which is returned as it is.

    Raises:
        ConfigurationError: The preset is unknown (the message lists those that there are), or the model is missing.
    """
    if not isinstance(model, str):
        return model
    if model.startswith(("http://", "https://")):
        url, _, name = model.partition("#")
        if not name:
            shown = shown_address(url)
            raise ConfigurationError(f"{shown!r} names no model: add one, as in '{shown}#model'")
        return openai_chat(name, base_url=url)
    prefix, colon, name = model.partition(":")
    if prefix in _NATIVE:
        instead = _NATIVE[prefix].format(name or "MODEL")
        raise ConfigurationError(f"{model!r} has an interface of its own, which rxloop does not speak: {instead}")
    if not colon and prefix not in PRESETS:
        examples = ", ".join(f"'{preset}:{PRESETS[preset].default_model}'" for preset in _EXAMPLES)
        raise ConfigurationError(f"{model!r} names no provider: write {examples}, or an address with '#model'")
    if colon and not name:
        raise ConfigurationError(f"{model!r} names no model: write '{prefix}' alone for its default model")
    return openai_chat(name or None, preset=find_preset(prefix))
