import time

import pytest

from rxloop.protocol.events import Event, UsageEvent
from rxloop.protocol.messages import Usage
from rxloop.providers import CATALOG, PRESETS, PRICES, KnownModel, Price, find_model, find_price
from rxloop.providers.catalog import LONG_KEPT, count_long_kept
from rxloop.providers.codecs.draft import MessageDraft
from rxloop.providers.failures import Endpoint

MILLION = 1_000_000
WITHOUT = {"openrouter", "huggingface", "ollama", "llama_cpp"}
"""Presets whose default is a router, or an open model that is hosted elsewhere as well."""


@pytest.mark.parametrize(
    ("model", "known"),
    [
        ("anthropic:claude-sonnet-4-5", "anthropic:claude-sonnet-4-5"),
        ("anthropic:claude-sonnet-4-5-20250929", "anthropic:claude-sonnet-4-5"),
        ("anthropic:claude-sonnet-4-0", "anthropic:claude-sonnet-4"),
        ("bedrock:us.anthropic.claude-sonnet-4-5-20250929-v1:0", "anthropic:claude-sonnet-4-5"),
        ("bedrock:anthropic.claude-opus-4-7", "anthropic:claude-opus-4-7"),
        (
            "bedrock:arn:aws:bedrock:us-east-1:1:inference-profile/eu.anthropic.claude-opus-5-5",
            "anthropic:claude-opus-5-5",
        ),
        ("vertex:claude-haiku-4-5@20251001", "anthropic:claude-haiku-4-5"),
        ("vertex:publishers/google/models/gemini-2.5-pro-001", "google:gemini-2.5-pro"),
        ("google:models/gemini-2.5-flash", "google:gemini-2.5-flash"),
        ("openai_chat:gpt-5", "openai:gpt-5"),
        ("openai_responses:gpt-5-2025-08-07", "openai:gpt-5"),
        ("azure:gpt-5-mini", "openai:gpt-5-mini"),
        ("zai:GLM-4.7", "zai:glm-4.7"),
        ("mistral:mistral-large-latest", "mistral:mistral-large"),
        ("claude-opus-5-5", "anthropic:claude-opus-5-5"),
        ("openai:gpt-4o-2024-05-13", "openai:gpt-4o-2024-05-13"),
    ],
)
def test_find_model_accepts_each_name_of_a_model(model: str, known: str) -> None:
    assert find_model(model) is CATALOG[known]
    assert find_price(model) is PRICES[known]


@pytest.mark.parametrize(
    "model", ["openai:gpt-5-pro", "openai:gpt-5-codex", "openai:claude-opus-5", "custom:gpt-5", "ollama:qwen3", "", ":"]
)
def test_find_model_does_not_guess_from_similar_names(model: str) -> None:
    assert find_model(model) is None
    assert find_price(model) is None


def test_find_model_rejects_a_long_name_quickly() -> None:
    begun = time.process_time()
    assert find_model("openai:gpt-5" + "-20250101" * 100_000) is None
    assert time.process_time() - begun < 1


def test_gateway_model_has_the_facts_of_the_model_and_its_own_price() -> None:
    known = find_model("openrouter:anthropic/claude-sonnet-4.5")
    assert known is not None
    assert (known.window, known.price) == (200_000, None)
    mine = {"openrouter:anthropic/claude-sonnet-4.5": Price(4, 16), "anthropic:claude-sonnet-4-5": Price(1, 1)}
    assert find_price("openrouter:anthropic/claude-sonnet-4.5", mine) == Price(4, 16)
    assert find_price("openrouter:anthropic/claude-sonnet-4.6", mine) is None


def test_custom_catalog_overrides_an_entry() -> None:
    mine = {**CATALOG, "openai:gpt-5": KnownModel(window=10), "mine:m": KnownModel(window=5)}
    assert find_model("azure:gpt-5", mine) is mine["openai:gpt-5"]
    assert find_model("mine:m-2026-01-01", mine) is mine["mine:m"]
    assert find_model("openai:gpt-4o", mine) is CATALOG["openai:gpt-4o"]


def test_catalog_is_immutable() -> None:
    with pytest.raises(TypeError):
        CATALOG["mine:m"] = KnownModel()  # pyright: ignore[reportIndexIssue]


def test_catalog_entries_are_plausible() -> None:
    for name, known in CATALOG.items():
        assert known.window is not None, name
        assert known.output is None or known.output <= known.window, name
    for name, price in PRICES.items():
        assert price.cached is None or price.cached <= price.input <= price.output, name
        assert price.cache_write is None or price.input < price.cache_write < price.output, name
        assert price.cache_write_long is None or (price.cache_write or 0) < price.cache_write_long, name
        assert price.above is None or (price.above[0] >= 100_000 and price.above[1].input > price.input), name


@pytest.mark.parametrize("preset", [name for name, preset in PRESETS.items() if preset.default_model])
def test_default_models_of_presets_are_in_the_catalog(preset: str) -> None:
    assert (find_model(f"{preset}:{PRESETS[preset].default_model}") is None) == (preset in WITHOUT)


def test_claude_prices_match_the_price_list() -> None:
    assert PRICES["anthropic:claude-opus-4-6"] == Price(5, 25, 0.5, cache_write=6.25, cache_write_long=10)
    longer = Price(6, 22.5, 0.6, cache_write=7.5, cache_write_long=12)
    assert PRICES["anthropic:claude-sonnet-4-5"].above == (200_000, longer)


def test_price_counts_each_token_once() -> None:
    price = Price(1, 0, cached=10, cache_write=100, cache_write_long=1000)
    everything = Usage(input_tokens=MILLION, cached_tokens=2 * MILLION, cache_write_tokens=MILLION)
    assert price.of(everything, MILLION) == 10
    assert price.of(Usage(input_tokens=MILLION, cache_write_tokens=2 * MILLION), 5 * MILLION) == 1000
    assert price.of(Usage(cached_tokens=MILLION, cache_write_tokens=MILLION), MILLION) == 0


def test_price_of_several_calls_ignores_the_long_context_price() -> None:
    price = Price(1, 10, above=(10, Price(2, 20)))
    usage = Usage(input_tokens=MILLION, output_tokens=MILLION)
    assert (price.of(usage), price.of_several(usage)) == (22, 11)


@pytest.mark.parametrize(("said", "metadata"), [(700, {LONG_KEPT: 700}), (0, {}), (None, {}), ("many", {})])
def test_codec_reports_tokens_cached_for_long(said: object, metadata: dict[str, int]) -> None:
    events: list[Event] = []
    draft = MessageDraft(events.append, "1", Endpoint("m", "http://host/v1"))
    draft.usage(input=1000, output=1, cache_write=900, cache_write_long=said)
    draft.finish("stop", "end_turn")
    draft.complete("any")
    [usage] = [each for each in events if isinstance(each, UsageEvent)]
    assert (usage.cache_write_tokens, usage.metadata, count_long_kept(usage)) == (
        900,
        metadata,
        metadata.get(LONG_KEPT, 0),
    )
