"""`rxloop doctor`: what is there, what is broken, and what to do."""

from __future__ import annotations

import importlib.metadata
import sqlite3
from collections.abc import Callable
from contextlib import closing

import httpx
import pytest
from packaging.requirements import Requirement

from rxloop.cli.commands.doctor import _lacks
from rxloop.cli.model_access import Grade, _answered
from rxloop.providers import PRESETS
from rxloop.storage.sqlite import database
from rxloop.testing import OfflineModel
from support.cli_workspace import Workspace


def without(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """As if those packages were not installed."""
    version: Callable[[str], str] = importlib.metadata.version

    def find(name: str) -> str:
        if name in packages:
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(importlib.metadata, "version", find)


def test_where_nothing_is_broken_it_is_exit_code_0_and_leaves_no_trace(workspace: Workspace) -> None:
    done = workspace.run("doctor")
    assert "✗" not in done.output
    assert done.stdout.endswith("\neverything rxloop needs is there\n")
    assert f"{workspace.database} is not there yet; the first run makes it" in done.stdout
    assert not workspace.database.exists()


def test_a_database_with_runs_is_said_with_their_number(workspace: Workspace) -> None:
    workspace.run("run", "2 + 2")
    assert f"✓ {workspace.database}: 1 run, " in workspace.run("doctor").stdout


def test_an_extra_that_is_missing_is_no_fault_and_is_told_with_its_line(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, "mcp", "pyyaml")
    said = workspace.run("doctor").stdout
    assert '[mcp] servers for MCP clients: mcp is not installed\n      pip install "rxloop[mcp]"' in said
    assert 'pip install "rxloop[yaml]"' in said
    assert "dev" not in said.replace("/dev", "")


def test_a_package_that_is_needed_and_missing_is_a_fault(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "orjson")
    done = workspace.run("doctor", code=1)
    assert "✗ orjson is not installed" in done.stdout
    assert "1 thing is broken" in done.stderr


def test_a_package_that_is_too_old_is_a_fault(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    version = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "5.1.2" if name == "reactivex" else version(name))
    said = workspace.run("doctor", code=1).stdout
    assert "reactivex is 5.1.2 and should be " in said


@pytest.mark.parametrize(
    ("version", "wanted", "fit"),
    [
        ("6.1.0", "<7,>=6", True),
        ("6.0", ">=6", True),
        ("5.9.9", ">=6,<7", False),
        ("7.0.0", ">=6,<7", False),
        ("0.28.1", "<1,>=0.28", True),
        ("2024.1.12", ">=2024.1.12", True),
        ("2.13.0rc1", ">=2.12,<3", True),
        ("0.17.5", "==0.17.5", True),
        ("0.17.6", "==0.17.5", False),
        ("1.4.3", "~=1.4.2", True),
        ("1.5.0", "~=1.4.2", False),
        ("2.0", "!=2.0", False),
        ("1", "", True),
    ],
)
def test_a_version_fits_a_range(version: str, wanted: str, fit: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    assert (_lacks(Requirement(f"it{wanted}")) is None) is fit


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"RXLOOP_MODEL": "zai:glm-4.7"}, "it needs a key: export ZAI_API_KEY=..."),
        ({"RXLOOP_MODEL": "nobody:x"}, "unknown provider 'nobody'"),
        ({"RXLOOP_MODEL": "azure:x", "AZURE_OPENAI_API_KEY": "k"}, "set AZURE_OPENAI_ENDPOINT"),
        ({"RXLOOP_MODEL": "ollama:x", "OLLAMA_HOST": "http://[bad"}, "OLLAMA_HOST must be a URL, got 'http://[bad'"),
    ],
)
def test_a_model_of_the_environment_that_cannot_be_asked_is_a_fault(
    workspace: Workspace, env: dict[str, str], said: str
) -> None:
    assert said in workspace.run("doctor", code=1, **env).stdout


def test_a_database_of_another_program_is_a_fault_and_stays_as_it_is(workspace: Workspace) -> None:
    with closing(sqlite3.connect(workspace.database)) as connection:
        connection.execute("CREATE TABLE mine (a)")
    before = workspace.database.read_bytes()
    assert "is the database of another program" in workspace.run("doctor", code=1).stdout
    assert workspace.database.read_bytes() == before


def test_a_database_that_another_process_holds_is_a_fault(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace.run("run", "2 + 2")
    monkeypatch.setattr("rxloop.cli.database.BUSY_SECONDS", 0.05)
    assert database.BUSY_SECONDS > 0.05
    with closing(sqlite3.connect(workspace.database, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert "database is locked" in workspace.run("doctor", code=1).stdout
        # And no model is asked for nothing.
        done = workspace.run("run", "2 + 2", code=1)
    assert "database is locked" in done.stderr
    assert done.stdout == ""


def test_an_endpoint_that_answers_is_said(workspace: Workspace, offline: OfflineModel, offline_url: str) -> None:
    asked = len(offline.requests)
    said = workspace.run("doctor", "--check-network", f"{offline_url}#offline").stdout
    assert f"✓ {offline_url}/models answers 200, in " in said
    assert len(offline.requests) == asked


def test_a_model_that_the_endpoint_does_not_list_is_a_note(workspace: Workspace, offline_url: str) -> None:
    said = workspace.run("doctor", "--check-network", f"{offline_url}#none").stdout
    assert "does not list 'none'" in said
    assert "it lists offline" in said


def test_an_endpoint_where_nobody_listens_is_a_fault_with_what_to_do(workspace: Workspace) -> None:
    done = workspace.run("doctor", "--check-network", "ollama:qwen3", code=1, OLLAMA_HOST="http://127.0.0.1:9")
    assert "✗ http://127.0.0.1:9/v1/models does not answer: " in done.stdout
    assert "Start it with `ollama serve`." in done.stdout


def test_a_file_of_certificates_that_is_not_there_is_a_fault(workspace: Workspace) -> None:
    done = workspace.run("doctor", "--check-network", "https://127.0.0.1:9/v1#x", code=1, SSL_CERT_FILE="nowhere.pem")
    assert "✗ SSL_CERT_FILE is nowhere.pem, and there is no such file" in done.stdout
    assert "✗ the HTTP client cannot be created: SSL_CERT_FILE must be a readable file" in done.stdout


def test_a_network_check_of_no_model_is_a_fault(workspace: Workspace) -> None:
    assert "unknown provider 'nobody'" in workspace.run("doctor", "--check-network", "nobody:x", code=1).stdout


@pytest.mark.parametrize(
    ("status", "body", "grade", "said"),
    [
        (200, b'{"data": [{"id": "models/glm-4.7"}]}', Grade.good, "took"),
        (200, b'{"data": [{"id": "glm-5"}]}', Grade.note, "it lists glm-5"),
        (200, b"<html>", Grade.good, "took"),
        (401, b"", Grade.bad, "set ZAI_API_KEY to a key that is valid there"),
        (403, b"", Grade.bad, "it refuses the key"),
        (404, b"", Grade.good, "does not list its models"),
        (503, b"", Grade.bad, "try again later"),
    ],
)
def test_what_an_endpoint_answers_is_judged(status: int, body: bytes, grade: Grade, said: str) -> None:
    found = _answered(PRESETS["zai"], "zai", "took", httpx.Response(status, content=body))
    assert found.grade is grade
    assert said in f"{found.says}; {found.hint}"
