"""Model strings: `zai:glm-4.7` for `openai_chat("glm-4.7", preset="zai")`."""

from __future__ import annotations

from rxloop.errors import ConfigurationError
from rxloop.protocols import Provider
from rxloop.providers._vendors import PRESETS, find_preset
from rxloop.providers.openai_chat import openai_chat

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
            raise ConfigurationError(f"{model!r} names no model: add one, as in '{url}#model'")
        return openai_chat(name, base_url=url)
    prefix, colon, name = model.partition(":")
    if not colon and prefix not in PRESETS:
        examples = ", ".join(f"'{preset}:{PRESETS[preset].default_model}'" for preset in _EXAMPLES)
        raise ConfigurationError(f"{model!r} names no provider: write {examples}, or an address with '#model'")
    if colon and not name:
        raise ConfigurationError(f"{model!r} names no model: write '{prefix}' alone for its default model")
    return openai_chat(name or None, preset=find_preset(prefix))
