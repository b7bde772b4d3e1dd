"""Presets of vendors, gateways and local servers.

If a vendor's documentation is not clear, the cautious value is used: fields that may be rejected are not sent, and
reasoning is sent back only to vendors that require it. Many endpoints reject `response_format` together with tools, or
do not call tools then. For these, typed answers are requested in the system prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from rxloop._names import find_nearest
from rxloop.errors import ConfigurationError
from rxloop.providers.credentials import GoogleToken
from rxloop.providers.vendors import TEMPLATE_TOKENS, Preset
from rxloop.providers.vendors.urls import bedrock_url, vertex_anthropic_url, vertex_url

_OFFICE = "application/vnd.openxmlformats-officedocument."

_DOCUMENTS = (
    "application/pdf",
    "application/msword",
    "application/vnd.ms-excel",
    "application/vnd.ms-powerpoint",
    "application/vnd.oasis.opendocument.text",
    f"{_OFFICE}presentationml.presentation",
    f"{_OFFICE}spreadsheetml.sheet",
    f"{_OFFICE}wordprocessingml.document",
)
"""Document types that OpenAI's Responses API accepts."""

_cautious = partial(Preset, strict=False, response_format_with_tools=False, files=())
"""Preset for vendors whose support of schemas and files is not clear."""

_thinking = partial(
    _cautious,
    effort="thinking",
    reasoning_field="reasoning_content",
    parallel_tool_calls=False,
    response_format="json_object",
)
"""Preset for vendors that require reasoning to be sent back. DeepSeek rejects tool calls without it."""

_openai = partial(
    Preset,
    base_url="https://api.openai.com/v1",
    url_env="OPENAI_BASE_URL",
    key_env="OPENAI_API_KEY",
    default_model="gpt-5",
    file_store="openai",
)
"""Preset for all APIs of OpenAI."""

_openai_chat = partial(_openai, longest_call_id=40, max_tokens_field="max_completion_tokens", audio_models="audio")
"""Preset for OpenAI's Chat Completions API."""

_azure = partial(
    Preset,
    base_url=None,
    url_env="AZURE_OPENAI_ENDPOINT",
    version_env="OPENAI_API_VERSION",
    key_env="AZURE_OPENAI_API_KEY",
    key_header="api-key",
    token_source=True,
    hint="AZURE_OPENAI_ENDPOINT is the resource, such as https://name.openai.azure.com.",
)
"""Preset for all APIs of Azure OpenAI."""

_serving = partial(_cautious, parallel_tool_calls=False, strip=TEMPLATE_TOKENS)
"""Preset for hosting open models."""

_KNOWN = (
    # Model vendors.
    _thinking(
        name="zai",
        base_url="https://api.z.ai/api/paas/v4",
        url_env="ZAI_BASE_URL",
        key_env="ZAI_API_KEY",
        default_model="glm-4.7",
    ),
    _openai_chat(name="openai", wire="openai"),
    _openai(
        name="openai_responses",
        wire="openai_responses",
        thought_tags=(),
        files=_DOCUMENTS,
    ),
    _openai_chat(name="openai_chat"),
    Preset(
        name="anthropic",
        base_url="https://api.anthropic.com",
        url_env="ANTHROPIC_BASE_URL",
        key_env="ANTHROPIC_API_KEY",
        key_header="x-api-key",
        default_model="claude-sonnet-4-5",
        wire="anthropic_messages",
        thought_tags=(),
    ),
    Preset(
        name="vertex_anthropic",
        base_url=None,
        find_url=vertex_anthropic_url,
        key_source=GoogleToken,
        default_model="claude-sonnet-4-5@20250929",
        wire="anthropic_vertex",
        thought_tags=(),
    ),
    Preset(
        name="bedrock",
        base_url=None,
        find_url=bedrock_url,
        key_env="AWS_BEARER_TOKEN_BEDROCK",
        key_hint="pass sign=, a function that signs the requests",
        default_model="global.anthropic.claude-sonnet-4-5-20250929-v1:0",
        wire="anthropic_bedrock",
        thought_tags=(),
    ),
    _azure(
        name="azure",
        api_version="2024-10-21",
        longest_call_id=40,
        max_tokens_field="max_completion_tokens",
        audio_models="audio",
    ),
    _azure(
        name="azure_responses",
        api_version="",
        wire="openai_responses",
        thought_tags=(),
        file_store="openai",
    ),
    _thinking(
        name="deepseek",
        base_url="https://api.deepseek.com",
        key_env="DEEPSEEK_API_KEY",
        default_model="deepseek-flash",
    ),
    _cautious(
        name="mistral",
        base_url="https://api.mistral.ai/v1",
        key_env="MISTRAL_API_KEY",
        default_model="mistral-large-latest",
        seed_field="random_seed",
        # Mistral rejects unknown fields. It always sends the usage with the last chunk.
        stream_options=False,
        assistant_after_tool=True,
        short_call_ids=True,
        file_part="document_url",
        file_urls=True,
        files=("application/pdf", f"{_OFFICE}presentationml.presentation", f"{_OFFICE}wordprocessingml.document"),
    ),
    _cautious(
        name="xai",
        base_url="https://api.x.ai/v1",
        key_env="XAI_API_KEY",
        default_model="grok-4.5",
    ),
    _thinking(
        name="moonshot",
        base_url="https://api.moonshot.ai/v1",
        url_env="MOONSHOT_BASE_URL",
        key_env="MOONSHOT_API_KEY",
        default_model="kimi-k2.6",
        max_tokens_field="max_completion_tokens",
        image_urls=False,
    ),
    Preset(
        name="google",
        base_url="https://generativelanguage.googleapis.com",
        url_env="GOOGLE_GEMINI_BASE_URL",
        key_env="GEMINI_API_KEY",
        other_key_env="GOOGLE_API_KEY",
        key_header="x-goog-api-key",
        default_model="gemini-3.5-flash",
        wire="google_gemini",
        thought_tags=(),
    ),
    Preset(
        name="vertex",
        base_url=None,
        find_url=vertex_url,
        key_source=GoogleToken,
        default_model="gemini-3.5-flash",
        wire="google_gemini",
        thought_tags=(),
    ),
    _cautious(
        name="google_chat",
        base_url="https://generativelanguage.googleapis.com/v1beta/openai",
        key_env="GEMINI_API_KEY",
        other_key_env="GOOGLE_API_KEY",
        default_model="gemini-3.5-flash",
        extra_content=True,
        audio_models="",
    ),
    # Gateways and hosting services.
    Preset(
        name="openrouter",
        base_url="https://openrouter.ai/api/v1",
        key_env="OPENROUTER_API_KEY",
        default_model="openrouter/auto",
        effort="reasoning",
        reasoning_details=True,
        response_format_with_tools=False,
        file_urls=True,
        strip=TEMPLATE_TOKENS,
        audio_models="audio|gemini|voxtral",
    ),
    Preset(
        name="groq",
        base_url="https://api.groq.com/openai/v1",
        key_env="GROQ_API_KEY",
        default_model="openai/gpt-oss-120b",
        strict=False,
        # Not supported while streaming or using tools; schemas only work for some models.
        response_format=None,
        strip=TEMPLATE_TOKENS,
        files=(),
    ),
    _serving(
        name="together",
        base_url="https://api.together.xyz/v1",
        key_env="TOGETHER_API_KEY",
        default_model="openai/gpt-oss-120b",
    ),
    Preset(
        name="cerebras",
        base_url="https://api.cerebras.ai/v1",
        key_env="CEREBRAS_API_KEY",
        default_model="gpt-oss-120b",
        max_tokens_field="max_completion_tokens",
        parallel_tool_calls=False,
        strict=False,
        # Reasoning models do not support it while streaming.
        response_format=None,
        strip=TEMPLATE_TOKENS,
        files=(),
    ),
    _serving(
        name="huggingface",
        base_url="https://router.huggingface.co/v1",
        key_env="HF_TOKEN",
        default_model="openai/gpt-oss-120b",
    ),
    _serving(
        name="vercel",
        base_url="https://ai-gateway.vercel.sh/v1",
        key_env="AI_GATEWAY_API_KEY",
        default_model="openai/gpt-5",
        effort="reasoning",
        reasoning_details=True,
        files=("application/pdf",),
        file_part="file_with_type",
    ),
    # Local servers.
    _serving(
        name="ollama",
        base_url="http://localhost:11434/v1",
        url_env="OLLAMA_HOST",
        default_model="qwen3",
        hint="Is Ollama running? Start it with `ollama serve`.",
        image_urls=False,
    ),
    _serving(
        name="llama_cpp",
        base_url="http://localhost:8080/v1",
        url_env="LLAMA_CPP_BASE_URL",
        key_env="LLAMA_API_KEY",
        key_optional=True,
        # The server ignores the model in the request.
        default_model="default",
        reasoning_field="reasoning_content",
        hint="Is it running? Start it with `llama-server --jinja -m model.gguf`.",
    ),
    _serving(
        name="vllm",
        base_url="http://localhost:8000/v1",
        url_env="VLLM_BASE_URL",
        key_env="VLLM_API_KEY",
        key_optional=True,
        parallel_tool_calls=True,
        hint="Is it running? Start it with `vllm serve MODEL`.",
    ),
    _serving(
        name="lm_studio",
        base_url="http://localhost:1234/v1",
        url_env="LM_STUDIO_BASE_URL",
        key_env="LM_STUDIO_API_KEY",
        key_optional=True,
        # LM Studio rejects `json_object`.
        response_format="json_schema",
        hint="Is its server running? Start it with `lms server start`.",
        image_urls=False,
    ),
)

PRESETS: Mapping[str, Preset] = MappingProxyType({preset.name: preset for preset in _KNOWN})
"""Presets by name."""

CUSTOM = Preset(
    name="custom",
    base_url=None,
    key_env="RXLOOP_API_KEY",
    key_optional=True,
    response_format=None,
    file_urls=True,
    audio_models="audio",
    strip=TEMPLATE_TOKENS,
    nameless=True,
)
"""Preset for any other compatible endpoint."""


def find_preset(name: str) -> Preset:
    """Look up a preset.

    Raises:
        ConfigurationError: Unknown preset. The message lists all valid names.
    """
    try:
        return PRESETS[name]
    except KeyError:
        names, nearest = ", ".join(PRESETS), find_nearest(name, PRESETS)
        hint = "" if nearest is None else f" did you mean {nearest!r}?"
        raise ConfigurationError(
            f"unknown provider {name!r};{hint} use one of {names}, or the URL of any other endpoint, such as "
            "'http://localhost:8000/v1#model'"
        ) from None
