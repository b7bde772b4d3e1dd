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

NEW = 200_000
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
    assert gc.get_threshold() == thresholds


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


def test_full_collections_are_rare_in_the_block(full_collections: Callable[[], int]) -> None:
    with shorten_collections():
        before = full_collections()
        objects = create(NEW)
        assert full_collections() == before
    objects += create(NEW)
    assert full_collections() > before


def test_garbage_is_collected_after_many_new_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "_MAX_NEW", 500_000)
    with shorten_collections():
        node = Node()
        alive = weakref.ref(node)
        gc.collect(1)
        del node
        objects = create(300_000)
        assert alive()
        objects += create(300_000)
        assert not alive()


def test_garbage_is_collected_after_very_many_objects_while_large_data_is_processed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(garbage, "_MAX_NEW", 100_000)
    monkeypatch.setattr(garbage, "_MAX_NEW_WITH_LARGE_DATA", 500_000)
    with shorten_collections(), ignore_large_data():
        node = Node()
        alive = weakref.ref(node)
        gc.collect(1)
        del node
        objects = create(300_000)
        assert alive()
        objects += create(300_000)
        assert not alive()


def test_large_data_is_not_examined(full_collections: Callable[[], int]) -> None:
    with ignore_large_data():
        before = full_collections()
        objects = create(NEW)
        with ignore_large_data():
            objects += create(NEW)
        objects += create(NEW)
        assert full_collections() == before
    objects += create(NEW)
    assert full_collections() > before


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
@pytest.mark.parametrize("share", [0.4, 0.8])
def test_full_collection_takes_place_before_large_data_is_read(
    monkeypatch: pytest.MonkeyPatch, full_collections: Callable[[], int], share: float, is_loaded: bool
) -> None:
    monkeypatch.setattr(garbage, "_MAX_NEW", 1_000_000)
    with shorten_collections():
        objects = create(int(1_000_000 * share))
        before = full_collections()
        with ignore_large_data(is_loaded=is_loaded):
            assert full_collections() - before == (share > 0.5 and not is_loaded)
            # Other data is in memory.
            objects += create(1_000_000)
            with ignore_large_data():
                assert full_collections() - before == (share > 0.5 and not is_loaded)
    del objects


def test_collections_remain_disabled() -> None:
    thresholds = gc.get_threshold()
    gc.set_threshold(0, 10, 10)
    with shorten_collections(), ignore_large_data():
        assert gc.get_threshold()[0] == 0
    assert gc.get_threshold() == (0, 10, 10)
    gc.set_threshold(*thresholds)


def test_rarer_collections_of_the_program_remain_rarer() -> None:
    thresholds = gc.get_threshold()
    gc.set_threshold(700, 10, 100_000)
    with shorten_collections(), ignore_large_data():
        assert gc.get_threshold() == (700, 10, 100_000)
    assert gc.get_threshold() == (700, 10, 100_000)
    gc.set_threshold(*thresholds)


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
    with ignore_large_data():
        pid = os.fork()
        if pid == 0:
            has_ended = not is_processing_large_data() and gc.get_threshold() == thresholds
            os._exit(0 if has_ended and garbage._INTERVAL.lock.acquire(timeout=0) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert is_processing_large_data()
    may_leave.set()
    thread.join()
    assert not is_processing_large_data()
