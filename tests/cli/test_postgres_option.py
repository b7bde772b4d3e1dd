"""The command with its runs in Postgres."""

from __future__ import annotations

import pytest

from support.cli_workspace import Workspace

pytestmark = pytest.mark.service("postgres")


def test_runs_are_kept_in_the_server_that_the_option_names(workspace: Workspace, postgres_database: str) -> None:
    workspace.env["RXLOOP_DB"] = postgres_database
    workspace.run("run", "2 + 2")
    waiting = workspace.run("run", "Please pay.", "--tools", "kit:pay", code=3)
    assert postgres_database not in waiting.stderr
    assert [row["state"] for row in workspace.rows()] == ["input-required", "completed"]
    assert workspace.events()[0]["kind"] == "task"
    assert not workspace.database.exists()
    assert "can be used" in workspace.run("doctor").stdout


def test_the_password_of_the_server_is_shown_nowhere(workspace: Workspace, postgres_database: str) -> None:
    with_password = postgres_database.replace("@", ":s3cret@", 1)
    done = workspace.run("run", "Please pay.", "--tools", "kit:pay", "--db", with_password, code=3)
    assert "--db postgresql://" in done.stderr
    shown = workspace.run("doctor", "--db", with_password)
    assert "s3cret" not in done.stderr + done.stdout + shown.stdout + shown.stderr


@pytest.mark.parametrize("command", [("run", "2 + 2"), ("runs",)])
def test_an_address_that_names_no_database_is_refused_and_no_file_is_made(
    workspace: Workspace, command: tuple[str, ...]
) -> None:
    mistyped = "postgresq://ann:s3cret@127.0.0.1/app"
    done = workspace.run(*command, "--db", mistyped, code=2)
    assert "there is no log for an address that begins with postgresq://" in done.stderr
    assert "there is no log" in workspace.run("doctor", "--db", mistyped, code=1).stdout
    assert "s3cret" not in done.stderr
    assert not [*workspace.folder.glob("postgresq*")]


def test_a_server_that_is_not_there_is_said_so(workspace: Workspace) -> None:
    done = workspace.run("runs", "--db", "postgresql://ann:s3cret@127.0.0.1:1/app?connect_timeout=1", code=1)
    assert "the event log postgresql://127.0.0.1:1/app" in done.stderr
    assert "s3cret" not in done.stderr
