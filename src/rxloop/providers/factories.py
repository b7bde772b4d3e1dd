"""Factories of models, by vendor API or by model string."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

from typing_extensions import Unpack

from rxloop.errors import ConfigurationError
from rxloop.pipeline.interfaces import Provider
from rxloop.providers.http_model import RESPONSES_AT, HTTPModel, ModelOptions, http_model
from rxloop.providers.vendors import CodecName, Preset
from rxloop.providers.vendors.model_names import find_maker, wants_responses
from rxloop.providers.vendors.presets import CUSTOM, PRESETS, find_preset
from rxloop.support.misuse import check_type
from rxloop.support.redaction import display_url

if TYPE_CHECKING:
    from rxloop.providers.codecs.anthropic import AnthropicCodec

log = logging.getLogger("rxloop")


def openai_chat(
    model: str | None = None, *, preset: Preset | str | None = None, **options: Unpack[ModelOptions]
) -> HTTPModel:
    """Create a model using OpenAI-compatible chat completions.

    Example:
        >>> openai_chat("glm-4.7", preset="zai")
        >>> openai_chat("my-model", base_url="http://localhost:8000/v1")

    Args:
        model: Model name, defaulting to the preset's model.
        preset: Preset or preset name. Without one, `base_url` must be fully compatible and defaults to OpenAI.
        **options: Base URL without `/chat/completions`, key, timeouts and more; see `ModelOptions`.

    Raises:
        ConfigurationError: Invalid preset, model, transport or URL, or unsupported protocol.
    """
    # Imported lazily, since other codecs may not be needed.
    from rxloop.providers.codecs.chat import ChatCodec

    if preset is None:
        preset = "openai" if options.get("base_url") is None else CUSTOM
    preset = _check_preset(model, preset)
    if preset.wire not in ("openai", "openai_chat"):
        raise ConfigurationError(
            f"{preset.name!r} does not support chat completions; use the model string '{preset.name}:{model or '...'}'"
        )
    if preset.wire == "openai" and wants_responses(model or preset.default_model or ""):
        # The name in events must be the model string that creates this model.
        preset = replace(preset, name="openai_chat", wire="openai_chat")
    return http_model(model, preset, ChatCodec, **options)


def openai_responses(
    model: str | None = None,
    *,
    preset: Preset | str | None = None,
    store: bool | None = None,
    chain: bool = False,
    summary: Literal["auto", "concise", "detailed"] | None = None,
    **options: Unpack[ModelOptions],
) -> HTTPModel:
    """Create a model using OpenAI's Responses API.

    By default nothing is stored by the vendor. Encrypted reasoning is kept in messages and sent back to the same
    endpoint.

    Example:
        >>> openai_responses("gpt-5", summary="auto")
        >>> openai_responses("openai/gpt-oss-120b", base_url="http://localhost:8000/v1")

    Args:
        model: Model name, defaulting to the preset's model.
        preset: Preset or preset name. Without one, `base_url` can be any compatible endpoint and defaults to OpenAI.
        store: Whether the vendor stores responses. None means only if required by `chain`.
        chain: Send only messages following the last stored response, using `previous_response_id`. Modified
            conversations, and those started by another process, are sent completely.
        summary: Request reasoning summaries, which OpenAI only returns for verified organizations.
        **options: Base URL without `/responses`, key, timeouts and more; see `ModelOptions`.

    Raises:
        ConfigurationError: Invalid preset, model, transport or URL, unsupported protocol, or `chain` without `store`.
    """
    # Imported lazily, since other codecs may not be needed.
    from rxloop.providers.codecs.responses import ResponsesCodec

    if chain and store is False:
        raise ConfigurationError("chain=True requires stored answers; remove store=False")
    if preset is None:
        preset = "openai_responses" if options.get("base_url") is None else CUSTOM
    preset = _check_preset(model, preset)
    if preset.wire not in ("openai", "openai_chat", "openai_responses"):
        raise ConfigurationError(
            f"{preset.name!r} does not support the Responses API; use the model string '{preset.name}:{model or '...'}'"
        )
    if preset.wire == "openai":
        # The name in events must be the model string that creates this model.
        name = "openai" if wants_responses(model or preset.default_model or "") else "openai_responses"
        own, chat = PRESETS["openai_responses"].files, PRESETS["openai"].files
        preset = replace(preset, name=name, thought_tags=(), files=own if preset.files == chat else preset.files)
    elif preset is PRESETS["azure"]:
        preset = PRESETS["azure_responses"]
    preset = replace(preset, wire="openai_responses")
    codec = partial(ResponsesCodec, store=bool(store) or chain, chain=chain, summary=summary)
    return http_model(model, preset, codec, **options)


def anthropic_messages(
    model: str | None = None,
    *,
    preset: Preset | str = "anthropic",
    betas: Sequence[str] = (),
    citations: bool = False,
    underlying_model: str | None = None,
    **options: Unpack[ModelOptions],
) -> HTTPModel:
    """Create a model using Anthropic's Messages API, including Vertex AI and Bedrock.

    Example:
        >>> anthropic_messages("claude-sonnet-4-5")

    Args:
        model: Model name, defaulting to the preset's model.
        preset: Preset or preset name.
        betas: Beta features such as `interleaved-thinking-2025-05-14`, replaced by an `anthropic-beta` header in
            request settings.
        citations: Enable document citations. Response schemas are not enforced in this case.
        underlying_model: Actual model for opaque names such as Bedrock inference profile ARNs:
            `"anthropic.claude-sonnet-4-5-20250929-v1:0"`. Used to determine features and prices. In model strings, it
            follows a `#`.
        **options: Base URL, key, timeouts and more; see `ModelOptions`.

    Raises:
        ConfigurationError: Invalid preset, model, transport or URL, or unsupported protocol.
    """
    preset = _check_preset(model, preset)
    codec = _find_codec(preset.wire)
    if codec is None:
        raise ConfigurationError(
            f"{preset.name!r} does not support Anthropic's API; use '{preset.name}:{model or '...'}'"
        )
    if underlying_model is not None:
        model = f"{model or preset.default_model}#{underlying_model}"
    elif model is not None and "application-inference-profile/" in model and "#" not in model:
        log.warning(
            "%s does not contain a model name, so old defaults are used; pass underlying_model=, or "
            "append the model after a '#'",
            model,
        )
    if isinstance(betas, str):
        raise ConfigurationError(f"betas must be a list of names, got {betas!r}; pass betas=[{betas!r}]")
    headers = dict(options.get("headers") or {})
    for name in [name for name in headers if name.lower() == "anthropic-beta"]:
        # In the header they would replace the other beta features.
        betas = [*betas, *(beta.strip() for beta in headers.pop(name).split(","))]
    merged: ModelOptions = {**options, "headers": headers}
    return http_model(model, preset, partial(codec, betas=betas, citations=citations), **merged)


def _check_preset(model: object, preset: Any) -> Preset:
    """Validate the model name and look up the preset.

    Args:
        model: Model name or None.
        preset: Preset or preset name.

    Raises:
        ConfigurationError: If an argument is invalid.
    """
    check_type("model", model, str | None, "a string, such as 'gpt-5'")
    check_type("preset", preset, str | Preset, "a Preset or its name, such as 'zai'")
    return find_preset(preset) if isinstance(preset, str) else preset


def _find_codec(name: CodecName) -> type[AnthropicCodec] | None:
    """Return the preset's codec class, if it uses Anthropic's protocol."""
    # Imported lazily, since other codecs may not be needed.
    if name == "anthropic_messages":
        from rxloop.providers.codecs.anthropic import AnthropicCodec

        return AnthropicCodec
    if name in ("anthropic_vertex", "anthropic_bedrock"):
        from rxloop.providers.codecs.anthropic import BedrockCodec, VertexCodec

        return VertexCodec if name == "anthropic_vertex" else BedrockCodec
    return None


def google_gemini(
    model: str | None = None, *, preset: Preset | str = "google", **options: Unpack[ModelOptions]
) -> HTTPModel:
    """Create a model using Gemini's `generateContent`.

    Example:
        >>> google_gemini("gemini-3.5-flash")

    Args:
        model: Model name, defaulting to the preset's model.
        preset: Preset or preset name.
        **options: Base URL, key, timeouts and more; see `ModelOptions`.

    Raises:
        ConfigurationError: Invalid preset, model, transport or URL, or unsupported protocol.
    """
    # Imported lazily, since other codecs may not be needed.
    from rxloop.providers.codecs.gemini import GeminiCodec

    preset = _check_preset(model, preset)
    if preset.wire != "google_gemini":
        raise ConfigurationError(
            f"{preset.name!r} does not support Gemini's API; use the model string '{preset.name}:{model or '...'}'"
        )
    return http_model(model, preset, GeminiCodec, **options)


_SUGGESTIONS = {
    "claude": "use 'anthropic:{0}'",
    "gemini": "use 'google:{0}'",
    "cohere": "use 'openrouter:cohere/{0}'",
}
"""Common mistakes and their corrections."""

_EXAMPLES = ("anthropic", "google", "openai", "zai", "ollama")


def resolve_model(model: str | Provider, **options: Unpack[ModelOptions]) -> Provider:
    """Create a provider from a model string.

    Each call creates a new provider without shared state.

    Args:
        model: `preset:model`; `preset` for its default model; `http://host/v1#model` for chat completions elsewhere;
            `openai_responses:http://host/v1#model` for the Responses API; or a provider, which is returned unchanged.
        **options: Additional options; see `ModelOptions`.

    Raises:
        ConfigurationError: Unknown preset (all names are listed), missing model, or options passed with a provider.
    """
    if not isinstance(model, str):
        if isinstance(model, type) or not isinstance(cast("object", model), Provider):
            raise ConfigurationError(f"model must be a provider or a string such as 'zai:glm-4.7', got {model!r}")
        if options:
            raise ConfigurationError(f"{next(iter(options))}= needs a model string, got the provider {model.name}")
        return model
    address = model.removeprefix(RESPONSES_AT)
    if address.startswith(("http://", "https://")):
        url, _, name = address.partition("#")
        if not name:
            public_name = model.removesuffix(address) + display_url(url)
            raise ConfigurationError(f"{public_name!r} needs a model; use '{public_name}#model'")
        factory = openai_chat if address == model else openai_responses
        return factory(name, **{"base_url": url, **options})
    prefix, colon, name = model.partition(":")
    if prefix in _SUGGESTIONS:
        instead = _SUGGESTIONS[prefix].format(name or "MODEL")
        raise ConfigurationError(f"{model!r} needs a provider; {instead}")
    if not colon and prefix not in PRESETS:
        if (maker := find_maker(model)) is not None:
            raise ConfigurationError(f"{model!r} needs a provider; use '{maker}:{model}'")
        examples = ", ".join(f"'{preset}:{PRESETS[preset].default_model}'" for preset in _EXAMPLES)
        raise ConfigurationError(f"{model!r} needs a provider; use {examples}, or a URL with '#model'")
    if colon and not name:
        raise ConfigurationError(f"{model!r} needs a model; use '{prefix}' alone for its default model")
    return _make(name or None, find_preset(prefix), options)


def _make(model: str | None, preset: Preset, options: ModelOptions) -> HTTPModel:
    """Create the model. Only its codec is imported."""
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
