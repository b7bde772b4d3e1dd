"""Models and key states of `rxloop models`."""

from __future__ import annotations

import orjson
import pytest

from rxloop.providers import CATALOG, PRESETS, resolve_model
from support.cli_workspace import Workspace

SECRET = "sk-very-secret"
PLACES = {"azure", "azure_responses", "bedrock", "vertex", "vertex_anthropic"}
"""Presets without a default URL."""


def test_every_preset_is_listed_with_a_valid_model_string(workspace: Workspace) -> None:
    rows = [orjson.loads(line) for line in workspace.run("models", "--json").stdout.splitlines()]
    assert [row["name"] for row in rows] == list(PRESETS)
    for row in rows:
        assert resolve_model(row["model"]).name == row["model"]
        assert row["baseUrl"] is not None or row["name"] in PLACES


def test_key_state_is_shown_without_the_key(workspace: Workspace) -> None:
    for arguments in (("models",), ("models", "--json"), ("doctor",)):
        assert SECRET not in workspace.run(*arguments, ZAI_API_KEY=SECRET).output
    row = orjson.loads(workspace.run("models", "--json", ZAI_API_KEY=SECRET).stdout.splitlines()[0])
    assert (row["keyEnv"], row["keySet"], row["keyOptional"]) == ("ZAI_API_KEY", True, False)
    table = [line.split() for line in workspace.run("models", ZAI_API_KEY=SECRET).stdout.splitlines()]
    assert ["zai:glm-4.7", "ZAI_API_KEY", "set", "https://api.z.ai/api/paas/v4"] in table
    assert ["openai:gpt-5", "OPENAI_API_KEY", "not", "set"] in [line[:4] for line in table]


@pytest.mark.parametrize("variable", ["GEMINI_API_KEY", "GOOGLE_API_KEY"])
def test_key_variable_that_is_set_is_listed(workspace: Workspace, variable: str) -> None:
    env = {variable: SECRET, "OPENAI_API_KEY": SECRET}
    rows = [orjson.loads(line) for line in workspace.run("models", "--json", code=0, **env).stdout.splitlines()]
    [google] = [row for row in rows if row["name"] == "google"]
    assert (google["keyEnv"], google["keySet"]) == (variable, True)
    assert f"keys are set: OPENAI_API_KEY, {variable}\n" in workspace.run("doctor", code=0, **env).stdout


def test_known_models_are_listed_with_window_limit_prices_and_abilities(workspace: Workspace) -> None:
    table = [line.split(maxsplit=7) for line in workspace.run("models").stdout.splitlines()]
    assert table[0] == ["MODEL", "WINDOW", "OUTPUT", "$", "IN", "CACHED", "OUT", "CAN"]
    assert [line[0] for line in table[1 : len(CATALOG) + 1]] == list(CATALOG)
    assert ["openai:gpt-5", "400k", "128k", "1.25", "0.125", "10"] in [line[:6] for line in table]
    assert ["google:gemini-2.5-pro", "1.05M", "65k", "1.25+"] in [line[:4] for line in table]


def test_models_of_a_single_vendor_are_listed(workspace: Workspace) -> None:
    output = workspace.run("models", "azure").stdout
    assert "openai:gpt-5 " in output
    assert "azure:MODEL" in output
    assert "zai" not in output
    [row] = [orjson.loads(line) for line in workspace.run("models", "zai", "--json").stdout.splitlines()]
    assert row["known"]["zai:glm-4.7"] == {
        "window": 200_000,
        "output": 131_072,
        "can": ["tools", "thinking"],
        "price": {
            "input": 0.6,
            "output": 2.2,
            "cached": 0.11,
            "cacheWrite": None,
            "cacheWriteLong": None,
            "above": None,
        },
    }


def test_model_details_are_shown_for_every_name_of_the_model(workspace: Workspace) -> None:
    name = "bedrock:us.anthropic.claude-sonnet-4-5-20250929-v1:0"
    output = workspace.run("models", name).stdout
    assert output.startswith(f"{name}\n  window 200,000 tokens\n  maximum output 64,000 tokens\n")
    assert "$3.75 cache write, $6 long-term cache write, $15 output" in output
    assert "for requests with more than 200,000 tokens: $6 input" in output
    fields = orjson.loads(workspace.run("models", name, "--json").stdout)
    assert fields["model"] == name
    assert fields["price"]["above"] == {"tokens": 200_000, "price": {**fields["price"]["above"]["price"], "input": 6}}
    assert "unknown price" in workspace.run("models", "openrouter:openai/gpt-5").stdout


def test_unknown_model_is_invalid_usage(workspace: Workspace) -> None:
    output = workspace.run("models", f"http://me:{SECRET}@host/v1#m", code=2).stderr
    assert "unknown model or vendor 'http://host/v1" in output
    assert SECRET not in output
    assert "available vendors: zai, openai" in output


def test_secrets_of_a_url_are_redacted(workspace: Workspace) -> None:
    address = f"http://me:{SECRET}@host:1/v1?key={SECRET}"
    for arguments in (("models",), ("models", "--json"), ("doctor",)):
        env = {"OLLAMA_HOST": address, "RXLOOP_MODEL": f"{address}#m", "HTTPS_PROXY": address}
        output = workspace.run(*arguments, code=0, **env).output
        assert SECRET not in output
        assert "http://host:1/v1" in output


@pytest.mark.parametrize("wrong", ["http://[bad", "[bad"])
def test_invalid_url_variable_is_reported(workspace: Workspace, wrong: str) -> None:
    assert "OLLAMA_HOST is not a URL" in workspace.run("models", OLLAMA_HOST=wrong).stdout
    rows = [orjson.loads(line) for line in workspace.run("models", "--json", OLLAMA_HOST=wrong).stdout.splitlines()]
    assert {row["name"] for row in rows if row["baseUrl"] is None} == PLACES | {"ollama"}
