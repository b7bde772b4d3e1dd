"""Models: wires (OpenAI chat and Responses, Anthropic, Gemini), transports, catalog, retry, fallback, limits.

What people make models from lies here. The rest has rooms of its own: each vendor's protocol (`chat/`, `responses/`,
`anthropic/`, `google/`), what all of these share (`writing/` for requests, `reading/` for answers, `failures/`), the
bytes (`transport/`), and the table of endpoints (`vendors/`).
"""

from __future__ import annotations

from rxloop.providers._keys import KeySource, Sign
from rxloop.providers.anthropic_messages import anthropic_messages
from rxloop.providers.bounds import Bounds
from rxloop.providers.catalog import CATALOG, PRICES, KnownModel, find_model, find_price
from rxloop.providers.clouds import bedrock_url, vertex_url
from rxloop.providers.fallback import Fallback, fallback
from rxloop.providers.google_gemini import google_gemini
from rxloop.providers.hedge import Hedge, hedge
from rxloop.providers.http_model import HTTPModel, ModelOptions, http_model
from rxloop.providers.limited import Limited, limited
from rxloop.providers.models import resolve_model
from rxloop.providers.openai_chat import openai_chat
from rxloop.providers.openai_responses import openai_responses
from rxloop.providers.presets import Preset
from rxloop.providers.prices import Price
from rxloop.providers.retry import Retry, retrying
from rxloop.providers.routed import Routed, routed
from rxloop.providers.transport._timeouts import Timeouts
from rxloop.providers.vendors._presets import PRESETS

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
