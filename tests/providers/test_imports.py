"""Imports of codecs and error patterns on demand."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODECS = ("anthropic", "chat", "gemini", "responses")
ASK = """
import asyncio
from rxloop import Message
from rxloop.pipeline.requests import ModelRequest
from rxloop.providers.factories import resolve_model
model = resolve_model({model!r})
model._wire.url("http://localhost")
model._wire.encode(ModelRequest(messages=[Message.user("Hi"), Message.assistant("Ho"), Message.user("Well?")]), print)
"""


def list_modules(code: str) -> set[str]:
    """Return the provider modules that a new process has imported after running code."""
    listing = "import sys; print(*(n for n in sys.modules if n.startswith('rxloop.providers.')))"
    run = subprocess.run([sys.executable, "-c", f"{code}\n{listing}"], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def list_codecs(code: str) -> set[str]:
    """Return the codecs that a new process has imported after running code."""
    return {codec for codec in CODECS if f"rxloop.providers.codecs.{codec}" in list_modules(code)}


@pytest.mark.parametrize("code", ["import rxloop; rxloop.Agent", "import rxloop.providers as p; p.fallback, p.PRESETS"])
def test_no_codec_is_imported_before_a_model_is_created(code: str) -> None:
    assert list_codecs(code) == set()


@pytest.mark.parametrize(
    ("model", "codec"),
    [
        ("anthropic", "anthropic"),
        ("bedrock:anthropic.claude-sonnet-4-5-20250929-v1:0", "anthropic"),
        ("google", "gemini"),
        ("openai:gpt-5", "responses"),
        ("openai:gpt-4o", "chat"),
        ("mistral", "chat"),
    ],
)
def test_model_only_imports_its_own_codec(model: str, codec: str) -> None:
    assert list_codecs(ASK.format(model=model)) == {codec}


def test_error_patterns_are_not_imported_before_a_call_fails() -> None:
    modules = list_modules(ASK.format(model="mistral"))
    assert "rxloop.providers.error_responses" in modules
    assert "rxloop.providers.error_messages" not in modules
