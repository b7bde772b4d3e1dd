"""Each codec is imported by itself, and only when a model is made that uses it."""

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


def imported(code: str) -> set[str]:
    """Return the codecs that a new process has imported after running code."""
    tell = "import sys; print(*(n for n in sys.modules if n.startswith('rxloop.providers.codecs.')))"
    run = subprocess.run([sys.executable, "-c", f"{code}\n{tell}"], capture_output=True, text=True, check=True)
    return {name.split(".")[3] for name in run.stdout.split()}.intersection(CODECS)


@pytest.mark.parametrize("code", ["import rxloop; rxloop.Agent", "import rxloop.providers as p; p.fallback, p.PRESETS"])
def test_no_codec_is_imported_before_a_model_is_made(code: str) -> None:
    assert imported(code) == set()


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
def test_a_model_imports_its_own_codec_alone(model: str, codec: str) -> None:
    assert imported(ASK.format(model=model)) == {codec}
