"""Commands with a Postgres database."""

from __future__ import annotations

import pytest

from support.cli_workspace import Workspace

pytestmark = pytest.mark.service("postgres")


def test_runs_are_stored_in_the_database_of_the_option(workspace: Workspace, postgres_database: str) -> None:
    workspace.env["RXLOOP_DB"] = postgres_database
    workspace.run("run", "2 + 2")
    waiting = workspace.run("run", "Please pay.", "--tools", "kit:pay", code=3)
    assert postgres_database not in waiting.stderr
    assert [row["state"] for row in workspace.rows()] == ["input-required", "completed"]
    assert workspace.events()[0]["kind"] == "task"
    assert not workspace.database.exists()
    assert "is available" in workspace.run("doctor").stdout


def test_database_password_is_never_shown(workspace: Workspace, postgres_database: str) -> None:
    with_password = postgres_database.replace("@", ":s3cret@", 1)
    done = workspace.run("run", "Please pay.", "--tools", "kit:pay", "--db", with_password, code=3)
    assert "--db postgresql://" in done.stderr
    shown = workspace.run("doctor", "--db", with_password)
    assert "s3cret" not in done.stderr + done.stdout + shown.stdout + shown.stderr


@pytest.mark.parametrize("command", [("run", "2 + 2"), ("runs",)])
def test_url_with_an_unknown_scheme_is_rejected_without_creating_a_file(
    workspace: Workspace, command: tuple[str, ...]
) -> None:
    mistyped = "postgresq://ann:s3cret@127.0.0.1/app"
    done = workspace.run(*command, "--db", mistyped, code=2)
    assert "does not support URLs with the scheme postgresq" in done.stderr
    assert "does not support URLs" in workspace.run("doctor", "--db", mistyped, code=1).stdout
    assert "s3cret" not in done.stderr
    assert not [*workspace.folder.glob("postgresq*")]


def test_missing_database_is_reported_with_a_remedy(workspace: Workspace, postgres_database: str) -> None:
    done = workspace.run("runs", "--db", f"{postgres_database}_missing", code=1)
    assert '_missing" does not exist; create it, for example with createdb, or correct the URL\n' in done.stderr


def test_unreachable_database_is_reported(workspace: Workspace) -> None:
    done = workspace.run("runs", "--db", "postgresql://ann:s3cret@127.0.0.1:1/app?connect_timeout=1", code=1)
    assert "the event log postgresql://127.0.0.1:1/app" in done.stderr
    assert "s3cret" not in done.stderr
