"""Contract, files, crashes and concurrent use of the artifact stores."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rxloop import SqliteEventLog
from rxloop.errors import ArtifactError, ConfigurationError, EventLogError, UnknownArtifact
from rxloop.pipeline.artifacts import ArtifactStore
from rxloop.storage import FolderArtifacts, MemoryArtifacts, PostgresArtifacts, SqliteArtifacts, folder_artifacts
from rxloop.testing.artifact_store_contract import CHECKS, SHARED_CHECKS, Check, SharedCheck
from support.postgres.server import clear_log

MAKERS: dict[str, Callable[[Path], ArtifactStore]] = {
    "memory": lambda folder: MemoryArtifacts(),
    "folder": lambda folder: FolderArtifacts(folder / "files"),
    "sqlite": lambda folder: SqliteArtifacts(folder / "app.db"),
}
WRITER = [sys.executable, str(Path(__file__).with_name("artifact_writer.py"))]


@pytest.mark.service("postgres")
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_postgres_store_passes_the_contract(check: Check, postgres: str) -> None:
    await check(lambda: PostgresArtifacts(clear_log(postgres)))


@pytest.mark.service("postgres")
@pytest.mark.parametrize("check", SHARED_CHECKS, ids=lambda check: check.__name__)
async def test_two_stores_of_one_database_pass_the_contract(check: SharedCheck, postgres: str) -> None:
    await check(lambda: (PostgresArtifacts(clear_log(postgres)), PostgresArtifacts(postgres)))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", MAKERS)
async def test_store_passes_the_contract(kind: str, check: Check, tmp_path: Path) -> None:  # L126, L129
    await check(lambda: MAKERS[kind](tmp_path))


@pytest.mark.parametrize("check", SHARED_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", ["folder", "sqlite"])
async def test_two_stores_of_one_folder_or_file_pass_the_contract(
    kind: str, check: SharedCheck, tmp_path: Path
) -> None:
    await check(lambda: (MAKERS[kind](tmp_path), MAKERS[kind](tmp_path)))


async def create(store: ArtifactStore, artifact_id: str = "a.txt", context: str = "c", **fields: Any) -> None:
    options: dict[str, Any] = {
        "name": "a",
        "media_type": "text/plain",
        "override": False,
        "key": f"create {artifact_id}",
        "now": 1,
    }
    await store.create(context, artifact_id, **{**options, **fields})


async def append(store: ArtifactStore, data: bytes, key: str, artifact_id: str = "a.txt", last: bool = False) -> None:
    await store.append("c", artifact_id, data, version=None, last=last, key=key, now=2)


async def test_folder_store_writes_named_files_that_only_the_owner_can_read(tmp_path: Path) -> None:
    store = FolderArtifacts(tmp_path / "files")
    await create(store, "report.md")
    await append(store, b"# Oslo\n", "1", "report.md")
    assert (tmp_path / "files/c/v1/report.md").read_bytes() == b"# Oslo\n"
    for path in (tmp_path / "files", *(tmp_path / "files").rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize("link_path", ["c", "c/v1", "c/.journal", "c/v1/a.txt", "c/.journal/a.txt"])
async def test_symbolic_link_in_the_folder_is_never_followed(link_path: str, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.txt").write_text("secret")
    link = tmp_path / "files" / link_path
    link.parent.mkdir(parents=True)
    link.symlink_to(outside / "a.txt" if link_path.endswith(".txt") else outside)
    store = FolderArtifacts(tmp_path / "files")
    with pytest.raises(ArtifactError):
        await create(store)
    with pytest.raises(ArtifactError):
        await append(store, b"x", "1")
    with pytest.raises(ArtifactError):
        await store.read("c", "a.txt")
    assert [path.name for path in outside.iterdir()] == ["a.txt"]
    assert (outside / "a.txt").read_text() == "secret"


async def test_named_pipe_instead_of_a_file_is_an_error_and_does_not_block(tmp_path: Path) -> None:
    store = FolderArtifacts(tmp_path / "files")
    await create(store)
    content = tmp_path / "files/c/v1/a.txt"
    content.unlink()
    os.mkfifo(content)
    with pytest.raises(ArtifactError):
        await append(store, b"x", "1")
    with pytest.raises(ArtifactError):
        await store.read("c", "a.txt", limit=1)


async def test_partial_chunk_after_a_crash_is_ignored_and_overwritten(tmp_path: Path) -> None:
    store = FolderArtifacts(tmp_path / "files")
    await create(store)
    await append(store, b"one", "1")
    with (tmp_path / "files/c/v1/a.txt").open("ab") as file:
        file.write(b"half a chunk")
    with (tmp_path / "files/c/.journal/a.txt").open("ab") as file:
        file.write(b'{"size": 33, "last"')
    for each in (store, FolderArtifacts(tmp_path / "files")):
        assert await each.read("c", "a.txt") == b"one"
    await append(FolderArtifacts(tmp_path / "files"), b"two", "2")
    assert await store.read("c", "a.txt") == b"onetwo"
    assert (tmp_path / "files/c/v1/a.txt").read_bytes() == b"onetwo"


async def test_damaged_journal_and_truncated_file_are_reported(tmp_path: Path) -> None:
    store = FolderArtifacts(tmp_path / "files")
    await create(store)
    await append(store, b"one", "1")
    (tmp_path / "files/c/v1/a.txt").write_bytes(b"o")
    with pytest.raises(ArtifactError, match="shorter than its journal"):
        await store.read("c", "a.txt")
    (tmp_path / "files/c/.journal/a.txt").write_bytes(b"garbage\n")
    with pytest.raises(ArtifactError, match="at byte 0"):
        await FolderArtifacts(tmp_path / "files").read("c", "a.txt")


async def test_locked_journal_is_an_error_after_the_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    monkeypatch.setattr("rxloop.storage.folder_artifacts.LOCK_SECONDS", 0.05)
    store = FolderArtifacts(tmp_path / "files")
    await create(store)
    with (tmp_path / "files/c/.journal/a.txt").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ArtifactError, match="Another process has locked"):
            await append(store, b"x", "1")
        assert await store.read("c", "a.txt") == b""
    await append(store, b"x", "1")
    assert await store.read("c", "a.txt") == b"x"


async def test_files_of_a_file_manager_are_not_artifacts(tmp_path: Path) -> None:
    store = FolderArtifacts(tmp_path / "files")
    await create(store)
    for folder in ("v1", ".journal"):
        (tmp_path / "files/c" / folder / ".DS_Store").write_bytes(b"\0\0\0\1Bud1\n\n")
    assert [record.artifact_id for record in await store.list("c")] == ["a.txt"]


async def test_missing_folder_has_no_artifacts(tmp_path: Path) -> None:
    store = FolderArtifacts(tmp_path / "nowhere" / "files")
    assert not await store.list("c")
    with pytest.raises(UnknownArtifact):
        await store.read("c", "a.txt")
    with pytest.raises(ArtifactError, match="Check that its parent folder exists"):
        await create(store)
    (tmp_path / "a").write_text("")
    with pytest.raises(ConfigurationError, match="path must be a folder"):
        FolderArtifacts(tmp_path / "a")


async def test_artifacts_and_runs_can_share_a_file(tmp_path: Path) -> None:
    log = SqliteEventLog(tmp_path / "app.db")
    await create(log.artifacts)
    await append(log.artifacts, b"one", "1")
    assert not await log.list_runs()
    await log.aclose()
    store = SqliteArtifacts(tmp_path / "app.db")
    assert await store.read("c", "a.txt") == b"one"
    assert stat.S_IMODE((tmp_path / "app.db").stat().st_mode) == 0o600
    await store.aclose()


async def test_sqlite_store_rejects_foreign_files_and_invalid_options(tmp_path: Path) -> None:
    (tmp_path / "app.db").write_text("this is a text file, not a database\n" * 50)
    store = SqliteArtifacts(tmp_path / "app.db")
    with pytest.raises(EventLogError, match="not a SQLite file"):
        await create(store)
    await store.aclose()
    with pytest.raises(ConfigurationError, match="MemoryArtifacts"):
        SqliteArtifacts(":memory:")
    with pytest.raises(ConfigurationError, match="fsync"):
        SqliteArtifacts("a.db", fsync="never")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("kind", ["folder", "sqlite"])
def test_concurrent_processes_lose_no_chunk(kind: str, tmp_path: Path) -> None:
    names, count = ["a", "b", "c"], 60
    asyncio.run(create(MAKERS[kind](tmp_path)))
    running = [
        subprocess.Popen([*WRITER, kind, str(tmp_path), name, str(count)], stdout=subprocess.PIPE) for name in names
    ]
    indexes: list[int] = []
    for process in running:
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        indexes += map(int, out.split())
    assert sorted(indexes) == [*range(count * len(names))]
    content = asyncio.run(MAKERS[kind](tmp_path).read("c", "a.txt")).decode()
    for name in names:
        assert [line for line in content.splitlines() if line[0] == name] == [f"{name}{n}" for n in range(count)]


@pytest.mark.parametrize("kind", ["folder", "sqlite"])
def test_killed_writer_leaves_whole_chunks_and_writes_no_duplicates(kind: str, tmp_path: Path) -> None:
    asyncio.run(create(MAKERS[kind](tmp_path)))
    count = 300
    for _ in range(4):
        process = subprocess.Popen([*WRITER, kind, str(tmp_path), "a", str(count)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        for _ in range(40):
            process.stdout.readline()
        process.kill()
        process.communicate()
    ended = subprocess.run([*WRITER, kind, str(tmp_path), "a", str(count)], stdout=subprocess.PIPE, check=True)
    assert [*map(int, ended.stdout.split())] == [*range(count)]
    content = asyncio.run(MAKERS[kind](tmp_path).read("c", "a.txt")).decode()
    assert content == "".join(f"a{n}\n" for n in range(count))


async def test_interrupted_deletion_hides_the_artifact_and_is_completed_later(tmp_path: Path) -> None:
    store = FolderArtifacts(tmp_path / "files")
    await create(store)
    await append(store, b"secret", "1")
    with (tmp_path / "files/c/.journal/a.txt").open("ab") as file:
        file.write(b'{"deleted":true}\n')
    assert not await store.versions("c", "a.txt")
    assert not await store.list("c")
    with pytest.raises(UnknownArtifact):
        await store.read("c", "a.txt")
    await create(store, now=9)
    assert await FolderArtifacts(tmp_path / "files").read("c", "a.txt") == b""
    with (tmp_path / "files/c/.journal/a.txt").open("ab") as file:
        file.write(b'{"deleted":true}\n')
    assert not await store.delete("c", "a.txt")
    assert not [path for path in (tmp_path / "files").rglob("*") if path.is_file()]


async def test_writer_that_waited_for_a_deleted_journal_writes_into_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = FolderArtifacts(tmp_path / "files"), FolderArtifacts(tmp_path / "files")
    await create(one)
    lock = folder_artifacts._lock  # pyright: ignore[reportPrivateUsage]
    waited: list[str] = []

    def delete_first(handle: int, artifact_id: str) -> None:
        if not waited:
            waited.append(artifact_id)
            assert asyncio.run(two.delete("c", "a.txt"))
            asyncio.run(create(two, name="another"))
        lock(handle, artifact_id)

    monkeypatch.setattr(folder_artifacts, "_lock", delete_first)
    await append(one, b"one", "1")
    assert waited
    [record] = await two.list("c")
    assert record.name == "another"
    assert record.size == 3
    assert await two.read("c", "a.txt") == b"one"
