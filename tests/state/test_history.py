import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rxloop.protocol.messages import Message
from rxloop.state.history import History, Ledger, StoredMessages


def message(text: str) -> Message:
    return Message.user(text)


def test_an_older_version_stays_as_it_was() -> None:
    one = History([message("a")])
    two = one.append(message("b"), message("c"))

    assert [each.text for each in one] == ["a"]
    assert [each.text for each in two] == ["a", "b", "c"]
    assert two[1:] == [message("b"), message("c")]
    assert two[-1] == message("c")


def test_versions_that_part_do_not_see_each_other() -> None:
    trunk = History([message("a")])
    left = trunk.append(message("l"))
    right = trunk.append(message("r"))
    left = left.append(message("l2"))

    assert [each.text for each in left] == ["a", "l", "l2"]
    assert [each.text for each in right] == ["a", "r"]
    assert [each.text for each in trunk] == ["a"]


@pytest.mark.parametrize("index", [1, 2, -2, 100])
def test_what_lies_behind_a_version_is_out_of_its_range(index: int) -> None:
    trunk = History([message("a")])
    trunk.append(message("b"), message("c"))

    with pytest.raises(IndexError, match="of 1"):
        trunk[index]


def test_appending_nothing_gives_the_same_version() -> None:
    history = History([message("a")])

    assert history.append() is history


def test_appending_to_the_newest_version_copies_nothing() -> None:
    history = History([message("0")])
    stores = {id(history._items)}
    for number in range(1, 100):
        history = history.append(message(str(number)))
        stores.add(id(history._items))

    assert len(stores) == 1
    assert len(history) == 100


def test_an_empty_version_that_many_begin_with_keeps_nothing_of_them() -> None:
    history, ledger = History(), Ledger[str, int]()
    history.append(message("a"))
    history.append_stored([StoredMessages(b"", lambda data: [message("b")], 1, 1, 0, ())])
    ledger.add("a", 1)
    ledger.add_all([("b", 2)])

    assert history._items == []
    assert ledger._store == {}


def test_the_size_is_the_same_however_it_was_reached() -> None:
    messages = [message("a" * n) for n in range(5)]
    grown = History()
    for each in messages:
        grown = grown.append(each)

    assert grown.size == History(messages).size > 0


def test_a_history_equals_a_list_of_the_same_messages() -> None:
    assert History([message("a")]) == [message("a")]
    assert History([message("a")]) != [message("b")]
    assert History() == []


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 100), st.text(max_size=1)), max_size=40))
def test_however_versions_grow_each_holds_what_a_list_would(steps: list[tuple[int, str]]) -> None:
    versions = [(History(), list[str]())]
    for parent, text in steps:
        history, texts = versions[parent % len(versions)]
        versions.append((history.append(message(text)), [*texts, text]))

    for history, texts in versions:
        assert [each.text for each in history] == texts
        assert len(history) == len(texts)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 5)), max_size=40))
def test_however_ledgers_grow_each_holds_what_a_dict_would(steps: list[tuple[int, int]]) -> None:
    versions = [(Ledger[int, int](), dict[int, int]())]
    for parent, key in steps:
        ledger, entries = versions[parent % len(versions)]
        versions.append((ledger.add(key, parent), {key: parent, **entries}))

    for ledger, entries in versions:
        assert dict(ledger) == entries
        assert len(ledger) == len(entries)
        assert all((key in ledger) == (key in entries) for key in range(6))
        assert all(ledger.get(key) == entries.get(key) for key in range(6))


def test_a_ledger_keeps_what_a_key_had_first_in_the_order_of_coming() -> None:
    ledger = Ledger[str, int]().add("b", 1).add("a", 2).add("b", 3)

    assert list(ledger.items()) == [("b", 1), ("a", 2)]


def test_a_key_that_came_later_is_not_in_an_older_ledger() -> None:
    older = Ledger[str, int]().add("a", 1)
    older.add("b", 2)

    assert "b" not in older
    with pytest.raises(KeyError):
        older["b"]


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_a_copy_grows_by_itself(duplicate: Callable[[History], History]) -> None:
    history = History([message("a")])
    twin = duplicate(history)

    assert [each.text for each in twin.append(message("b"))] == ["a", "b"]
    assert [each.text for each in history.append(message("c"))] == ["a", "c"]


def test_a_later_version_goes_on_from_what_was_built_of_an_earlier_one() -> None:
    history = History([message("a"), message("b")])
    assert history.get_derived("key", bytes) is None

    history.set_derived("key", 2, b"a,b")
    longer = history.append(message("c"))
    assert longer.get_derived("key", bytes) == (2, b"a,b")
    assert longer.get_derived("another", bytes) is None

    longer.set_derived("key", 3, b"a,b,c")
    assert history.get_derived("key", bytes) == (2, b"a,b")
    assert history.append(message("d")).get_derived("key", bytes) == (2, b"a,b")


class Watched(list[Message | StoredMessages]):
    """A store that notes which messages are looked at."""

    def __init__(self, messages: list[Message | StoredMessages]) -> None:
        super().__init__(messages)
        self.read = 0

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        self.read += len(found) if isinstance(index, slice) else 1
        return found


def test_a_slice_reads_what_is_in_it_and_nothing_else() -> None:
    history = History([message(str(number)) for number in range(1_000)])
    history._items = store = Watched(history._items)

    assert [each.text for each in history[-3:]] == ["997", "998", "999"]
    assert store.read == 3


@given(st.integers(0, 6), st.slices(8))
def test_a_slice_is_that_of_a_list(length: int, part: slice) -> None:
    messages = [message(str(number)) for number in range(length)]
    history = History(messages)
    history.append(message("later"))

    assert history[part] == messages[part]


def test_a_history_knows_what_no_request_goes_without() -> None:
    one = History([message("a"), Message.assistant("b")])
    two = one.append(Message.user("c", pinned=True), Message.assistant("d"))

    assert (one.newest_user, one.pinned) == (0, ())
    assert (two.newest_user, two.pinned) == (2, (2,))
    assert History([Message.assistant("b")]).newest_user is None


def test_a_later_version_is_told_from_another_history() -> None:
    one = History([message("a")])
    two = one.append(message("b"))
    other = one.append(message("c"))

    assert two.extends(one)
    assert two.extends(two)
    assert not one.extends(two)
    assert not other.extends(two)
    assert not two.extends([message("a")])
