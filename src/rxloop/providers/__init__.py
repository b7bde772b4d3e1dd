"""LLM providers over httpx."""

from __future__ import annotations

from rxloop.providers._vendors import PRESETS
from rxloop.providers.models import resolve_model
from rxloop.providers.openai_chat import OpenAIChat, Timeouts, openai_chat
from rxloop.providers.presets import Preset
from rxloop.providers.retry import Retry
from rxloop.providers.routed import Routed, routed

__all__ = [
    "PRESETS",
    "OpenAIChat",
    "Preset",
    "Retry",
    "Routed",
    "Timeouts",
    "openai_chat",
    "resolve_model",
    "routed",
]
