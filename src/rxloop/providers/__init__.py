"""Models: codecs for vendor APIs, HTTP transport, presets, and combinators of several models."""

from __future__ import annotations

from rxloop.providers.bounds import Bounds, Timeouts
from rxloop.providers.catalog import CATALOG, PRICES, KnownModel, Price, find_model, find_price
from rxloop.providers.combinators.limited import Limited, limited
from rxloop.providers.combinators.selection import Fallback, Hedge, Routed, fallback, hedge, routed
from rxloop.providers.credentials import KeySource, Sign
from rxloop.providers.factories import anthropic_messages, google_gemini, openai_chat, openai_responses, resolve_model
from rxloop.providers.http_model import HTTPModel, ModelOptions, http_model
from rxloop.providers.retry import Retry, retrying
from rxloop.providers.vendors import Preset
from rxloop.providers.vendors.presets import PRESETS
from rxloop.providers.vendors.urls import bedrock_url, vertex_url

__all__ = [
    "CATALOG",
    "PRESETS",
    "PRICES",
    "Bounds",
    "Fallback",
    "HTTPModel",
    "Hedge",
    "KeySource",
    "KnownModel",
    "Limited",
    "ModelOptions",
    "Preset",
    "Price",
    "Retry",
    "Routed",
    "Sign",
    "Timeouts",
    "anthropic_messages",
    "bedrock_url",
    "fallback",
    "find_model",
    "find_price",
    "google_gemini",
    "hedge",
    "http_model",
    "limited",
    "openai_chat",
    "openai_responses",
    "resolve_model",
    "retrying",
    "routed",
    "vertex_url",
]
