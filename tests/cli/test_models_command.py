"""`rxloop models`: which can be named, and whether their keys are there."""

from __future__ import annotations

import orjson
import pytest

from rxloop.providers import CATALOG, PRESETS, resolve_model
from support.cli_workspace import Workspace

SECRET = "sk-very-secret"
PLACES = {"azure", "azure_responses", "bedrock", "vertex", "vertex_anthropic"}
"""Where the environment has to say where they are."""


def test_every_preset_is_listed_with_a_model_that_can_be_named(workspace: Workspace) -> None:
    rows = [orjson.loads(line) for line in workspace.run("models", "--json").stdout.splitlines()]
    assert [row["name"] for row in rows] == list(PRESETS)
    for row in rows:
        assert resolve_model(row["model"]).name == row["model"]
        assert row["baseUrl"] is not None or row["name"] in PLACES


def test_a_key_is_set_or_not_and_never_shown(workspace: Workspace) -> None:
    for arguments in (("models",), ("models", "--json"), ("doctor",)):
        assert SECRET not in workspace.run(*arguments, ZAI_API_KEY=SECRET).output
    row = orjson.loads(workspace.run("models", "--json", ZAI_API_KEY=SECRET).stdout.splitlines()[0])
    assert (row["keyEnv"], row["keySet"], row["keyOptional"]) == ("ZAI_API_KEY", True, False)
    table = [line.split() for line in workspace.run("models", ZAI_API_KEY=SECRET).stdout.splitlines()]
    assert ["zai:glm-4.7", "ZAI_API_KEY", "set", "https://api.z.ai/api/paas/v4"] in table
    assert ["openai:gpt-5", "OPENAI_API_KEY", "not", "set"] in [line[:4] for line in table]


@pytest.mark.parametrize("variable", ["GEMINI_API_KEY", "GOOGLE_API_KEY"])
def test_of_two_variables_for_a_key_the_one_that_is_set_is_named(workspace: Workspace, variable: str) -> None:
    env = {variable: SECRET, "OPENAI_API_KEY": SECRET}
    rows = [orjson.loads(line) for line in workspace.run("models", "--json", code=0, **env).stdout.splitlines()]
    [google] = [row for row in rows if row["name"] == "google"]
    assert (google["keyEnv"], google["keySet"]) == (variable, True)
    assert f"keys are set: OPENAI_API_KEY, {variable}\n" in workspace.run("doctor", code=0, **env).stdout


def test_the_models_that_are_known_are_listed_with_window_limit_prices_and_abilities(workspace: Workspace) -> None:
    table = [line.split(maxsplit=7) for line in workspace.run("models").stdout.splitlines()]
    assert table[0] == ["MODEL", "WINDOW", "OUTPUT", "$", "IN", "CACHED", "OUT", "CAN"]
    assert [line[0] for line in table[1 : len(CATALOG) + 1]] == list(CATALOG)
    assert ["openai:gpt-5", "400k", "128k", "1.25", "0.125", "10"] in [line[:6] for line in table]
    assert ["google:gemini-2.5-pro", "1.05M", "65k", "1.25+"] in [line[:4] for line in table]


def test_those_of_one_vendor_are_listed_alone(workspace: Workspace) -> None:
    said = workspace.run("models", "azure").stdout
    assert "openai:gpt-5 " in said
    assert "azure:MODEL" in said
    assert "zai" not in said
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


def test_of_one_model_all_is_said_under_any_of_its_names(workspace: Workspace) -> None:
    name = "bedrock:us.anthropic.claude-sonnet-4-5-20250929-v1:0"
    said = workspace.run("models", name).stdout
    assert said.startswith(f"{name}\n  window 200,000 tokens\n  answers up to 64,000 tokens\n")
    assert "$3.75 written to the cache, $6 written to be kept for long, $15 output" in said
    assert "of a request above 200,000 tokens: $6 input" in said
    fields = orjson.loads(workspace.run("models", name, "--json").stdout)
    assert fields["model"] == name
    assert fields["price"]["above"] == {"tokens": 200_000, "price": {**fields["price"]["above"]["price"], "input": 6}}
    assert "price not known" in workspace.run("models", "openrouter:openai/gpt-5").stdout


def test_a_model_of_which_nothing_is_known_is_a_wrong_use(workspace: Workspace) -> None:
    said = workspace.run("models", f"http://me:{SECRET}@host/v1#m", code=2).stderr
    assert "nothing is known of 'http://host/v1" in said
    assert SECRET not in said
    assert "the vendors are zai, openai" in said


def test_what_is_secret_in_an_address_is_left_out(workspace: Workspace) -> None:
    address = f"http://me:{SECRET}@host:1/v1?key={SECRET}"
    for arguments in (("models",), ("models", "--json"), ("doctor",)):
        env = {"OLLAMA_HOST": address, "RXLOOP_MODEL": f"{address}#m", "HTTPS_PROXY": address}
        said = workspace.run(*arguments, code=0, **env).output
        assert SECRET not in said
        assert "http://host:1/v1" in said


@pytest.mark.parametrize("wrong", ["http://[bad", "[bad"])
def test_an_address_that_is_none_is_said(workspace: Workspace, wrong: str) -> None:
    assert "OLLAMA_HOST is not an address" in workspace.run("models", OLLAMA_HOST=wrong).stdout
    rows = [orjson.loads(line) for line in workspace.run("models", "--json", OLLAMA_HOST=wrong).stdout.splitlines()]
    assert {row["name"] for row in rows if row["baseUrl"] is None} == PLACES | {"ollama"}
