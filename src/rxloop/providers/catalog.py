"""Known models: context windows, output limits, abilities and prices, looked up on 22 November 2026.

The sources are the vendors' documentation of models and prices. If a page was not available, public price collections
of summer and autumn 2026 that agree with each other were used.

The table is small: the current models of Anthropic, Google, OpenAI and z.ai, earlier models that are still in use, and
the defaults of the presets. Prices are list prices of single calls. They exclude batches, other service tiers, regional
surcharges, audio, the storage time of caches, and the vendors' server tools. A price is None if it depends on the time,
if a gateway sets it, or if it is unknown.

The table is immutable. Pass a mapping to use other data: `op.cost({...})`, `find_model(name, {**CATALOG, ...})`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Self, TypeVar

from rxloop.protocol.events import UsageEvent
from rxloop.protocol.messages import Usage
from rxloop.providers.vendors.model_names import GATEWAYS, find_host, iter_names
from rxloop.support.misuse import check_positive, check_prices

MILLION = 1_000_000

LONG_KEPT = "cache_write_long_tokens"
"""Usage metadata key for long-lived cache writes."""


@dataclass(frozen=True, slots=True)
class Price:
    """Prices in US dollars per million tokens."""

    input: float
    output: float
    """Price of output tokens, including reasoning."""
    cached: float | None = None
    """Cached input price; None uses the input price."""
    cache_write: float | None = None
    """Cache write price; None uses the input price."""
    cache_write_long: float | None = None
    """Long-lived cache write price: one hour at Anthropic, twelve at OpenAI. None uses `cache_write`."""
    above: tuple[int, Price] | None = None
    """Input token threshold, and the price for larger requests."""

    def __post_init__(self) -> None:
        check_positive(zero=True, input=self.input, output=self.output)
        optional = {"cached": self.cached, "cache_write": self.cache_write, "cache_write_long": self.cache_write_long}
        check_positive(zero=True, optional=True, **optional)

    def of(self, usage: Usage, cache_write_long_tokens: int = 0) -> float:
        """Return the cost of one call in US dollars.

        Args:
            usage: Token counts of the call.
            cache_write_long_tokens: Part of `usage.cache_write_tokens` with a long time to live.
        """
        if self.above is not None and usage.input_tokens > self.above[0]:
            return self.above[1].of(usage, cache_write_long_tokens)
        cached = min(usage.cached_tokens, usage.input_tokens)
        written = min(usage.cache_write_tokens, usage.input_tokens - cached)
        long_lived = min(cache_write_long_tokens, written)
        write = _or(self.cache_write, self.input)
        parts = (
            (usage.input_tokens - cached - written) * self.input,
            cached * _or(self.cached, self.input),
            (written - long_lived) * write,
            long_lived * _or(self.cache_write_long, write),
            usage.output_tokens * self.output,
        )
        return sum(parts) / MILLION

    def of_several(self, usage: Usage) -> float:
        """Return the cost for several calls, assuming short requests because individual lengths are unknown."""
        return replace(self, above=None).of(usage)

    def times(self, input: float, output: float) -> Self:
        """Return this price multiplied by a factor for all input and one for the output."""

        def more(price: float | None) -> float | None:
            return None if price is None else price * input

        return replace(
            self,
            input=self.input * input,
            output=self.output * output,
            cached=more(self.cached),
            cache_write=more(self.cache_write),
            cache_write_long=more(self.cache_write_long),
        )


def count_long_kept(event: UsageEvent) -> int:
    """Return the number of tokens in the event that were written to the cache with a long time to live."""
    tokens = event.metadata.get(LONG_KEPT, 0)
    return tokens if isinstance(tokens, int) else 0


def _or(price: float | None, other: float) -> float:
    return other if price is None else price


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """Facts about a model.

    Example:
        >>> find_model("anthropic:claude-sonnet-4-5-20250929").window
    """

    window: int | None = None
    """Size of the context window in tokens, as counted by the vendor."""
    output: int | None = None
    """Maximum number of output tokens, including reasoning."""
    price: Price | None = None
    images: bool = False
    """True if the model accepts images."""
    files: bool = False
    """True if the model accepts PDFs."""
    tools: bool = True
    """True if the model supports tool calls."""
    thinking: bool = False
    """True if the model can reason before it answers."""

    @property
    def abilities(self) -> tuple[str, ...]:
        """Names of the supported abilities besides text."""
        return tuple(name for name in ("images", "files", "tools", "thinking") if getattr(self, name))


Tiers = Callable[[Price], Price]


def _flat(price: Price) -> Price:
    return price


def _longer(above: int, input: float = 2, output: float = 1.5) -> Tiers:
    """Return the tier of long requests. Most vendors double the input price, and add half to the output price."""
    return lambda price: replace(price, above=(above, price.times(input, output)))


_200k, _272k = _longer(200_000), _longer(272_000)


def _claude(
    input: float,
    output: float,
    cached: float,
    *,
    window: int = 1_000_000,
    max_output: int = 128_000,
    tiers: Tiers = _flat,
) -> KnownModel:
    """Anthropic model. Cache writes cost 25 % more than input, or twice as much for one hour."""
    price = Price(input, output, cached, cache_write=input * 1.25, cache_write_long=input * 2)
    return KnownModel(window=window, output=max_output, price=tiers(price), images=True, files=True, thinking=True)


def _gpt(
    input: float,
    output: float,
    cached: float,
    *,
    window: int = 400_000,
    max_output: int = 128_000,
    thinking: bool = True,
    tiers: Tiers = _flat,
) -> KnownModel:
    price = tiers(Price(input, output, cached))
    return KnownModel(window=window, output=max_output, price=price, images=True, files=True, thinking=thinking)


def _gpt6(input: float, output: float, cached: float, *, cache_write_long: float | None = None) -> KnownModel:
    """Return a model of GPT-5.6 or a later OpenAI generation. Cache writes cost 25 % more than input."""
    price = _272k(Price(input, output, cached, cache_write=input * 1.25, cache_write_long=cache_write_long))
    return KnownModel(window=1_050_000, output=128_000, price=price, images=True, files=True, thinking=True)


def _gemini(input: float, output: float, cached: float, tiers: Tiers = _flat) -> KnownModel:
    price = tiers(Price(input, output, cached))
    return KnownModel(window=1_048_576, output=65_536, price=price, images=True, files=True, thinking=True)


def _glm(input: float, output: float, cached: float, *, window: int = 200_000, max_output: int = 131_072) -> KnownModel:
    return KnownModel(window=window, output=max_output, price=Price(input, output, cached), thinking=True)


_gpt_oss = KnownModel(window=131_072, thinking=True)

CATALOG: Mapping[str, KnownModel] = MappingProxyType(
    {
        # Anthropic
        "anthropic:claude-fable-5-1": _claude(10, 50, 0.25),
        "anthropic:claude-fable-5": _claude(10, 50, 1),
        "anthropic:claude-opus-5-5": _claude(4, 20, 0.2),
        "anthropic:claude-opus-5": _claude(5, 25, 0.5),
        "anthropic:claude-opus-4-8": _claude(5, 25, 0.5),
        "anthropic:claude-opus-4-7": _claude(5, 25, 0.5),
        "anthropic:claude-opus-4-6": _claude(5, 25, 0.5),
        "anthropic:claude-opus-4-5": _claude(5, 25, 0.5, window=200_000, max_output=64_000),
        "anthropic:claude-opus-4-1": _claude(15, 75, 1.5, window=200_000, max_output=32_000),
        "anthropic:claude-sonnet-5-5": _claude(2, 10, 0.1),
        "anthropic:claude-sonnet-5": _claude(2, 10, 0.2),
        "anthropic:claude-sonnet-4-6": _claude(3, 15, 0.3, max_output=64_000),
        # The tier applies to the beta version of these two models, which has a larger window.
        "anthropic:claude-sonnet-4-5": _claude(3, 15, 0.3, window=200_000, max_output=64_000, tiers=_200k),
        "anthropic:claude-sonnet-4": _claude(3, 15, 0.3, window=200_000, max_output=64_000, tiers=_200k),
        "anthropic:claude-haiku-5-5": _claude(0.1, 0.5, 0.01, tiers=_longer(100_000, 5, 5)),
        "anthropic:claude-haiku-4-5": _claude(1, 5, 0.1, window=200_000, max_output=64_000),
        # Google. Introductory prices for 3.6 to 3.8 Flash, valid until the year ends.
        "google:gemini-3.8-flash": _gemini(0.75, 3.75, 0.075),
        "google:gemini-3.7-flash": _gemini(0.75, 3.75, 0.075),
        "google:gemini-3.6-flash": _gemini(0.75, 3.75, 0.075),
        "google:gemini-3.5-flash": _gemini(1.5, 9, 0.15),
        "google:gemini-3.5-flash-lite": _gemini(0.3, 2.5, 0.03),
        "google:gemini-3.1-pro-preview": _gemini(2, 12, 0.2, _200k),
        "google:gemini-3.1-flash-lite": _gemini(0.25, 1.5, 0.025),
        "google:gemini-3-pro-preview": _gemini(2, 12, 0.2, _200k),
        "google:gemini-3-flash-preview": _gemini(0.5, 3, 0.05),
        "google:gemini-2.5-pro": _gemini(1.25, 10, 0.125, _200k),
        "google:gemini-2.5-flash": _gemini(0.3, 2.5, 0.03),
        "google:gemini-2.5-flash-lite": _gemini(0.1, 0.4, 0.01),
        # OpenAI
        "openai:gpt-6.2-astra": _gpt6(8, 40, 0.4),
        "openai:gpt-6.2-sol": _gpt6(2, 10, 0.1, cache_write_long=5),
        "openai:gpt-6.1-sol": _gpt6(2, 10, 0.1),
        "openai:gpt-6-astra": _gpt6(10, 50, 1),
        "openai:gpt-6-sol": _gpt6(2, 10, 0.2),
        "openai:gpt-6-luna": _gpt6(0.1, 0.5, 0.01),
        # Price guaranteed "at least until 21 November".
        "openai:gpt-5.6": _gpt6(4, 20, 0.4),
        "openai:gpt-5.6-sol": _gpt6(4, 20, 0.4),
        "openai:gpt-5.6-terra": _gpt6(2, 12, 0.2),
        "openai:gpt-5.6-luna": _gpt6(0.2, 1.2, 0.02),
        "openai:gpt-5.5": _gpt(5, 30, 0.5, window=1_050_000, tiers=_272k),
        "openai:gpt-5.4": _gpt(2.5, 15, 0.25, window=1_050_000, tiers=_272k),
        "openai:gpt-5.4-mini": _gpt(0.75, 4.5, 0.075),
        "openai:gpt-5.4-nano": _gpt(0.2, 1.25, 0.02),
        "openai:gpt-5.2": _gpt(1.75, 14, 0.175),
        "openai:gpt-5.1": _gpt(1.25, 10, 0.125),
        "openai:gpt-5": _gpt(1.25, 10, 0.125),
        "openai:gpt-5-mini": _gpt(0.25, 2, 0.025),
        "openai:gpt-5-nano": _gpt(0.05, 0.4, 0.005),
        "openai:o3": _gpt(2, 8, 0.5, window=200_000, max_output=100_000),
        "openai:o4-mini": _gpt(1.1, 4.4, 0.275, window=200_000, max_output=100_000),
        "openai:gpt-4.1": _gpt(2, 8, 0.5, window=1_047_576, max_output=32_768, thinking=False),
        "openai:gpt-4.1-mini": _gpt(0.4, 1.6, 0.1, window=1_047_576, max_output=32_768, thinking=False),
        "openai:gpt-4.1-nano": _gpt(0.1, 0.4, 0.025, window=1_047_576, max_output=32_768, thinking=False),
        "openai:gpt-4o": _gpt(2.5, 10, 1.25, window=128_000, max_output=16_384, thinking=False),
        "openai:gpt-4o-2024-05-13": _gpt(5, 15, 5, window=128_000, max_output=4_096, thinking=False),
        "openai:gpt-4o-mini": _gpt(0.15, 0.6, 0.075, window=128_000, max_output=16_384, thinking=False),
        # z.ai
        "zai:glm-5.3": _glm(1.4, 4.4, 0.26, window=1_000_000),
        "zai:glm-5.3-flash": KnownModel(window=1_000_000, output=131_072, images=True, thinking=True),
        "zai:glm-5.2": _glm(1.4, 4.4, 0.26, window=1_000_000),
        "zai:glm-5.1": _glm(1.4, 4.4, 0.26),
        "zai:glm-5-turbo": _glm(1.2, 4, 0.24),
        "zai:glm-5": _glm(1, 3.2, 0.2),
        "zai:glm-4.7": _glm(0.6, 2.2, 0.11),
        "zai:glm-4.7-flash": _glm(0, 0, 0),
        "zai:glm-4.6": _glm(0.6, 2.2, 0.11),
        "zai:glm-4.5": _glm(0.6, 2.2, 0.11, window=131_072, max_output=98_304),
        "zai:glm-4.5-air": _glm(0.2, 1.1, 0.03, window=131_072, max_output=98_304),
        # Default models of other presets.
        # DeepSeek's price depends on the time of day.
        "deepseek:deepseek-flash": KnownModel(window=1_000_000, output=384_000, thinking=True),
        "mistral:mistral-large": KnownModel(window=262_144, price=Price(0.5, 1.5, 0.05), images=True),
        # The price of cached tokens in long requests is unknown, so the price of other input is used.
        "xai:grok-4.5": KnownModel(
            window=500_000, price=Price(2, 6, 0.5, above=(200_000, Price(4, 12))), images=True, thinking=True
        ),
        "moonshot:kimi-k2.6": KnownModel(window=262_144, price=Price(0.95, 4, 0.16), images=True, thinking=True),
        "groq:openai/gpt-oss-120b": replace(_gpt_oss, output=65_536, price=Price(0.15, 0.6, 0.075)),
        "together:openai/gpt-oss-120b": replace(_gpt_oss, price=Price(0.15, 0.6)),
        "cerebras:gpt-oss-120b": replace(_gpt_oss, output=40_960, price=Price(0.35, 0.75)),
    }
)
"""Models by undated model string, using the maker as host."""

PRICES: Mapping[str, Price] = MappingProxyType(
    {name: known.price for name, known in CATALOG.items() if known.price is not None}
)
"""Known prices from `CATALOG`."""


def find_model(model: str, models: Mapping[str, KnownModel] = CATALOG) -> KnownModel | None:
    """Look up a model under any known name.

    Dates and versions are ignored unless listed. Azure, Bedrock, Vertex and alternative presets use the maker's entry.
    Gateways have their own prices.

    Args:
        model: Model string such as `openai_responses:gpt-5`, `vertex:gemini-2.5-pro-001`,
            `bedrock:us.anthropic.claude-sonnet-4-5-20250929-v1:0`.
        models: Models by model string.

    Returns:
        Model entry, without price for gateways, or None.
    """
    entry, host = _find_entry(model, models), find_host(model)
    if entry is not None or host not in GATEWAYS:
        return entry
    hosted = _find_entry(model.removeprefix(f"{host}:"), models)
    return None if hosted is None else replace(hosted, price=None)


def find_price(model: str, prices: Mapping[str, Price] | None = None) -> Price | None:
    """Look up a price under any known model name.

    Args:
        model: Model string.
        prices: Custom prices, preferred over `CATALOG`.

    Raises:
        ConfigurationError: `prices` is not a mapping.
    """
    check_prices(prices)
    custom = None if prices is None else _find_entry(model, prices)
    if custom is not None:
        return custom
    entry = find_model(model)
    return None if entry is None else entry.price


def _find_entry(model: str, table: Mapping[str, T]) -> T | None:
    return next((table[name] for name in iter_names(model) if name in table), None)
