"""What is said of the key of a preset."""

from __future__ import annotations

import httpx
import pytest

from rxloop.cli.commands import doctor, models
from rxloop.cli.model_access import Finding, Grade, _answered, how_to_get_in, key_state, key_variable
from rxloop.providers import Preset
from rxloop.providers.vendors.urls import vertex_url
from support.cli_workspace import Workspace


def preset(**fields: object) -> Preset:
    given: dict[str, object] = {"name": "mine", "base_url": "http://host/v1", **fields}
    return Preset(**given)  # pyright: ignore[reportArgumentType]


def account() -> Preset:
    """As Vertex is: addressed by the environment, and asked with the account of the machine."""
    return preset(base_url=None, find_url=vertex_url, key_source=lambda: lambda: "token", token_source=True)


@pytest.mark.parametrize(
    ("made", "state", "way"),
    [
        (preset(), "not needed", ""),
        (preset(key_env="MINE_KEY"), "not set", "export MINE_KEY=..."),
        (preset(key_env="MINE_KEY", key_optional=True), "optional", "export MINE_KEY=..."),
        (preset(key_env="MINE_KEY", key_hint="pass sign="), "not set", "export MINE_KEY=..., or pass sign="),
        (preset(key_hint="pass sign="), "not set", "pass sign="),
        (account(), "by account", ""),
    ],
)
def test_the_state_says_how_the_vendor_can_be_asked(made: Preset, state: str, way: str) -> None:
    assert (key_state(made), how_to_get_in(made)) == (state, way)


def test_the_variable_is_the_one_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    made = preset(key_env="ONE", other_key_env="TWO")
    assert key_variable(made) == "ONE"
    monkeypatch.setenv("TWO", "k")
    assert (key_variable(made), key_state(made)) == ("TWO", "set")
    monkeypatch.setenv("ONE", " ")
    assert key_variable(made) == "TWO"
    monkeypatch.setenv("ONE", "k")
    assert key_variable(made) == "ONE"


def test_a_place_in_a_cloud_is_said_once_the_environment_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> list[Finding]:
        return list(doctor._clouds())

    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT", raising=False)
    monkeypatch.setattr(doctor, "PRESETS", {"mine": account()})
    assert found() == []
    assert models._address(account()) == (
        "set GOOGLE_CLOUD_PROJECT, or pass base_url=vertex_url(project, location)",
        False,
    )
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "p")
    monkeypatch.setenv("GOOGLE_CLOUD_LOCATION", "eu")
    [finding] = found()
    assert finding.grade is Grade.good
    assert finding.says.startswith("mine is asked with the account of this machine, at https://aiplatform.eu.rep")


def test_a_key_without_an_address_is_told(workspace: Workspace) -> None:
    said = workspace.run("doctor", AZURE_OPENAI_API_KEY="k").stdout
    assert "· azure has a key and no address\n      missing URL for 'azure'; set AZURE_OPENAI_ENDPOINT" in said
    env = {"AZURE_OPENAI_API_KEY": "k", "AZURE_OPENAI_ENDPOINT": "https://r.openai.azure.com"}
    assert "✓ azure is asked with a key, at https://r.openai.azure.com" in workspace.run("doctor", code=0, **env).stdout


def test_credentials_that_are_not_there_are_told(workspace: Workspace) -> None:
    said = workspace.run("doctor", GOOGLE_APPLICATION_CREDENTIALS="nowhere.json").stdout
    assert "· GOOGLE_APPLICATION_CREDENTIALS is nowhere.json, and there is no such file" in said


def test_an_account_that_the_check_does_not_use_is_no_key_that_is_refused() -> None:
    found = _answered(account(), "mine:m", "took", httpx.Response(401))
    assert (found.grade, found.says) == (Grade.good, "took: it is there; the account was not tried")


def test_a_model_that_needs_a_key_is_not_begun(workspace: Workspace) -> None:
    said = workspace.run("run", "--model", "google:gemini-3.5-flash", "Hi", code=2).stderr
    assert "google:gemini-3.5-flash needs a key: export GEMINI_API_KEY=..." in said
