"""Search of notes by meaning."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence

import pytest

from rxloop import MemoryEventLog
from rxloop.memory import Memory
from rxloop.memory.notes import Note
from rxloop.memory.vectors import NoteVectors, fuse
from rxloop.testing import virtual_time

TOPICS = {"harbour": 0, "pier": 0, "quay": 0, "cat": 1, "kitten": 1, "violin": 2}


class Embedding:
    """Embedding function that knows a few words."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    async def __call__(self, texts: Sequence[str]) -> list[list[float]]:
        self.calls.append([*texts])
        return [self.make_vector(text) for text in texts]

    @staticmethod
    def make_vector(text: str) -> list[float]:
        vector = [-0.1] * 8
        for word in text.lower().strip(".?").split():
            if word in TOPICS:
                vector[TOPICS[word]] += 1
        return vector


@pytest.fixture
def embed() -> Embedding:
    return Embedding()


async def texts(memory: Memory, question: str, owner: str = "ann") -> list[str]:
    return [note.text for note in await memory.search(owner, question)]


async def test_note_with_other_words_is_found(embed: Embedding) -> None:
    log = MemoryEventLog()
    memory = Memory(log, embed=embed)
    for text in ("A cat.", "The pier.", "The violin."):
        await memory.add("ann", text)
    assert await texts(Memory(log), "quay") == []
    assert (await texts(memory, "quay"))[0] == "The pier."


async def test_note_that_both_searches_find_comes_first(embed: Embedding) -> None:
    memory = Memory(MemoryEventLog(), embed=embed)
    for text in ("The pier.", "A harbour with boats.", "Boats."):
        await memory.add("ann", text)
    assert (await texts(memory, "harbour boats"))[0] == "A harbour with boats."


async def test_each_note_is_embedded_once(embed: Embedding) -> None:
    memory = Memory(MemoryEventLog(), embed=embed)
    for number in range(3):
        await memory.add("ann", f"Pier {number}")
    for _ in range(2):
        await texts(memory, "quay")
    assert sorted(text for call in embed.calls for text in call) == ["Pier 0", "Pier 1", "Pier 2", "quay", "quay"]


def test_words_are_searched_if_the_embedding_hangs(caplog: pytest.LogCaptureFixture) -> None:
    async def embed(texts: Sequence[str]) -> Sequence[Sequence[float]]:
        await asyncio.sleep(1_000)
        return []

    async def search() -> list[str]:
        memory = Memory(MemoryEventLog(), embed=embed)
        await memory.add("ann", "The pier.")
        return await texts(memory, "pier")

    with virtual_time() as time:
        assert time.run(search()) == ["The pier."]
        assert time.now < 60
    assert "by words" in caplog.text


async def test_notes_of_other_owners_are_not_found(embed: Embedding) -> None:
    memory = Memory(MemoryEventLog(), embed=embed)
    await memory.add("ann", "The pier.")
    await memory.add("bob", "The harbour.")
    assert await texts(memory, "quay") == ["The pier."]
    assert await texts(memory, "quay", "bob") == ["The harbour."]
    assert await texts(memory, "quay", "eve") == []


async def test_removed_and_outdated_notes_are_not_found(embed: Embedding) -> None:
    log = MemoryEventLog()
    memory = Memory(log, embed=embed)
    old = await memory.add("ann", "The pier.")
    await memory.add("ann", "The harbour.", replaces=old.note_id)
    forgotten = await memory.add("ann", "A harbour.")
    deleted = await memory.add("ann", "My harbour.")
    assert len(await texts(memory, "quay")) == 3
    await memory.forget("ann", forgotten.note_id)
    await log.delete(deleted.task_id)
    assert await texts(memory, "quay") == ["The harbour."]
    vectors = memory._owners["ann"]._vectors
    assert vectors is not None
    assert len(vectors._vectors) == 2


@pytest.mark.parametrize(
    "result",
    [
        ValueError("down"),
        asyncio.CancelledError(),
        [],
        [[]],
        [[0.0, 0.0]],
        [[math.nan, 1.0]],
        [[math.inf, 1.0]],
        [[1.0, 0.0], [1.0, 0.0]],
    ],
)
async def test_words_are_searched_if_the_embedding_fails(result: object, caplog: pytest.LogCaptureFixture) -> None:
    async def embed(texts: Sequence[str]) -> Sequence[Sequence[float]]:
        if isinstance(result, BaseException):
            raise result
        return result  # type: ignore[return-value]  # pyright: ignore[reportReturnType]

    memory = Memory(MemoryEventLog(), embed=embed)
    await memory.add("ann", "The pier.")
    assert await texts(memory, "pier") == ["The pier."]
    assert "by words" in caplog.text


async def test_vectors_of_another_length_are_rejected(caplog: pytest.LogCaptureFixture) -> None:
    async def embed(texts: Sequence[str]) -> list[list[float]]:
        return [[1.0] * (2 + ("violin" in text)) for text in texts]

    memory = Memory(MemoryEventLog(), embed=embed)
    await memory.add("ann", "The pier.")
    assert await texts(memory, "quay") == ["The pier."]
    assert await texts(memory, "violin") == []
    assert "must have 2" in caplog.text


async def test_large_memory_is_embedded_in_parts(embed: Embedding, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rxloop.memory.vectors._MAX_NEW", 4)
    monkeypatch.setattr("rxloop.memory.vectors._BATCH", 3)
    memory = Memory(MemoryEventLog(), embed=embed)
    for number in range(6):
        await memory.add("ann", f"Pier {number}")
    await texts(memory, "quay")
    assert embed.calls == [["quay"], ["Pier 5", "Pier 4", "Pier 3"], ["Pier 2"]]
    assert len(await texts(memory, "quay")) == 6


def make_note(note_id: str) -> Note:
    return Note(note_id, "fact", note_id, "user", "run", ("run/1.1.0",), "chat", 1)


async def test_nearest_notes_are_found_among_many() -> None:
    generator = random.Random(7)
    vectors = {f"{number}": [generator.gauss(0, 1) for _ in range(64)] for number in range(3_000)}

    async def embed(texts: Sequence[str]) -> list[list[float]]:
        return [vectors[text] for text in texts]

    vectors["question"] = [each + generator.gauss(0, 0.5) for each in vectors["1234"]]
    notes = {note_id: make_note(note_id) for note_id in vectors if note_id != "question"}
    index = NoteVectors(embed)
    found = [await index.search("question", notes) for _ in range(3)][-1]
    assert found[0].note_id == "1234"


def test_ranks_are_fused() -> None:
    one, two, three = map(make_note, ("1", "2", "3"))
    assert fuse([one, two], [two, three]) == [two, one, three]
    assert fuse([one], []) == [one]
