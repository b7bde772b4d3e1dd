"""Addresses of event logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from rxloop import Agent, ConfigurationError, PostgresEventLog, SqliteEventLog, open_log


def test_path_or_sqlite_url_opens_a_sqlite_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for address in (tmp_path / "runs.db", "runs.db", "sqlite:///runs.db", f"sqlite:///{tmp_path}/runs.db"):
        log = open_log(address, keep_deltas=True)
        assert isinstance(log, SqliteEventLog)
        assert log.path == tmp_path / "runs.db"
        assert log.keeps_deltas is True


@pytest.mark.service("postgres")
def test_postgres_url_opens_a_postgres_log() -> None:
    for scheme in ("postgresql", "postgres"):
        log = open_log(f"{scheme}://ann:secret@db.example:6432/app", schema="mine")
        assert isinstance(log, PostgresEventLog)
        assert repr(log) == "<PostgresEventLog postgresql://db.example:6432/app (mine)>"


@pytest.mark.parametrize("address", ["redis://here/0", "sqlite://runs.db", "sqlite:///"])
def test_address_of_an_unknown_kind_is_refused(address: str) -> None:
    with pytest.raises(ConfigurationError, match=r"scheme \w+. Use postgresql://user@host:5432/database"):
        open_log(address)


@pytest.mark.parametrize("address", ["host=db password=secret", " user = ann password=secret", "dbname=app://"])
def test_libpq_connection_string_is_not_used_as_a_file_name(address: str) -> None:
    with pytest.raises(ConfigurationError, match=r"Use a URL such as postgresql://user@host:5432/database") as refused:
        open_log(address)
    assert "secret" not in str(refused.value)


def test_unknown_option_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"received invalid options: .*'session_dsn'"):
        open_log(tmp_path / "runs.db", session_dsn="")


def test_agent_with_an_address_explains_how_to_open_the_log() -> None:
    with pytest.raises(ConfigurationError, match=r"must be an EventLog, such as open_log\('postgresql://db/app'\)"):
        Agent("ollama:none", log="postgresql://db/app")  # type: ignore[arg-type]
