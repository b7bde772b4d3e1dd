"""States of preset keys."""

from __future__ import annotations

import httpx
import pytest

from rxloop.cli.commands import doctor, models
from rxloop.cli.model_access import (
    Finding,
    Grade,
    _assess_response,
    describe_key_setup,
    get_key_state,
    get_key_variable,
)
from rxloop.providers import Preset
from rxloop.providers.vendors.urls import vertex_url
from support.cli_workspace import Workspace


def make_preset(**fields: object) -> Preset:
    options: dict[str, object] = {"name": "mine", "base_url": "http://host/v1", **fields}
    return Preset(**options)  # pyright: ignore[reportArgumentType]


def make_account_preset() -> Preset:
    """Create a preset like Vertex, with an endpoint from the environment and machine credentials."""
    return make_preset(base_url=None, find_url=vertex_url, key_source=lambda: lambda: "token", token_source=True)


@pytest.mark.parametrize(
    ("preset", "state", "setup"),
    [
        (make_preset(), "not needed", ""),
        (make_preset(key_env="MINE_KEY"), "not set", "export MINE_KEY=..., or rxloop keys set MINE_KEY"),
        (
            make_preset(key_env="MINE_KEY", key_optional=True),
            "optional",
            "export MINE_KEY=..., or rxloop keys set MINE_KEY",
        ),
        (
            make_preset(key_env="MINE_KEY", key_hint="pass sign="),
            "not set",
            "export MINE_KEY=..., or rxloop keys set MINE_KEY, or pass sign=",
        ),
        (make_preset(key_hint="pass sign="), "not set", "pass sign="),
        (make_account_preset(), "by account", ""),
    ],
)
def test_key_state_of_a_preset(preset: Preset, state: str, setup: str) -> None:
    assert (get_key_state(preset), describe_key_setup(preset)) == (state, setup)


def test_key_variable_is_the_variable_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    preset = make_preset(key_env="ONE", other_key_env="TWO")
    assert get_key_variable(preset) == "ONE"
    monkeypatch.setenv("TWO", "k")
    assert (get_key_variable(preset), get_key_state(preset)) == ("TWO", "set")
    monkeypatch.setenv("ONE", " ")
    assert get_key_variable(preset) == "TWO"
    monkeypatch.setenv("ONE", "k")
    assert get_key_variable(preset) == "ONE"


def test_cloud_endpoint_is_reported_when_it_is_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> list[Finding]:
        return list(doctor._check_clouds())

    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT", raising=False)
    monkeypatch.setattr(doctor, "PRESETS", {"mine": make_account_preset()})
    assert check() == []
    assert models._describe_endpoint(make_account_preset()) == (
        "set GOOGLE_CLOUD_PROJECT, or pass base_url=vertex_url(project, location)",
        False,
    )
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "p")
    monkeypatch.setenv("GOOGLE_CLOUD_LOCATION", "eu")
    [finding] = check()
    assert finding.grade is Grade.good
    assert finding.message.startswith("mine uses the account of this machine, at https://aiplatform.eu.rep")


def test_key_without_a_url_is_a_note(workspace: Workspace) -> None:
    output = workspace.run("doctor", AZURE_OPENAI_API_KEY="k").stdout
    assert "· azure has a key but no URL\n      missing URL for 'azure'; set AZURE_OPENAI_ENDPOINT" in output
    env = {"AZURE_OPENAI_API_KEY": "k", "AZURE_OPENAI_ENDPOINT": "https://r.openai.azure.com"}
    assert "✓ azure uses a key, at https://r.openai.azure.com" in workspace.run("doctor", code=0, **env).stdout


def test_missing_credentials_file_is_a_note(workspace: Workspace) -> None:
    output = workspace.run("doctor", GOOGLE_APPLICATION_CREDENTIALS="nowhere.json").stdout
    assert "· GOOGLE_APPLICATION_CREDENTIALS is nowhere.json, which does not exist" in output


def test_unauthorized_response_without_a_key_is_not_a_rejected_key() -> None:
    finding = _assess_response(make_account_preset(), "mine:m", "took", httpx.Response(401))
    assert (finding.grade, finding.message) == (Grade.good, "took: reachable; account not checked")


def test_run_without_the_required_key_is_not_started(workspace: Workspace) -> None:
    output = workspace.run("run", "--model", "google:gemini-3.5-flash", "Hi", code=2).stderr
    assert "missing key for google:gemini-3.5-flash: export GEMINI_API_KEY=..." in output
