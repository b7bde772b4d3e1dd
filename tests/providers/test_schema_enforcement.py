"""Schema enforcement by combined models."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from rxloop import Agent
from rxloop.pipeline.interfaces import Provider
from rxloop.providers import PRESETS, fallback, hedge, limited, openai_chat, routed
from rxloop.testing import ScriptedModel

OPENAI, AZURE, ZAI = "openai:gpt-5", "azure:gpt-5", "zai:glm-4.7"
UNKNOWN = ScriptedModel("{}")


class City(BaseModel):
    name: str


@pytest.mark.parametrize(
    ("model", "keeps"),
    [
        (fallback(OPENAI, AZURE), True),
        (fallback(OPENAI, ZAI), False),
        (fallback(ZAI, UNKNOWN), False),
        (fallback(OPENAI, UNKNOWN), None),
        (hedge(OPENAI, AZURE, after=1), True),
        (hedge(OPENAI, ZAI, after=1), False),
        (limited(OPENAI, concurrent=1), True),
        (limited(ZAI, concurrent=1), False),
        (limited(UNKNOWN, concurrent=1), None),
        (limited(fallback(OPENAI, AZURE), concurrent=1), True),
        (routed(lambda request: OPENAI), False),
    ],
)
def test_combination_enforces_a_schema_if_all_its_models_do(model: Provider, keeps: bool | None) -> None:
    assert getattr(model, "enforces_schema", None) is keeps


CHAT = [name for name, preset in PRESETS.items() if preset.wire in ("openai", "openai_chat")]


@pytest.mark.parametrize(("name", "keeps"), [(name, name in ("openai", "openai_chat", "azure")) for name in CHAT])
def test_only_documented_presets_enforce_a_schema(name: str, keeps: bool) -> None:
    assert openai_chat("m", preset=name).enforces_schema is keeps


async def test_combination_that_does_not_enforce_a_schema_is_instructed() -> None:
    inner = ScriptedModel('{"name": "Oslo"}')
    result = await Agent(routed(lambda request: inner), output_type=City, output_mode="native").run("?")
    assert result.output == City(name="Oslo")
    assert "JSON Schema" in inner.requests[0].system[0].text
