from __future__ import annotations

import gc

import pytest

from rxloop.context import fact_ledger as ledger
from rxloop.context import facts
from rxloop.context.fact_ledger import FactLedger, load_ledger
from rxloop.context.token_estimator import text_tokens
from rxloop.protocol.messages import Message
from support.histories import call, long_history, turn


def test_ledger_contains_each_value_once_with_its_last_label() -> None:
    ledger = FactLedger([Message.user("invoice INV-2093"), Message.assistant("The receipt INV-2093 is there.")])
    assert ledger.text(100) == "receipt INV-2093"
    assert len(ledger) == 1
    assert "INV-2093" in ledger


def test_values_of_a_message_share_a_line_and_equal_labels_appear_once() -> None:
    first = turn((call("a"), '{"flight": "LH441", "price": 350, "date": "2026-03-01"}'))
    second = turn((call("b"), '{"seats": [112, 114, 118]}'))
    text = FactLedger([*first, *second]).text(200)
    assert text.splitlines() == ["flight LH441, price 350, date 2026-03-01", "seats 112 114 118"]


def test_ledger_respects_any_budget() -> None:
    ledger = FactLedger(long_history(60))
    for tokens in (0, 1, 5, 20, 60, 200, 1_000):
        assert text_tokens(ledger.text(tokens)) <= tokens
    assert len(ledger.text(200)) > len(ledger.text(60)) > 0


def test_ledger_respects_a_budget_of_another_counter() -> None:
    ledger = FactLedger(long_history(60))
    for tokens in (0, 10, 50, 300):
        assert len(ledger.text(tokens, size=len)) <= tokens


def test_used_id_has_priority_over_a_number_mentioned_once() -> None:
    messages = [Message.assistant(f"measured {number}") for number in range(3_000, 3_200)]
    messages[5:5] = turn((call("a", order="ORD-5512"), "done"))
    messages[90:90] = turn((call("b", order="ORD-5512"), "done"))
    assert "ORD-5512" in FactLedger(messages).text(30)


def test_visible_values_are_omitted() -> None:
    ledger = FactLedger([Message.user("order ORD-1 and order ORD-2")])
    assert ledger.text(100, visible={"ORD-2"}) == "order ORD-1"


def test_value_inside_another_is_not_repeated() -> None:
    ledger = FactLedger(turn((call("a", command="pytest tests/test_app.py"), "see tests/test_app.py")))
    assert ledger.text(100).count("tests/test_app.py") == 1
    assert len(ledger) == 2


def test_value_inside_another_costs_nothing() -> None:
    messages = [
        Message.assistant(f"the file {path}") for path in ("src/app/models.py", "src/app/models.py", "models.py")
    ]
    ledger = FactLedger([*messages, Message.assistant("took 99.5")])
    costs = {value: entry.cost for value, entry in ledger._entries.items()}
    assert ledger.text(sum(costs.values()) - costs["models.py"] + 1.5) == "file src/app/models.py\ntook 99.5"


def test_ledger_supports_other_languages() -> None:
    ledger = FactLedger([Message.user("Заказ 48213 для Анны"), Message.user("请查询订单ABC-1234的状态")])
    assert ledger.text(100).splitlines() == ["Заказ 48213", "请查询订单 ABC-1234"]


def test_empty_ledger_has_no_text() -> None:
    assert FactLedger().text(100) == ""
    assert FactLedger([Message.user("Hello there.")]).text(100) == ""


def test_only_new_messages_of_a_longer_history_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = long_history(30)
    read: list[Message] = []

    def read_message(message: Message) -> tuple[facts.Fact, ...]:
        read.append(message)
        return facts.extract_facts(message)

    monkeypatch.setattr(ledger, "extract_facts", read_message)
    for stop in (10, 10, 30, len(messages)):
        assert load_ledger(messages[:stop]) == FactLedger(messages[:stop])
    # `load_ledger` reads each message once. The ledgers for comparison read all messages.
    assert [sum(one is message for one in read) for message in messages[:30:7]] == [5, 5, 3, 3, 3]


def test_diverging_histories_have_separate_ledgers() -> None:
    messages = long_history(10)
    fork = [*messages[:9], Message.user("Look at invoice INV-2093 instead.")]
    assert load_ledger(messages) == FactLedger(messages)
    assert load_ledger(fork) == FactLedger(fork)
    assert load_ledger(messages[:4]) == FactLedger(messages[:4])
    grown = load_ledger(messages)
    grown.add([Message.user("INV-1")])
    assert "INV-1" not in load_ledger(messages)


def test_cache_forgets_a_deleted_history() -> None:
    gc.collect()
    before = len(ledger._read)
    messages = long_history(5)
    load_ledger(messages)
    assert len(ledger._read) == before + 1
    del messages
    gc.collect()
    assert len(ledger._read) == before


def test_shared_first_message_keeps_no_ledger_alive() -> None:
    gc.collect()
    before = len(ledger._read)
    constant = Message.user("You look after ORD-1.")
    for number in range(3):
        load_ledger([constant, *long_history(number + 1)])
    gc.collect()
    assert len(ledger._read) == before


def test_size_of_the_ledger_is_bounded() -> None:
    messages = [Message.assistant(" ".join(f"item_{part}_{number}" for number in range(900))) for part in range(15)]
    messages[2:2] = [*turn((call("a", order="ORD-5512"), "done")), *turn((call("b", order="ORD-5512"), "done"))]
    ledger_with_many = FactLedger(messages)
    assert len(ledger_with_many) <= 8_000
    assert "ORD-5512" in ledger_with_many
    stepwise = FactLedger()
    for message in messages:
        stepwise.add([message])
    assert stepwise == ledger_with_many
