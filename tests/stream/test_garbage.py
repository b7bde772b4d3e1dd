"""Garbage collection with short pauses."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import weakref
from collections.abc import Callable, Generator
from typing import Any

import pytest

from rxloop.support import garbage
from rxloop.support.garbage import ignore_large_data, is_processing_large_data, shorten_collections

NEW = 300_000
"""Number of new objects after which Python collects all generations at least once."""


class Node:
    """Object in a reference cycle."""

    def __init__(self) -> None:
        self.cycle = self


@pytest.fixture(autouse=True)
def few_objects() -> Generator[None]:
    # Python delays full collections until the number of new objects is a fraction of all objects.
    gc.collect()
    gc.freeze()
    gc.collect()
    thresholds = gc.get_threshold()
    yield
    # Full collections end the delay after blocks of `ignore_large_data`.
    gc.collect()
    restored = gc.get_threshold()
    gc.set_threshold(*thresholds)
    assert restored == thresholds


@pytest.fixture
def full_collections() -> Generator[Callable[[], int]]:
    """Number of full collections so far."""
    collections = 0

    def count(phase: str, info: dict[str, int]) -> None:
        nonlocal collections
        collections += phase == "start" and info["generation"] == 2

    gc.callbacks.append(count)
    yield lambda: collections
    gc.callbacks.remove(count)


def create(count: int) -> list[Any]:
    return [[] for _ in range(count)]


def is_examined(value: object) -> bool:
    """Return True if a full collection examines the object."""
    return any(each is value for each in gc.get_objects())


def test_objects_of_the_startup_are_excluded() -> None:
    module = Node()
    with shorten_collections():
        added = Node()
        assert not is_examined(module)
        assert is_examined(added)
    assert not is_examined(module)


def test_full_collections_are_rare_in_the_block(
    monkeypatch: pytest.MonkeyPatch, full_collections: Callable[[], int]
) -> None:
    monkeypatch.setattr(garbage, "_MAX_NEW", 1_000_000)
    with shorten_collections():
        before = full_collections()
        objects = create(NEW)
        assert full_collections() == before
    objects += create(NEW)
    assert full_collections() > before


@pytest.mark.parametrize("large_data", [False, True])
def test_garbage_is_collected_after_many_new_objects(monkeypatch: pytest.MonkeyPatch, *, large_data: bool) -> None:
    monkeypatch.setattr(garbage, "_MAX_NEW", 50_000 if large_data else 500_000)
    monkeypatch.setattr(garbage, "_MAX_NEW_WITH_LARGE_DATA", 500_000)
    with shorten_collections(), ignore_large_data(500 if large_data else 0):
        node = Node()
        alive = weakref.ref(node)
        gc.collect(1)
        del node
        objects = create(300_000)
        assert alive()
        objects += create(500_000)
        assert not alive()


def test_garbage_of_the_startup_is_freed() -> None:
    alive = weakref.ref(Node())
    with shorten_collections():
        assert not alive()


def test_large_data_is_not_examined(full_collections: Callable[[], int]) -> None:
    with ignore_large_data():
        before = full_collections()
        objects = create(NEW)
        with ignore_large_data():
            objects += create(NEW)
        objects += create(NEW)
        assert full_collections() == before
    # The data may still be in memory for a short time.
    objects += create(20_000)
    assert full_collections() == before
    objects += create(NEW)
    assert full_collections() > before


def test_block_with_a_higher_limit_has_priority(
    monkeypatch: pytest.MonkeyPatch, full_collections: Callable[[], int]
) -> None:
    monkeypatch.setattr(garbage, "_MAX_NEW", 50_000)
    with ignore_large_data(), shorten_collections():
        before, objects = full_collections(), create(NEW)
        assert full_collections() == before
    del objects


def test_little_data_is_examined(full_collections: Callable[[], int]) -> None:
    with ignore_large_data(499):
        assert not is_processing_large_data()
        before, objects = full_collections(), create(NEW)
        assert full_collections() > before
    del objects


def test_frequent_blocks_do_not_prevent_full_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "_MAX_NEW", 100_000)
    alive = list[weakref.ref[Node]]()
    with shorten_collections():
        for _ in range(600):
            nodes = [Node() for _ in range(300)]
            alive.append(weakref.ref(nodes[0]))
            with ignore_large_data():
                gc.collect(1)
            del nodes
        assert sum(each() is not None for each in alive) < 400


@pytest.mark.parametrize("is_loaded", [True, False])
@pytest.mark.parametrize("is_near", [True, False])
def test_full_collection_takes_place_before_large_data_is_read(
    monkeypatch: pytest.MonkeyPatch, full_collections: Callable[[], int], *, is_near: bool, is_loaded: bool
) -> None:
    monkeypatch.setattr(garbage, "_MAX_NEW_LARGE", 300_000 if is_near else 1_000_000)
    with shorten_collections():
        before = full_collections()
        with ignore_large_data():
            objects = create(500_000)
        assert full_collections() == before
        with ignore_large_data(is_loaded=is_loaded):
            assert full_collections() - before == (is_near and not is_loaded)
            # Other data is in memory.
            objects += create(1_000_000)
            with ignore_large_data():
                assert full_collections() - before == (is_near and not is_loaded)
    del objects


def test_large_data_does_not_delay_full_collections_for_long(
    monkeypatch: pytest.MonkeyPatch, full_collections: Callable[[], int]
) -> None:
    monkeypatch.setattr(garbage, "_MAX_NEW_LARGE", 200_000)
    with shorten_collections():
        with ignore_large_data():
            objects = create(300_000)
            before = full_collections()
        objects += create(NEW)
        assert full_collections() == before + 1
        # The next collection is not delayed.
        objects += create(200_000)
        assert full_collections() == before + 2
    del objects


@pytest.mark.parametrize("thresholds", [(0, 10, 10), (700, 0, 10), (700, 10, 100_000)])
def test_thresholds_of_the_program_are_kept(thresholds: tuple[int, int, int]) -> None:
    before = gc.get_threshold()
    gc.set_threshold(*thresholds)
    with shorten_collections(), ignore_large_data():
        inside = gc.get_threshold()
    after = gc.get_threshold()
    gc.set_threshold(*before)
    assert inside[:2] == after[:2] == thresholds[:2]
    assert thresholds[2] <= inside[2] <= max(thresholds[2], 12_000_000)
    assert after[2] == thresholds[2]


def test_threshold_that_the_program_sets_in_a_block_is_kept() -> None:
    before = gc.get_threshold()
    with ignore_large_data():
        gc.set_threshold(700, 10, 20_000)
        with ignore_large_data():
            assert gc.get_threshold()[2] == 20_000
    after = gc.get_threshold()
    gc.set_threshold(*before)
    assert after == (700, 10, 20_000)


def test_block_that_fails_ends() -> None:
    thresholds = gc.get_threshold()
    for block in (shorten_collections, ignore_large_data):
        with pytest.raises(ZeroDivisionError), block():
            raise ZeroDivisionError
        assert gc.get_threshold() == thresholds
    assert not is_processing_large_data()


def test_block_that_ends_in_another_thread_ends() -> None:
    block = ignore_large_data()
    block.__enter__()
    thread = threading.Thread(target=block.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    assert not is_processing_large_data()


async def test_block_of_an_abandoned_coroutine_ends() -> None:
    async def process() -> None:
        with ignore_large_data():
            await asyncio.Event().wait()

    coroutine = process()
    coroutine.send(None)
    assert is_processing_large_data()
    del coroutine
    assert not is_processing_large_data()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_all_blocks_end_in_a_forked_process() -> None:
    entered, may_leave = threading.Event(), threading.Event()
    thresholds = gc.get_threshold()

    def work() -> None:
        with ignore_large_data():
            entered.set()
            may_leave.wait()

    thread = threading.Thread(target=work)
    thread.start()
    entered.wait()
    block = ignore_large_data()
    block.__enter__()
    pid = os.fork()
    if pid == 0:
        has_ended = not is_processing_large_data() and gc.get_threshold() == thresholds
        block.__exit__(None, None, None)
        with ignore_large_data():
            has_ended &= is_processing_large_data()
        os._exit(0 if has_ended else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert is_processing_large_data()
    block.__exit__(None, None, None)
    may_leave.set()
    thread.join()
    assert not is_processing_large_data()
