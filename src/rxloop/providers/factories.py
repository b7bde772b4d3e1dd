"""Constructors of models, by vendor API or by a model string."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from typing_extensions import Unpack

from rxloop.errors import ConfigurationError
from rxloop.pipeline.interfaces import Provider
from rxloop.providers.http_model import RESPONSES_AT, HTTPModel, ModelOptions, http_model
from rxloop.providers.vendors import CodecName, Preset
from rxloop.providers.vendors.model_names import maker_of, wants_responses
from rxloop.providers.vendors.presets import CUSTOM, PRESETS, find_preset
from rxloop.support.redaction import display_url

if TYPE_CHECKING:
    from rxloop.providers.codecs.anthropic import AnthropicCodec

log = logging.getLogger("rxloop")


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
    # Imported here: a program does not need the codecs of other vendors.
    from rxloop.providers.codecs.chat import ChatCodec

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
    # Imported here: a program does not need the codecs of other vendors.
    from rxloop.providers.codecs.responses import ResponsesCodec

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
        underlying_model: The model behind a name that does not say it, such as the ARN of an application inference
            profile of Bedrock: `"anthropic.claude-sonnet-4-5-20250929-v1:0"`. What the model takes, and what it costs,
            goes by it. In a model string it follows a `#`.
        **options: The address, the key, timeouts and the rest; see `ModelOptions`.

    Raises:
        ConfigurationError: The preset or the transport is unknown, no model is named, or the address is not one; or
            the vendor speaks another protocol.
    """
    preset = find_preset(preset) if isinstance(preset, str) else preset
    codec = _find_codec(preset.wire)
    if codec is None:
        raise ConfigurationError(
            f"{preset.name!r} does not speak Anthropic's protocol: name the model '{preset.name}:{model or '...'}'"
        )
    if underlying_model is not None:
        model = f"{model or preset.default_model}#{underlying_model}"
    elif model is not None and "application-inference-profile/" in model and "#" not in model:
        log.warning(
            "%s does not say which model it is, so that it is taken for an old one: pass underlying_model=, or append "
            "the model after a '#'",
            model,
        )
    if isinstance(betas, str):
        raise ConfigurationError(f"betas={betas!r} is a text: give a list of names, as in betas=[{betas!r}]")
    headers = dict(options.get("headers") or {})
    for name in [name for name in headers if name.lower() == "anthropic-beta"]:
        # In the header they would stand in the place of the others.
        betas = [*betas, *(beta.strip() for beta in headers.pop(name).split(","))]
    made: ModelOptions = {**options, "headers": headers}
    return http_model(model, preset, partial(codec, betas=betas, citations=citations), **made)


def _find_codec(name: CodecName) -> type[AnthropicCodec] | None:
    """What speaks the protocol at the place of a preset; None where another one is spoken."""
    # Imported here: a program does not need the codecs of other vendors.
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
    # Imported here: a program does not need the codecs of other vendors.
    from rxloop.providers.codecs.gemini import GeminiCodec

    preset = find_preset(preset) if isinstance(preset, str) else preset
    if preset.wire != "google_gemini":
        raise ConfigurationError(
            f"{preset.name!r} does not speak Gemini's protocol: name the model '{preset.name}:{model or '...'}'"
        )
    return http_model(model, preset, GeminiCodec, **options)


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
            shown = model.removesuffix(address) + display_url(url)
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
    """Make the model; only its codec is imported."""
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
