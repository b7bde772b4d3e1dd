"""Checks and hints of `rxloop doctor`."""

from __future__ import annotations

import importlib.metadata
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from packaging.requirements import Requirement

import rxloop
from rxloop.cli.commands.doctor import _find_problem
from rxloop.cli.installation import format_install_command, make_install_command
from rxloop.cli.model_access import Grade, _assess_response
from rxloop.providers import PRESETS
from rxloop.storage.sqlite import database
from rxloop.testing import OfflineModel
from support.cli_workspace import Workspace


def hide_packages(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """Simulate missing packages."""
    version: Callable[[str], str] = importlib.metadata.version

    def find(name: str) -> str:
        if name in packages:
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(importlib.metadata, "version", find)


def test_doctor_exits_with_code_0_and_creates_no_files(workspace: Workspace) -> None:
    done = workspace.run("doctor")
    assert "✗" not in done.output
    assert done.stdout.endswith("\nno errors found\n")
    assert f"{workspace.database} does not exist; the first run creates it" in done.stdout
    assert not workspace.database.exists()


def test_doctor_reports_the_number_of_runs(workspace: Workspace) -> None:
    workspace.run("run", "2 + 2")
    assert f"✓ {workspace.database}: 1 run, " in workspace.run("doctor").stdout


def test_missing_extra_is_a_note_with_the_install_command(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_packages(monkeypatch, "mcp", "pyyaml")
    output = workspace.run("doctor").stdout
    assert f"[mcp] servers for MCP clients: mcp is not installed\n      {make_install_command('mcp')}\n" in output
    assert make_install_command("yaml") in output
    assert not {"[dev]", "[docs]", "[test]"} & set(output.split())


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        (None, '"rxloop[mcp]"'),
        ('{"url": "file:///home/ann/my%20code/rxloop", "dir_info": {}}', '"/home/ann/my code/rxloop[mcp]"'),
        ('{"url": "file:///code/rxloop", "dir_info": {"editable": true}}', '-e "/code/rxloop[mcp]"'),
        (
            '{"url": "https://host/rxloop.git", "vcs_info": {"vcs": "git"}}',
            '"rxloop[mcp] @ git+https://host/rxloop.git"',
        ),
        ('{"url": "file:///rxloop.whl", "archive_info": {}}', '"rxloop[mcp] @ file:///rxloop.whl"'),
    ],
)
def test_install_command_uses_the_origin_of_the_package(origin: str | None, expected: str) -> None:
    assert format_install_command("mcp", origin) == f"pip install {expected}"


def test_doctor_prints_the_folder_of_the_package(workspace: Workspace) -> None:
    assert f"in {Path(rxloop.__file__).parent}\n" in workspace.run("doctor").stdout


def test_missing_required_package_is_an_error(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    hide_packages(monkeypatch, "orjson")
    done = workspace.run("doctor", code=1)
    assert "✗ orjson is not installed" in done.stdout
    assert "1 error found" in done.stderr


def test_outdated_package_is_an_error(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    version = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "5.1.2" if name == "reactivex" else version(name))
    output = workspace.run("doctor", code=1).stdout
    assert "reactivex must be " in output


@pytest.mark.parametrize(
    ("version", "specifier", "is_met"),
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
def test_version_is_compared_with_the_required_range(
    version: str, specifier: str, is_met: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    assert (_find_problem(Requirement(f"it{specifier}")) is None) is is_met


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"RXLOOP_MODEL": "zai:glm-4.7"}, "requires a key: export ZAI_API_KEY=..."),
        ({"RXLOOP_MODEL": "nobody:x"}, "unknown provider 'nobody'"),
        ({"RXLOOP_MODEL": "azure:x", "AZURE_OPENAI_API_KEY": "k"}, "set AZURE_OPENAI_ENDPOINT"),
        ({"RXLOOP_MODEL": "ollama:x", "OLLAMA_HOST": "http://[bad"}, "OLLAMA_HOST must be a URL, got 'http://[bad'"),
    ],
)
def test_unusable_model_of_the_environment_is_an_error(
    workspace: Workspace, env: dict[str, str], expected: str
) -> None:
    assert expected in workspace.run("doctor", code=1, **env).stdout


def test_database_of_another_application_is_an_error_and_is_not_changed(workspace: Workspace) -> None:
    with closing(sqlite3.connect(workspace.database)) as connection:
        connection.execute("CREATE TABLE mine (a)")
    before = workspace.database.read_bytes()
    assert "belongs to another program" in workspace.run("doctor", code=1).stdout
    assert workspace.database.read_bytes() == before


def test_locked_database_is_an_error(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace.run("run", "2 + 2")
    monkeypatch.setattr("rxloop.cli.database.BUSY_SECONDS", 0.05)
    assert database.BUSY_SECONDS > 0.05
    with closing(sqlite3.connect(workspace.database, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert "database is locked" in workspace.run("doctor", code=1).stdout
        # The model must not be called.
        done = workspace.run("run", "2 + 2", code=1)
    assert "database is locked" in done.stderr
    assert done.stdout == ""


def test_reachable_endpoint_is_reported(workspace: Workspace, offline: OfflineModel, offline_url: str) -> None:
    request_count = len(offline.requests)
    output = workspace.run("doctor", "--check-network", f"{offline_url}#offline").stdout
    assert f"✓ {offline_url}/models responded with 200 in " in output
    assert len(offline.requests) == request_count


def test_unlisted_model_is_a_note(workspace: Workspace, offline_url: str) -> None:
    output = workspace.run("doctor", "--check-network", f"{offline_url}#none").stdout
    assert "does not list 'none'" in output
    assert "listed models: offline" in output


def test_unreachable_endpoint_is_an_error_with_a_hint(workspace: Workspace) -> None:
    done = workspace.run("doctor", "--check-network", "ollama:qwen3", code=1, OLLAMA_HOST="http://127.0.0.1:9")
    assert "✗ http://127.0.0.1:9/v1/models does not respond: " in done.stdout
    assert "Start it with `ollama serve`." in done.stdout


def test_missing_certificate_file_is_an_error(workspace: Workspace) -> None:
    done = workspace.run("doctor", "--check-network", "https://127.0.0.1:9/v1#x", code=1, SSL_CERT_FILE="nowhere.pem")
    assert "✗ SSL_CERT_FILE is nowhere.pem, which does not exist" in done.stdout
    assert "✗ cannot create the HTTP client: SSL_CERT_FILE must be a readable file" in done.stdout


def test_network_check_of_an_unknown_model_is_an_error(workspace: Workspace) -> None:
    assert "unknown provider 'nobody'" in workspace.run("doctor", "--check-network", "nobody:x", code=1).stdout


@pytest.mark.parametrize(
    ("status", "body", "grade", "expected"),
    [
        (200, b'{"data": [{"id": "models/glm-4.7"}]}', Grade.good, "took"),
        (200, b'{"data": [{"id": "glm-5"}]}', Grade.note, "listed models: glm-5"),
        (200, b"<html>", Grade.good, "took"),
        (401, b"", Grade.bad, "set ZAI_API_KEY to a valid key"),
        (403, b"", Grade.bad, "the key was rejected"),
        (404, b"", Grade.good, "models cannot be listed"),
        (503, b"", Grade.bad, "try again later"),
    ],
)
def test_endpoint_response_determines_the_grade(status: int, body: bytes, grade: Grade, expected: str) -> None:
    finding = _assess_response(PRESETS["zai"], "zai", "took", httpx.Response(status, content=body))
    assert finding.grade is grade
    assert expected in f"{finding.message}; {finding.hint}"
