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


def test_older_version_is_unchanged() -> None:
    one = History([message("a")])
    two = one.append(message("b"), message("c"))

    assert [each.text for each in one] == ["a"]
    assert [each.text for each in two] == ["a", "b", "c"]
    assert two[1:] == [message("b"), message("c")]
    assert two[-1] == message("c")


def test_diverging_versions_are_independent() -> None:
    trunk = History([message("a")])
    left_branch = trunk.append(message("l"))
    right_branch = trunk.append(message("r"))
    left_branch = left_branch.append(message("l2"))

    assert [each.text for each in left_branch] == ["a", "l", "l2"]
    assert [each.text for each in right_branch] == ["a", "r"]
    assert [each.text for each in trunk] == ["a"]


@pytest.mark.parametrize("index", [1, 2, -2, 100])
def test_index_beyond_a_version_is_out_of_range(index: int) -> None:
    trunk = History([message("a")])
    trunk.append(message("b"), message("c"))

    with pytest.raises(IndexError, match="the history has length 1"):
        trunk[index]


def test_appending_nothing_returns_the_same_version() -> None:
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


def test_shared_empty_version_keeps_no_items() -> None:
    history, ledger = History(), Ledger[str, int]()
    history.append(message("a"))
    history.append_stored([StoredMessages(b"", lambda data: [message("b")], 1, 1, 0, ())])
    ledger.add("a", 1)
    ledger.add_all([("b", 2)])

    assert history._items == []
    assert ledger._store == {}


def test_size_does_not_depend_on_the_way_of_construction() -> None:
    messages = [message("a" * n) for n in range(5)]
    grown = History()
    for each in messages:
        grown = grown.append(each)

    assert grown.size == History(messages).size > 0


def test_history_equals_a_list_of_the_same_messages() -> None:
    assert History([message("a")]) == [message("a")]
    assert History([message("a")]) != [message("b")]
    assert History() == []


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 100), st.text(max_size=1)), max_size=40))
def test_versions_equal_lists_after_any_appends(steps: list[tuple[int, str]]) -> None:
    versions = [(History(), list[str]())]
    for parent, text in steps:
        history, texts = versions[parent % len(versions)]
        versions.append((history.append(message(text)), [*texts, text]))

    for history, texts in versions:
        assert [each.text for each in history] == texts
        assert len(history) == len(texts)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 5)), max_size=40))
def test_ledgers_equal_dicts_after_any_additions(steps: list[tuple[int, int]]) -> None:
    versions = [(Ledger[int, int](), dict[int, int]())]
    for parent, key in steps:
        ledger, entries = versions[parent % len(versions)]
        versions.append((ledger.add(key, parent), {key: parent, **entries}))

    for ledger, entries in versions:
        assert dict(ledger) == entries
        assert len(ledger) == len(entries)
        assert all((key in ledger) == (key in entries) for key in range(6))
        assert all(ledger.get(key) == entries.get(key) for key in range(6))


def test_ledger_keeps_the_first_value_of_a_key_in_order() -> None:
    ledger = Ledger[str, int]().add("b", 1).add("a", 2).add("b", 3)

    assert list(ledger.items()) == [("b", 1), ("a", 2)]


def test_later_key_is_not_in_an_older_ledger() -> None:
    older = Ledger[str, int]().add("a", 1)
    older.add("b", 2)

    assert "b" not in older
    with pytest.raises(KeyError):
        older["b"]


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_copy_grows_independently(duplicate: Callable[[History], History]) -> None:
    history = History([message("a")])
    twin = duplicate(history)

    assert [each.text for each in twin.append(message("b"))] == ["a", "b"]
    assert [each.text for each in history.append(message("c"))] == ["a", "c"]


def test_later_version_reuses_a_value_built_for_an_earlier_one() -> None:
    history = History([message("a"), message("b")])
    assert history.get_derived("key", bytes) is None

    history.set_derived("key", 2, b"a,b")
    longer = history.append(message("c"))
    assert longer.get_derived("key", bytes) == (2, b"a,b")
    assert longer.get_derived("another", bytes) is None

    longer.set_derived("key", 3, b"a,b,c")
    assert history.get_derived("key", bytes) == (2, b"a,b")
    assert history.append(message("d")).get_derived("key", bytes) == (2, b"a,b")


def test_values_of_different_types_are_independent() -> None:
    history = History([message("a")])
    history.set_derived("key", 1, b"a")
    history.set_derived("other", 1, 2.5)
    assert history.get_derived("key", bytes) == (1, b"a")
    assert history.get_derived("other", float) == (1, 2.5)
    assert history.get_derived("key", float) is None


class ObservedStore(list[Message | StoredMessages]):
    def __init__(self, messages: list[Message | StoredMessages]) -> None:
        super().__init__(messages)
        self.read = 0

    def __getitem__(self, index: Any) -> Any:
        items = super().__getitem__(index)
        self.read += len(items) if isinstance(index, slice) else 1
        return items


def test_slice_reads_only_its_items() -> None:
    history = History([message(str(number)) for number in range(1_000)])
    history._items = store = ObservedStore(history._items)

    assert [each.text for each in history[-3:]] == ["997", "998", "999"]
    assert store.read == 3


@given(st.integers(0, 6), st.slices(8))
def test_slice_equals_that_of_a_list(length: int, part: slice) -> None:
    messages = [message(str(number)) for number in range(length)]
    history = History(messages)
    history.append(message("later"))

    assert history[part] == messages[part]


def test_history_knows_its_newest_user_message_and_pinned_messages() -> None:
    one = History([message("a"), Message.assistant("b")])
    two = one.append(Message.user("c", pinned=True), Message.assistant("d"))

    assert one.newest_user == 0
    assert one.pinned == ()
    assert two.newest_user == 2
    assert two.pinned == (2,)
    assert History([Message.assistant("b")]).newest_user is None


def test_extension_is_distinguished_from_another_history() -> None:
    one = History([message("a")])
    two = one.append(message("b"))
    other = one.append(message("c"))

    assert two.extends(one)
    assert two.extends(two)
    assert not one.extends(two)
    assert not other.extends(two)
    assert not two.extends([message("a")])
