"""`rxloop models`: which can be named, and whether their keys are there."""

from __future__ import annotations

import orjson
import pytest

from commands import Place
from rxloop.providers import PRESETS, resolve_model

SECRET = "sk-very-secret"


def test_every_preset_is_listed_with_a_model_that_can_be_named(place: Place) -> None:
    rows = [orjson.loads(line) for line in place.run("models", "--json").stdout.splitlines()]
    assert [row["name"] for row in rows] == list(PRESETS)
    for row in rows:
        assert resolve_model(row["model"]).name == row["model"]
        assert row["baseUrl"] is not None or row["name"] == "azure"


def test_a_key_is_set_or_not_and_never_shown(place: Place) -> None:
    for arguments in (("models",), ("models", "--json"), ("doctor",)):
        assert SECRET not in place.run(*arguments, ZAI_API_KEY=SECRET).output
    row = orjson.loads(place.run("models", "--json", ZAI_API_KEY=SECRET).stdout.splitlines()[0])
    assert (row["keyEnv"], row["keySet"], row["keyOptional"]) == ("ZAI_API_KEY", True, False)
    table = [line.split() for line in place.run("models", ZAI_API_KEY=SECRET).stdout.splitlines()]
    assert table[1] == ["zai:glm-4.7", "ZAI_API_KEY", "set", "https://api.z.ai/api/paas/v4"]
    assert table[2][:4] == ["openai:gpt-5", "OPENAI_API_KEY", "not", "set"]


def test_what_is_secret_in_an_address_is_left_out(place: Place) -> None:
    address = f"http://me:{SECRET}@host:1/v1?key={SECRET}"
    for arguments in (("models",), ("models", "--json"), ("doctor",)):
        env = {"OLLAMA_HOST": address, "RXLOOP_MODEL": f"{address}#m", "HTTPS_PROXY": address}
        said = place.run(*arguments, code=0, **env).output
        assert SECRET not in said
        assert "http://host:1/v1" in said


@pytest.mark.parametrize("wrong", ["http://[bad", "[bad"])
def test_an_address_that_is_none_is_said(place: Place, wrong: str) -> None:
    assert "OLLAMA_HOST is not an address" in place.run("models", OLLAMA_HOST=wrong).stdout
    rows = [orjson.loads(line) for line in place.run("models", "--json", OLLAMA_HOST=wrong).stdout.splitlines()]
    assert [row["name"] for row in rows if row["baseUrl"] is None] == ["azure", "ollama"]
