"""Contract tests for artifact stores.

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    async def test_my_store_passes_the_contract(check):
        await check(MyStore)

Each check is an async function that accepts a factory for new, empty stores, and raises `AssertionError` on failure.
The checks do not require pytest. Stores with support for multiple processes must also pass `SHARED_CHECKS`, which
accept a factory for two store objects with shared storage.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from rxloop.errors import ArtifactError, ArtifactExists, UnknownArtifact
from rxloop.pipeline.artifact_rules import ArtifactChunk, ArtifactRecord
from rxloop.pipeline.artifacts import ArtifactStore

__all__ = ["CHECKS", "SHARED_CHECKS", "Check", "MakeStore", "MakeTwoStores", "SharedCheck"]

MakeStore = Callable[[], ArtifactStore]
"""Factory for new, empty stores."""
Check = Callable[[MakeStore], Awaitable[None]]
"""Contract check for a single store."""
MakeTwoStores = Callable[[], tuple[ArtifactStore, ArtifactStore]]
"""Factory for two store objects that share a new, empty location, like two processes."""
SharedCheck = Callable[[MakeTwoStores], Awaitable[None]]
"""Contract check for two store objects with shared storage."""


async def _create(
    store: ArtifactStore, artifact_id: str = "a.txt", context: str = "c", **fields: Any
) -> ArtifactRecord:
    options: dict[str, Any] = {
        "name": artifact_id,
        "media_type": "text/plain",
        "override": False,
        "key": "create",
        "now": 1,
        **fields,
    }
    return await store.create(context, artifact_id, **options)


async def _append(
    store: ArtifactStore, data: bytes, key: str, artifact_id: str = "a.txt", **fields: Any
) -> ArtifactChunk:
    options: dict[str, Any] = {"version": None, "last": False, "now": 2, **fields}
    return await store.append(options.pop("context", "c"), artifact_id, data, key=key, **options)


@contextmanager
def _raises(kind: type[ArtifactError], description: str) -> Generator[None]:
    try:
        yield
    except kind:
        return
    raise AssertionError(f"{description} did not raise {kind.__name__}")


@asynccontextmanager
async def _open(*stores: ArtifactStore) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        for store in stores:
            await store.aclose()


async def create_stores_an_empty_artifact(make_store: MakeStore) -> None:
    """Check that the first version is empty and has the given metadata."""
    store = make_store()
    async with _open(store):
        record = await _create(store, name="A", media_type="text/markdown", now=7)
        assert record == ArtifactRecord("a.txt", 1, "A", "text/markdown", 7, 7), record
        assert await store.read("c", "a.txt") == b""
        assert [*await store.versions("c", "a.txt")] == [*await store.list("c")] == [record]


async def create_rejects_an_existing_id(make_store: MakeStore) -> None:
    """Check that the existing artifact is unchanged."""
    store = make_store()
    async with _open(store):
        await _create(store)
        await _append(store, b"one", "1")
        with _raises(ArtifactExists, "an existing id"):
            await _create(store, key="again", now=9)
        assert await store.read("c", "a.txt") == b"one"


async def create_with_override_adds_a_version(make_store: MakeStore) -> None:
    """Check that the new version is empty and keeps the creation time, and that old versions remain readable."""
    store = make_store()
    async with _open(store):
        await _create(store, now=5)
        await _append(store, b"one", "1", last=True)
        second = await _create(store, override=True, key="again", now=9)
        assert (second.version, second.created, second.size, second.complete) == (2, 5, 0, False), second
        assert await store.read("c", "a.txt") == b""
        assert await store.read("c", "a.txt", version=1) == b"one"
        assert [record.version for record in await store.versions("c", "a.txt")] == [1, 2]
        assert [*await store.list("c")] == [second]
        with _raises(ArtifactError, "a chunk for an older version"):
            await _append(store, b"late", "2", version=1)
        with _raises(UnknownArtifact, "an unknown version"):
            await store.read("c", "a.txt", version=3)


async def append_returns_consecutive_chunks(make_store: MakeStore) -> None:
    """Indexes are consecutive, and each offset equals the previous size."""
    store = make_store()
    async with _open(store):
        await _create(store)
        chunks = [await _append(store, data, data.decode(), now=3) for data in (b"one", b"three", b"five")]
        assert [(chunk.index, chunk.offset) for chunk in chunks] == [(0, 0), (1, 3), (2, 8)], chunks
        record = chunks[-1].record
        assert (record.size, record.chunks, record.updated, record.complete) == (12, 3, 3, False), record
        assert await store.read("c", "a.txt") == b"onethreefive"


async def last_chunk_completes_the_artifact(make_store: MakeStore) -> None:
    """Append an empty last chunk. Further chunks are refused."""
    store = make_store()
    async with _open(store):
        await _create(store)
        await _append(store, b"all", "1")
        chunk = await _append(store, b"", "2", last=True)
        assert (chunk.index, chunk.record.complete, chunk.record.size) == (1, True, 3), chunk
        with _raises(ArtifactError, "a chunk after the last one"):
            await _append(store, b"more", "3")
        assert await store.read("c", "a.txt") == b"all"


async def writes_with_a_known_key_are_not_repeated(make_store: MakeStore) -> None:
    """Retries return the original result. Reusing a key for different data is an error."""
    store = make_store()
    async with _open(store):
        first = await _create(store)
        chunk = await _append(store, b"one", "1")
        await _append(store, b"two", "2", last=True)
        again = await _create(store, override=True)
        assert (again.version, again.created) == (first.version, first.created), again
        repeated = await _append(store, b"one", "1", now=99)
        assert (repeated.index, repeated.offset) == (chunk.index, chunk.offset), repeated
        with _raises(ArtifactError, "a key with other data"):
            await _append(store, b"other", "1")
        await _create(store, override=True, key="next")
        assert (await _append(store, b"one", "1")).record.version == 1
        assert await store.read("c", "a.txt") == b""
        assert await store.read("c", "a.txt", version=1) == b"onetwo"


async def conversations_have_separate_artifacts(make_store: MakeStore) -> None:
    """Check that conversations can use the same artifact id, for any context id."""
    store = make_store()
    contexts = ["c", "C", "c/d", "../c", "..", "", "c\u00e9", "c" * 500]
    async with _open(store):
        for context in contexts:
            with _raises(UnknownArtifact, "an artifact of another conversation"):
                await store.read(context, "a.txt")
            with _raises(UnknownArtifact, "a chunk for an artifact of another conversation"):
                await _append(store, b"x", "0", context=context)
            assert not await store.list(context)
            assert not await store.versions(context, "a.txt")
            await _create(store, context=context)
            await _append(store, context.encode(), "1", context=context)
        assert [await store.read(context, "a.txt") for context in contexts] == [name.encode() for name in contexts]


async def read_returns_any_range(make_store: MakeStore) -> None:
    """Ranges can include multiple chunks and are limited by the artifact's size."""
    store = make_store()
    async with _open(store):
        await _create(store)
        data = bytes(range(100))
        for start in range(0, 100, 7):
            await _append(store, data[start : start + 7], str(start))
        for offset in (0, 1, 6, 7, 8, 50, 99, 100, 200, 10**30):
            for limit in (0, 1, 7, 20, 1_000, 10**30, None):
                end = None if limit is None else offset + limit
                assert await store.read("c", "a.txt", offset=offset, limit=limit) == data[offset:end], (offset, limit)
        with _raises(ArtifactError, "a negative offset"):
            await store.read("c", "a.txt", offset=-1)


async def list_returns_latest_versions_by_id(make_store: MakeStore) -> None:
    """Only the latest versions are listed."""
    store = make_store()
    async with _open(store):
        for artifact_id in ("b.txt", "a.txt", "\u00e9.txt", "A.txt"):
            await _create(store, artifact_id)
        assert [record.artifact_id for record in await store.list("c")] == ["A.txt", "a.txt", "b.txt", "\u00e9.txt"]


async def create_and_read_reject_invalid_ids(make_store: MakeStore) -> None:
    """Such ids could escape a folder or may be impossible to store."""
    store = make_store()
    async with _open(store):
        for artifact_id in (
            "",
            ".",
            "..",
            "../a",
            "/a",
            "a/b",
            "a\\b",
            "a\0b",
            "a\nb",
            ".a",
            "a ",
            "a" * 300,
            "\ud800",
        ):
            with _raises(ArtifactError, f"the id {artifact_id!r}"):
                await _create(store, artifact_id)
            with _raises(ArtifactError, f"the id {artifact_id!r}"):
                await store.read("c", artifact_id)
        await _create(store, "e\u0301.txt")
        assert (await store.versions("c", "\u00e9.txt"))[0].artifact_id == "\u00e9.txt"


async def concurrent_chunks_are_all_stored(make_store: MakeStore) -> None:
    """Concurrent chunks are stored completely and have unique indexes."""
    store = make_store()
    async with _open(store):
        await asyncio.gather(*(_create(store, f"{n}") for n in range(3)))
        pieces = [f"<{n:03}>".encode() * 20 for n in range(40)]
        chunks = await asyncio.gather(
            *(_append(store, data, str(n), f"{n % 3}") for n, data in enumerate(pieces)),
        )
        for artifact in range(3):
            own = sorted(zip(chunks, pieces, strict=True), key=lambda pair: pair[0].index)
            own = [(chunk, data) for chunk, data in own if chunk.record.artifact_id == f"{artifact}"]
            assert [chunk.index for chunk, _ in own] == [*range(len(own))]
            assert await store.read("c", f"{artifact}") == b"".join(data for _, data in own)


async def delete_removes_all_versions(make_store: MakeStore) -> None:
    """All versions are deleted, other artifacts are unaffected, and the id and keys can be reused."""
    store = make_store()
    async with _open(store):
        for context, artifact_id in (("c", "a.txt"), ("c", "b.txt"), ("d", "a.txt")):
            await _create(store, artifact_id, context)
            await _append(store, b"one", "1", artifact_id, context=context)
        await _create(store, override=True, key="next")
        await _append(store, b"two", "2")
        assert await store.delete("c", "a.txt")
        assert not await store.delete("c", "a.txt")
        assert not await store.delete("e", "a.txt")
        with _raises(UnknownArtifact, "a deleted artifact"):
            await store.read("c", "a.txt")
        with _raises(UnknownArtifact, "a chunk for a deleted artifact"):
            await _append(store, b"late", "3")
        assert not await store.versions("c", "a.txt")
        assert [record.artifact_id for record in await store.list("c")] == ["b.txt"]
        assert await store.read("c", "b.txt") == await store.read("d", "a.txt") == b"one"
        record = await _create(store, now=9)
        assert (record.version, record.created, record.size, record.chunks) == (1, 9, 0, 0), record
        assert (await _append(store, b"new", "1")).index == 0
        assert await store.read("c", "a.txt") == b"new"


async def delete_keeps_a_changed_artifact(make_store: MakeStore) -> None:
    """If an expected record is passed, it must equal the latest version."""
    store = make_store()
    async with _open(store):
        first = await _create(store)
        second = (await _append(store, b"one", "1")).record
        assert not await store.delete("c", "a.txt", expected=first)
        third = await _create(store, override=True, key="next")
        assert not await store.delete("c", "a.txt", expected=second)
        assert await store.read("c", "a.txt", version=1) == b"one"
        assert await store.delete("c", "a.txt", expected=third)
        assert not await store.list("c")


async def stores_share_artifacts(make_stores: MakeTwoStores) -> None:
    """Read and update artifacts created by another store."""
    one, two = make_stores()
    async with _open(one, two):
        await _create(one)
        await _append(two, b"two", "1")
        await _append(one, b"one", "2", last=True)
        assert await two.read("c", "a.txt") == await one.read("c", "a.txt") == b"twoone"
        assert (await two.list("c"))[0].complete
        await _create(two, override=True, key="again")
        assert (await one.versions("c", "a.txt"))[-1].version == 2
        assert (await _append(one, b"two", "1")).record.version == 1


async def concurrent_writes_of_two_stores_are_all_stored(make_stores: MakeTwoStores) -> None:
    """Concurrent writes are neither lost nor duplicated."""
    one, two = make_stores()
    async with _open(one, two):
        await asyncio.gather(_create(one), _create(two))
        writes = [_append(store, f"<{n}>".encode(), str(n)) for n in range(30) for store in (one, two)]
        chunks = await asyncio.gather(*writes)
        assert {chunk.index for chunk in chunks} == {*range(30)}
        content = (await one.read("c", "a.txt")).decode()
        assert sorted(content.strip("<>").split("><"), key=int) == [f"{n}" for n in range(30)], content


async def deleted_artifact_is_unknown_to_the_other_store(make_stores: MakeTwoStores) -> None:
    """Check that the other store only sees the new artifact, even if it has the same id, keys and sizes."""
    one, two = make_stores()
    async with _open(one, two):
        for data in (b"one", b"two", b"six"):
            await _create(one)
            chunk = await _append(one, data, "1")
            assert await two.read("c", "a.txt") == data
            assert (await _append(two, data, "1")).record == chunk.record
            assert await one.delete("c", "a.txt", expected=(await two.versions("c", "a.txt"))[-1])
            assert not await two.versions("c", "a.txt")
            with _raises(UnknownArtifact, "a chunk for an artifact that another store has deleted"):
                await _append(two, data, "2")


async def delete_during_a_write_leaves_complete_artifacts(make_stores: MakeTwoStores) -> None:
    """Check that a concurrent chunk is either deleted with the artifact or remains readable."""
    one, two = make_stores()

    async def write(number: int) -> None:
        await _create(one)
        try:
            await _append(one, b"chunk", str(number))
        except UnknownArtifact:
            return

    async with _open(one, two):
        for number in range(20):
            await asyncio.gather(write(number), two.delete("c", "a.txt"))
            for record in await one.versions("c", "a.txt"):
                content = await two.read("c", "a.txt", version=record.version)
                assert content == b"chunk" * record.chunks, (content, record)
        await two.delete("c", "a.txt")
        assert not await one.versions("c", "a.txt")


CHECKS: tuple[Check, ...] = (
    create_stores_an_empty_artifact,
    create_rejects_an_existing_id,
    create_with_override_adds_a_version,
    append_returns_consecutive_chunks,
    last_chunk_completes_the_artifact,
    writes_with_a_known_key_are_not_repeated,
    conversations_have_separate_artifacts,
    read_returns_any_range,
    list_returns_latest_versions_by_id,
    create_and_read_reject_invalid_ids,
    concurrent_chunks_are_all_stored,
    delete_removes_all_versions,
    delete_keeps_a_changed_artifact,
)
"""All contract checks for a single store."""
SHARED_CHECKS: tuple[SharedCheck, ...] = (
    stores_share_artifacts,
    concurrent_writes_of_two_stores_are_all_stored,
    deleted_artifact_is_unknown_to_the_other_store,
    delete_during_a_write_leaves_complete_artifacts,
)
"""All contract checks for two store objects with shared storage."""
