"""Garbage collection with short pauses."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Generator

import pytest

from rxloop.support import garbage
from rxloop.support.garbage import ignore_large_data, shorten_collections

SHORT = 7_000
"""Number of new objects in a collection of the middle generation."""


class Node:
    """Object in a reference cycle."""

    def __init__(self) -> None:
        self.cycle = self


@pytest.fixture(autouse=True)
def manual_collections(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    # Other blocks of this process may have counted before.
    monkeypatch.setattr(garbage._EXCLUSION, "_used_by_program", None)
    garbage._EXCLUSION.reset()
    gc.unfreeze()
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    # The collected tests were excluded before, and full collections of them would slow down the following tests.
    gc.freeze()


def is_examined(value: object) -> bool:
    """Return True if a full collection examines the object."""
    return any(each is value for each in gc.get_objects())


def test_survivors_of_a_full_collection_are_excluded() -> None:
    with shorten_collections():
        survivor = Node()
        gc.collect(1)
        assert is_examined(survivor)
        gc.collect()
        assert not is_examined(survivor)
    assert is_examined(survivor)


def test_excluded_garbage_is_collected_later() -> None:
    with shorten_collections():
        survivor = Node()
        gc.collect()
        alive = weakref.ref(survivor)
        del survivor
        garbage._EXCLUSION._excluded = garbage._MAX_EXCLUDED - SHORT - 1
        gc.collect()
        assert alive() is not None
        gc.collect(1)
        gc.collect()
        assert alive() is None
        assert gc.get_freeze_count()


def test_garbage_after_the_last_full_collection_is_collected_at_once() -> None:
    with shorten_collections():
        alive = weakref.ref(Node())
        gc.collect()
        assert alive() is None


def test_collections_are_as_before_after_the_block() -> None:
    callbacks = list(gc.callbacks)
    with shorten_collections():
        assert len(gc.callbacks) == len(callbacks) + 1
    assert gc.callbacks == callbacks


def test_large_data_is_excluded_by_short_collections() -> None:
    existing = Node()
    with ignore_large_data():
        added = Node()
        assert not is_examined(existing)
        assert is_examined(added)
        gc.collect(0)
        assert is_examined(added)
        gc.collect(1)
        assert not is_examined(added)
    assert is_examined(existing)
    assert is_examined(added)


def test_garbage_of_large_data_is_collected_after_the_last_block() -> None:
    with ignore_large_data():
        survivor = Node()
        with ignore_large_data():
            gc.collect(1)
        alive = weakref.ref(survivor)
        del survivor
        gc.collect()
        assert alive() is not None
    gc.collect()
    assert alive() is None
    # Python 3.12 excludes a few hundred objects itself.
    assert gc.get_freeze_count() < 1_000


def test_complete_collection_is_delayed_by_large_data_but_not_forever() -> None:
    with shorten_collections(), ignore_large_data():
        survivor = Node()
        gc.collect(1)
        alive = weakref.ref(survivor)
        del survivor
        garbage._EXCLUSION._excluded = garbage._MAX_EXCLUDED_WITH_LARGE_DATA - SHORT - 1
        gc.collect()
        assert alive() is not None
        gc.collect(1)
        gc.collect()
        assert alive() is None


def test_objects_excluded_by_the_program_remain_excluded() -> None:
    frozen = Node()
    gc.freeze()
    callbacks = list(gc.callbacks)
    with ignore_large_data():
        assert gc.callbacks == callbacks
    assert not is_examined(frozen)
    gc.unfreeze()


def test_excluded_objects_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []

    def count() -> int:
        counts.append(20_000)
        return 20_000

    monkeypatch.setattr(gc, "get_freeze_count", count)
    for _ in range(3):
        with ignore_large_data():
            pass
    assert len(counts) == 1


def test_frequent_blocks_do_not_prevent_complete_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.enable()
    alive, nodes = list[weakref.ref[Node]](), list[Node]()
    monkeypatch.setattr(garbage, "_MAX_EXCLUDED", 100_000)
    with shorten_collections():
        for _ in range(600):
            nodes = [Node() for _ in range(300)]
            alive.append(weakref.ref(nodes[0]))
            # Excludes the nodes, which are garbage afterwards.
            with ignore_large_data():
                pass
        nodes.clear()
        assert sum(each() is not None for each in alive) < 300


def test_blocks_in_threads_that_overlap_do_not_prevent_complete_collections() -> None:
    with ignore_large_data():
        garbage._EXCLUSION._excluded = garbage._MAX_EXCLUDED_WITH_LARGE_DATA - SHORT
        with ignore_large_data():
            survivor = Node()
            gc.collect(1)
            alive = weakref.ref(survivor)
            del survivor
            gc.collect()
            assert alive() is None


def test_complete_collection_takes_place_before_large_data_is_read() -> None:
    survivor = Node()
    with ignore_large_data():
        gc.collect(1)
    alive = weakref.ref(survivor)
    del survivor
    gc.collect(1)
    garbage._EXCLUSION._excluded = garbage._MAX_EXCLUDED - SHORT
    with ignore_large_data(is_loaded=True):
        gc.collect()
        assert alive() is not None
    with ignore_large_data():
        assert alive() is None
        assert garbage._EXCLUSION._excluded < SHORT


def test_number_of_excluded_objects_is_estimated() -> None:
    objects: list[Node] = []
    with ignore_large_data():
        garbage._EXCLUSION.reset()
    for _ in range(10):
        objects += [Node() for _ in range(1_000)]
        with ignore_large_data():
            pass
    # A node can have a dict, depending on the version of Python.
    assert 9_000 < garbage._EXCLUSION._excluded < 25_000


def test_block_that_ends_in_another_thread_ends() -> None:
    block = ignore_large_data()
    block.__enter__()
    thread = threading.Thread(target=block.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    assert garbage._EXCLUSION.blocks == 0
    assert garbage._EXCLUSION not in gc.callbacks


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_all_blocks_end_in_a_forked_process() -> None:
    entered, may_leave = threading.Event(), threading.Event()

    def work() -> None:
        with ignore_large_data():
            entered.set()
            may_leave.wait()

    thread = threading.Thread(target=work)
    thread.start()
    entered.wait()
    exclusion = garbage._EXCLUSION
    with ignore_large_data():
        pid = os.fork()
        if pid == 0:
            has_ended = exclusion.blocks == 0 and exclusion not in gc.callbacks and exclusion.lock.acquire(timeout=0)
            os._exit(0 if has_ended else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert exclusion.blocks == 2
    may_leave.set()
    thread.join()
    assert exclusion not in gc.callbacks
